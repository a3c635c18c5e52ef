//! From an error to what the user reads and the exit code. Read [`explain`] first.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use kdelta_engine::config::ConfigError;
use kdelta_engine::journal::JournalError;
use kdelta_engine::kernel::Owner;
use kdelta_engine::run::RunError;

use crate::exit::Exit;
use crate::terminal::tell;

/// Prints `error` with its chain, and says how the program ends.
pub fn explain(error: &anyhow::Error) -> Exit {
    let (text, exit) = explained(error);
    tell(text);
    exit
}

/// What is printed of `error`, and how the program ends.
fn explained(error: &anyhow::Error) -> (String, Exit) {
    let run = error.chain().find_map(|cause| cause.downcast_ref::<RunError>());
    let config = match run {
        Some(RunError::Config(config)) => Some(config),
        Some(_) => None,
        None => error.chain().find_map(|cause| cause.downcast_ref::<ConfigError>()),
    };
    if let Some(ConfigError::Malformed { path, line, column, message, text }) = config {
        return (snippet(path, *line, *column, message, text), Exit::Usage);
    }
    let text = format!("error: {}", told(error));
    if config.is_some() {
        return (text, Exit::Usage);
    }
    let of = |owner: Owner| match owner {
        Owner::User => Exit::Usage,
        Owner::Kernel => Exit::Kernel,
        Owner::Host => Exit::Host,
    };
    let exit = match run {
        Some(RunError::Kernel(error)) => of(error.owner()),
        Some(RunError::Aged(error)) => of(error.owner()),
        Some(RunError::Changed { .. } | RunError::NoKvm(_)) => Exit::Usage,
        // Only the file system is no choice of the user's.
        Some(RunError::Journal(error)) if !matches!(error, JournalError::File { .. }) => Exit::Usage,
        Some(_) => Exit::Host,
        // A name that leads nowhere was typed wrong; anything else is trouble with this machine.
        None if error.chain().any(is_machine_trouble) => Exit::Host,
        None => Exit::Usage,
    };
    (text, exit)
}

fn is_machine_trouble(cause: &(dyn std::error::Error + 'static)) -> bool {
    let error = cause.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() != std::io::ErrorKind::NotFound)
}

