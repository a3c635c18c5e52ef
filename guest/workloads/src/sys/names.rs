//! Many C strings in one buffer, so that a timed loop takes a name by its number. Read [`Names`] first.

use std::ffi::CStr;

/// C strings, numbered from 0 in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Every string with its NUL.
    bytes: Vec<u8>,
    /// Where each begins.
    starts: Vec<usize>,
}

impl Names {
    /// Room for `count` strings of `length` bytes each.
    pub(crate) fn with_capacity(count: usize, length: usize) -> Self {
        Self { bytes: Vec::with_capacity(count * (length + 1)), starts: Vec::with_capacity(count) }
    }

    /// Adds `name` and returns its number.
    ///
    /// # Panics
    /// When `name` has a NUL in it, or is the 2^32nd.
    pub(crate) fn push(&mut self, name: &[u8]) -> u32 {
        assert!(!name.contains(&0), "a NUL ends a C string");
        let number = u32::try_from(self.starts.len()).expect("fewer than 2^32 names");
        self.starts.push(self.bytes.len());
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        number
    }

    /// The string with that number.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &CStr {
        let number = number as usize;
        let start = self.starts[number];
        let end = self.starts.get(number + 1).copied().unwrap_or(self.bytes.len());
        // SAFETY: `push` put one NUL, and that last, into each piece between two starts.
        unsafe { super::c_str(&self.bytes[start..end]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_by_number() {
        let mut names = Names::with_capacity(2, 3);
        assert_eq!((names.push(b"abc"), names.push(b""), names.push(b"de/f")), (0, 1, 2));
        assert_eq!([names.get(0), names.get(1), names.get(2)], [c"abc", c"", c"de/f"]);
    }

    #[test]
    #[should_panic(expected = "a NUL ends a C string")]
    fn a_name_with_a_nul_is_a_mistake() {
        Names::default().push(b"a\0b");
    }
}
