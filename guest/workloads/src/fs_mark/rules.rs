//! The decisions of fs_mark: which folder, which name, which sync. Read [`TimeHash`] first, then
//! [`Target`].

use std::ffi::CStr;

use crate::names::{LETTERS, STAMP};
use crate::sys;

/// `DEFAULT_SECS_PER_DIR` of `fs_mark.h`.
const SECONDS_PER_SUBDIR: u64 = 180;

/// What `-S` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method {
    /// fsync(2) of every file before it is closed.
    pub(super) before_close: bool,
    /// sync(2) after the last file.
    pub(super) sync: bool,
    /// Which files are then opened again, each for an fsync(2).
    pub(super) again: Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    None,
    First,
    Reverse,
    InOrder,
}

impl Method {
    pub(super) fn of(number: u64) -> Self {
        let again = match number {
            2 => Again::First,
            3 | 4 => Again::Reverse,
            5 | 6 => Again::InOrder,
            _ => Again::None,
        };
        Self { before_close: number == 1, sync: matches!(number, 2 | 4 | 6), again }
    }
}

/// Which subdirectory a file goes into (`DIR_TIME_HASH`).
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeHash {
    subdirs: u64,
    current: u64,
    /// Second of the first file in it; 0 before there is one.
    since: u64,
}

impl TimeHash {
    /// A child that begins at `second`.
    pub(super) fn new(second: u64, subdirs: u64) -> Self {
        Self { subdirs, current: second % subdirs, since: 0 }
    }

    /// The subdirectory of a file named at `second`.
    pub(super) fn pick(&mut self, second: u64) -> u64 {
        if self.since == 0 {
            self.since = second;
        }
        if second.saturating_sub(self.since) > SECONDS_PER_SUBDIR {
            self.current = (self.current + 1) % self.subdirs;
            self.since = second;
        }
        self.current
    }
}

/// The path of a file and of its folder, rewritten in place.
pub(super) struct Target {
    folder: Vec<u8>,
    file: Vec<u8>,
    top: usize,
    single: bool,
}

impl Target {
    pub(super) fn new(top: &CStr, subdirs: u64) -> Self {
        let top = top.to_bytes();
        let room = || {
            let mut path = Vec::with_capacity(top.len() + 64);
            path.extend_from_slice(top);
            path.push(b'/');
            path
        };
        Self { folder: room(), file: room(), top: top.len() + 1, single: subdirs < 2 }
    }

    /// `TOP/1f` and `TOP/1f/`, in lower-case hexadecimal of at least two digits; without `-D` the
    /// subdirectory has no name.
    pub(super) fn enter(&mut self, subdir: u64) {
        self.folder.truncate(self.top);
        if !self.single {
            let digits = (64 - subdir.leading_zeros() as usize).div_ceil(4).max(2);
            self.folder.extend((0..digits).rev().map(|digit| hex(subdir >> (4 * digit))));
        }
        self.file.clear();
        self.file.extend_from_slice(&self.folder);
        self.file.push(b'/');
        self.file.resize(self.file.len() + STAMP + LETTERS, b'~');
        self.file.push(0);
        self.folder.push(0);
    }

    /// The second in hexadecimal, filled up with tildes.
    pub(super) fn stamp(&mut self, second: u64) {
        let digits = (64 - second.leading_zeros() as usize).div_ceil(4);
        let at = self.file.len() - 1 - LETTERS - STAMP;
        for (place, byte) in self.file[at..at + STAMP].iter_mut().enumerate() {
            *byte = if place < digits { hex(second >> (4 * (digits - 1 - place))) } else { b'~' };
        }
    }

    pub(super) fn letters(&mut self, letters: &[u8]) {
        let at = self.file.len() - 1 - LETTERS;
        self.file[at..at + LETTERS].copy_from_slice(letters);
    }

    pub(super) fn folder(&self) -> &CStr {
        // SAFETY: a path without NUL and what `enter` wrote, which ends in the only NUL.
        unsafe { sys::c_str(&self.folder) }
    }

    pub(super) fn file(&self) -> &CStr {
        // SAFETY: as for the folder; stamps and letters hold no NUL.
        unsafe { sys::c_str(&self.file) }
    }
}

fn hex(number: u64) -> u8 {
    b"0123456789abcdef"[(number & 15) as usize]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Trap A: 100,000 files over 10,000 subdirectories land in one, as 5 s are less than 180.
    #[test]
    fn an_iteration_shorter_than_180_seconds_fills_one_subdirectory() {
        let begin = 1_765_376_527;
        let picked = |seconds: u64, files: u64| {
            let mut policy = TimeHash::new(begin, 10_000);
            let second = |file: u64| begin + file * seconds / files;
            (0..files).map(|file| policy.pick(second(file))).collect::<BTreeSet<u64>>()
        };
        assert_eq!(picked(5, 100_000), BTreeSet::from([begin % 10_000]));
        assert_eq!(picked(180, 1_000).len(), 1);
        // 182 s: the file of second 181 is the first in the next subdirectory.
        assert_eq!(picked(183, 1_000), BTreeSet::from([6_527, 6_528]));
        assert_eq!(picked(3_600, 100_000).len(), 20);
        // The next iteration is a new child, which begins where the clock is by then.
        assert_eq!(TimeHash::new(begin + 7, 10_000).pick(begin + 7), 6_534);
        assert_eq!(TimeHash { current: 9, ..TimeHash::new(begin, 10) }.pick(begin), 9);
    }

    #[test]
    fn subdirectories_and_names_read_as_those_of_fs_mark() {
        let mut target = Target::new(c"/nvme/0", 10_000);
        for (subdir, second, folder, name) in [
            (9, 0x6939_814f, "/nvme/0/09", "6939814f~~~~~~~~"),
            (6_527, 0x6939_8150, "/nvme/0/197f", "69398150~~~~~~~~"),
            (0, 0x1_0000_0000, "/nvme/0/00", "100000000~~~~~~~"),
        ] {
            target.enter(subdir);
            target.stamp(second);
            target.letters(b"ABCDEFGHIJKLMNOPQRSTUVWX");
            assert_eq!(target.folder().to_str(), Ok(folder));
            let file = format!("{folder}/{name}ABCDEFGHIJKLMNOPQRSTUVWX");
            assert_eq!(target.file().to_str(), Ok(file.as_str()));
        }
        let mut plain = Target::new(c"/nvme/0", 1);
        plain.enter(0);
        assert_eq!(plain.folder(), c"/nvme/0/");
    }

    #[test]
    fn sync_methods_are_those_of_the_usage_text() {
        let method = |before_close, sync, again| Method { before_close, sync, again };
        for (number, expected) in [
            (0, method(false, false, Again::None)),
            (1, method(true, false, Again::None)),
            (2, method(false, true, Again::First)),
            (3, method(false, false, Again::Reverse)),
            (4, method(false, true, Again::Reverse)),
            (5, method(false, false, Again::InOrder)),
            (6, method(false, true, Again::InOrder)),
        ] {
            assert_eq!(Method::of(number), expected, "-S {number}");
        }
    }
}
