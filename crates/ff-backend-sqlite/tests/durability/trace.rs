//! Reads what `strace -f -y` wrote, and says which answers came before the disk had what they speak of.

use std::collections::BTreeMap;

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SystemCall {
    name: String,
    /// Where it goes, as the kernel names it.
    target: String,
    /// What it writes, as far as it was shown.
    data: String,
    /// The line on which it begins.
    begin: usize,
    /// The line on which it ends well; none when it fails or never ends.
    end: Option<usize>,
}

impl SystemCall {
    fn writes_log(&self) -> bool {
        matches!(self.name.as_str(), "pwrite64" | "write" | "pwritev") && self.target.ends_with("-wal")
    }

    fn flushes_log(&self) -> bool {
        matches!(self.name.as_str(), "fdatasync" | "fsync") && self.target.ends_with("-wal")
    }

    /// The mark of the operation that is answered.
    fn answers(&self) -> Option<&str> {
        if self.name != "write" || self.target.ends_with("-wal") {
            return None;
        }
        self.data.strip_prefix("answer ")?.strip_suffix("\\n")
    }

    /// For people, without the bytes in between.
    fn shortened(&self, mark: &str) -> String {
        let data = if self.data.contains(mark) { format!("…{mark}…") } else { "…".to_owned() };
        match self.answers() {
            Some(_) => format!("{}({}, \"{}\")", self.name, self.target, self.data),
            None if self.flushes_log() => format!("{}({}) = 0", self.name, self.target),
            None => format!("{}({}, \"{data}\")", self.name, self.target),
        }
    }
}

/// What a trace shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Answers that were given.
    pub(crate) answers: usize,
    /// Flushes of the log that had something to flush.
    pub(crate) groups: usize,
    /// Flushes of the log.
    pub(crate) flushes: usize,
    /// Marks of answers that were given before what they speak of was flushed.
    pub(crate) early: Vec<String>,
    /// Marks of answers that speak of nothing that was ever written.
    pub(crate) unwritten: Vec<String>,
    /// One operation from its write to its answer.
    pub(crate) excerpt: Vec<String>,
}

/// Puts the two halves of interrupted calls together.
pub(crate) fn parse(text: &str) -> Vec<SystemCall> {
    let mut calls = Vec::new();
    let mut unfinished: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let Some((process, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if rest.starts_with("<...") {
            if let Some(at) = unfinished.remove(process) {
                let call: &mut SystemCall = &mut calls[at];
                call.end = is_success(rest).then_some(number);
            }
        } else if let Some(mut call) = begun(rest, number) {
            if rest.ends_with("<unfinished ...>") {
                unfinished.insert(process, calls.len());
            } else {
                call.end = is_success(rest).then_some(number);
            }
            calls.push(call);
        }
    }
    calls
}

fn begun(line: &str, number: usize) -> Option<SystemCall> {
    let (name, arguments) = line.split_once('(')?;
    let target = arguments.split_once('<')?.1.split_once('>')?.0;
    let data = arguments.split_once(">, \"").map_or("", |(_, data)| data);
    let data = data.rfind('"').map_or(data, |end| &data[..end]);
    Some(SystemCall {
        name: name.to_owned(),
        target: target.to_owned(),
        data: data.to_owned(),
        begin: number,
        end: None,
    })
}

/// Whether a line ends with a result that is not negative.
fn is_success(line: &str) -> bool {
    line.rsplit_once("= ").is_some_and(|(_, result)| result.starts_with(|first: char| first.is_ascii_digit()))
}

/// Follows every answer back to its flush and its write.
pub(crate) fn judge(calls: &[SystemCall]) -> Findings {
    let mut findings =
        Findings { flushes: calls.iter().filter(|call| call.flushes_log()).count(), ..Findings::default() };
    let mut has_written = false;
    for call in calls {
        has_written |= call.writes_log();
        if call.flushes_log() && std::mem::take(&mut has_written) {
            findings.groups += 1;
        }
        if let Some(mark) = call.answers() {
            findings.answers += 1;
            follow(calls, call, mark, &mut findings);
        }
    }
    findings
}

fn follow(calls: &[SystemCall], answer: &SystemCall, mark: &str, findings: &mut Findings) {
    let Some(write) = calls.iter().find(|call| call.writes_log() && call.data.contains(mark)) else {
        findings.unwritten.push(mark.to_owned());
        return;
    };
    let is_between = |call: &&SystemCall| {
        call.flushes_log()
            && write.end.is_some_and(|end| end < call.begin)
            && call.end.is_some_and(|end| end < answer.begin)
    };
    match calls.iter().find(is_between) {
        None => findings.early.push(mark.to_owned()),
        Some(flush) if findings.excerpt.is_empty() => {
            findings.excerpt = [write, flush, answer].map(|call| call.shortened(mark)).into();
        }
        Some(_) => {}
    }
}
