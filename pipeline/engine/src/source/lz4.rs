//! Decompresses the legacy LZ4 format, which distributions choose for kernels that unpack fast. Read
//! [`unpack`] first.

/// First bytes of the format (`LEGACY_MAGICNUMBER` of the kernel's lib/decompress_unlz4.c).
pub const MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// Every block but the last has this many bytes when unpacked.
const BLOCK: usize = 8 << 20;
/// The shortest match; lengths are stored less this.
const SHORTEST: usize = 4;

/// Unpacks `bytes`, a sequence of blocks each with its length before it. A rest that is too short for
/// a block is ignored: in a bzImage the size of the whole follows there.
pub fn unpack(bytes: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    let mut rest = bytes.strip_prefix(&MAGIC).ok_or("it is not in the legacy LZ4 format")?;
    let mut out = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        if after.is_empty() || length == 0 {
            break;
        }
        let block = after.get(..length).ok_or("an LZ4 block is cut off")?;
        let start = out.len();
        unpack_block(block, start, &mut out)?;
        if out.len() - start > BLOCK || out.len() > limit {
            return Err("an LZ4 block is larger than it may be".to_owned());
        }
        rest = &after[length..];
    }
    Ok(out)
}

/// One block: literals and copies of what came before, in turn (LZ4 block format).
fn unpack_block(block: &[u8], start: usize, out: &mut Vec<u8>) -> Result<(), String> {
    const CUT: &str = "an LZ4 block is cut off";
    let mut input = block;
    while let Some(token) = input.split_off_first().copied() {
        let literals = length(token >> 4, &mut input).ok_or(CUT)?;
        out.extend_from_slice(input.split_off(..literals).ok_or(CUT)?);
        // The last sequence of a block has no copy.
        if input.is_empty() {
            break;
        }
        let (low, high) = input.split_off_first().zip(input.split_off_first()).ok_or(CUT)?;
        let distance = usize::from(u16::from_le_bytes([*low, *high]));
        let count = length(token & 15, &mut input).ok_or(CUT)? + SHORTEST;
        if distance == 0 || distance > out.len() - start {
            return Err("an LZ4 block refers to bytes before its beginning".to_owned());
        }
        if out.len() - start + count > BLOCK {
            return Err("an LZ4 block is larger than it may be".to_owned());
        }
        // A copy may overlap what it makes: `a` at distance 1 and length 5 is `aaaaa`.
        let from = out.len() - distance;
        for at in from..from + count {
            out.push(out[at]);
        }
    }
    Ok(())
}

/// A length of four bits, continued in bytes while they are full.
fn length(bits: u8, input: &mut &[u8]) -> Option<usize> {
    let mut length = usize::from(bits);
    if bits == 15 {
        loop {
            let more = *input.split_off_first()?;
            length += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `bytes` as one block of literals, with the size behind it as in a bzImage.
    pub(crate) fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        match bytes.len().checked_sub(15) {
            None => block.push((bytes.len() as u8) << 4),
            Some(more) => {
                block.push(0xf0);
                block.extend(std::iter::repeat_n(255, more / 255));
                block.push((more % 255) as u8);
            }
        }
        block.extend(bytes);
        let mut packed = MAGIC.to_vec();
        packed.extend((block.len() as u32).to_le_bytes());
        packed.extend(block);
        packed.extend((bytes.len() as u32).to_le_bytes());
        packed
    }

    fn check(block: &[u8], expected: Result<&[u8], &str>) {
        let mut packed = MAGIC.to_vec();
        packed.extend((block.len() as u32).to_le_bytes());
        packed.extend(block);
        match (unpack(&packed, 1 << 20), expected) {
            (Ok(bytes), Ok(expected)) => assert_eq!(bytes, expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn literals_and_overlapping_copies_are_unpacked() {
        check(b"\x30abc", Ok(b"abc"));
        check(b"\x12a\x01\x00\x20bc", Ok(b"aaaaaaabc"));
        check(b"\x2fab\x02\x00\x01\x00", Ok(b"abababababababababababab".get(..22).expect("22")));
    }

    #[test]
    fn a_broken_block_is_an_error() {
        check(b"\x50abc", Err("cut off"));
        check(b"\x10a\x05\x00", Err("before its beginning"));
        check(b"\x10a\x00\x00", Err("before its beginning"));
        check(b"\x10a\x01", Err("cut off"));
        check(b"\xf0", Err("cut off"));
        assert!(unpack(b"hello", 10).is_err());
        let mut cut = pack(b"payload");
        cut.truncate(12);
        assert!(unpack(&cut, 100).is_err());
    }

    #[test]
    fn the_size_behind_the_last_block_is_ignored() {
        for length in [0, 14, 15, 300, 1000] {
            let bytes = vec![7; length];
            assert_eq!(unpack(&pack(&bytes), 1 << 20).expect("unpack"), bytes);
        }
    }
}
