//! Comments and documents state the present rule; the version history remembers the rest.

use crate::{
    Finding,
    comments::{Language, split},
    repository::SourceFile,
};

/// The one file that is about the past.
pub const HISTORY_FILE: &str = "CHANGELOG.md";

/// Words of the past, and words that put work off.
const HISTORY: [&[&str]; 5] = [&["previously"], &["formerly"], &["used", "to", "be"], &["ticket"], &["tickets"]];
const LEFT_OVER: [&str; 3] = ["TODO", "FIXME", "XXX"];
/// Words that make a `#` number after them a reference into a tracker.
const TRACKED: [&str; 11] =
    ["issue", "issues", "bug", "pr", "request", "see", "fix", "fixes", "close", "closes", "resolves"];
/// Kinds of numbered papers.
const PAPERS: [&str; 3] = ["rfc", "adr", "rfd"];

/// Finds numbers that only insiders can look up: `issue #…`, `PR …`, numbered design papers.
/// Published standards such as RFC 7396 are fine.
pub fn inside_references(file: &SourceFile) -> Vec<Finding> {
    let text = prose(file);
    let words = words(&text);
    let found = words.iter().enumerate().filter_map(|(position, word)| {
        let number = words.get(position + 1)?;
        is_inside_reference(word.text, number.text).then(|| {
            let what = format!("`{} {}` cannot be opened by every reader: say what holds", word.text, number.text);
            Finding::at(&file.path, word.line, what)
        })
    });
    found.collect()
}

/// Finds words about the past and marks of unfinished work.
pub fn history_words(file: &SourceFile) -> Vec<Finding> {
    if file.path == HISTORY_FILE {
        return vec![];
    }
    let text = prose(file);
    let words = words(&text);
    let found = words.iter().enumerate().filter_map(|(position, word)| {
        let what = match history_at(&words[position..]) {
            Some(phrase) => format!("`{phrase}` speaks of the past: state the present rule"),
            None if LEFT_OVER.contains(&word.text) => format!("`{}`: finish it or leave it out", word.text),
            None => return None,
        };
        Some(Finding::at(&file.path, word.line, what))
    });
    found.collect()
}

fn history_at(words: &[Word<'_>]) -> Option<String> {
    let phrase = HISTORY.into_iter().find(|phrase| {
        words.len() >= phrase.len()
            && words.iter().zip(*phrase).all(|(word, part)| word.text.eq_ignore_ascii_case(part))
    })?;
    Some(phrase.join(" "))
}

fn is_inside_reference(word: &str, next: &str) -> bool {
    let lower = word.to_lowercase();
    if let Some(number) = next.strip_prefix('#') {
        return TRACKED.contains(&lower.as_str()) && is_number(number);
    }
    let in_tracker = word == "PR" && is_number(next);
    let inside_paper = PAPERS.contains(&lower.as_str()) && is_number(next) && !(lower == "rfc" && is_published(next));
    in_tracker || inside_paper
}

/// Published requests for comments have had three or more digits for decades, and none begins with a zero.
fn is_published(number: &str) -> bool {
    number.len() >= 3 && !number.starts_with('0')
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn prose(file: &SourceFile) -> String {
    let language = file.extension().and_then(Language::from_extension);
    language.map_or_else(String::new, |language| split(language, &file.text).comments)
}

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    line: usize,
}

/// Runs of letters, digits and underscores, each with a directly preceding `#`. `RFC-7396` is two words,
/// `ticket_id` is one.
fn words(text: &str) -> Vec<Word<'_>> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '#';
    text.lines()
        .enumerate()
        .flat_map(|(number, line)| line.split(move |c| !is_part(c)).map(move |text| Word { text, line: number + 1 }))
        .flat_map(|word| split_before_hash(word.text).map(move |text| Word { text, ..word }))
        .filter(|word| !word.text.trim_matches('#').is_empty())
        .collect()
}

fn split_before_hash(text: &str) -> impl Iterator<Item = &str> {
    let (before, after) = text.split_at(text.find('#').unwrap_or(text.len()));
    [before, after].into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comment(text: &str) -> SourceFile {
        SourceFile::new("a.rs", format!("fn f() {{}} // {text}\n"))
    }

    #[test]
    fn inside_references_are_found() {
        for text in ["see issue #12", "(PR 34)", "PR #34", "PR#34", "per RFC-011", "RFC 7", "adr-3", "fixes #5."] {
            assert_eq!(inside_references(&comment(text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn published_standards_and_plain_numbers_are_fine() {
        for text in ["RFC 7396", "RFC-9457", "the issue is 12 bytes", "issues 3 grants", "step #2", "adrift 3"] {
            assert_eq!(inside_references(&comment(text)), [], "{text}");
        }
    }

    #[test]
    fn history_words_are_found() {
        for text in ["Previously a list", "this used to be 3", "TODO later", "FIXME", "the ticket says", "formerly x"] {
            assert_eq!(history_words(&comment(text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_phrase_is_found_across_lines_and_at_its_line() {
        let file = SourceFile::new("a.sql", "-- one\n-- it used\n-- to be two\n");

        assert_eq!(history_words(&file)[0].line, Some(2));
    }

    #[test]
    fn code_strings_and_longer_words_are_fine() {
        let file = SourceFile::new("a.rs", "let ticket = \"TODO issue #12\"; // ticket_id is used to order");

        assert_eq!(history_words(&file), []);
        assert_eq!(inside_references(&file), []);
    }

    #[test]
    fn documents_are_read_whole_and_the_changelog_may_look_back() {
        let text = "It was previously slow, issue #12.";

        assert_eq!(history_words(&SourceFile::new("docs/a.md", text)).len(), 1);
        assert_eq!(history_words(&SourceFile::new(HISTORY_FILE, text)), []);
        assert_eq!(inside_references(&SourceFile::new(HISTORY_FILE, text)).len(), 1);
    }

    #[test]
    fn other_kinds_of_files_are_not_read() {
        assert_eq!(history_words(&SourceFile::new("data.json", "TODO previously")), []);
    }
}
