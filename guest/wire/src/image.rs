//! The image of a used filesystem: only those blocks of its disk that are not zero. The guest writes
//! and reads it in a memory window that the host attached. Read [`ImageHeader`] first.
//!
//! A header block, then the blocks one after the other, then the [`Extent`]s that say where they
//! belong. Numbers are little-endian.

/// Bytes of a block; extents, and the data, are a multiple of it.
pub const BLOCK: usize = 4096;
/// PCI vendor and device of the memory window (QEMU's `ivshmem-plain`), as sysfs writes them.
pub const WINDOW_ID: (&str, &str) = ("0x1af4", "0x1110");
/// Marks an image; the digit is the format's version.
const MAGIC: &[u8; 8] = b"KDIMAGE1";

/// The first block of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Bytes of the disk it was taken from.
    pub capacity: u64,
    /// Bytes of its blocks.
    pub data: u64,
    /// How many extents they belong to.
    pub extents: u64,
}

impl ImageHeader {
    /// Bytes that are written; the rest of the block is zero.
    pub const BYTES: usize = 32;

    /// The header as it begins an image.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        for (place, number) in [(8, self.capacity), (16, self.data), (24, self.extents)] {
            bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The header that `image` begins with, if it is one of this version and fits into `length`
    /// bytes.
    #[must_use]
    pub fn decode(image: &[u8], length: u64) -> Option<Self> {
        if image.get(..8)? != MAGIC {
            return None;
        }
        let header =
            Self { capacity: number(image, 8)?, data: number(image, 16)?, extents: number(image, 24)? };
        let whole = header.data.is_multiple_of(BLOCK as u64) && header.data <= header.capacity;
        (whole && header.length()? <= length).then_some(header)
    }

    /// Bytes of the whole image; `None` when no image is that long.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.index()?.checked_add(self.extents.checked_mul(Extent::BYTES as u64)?)
    }

    /// Where the extents begin.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        self.data.checked_add(BLOCK as u64)
    }
}

/// Neighbouring blocks that are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

impl Extent {
    /// Bytes of one in an image.
    pub const BYTES: usize = 16;

    /// As it stands in an image.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// The extents of an index, in its order; `None` when they are not whole blocks one behind the
    /// other on a disk of `capacity` bytes, or do not hold `data` bytes together.
    #[must_use]
    pub fn decode(index: &[u8], capacity: u64, data: u64) -> Option<Vec<Self>> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        let mut extents = Vec::with_capacity(index.len() / Self::BYTES);
        for entry in index.chunks_exact(Self::BYTES) {
            let extent = Self { offset: number(entry, 0)?, length: number(entry, 8)? };
            let whole = [extent.offset, extent.length].iter().all(|bytes| bytes.is_multiple_of(BLOCK as u64));
            if !whole || extent.offset < end || extent.length == 0 {
                return None;
            }
            end = extent.offset.checked_add(extent.length).filter(|end| *end <= capacity)?;
            sum += extent.length;
            extents.push(extent);
        }
        (sum == data).then_some(extents)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let eight: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_le_bytes(eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: ImageHeader = ImageHeader { capacity: 1 << 30, data: 3 * BLOCK as u64, extents: 2 };

    #[test]
    fn a_header_is_read_back_and_its_parts_follow_each_other() {
        let bytes = HEADER.encode();
        assert_eq!((HEADER.index(), HEADER.length()), (Some(16_384), Some(16_416)));
        assert_eq!(ImageHeader::decode(&bytes, 16_416), Some(HEADER));
        assert_eq!(ImageHeader::decode(&bytes, 16_415), None, "cut short");
        assert_eq!(ImageHeader::decode(&bytes[..31], 16_416), None);
        assert_eq!(ImageHeader::decode(b"KDIMAGE2", 16_416), None);
    }

    #[test]
    fn a_header_with_impossible_numbers_is_none() {
        for (capacity, data, extents) in
            [(u64::MAX, u64::MAX, 0), (8192, 100, 0), (8192, 4096, u64::MAX), (1, 4096, 1)]
        {
            let bytes = ImageHeader { capacity, data, extents }.encode();
            assert_eq!(ImageHeader::decode(&bytes, u64::MAX), None, "{capacity} {data} {extents}");
        }
    }

    #[test]
    fn extents_are_whole_ordered_and_on_the_disk_or_none() {
        let block = BLOCK as u64;
        let index = |list: &[(u64, u64)]| -> Vec<u8> {
            let extents = list.iter().map(|(offset, length)| Extent { offset: *offset, length: *length });
            extents.flat_map(|extent| extent.encode()).collect()
        };
        let good = index(&[(0, block), (4 * block, 2 * block)]);
        let extents = Extent::decode(&good, 6 * block, 3 * block).expect("extents");
        assert_eq!(extents[1], Extent { offset: 4 * block, length: 2 * block });
        assert_eq!(Extent::decode(&good, 6 * block, 2 * block), None, "another sum");
        assert_eq!(Extent::decode(&good, 5 * block, 3 * block), None, "behind the end");
        for bad in [
            [(block, block), (0, 2 * block)],
            [(0, 2 * block), (block, block)],
            [(1, block), (4 * block, 2 * block)],
        ] {
            assert_eq!(Extent::decode(&index(&bad), 6 * block, 3 * block), None, "{bad:?}");
        }
        assert_eq!(Extent::decode(&index(&[(u64::MAX - block + 1, block)]), u64::MAX, block), None);
    }
}
