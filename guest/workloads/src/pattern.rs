//! Content of files by which later reading tells which write each part comes from. Read [`Pattern`]
//! first.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

use crate::round::failed;
use crate::{WorkloadError, sys};

/// Bytes written or read at once where nothing is timed.
const PIECE: usize = 1 << 20;
/// Stands for a unit that is not there or has other bytes than its pattern.
pub(crate) const DAMAGED: u64 = u64::MAX;

/// A file is a row of units of one size. The first eight bytes of a unit, its stamp, say which write
/// it comes from; the others are the same in all of them.
#[derive(Debug)]
pub(crate) struct Pattern {
    unit: Vec<u8>,
}

/// What reading found.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// The stamp of each unit, or [`DAMAGED`].
    pub(crate) stamps: Vec<u64>,
    /// pread(2) calls that it took.
    pub(crate) calls: u64,
}

impl Pattern {
    /// Units of `size` bytes, at least eight, that follow from `seed`.
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let mut state = seed;
        let unit = (0..size)
            .map(|_| {
                // Knuth's MMIX generator, The Art of Computer Programming 3.3.4, table 1, line 26.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        Self { unit }
    }

    /// One unit, without a stamp.
    pub(crate) fn unit(&self) -> &[u8] {
        &self.unit
    }

    /// Writes `count` units from the position of `file` on, and returns the write(2) calls it took.
    pub(crate) fn fill(
        &self,
        file: BorrowedFd<'_>,
        path: &Path,
        count: u64,
        stamp: impl Fn(u64) -> u64,
    ) -> Result<u64, WorkloadError> {
        let mut piece = self.unit.repeat((PIECE / self.unit.len()).max(1));
        let mut calls = 0;
        let mut number = 0;
        while number < count {
            let mut length = 0;
            for unit in piece.chunks_exact_mut(self.unit.len()).take((count - number) as usize) {
                unit[..8].copy_from_slice(&stamp(number).to_le_bytes());
                length += unit.len();
                number += 1;
            }
            let mut left = &piece[..length];
            while !left.is_empty() {
                calls += 1;
                match sys::write(file, left) {
                    Ok(0) => return Err(failed("write", path, Errno::NOSPC)),
                    Ok(written) => left = &left[written..],
                    Err(errno) => return Err(failed("write", path, errno)),
                }
            }
        }
        Ok(calls)
    }

    /// Reads `count` units from the start of `file` on.
    pub(crate) fn stamps(
        &self,
        file: BorrowedFd<'_>,
        path: &Path,
        count: u64,
    ) -> Result<Stamps, WorkloadError> {
        let mut piece = vec![0; (PIECE / self.unit.len()).max(1) * self.unit.len()];
        let mut found = Stamps { stamps: Vec::with_capacity(count as usize), calls: 0 };
        let mut offset = 0;
        while (found.stamps.len() as u64) < count {
            let mut length = 0;
            while length < piece.len() {
                found.calls += 1;
                match rustix::io::pread(file, &mut piece[length..], offset)
                    .map_err(|errno| failed("pread64", path, errno))?
                {
                    0 => break,
                    read => (length, offset) = (length + read, offset + read as u64),
                }
            }
            if length < self.unit.len() {
                found.stamps.resize(count as usize, DAMAGED);
                break;
            }
            let left = count as usize - found.stamps.len();
            found.stamps.extend(piece[..length].chunks_exact(self.unit.len()).take(left).map(|unit| {
                match unit.split_first_chunk::<8>() {
                    Some((stamp, rest)) if rest == &self.unit[8..] => u64::from_le_bytes(*stamp),
                    _ => DAMAGED,
                }
            }));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn every_unit_comes_back_with_its_stamp_and_a_changed_or_missing_one_is_damaged() {
        let path = Path::new("pattern");
        for (size, count) in [(4096, 600), (1000, 3000), (100, 7)] {
            let file = tempfile::tempfile().expect("a file");
            let pattern = Pattern::new(1, size);
            pattern.fill(file.as_fd(), path, count, |number| number + 5).expect("writes");
            let read = || pattern.stamps(file.as_fd(), path, count).expect("reads").stamps;
            assert_eq!(read(), (5..count + 5).collect::<Vec<_>>());
            rustix::io::pwrite(&file, b"??", 2 * size as u64 + 50).expect("writes");
            rustix::fs::ftruncate(&file, (count - 1) * size as u64 + 20).expect("cuts");
            let damaged = read();
            assert_eq!(damaged.len() as u64, count);
            let places: Vec<_> = (0..count).filter(|&at| damaged[at as usize] == DAMAGED).collect();
            assert_eq!(places, [2, count - 1]);
        }
    }

    #[test]
    fn content_follows_from_the_seed() {
        assert_eq!(Pattern::new(3, 64).unit(), Pattern::new(3, 64).unit());
        assert_ne!(Pattern::new(3, 64).unit(), Pattern::new(4, 64).unit());
    }
}
