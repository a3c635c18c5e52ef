//! Everything that reaches the terminal goes through here. Kernels, patches and packages may hold
//! anything: escape sequences never get out, and a closed or full output is no panic.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Writes `text` and a newline to standard output; a reader that went away is no error.
///
/// # Errors
/// When the output is full or broken.
pub fn say(text: impl AsRef<str>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", clean(text.as_ref())).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Writes `text` and a newline to standard error, in one piece; there is nobody to tell when that
/// fails.
pub fn tell(text: impl AsRef<str>) {
    let _ = io::stderr().write_all(format!("{}\n", clean(text.as_ref())).as_bytes());
}

/// `text` with `?` for every control character but newline and tab.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_become_question_marks() {
        assert_eq!(clean("a\u{1b}[31mb\u{7}\tc\nd\u{9b}e\r"), "a?[31mb?\tc\nd?e?");
    }
}
