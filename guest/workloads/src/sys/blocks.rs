//! Requests to filesystems about the blocks of files: sharing them, and asking where they are. Read
//! [`clone_range`] first; layouts and numbers are those of the kernel's `include/uapi/linux/fs.h`,
//! `fiemap.h` and `fs/xfs/libxfs/xfs_fs.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_length: u64,
    target_offset: u64,
}

const FICLONERANGE: Opcode = opcode::write::<CloneRange>(0x94, 13);

/// `FICLONERANGE`: `target` shares `length` bytes of `source` from then on, at the same `offset`
/// (ioctl_ficlonerange(2)).
#[inline]
pub(crate) fn clone_range(
    target: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let request = CloneRange {
        source: i64::from(source.as_raw_fd()),
        source_offset: offset,
        source_length: length,
        target_offset: offset,
    };
    // SAFETY: the number carries the size of the structure it is given, which the kernel only reads.
    unsafe { ioctl(target, Setter::<FICLONERANGE, _>::new(request)) }
}

/// The fixed part of `struct file_dedupe_range`, whose size is part of the request's number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DedupeHeader {
    source_offset: u64,
    source_length: u64,
    targets: u16,
    reserved1: u16,
    reserved2: u32,
}

/// `struct file_dedupe_range` with one `struct file_dedupe_range_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Dedupe {
    header: DedupeHeader,
    target: i64,
    target_offset: u64,
    bytes: u64,
    status: i32,
    reserved: u32,
}

const FIDEDUPERANGE: Opcode = opcode::read_write::<DedupeHeader>(0x94, 54);

/// What `FIDEDUPERANGE` answered for one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deduped {
    /// `FILE_DEDUPE_RANGE_SAME` is 0, `FILE_DEDUPE_RANGE_DIFFERS` is 1, an error is below 0.
    pub(crate) status: i32,
    /// Bytes that are shared now.
    pub(crate) bytes: u64,
}

/// No status that the kernel answers.
const UNANSWERED: i32 = i32::MIN;

/// `FIDEDUPERANGE`: `target` shares `length` bytes of `source` at `offset` if they are equal
/// (ioctl_fideduperange(2)).
#[inline]
pub(crate) fn dedupe_range(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<Deduped, Errno> {
    let mut request = Dedupe {
        header: DedupeHeader {
            source_offset: offset,
            source_length: length,
            targets: 1,
            reserved1: 0,
            reserved2: 0,
        },
        target: i64::from(target.as_raw_fd()),
        target_offset: offset,
        bytes: 0,
        status: UNANSWERED,
        reserved: 0,
    };
    // SAFETY: the kernel reads the header and, as it says so, one target behind it, and writes back no
    // more than these.
    unsafe { ioctl(source, Updater::<FIDEDUPERANGE, _>::new(&mut request)) }?;
    Ok(Deduped { status: request.status, bytes: request.bytes })
}

/// `struct fiemap_extent`: a run of bytes of a file and where it is on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset in the file.
    pub(crate) logical: u64,
    /// Offset in the filesystem's space.
    pub(crate) physical: u64,
    /// Bytes.
    pub(crate) length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[cfg(test)]
impl Extent {
    /// `length` bytes at `logical` that are at `physical`.
    pub(crate) fn new(logical: u64, physical: u64, length: u64) -> Self {
        Self { logical, physical, length, ..Self::default() }
    }
}

/// The fixed part of `struct fiemap`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// Extents asked for at once.
const EXTENTS: usize = 512;

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Fiemap {
    header: FiemapHeader,
    extents: [Extent; EXTENTS],
}

const FS_IOC_FIEMAP: Opcode = opcode::read_write::<FiemapHeader>(b'f', 11);
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// `UNKNOWN`, `DELALLOC`, `ENCODED`, `DATA_INLINE` and `UNWRITTEN`: no bytes at that place.
const NO_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x200 | 0x800;

/// Where the bytes of a file are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    /// In order of their offset in the file; those whose place is not known are left out.
    pub(crate) extents: Vec<Extent>,
    /// Requests that it took.
    pub(crate) calls: u64,
}

/// `FS_IOC_FIEMAP`: the extents of the first `length` bytes of `file` (kernel
/// `Documentation/filesystems/fiemap.rst`).
pub(crate) fn extents(file: BorrowedFd<'_>, length: u64) -> Result<Extents, Errno> {
    let mut found = Extents::default();
    let mut start = 0;
    while start < length {
        let header = FiemapHeader {
            start,
            length: length - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
        };
        let mut map = Box::new(Fiemap { header, extents: [Extent::default(); EXTENTS] });
        found.calls += 1;
        // SAFETY: the kernel reads the header and writes it and at most `room` extents behind it.
        unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, _>::new(&mut *map)) }?;
        let mapped = map.extents.get(..map.header.mapped as usize).ok_or(Errno::PROTO)?;
        found.extents.extend(mapped.iter().filter(|extent| extent.flags & NO_PLACE == 0));
        let Some(last) = mapped.last() else { break };
        if last.flags & FIEMAP_EXTENT_LAST != 0 {
            break;
        }
        // A filesystem that makes no progress would be asked for ever.
        start = last.logical.saturating_add(last.length).max(start + 1);
    }
    Ok(found)
}

/// `struct xfs_fs_eofblocks`.
#[repr(C)]
struct EofBlocks {
    version: u32,
    flags: u32,
    owners: [u32; 4],
    min_file_size: u64,
    reserved: [u64; 12],
}

/// `XFS_EOFBLOCKS_VERSION`.
const EOF_BLOCKS_VERSION: u32 = 1;
/// Declared `_IOR` although the kernel reads the structure.
const XFS_IOC_FREE_EOFBLOCKS: Opcode = opcode::read::<EofBlocks>(b'X', 58);

/// Waits until XFS has freed the inodes that nothing refers to any more: `XFS_IOC_FREE_EOFBLOCKS`
/// ends with `xfs_inodegc_flush` (kernel `fs/xfs/xfs_icache.c`, since 5.14).
pub(crate) fn xfs_wait_for_inodegc(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let request = EofBlocks {
        version: EOF_BLOCKS_VERSION,
        flags: 0,
        owners: [0; 4],
        min_file_size: 0,
        reserved: [0; 12],
    };
    // SAFETY: the number carries the size of the structure it is given, which the kernel only reads.
    unsafe { ioctl(file, Setter::<XFS_IOC_FREE_EOFBLOCKS, _>::new(request)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as the C headers of Linux 6.12 give them on x86-64.
    #[test]
    fn request_numbers_are_those_of_the_kernel() {
        assert_eq!(FICLONERANGE, 0x4020_940d);
        assert_eq!(FIDEDUPERANGE, 0xc018_9436);
        assert_eq!(FS_IOC_FIEMAP, 0xc020_660b);
        assert_eq!(XFS_IOC_FREE_EOFBLOCKS, 0x8080_583a);
        assert_eq!((size_of::<Dedupe>(), size_of::<Extent>(), size_of::<EofBlocks>()), (56, 56, 128));
    }
}
