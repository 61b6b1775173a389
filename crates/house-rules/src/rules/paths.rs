//! Nothing in the repository knows the machine it was written on.

use crate::{Finding, repository::SourceFile};

/// Folders in which people and machines keep their checkouts, each without the slashes around it.
const HOMES: [&str; 5] = ["home", "root", "work", "workspace", "Users"];

/// Finds absolute paths into somebody's own folders.
pub fn machine_paths(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().enumerate();
    let found = lines.filter_map(|(number, line)| {
        let home = HOMES.into_iter().find(|home| has_absolute(line, home))?;
        Some(Finding::at(&file.path, number + 1, format!("an absolute path below `{home}` exists on one machine only")))
    });
    found.collect()
}

fn has_absolute(line: &str, home: &str) -> bool {
    let folder = format!("/{home}/");
    line.match_indices(&folder).any(|(position, _)| {
        let before = line[..position].chars().next_back();
        before
            .is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '*' | '}' | ')' | '>' | '/')))
            || line[..position].ends_with("file://")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(parts: [&str; 3]) -> SourceFile {
        SourceFile::new("notes.txt", format!("first\n{}", parts.concat()))
    }

    #[test]
    fn an_absolute_path_of_a_machine_is_found_at_its_line() {
        for home in HOMES {
            for before in ["", "cd ", "\"", "=", "(", ":", "file://"] {
                let found = machine_paths(&line([before, "/", &format!("{home}/me")]));
                assert_eq!(found.len(), 1, "{before}{home}");
                assert_eq!(found[0].line, Some(2));
            }
        }
    }

    #[test]
    fn relative_paths_and_addresses_are_fine() {
        for text in ["crates/home/a", "https://example.org/home/a", "../work/a", "~/work/a", "{id}/root/a", "/usr/bin"]
        {
            assert_eq!(machine_paths(&line([text, "", ""])), [], "{text}");
        }
    }
}
