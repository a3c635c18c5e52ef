//! What the kernel made of memory: sizes of page table entries and of folios, by which a workload
//! proves that it measured the shape that it speaks of (rule M37). Read [`Inspector`] first.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use rustix::io::Errno;

use crate::WorkloadError;
use crate::round::failed;
use crate::sys::pages::PAGE;

const SMAPS: &str = "/proc/self/smaps";
const PAGEMAP: &str = "/proc/self/pagemap";
const KPAGEFLAGS: &str = "/proc/kpageflags";
/// Each word of pagemap and kpageflags.
const WORD: usize = 8;

/// Bits of kernel `Documentation/admin-guide/mm/pagemap.rst`.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const HUGE: u64 = 1 << 17;
const THP: u64 = 1 << 22;

/// Open files of `/proc` that describe this process's memory. Reading is pread(2) from the start, so
/// that looking twice costs no more system calls of other names than looking once.
#[derive(Debug)]
pub(crate) struct Inspector {
    smaps: File,
    /// Of memory and of page frames; only root sees the numbers that join them.
    frames: Option<[File; 2]>,
    text: Vec<u8>,
}

impl Inspector {
    /// Opens what there is.
    ///
    /// # Errors
    /// When the kernel has no smaps.
    pub(crate) fn open() -> Result<Self, WorkloadError> {
        let smaps = File::open(SMAPS).map_err(|_| WorkloadError::Unavailable {
            what: SMAPS.to_owned(),
            next: "build the kernel with CONFIG_PROC_PAGE_MONITOR",
        })?;
        let frames = File::open(PAGEMAP).ok().zip(File::open(KPAGEFLAGS).ok());
        Ok(Self { smaps, frames: frames.map(Into::into), text: vec![0; 1 << 20] })
    }

    /// What the page tables of `range` look like.
    pub(crate) fn smaps(&mut self, range: &Range<usize>) -> Result<Smaps, WorkloadError> {
        let mut length = 0;
        loop {
            let piece = rustix::io::pread(&self.smaps, &mut self.text[length..], length as u64)
                .map_err(|errno| failed("read", Path::new(SMAPS), errno))?;
            length += piece;
            if piece == 0 {
                break;
            }
            if length == self.text.len() {
                self.text.resize(2 * length, 0);
            }
        }
        Ok(Smaps::parse(&String::from_utf8_lossy(&self.text[..length]), range))
    }

    /// What the folios under `range` look like.
    ///
    /// # Errors
    /// When this process may not see page frames.
    pub(crate) fn folios(&self, range: &Range<usize>) -> Result<Folios, WorkloadError> {
        let hidden = || WorkloadError::Unavailable {
            what: format!("the size of folios ({KPAGEFLAGS})"),
            next: "run as root on a kernel with CONFIG_PROC_PAGE_MONITOR",
        };
        let [pagemap, kpageflags] = self.frames.as_ref().ok_or_else(hidden)?;
        let pages = range.len() / PAGE;
        let entries = words(pagemap, PAGEMAP, range.start / PAGE, pages)?;
        let frames: Vec<u64> =
            entries.iter().filter(|&entry| entry & PRESENT != 0).map(|entry| entry & FRAME).collect();
        if frames.contains(&0) {
            return Err(hidden());
        }
        let mut folios = Folios { present: frames.len() as u64, ..Folios::default() };
        for run in frames.chunk_by(|a, b| a + 1 == *b) {
            for flags in words(kpageflags, KPAGEFLAGS, run[0] as usize, run.len())? {
                folios.add(flags);
            }
        }
        Ok(folios)
    }
}

/// `count` words of `file` from the word `first` on.
fn words(file: &File, path: &str, first: usize, count: usize) -> Result<Vec<u64>, WorkloadError> {
    let mut bytes = vec![0; count * WORD];
    let mut length = 0;
    while length < bytes.len() {
        let offset = (first * WORD + length) as u64;
        match rustix::io::pread(file, &mut bytes[length..], offset)
            .map_err(|errno| failed("read", Path::new(path), errno))?
        {
            0 => return Err(failed("read", Path::new(path), Errno::NODATA)),
            read => length += read,
        }
    }
    Ok(bytes.chunks_exact(WORD).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
}

/// Page tables of a range of memory, after proc_pid_smaps(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Smaps {
    /// Mappings that lie in the range.
    pub(crate) mappings: u64,
    /// As `rw-s`, of the first of them.
    pub(crate) permissions: String,
    /// Smallest and largest `KernelPageSize` and `MMUPageSize`, in kB; 0 if one is not told.
    pub(crate) page_kb: (u64, u64),
    /// `AnonHugePages`, `ShmemPmdMapped` and `FilePmdMapped` together.
    pub(crate) huge_kb: u64,
    /// Whether one of them is `THPeligible`.
    pub(crate) eligible: bool,
}

impl Smaps {
    /// Base pages only: what the gate of the report asks for.
    pub(crate) fn base_pages(writable: bool) -> Self {
        let permissions = if writable { "rw-s" } else { "r--s" }.to_owned();
        Self { mappings: 1, permissions, page_kb: (4, 4), huge_kb: 0, eligible: false }
    }

