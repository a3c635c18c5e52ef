//! File names of the length and alphabet of fs_mark's, drawn before anything is timed. Read
//! [`Names`] first.

use std::ffi::CStr;

use rand_chacha::rand_core::Rng;

use crate::sys;

/// Digits of a name, where fs_mark puts the time.
pub(crate) const STAMP: usize = 16;
/// Random letters of a name.
pub(crate) const LETTERS: usize = 24;
/// Name and NUL.
const NAME_BYTES: usize = STAMP + LETTERS + 1;
/// Microseconds since 1970 that the first name carries; later names count up from it.
const FIRST_STAMP: u64 = 1_700_000_000_000_000;

/// Names of 40 bytes and a NUL each, in one buffer.
#[derive(Debug)]
pub(crate) struct Names(Vec<u8>);

impl Names {
    /// `count` names, the first of which carries the time `first`.
    pub(crate) fn draw(rng: &mut impl Rng, first: u64, count: usize) -> Self {
        let mut bytes = Vec::with_capacity(count * NAME_BYTES);
        for number in 0..count as u64 {
            let mut stamp = FIRST_STAMP + first + number;
            let mut digits = [b'0'; STAMP];
            for digit in digits.iter_mut().rev() {
                *digit += (stamp % 10) as u8;
                stamp /= 10;
            }
            bytes.extend_from_slice(&digits);
            bytes.extend((0..LETTERS).map(|_| letter(rng)));
            bytes.push(0);
        }
        Self(bytes)
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> &CStr {
        let bytes = &self.0[number * NAME_BYTES..][..NAME_BYTES];
        // SAFETY: `draw` wrote 40 digits and letters and then a NUL at every multiple of 41.
        unsafe { sys::c_str(bytes) }
    }
}

/// A capital letter or digit, as fs_mark takes them.
pub(crate) fn letter(rng: &mut impl Rng) -> u8 {
    const ALPHABET: &[u8; 36] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    // The high bits choose the letter; the bias of 36 in 2^32 is far below notice.
    ALPHABET[((u64::from(rng.next_u32()) * 36) >> 32) as usize]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn names_have_forty_bytes_are_distinct_and_come_from_the_seed() {
        let draw = |seed| Names::draw(&mut ChaCha8Rng::seed_from_u64(seed), 0, 500);
        let names = draw(1);
        let distinct: BTreeSet<&CStr> = (0..500).map(|number| names.get(number)).collect();
        assert_eq!((names.0.len() / NAME_BYTES, distinct.len()), (500, 500));
        for name in distinct {
            let (digits, letters) = name.to_bytes().split_at(STAMP);
            assert!(digits.iter().all(u8::is_ascii_digit), "{name:?}");
            assert_eq!(letters.len(), LETTERS);
            assert!(
                letters.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()),
                "{name:?}"
            );
        }
        assert_eq!(draw(1).0, names.0);
        assert_ne!(draw(2).0, names.0);
    }
}
