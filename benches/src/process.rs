//! What the kernel knows about this process and the servers it measures: memory, processor time, bytes written.

use std::fs;
use std::sync::{Mutex, PoisonError};
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

/// Servers that work for this process.
static SERVERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// From now on what this server and its children use counts as used by this process.
pub fn count_also(server: u32) {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner).push(server);
}

/// How many want a processor, on average over the last minute; none where the kernel does not tell.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
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
    /// Until now, with that of the servers; none where the kernel does not tell.
    pub fn now() -> Option<Self> {
        let mut all = Self::of(std::process::id())?;
        for server in SERVERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            all.add(Self::of(*server)?);
            // A child that ends meanwhile counts with its parent.
            children(*server).into_iter().filter_map(Self::of).for_each(|child| all.add(child));
        }
        Some(all)
    }

    /// What was used since an earlier moment.
    pub fn since(self, earlier: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(earlier.cpu), written: self.written.saturating_sub(earlier.written) }
    }

    /// Of one process and those of its children that ended.
    fn of(process: u32) -> Option<Self> {
        let cpu = cpu_of(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)?;
        let written = written_of(&fs::read_to_string(format!("/proc/{process}/io")).ok()?)?;
        Some(Self { cpu, written })
    }

    fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.written += other.written;
    }
}

/// The processes that the threads of this one started and that still run.
fn children(process: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The 14th to 17th field; the second one is a name in parentheses, which may itself have spaces.
fn cpu_of(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<f64> =
        after_name.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    (fields.len() == 4).then(|| Duration::from_secs_f64(fields.iter().sum::<f64>() / TICKS_PER_S))
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
    fn processor_time_is_that_of_programs_and_kernel_and_ended_children_whatever_the_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 25 20 5 20 0 3 0";

        assert_eq!(cpu_of(stat), Some(Duration::from_secs(2)));
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
        assert!(load().is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_is_found_while_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = children(std::process::id()).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();

        assert!(found);
    }
}