    fn parse(text: &str, range: &Range<usize>) -> Self {
        let mut found = Self::default();
        let mut sizes = Vec::new();
        let mut inside = false;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
            if let Some(mapping) = addresses(first) {
                inside = mapping.start < range.end && range.start < mapping.end;
                if inside {
                    found.mappings += 1;
                    if found.permissions.is_empty() {
                        second.clone_into(&mut found.permissions);
                    }
                }
                continue;
            }
            let Some(value) = second.parse::<u64>().ok().filter(|_| inside) else { continue };
            match first {
                "KernelPageSize:" | "MMUPageSize:" => sizes.push(value),
                "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => found.huge_kb += value,
                "THPeligible:" => found.eligible |= value > 0,
                _ => {}
            }
        }
        // Two sizes for each mapping, or the kernel did not tell all of them.
        if sizes.len() as u64 == 2 * found.mappings {
            found.page_kb =
                (sizes.iter().copied().min().unwrap_or(0), sizes.iter().copied().max().unwrap_or(0));
        }
        found
    }
}

impl fmt::Display for Smaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mappings, permissions, page_kb: (low, high), huge_kb, eligible } = self;
        let eligible = if *eligible { "eligible" } else { "not eligible" };
        write!(
            f,
            "{mappings} x {permissions}, pages of {low} to {high} kB, {huge_kb} kB huge, {eligible} for THP"
        )
    }
}

/// `7f0000000000-7f0000200000`.
fn addresses(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Folios of a range of memory, by their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Folios {
    /// Pages that are mapped.
    pub(crate) present: u64,
    /// First pages of large folios.
    pub(crate) heads: u64,
    /// Further pages of large folios.
    pub(crate) tails: u64,
    /// Pages of folios that are huge pages, transparent or of hugetlbfs.
    pub(crate) huge: u64,
}

impl Folios {
    fn add(&mut self, flags: u64) {
        self.heads += u64::from(flags & COMPOUND_HEAD != 0);
        self.tails += u64::from(flags & COMPOUND_TAIL != 0);
        self.huge += u64::from(flags & (HUGE | THP) != 0);
    }

    /// Bytes of a folio on average; `None` without pages.
    pub(crate) fn mean_bytes(&self) -> Option<f64> {
        // A folio whose first page is mapped elsewhere counts for nothing, which whole files do not have.
        let folios = self.present.saturating_sub(self.tails);
        (folios > 0).then(|| (self.present * PAGE as u64) as f64 / folios as f64)
    }
}

impl fmt::Display for Folios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { present, heads, tails, huge } = self;
        write!(f, "{present} present, {heads} heads, {tails} tails, {huge} huge")
    }
}

/// What `/sys/kernel/mm/transparent_hugepage/` says, as a number: 0 is never, or a kernel without
/// huge pages; 1 is on request; 2 is always.
pub(crate) fn transparent_huge_pages() -> f64 {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    huge_page_mode(&text)
}

fn huge_page_mode(text: &str) -> f64 {
    match text.split(['[', ']']).nth(1) {
        Some("always") => 2.0,
        Some("madvise") => 1.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pages::Mapping;

    const TEXT: &str = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 1031 /dev/zero (deleted)
Size:               2048 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
THPeligible:           1
VmFlags: rd wr sh mr mw me ms sd hg
7f0000200000-7f0000400000 r--p 00000000 00:00 0
KernelPageSize:     2048 kB
MMUPageSize:           4 kB
AnonHugePages:         8 kB
";

    #[test]
    fn smaps_are_added_up_over_the_range_and_only_there() {
        let one = Smaps::parse(TEXT, &(0x7f00_0000_0000..0x7f00_0020_0000));
        assert_eq!(one.to_string(), "1 x rw-s, pages of 4 to 4 kB, 2048 kB huge, eligible for THP");
        let both = Smaps::parse(TEXT, &(0x7f00_0010_0000..0x7f00_0020_1000));
        assert_eq!(both.to_string(), "2 x rw-s, pages of 4 to 2048 kB, 2056 kB huge, eligible for THP");
        assert_eq!(Smaps::parse(TEXT, &(0..1)), Smaps::default());
        let partial = TEXT.replace("MMUPageSize:           4 kB\nAnonHugePages:         0 kB\n", "");
        assert_eq!(Smaps::parse(&partial, &(0x7f00_0000_0000..0x7f00_0020_0000)).page_kb, (0, 0));
    }

    #[test]
    fn flags_are_counted_by_page_and_folios_by_their_first() {
        let mut folios = Folios { present: 6, ..Folios::default() };
        for flags in
            [COMPOUND_HEAD | THP, COMPOUND_TAIL | THP, COMPOUND_TAIL | THP, COMPOUND_TAIL | THP, 0, 0]
        {
            folios.add(flags);
        }
        assert_eq!(folios.to_string(), "6 present, 1 heads, 3 tails, 4 huge");
        assert_eq!(folios.mean_bytes(), Some(8192.0));
        assert_eq!(Folios::default().mean_bytes(), None);
    }

    #[test]
    fn modes_are_what_is_in_brackets() {
        for (text, mode) in [
            ("always madvise [never]\n", 0.0),
            ("always [madvise] never\n", 1.0),
            ("[always] madvise never\n", 2.0),
            ("", 0.0),
        ] {
            assert_eq!(huge_page_mode(text), mode, "{text}");
        }
    }

    #[test]
    fn a_page_is_present_once_it_was_touched() {
        let mut inspector = Inspector::open().expect("smaps");
        let mut mapping = Mapping::shared(16 * PAGE, PAGE).expect("memory");
        assert_eq!(inspector.smaps(&mapping.range()).expect("reads").permissions, "rw-s");
        match inspector.folios(&mapping.range()) {
            Ok(folios) => assert_eq!(folios.present, 0),
            Err(error) => return eprintln!("skipped: {error}"),
        }
        mapping.write_touch();
        assert_eq!(inspector.folios(&mapping.range()).expect("reads").present, 16);
    }
}
