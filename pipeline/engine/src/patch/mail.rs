//! Takes mails and mailboxes apart: which message is which part of a series, and the changes in
//! it. Read [`Mail`] first, then [`read_mail`].

use std::borrow::Cow;

use mail_parser::{Message, MessageParser, MimeHeaders, PartType};

use super::PatchError;
use super::diff::FileDiff;
use super::input::files_in;

/// A message reduced to what matters here.
#[derive(Clone, Debug)]
pub(super) struct Mail {
    /// Subject as sent.
    pub(super) subject: String,
    /// Where in the mailbox, from 1.
    pub(super) position: usize,
    /// `n/m` of `[PATCH n/m]`.
    pub(super) number: Option<(u32, u32)>,
    /// 3 of `[PATCH v3]`.
    pub(super) version: u32,
    /// Whether it answers another message.
    pub(super) reply: bool,
    /// The changes in it.
    pub(super) files: Vec<FileDiff>,
    /// The commit it was made from, as `git format-patch` notes it.
    pub(super) commit: Option<String>,
}

/// Whether a line is the `From ` line that begins a message of a mailbox: a clock time and a year
/// after it, as git-mailsplit(1) asks, so that prose starting with "From" is none.
fn is_envelope(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"From ") else { return false };
    let text = String::from_utf8_lossy(rest);
    let Some((before, after)) = text.rsplit_once(':') else { return false };
    before.ends_with(|c: char| c.is_ascii_digit())
        && after.starts_with(|c: char| c.is_ascii_digit())
        && after.split_whitespace().any(|word| word.parse::<u32>().is_ok_and(|year| year > 90))
}

pub(super) fn starts_with_envelope(bytes: &[u8]) -> bool {
    is_envelope(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default())
}

/// Whether the text begins with the header of a message.
pub(super) fn looks_like_mail(bytes: &[u8]) -> bool {
    let mut known = false;
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        let folded = line.starts_with(b" ") || line.starts_with(b"\t");
        let name = line.iter().position(|byte| *byte == b':').map(|at| &line[..at]);
        match name {
            _ if folded => {}
            Some(name) if name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') => {
                known |= [&b"from"[..], b"subject", b"date", b"message-id"]
                    .iter()
                    .any(|field| name.eq_ignore_ascii_case(field));
            }
            _ => return false,
        }
    }
    known
}

/// The messages of a mailbox, each with its `From ` line.
pub(super) fn split_mailbox(bytes: &[u8]) -> Vec<&[u8]> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if at > 0 && is_envelope(line) {
            starts.push(at);
        }
        at += line.len();
    }
    starts.push(bytes.len());
    starts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Reads one message; `None` when it has no header at all.
pub(super) fn read_mail(
    bytes: &[u8],
    position: usize,
    origin: &str,
    strip: usize,
) -> Result<Option<Mail>, PatchError> {
    let (mut commit, mut message) = (None, bytes);
    if starts_with_envelope(bytes) {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let envelope = String::from_utf8_lossy(&bytes[..end]);
        let word = envelope.split(' ').nth(1).unwrap_or_default();
        let is_commit = word.len() >= 40 && word.chars().all(|c| c.is_ascii_hexdigit());
        commit = is_commit.then(|| word[..12].to_owned());
        message = &bytes[end..];
    }
    let Some(parsed) = MessageParser::default().parse(message) else { return Ok(None) };
    let subject = parsed.subject().unwrap_or_default().to_owned();
    let reply = without_reply_marks(&subject) != subject.trim();
    let (number, version) = numbering(&subject);
    let files = match files_of_message(&parsed, origin, strip) {
        // What people quote and sketch in answers need not be a whole diff.
        Err(_) if reply || number.is_some_and(|(n, _)| n == 0) => Vec::new(),
        files => files?,
    };
    Ok(Some(Mail { subject, position, number, version, reply, files, commit }))
}

/// The changes in the text of a message; when its text has none, those of its attachments.
fn files_of_message(message: &Message, origin: &str, strip: usize) -> Result<Vec<FileDiff>, PatchError> {
    let mut attached = Vec::new();
    let mut inline = Vec::new();
    for part in &message.parts {
        let is_attachment = part.attachment_name().is_some();
        let text: Cow<str> = match &part.body {
            PartType::Text(text) => Cow::Borrowed(text),
            PartType::Binary(bytes) | PartType::InlineBinary(bytes) if !bytes.contains(&0) => {
                String::from_utf8_lossy(bytes)
            }
            PartType::Message(inner) => {
                attached.extend(files_of_message(inner, origin, strip)?);
                continue;
            }
            _ => continue,
        };
        let files = files_in(&text, origin, strip)?;
        if is_attachment { attached.extend(files) } else { inline.extend(files) }
    }
    Ok(if inline.is_empty() { attached } else { inline })
}

/// A subject without `Re:` and what other languages write for it.
fn without_reply_marks(subject: &str) -> &str {
    let mut rest = subject.trim();
    while let Some((mark, after)) = rest.split_once(':') {
        if !["re", "aw", "antw", "sv"].iter().any(|known| known.eq_ignore_ascii_case(mark)) {
            break;
        }
        rest = after.trim_start();
    }
    rest
}

/// A subject without `Re:` and `[PATCH n/m]`.
pub(super) fn title(subject: &str) -> String {
    let mut rest = without_reply_marks(subject);
    while let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        if !(inside.contains("PATCH") || inside.contains("RFC")) {
            break;
        }
        rest = after.trim_start();
    }
    rest.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `n/m` and the version in `[PATCH v2 n/m]`.
fn numbering(subject: &str) -> (Option<(u32, u32)>, u32) {
    let mut number = None;
    let mut version = 1;
    let mut rest = without_reply_marks(subject);
    while let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        for word in inside.split_whitespace() {
            if let Some((n, m)) = word.split_once('/')
                && let (Ok(n), Ok(m)) = (n.parse(), m.parse())
            {
                number = Some((n, m));
            } else if let Some(v) = word.strip_prefix(['v', 'V']).and_then(|v| v.parse().ok()) {
                version = v;
            }
        }
        rest = after.trim_start();
    }
    (number, version)
}
