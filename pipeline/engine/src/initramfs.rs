//! Writes the archive that a kernel unpacks into its first root folder: a cpio in the `newc` format,
//! whose bytes depend on its entries alone. Read [`Entry`] first, then [`write()`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Cursor, Read, Write};

use camino::{Utf8Path, Utf8PathBuf};
use cpio::NewcBuilder;
use cpio::newc::{ModeFileType, trailer};
use thiserror::Error;

use crate::layout::Context;

/// The kernel reads archives one after the other; each begins at a multiple of this (512 is what
/// cpio programs use, 4 is what the kernel needs).
const BLOCK: u64 = 512;
/// The console, as the kernel opens it for init (Documentation/admin-guide/devices.txt).
const CONSOLE: Content = Content::CharacterDevice { major: 5, minor: 1 };

/// One file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Absolute path in the guest.
    pub path: Utf8PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// What it holds.
    pub content: Content,
}

/// What a file of the archive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The bytes of a file of the host.
    Host(Utf8PathBuf),
    /// A link to another path in the guest.
    Symlink(String),
    /// Nothing: it is a folder.
    Folder,
    /// A device node.
    CharacterDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// Why an archive could not be written.
#[derive(Debug, Error)]
pub enum InitramfsError {
    /// A path that no guest can have.
    #[error("`{path}` is no path for the guest; it must be absolute, without `..`")]
    Path {
        /// The path.
        path: Utf8PathBuf,
    },
    /// Two entries for one path.
    #[error("two files claim the guest's {path}; leave one of them out")]
    Twice {
        /// The path.
        path: Utf8PathBuf,
    },
    /// A file that the format cannot hold.
    #[error("{path} has {bytes} bytes; a cpio archive holds files below 4 GiB")]
    TooLarge {
        /// The path in the guest.
        path: Utf8PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A file of the host changed while it was read.
    #[error("{path} changed while it was read; run again when nothing writes to it")]
    Changed {
        /// The file of the host.
        path: Utf8PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// `read`, `write`.
        action: &'static str,
        /// Which file.
        path: Utf8PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The user asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

impl Entry {
    /// A file with these bytes.
    #[must_use]
    pub fn bytes(path: impl Into<Utf8PathBuf>, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode, content: Content::Bytes(bytes.into()) }
    }

    /// A copy of a file of the host.
    #[must_use]
    pub fn host(path: impl Into<Utf8PathBuf>, mode: u32, file: impl Into<Utf8PathBuf>) -> Self {
        Self { path: path.into(), mode, content: Content::Host(file.into()) }
    }

    /// An empty folder.
    #[must_use]
    pub fn folder(path: impl Into<Utf8PathBuf>) -> Self {
        Self { path: path.into(), mode: 0o755, content: Content::Folder }
    }
}

/// Writes a whole root to `out`: `entries`, their parent folders, and `/dev/console`. Sorted, owned
/// by root and dated 1970, so that the same entries make the same bytes. Returns the size.
///
/// # Errors
/// When an entry cannot be read or is no entry for a guest, or `out` cannot be written.
pub fn write(ctx: &Context<'_>, entries: &[Entry], out: &Utf8Path) -> Result<u64, InitramfsError> {
    let console = Entry { path: "/dev/console".into(), mode: 0o600, content: CONSOLE };
    let with_console: Vec<&Entry> = entries.iter().chain([&console]).collect();
    let failed = |source| InitramfsError::Io { action: "write", path: out.to_owned(), source };
    let folder = out.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mut counted = Counted { inner: BufWriter::new(file), bytes: 0 };
    archive(&with_console, &mut counted, &|| ctx.cancel.is_requested()).map_err(|error| error.of(out))?;
    let file = counted.inner.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(file.path(), readable).map_err(failed)?;
    file.persist(out).map_err(|error| failed(error.error))?;
    Ok(counted.bytes)
}

/// One more archive, to be appended to a root made by [`write()`]: `entries` and their parent folders,
/// nothing else.
///
/// # Errors
/// As [`write()`].
pub fn segment(entries: &[Entry]) -> Result<Vec<u8>, InitramfsError> {
    let mut counted = Counted { inner: Vec::new(), bytes: 0 };
    let all: Vec<&Entry> = entries.iter().collect();
    archive(&all, &mut counted, &|| false).map_err(|error| error.of(Utf8Path::new("memory")))?;
    Ok(counted.inner)
}

/// A failure of the archive or of the output, which does not know its own name.
enum Failure {
    Entry(InitramfsError),
    Output(io::Error),
}

impl Failure {
    fn of(self, out: &Utf8Path) -> InitramfsError {
        match self {
            Self::Entry(error) => error,
            Self::Output(source) => InitramfsError::Io { action: "write", path: out.to_owned(), source },
        }
    }
}

impl From<InitramfsError> for Failure {
    fn from(error: InitramfsError) -> Self {
        Self::Entry(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn archive<W: Write>(
    entries: &[&Entry],
    out: &mut Counted<W>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let folder = Entry::folder("/");
    for (number, (path, entry)) in (1..).zip(sorted(entries, &folder)?) {
        if stop() {
            return Err(InitramfsError::Cancelled.into());
        }
        append(out, number, path, entry)?;
    }
    trailer(&mut *out)?;
    let padding = out.bytes.next_multiple_of(BLOCK) - out.bytes;
    out.write_all(&[0; BLOCK as usize][..padding as usize])?;
    out.flush()?;
    Ok(())
}

/// Every entry and every missing parent, each parent before its children.
fn sorted<'e>(
    entries: &[&'e Entry],
    folder: &'e Entry,
) -> Result<BTreeMap<&'e Utf8Path, &'e Entry>, InitramfsError> {
    let mut all: BTreeMap<&Utf8Path, &Entry> = BTreeMap::new();
    for entry in entries {
        let wrong = || InitramfsError::Path { path: entry.path.clone() };
        let path = entry.path.strip_prefix("/").map_err(|_| wrong())?;
        let normal = path.components().all(|part| matches!(part, camino::Utf8Component::Normal(_)));
        if path.as_str().is_empty() || !normal || path.as_str().contains('\0') {
            return Err(wrong());
        }
        if all.insert(path, entry).is_some_and(|other| *other != **entry) {
            return Err(InitramfsError::Twice { path: entry.path.clone() });
        }
    }
    for entry in entries {
        for parent in entry.path.strip_prefix("/").into_iter().flat_map(Utf8Path::ancestors).skip(1) {
            if !parent.as_str().is_empty() {
                let known = all.entry(parent).or_insert(folder);
                if known.content != Content::Folder {
                    return Err(InitramfsError::Twice { path: known.path.clone() });
                }
            }
        }
    }
    Ok(all)
}

fn append<W: Write>(
    out: &mut Counted<W>,
    number: u32,
    path: &Utf8Path,
    entry: &Entry,
) -> Result<(), Failure> {
    let header = |kind: ModeFileType, links: u32| {
        NewcBuilder::new(path.as_str())
            .ino(number)
            .nlink(links)
            .mode(entry.mode & 0o7777)
            .set_mode_file_type(kind)
    };
    let too_large = |bytes| InitramfsError::TooLarge { path: entry.path.clone(), bytes };
    let mut copy = |kind: ModeFileType, input: &mut dyn Read, bytes: u64| -> Result<u64, Failure> {
        let size = u32::try_from(bytes).map_err(|_| too_large(bytes))?;
        let mut writer = header(kind, 1).write(&mut *out, size);
        let copied = io::copy(&mut input.take(bytes), &mut writer)?;
        writer.finish()?;
        Ok(copied)
    };
    match &entry.content {
        Content::Bytes(bytes) => {
            copy(ModeFileType::Regular, &mut Cursor::new(bytes), bytes.len() as u64)?;
        }
        Content::Symlink(link) => {
            copy(ModeFileType::Symlink, &mut Cursor::new(link), link.len() as u64)?;
        }
        Content::Host(path) => {
            let failed = |source| InitramfsError::Io { action: "read", path: path.clone(), source };
            let file = File::open(path).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len();
            if copy(ModeFileType::Regular, &mut BufReader::new(file), bytes)? != bytes {
                return Err(InitramfsError::Changed { path: path.clone() }.into());
            }
        }
        Content::Folder => {
            header(ModeFileType::Directory, 2).write(&mut *out, 0).finish()?;
        }
        Content::CharacterDevice { major, minor } => {
            let node = header(ModeFileType::Char, 1).rdev_major(*major).rdev_minor(*minor);
            node.write(&mut *out, 0).finish()?;
        }
    }
    Ok(())
}

/// A writer that knows how much went through it.
struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        // The entries of the cpio crate flush one by one; the file is flushed once, at its end.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::layout::Cache;

    fn build(entries: &[Entry]) -> Result<Vec<u8>, InitramfsError> {
        let folder = tempfile::tempdir().expect("folder");
        let root = Utf8Path::from_path(folder.path()).expect("UTF-8");
        let cache = Cache::open(&root.join("cache")).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let out = root.join("initramfs");
        let size = write(&ctx, entries, &out)?;
        let bytes = fs::read(out).expect("read");
        assert_eq!(size, bytes.len() as u64);
        Ok(bytes)
    }

    /// Name, mode and content of every entry.
    fn list(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let mut reader = cpio::NewcReader::new(bytes).expect("entry");
            if reader.entry().is_trailer() {
                return entries;
            }
            assert_eq!((reader.entry().mtime(), reader.entry().uid(), reader.entry().gid()), (0, 0, 0));
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).expect("content");
            entries.push((name, mode, content));
            bytes = reader.finish().expect("next");
        }
    }

    fn sample() -> Vec<Entry> {
        vec![
            Entry::bytes("/usr/sbin/mkfs.xfs", 0o755, *b"program"),
            Entry::bytes("/init", 0o755, *b"init!"),
            Entry { path: "/lib".into(), mode: 0o777, content: Content::Symlink("usr/lib".into()) },
            Entry::folder("/proc"),
        ]
    }

    #[test]
    fn a_root_is_sorted_has_parents_and_a_console() {
        let entries = list(&build(&sample()).expect("build"));
        let names: Vec<(&str, u32)> = entries.iter().map(|(name, mode, _)| (name.as_str(), *mode)).collect();
        let expected = [
            ("dev", 0o040_755),
            ("dev/console", 0o020_600),
            ("init", 0o100_755),
            ("lib", 0o120_777),
            ("proc", 0o040_755),
            ("usr", 0o040_755),
            ("usr/sbin", 0o040_755),
            ("usr/sbin/mkfs.xfs", 0o100_755),
        ];
        assert_eq!(names, expected);
        assert_eq!(entries[2].2, b"init!");
    }

    #[test]
    fn the_order_of_entries_does_not_change_a_byte() {
        let mut backwards = sample();
        backwards.reverse();
        let bytes = build(&sample()).expect("build");
        assert_eq!(bytes, build(&backwards).expect("build"));
        assert_eq!(bytes.len() % 512, 0);
    }

    #[test]
    fn a_host_file_is_copied_and_a_missing_one_named() {
        let file = tempfile::NamedTempFile::new().expect("file");
        fs::write(file.path(), "from the host").expect("write");
        let path = Utf8Path::from_path(file.path()).expect("UTF-8");
        let entries = list(&build(&[Entry::host("/x", 0o644, path)]).expect("build"));
        assert!(entries.contains(&("x".into(), 0o100_644, b"from the host".to_vec())));
        let error = build(&[Entry::host("/x", 0o644, "/nonexistent")]).expect_err("missing");
        assert!(error.to_string().contains("cannot read /nonexistent"), "{error}");
    }

    #[test]
    fn a_segment_holds_its_file_alone_and_fills_a_block() {
        let bytes = segment(&[Entry::bytes("/job.json", 0o644, *b"{}")]).expect("segment");
        assert_eq!(bytes.len(), 512);
        assert_eq!(list(&bytes), [("job.json".to_owned(), 0o100_644, b"{}".to_vec())]);
    }

    #[test]
    fn paths_that_no_guest_can_have_are_refused() {
        for path in ["init", "/../x", "/", ""] {
            assert!(
                matches!(segment(&[Entry::bytes(path, 0, *b"")]), Err(InitramfsError::Path { .. })),
                "{path}"
            );
        }
        let twice = [Entry::bytes("/x", 0o644, *b"1"), Entry::bytes("/x", 0o644, *b"2")];
        assert!(matches!(segment(&twice), Err(InitramfsError::Twice { .. })));
        let below = [Entry::bytes("/x", 0o644, *b"1"), Entry::bytes("/x/y", 0o644, *b"2")];
        assert!(matches!(segment(&below), Err(InitramfsError::Twice { .. })));
    }
}
