//! Turns patch files, mailboxes, folders and git ranges into [`Patch`]es. Read [`read`] first, then
//! [`choose`], which picks the patches among the mails of a file.

use std::collections::BTreeSet;
use std::fs;

use camino::Utf8Path;
use kdelta_model::kernel::{PatchSource, is_url};

use super::diff::{self, FileDiff};
use super::mail::{Mail, looks_like_mail, read_mail, split_mailbox, starts_with_envelope, title};
use super::{Patch, PatchError};
use crate::git;
use crate::layout::Context;
use crate::process::ProcessError;

/// Endings of the files that a folder without `series` is searched for.
const ENDINGS: [&str; 4] = ["patch", "diff", "mbox", "eml"];

/// Reads the patches of every source, in order.
///
/// # Errors
/// When a source cannot be read, holds no patch, or holds a damaged one.
pub fn read(ctx: &Context, sources: &[PatchSource]) -> Result<Vec<Patch>, PatchError> {
    let mut patches = Vec::new();
    for source in sources {
        match source {
            PatchSource::Path(path) => {
                let path = Utf8Path::new(path);
                patches.extend(if path.is_dir() {
                    read_folder(ctx, path)?
                } else {
                    read_file(ctx, path, 1)?
                });
            }
            PatchSource::GitRange { repository, range } => {
                patches.extend(read_range(ctx, repository, range)?);
            }
        }
    }
    Ok(patches)
}

fn nothing(place: &str, found: impl Into<String>) -> PatchError {
    PatchError::Nothing { place: place.to_owned(), found: found.into() }
}

fn read_file(ctx: &Context, path: &Utf8Path, strip: usize) -> Result<Vec<Patch>, PatchError> {
    let error = |source| PatchError::Read { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(error)?.is_file() {
        return Err(nothing(path.as_str(), "it is neither a file nor a folder"));
    }
    let bytes = fs::read(path).map_err(error)?;
    read_bytes(ctx, path, &bytes, strip)
}

fn read_bytes(ctx: &Context, path: &Utf8Path, bytes: &[u8], strip: usize) -> Result<Vec<Patch>, PatchError> {
    let place = path.as_str();
    if let Some(what) = unreadable(bytes) {
        return Err(nothing(place, what));
    }
    if starts_with_envelope(bytes) || looks_like_mail(bytes) {
        let parts = split_mailbox(bytes);
        let single = parts.len() == 1;
        let mut mails = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let position = index + 1;
            let origin = if single { place.to_owned() } else { format!("{place}, mail {position}") };
            mails.extend(read_mail(part, position, &origin, strip)?);
        }
        return choose(ctx, path, mails);
    }
    let text = String::from_utf8_lossy(bytes);
    let files = files_in(&text, place, strip)?;
    if files.is_empty() {
        return Err(nothing(place, describe(&text)));
    }
    let subject = plain_subject(&text).unwrap_or_else(|| path.file_name().unwrap_or(place).to_owned());
    Ok(vec![Patch { subject, origin: place.to_owned(), text: diff::render(&files) }])
}

/// The changes in a decoded text.
pub(super) fn files_in(text: &str, origin: &str, strip: usize) -> Result<Vec<FileDiff>, PatchError> {
    let files = diff::parse(text, strip)
        .map_err(|damage| PatchError::Damaged { origin: origin.to_owned(), damage })?;
    let rendered = diff::render(&files);
    match rendered.lines().find(|line| line.contains(char::REPLACEMENT_CHARACTER)) {
        Some(line) => Err(PatchError::Encoding { origin: origin.to_owned(), line: line.to_owned() }),
        None => Ok(files),
    }
}

/// What kind of file it is when it can hold no text.
fn unreadable(bytes: &[u8]) -> Option<&'static str> {
    let magic: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "it is compressed; run `gunzip` on it first"),
        (b"\xfd7zXZ", "it is compressed; run `unxz` on it first"),
        (b"\x28\xb5\x2f\xfd", "it is compressed; run `unzstd` on it first"),
        (b"BZh", "it is compressed; run `bunzip2` on it first"),
        (b"PK\x03\x04", "it is a zip archive; unpack it and name the folder"),
    ];
    if bytes.is_empty() {
        return Some("it is empty");
    }
    let known = magic.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, what)| *what);
    known.or_else(|| bytes.contains(&0).then_some("it is binary data"))
}

