//! Noticing that another process wrote, without asking the database.
//!
//! Whoever commits writes to the log. Where the operating system tells of that, a thread waits for it and has the writer look; elsewhere, and
//! as a backstop, the writer compares the age and the length of the log now and then. Neither is a statement.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often to compare where somebody tells of writes.
const BACKSTOP: Duration = Duration::from_millis(250);

/// A log that was written so lately may be written again without looking any younger.
const YOUNG: Duration = Duration::from_millis(50);

/// How the log looks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    length: u64,
    written: SystemTime,
}

/// A log and how it looked the last time.
#[derive(Debug)]
pub(crate) struct Watch {
    log: PathBuf,
    /// None when it could not be told from one that is written once more.
    seen: Option<Look>,
    /// How often to compare.
    pub(crate) every: Duration,
}

impl Watch {
    /// Watches a log; `is_told` if somebody tells of writes.
    pub(crate) fn new(log: &Path, is_told: bool, poll_interval: Duration) -> Self {
        let every = if is_told { poll_interval.max(BACKSTOP) } else { poll_interval };
        Self { log: log.to_owned(), seen: None, every }
    }

    /// Whether the log may have been written since the last time.
    pub(crate) fn may_have_changed(&mut self) -> bool {
        let found = std::fs::metadata(&self.log);
        let look = found.and_then(|found| Ok(Look { length: found.len(), written: found.modified()? })).ok();
        let is_old = |look: &Look| look.written.elapsed().is_ok_and(|age| age > YOUNG);
        let changed = look.is_none() || self.seen != look;
        self.seen = look.filter(is_old);
        changed
    }
}

#[cfg(target_os = "linux")]
pub(crate) use told::Watcher;
#[cfg(not(target_os = "linux"))]
pub(crate) use untold::Watcher;

#[cfg(target_os = "linux")]
mod told {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::io::Errno;

    /// A commit can be seen a moment after it was written.
    const MOMENT: Duration = Duration::from_millis(1);

    /// The thread that waits for writes. Dropping it ends it.
    #[derive(Debug)]
    pub(crate) struct Watcher {
        ending: Arc<OwnedFd>,
        thread: Option<JoinHandle<()>>,
    }

    impl Watcher {
        /// Calls `tell` after the log was written, at most once per `pause`; none where the system has no watch left for us.
        pub(crate) fn start(log: &Path, pause: Duration, tell: impl Fn() + Send + 'static) -> Option<Self> {
            let watched = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
            arm(&watched, log).ok()?;
            let ending = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).ok()?);
            let thread = std::thread::Builder::new().name("ff-sqlite-watch".into()).spawn({
                let (ending, log) = (Arc::clone(&ending), log.to_owned());
                move || serve(&watched, &log, &ending, pause, &tell)
            });
            Some(Self { ending, thread: Some(thread.ok()?) })
        }
    }

    impl Drop for Watcher {
        fn drop(&mut self) {
            // Fails only if it was told already.
            let _ = rustix::io::write(&*self.ending, &1u64.to_ne_bytes());
            if let Some(thread) = self.thread.take() {
                // Nobody waits for what it found.
                let _ = thread.join();
            }
        }
    }

    /// Has the next write told, and only that one: busy writers would pay for each.
    fn arm(watched: &OwnedFd, log: &Path) -> rustix::io::Result<()> {
        inotify::add_watch(watched, log, WatchFlags::MODIFY | WatchFlags::ONESHOT).map(drop)
    }

    /// Tells of a write once it can be seen; and once more after the pause, for what was written meanwhile.
    fn serve(watched: &OwnedFd, log: &Path, ending: &OwnedFd, pause: Duration, tell: &impl Fn()) {
        while wait(Some(watched), ending, None) == Some(true) && wait(None, ending, Some(MOMENT)).is_some() {
            tell();
            if wait(None, ending, Some(pause)).is_none() {
                return;
            }
            drain(watched);
            // A log that cannot be watched any longer is compared now and then.
            if arm(watched, log).is_err() {
                return;
            }
            tell();
        }
    }

    /// Whether there was a write before the time ran out; none at the end.
    fn wait(watched: Option<&OwnedFd>, ending: &OwnedFd, patience: Option<Duration>) -> Option<bool> {
        let mut files = vec![PollFd::new(ending, PollFlags::IN)];
        files.extend(watched.map(|watched| PollFd::new(watched, PollFlags::IN)));
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        loop {
            match poll(&mut files, patience.as_ref()) {
                Err(Errno::INTR) => {}
                Ok(ready) if files[0].revents().is_empty() => return Some(ready > 0),
                _ => return None,
            }
        }
    }

    fn drain(watched: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(watched, &mut buffer);
        while events.next().is_ok() {}
    }
}

#[cfg(not(target_os = "linux"))]
mod untold {
    use std::path::Path;
    use std::time::Duration;

    /// Nobody tells of writes here.
    #[derive(Debug)]
    pub(crate) struct Watcher;

    impl Watcher {
        pub(crate) fn start(_: &Path, _: Duration, _: impl Fn() + Send + 'static) -> Option<Self> {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn aged(path: &Path) {
        let before = SystemTime::now() - Duration::from_secs(1);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
    }

    #[test]
    fn a_log_is_looked_at_again_only_after_it_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut watch = Watch::new(file.path(), true, Duration::from_millis(10));
        aged(file.path());
        assert!(watch.may_have_changed(), "nothing is known of it");
        assert!(!watch.may_have_changed());
        file.as_file().write_all(b"more").unwrap();
        assert!(watch.may_have_changed());
        assert!(watch.may_have_changed(), "it is so young that it may have been written once more");
        aged(file.path());
        assert!(watch.may_have_changed());
        assert!(!watch.may_have_changed());
    }

    #[test]
    fn a_log_that_cannot_be_seen_may_have_changed() {
        let mut watch = Watch::new(Path::new("/nowhere/at/all"), false, Duration::from_millis(10));
        assert!(watch.may_have_changed());
        assert!(watch.may_have_changed());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_write_is_told_and_the_thread_ends_with_its_owner() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        let tell = move || told.send(()).unwrap_or_default();
        let watcher = Watcher::start(file.path(), Duration::from_millis(1), tell).expect("a watch");
        file.as_file().write_all(b"more").unwrap();
        heard.recv_timeout(Duration::from_secs(30)).expect("the write is told");
        drop(watcher);
        // What was told before the end may still be to be heard.
        let ended = loop {
            if let Err(ended) = heard.recv_timeout(Duration::from_secs(30)) {
                break ended;
            }
        };
        assert_eq!(ended, std::sync::mpsc::RecvTimeoutError::Disconnected, "nobody is left to tell");
    }
}
