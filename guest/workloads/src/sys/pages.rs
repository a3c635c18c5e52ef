//! Memory that is mapped, protected and looked at page by page. Read [`Mapping`] first.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::last_errno;

/// Bytes of a page on x86-64.
pub(crate) const PAGE: usize = 4096;

/// What madvise(2) is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// `MADV_HUGEPAGE`
    Huge,
    /// `MADV_NOHUGEPAGE`
    NotHuge,
    /// `MADV_COLLAPSE`, since Linux 6.1.
    Collapse,
}

/// Whole pages of memory, unmapped when dropped. Nothing else points into them, so that their bytes
/// are read and written through raw pointers only.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Shared anonymous memory to read and write, from a multiple of `alignment` on.
    pub(crate) fn shared(length: usize, alignment: usize) -> Result<Self, Errno> {
        let length = length.next_multiple_of(PAGE);
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        if alignment <= PAGE {
            // SAFETY: without an address and MAP_FIXED the kernel finds room where nothing is.
            let start =
                unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, flags, MapFlags::SHARED) }?;
            return Self::at(start, length);
        }
        let reserved = length + alignment;
        // SAFETY: as above.
        let low = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let before = (low as usize).next_multiple_of(alignment) - low as usize;
        let start = low.cast::<u8>().wrapping_add(before).cast::<c_void>();
        let end = start.cast::<u8>().wrapping_add(length).cast::<c_void>();
        let after = reserved - before - length;
        // SAFETY: all three ranges lie in the memory reserved above, which nothing uses.
        unsafe {
            let mapped =
                rustix::mm::mmap_anonymous(start, length, flags, MapFlags::SHARED | MapFlags::FIXED)?;
            if before > 0 {
                rustix::mm::munmap(low, before)?;
            }
            if after > 0 {
                rustix::mm::munmap(end, after)?;
            }
            Self::at(mapped, length)
        }
    }

    /// The first `length` bytes of `file`, to read.
    pub(crate) fn of_file(file: BorrowedFd<'_>, length: usize) -> Result<Self, Errno> {
        // SAFETY: without an address and MAP_FIXED the kernel finds room where nothing is.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0)
        }?;
        Self::at(start, length)
    }

    fn at(start: *mut c_void, length: usize) -> Result<Self, Errno> {
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::FAULT)?;
        Ok(Self { start, length })
    }

    /// Addresses that it covers.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.length
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.length.div_ceil(PAGE)
    }

    /// mprotect(2) of all pages: read only, or read and write. Writing while it is read only ends
    /// the process by a signal.
    #[inline]
    pub(crate) fn protect(&self, writable: bool) -> Result<(), Errno> {
        self.protect_bytes(0, self.length, writable)
    }

    /// As [`Self::protect`], of the page `page`.
    pub(crate) fn protect_page(&self, page: usize, writable: bool) -> Result<(), Errno> {
        if page >= self.pages() {
            return Err(Errno::INVAL);
        }
        self.protect_bytes(page * PAGE, PAGE, writable)
    }

    #[inline]
    fn protect_bytes(&self, offset: usize, length: usize, writable: bool) -> Result<(), Errno> {
        let flags = if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range is ours, and no reference points into it.
        unsafe { rustix::mm::mprotect(self.start.as_ptr().wrapping_add(offset).cast(), length, flags) }
    }

    /// madvise(2) of all pages.
    pub(crate) fn advise(&self, advice: Advice) -> Result<(), Errno> {
        let advice = match advice {
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::NotHuge => libc::MADV_NOHUGEPAGE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        // SAFETY: the range is ours, and none of these changes what is in it.
        match unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, advice) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Adds one to the first byte of each page.
    #[inline]
    pub(crate) fn write_touch(&mut self) {
        for offset in (0..self.length).step_by(PAGE) {
            let byte = self.start.as_ptr().wrapping_add(offset);
            // SAFETY: the byte is in the range, which is mapped; if it is read only, or behind the end
            // of a file, the process ends by a signal.
            unsafe { byte.write_volatile(byte.read_volatile().wrapping_add(1)) };
        }
    }

    /// The first byte of each page, which reading brings into memory.
    pub(crate) fn first_bytes(&self) -> impl Iterator<Item = u8> {
        (0..self.length).step_by(PAGE).map(|offset| {
            // SAFETY: as above.
            unsafe { self.start.as_ptr().wrapping_add(offset).read_volatile() }
        })
    }

    /// Pages that are in memory, whether they are mapped or not (mincore(2)); of a file only for
    /// who may write it.
    pub(crate) fn resident(&self) -> Result<u64, Errno> {
        let mut states = vec![0_u8; self.pages()];
        // SAFETY: the call writes one byte for each page of the range.
        match unsafe { libc::mincore(self.start.as_ptr().cast(), self.length, states.as_mut_ptr().cast()) } {
            0 => Ok(states.iter().map(|state| u64::from(state & 1)).sum()),
            _ => Err(last_errno()),
        }
    }

    /// munmap(2), whose error `Drop` would swallow.
    #[inline]
    pub(crate) fn unmap(self) -> Result<(), Errno> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the range is ours and is used no more.
        unsafe { rustix::mm::munmap(this.start.as_ptr().cast(), this.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours and is used no more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Bytes from a multiple of [`PAGE`] on, as O_DIRECT wants them (open(2), NOTES).
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// `length` zeroes.
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + PAGE];
        let start = bytes.as_ptr().addr().wrapping_neg() % PAGE;
        Self { bytes, start, length }
    }

    /// The bytes.
    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    /// The bytes, to change.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_and_counts_its_touches() {
        for alignment in [PAGE, 2 << 20] {
            let mut mapping = Mapping::shared(3 * PAGE, alignment).expect("memory");
            assert_eq!(mapping.range().start % alignment, 0);
            assert_eq!((mapping.range().len(), mapping.pages()), (3 * PAGE, 3));
            for _ in 0..300 {
                mapping.write_touch();
            }
            assert_eq!(mapping.first_bytes().collect::<Vec<_>>(), [44; 3]);
            assert_eq!(mapping.resident(), Ok(3));
            mapping.protect(false).expect("protects");
            mapping.protect_page(2, true).expect("protects");
            assert_eq!(mapping.protect_page(3, true), Err(Errno::INVAL));
            mapping.unmap().expect("unmaps");
        }
    }

    #[test]
    fn an_aligned_buffer_is_aligned_wherever_it_goes() {
        let mut buffers: Vec<Aligned> = (1..5).map(|pages| Aligned::new(pages * PAGE)).collect();
        buffers.rotate_left(2);
        for buffer in &mut buffers {
            assert_eq!(buffer.get().as_ptr().addr() % PAGE, 0);
            buffer.get_mut().fill(1);
            assert_eq!(buffer.get().len() % PAGE, 0);
        }
    }
}
