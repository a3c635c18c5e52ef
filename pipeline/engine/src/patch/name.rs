//! File names as git writes them into diffs: with quotes and escapes when they have special
//! characters. Read [`git_names`] first.

use std::fmt::Write as _;

/// The two names of a `diff --git` line. Names with spaces are not quoted there, so the split is
/// where both halves agree after their first folder.
pub(super) fn git_names(text: &str) -> Option<(String, String)> {
    if let Some(rest) = text.strip_prefix('"') {
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        let second = rest.get(end + 1..)?.strip_prefix(' ')?;
        return Some((unquoted(text.get(..end + 2)?), unquoted(second)));
    }
    let tail = |name: &str| name.split_once('/').map_or_else(|| name.to_owned(), |(_, tail)| tail.to_owned());
    let splits = || text.match_indices(' ').map(|(at, _)| (text[..at].to_owned(), unquoted(&text[at + 1..])));
    splits().find(|(first, second)| tail(first) == tail(second)).or_else(|| splits().next())
}

/// Undoes git's C-style quotes; a name without them, or with broken ones, stays.
pub(super) fn unquoted(name: &str) -> String {
    let Some(inner) = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return name.to_owned();
    };
    let mut bytes = Vec::new();
    let mut rest = inner.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'a') => bytes.push(7),
            Some(b'b') => bytes.push(8),
            Some(b'v') => bytes.push(11),
            Some(b'f') => bytes.push(12),
            Some(first @ b'0'..=b'3') => {
                let mut value = first - b'0';
                for _ in 0..2 {
                    if let Some(digit @ b'0'..=b'7') = rest.peek().copied() {
                        value = value.wrapping_mul(8).wrapping_add(digit - b'0');
                        rest.next();
                    }
                }
                bytes.push(value);
            }
            Some(other) => bytes.push(other),
            None => return name.to_owned(),
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

/// A name as git reads it, in quotes when it has special characters.
pub(super) fn quoted(prefix: &str, name: &str) -> String {
    if !name.chars().any(|c| c.is_control() || c == '"' || c == '\\') {
        return format!("{prefix}{name}");
    }
    let mut text = format!("\"{prefix}");
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            0x20..=0x7e => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
    text.push('"');
    text
}
