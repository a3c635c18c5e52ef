//! What fs_mark left on the filesystem, compared with what its rules say. Read [`judge`] first.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use super::{FsMark, Outcome, PHASE, columns};
use crate::entries::{Failure, Survey, Visit, explore};
use crate::names::{LETTERS, STAMP};
use crate::{RoundContext, WorkloadError};

/// Names of checks.
pub(crate) const SUBDIRS: &str = "subdirectories";
pub(crate) const REFUSED: &str = "mkdir that found its folder";
pub(crate) const NAMES: &str = "names";

/// Walks all folders, measures the columns and checks.
pub(super) fn judge(
    round: &mut RoundContext,
    program: &FsMark,
    outcome: &Outcome,
) -> Result<(), WorkloadError> {
    let found = Found::below(program, round)?;
    columns::measure(round, &outcome.lines, program.size);
    let used: usize = found.subdirs.iter().map(BTreeSet::len).sum();
    round.measure(PHASE, "subdirs_used", used as f64);
    let files = program.file_count();
    let distinct: u64 = outcome.subdirs.iter().map(|subdirs| subdirs.len() as u64).sum();
    round.check("files", files, found.survey.files);
    round.check("bytes", files * program.size, found.survey.bytes);
    round.check(SUBDIRS, list(&outcome.subdirs), list(&found.subdirs));
    round.check(REFUSED, files - distinct, outcome.refused);
    round.check(NAMES, files, found.well_named);
    Ok(())
}

/// `0: 197f 1980, 1: 197f`.
fn list(subdirs: &[BTreeSet<u64>]) -> String {
    let one = |(top, subdirs): (usize, &BTreeSet<u64>)| {
        let names: Vec<String> = subdirs.iter().map(|subdir| format!("{subdir:02x}")).collect();
        format!("{top}: {}", names.join(" "))
    };
    subdirs.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// What a walk of all `-d` folders found.
struct Found {
    survey: Survey,
    well_named: u64,
    subdirs: Vec<BTreeSet<u64>>,
}

impl Found {
    fn below(program: &FsMark, round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let mut found = Self { survey: Survey::new(), well_named: 0, subdirs: Vec::new() };
        let mut opened = 0;
        for top in program.tops() {
            found.subdirs.push(BTreeSet::new());
            opened += explore(top, &mut found)?;
        }
        let entries = found.survey.looked_at;
        for (call, count) in [("openat", opened), ("statx", entries), ("close", opened)] {
            round.count(call, count, count);
        }
        Ok(found)
    }
}

impl Visit for Found {
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<(), Failure> {
        if kind == FileType::Directory {
            let subdir = name.to_str().ok().and_then(|name| u64::from_str_radix(name, 16).ok());
            if let Some(subdirs) = self.subdirs.last_mut() {
                // A name that is no number is a folder that fs_mark does not make.
                subdirs.insert(subdir.unwrap_or(u64::MAX));
            }
        } else {
            self.well_named += u64::from(is_well_named(name.to_bytes()));
        }
        self.survey.entry(dir, name, kind)
    }
}

/// Whether a file's name is one that fs_mark gives: `6939814f~~~~~~~~` and 24 letters or digits.
fn is_well_named(name: &[u8]) -> bool {
    let Some((stamp, letters)) = name.split_at_checked(STAMP) else { return false };
    let digits = stamp.iter().take_while(|&&byte| byte != b'~').count();
    letters.len() == LETTERS
        && digits > 0
        && stamp[..digits].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && stamp[digits..].iter().all(|&byte| byte == b'~')
        && letters.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
}
