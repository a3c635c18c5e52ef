//! A used filesystem: kept once as the blocks of its disk that are not zero, and put back before
//! every round, so that each begins with the same bits. Read [`save`], then [`restore`].
//!
//! The image lies in a memory window of the host (QEMU's `ivshmem-plain`): reading it takes no
//! interrupt and no thread of the host, so that instruction counts stay exact.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kdelta_wire::{BLOCK, DiskKind, Extent, ImageHeader, WINDOW_ID};
use rustix::fs::{FallocateFlags, SeekFrom};

use crate::error::{InitError, failed};
use crate::sys::{self, Window};

/// Where the kernel lists PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Bytes of one read or write of a disk.
const PIECE: usize = 1 << 20;

/// Writes the blocks of `disk` that are not zero into the window; returns what was done.
pub(crate) fn save(disk: &str) -> Result<String, InitError> {
    let mut window = window()?;
    let file = open(disk)?;
    let header = pack(&file, window.write()).map_err(failed(format!("keep the image of {disk}")))?;
    Ok(told("kept", &header))
}

/// Makes `disk` what it was when the image in `window` was kept; returns what was done.
pub(crate) fn restore(window: &Window, kind: DiskKind, disk: &str) -> Result<String, InitError> {
    let file = open(disk)?;
    let action = || format!("restore the image on {disk}");
    let header = unpack(window.read(), &file, kind).map_err(failed(action()))?;
    Ok(told("restored", &header))
}

fn told(done: &str, header: &ImageHeader) -> String {
    let ImageHeader { capacity, data, extents } = header;
    format!("image of a used filesystem {done}: {data} bytes in {extents} pieces of a disk of {capacity}\n")
}

/// The memory window that the host attached.
pub(crate) fn window() -> Result<Window, InitError> {
    let device = find_window(Path::new(PCI_DEVICES)).ok_or_else(|| {
        InitError::Job(
            "the job needs the image of a used filesystem, and no memory window is attached".into(),
        )
    })?;
    // Nobody drives the device, so nobody has told it to answer.
    std::fs::write(device.join("enable"), "1\n").map_err(failed("enable the memory window"))?;
    let path = device.join("resource2");
    let action = || format!("map {}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed(action()))?;
    let length = file.metadata().map_err(failed(action()))?.len();
    let length = usize::try_from(length).map_err(|_| InitError::Job(format!("{}: {length}", action())))?;
    Window::map(&file, length).map_err(failed(action()))
}

fn find_window(devices: &Path) -> Option<PathBuf> {
    let is = |entry: &Path, file: &str, id: &str| {
        std::fs::read_to_string(entry.join(file)).is_ok_and(|text| text.trim() == id)
    };
    let mut entries = std::fs::read_dir(devices).ok()?.flatten().map(|entry| entry.path());
    entries.find(|entry| is(entry, "vendor", WINDOW_ID.0) && is(entry, "device", WINDOW_ID.1))
}

/// Opens a disk apart from the page cache, and only if nothing has it mounted.
fn open(disk: &str) -> Result<File, InitError> {
    let flags = libc::O_DIRECT | libc::O_EXCL;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(disk);
    file.map_err(failed(format!("open {disk}")))
}

fn invalid(message: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, message)
}

/// A buffer whose address O_DIRECT accepts.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let bytes = vec![0; PIECE + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn piece(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..][..length]
    }
}

/// Capacity of a disk or file, in bytes.
fn capacity(file: &File) -> std::io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// Pieces of `from..from + length`: offset and bytes of each.
fn pieces(from: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    let step = PIECE as u64;
    (0..length.div_ceil(step)).map(move |n| (from + n * step, (length - n * step).min(step) as usize))
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().fold(0, |sum, byte| sum | byte) == 0
}

/// Writes the image of `disk` to the beginning of `out`.
fn pack(disk: &File, out: &mut [u8]) -> std::io::Result<ImageHeader> {
    let full = || invalid("the memory window is too small for what the filesystem holds");
    let capacity = capacity(disk)?;
    let mut extents: Vec<Extent> = Vec::new();
    let mut end = BLOCK;
    let mut buffer = Buffer::new();
    for (offset, length) in pieces(0, capacity) {
        let piece = buffer.piece(length);
        disk.read_exact_at(piece, offset)?;
        for (block, place) in piece.chunks(BLOCK).zip((offset..).step_by(BLOCK)) {
            if is_zero(block) {
                continue;
            }
            if block.len() != BLOCK {
                return Err(invalid("the disk is not a whole number of blocks"));
            }
            out.get_mut(end..end + BLOCK).ok_or_else(full)?.copy_from_slice(block);
            end += BLOCK;
            match extents.last_mut().filter(|last| last.offset + last.length == place) {
                Some(last) => last.length += BLOCK as u64,
                None => extents.push(Extent { offset: place, length: BLOCK as u64 }),
            }
        }
    }
    for extent in &extents {
        out.get_mut(end..end + Extent::BYTES).ok_or_else(full)?.copy_from_slice(&extent.encode());
        end += Extent::BYTES;
    }
    let data: u64 = extents.iter().map(|extent| extent.length).sum();
    let header = ImageHeader { capacity, data, extents: extents.len() as u64 };
    // Last: an image that was not finished has no header.
    out[..ImageHeader::BYTES].copy_from_slice(&header.encode());
    Ok(header)
}

