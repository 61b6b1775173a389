//! SQL and Lua files begin with what they do and what they take.

use std::collections::BTreeSet;

use crate::{
    Finding,
    comments::{Language, split},
    repository::SourceFile,
};

/// Finds `.sql` and `.lua` files whose first line does not say what they are for.
pub fn missing_purpose(file: &SourceFile) -> Option<Finding> {
    statement_language(file)?;
    let first = file.text.lines().next().unwrap_or_default();
    let purpose = first.strip_prefix("-- ").unwrap_or_default();
    let says_something = purpose.split_whitespace().filter(|word| word.chars().all(is_prose)).count() >= 3;
    (!says_something).then(|| Finding::at(&file.path, 1, "begin with a comment line that says what it is for"))
}

/// Finds parameters that the leading comment does not explain: `$1`, `?1`, `:name` and `?` in SQL, `KEYS` and `ARGV`
/// in Lua.
pub fn unexplained_parameters(file: &SourceFile) -> Vec<Finding> {
    let Some(language) = statement_language(file) else { return vec![] };
    let header: Vec<&str> = file.text.lines().take_while(|line| line.starts_with("--")).collect();
    let explained: BTreeSet<String> = header.iter().flat_map(|line| parameters(language, line)).collect();
    let used = parameters(language, &split(language, &file.text).code);
    used.into_iter()
        .filter(|parameter| !explained.contains(parameter))
        .map(|parameter| Finding::whole(&file.path, format!("explain `{parameter}` in the leading comment")))
        .collect()
}

fn statement_language(file: &SourceFile) -> Option<Language> {
    let language = file.extension().and_then(Language::from_extension)?;
    matches!(language, Language::Sql | Language::Lua).then_some(language)
}

fn is_prose(c: char) -> bool {
    c.is_alphabetic() || matches!(c, ',' | '.' | '-' | '\'' | ':' | ';' | '(' | ')' | '`' | '_')
}

fn parameters(language: Language, text: &str) -> BTreeSet<String> {
    if language == Language::Lua {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        return words.filter(|word| matches!(*word, "KEYS" | "ARGV")).map(String::from).collect();
    }
    let mut found = BTreeSet::new();
    let mut before = ' ';
    for (position, mark) in text.char_indices() {
        let name: String = text[position + mark.len_utf8()..].chars().take_while(|c| is_name(*c)).collect();
        if is_parameter(before, mark, &name) {
            found.insert(format!("{mark}{name}"));
        }
        before = mark;
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A cast (`::text`) or a slice (`[1:2]`) is no parameter.
fn is_parameter(before: char, mark: char, name: &str) -> bool {
    let first = name.chars().next();
    match mark {
        '$' => !is_name(before) && before != '$' && first.is_some_and(|c| c.is_ascii_digit()),
        '?' => !is_name(before),
        ':' => before != ':' && !is_name(before) && first.is_some_and(|c| c.is_ascii_alphabetic()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE: &str = "-- Moves due executions of one lane to the queue.\n-- $1 lane   $2 now_ms\n\
                        UPDATE execution SET state = '$9' WHERE lane = $1 AND wake_at_ms <= $2::bigint";

    #[test]
    fn a_statement_that_says_what_it_does_and_takes_is_fine() {
        let file = SourceFile::new("wake.sql", WAKE);

        assert_eq!(missing_purpose(&file), None);
        assert_eq!(unexplained_parameters(&file), []);
    }

    #[test]
    fn a_statement_without_a_purpose_is_found() {
        for text in ["", "SELECT 1", "\n-- Reads one execution by id.", "-- $1 lane $2 now", "-- wake", "--"] {
            assert!(missing_purpose(&SourceFile::new("a.sql", text)).is_some(), "{text}");
            assert!(missing_purpose(&SourceFile::new("a.lua", text)).is_some(), "{text}");
        }
    }

    #[test]
    fn a_parameter_that_is_not_explained_is_found() {
        for (text, parameter) in [
            ("-- Reads one execution.\nSELECT a FROM b WHERE id = $1", "$1"),
            ("-- Reads one execution.\n-- ?1 id\nSELECT a FROM b WHERE id = ?1 AND c = ?2", "?2"),
            ("-- Reads one execution.\nSELECT a FROM b WHERE id = :id", ":id"),
            ("-- Reads one execution.\nSELECT a FROM b WHERE id = ?", "?"),
            ("-- Reads one execution.\nSELECT a FROM b\n-- $1 id\nWHERE id = $1", "$1"),
        ] {
            let found = unexplained_parameters(&SourceFile::new("a.sql", text));
            let expected = format!("explain `{parameter}` in the leading comment");
            assert_eq!(found, [Finding::whole("a.sql", expected)], "{text}");
        }
    }

    #[test]
    fn casts_slices_and_dollar_quotes_are_no_parameters() {
        let text = "-- Reads one execution.\nSELECT a::text, b[1:2] FROM c; DO $$ BEGIN x := 1; END $$;";

        assert_eq!(unexplained_parameters(&SourceFile::new("a.sql", text)), []);
    }

    #[test]
    fn keys_and_arguments_of_lua_are_explained() {
        let body = "return redis.call('GET', KEYS[1])";
        let silent = SourceFile::new("a.lua", format!("-- Reads one record by key.\n{body}"));
        let explained = SourceFile::new("a.lua", format!("-- Reads one record by key.\n-- KEYS  1 the record\n{body}"));

        assert_eq!(unexplained_parameters(&silent).len(), 1);
        assert_eq!(unexplained_parameters(&explained), []);
    }

    #[test]
    fn other_files_are_left_alone() {
        let file = SourceFile::new("a.rs", "fn f() {}");

        assert_eq!(missing_purpose(&file), None);
        assert_eq!(unexplained_parameters(&file), []);
    }
}