fn describe(text: &str) -> String {
    let start = text.trim_start().get(..9).unwrap_or_default().to_ascii_lowercase();
    if start.starts_with("<!doctype") || start.starts_with("<html") {
        return "it is a web page; download the raw mail (on lore.kernel.org: the link `raw` of a message, or \
                `mbox.gz` of a thread)"
            .into();
    }
    format!(
        "{} lines of text, none of which start a diff (`diff --git a/F b/F`, or `--- a/F`, `+++ b/F`, \
         `@@ -1,7 +1,8 @@`); quoted diffs (`> +`) do not count",
        text.lines().count()
    )
}

/// The subject of a patch that is no mail: a `Subject:` line, the title of a commit, or a first line
/// that begins with `[PATCH`.
fn plain_subject(text: &str) -> Option<String> {
    let head = || text.lines().take_while(|line| !line.starts_with("diff ") && !line.starts_with("--- "));
    let mut lines = head().skip_while(|line| line.trim().is_empty());
    let first = lines.next()?;
    let found = if first.starts_with("[PATCH") || first.starts_with("[RFC") {
        Some(first)
    } else if first.starts_with("commit ") {
        lines.find_map(|line| line.strip_prefix("    "))
    } else {
        head().find_map(|line| line.strip_prefix("Subject: "))
    };
    found.map(title).filter(|title| !title.is_empty())
}

/// The patches among the mails of a file, in the order of their numbers.
fn choose(ctx: &Context, path: &Utf8Path, mails: Vec<Mail>) -> Result<Vec<Patch>, PatchError> {
    let place = path.as_str();
    let total = mails.len();
    let replies = mails.iter().filter(|mail| mail.reply).count();
    let is_cover = |mail: &Mail| mail.number.is_some_and(|(n, _)| n == 0);
    let mut chosen: Vec<Mail> = if total == 1 {
        // A single mail was chosen by hand, so that a patch in a reply is meant.
        mails.into_iter().filter(|mail| !mail.files.is_empty()).collect()
    } else {
        mails.into_iter().filter(|mail| !mail.files.is_empty() && !mail.reply && !is_cover(mail)).collect()
    };
    if chosen.is_empty() {
        let what = match total {
            1 => "one mail without a diff".to_owned(),
            _ => format!("{total} mails, {replies} of them replies, the others without a diff"),
        };
        return Err(nothing(place, format!("{what}; a diff that is quoted (`> +`) is no patch")));
    }
    let newest = chosen.iter().map(|mail| mail.version).max().unwrap_or(1);
    if chosen.iter().any(|mail| mail.version != newest) {
        ctx.warn(format!("{place} has several versions of the series; version {newest} is applied"));
        chosen.retain(|mail| mail.version == newest);
    }
    let mut numbered = BTreeSet::new();
    chosen.retain(|mail| {
        let fresh = mail.number.is_none_or(|(n, _)| numbered.insert(n));
        if !fresh {
            ctx.warn(format!(
                "{place}, mail {}: {:?} came before; this copy is left out",
                mail.position, mail.subject
            ));
        }
        fresh
    });
    chosen.sort_by_key(|mail| (mail.number.map_or(0, |(n, _)| n), mail.position));
    let announced = chosen.iter().filter_map(|mail| mail.number).map(|(_, m)| m).max().unwrap_or(0);
    let missing: Vec<String> =
        (1..=announced).filter(|n| !numbered.contains(n)).take(20).map(|n| n.to_string()).collect();
    if total > 1 && !missing.is_empty() {
        return Err(PatchError::Incomplete {
            place: place.to_owned(),
            have: numbered.len(),
            total: announced,
            missing: missing.join(", "),
        });
    }
    let patch = |mail: Mail| {
        let origin = match (mail.number, total) {
            (_, 1) => place.to_owned(),
            (Some((n, m)), _) => format!("{place}, {n}/{m}"),
            (None, _) => format!("{place}, mail {}", mail.position),
        };
        to_patch(mail, origin, path.file_name().unwrap_or(place))
    };
    Ok(chosen.into_iter().map(patch).collect())
}

