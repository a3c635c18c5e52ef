//! The init's only unsafe code: mapping the memory window of a used filesystem's image, and telling
//! a disk to forget its blocks. Read [`Window`] first.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Setter, opcode};
use rustix::mm::{MapFlags, ProtFlags};

/// The memory of a PCI device, mapped until the guest ends.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: &'static mut [u8],
}

impl Window {
    /// Maps `length` bytes of `resource`, a PCI device's `resourceN` file in sysfs.
    pub(crate) fn map(resource: &File, length: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nothing else uses, and the mapping is never
        // undone.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, resource.as_fd(), 0)
        }?;
        // SAFETY: `length` bytes from `start` were just mapped for reading and writing, live as long
        // as the guest, and are reachable through this slice alone. The device is memory of the
        // host that nobody there writes while the guest runs.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), length) };
        Ok(Self { bytes })
    }

    /// What is in it.
    pub(crate) fn read(&self) -> &[u8] {
        self.bytes
    }

    /// Its memory, to write to.
    pub(crate) fn write(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Discards `length` bytes of a block device from its beginning.
pub(crate) fn discard(disk: &File, length: u64) -> Result<(), Errno> {
    /// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`, which takes an offset and a length.
    const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
    // SAFETY: this number takes a pointer to two u64, which it only reads.
    unsafe {
        let range = Setter::<BLKDISCARD, [u64; 2]>::new([0, length]);
        rustix::ioctl::ioctl(disk.as_fd(), range)
    }
}
