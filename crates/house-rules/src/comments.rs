//! Tells comments from code, well enough for Rust, SQL and Lua.

/// How a language writes comments and strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `//`, nested `/* */`, raw strings, character literals.
    Rust,
    /// `--`, nested `/* */`, strings that double their quote.
    Sql,
    /// `--`, `--[[ ]]`, `[[ ]]` strings.
    Lua,
    /// Every word is for the reader.
    Markdown,
}

impl Language {
    /// The language of a file with this extension, if the rules know it.
    pub fn from_extension(extension: &str) -> Option<Self> {
        match extension {
            "rs" => Some(Self::Rust),
            "sql" => Some(Self::Sql),
            "lua" => Some(Self::Lua),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// A text in two layers of the same shape: line and column of every character are those of the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The comments, everything else blank.
    pub comments: String,
    /// The code, comments and the inside of strings blank.
    pub code: String,
}

/// Splits a text into comments and code.
pub fn split(language: Language, text: &str) -> Layers {
    if language == Language::Markdown {
        return Layers { comments: text.to_owned(), code: blank(text) };
    }
    let mut layers = Layers { comments: String::with_capacity(text.len()), code: String::with_capacity(text.len()) };
    let mut rest = text;
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match piece(language, rest, after_word) {
            Some(piece) => piece,
            None => (Kind::Code, first.len_utf8()),
        };
        let (taken, remaining) = rest.split_at(length);
        match kind {
            Kind::Comment => layers.push(taken, &blank(taken)),
            Kind::Text => layers.push(&blank(taken), &blank(taken)),
            Kind::Code => layers.push(&blank(taken), taken),
        }
        after_word = kind == Kind::Code && (first.is_alphanumeric() || first == '_');
        rest = remaining;
    }
    layers
}

impl Layers {
    fn push(&mut self, comments: &str, code: &str) {
        self.comments.push_str(comments);
        self.code.push_str(code);
    }
}

fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comment,
    Text,
    Code,
}

/// The comment or string that begins here, with its length in bytes; nothing when plain code goes on.
fn piece(language: Language, rest: &str, after_word: bool) -> Option<(Kind, usize)> {
    match language {
        Language::Rust => rust_piece(rest, after_word),
        Language::Sql => sql_piece(rest),
        Language::Lua => lua_piece(rest),
        Language::Markdown => None,
    }
}

fn rust_piece(rest: &str, after_word: bool) -> Option<(Kind, usize)> {
    if rest.starts_with("//") {
        return Some((Kind::Comment, line_length(rest)));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, nested_length(rest)));
    }
    if rest.starts_with('"') {
        return Some((Kind::Text, quoted_length(rest, '"', Escape::Backslash)));
    }
    if rest.starts_with('\'') {
        return char_literal_length(rest).map(|length| (Kind::Text, length));
    }
    if after_word { None } else { raw_string_length(rest).map(|length| (Kind::Text, length)) }
}

fn sql_piece(rest: &str) -> Option<(Kind, usize)> {
    if rest.starts_with("--") {
        return Some((Kind::Comment, line_length(rest)));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, nested_length(rest)));
    }
    let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    Some((Kind::Text, quoted_length(rest, quote, Escape::None)))
}

fn lua_piece(rest: &str) -> Option<(Kind, usize)> {
    if let Some(comment) = rest.strip_prefix("--") {
        let length = long_bracket_length(comment).map_or_else(|| line_length(rest), |length| length + 2);
        return Some((Kind::Comment, length));
    }
    if let Some(length) = long_bracket_length(rest) {
        return Some((Kind::Text, length));
    }
    let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    Some((Kind::Text, quoted_length(rest, quote, Escape::Backslash)))
}

