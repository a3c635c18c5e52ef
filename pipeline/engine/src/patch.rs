//! Reads patches from files, mails, mailboxes, folders and git ranges, and applies them to a kernel
//! tree so that a crash at any point can be undone. Read [`Patch`] first, then [`apply`].

mod diff;
mod input;
mod journal;
mod mail;
mod name;
mod rejection;
#[cfg(test)]
mod tests;

use std::io;

use camino::Utf8PathBuf;
use kdelta_model::kernel::Digest;

use crate::process::ProcessError;

pub use diff::{Change, Damage, FileDiff, Hunk};
pub use input::read;
pub use journal::{apply, restore};

/// One change of source code, ready to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// First line of its description without `[PATCH n/m]`, or the file name when it has none.
    pub subject: String,
    /// The file it was read from, with its number in a mailbox; or `commit 0123456789ab`.
    pub origin: String,
    /// The unified diff in git's form, without mail headers, description and diffstat.
    pub text: String,
}

/// Why patches could not be read or applied.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// A file or folder with patches cannot be read.
    #[error("cannot read the patch {path}: {source}")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no patch in it.
    #[error("no patch in {place}: {found}")]
    Nothing {
        /// File, folder or range.
        place: String,
        /// What is there instead, and what to do.
        found: String,
    },
    /// It begins as a patch and does not go on as one.
    #[error("the patch {origin} is damaged at line {} of its text: {}", damage.line, damage.what)]
    Damaged {
        /// Where it came from.
        origin: String,
        /// Where and how.
        damage: Damage,
    },
    /// Its text is no UTF-8.
    #[error(
        "the diff in {origin} is not UTF-8 text near {line:?}; applying it would change other bytes than \
         its author meant: make it again with `git format-patch --binary`, or convert it with iconv"
    )]
    Encoding {
        /// Where it came from.
        origin: String,
        /// The line with the replaced character.
        line: String,
    },
    /// A mailbox lacks a part of its series.
    #[error(
        "{place} has {have} of the {total} patches of a series; missing: {missing}. Save the whole thread, or \
         put the patches to apply into a folder as single files"
    )]
    Incomplete {
        /// The mailbox.
        place: String,
        /// Parts found.
        have: usize,
        /// Parts announced.
        total: u32,
        /// Numbers of the others.
        missing: String,
    },
    /// A range of a repository that is not here.
    #[error(
        "the patches {range} lie in the remote repository {url}; clone it first and name the clone: \
         git:PATH#{range}"
    )]
    Remote {
        /// The repository.
        url: String,
        /// The range.
        range: String,
    },
    /// A range of commits cannot be read.
    #[error("cannot read the commits {range} of {repository}: {source}")]
    Range {
        /// The repository.
        repository: String,
        /// The range.
        range: String,
        /// What git said.
        source: ProcessError,
    },
    /// A patch touches what it must not touch.
    #[error("the patch {origin} is refused: the file name {path:?} {why}; nothing was changed")]
    Refused {
        /// Where it came from.
        origin: String,
        /// The name in the patch.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A patch does not fit the tree.
    #[error("the patch {origin} ({subject}) does not apply:\n{report}")]
    DoesNotApply {
        /// Where it came from.
        origin: String,
        /// Its subject.
        subject: String,
        /// Files and hunks with what was expected and found, and what to do.
        report: String,
    },
    /// The tree or its journal cannot be read or written.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: Utf8PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The journal makes no sense.
    #[error(
        "the journal {path} of the patches applied to the tree beside it cannot be understood ({why}); \
         delete the folder that holds both, so that the source is unpacked again"
    )]
    Journal {
        /// The journal.
        path: Utf8PathBuf,
        /// Why.
        why: String,
    },
    /// git did not run.
    #[error(transparent)]
    Program(#[from] ProcessError),
}

/// BLAKE3 over the texts in order; `None` without patches.
#[must_use]
pub fn digest(patches: &[Patch]) -> Option<Digest> {
    if patches.is_empty() {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    for patch in patches {
        hasher.update(&(patch.text.len() as u64).to_le_bytes());
        hasher.update(patch.text.as_bytes());
    }
    Some(Digest(hasher.finalize().to_hex().to_string()))
}