/// Writes the blocks of `image` to `disk`, and zeros everywhere else.
fn unpack(image: &[u8], disk: &File, kind: DiskKind) -> std::io::Result<ImageHeader> {
    let header = ImageHeader::decode(image, image.len() as u64)
        .ok_or_else(|| invalid("what is in the memory window is no image"))?;
    let capacity = capacity(disk)?;
    if capacity != header.capacity {
        let message = format!("the image is of a disk of {} bytes, this has {capacity}", header.capacity);
        return Err(invalid(&message));
    }
    let index = header.index().unwrap_or_default() as usize;
    let extents = image
        .get(index..index + header.extents as usize * Extent::BYTES)
        .and_then(|index| Extent::decode(index, capacity, header.data))
        .ok_or_else(|| invalid("the image's list of pieces is damaged"))?;
    clear(disk, kind, capacity)?;
    let mut source = &image[BLOCK..];
    let mut buffer = Buffer::new();
    for extent in &extents {
        for (offset, length) in pieces(extent.offset, extent.length) {
            let (piece, rest) = source.split_at(length);
            buffer.piece(length).copy_from_slice(piece);
            disk.write_all_at(buffer.piece(length), offset)?;
            source = rest;
        }
    }
    disk.sync_all()?;
    Ok(header)
}

/// Makes every block of `disk` zero.
fn clear(disk: &File, kind: DiskKind, capacity: u64) -> std::io::Result<()> {
    if kind != DiskKind::Ram {
        // A discarded block of such a disk may keep its bits; this may not.
        return Ok(rustix::fs::fallocate(disk, FallocateFlags::ZERO_RANGE, 0, capacity)?);
    }
    // brd gives the memory of discarded blocks back, and they read as zeros; writing zeros would
    // take memory for each. That of Linux 6.1 cannot, so blocks that are not zero are overwritten.
    if sys::discard(disk, capacity).is_ok() {
        return Ok(());
    }
    let mut buffer = Buffer::new();
    for (offset, length) in pieces(0, capacity) {
        disk.read_exact_at(buffer.piece(length), offset)?;
        for (number, block) in buffer.piece(length).chunks_mut(BLOCK).enumerate() {
            if !is_zero(block) {
                block.fill(0);
                disk.write_all_at(block, offset + (number * BLOCK) as u64)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file of `blocks` in place of a disk: each block is filled with its byte.
    fn disk(blocks: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        for byte in blocks {
            file.write_all(&[*byte; BLOCK]).expect("write");
        }
        file
    }

    fn bytes(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; capacity(file).expect("a length") as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    #[test]
    fn a_disk_is_put_back_whatever_was_on_it_and_zeros_are_not_kept() {
        let before = disk(&[0, 7, 8, 0, 0, 9, 0]);
        let mut image = vec![0xff; 8 * BLOCK];
        let header = pack(&before, &mut image).expect("an image");
        assert_eq!(header, ImageHeader { capacity: 7 * BLOCK as u64, data: 3 * BLOCK as u64, extents: 2 });
        for dirt in [0, 1, 255] {
            let after = disk(&[dirt; 7]);
            assert_eq!(unpack(&image, &after, DiskKind::Ram).expect("restored"), header);
            assert!(bytes(&after) == bytes(&before), "over {dirt}");
        }
    }

    #[test]
    fn a_disk_larger_than_a_piece_is_kept_whole() {
        let mut blocks = vec![0_u8; 2 * PIECE / BLOCK + 3];
        let last = blocks.len() - 1;
        for (place, byte) in [(PIECE / BLOCK - 1, 1), (PIECE / BLOCK, 2), (last, 3)] {
            blocks[place] = byte;
        }
        let before = disk(&blocks);
        let mut image = vec![0; 5 * BLOCK];
        let header = pack(&before, &mut image).expect("an image");
        assert_eq!((header.data, header.extents), (3 * BLOCK as u64, 2), "a piece's border parts nothing");
        let after = disk(&vec![4; blocks.len()]);
        unpack(&image, &after, DiskKind::Ram).expect("restored");
        assert!(bytes(&after) == bytes(&before));
    }

    #[test]
    fn an_image_that_does_not_fit_or_is_damaged_is_an_error_that_says_so() {
        let full = pack(&disk(&[1, 2, 3]), &mut vec![0; 4 * BLOCK]).expect_err("no room for the list");
        assert!(full.to_string().starts_with("the memory window is too small"), "{full}");
        let mut image = vec![0; 4 * BLOCK];
        pack(&disk(&[1, 0, 3]), &mut image).expect("an image");
        let other = unpack(&image, &disk(&[0; 4]), DiskKind::Ram).expect_err("a larger disk");
        assert_eq!(other.to_string(), "the image is of a disk of 12288 bytes, this has 16384");
        image[3 * BLOCK] = 1;
        let damaged = unpack(&image, &disk(&[0; 3]), DiskKind::Ram).expect_err("a list out of order");
        assert_eq!(damaged.to_string(), "the image's list of pieces is damaged");
        let none = unpack(&[0; BLOCK], &disk(&[0; 3]), DiskKind::Ram).expect_err("no image");
        assert_eq!(none.to_string(), "what is in the memory window is no image");
    }

    #[test]
    fn the_window_is_found_by_vendor_and_device() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, vendor, device) in
            [("0000:00:01.0", "0x1af4", "0x1003"), ("0000:00:02.0", "0x1af4", "0x1110")]
        {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
            std::fs::write(folder.path().join(name).join("vendor"), format!("{vendor}\n")).expect("write");
            std::fs::write(folder.path().join(name).join("device"), format!("{device}\n")).expect("write");
        }
        assert_eq!(find_window(folder.path()), Some(folder.path().join("0000:00:02.0")));
        assert_eq!(find_window(&folder.path().join("0000:00:01.0")), None);
    }
}