/// The error and its causes, but for those that the text before them quotes already.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The message with the line it is about.
fn snippet(path: &str, line: usize, column: usize, message: &str, text: &str) -> String {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let rest = text.get(start..).unwrap_or_default();
    let line_text = rest.lines().next().unwrap_or_default();
    let offset: usize = line_text.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum();
    let at = start + offset;
    let word = text.get(at..).unwrap_or_default();
    let quoted = word.chars().next().filter(|first| "\"'".contains(*first));
    let length = match quoted.and_then(|quote| word.get(1..)?.find([quote, '\n'])) {
        Some(inside) => inside + 2,
        None => word.find(|c: char| c.is_whitespace() || ",:}]".contains(c)).unwrap_or(word.len()),
    };
    // At least the first character, whole.
    let first = word.chars().next().map_or(0, char::len_utf8);
    let end = at + length.max(first);
    let report = &[Level::ERROR.primary_title(message).element(
        Snippet::source(text).path(path).annotation(AnnotationKind::Primary.span(at.min(end)..end)),
    )];
    Renderer::plain().render(report).to_string()
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use anyhow::Context;
    use kdelta_engine::kernel::KernelError;
    use kdelta_engine::process::ProcessError;

    use super::*;

    fn exit(error: impl Into<anyhow::Error>) -> Exit {
        explained(&error.into()).1
    }

    fn text(error: impl Into<anyhow::Error>) -> String {
        explained(&error.into()).0
    }

    fn malformed() -> ConfigError {
        ConfigError::Malformed {
            path: "a.yaml".to_owned(),
            line: 2,
            column: 7,
            message: "invalid type: string \"many\"".to_owned(),
            text: "version: 1\nboots: \"many\"\nname: a\n".to_owned(),
        }
    }

    fn build(source: ProcessError) -> RunError {
        let (what, log) = ("kernel child (build)".to_owned(), "/c/build.log".into());
        KernelError::Build { what, log, source }.into()
    }

    fn failed() -> ProcessError {
        let (command, status) = ("make vmlinux".to_owned(), "exit status: 2".to_owned());
        ProcessError::Failed { command, status, said: "fs/a.c:1: error: no".to_owned() }
    }

    #[test]
    fn a_malformed_experiment_is_shown_with_its_line_wherever_the_error_comes_from() {
        let expected =
            "error: invalid type: string \"many\"\n --> a.yaml:2:7\n  |\n2 | boots: \"many\"\n  |       ^";
        for error in [malformed().into(), RunError::from(malformed()).into()] {
            let (text, exit) = explained(&error);
            assert_eq!(
                (text.lines().take(5).collect::<Vec<_>>().join("\n").as_str(), exit),
                (expected, Exit::Usage)
            );
        }
    }

    #[test]
    fn a_contradiction_in_the_experiment_is_the_user_s() {
        let error = || ConfigError::invalid("boots", "0 boots; 1 to 1000 are possible");
        assert_eq!(text(error()), "error: boots: 0 boots; 1 to 1000 are possible");
        assert_eq!(exit(error()), Exit::Usage);
        assert_eq!(exit(RunError::from(error())), Exit::Usage);
        // The file system says no, but the experiment is what was named.
        let source = Error::from(ErrorKind::PermissionDenied);
        assert_eq!(exit(ConfigError::Read { path: "a.yaml".to_owned(), source }), Exit::Usage);
    }

    #[test]
    fn a_kernel_s_failure_ends_by_its_owner() {
        assert_eq!(exit(build(failed())), Exit::Kernel);
        assert_eq!(exit(build(ProcessError::Cancelled)), Exit::Host);
        let missing = ProcessError::Start { program: "make".to_owned(), source: ErrorKind::NotFound.into() };
        let error = build(missing);
        assert!(text(error).ends_with("make is not installed; `kdelta doctor` names the package"));
        let no_config = KernelError::NoConfig { source_name: "dir:/src/linux".to_owned() };
        assert_eq!(exit(RunError::from(no_config)), Exit::Usage);
        let full = KernelError::File {
            action: "write",
            path: "/c/vmlinux".into(),
            source: ErrorKind::StorageFull.into(),
        };
        assert_eq!(exit(RunError::from(full)), Exit::Host);
    }

    #[test]
    fn what_a_cause_says_again_is_told_once() {
        let said = text(build(failed()));
        assert_eq!(said.matches("fs/a.c:1: error: no").count(), 1, "{said}");
        let chained = anyhow::anyhow!("inner").context("outer");
        assert_eq!(text(chained), "error: outer: inner");
        let quoted = anyhow::anyhow!("inner").context("outer, because of inner");
        assert_eq!(text(quoted), "error: outer, because of inner");
    }

    #[test]
    fn a_run_that_cannot_go_on_says_what_to_do() {
        let (what, now, before) = ("QEMU".to_owned(), "9".to_owned(), "8".to_owned());
        assert_eq!(exit(RunError::Changed { what, now, before }), Exit::Usage);
        assert_eq!(exit(RunError::NoKvm("no /dev/kvm".to_owned())), Exit::Usage);
        let interrupted = || RunError::Interrupted { done: 4, total: 26, folder: "my runs/a".into() };
        assert_eq!(exit(interrupted()), Exit::Host);
        assert_eq!(
            text(interrupted()),
            "error: interrupted after 4 of 26 boots; go on with: kdelta run --resume 'my runs/a'"
        );
        assert_eq!(exit(RunError::Stopped), Exit::Host);
    }

    #[test]
    fn a_run_folder_that_was_named_wrong_is_the_user_s_and_a_full_disk_the_host_s() {
        let wrong: [fn() -> JournalError; 6] = [
            || JournalError::Exists("a".into()),
            || JournalError::NotEmpty("a".into()),
            || JournalError::Absent("a".into()),
            || JournalError::NoRun("a".into()),
            || JournalError::Busy("a".into()),
            || JournalError::Malformed { path: "a".into(), message: "x".to_owned() },
        ];
        for error in wrong {
            assert_eq!(exit(error()), Exit::Usage, "{}", error());
            assert_eq!(exit(RunError::from(error())), Exit::Usage, "{}", error());
        }
        let full = || JournalError::File {
            action: "write",
            path: "a".into(),
            source: ErrorKind::StorageFull.into(),
        };
        assert_eq!(exit(full()), Exit::Host);
        assert_eq!(exit(RunError::from(full())), Exit::Host);
    }

    #[test]
    fn other_errors_are_the_user_s_unless_the_machine_says_no() {
        assert_eq!(exit(anyhow::anyhow!("--fs zfs: no such filesystem")), Exit::Usage);
        let io = |kind: ErrorKind| {
            Err::<(), _>(Error::from(kind)).context("cannot write x").expect_err("an error")
        };
        assert_eq!(exit(io(ErrorKind::NotFound)), Exit::Usage);
        assert_eq!(exit(io(ErrorKind::PermissionDenied)), Exit::Host);
        assert_eq!(text(io(ErrorKind::NotFound)), "error: cannot write x: entity not found");
    }

    #[test]
    fn a_place_outside_of_the_text_never_panics() {
        for (line, column) in [(0, 0), (1, 1), (2, 40), (9, 9), (usize::MAX, usize::MAX)] {
            for text in ["", "a", "ä: [\"ö", "a\n\nb"] {
                assert!(snippet("a.yaml", line, column, "wrong", text).starts_with("error: wrong"));
            }
        }
    }
}
