//! The virtual machine a kernel is booted in. Read [`GuestShape`] first.

use std::fmt;
use std::str::FromStr;

use kdelta_wire::DiskKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::{ParseError, text_value};

/// Processors, memory and disk of a guest: a file of `configs/guests/`. The machine is always the
/// same trimmed q35 (docs/guests.md says why).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestShape {
    /// What it is for, one line.
    pub description: String,
    /// Virtual CPUs. In instructions mode a second one models nothing (it only shares the clock).
    #[serde(default = "one")]
    pub cpus: u32,
    /// Guest memory.
    pub memory: Size,
    /// The disk under test.
    pub disk: Disk,
    /// Added to the kernel command line.
    #[serde(default)]
    pub cmdline: Vec<String>,
}

fn one() -> u32 {
    1
}

/// The disk under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// `none`, `ram` (brd: memory inside the guest, on which instruction counts are exact),
    /// `nvme` or `virtio-blk` (emulated, backed by a raw, sparse file on the host, new for every
    /// boot).
    #[schemars(with = "String", extend("enum" = ["none", "ram", "nvme", "virtio-blk"]))]
    #[serde(rename = "type")]
    pub kind: DiskKind,
    /// Capacity. Default: 512MiB for `ram`, 2GiB for `nvme` and `virtio-blk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// How the host caches the backing file.
    #[serde(default)]
    pub cache: CacheMode,
    /// How the host submits requests.
    #[serde(default)]
    pub aio: AioMode,
}

/// How the host caches a disk (QEMU's `cache=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// O_DIRECT on the host; QEMU's `none`.
    None,
    /// The host's page cache, flushes honoured.
    #[default]
    Writeback,
    /// The host's page cache, every write flushed.
    Writethrough,
    /// Flushes ignored: never for evidence about durability.
    Unsafe,
}

/// How the host submits disk requests (QEMU's `aio=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AioMode {
    /// A pool of threads.
    #[default]
    Threads,
    /// Linux AIO; needs `cache: none`.
    Native,
    /// io_uring.
    IoUring,
}

impl CacheMode {
    /// As QEMU spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::Unsafe => "unsafe",
        }
    }
}

impl AioMode {
    /// As QEMU spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Native => "native",
            Self::IoUring => "io_uring",
        }
    }
}

impl Disk {
    /// Capacity, if there is a disk.
    #[must_use]
    pub fn capacity(&self) -> Option<Size> {
        let default = match self.kind {
            DiskKind::None => return None,
            DiskKind::Ram => Size::from_mib(512),
            DiskKind::Nvme | DiskKind::VirtioBlk => Size::from_mib(2048),
        };
        Some(self.size.unwrap_or(default))
    }

    /// Its type, as experiment files spell it.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            DiskKind::None => "none",
            DiskKind::Ram => "ram",
            DiskKind::Nvme => "nvme",
            DiskKind::VirtioBlk => "virtio-blk",
        }
    }

    /// Whether threads of the host serve it: its completions arrive at moments that no seed fixes.
    #[must_use]
    pub fn is_served_by_host(&self) -> bool {
        match self.kind {
            DiskKind::None | DiskKind::Ram => false,
            DiskKind::Nvme | DiskKind::VirtioBlk => true,
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(size) = self.capacity() else { return f.write_str("none") };
        let kind = self.kind_name();
        if !self.is_served_by_host() {
            return write!(f, "{kind} (brd) {size}");
        }
        write!(f, "{kind} (emulated) {size}, cache={}, aio={}", self.cache.name(), self.aio.name())
    }
}

/// A number of bytes, written with a binary unit: `512MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    bytes: u64,
}

impl Size {
    const UNITS: [(&'static str, u64); 7] = [
        ("EiB", 1 << 60),
        ("PiB", 1 << 50),
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ];

    /// That many MiB.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self { bytes: mib << 20 }
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// In MiB, rounded down.
    #[must_use]
    pub fn mib(self) -> u64 {
        self.bytes >> 20
    }

    /// In KiB, rounded down.
    #[must_use]
    pub fn kib(self) -> u64 {
        self.bytes >> 10
    }
}

impl FromStr for Size {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::new("a size with a unit, such as 512MiB or 2GiB", text);
        let (number, factor) = Self::UNITS
            .iter()
            .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number.trim_end(), *factor)))
            .ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let bytes = number.checked_mul(factor).ok_or_else(wrong)?;
        Ok(Self { bytes })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, factor): &&(&str, u64)| self.bytes >= *factor && self.bytes.is_multiple_of(*factor);
        let (unit, factor) = Self::UNITS.iter().find(whole).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.bytes / factor)
    }
}

text_value!(Size, "Size", "a size with a unit, such as 512MiB or 2GiB");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_and_a_binary_unit() {
        assert_eq!("512MiB".parse(), Ok(Size::from_mib(512)));
        assert_eq!("2GiB".parse::<Size>().expect("size").to_string(), "2GiB");
        assert_eq!("1536MiB".parse::<Size>().expect("size").to_string(), "1536MiB");
        assert_eq!("16TiB".parse::<Size>().expect("size").to_string(), "16TiB");
        assert_eq!("1048576TiB".parse::<Size>().expect("size").to_string(), "1EiB");
        assert_eq!("0GiB".parse::<Size>().expect("size").to_string(), "0B");
        for text in ["", "12", "12MB", "-1MiB", "1.5GiB", "99999999999999999GiB", "16EiB", "MiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
