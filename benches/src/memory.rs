//! How much memory this process holds, as the kernel counts it.

use std::fs;

/// Forgets the highest use so far; says whether the kernel allowed it.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The highest resident memory since the last reset, in megabytes; none where the kernel does not tell.
pub fn peak_mb() -> Option<f64> {
    peak_of(&fs::read_to_string("/proc/self/status").ok()?)
}

fn peak_of(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_megabytes() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t  125000 kB\nVmRSS:\t 1 kB\n"), Some(128.0));
        assert_eq!(peak_of("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_peak_covers_memory_that_was_given_back() {
        let before = peak_mb().expect("the kernel tells");
        let block = vec![1_u8; 64 << 20];
        assert_eq!(std::hint::black_box(&block)[1 << 20], 1);
        drop(block);

        assert!(peak_mb().expect("the kernel tells") >= before + 32.0);
    }
}
