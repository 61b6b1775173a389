//! What the kernel knows about this process: memory, processor time, bytes written.

use std::fs;
use std::time::Duration;

/// How often the kernel counts processor time; the same on all Linux systems that programs see.
const TICKS_PER_S: f64 = 100.0;

/// Forgets the highest use of memory so far; says whether the kernel allowed it.
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

/// What all threads together have used since the process began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Bytes sent to disks.
    pub written: u64,
}

impl Usage {
    /// Until now; none where the kernel does not tell.
    pub fn now() -> Option<Self> {
        let cpu = cpu_of(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let written = written_of(&fs::read_to_string("/proc/self/io").ok()?)?;
        Some(Self { cpu, written })
    }
}

/// The 14th and 15th field; the second one is a name in parentheses, which may itself have spaces.
fn cpu_of(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_secs_f64((user + system) / TICKS_PER_S))
}

fn written_of(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_in_megabytes() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t  125000 kB\nVmRSS:\t 1 kB\n"), Some(128.0));
        assert_eq!(peak_of("Name:\tx\n"), None);
    }

    #[test]
    fn processor_time_is_that_of_programs_and_kernel_whatever_the_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 3 0";

        assert_eq!(cpu_of(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu_of("7 (a) S 1"), None);
    }

    #[test]
    fn bytes_written_are_those_that_reach_a_disk() {
        assert_eq!(written_of("wchar: 9\nwrite_bytes: 4096\ncancelled_write_bytes: 1\n"), Some(4096));
        assert_eq!(written_of("wchar: 9\n"), None);
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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_tells_what_this_process_used() {
        assert!(Usage::now().is_some());
    }
}
