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
    let config = error.chain().find_map(|cause| match cause.downcast_ref::<RunError>() {
        Some(RunError::Config(config)) => Some(config),
        Some(_) => None,
        None => cause.downcast_ref::<ConfigError>(),
    });
    if let Some(ConfigError::Malformed { path, line, column, message, text }) = config {
        tell(snippet(path, *line, *column, message, text));
        return Exit::Usage;
    }
    tell(format!("error: {}", told(error)));
    if config.is_some() {
        return Exit::Usage;
    }
    let of = |owner: Owner| match owner {
        Owner::User => Exit::Usage,
        Owner::Kernel => Exit::Kernel,
        Owner::Host => Exit::Host,
    };
    match error.chain().find_map(|cause| cause.downcast_ref::<RunError>()) {
        Some(RunError::Kernel(error)) => of(error.owner()),
        Some(RunError::Aged(error)) => of(error.owner()),
        Some(RunError::Changed { .. } | RunError::NoKvm(_)) => Exit::Usage,
        Some(RunError::Journal(
            JournalError::Exists(_)
            | JournalError::NotEmpty(_)
            | JournalError::NoRun(_)
            | JournalError::Busy(_),
        )) => Exit::Usage,
        Some(_) => Exit::Host,
        // A name that leads nowhere was typed wrong; anything else is trouble with this machine.
        None if error.chain().any(is_machine_trouble) => Exit::Host,
        None => Exit::Usage,
    }
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