fn line_length(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

fn nested_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut position = 0;
    while position < rest.len() {
        let here = &rest.as_bytes()[position..];
        if here.starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    rest.len()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    Backslash,
    None,
}

fn quoted_length(rest: &str, quote: char, escape: Escape) -> usize {
    let mut characters = rest.char_indices().skip(1);
    while let Some((position, c)) = characters.next() {
        if c == '\\' && escape == Escape::Backslash {
            characters.next();
        } else if c == quote {
            return position + c.len_utf8();
        }
    }
    rest.len()
}

/// `'x'`, `'\n'`, `'\u{1f600}'`; nothing for a lifetime.
fn char_literal_length(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        return Some(quoted_length(rest, '\'', Escape::Backslash));
    }
    characters.next().filter(|&(_, c)| c == '\'').map(|(position, _)| position + 1)
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`; nothing for other words.
fn raw_string_length(rest: &str) -> Option<usize> {
    let opening = ["r", "br", "cr"].into_iter().find_map(|prefix| {
        let after = rest.strip_prefix(prefix)?;
        let hashes = after.len() - after.trim_start_matches('#').len();
        after[hashes..].starts_with('"').then_some((prefix.len() + hashes + 1, hashes))
    });
    let (start, hashes) = opening?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&end).map_or(rest.len(), |position| start + position + end.len()))
}

/// `[[…]]`, `[=[…]=]`; nothing for an index expression.
fn long_bracket_length(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('[')?;
    let equals = after.len() - after.trim_start_matches('=').len();
    after[equals..].strip_prefix('[')?;
    let end = format!("]{}]", "=".repeat(equals));
    Some(rest.find(&end).map_or(rest.len(), |position| position + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(language: Language, text: &str) -> String {
        split(language, text).comments.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn code(language: Language, text: &str) -> String {
        split(language, text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rust_comments_are_found_and_strings_are_not() {
        let text = "let a = \"// no\"; // yes\n/* one /* two */ three */ let b = r#\"/* \"no\" \"#;";

        assert_eq!(comments(Language::Rust, text), "// yes /* one /* two */ three */");
        assert_eq!(code(Language::Rust, text), "let a = ; let b = ;");
    }

    #[test]
    fn rust_characters_and_lifetimes_do_not_confuse() {
        let text = "fn f<'a>(x: &'a str) { if c == '\"' || c == '\\'' {} } // yes";

        assert_eq!(comments(Language::Rust, text), "// yes");
    }

    #[test]
    fn a_word_that_ends_in_r_does_not_open_a_raw_string() {
        assert_eq!(comments(Language::Rust, "error!(\"a \\\" b\"); macror\"x\\\" // no\" // yes"), "// yes");
    }

    #[test]
    fn an_escaped_quote_does_not_end_a_string() {
        assert_eq!(comments(Language::Rust, r#"f("a\\"); g("\" // no"); // yes"#), "// yes");
    }

    #[test]
    fn sql_comments_are_found_and_strings_are_not() {
        let text = "-- one\nSELECT '-- it''s', \"-- x\" /* two */ FROM t";

        assert_eq!(comments(Language::Sql, text), "-- one /* two */");
        assert_eq!(code(Language::Sql, text), "SELECT , FROM t");
    }

    #[test]
    fn lua_comments_are_found_and_strings_are_not() {
        let text = "-- one\nlocal a = '-- no' --[[ two\nthree ]] local b = [[-- no]] .. t[1]";

        assert_eq!(comments(Language::Lua, text), "-- one --[[ two three ]]");
        assert_eq!(code(Language::Lua, text), "local a = local b = .. t[1]");
    }

    #[test]
    fn layers_keep_the_lines() {
        let layers = split(Language::Rust, "a // x\nb\n/* y\nz */ c");

        assert_eq!(layers.comments.lines().nth(3).map(str::trim_end), Some("z */"));
        assert_eq!(layers.code.lines().count(), 4);
    }

    #[test]
    fn an_unfinished_piece_ends_with_the_file() {
        for text in ["/* a", "\"a", "r#\"a", "'\\", "b'"] {
            assert_eq!(split(Language::Rust, text).code.len(), text.len());
        }
    }
}
