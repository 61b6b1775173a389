//! Two commands in the README are all a newcomer needs, and the continuous run is one of them.

use crate::Finding;

/// Starts the program.
pub const RUN_COMMAND: &str = "cargo run";
/// Tests everything.
pub const TEST_COMMAND: &str = "make test";

/// Finds which of the two commands the README does not show as a line of a shell block.
pub fn missing_commands(readme: &str) -> Vec<Finding> {
    let shown = shell_lines(readme);
    [RUN_COMMAND, TEST_COMMAND]
        .into_iter()
        .filter(|command| !shown.contains(command))
        .map(|command| Finding::whole("README.md", format!("show `{command}` as a line of a shell block")))
        .collect()
}

/// Finds what the continuous run does besides the README's test command.
pub fn extra_ci_steps(script: &str) -> Vec<Finding> {
    let place = ".ci/run";
    let call = format!("exec {TEST_COMMAND}");
    let is_frame = |line: &str| line == "set -euo pipefail" || is_plain_cd(line);
    let steps: Vec<_> = script
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#') && !is_frame(line))
        .collect();
    let mut found: Vec<_> = steps
        .iter()
        .filter(|(_, line)| *line != call)
        .map(|(number, line)| Finding::at(place, *number, format!("`{line}` belongs into the Makefile")))
        .collect();
    if !script.starts_with("#!") {
        found.push(Finding::at(place, 1, "begin with a `#!` line"));
    }
    if !steps.iter().any(|(_, line)| *line == call) {
        found.push(Finding::whole(place, format!("end with `{call}`")));
    }
    found
}

/// A `cd` that starts nothing else; looking up the script's own folder is fine.
fn is_plain_cd(line: &str) -> bool {
    let without_lookup = line.replace("$(dirname \"${BASH_SOURCE[0]}\")", "");
    without_lookup.starts_with("cd ") && !without_lookup.contains([';', '&', '|', '$', '`', '<', '>'])
}

fn shell_lines(markdown: &str) -> Vec<&str> {
    let mut in_shell = false;
    let mut shown = Vec::new();
    for line in markdown.lines() {
        if let Some(kind) = line.trim().strip_prefix("```") {
            in_shell = !in_shell && matches!(kind, "sh" | "shell" | "bash" | "console");
        } else if in_shell {
            shown.push(line.split(" #").next().unwrap_or_default().trim());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str =
        "#!/usr/bin/env bash\n# why\nset -euo pipefail\ncd \"$(dirname \"${BASH_SOURCE[0]}\")/..\"\nexec make test\n";

    #[test]
    fn a_readme_with_both_commands_is_fine() {
        assert_eq!(missing_commands("```sh\ncargo run    # demo\nmake test\n```"), []);
    }

    #[test]
    fn a_command_outside_a_shell_block_is_not_shown() {
        for readme in ["", "cargo run\nmake test", "```text\ncargo run\nmake test\n```", "```sh\nls\n```\nmake test"] {
            assert_eq!(missing_commands(readme).len(), 2, "{readme}");
        }
        assert_eq!(missing_commands("```sh\ncargo run --release\nmake test\n```").len(), 1);
    }

    #[test]
    fn a_run_that_only_calls_the_test_command_is_fine() {
        assert_eq!(extra_ci_steps(SCRIPT), []);
    }

    #[test]
    fn a_step_of_its_own_is_found() {
        let with_step = SCRIPT.replace("exec", "cargo build\nexec");
        let hidden_in_cd = SCRIPT.replace("/..\"", "/..\" && cargo build");

        assert_eq!(extra_ci_steps(&with_step), [Finding::at(".ci/run", 5, "`cargo build` belongs into the Makefile")]);
        assert_eq!(extra_ci_steps(&hidden_in_cd).len(), 1);
    }

    #[test]
    fn a_run_without_the_test_command_is_found() {
        assert_eq!(extra_ci_steps(&SCRIPT.replace("exec make test", "")).len(), 1);
        assert_eq!(extra_ci_steps(&SCRIPT.replace("make test", "make check")).len(), 2);
        assert_eq!(extra_ci_steps("exec make test").len(), 1);
    }
}
