//! ioctl(2) requests of filesystems: freezing, and what XFS alone has. Read [`BulkRequest`] first;
//! numbers and layouts are those of the kernel's `include/uapi/linux/fs.h` and `fs/xfs/libxfs/xfs_fs.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::last_errno;

/// `_IOWR('X', 119, int)`.
const FIFREEZE: u64 = 0xc004_5877;
/// `_IOWR('X', 120, int)`.
const FITHAW: u64 = 0xc004_5878;
/// `XFS_IOC_FSGEOMETRY`, `_IOR('X', 126, struct xfs_fsop_geom)`: 256 bytes.
const XFS_IOC_FSGEOMETRY: u64 = 0x8100_587e;
/// `XFS_IOC_BULKSTAT`, `_IOR('X', 127, struct xfs_bulkstat_req)`: the 64 bytes of the header.
const XFS_IOC_BULKSTAT: u64 = 0x8040_587f;
/// `XFS_BULK_IREQ_AGNO`: only inodes of one allocation group.
const ONE_GROUP: u32 = 1;

/// Writes out everything that is dirty, down to the log, and lets writers go on (`FIFREEZE`,
/// `FITHAW`; fsfreeze(8)).
pub(crate) fn freeze_and_thaw(root: BorrowedFd<'_>) -> Result<(), Errno> {
    for request in [FIFREEZE, FITHAW] {
        // SAFETY: both requests ignore their argument (`fs/ioctl.c`).
        if unsafe { libc::ioctl(root.as_raw_fd(), request as _, 0) } != 0 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Number of allocation groups of the XFS that holds `root`.
pub(crate) fn allocation_groups(root: BorrowedFd<'_>) -> Result<u32, Errno> {
    // `struct xfs_fsop_geom`, of which `agcount` is the fourth number of four bytes.
    let mut geometry = [0_u32; 64];
    // SAFETY: the request writes 256 bytes, which `geometry` has.
    if unsafe { libc::ioctl(root.as_raw_fd(), XFS_IOC_FSGEOMETRY as _, geometry.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    Ok(geometry[3])
}

/// `struct xfs_bulk_ireq`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    ino: u64,
    flags: u32,
    icount: u32,
    ocount: u32,
    agno: u32,
    reserved: [u64; 5],
}

/// `struct xfs_bulkstat`; named are the fields that are looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    /// `bs_blocks` to `bs_extsize_blks`.
    skipped: [u64; 12],
    pub(crate) links: u32,
    extents: u32,
    /// Extents of the attribute fork: 0 while attributes are inside of the inode.
    pub(crate) attribute_extents: u32,
    version: u16,
    /// Where the attribute fork begins in the inode, 0 without one.
    pub(crate) fork_offset: u16,
    health: [u16; 2],
    pub(crate) mode: u16,
    padding: u16,
    extents64: u64,
    reserved: [u64; 6],
}

/// `struct xfs_bulkstat_req`: a cursor over inodes, and room for a batch of them.
#[derive(Debug)]
pub(crate) struct BulkRequest {
    /// The header, then the records.
    memory: Vec<u64>,
    batch: u32,
}

const HEADER_WORDS: usize = size_of::<Header>() / 8;
const RECORD_WORDS: usize = size_of::<Record>() / 8;
const _: () = assert!(size_of::<Header>() == 64 && size_of::<Record>() == 192);

impl BulkRequest {
    /// All inodes of allocation group `agno`, `batch` at a time.
    pub(crate) fn of_group(agno: u32, batch: u32) -> Self {
        let mut request = Self { memory: vec![0; HEADER_WORDS + batch as usize * RECORD_WORDS], batch };
        // Touched once, so that no page fault falls into a timed loop.
        request.memory.fill(1);
        request.begin(0, ONE_GROUP, agno);
        request
    }

    /// The inode `ino`, or the first one after it.
    pub(crate) fn of_inode(ino: u64) -> Self {
        let mut request = Self { memory: vec![0; HEADER_WORDS + RECORD_WORDS], batch: 1 };
        request.begin(ino, 0, 0);
        request
    }

    fn begin(&mut self, ino: u64, flags: u32, agno: u32) {
        *self.header() =
            Header { ino, flags, icount: self.batch, ocount: 0, agno, reserved: Default::default() };
    }

    fn header(&mut self) -> &mut Header {
        // SAFETY: the memory is aligned for `u64` as a header is, has room for one, and every bit
        // pattern is a header.
        unsafe { &mut *self.memory.as_mut_ptr().cast() }
    }

    /// `XFS_IOC_BULKSTAT`: the next batch, empty after the last inode; how many inodes it has.
    #[inline]
    pub(crate) fn next(&mut self, root: BorrowedFd<'_>) -> Result<u32, Errno> {
        // A call that is not really made must not look like the one before.
        self.header().ocount = 0;
        // SAFETY: the kernel writes the header and at most `icount` records, for which there is room.
        let result =
            unsafe { libc::ioctl(root.as_raw_fd(), XFS_IOC_BULKSTAT as _, self.memory.as_mut_ptr()) };
        match result {
            0 => Ok(self.header().ocount),
            _ => Err(last_errno()),
        }
    }

    /// The records of the latest batch.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        // SAFETY: as in `header`.
        let count = unsafe { (*self.memory.as_ptr().cast::<Header>()).ocount.min(self.batch) };
        self.memory[HEADER_WORDS..].chunks_exact(RECORD_WORDS).take(count as usize).map(|words| {
            // SAFETY: the words are as many as a record has, aligned, and any bits are a record.
            unsafe { words.as_ptr().cast::<Record>().read() }
        })
    }

    /// Plays the kernel: what a batch is made of, for tests on other filesystems.
    #[cfg(test)]
    pub(crate) fn answer(&mut self, records: &[Record]) {
        self.header().ocount = records.len() as u32;
        for (words, record) in self.memory[HEADER_WORDS..].chunks_exact_mut(RECORD_WORDS).zip(records) {
            // SAFETY: as in `records`.
            unsafe { words.as_mut_ptr().cast::<Record>().write(*record) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::os::fd::AsFd;

    use super::*;
    use crate::round::open_root;

    /// Offsets counted from the fields of `struct xfs_bulkstat`, in the order of the header file.
    #[test]
    fn a_record_has_its_fields_where_the_kernel_puts_them() {
        let offsets = [
            offset_of!(Record, links),
            offset_of!(Record, attribute_extents),
            offset_of!(Record, fork_offset),
            offset_of!(Record, mode),
            offset_of!(Record, extents64),
        ];
        assert_eq!(offsets, [112, 120, 126, 132, 136]);
    }

    #[test]
    fn records_are_as_many_as_the_batch_has() {
        let mut request = BulkRequest::of_group(1, 4);
        assert_eq!(request.records().count(), 0);
        let record = |ino| Record { ino, mode: 7, ..Record::default() };
        request.answer(&[record(5), record(9)]);
        assert_eq!(request.records().map(|record| record.ino).collect::<Vec<_>>(), [5, 9]);
        let Header { agno, icount, flags, .. } = *request.header();
        assert_eq!((agno, icount, flags), (1, 4, ONE_GROUP));
    }

    #[test]
    fn other_filesystems_refuse() {
        let root = open_root(std::path::Path::new("/proc")).expect("a folder");
        assert_eq!(allocation_groups(root.as_fd()), Err(Errno::NOTTY));
        assert_eq!(BulkRequest::of_group(0, 1).next(root.as_fd()), Err(Errno::NOTTY));
    }
}
