//! System calls about the contents of files and where they lie: writing at an offset, allocating,
//! truncating, mapping extents, and what is dirty. Read [`fallocate`] first.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FallocateFlags, StatFs};
use rustix::io::Errno;

use super::last_errno;

/// fallocate(2), mode 0: allocates, and extends the file.
#[inline]
pub(crate) fn fallocate(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length)
}

/// ftruncate(2).
#[inline]
pub(crate) fn truncate(file: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    rustix::fs::ftruncate(file, length)
}

/// fdatasync(2).
#[inline]
pub(crate) fn fdatasync(file: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fdatasync(file)
}

/// pwrite(2), which strace calls `pwrite64`.
#[inline]
pub(crate) fn write_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pwrite(file, bytes, offset)
}

/// pread(2), which strace calls `pread64`.
pub(crate) fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pread(file, bytes, offset)
}

/// fstatfs(2).
pub(crate) fn statfs(file: BorrowedFd<'_>) -> Result<StatFs, Errno> {
    rustix::fs::fstatfs(file)
}

/// One stretch of a file on its device, `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    reserved64: [u64; 2],
    pub(crate) flags: u32,
    reserved: [u32; 3],
}

impl Extent {
    /// `FIEMAP_EXTENT_LAST`.
    const LAST: u32 = 0x1;
    /// `FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_DATA_INLINE`.
    const NOWHERE: u32 = 0x2 | 0x4 | 0x200;

    /// Whether it is the file's last.
    pub(crate) fn is_last(&self) -> bool {
        self.flags & Self::LAST != 0
    }

    /// Whether it has a place of its own on the device: neither waiting for one nor kept in an inode.
    pub(crate) fn has_place(&self) -> bool {
        self.flags & Self::NOWHERE == 0
    }
}

/// Extents that one call asks for.
const EXTENTS: usize = 64;

/// `struct fiemap` with room for [`EXTENTS`].
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// `FS_IOC_FIEMAP`, `_IOWR('f', 11, struct fiemap)` with the 32 bytes before the array.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

/// Adds up to 64 extents of `file` from the byte `start` on to `extents`; returns how many.
pub(crate) fn extents(file: BorrowedFd<'_>, start: u64, extents: &mut Vec<Extent>) -> Result<usize, Errno> {
    let mut map = Fiemap {
        start,
        length: u64::MAX - start,
        flags: 0,
        mapped_extents: 0,
        extent_count: EXTENTS as u32,
        reserved: 0,
        extents: [Extent::default(); EXTENTS],
    };
    // SAFETY: the call reads the head of `map` and writes at most `extent_count` extents after it,
    // for which there is room; every bit pattern is a valid value of the fields.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as libc::Ioctl, &raw mut map) };
    if result != 0 {
        return Err(last_errno());
    }
    let count = (map.mapped_extents as usize).min(EXTENTS);
    extents.extend_from_slice(&map.extents[..count]);
    Ok(count)
}

/// `struct xfs_fsop_geom_v1` of the kernel's `fs/xfs/libxfs/xfs_fs.h`.
#[repr(C)]
#[derive(Default)]
struct XfsGeometry {
    blocksize: u32,
    rtextsize: u32,
    agblocks: u32,
    agcount: u32,
    logblocks: u32,
    sectsize: u32,
    inodesize: u32,
    imaxpct: u32,
    datablocks: u64,
    rtblocks: u64,
    rtextents: u64,
    logstart: u64,
    uuid: [u8; 16],
    sunit: u32,
    swidth: u32,
    version: i32,
    flags: u32,
    logsectsize: u32,
    rtsectsize: u32,
    dirblocksize: u32,
}

/// `XFS_IOC_FSGEOMETRY_V1`, `_IOR('X', 100, struct xfs_fsop_geom_v1)`: every XFS has it.
const XFS_IOC_FSGEOMETRY_V1: u32 = 0x8000_5864 | ((size_of::<XfsGeometry>() as u32) << 16);

/// Bytes of an allocation group of the XFS that `file` is on.
pub(crate) fn xfs_group_bytes(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut geometry = XfsGeometry::default();
    // SAFETY: the request's number holds the size of `geometry`, which the call fills; every bit
    // pattern is a valid value of the fields.
    let result =
        unsafe { libc::ioctl(file.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as libc::Ioctl, &raw mut geometry) };
    if result == 0 {
        Ok(u64::from(geometry.agblocks) * u64::from(geometry.blocksize))
    } else {
        Err(last_errno())
    }
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    pub(crate) resident: u64,
    pub(crate) dirty: u64,
    pub(crate) writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// cachestat(2) of the whole `file`: what of it is in the page cache. Linux has it since 6.5, the C
/// libraries do not all have its number.
pub(crate) fn cached(file: BorrowedFd<'_>) -> Result<Cached, Errno> {
    const CACHESTAT: libc::c_long = 451;
    // `struct cachestat_range`: offset and length; a length of 0 reaches to the end of the file.
    let range = [0_u64; 2];
    let mut cached = Cached::default();
    // SAFETY: the call reads two numbers from `range` and writes one `struct cachestat` to `cached`;
    // both live until it returns.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut cached, 0 as libc::c_uint)
    };
    if result == 0 { Ok(cached) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that `_IOWR` and `_IOR` make (`asm-generic/ioctl.h`): direction, size, type, number.
    #[test]
    fn requests_hold_the_sizes_of_their_structures() {
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(size_of::<Fiemap>() - EXTENTS * size_of::<Extent>(), 32);
        assert_eq!(FS_IOC_FIEMAP, 3 << 30 | 32 << 16 | u32::from(b'f') << 8 | 11);
        assert_eq!(XFS_IOC_FSGEOMETRY_V1, 2 << 30 | 112 << 16 | u32::from(b'X') << 8 | 100);
        assert_eq!(size_of::<Cached>(), 40);
    }
}