fn to_patch(mail: Mail, origin: String, fallback: &str) -> Patch {
    let subject = Some(title(&mail.subject)).filter(|title| !title.is_empty());
    Patch { subject: subject.unwrap_or_else(|| fallback.to_owned()), origin, text: diff::render(&mail.files) }
}

fn read_folder(ctx: &Context, folder: &Utf8Path) -> Result<Vec<Patch>, PatchError> {
    let error = |path: &Utf8Path, source| PatchError::Read { path: path.to_owned(), source };
    let series = folder.join("series");
    let mut entries = Vec::new();
    if series.is_file() {
        let text = fs::read_to_string(&series).map_err(|source| error(&series, source))?;
        for line in text.lines() {
            entries.extend(series_entry(&series, line)?);
        }
    } else {
        for entry in folder.read_dir_utf8().map_err(|source| error(folder, source))? {
            let entry = entry.map_err(|source| error(folder, source))?;
            if entry.path().extension().is_some_and(|ending| ENDINGS.contains(&ending)) {
                entries.push((entry.file_name().to_owned(), 1));
            }
        }
        entries.sort();
    }
    if entries.is_empty() {
        let found = match series.is_file() {
            true => "its file `series` names none",
            false => "a folder without files named *.patch, *.diff, *.mbox or *.eml, and without `series`",
        };
        return Err(nothing(folder.as_str(), found));
    }
    let mut patches = Vec::new();
    for (name, strip) in entries {
        patches.extend(read_file(ctx, &folder.join(name), strip)?);
    }
    Ok(patches)
}

/// One line of a quilt(1) series: a name, options, a comment.
fn series_entry(series: &Utf8Path, line: &str) -> Result<Option<(String, usize)>, PatchError> {
    let line = line.split(" #").next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { return Ok(None) };
    let mut strip = 1;
    for word in words {
        match word.strip_prefix("-p") {
            Some("ab") => {}
            Some(level) if level.parse::<usize>().is_ok() => strip = level.parse().unwrap_or(1),
            _ => {
                let found = format!(
                    "the line `{line}` has the option {word}, which is not known here; apply that patch yourself"
                );
                return Err(nothing(series.as_str(), found));
            }
        }
    }
    Ok(Some((name.to_owned(), strip)))
}

fn read_range(ctx: &Context, repository: &str, range: &str) -> Result<Vec<Patch>, PatchError> {
    if is_url(repository) {
        return Err(PatchError::Remote { url: repository.to_owned(), range: range.to_owned() });
    }
    let place = format!("git:{repository}#{range}");
    if !Utf8Path::new(repository).is_dir() {
        return Err(nothing(&place, "there is no such folder"));
    }
    let found = git::range(ctx, Utf8Path::new(repository), range).map_err(|source| match source {
        ProcessError::Cancelled => source.into(),
        source => PatchError::Range { repository: repository.to_owned(), range: range.to_owned(), source },
    })?;
    if found.merges > 0 {
        ctx.warn(format!(
            "{place} has {} merges, which are no patches; when the commits do not apply one after the other, \
             use a git: kernel source instead",
            found.merges
        ));
    }
    if found.mbox.is_empty() {
        return Err(nothing(&place, "the range has no commits; A..B means those of B that A does not have"));
    }
    let mut patches = Vec::new();
    for (index, part) in split_mailbox(&found.mbox).into_iter().enumerate() {
        let Some(mail) = read_mail(part, index + 1, &format!("{place}, commit {}", index + 1), 1)? else {
            continue;
        };
        let commit = mail.commit.clone().map_or_else(|| place.clone(), |commit| format!("commit {commit}"));
        // A commit may be empty.
        if !mail.files.is_empty() {
            patches.push(to_patch(mail, commit.clone(), &commit));
        }
    }
    if patches.is_empty() {
        return Err(nothing(&place, "its commits change no files"));
    }
    Ok(patches)
}
