//! Reads tarballs and Debian packages, from whoever made them: nothing is ever written outside the
//! target folder. Read [`unpack_tar`] and [`unpack_deb`] first; both return an [`Unpacked`].

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use liblzma::stream::{CONCATENATED, Stream};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use thiserror::Error;

use crate::layout::Context;

/// A decoder that wants more memory than this is refused. `xz -9` needs 65 MiB.
const DECODER_MEMORY: u64 = 512 << 20;
/// Input buffer of decoders.
const BUFFER: usize = 1 << 18;
/// How often progress is told.
const TELL: Duration = Duration::from_millis(200);
/// The longest control file that is read.
const CONTROL_LIMIT: u64 = 1 << 20;

/// What came out of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Regular files and links.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
}

/// Why an archive could not be read.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// `read`, `create`.
        action: &'static str,
        /// Which file.
        path: Utf8PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The archive is cut off or damaged.
    #[error("{path} is cut off or damaged: {source}; delete it and fetch it again")]
    Damaged {
        /// The archive.
        path: Utf8PathBuf,
        /// What the decoder said.
        source: io::Error,
    },
    /// The file is no archive of a known kind.
    #[error("{path} is not {expected}: {found}")]
    Format {
        /// The file.
        path: Utf8PathBuf,
        /// `a tar archive`, `a Debian package`.
        expected: &'static str,
        /// What was found instead, and what to do.
        found: String,
    },
    /// A member would end up outside the target, or is of a kind that has no place here.
    #[error("{path} holds `{member}`, {reason}; it was not unpacked: check where the archive comes from")]
    Hostile {
        /// The archive.
        path: Utf8PathBuf,
        /// The member.
        member: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The archive does not have what was looked for.
    #[error("{path} does not hold {wanted}")]
    Missing {
        /// The archive.
        path: Utf8PathBuf,
        /// What was looked for.
        wanted: String,
    },
    /// The user asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// Unpacks the tar archive at `path` (plain, .xz, .zst, .lzma or .gz, told apart by content) into
/// `target`, without the first `strip` components of each name. Progress is told under `stage`.
///
/// # Errors
/// When the archive cannot be read, is damaged, or has a member that leads out of the target.
pub fn unpack_tar(
    ctx: &Context<'_>,
    stage: &str,
    path: &Utf8Path,
    strip: usize,
    target: &Utf8Path,
) -> Result<Unpacked, ArchiveError> {
    let reader = Watched::open(ctx, stage, path)?;
    let cancel = || ctx.cancel.is_requested();
    let decoder = decoder(path, Box::new(reader)).map_err(|error| cancelled(error, &cancel))?;
    let rules = Rules { strip, absolute_links: Absolute::Refused, filter: &|_| true };
    unpack(path, decoder, &rules, target).map_err(|error| cancelled(error, &cancel))
}

/// Unpacks those files of the Debian package at `path` that `filter` wants (paths without a
/// leading slash) into `target`. Absolute links are rewritten to lead to the same place below
/// `target`.
///
/// # Errors
/// As [`unpack_tar`].
pub fn unpack_deb(
    path: &Utf8Path,
    filter: impl Fn(&Utf8Path) -> bool,
    target: &Utf8Path,
) -> Result<Unpacked, ArchiveError> {
    let data = deb_member(path, "data.tar")?;
    let rules = Rules { strip: 0, absolute_links: Absolute::Rebased, filter: &filter };
    unpack(path, decoder(path, Box::new(data))?, &rules, target)
}

/// Unpacks the tar archive that lies in the Debian package at `path` as the first file that
/// `wanted` accepts, as `linux-source-*` packages hold one. Returns the name of that file too.
///
/// # Errors
/// As [`unpack_tar`]; also when there is no such file.
pub fn unpack_tar_in_deb(
    ctx: &Context<'_>,
    stage: &str,
    path: &Utf8Path,
    wanted: impl Fn(&Utf8Path) -> bool,
    strip: usize,
    target: &Utf8Path,
) -> Result<(Utf8PathBuf, Unpacked), ArchiveError> {
    let cancel = || ctx.cancel.is_requested();
    let inner = || {
        let data = Watched::wrap(ctx, stage, path, deb_member(path, "data.tar")?)?;
        let mut archive = tar::Archive::new(decoder(path, Box::new(data))?);
        let damaged = |source| ArchiveError::Damaged { path: path.to_owned(), source };
        for entry in archive.entries().map_err(damaged)? {
            let entry = entry.map_err(damaged)?;
            let name = member_name(path, &entry)?;
            if entry.header().entry_type().is_file() && wanted(&name) {
                let rules = Rules { strip, absolute_links: Absolute::Refused, filter: &|_| true };
                let unpacked = unpack(path, decoder(path, Box::new(entry))?, &rules, target)?;
                return Ok((name, unpacked));
            }
        }
        Err(ArchiveError::Missing { path: path.to_owned(), wanted: "a source archive".into() })
    };
    inner().map_err(|error| cancelled(error, &cancel))
}

/// The `control` file of the Debian package at `path`.
///
/// # Errors
/// When it is no Debian package or is damaged.
pub fn deb_control(path: &Utf8Path) -> Result<String, ArchiveError> {
    let control = deb_member(path, "control.tar")?;
    let mut archive = tar::Archive::new(decoder(path, Box::new(control))?);
    let damaged = |source| ArchiveError::Damaged { path: path.to_owned(), source };
    for entry in archive.entries().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        if member_name(path, &entry)? == "control" {
            let mut text = Vec::new();
            entry.take(CONTROL_LIMIT).read_to_end(&mut text).map_err(damaged)?;
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
    }
    Err(ArchiveError::Missing { path: path.to_owned(), wanted: "a control file".into() })
}

/// Decompresses `bytes` in one go, when they begin like .xz, .zst, .lzma or .gz; returns them as
/// they are otherwise. What follows the first compressed stream is ignored.
///
/// # Errors
/// When the stream is damaged or larger than `limit`.
pub fn decompress(bytes: &[u8], limit: u64) -> io::Result<Vec<u8>> {
    let Some(kind) = Compression::of(bytes) else {
        return Ok(bytes.to_vec());
    };
    let mut out = Vec::new();
    kind.reader(Box::new(bytes), Extent::OneStream)?.take(limit + 1).read_to_end(&mut out)?;
    if out.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes when unpacked")));
    }
    Ok(out)
}

/// A way to compress, known by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Xz,
    Zstd,
    Gzip,
    Lzma,
    Bzip2,
    Lz4,
    Lzo,
}

/// How much of the input belongs to the compressed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All of it, in one or more streams.
    Everything,
    /// The first stream; what follows is something else.
    OneStream,
}

impl Compression {
    fn of(bytes: &[u8]) -> Option<Self> {
        let known: [(&[u8], Self); 7] = [
            (b"\xfd7zXZ\0", Self::Xz),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
            (b"\x1f\x8b", Self::Gzip),
            (b"\x5d\0\0", Self::Lzma),
            (b"BZh", Self::Bzip2),
            (b"\x02\x21\x4c\x18", Self::Lz4),
            (b"\x89LZO", Self::Lzo),
        ];
        known.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| *kind)
    }

    fn reader<'r>(self, input: Box<dyn Read + 'r>, extent: Extent) -> io::Result<Box<dyn Read + 'r>> {
        let flags = if extent == Extent::Everything { CONCATENATED } else { 0 };
        let input = BufReader::with_capacity(BUFFER, input);
        match self {
            Self::Xz => {
                let stream = Stream::new_stream_decoder(DECODER_MEMORY, flags)?;
                Ok(Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream)))
            }
            Self::Lzma => {
                let stream = Stream::new_lzma_decoder(DECODER_MEMORY)?;
                Ok(Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream)))
            }
            Self::Zstd => Ok(Box::new(ZstdFrames { state: ZstdState::Between(input), extent })),
            Self::Gzip => gunzip(input, extent),
            Self::Bzip2 | Self::Lz4 | Self::Lzo => {
                let text = format!("compressed with {self:?}, which is not read here; recompress it as .xz");
                Err(io::Error::new(io::ErrorKind::Unsupported, text))
            }
        }
    }
}

/// Zstandard frames one after the other (RFC 8878, section 3); the decoder itself knows one.
struct ZstdFrames<R: BufRead> {
    state: ZstdState<R>,
    extent: Extent,
}

enum ZstdState<R: BufRead> {
    /// Before a frame, or at the end.
    Between(R),
    Inside(Box<StreamingDecoder<R, FrameDecoder>>),
    Done,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, ZstdState::Done) {
                ZstdState::Between(mut input) => {
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(input).map_err(io::Error::other)?;
                    self.state = ZstdState::Inside(Box::new(decoder));
                }
                ZstdState::Inside(mut decoder) => {
                    let count = decoder.read(out)?;
                    if count > 0 || out.is_empty() {
                        self.state = ZstdState::Inside(decoder);
                        return Ok(count);
                    }
                    if self.extent == Extent::Everything {
                        self.state = ZstdState::Between(decoder.into_inner());
                    }
                }
                ZstdState::Done => return Ok(0),
            }
        }
    }
}

/// The one place that knows gzip.
fn gunzip<'r>(input: impl BufRead + 'r, extent: Extent) -> io::Result<Box<dyn Read + 'r>> {
    Ok(match extent {
        Extent::Everything => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Extent::OneStream => Box::new(flate2::bufread::GzDecoder::new(input)),
    })
}

/// What to do with a link to an absolute path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absolute {
    /// Take it for an attack.
    Refused,
    /// Let it lead to that path below the target.
    Rebased,
}

/// How to treat members.
struct Rules<'r> {
    strip: usize,
    absolute_links: Absolute,
    filter: &'r dyn Fn(&Utf8Path) -> bool,
}

/// Puts the right decoder before `input`, or fails when it is no tar archive.
fn decoder<'r>(path: &Utf8Path, input: Box<dyn Read + 'r>) -> Result<Box<dyn Read + 'r>, ArchiveError> {
    let io_error = |source| ArchiveError::Io { action: "read", path: path.to_owned(), source };
    let format =
        |found: String| ArchiveError::Format { path: path.to_owned(), expected: "a tar archive", found };
    // The magic of a tar archive lies at byte 257; a buffered file gives 512 bytes at once.
    let mut input = BufReader::with_capacity(BUFFER, input);
    let mut head = Vec::new();
    input.by_ref().take(512).read_to_end(&mut head).map_err(io_error)?;
    let kind = Compression::of(&head);
    let is_tar = head.get(257..262) == Some(b"ustar");
    let input = io::Cursor::new(head).chain(input);
    match kind {
        Some(kind) => kind.reader(Box::new(input), Extent::Everything).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => format(error.to_string()),
            _ => io_error(error),
        }),
        None if is_tar => Ok(Box::new(input)),
        None => Err(format(
            "its first bytes are of no known kind; give a .tar, .tar.xz, .tar.zst or .tar.gz".into(),
        )),
    }
}

/// The name of a tar member as a clean relative path; empty for the root itself.
fn member_name<R: Read>(path: &Utf8Path, entry: &tar::Entry<'_, R>) -> Result<Utf8PathBuf, ArchiveError> {
    let bytes = entry.path_bytes();
    let hostile = |reason: &str| ArchiveError::Hostile {
        path: path.to_owned(),
        member: String::from_utf8_lossy(&bytes).into_owned(),
        reason: reason.to_owned(),
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| hostile("a name that is not UTF-8"))?;
    if text.contains('\0') {
        return Err(hostile("a name with a NUL byte"));
    }
    let mut name = Utf8PathBuf::new();
    for part in Utf8Path::new(text).components() {
        match part {
            Utf8Component::CurDir => {}
            Utf8Component::Normal(part) => name.push(part),
            Utf8Component::ParentDir => return Err(hostile("a name with `..`")),
            Utf8Component::RootDir | Utf8Component::Prefix(_) => return Err(hostile("an absolute name")),
        }
    }
    Ok(name)
}

fn unpack(
    path: &Utf8Path,
    input: Box<dyn Read + '_>,
    rules: &Rules<'_>,
    target: &Utf8Path,
) -> Result<Unpacked, ArchiveError> {
    let damaged = |source| ArchiveError::Damaged { path: path.to_owned(), source };
    let create =
        |path: &Utf8Path, source| ArchiveError::Io { action: "create", path: path.to_owned(), source };
    let mut archive = tar::Archive::new(Tail::new(input));
    let mut folders = Folders::new(target).map_err(|source| create(target, source))?;
    let mut unpacked = Unpacked::default();
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let full = member_name(path, &entry)?;
        let hostile = |reason: String| ArchiveError::Hostile {
            path: path.to_owned(),
            member: full.to_string(),
            reason,
        };
        let name: Utf8PathBuf = full.components().skip(rules.strip).collect();
        let kind = entry.header().entry_type();
        if name.as_str().is_empty() || !(rules.filter)(&name) {
            continue;
        }
        if kind.is_dir() {
            folders.make(&name).map_err(|error| hostile(error.to_string()))?;
            continue;
        }
        let parent = name.parent().unwrap_or(Utf8Path::new(""));
        folders.make(parent).map_err(|error| hostile(error.to_string()))?;
        let place = target.join(&name);
        if kind.is_symlink() {
            let link = link_name(&entry).map_err(|reason| hostile(reason.to_owned()))?;
            let link = contained_link(&name, &link, rules).map_err(hostile)?;
            replace(&place).and_then(|()| symlink(&link, &place)).map_err(|source| create(&place, source))?;
        } else if kind.is_hard_link() {
            let link = link_name(&entry).map_err(|reason| hostile(reason.to_owned()))?;
            let source = hard_link_source(&link, rules, &folders).map_err(hostile)?;
            replace(&place)
                .and_then(|()| fs::hard_link(target.join(source), &place))
                .map_err(|source| create(&place, source))?;
        } else if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() {
            replace(&place).map_err(|source| create(&place, source))?;
            unpacked.bytes += entry.size();
            entry.unpack(&place).map_err(|error| match error.raw_os_error() {
                Some(_) => create(&place, error),
                None => damaged(error),
            })?;
        } else if kind.is_pax_global_extensions() {
            continue;
        } else {
            return Err(hostile(format!("a special file ({kind:?})")));
        }
        unpacked.files += 1;
    }
    let mut rest = archive.into_inner();
    if !rest.ends_with_zeros() {
        return Err(damaged(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the end mark of the archive is missing",
        )));
    }
    // Reading to the end makes the decoder check its checksums.
    io::copy(&mut rest, &mut io::sink()).map_err(damaged)?;
    Ok(unpacked)
}

fn link_name<R: Read>(entry: &tar::Entry<'_, R>) -> Result<String, &'static str> {
    let bytes = entry.link_name_bytes().ok_or("a link to nothing")?;
    match String::from_utf8(bytes.into_owned()) {
        Ok(text) if text.is_empty() => Err("a link to nothing"),
        Ok(text) if text.contains('\0') => Err("a link to a name with a NUL byte"),
        Ok(text) => Ok(text),
        Err(_) => Err("a link to a name that is not UTF-8"),
    }
}

/// Where a symbolic link may lead, as written into it, or why it may not.
fn contained_link(name: &Utf8Path, link: &str, rules: &Rules<'_>) -> Result<String, String> {
    let depth = name.components().count().saturating_sub(1);
    let outside = || format!("a link that leads out of the archive to `{link}`");
    if let Some(rest) = link.strip_prefix('/') {
        if rules.absolute_links == Absolute::Refused {
            return Err(outside());
        }
        stays_inside(0, rest).then_some(()).ok_or_else(outside)?;
        return Ok(format!("{}{}", "../".repeat(depth), rest.trim_start_matches('/')));
    }
    // In a package `..` at the root stays at the root, but a name that relies on it is no name
    // that Debian's tools make.
    stays_inside(depth, link).then(|| link.to_owned()).ok_or_else(outside)
}

/// Whether a relative path, followed from `depth` folders below the root, stays below the root.
/// `..` is accepted at the front only: behind a name, which may be a link, it could lead anywhere.
fn stays_inside(depth: usize, path: &str) -> bool {
    let mut parts = Path::new(path).components().filter(|part| *part != Component::CurDir).peekable();
    let mut up = 0;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        up += 1;
    }
    up <= depth && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn hard_link_source(link: &str, rules: &Rules<'_>, folders: &Folders) -> Result<Utf8PathBuf, String> {
    let outside = || format!("a hard link to `{link}`, which is not in the archive");
    let mut source = Utf8PathBuf::new();
    for part in Utf8Path::new(link).components() {
        match part {
            Utf8Component::CurDir => {}
            Utf8Component::Normal(part) => source.push(part),
            _ => return Err(outside()),
        }
    }
    let source: Utf8PathBuf = source.components().skip(rules.strip).collect();
    let parent = source.parent().ok_or_else(outside)?;
    let real =
        folders.knows(parent) && folders.root.join(&source).symlink_metadata().is_ok_and(|it| it.is_file());
    real.then_some(source).ok_or_else(outside)
}

/// Makes room for a new file: what was there by that name in an earlier member goes.
fn replace(place: &Utf8Path) -> io::Result<()> {
    match fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Folders below the target that are known to be real ones, not links to elsewhere.
struct Folders {
    root: Utf8PathBuf,
    known: HashSet<Utf8PathBuf>,
}

impl Folders {
    fn new(root: &Utf8Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        Ok(Self { root: root.to_owned(), known: HashSet::from([Utf8PathBuf::new()]) })
    }

    fn knows(&self, name: &Utf8Path) -> bool {
        self.known.contains(name)
    }

    fn make(&mut self, name: &Utf8Path) -> Result<(), String> {
        if self.knows(name) {
            return Ok(());
        }
        if let Some(parent) = name.parent() {
            self.make(parent)?;
        }
        let place = self.root.join(name);
        match fs::create_dir(&place) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !place.symlink_metadata().is_ok_and(|it| it.is_dir()) {
                    return Err(format!("which goes through `{name}`, a link or a file"));
                }
            }
            Err(error) => return Err(format!("for which no folder could be made: {error}")),
        }
        self.known.insert(name.to_owned());
        Ok(())
    }
}

/// Remembers whether the last 512 bytes read were zeros, as the end mark of a tar archive is; the
/// tar crate takes an archive that simply stops for a complete one.
struct Tail<R> {
    inner: R,
    zeros: usize,
}

impl<R> Tail<R> {
    fn new(inner: R) -> Self {
        Self { inner, zeros: 0 }
    }

    fn ends_with_zeros(&self) -> bool {
        self.zeros >= 512
    }
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        match buffer[..n].iter().rposition(|byte| *byte != 0) {
            Some(last) => self.zeros = n - last - 1,
            None => self.zeros += n,
        }
        Ok(n)
    }
}

/// An input that tells progress and stops when the user asks to.
struct Watched<'c, R> {
    inner: R,
    ctx: &'c Context<'c>,
    stage: String,
    name: String,
    done: u64,
    total: u64,
    told: Instant,
}

impl<'c> Watched<'c, File> {
    fn open(ctx: &'c Context<'c>, stage: &str, path: &Utf8Path) -> Result<Self, ArchiveError> {
        let file = File::open(path).map_err(|source| ArchiveError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        Watched::wrap(ctx, stage, path, file)
    }
}

impl<'c, R: Read> Watched<'c, R> {
    fn wrap(ctx: &'c Context<'c>, stage: &str, path: &Utf8Path, inner: R) -> Result<Self, ArchiveError> {
        let total = fs::metadata(path)
            .map_err(|source| ArchiveError::Io { action: "read", path: path.to_owned(), source })?
            .len();
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok(Self { inner, ctx, stage: stage.to_owned(), name, done: 0, total, told: Instant::now() })
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ctx.cancel.is_requested() {
            return Err(io::Error::other("stopped on request"));
        }
        let n = self.inner.read(buffer)?;
        self.done += n as u64;
        if self.told.elapsed() >= TELL {
            self.ctx.progress(&self.stage, self.done, Some(self.total), &self.name);
            self.told = Instant::now();
        }
        Ok(n)
    }
}

/// A read that failed because the user asked to stop is no damage.
fn cancelled(error: ArchiveError, is_requested: &dyn Fn() -> bool) -> ArchiveError {
    if is_requested() { ArchiveError::Cancelled } else { error }
}

/// The bytes of the member of a Debian package whose name begins with `prefix` (deb(5)).
fn deb_member(path: &Utf8Path, prefix: &str) -> Result<io::Take<BufReader<File>>, ArchiveError> {
    let format =
        |found: String| ArchiveError::Format { path: path.to_owned(), expected: "a Debian package", found };
    let damaged = |source| ArchiveError::Damaged { path: path.to_owned(), source };
    let file = File::open(path).map_err(|source| ArchiveError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let length = file.metadata().map_err(damaged)?.len();
    let mut file = BufReader::with_capacity(BUFFER, file);
    let mut magic = [0; 8];
    if file.read_exact(&mut magic).is_err() || &magic != b"!<arch>\n" {
        return Err(format("it does not begin as one; give a .deb file".into()));
    }
    let mut position = magic.len() as u64;
    let mut first = true;
    while position < length {
        let mut header = [0; 60];
        file.read_exact(&mut header).map_err(damaged)?;
        position += header.len() as u64;
        let field = |range: std::ops::Range<usize>| String::from_utf8_lossy(&header[range]).trim().to_owned();
        let name = field(0..16).trim_end_matches('/').to_owned();
        let size: u64 =
            field(48..58).parse().map_err(|_| format(format!("the size of `{name}` is no number")))?;
        if &header[58..] != b"`\n" {
            return Err(format(format!("the header of `{name}` is broken")));
        }
        if first && name != "debian-binary" {
            return Err(format(format!("its first member is `{name}`, not `debian-binary`")));
        }
        first = false;
        if size > length - position {
            let text = format!("`{name}` should have {size} bytes, {} are there", length - position);
            return Err(damaged(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
        }
        if name == prefix || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')) {
            return Ok(file.take(size));
        }
        let padded = size + size % 2;
        file.seek_relative(i64::try_from(padded).map_err(|_| format("a member is too large".into()))?)
            .map_err(damaged)?;
        position += padded;
    }
    Err(ArchiveError::Missing { path: path.to_owned(), wanted: format!("a member `{prefix}`") })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::layout::Cache;

    /// `bytes` as one zstd frame.
    pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    /// One member of a test archive.
    pub(crate) enum Member<'m> {
        File(&'m str, &'m [u8]),
        Program(&'m str, &'m [u8]),
        Link(&'m str, &'m str),
        HardLink(&'m str, &'m str),
        Device(&'m str),
    }

    /// A tar archive with names exactly as given, however bad.
    pub(crate) fn tar_of(members: &[Member<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for member in members {
            let mut header = tar::Header::new_ustar();
            let (name, content, kind, link, mode) = match member {
                Member::File(name, content) => (name, *content, tar::EntryType::Regular, "", 0o644),
                Member::Program(name, content) => (name, *content, tar::EntryType::Regular, "", 0o755),
                Member::Link(name, link) => (name, &b""[..], tar::EntryType::Symlink, *link, 0o777),
                Member::HardLink(name, link) => (name, &b""[..], tar::EntryType::Link, *link, 0o644),
                Member::Device(name) => (name, &b""[..], tar::EntryType::Char, "", 0o644),
            };
            let bytes = header.as_mut_bytes();
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_size(content.len() as u64);
            header.set_mtime(1_700_000_000);
            header.set_cksum();
            builder.append(&header, content).expect("append");
        }
        builder.into_inner().expect("archive")
    }

    pub(crate) fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).expect("compress");
        encoder.finish().expect("compress")
    }

    /// A Debian package with one member file for control and one for data.
    pub(crate) fn deb_of(control: &str, data: &[u8], suffix: &str) -> Vec<u8> {
        let control = xz(&tar_of(&[Member::File("./control", control.as_bytes())]));
        let mut deb = b"!<arch>\n".to_vec();
        let members: [(&str, &[u8]); 3] =
            [("debian-binary", b"2.0\n"), ("control.tar.xz", &control), (&format!("data.tar{suffix}"), data)];
        for (name, content) in members {
            deb.extend(
                format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, content.len()).bytes(),
            );
            deb.extend(content);
            if content.len() % 2 == 1 {
                deb.push(b'\n');
            }
        }
        deb
    }

    struct Folder {
        dir: tempfile::TempDir,
    }

    impl Folder {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().expect("folder") }
        }

        fn path(&self) -> &Utf8Path {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8")
        }

        fn unpack(&self, bytes: &[u8], strip: usize) -> Result<Unpacked, ArchiveError> {
            let cache = Cache::open(&self.path().join("cache")).expect("cache");
            let cancel = Cancel::default();
            let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
            let archive = self.path().join("archive");
            fs::write(&archive, bytes).expect("write");
            unpack_tar(&ctx, "test", &archive, strip, &self.path().join("target"))
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.path().join("target").join(name)).expect(name)
        }
    }

    fn check_hostile(members: &[Member<'_>], reason: &str) {
        let folder = Folder::new();
        let text = folder.unpack(&tar_of(members), 0).expect_err(reason).to_string();
        assert!(text.contains(reason), "{text}");
        let outside: Vec<_> = fs::read_dir(folder.path()).expect("list").collect();
        assert_eq!(outside.len(), 3, "only archive, cache and target: {outside:?}");
        assert!(!folder.path().join("victim").exists());
    }

    fn sample() -> Vec<u8> {
        tar_of(&[
            Member::File("linux-1/Makefile", b"VERSION = 1\n"),
            Member::Program("linux-1/scripts/run.sh", b"#!/bin/sh\n"),
            Member::Link("linux-1/link", "scripts/run.sh"),
            Member::HardLink("linux-1/copy", "linux-1/Makefile"),
        ])
    }

    #[test]
    fn every_compression_unpacks_the_same() {
        let gzip = {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&sample()).expect("compress");
            encoder.finish().expect("compress")
        };
        for bytes in [sample(), xz(&sample()), zstd(&sample()), gzip] {
            let folder = Folder::new();
            let unpacked = folder.unpack(&bytes, 1).expect("unpack");
            assert_eq!(unpacked, Unpacked { files: 4, bytes: 22 });
            assert_eq!(folder.read("Makefile"), "VERSION = 1\n");
            assert_eq!(folder.read("copy"), "VERSION = 1\n");
            assert_eq!(folder.read("link"), "#!/bin/sh\n");
            let mode = fs::metadata(folder.path().join("target/scripts/run.sh")).expect("metadata");
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o755);
        }
    }

    #[test]
    fn members_that_lead_outside_are_refused() {
        check_hostile(&[Member::File("../victim", b"x")], "a name with `..`");
        check_hostile(&[Member::File("a/../../victim", b"x")], "a name with `..`");
        check_hostile(&[Member::File("/victim", b"x")], "an absolute name");
        check_hostile(&[Member::Link("a", "..")], "leads out of the archive");
        check_hostile(&[Member::Link("a", "/etc")], "leads out of the archive");
        check_hostile(&[Member::Link("p/q/b", "c/..")], "leads out of the archive");
        check_hostile(&[Member::Link("d/a", "b/../../../victim")], "leads out of the archive");
        check_hostile(&[Member::HardLink("a", "../archive")], "a hard link to `../archive`");
        check_hostile(&[Member::HardLink("a", "/etc/passwd")], "a hard link to `/etc/passwd`");
        check_hostile(&[Member::Device("null")], "a special file");
        check_hostile(
            &[Member::File("d/f", b"x"), Member::Link("a", "d"), Member::File("a/b", b"x")],
            "which goes through `a`",
        );
        check_hostile(
            &[Member::File("d/f", b"x"), Member::Link("a", "d"), Member::HardLink("c", "a/f")],
            "a hard link to `a/f`",
        );
    }

    #[test]
    fn a_file_that_is_cut_off_is_damaged_wherever_the_cut_is() {
        let plain = sample();
        let packed = xz(&plain);
        let frame = zstd(&plain);
        let cuts = [
            &plain[..512],
            &plain[..700],
            &plain[..1024],
            &packed[..packed.len() - 4],
            &frame[..frame.len() - 4],
        ];
        for cut in cuts {
            let error = Folder::new().unpack(cut, 1).expect_err("cut off");
            assert!(error.to_string().contains("cut off or damaged"), "{error}");
        }
    }

    #[test]
    fn something_else_is_no_archive() {
        let error = Folder::new().unpack(b"hello", 0).expect_err("text");
        assert!(error.to_string().contains("is not a tar archive"), "{error}");
        let error = Folder::new().unpack(b"BZh9 and so on", 0).expect_err("bzip2");
        assert!(error.to_string().contains("Bzip2"), "{error}");
    }

    #[test]
    fn a_cancelled_unpack_says_so() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.path().join("cache")).expect("cache");
        let cancel = Cancel::default();
        cancel.request();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let archive = folder.path().join("archive");
        fs::write(&archive, sample()).expect("write");
        let error =
            unpack_tar(&ctx, "test", &archive, 0, &folder.path().join("target")).expect_err("cancelled");
        assert!(matches!(error, ArchiveError::Cancelled), "{error}");
    }

    #[test]
    fn a_package_gives_its_control_file_and_the_files_asked_for() {
        let data = tar_of(&[
            Member::File("./usr/bin/tool", b"tool"),
            Member::File("./usr/share/doc/readme", b"text"),
            Member::Link("./usr/bin/alias", "/usr/bin/tool"),
        ]);
        for (data, suffix) in [(xz(&data), ".xz"), (data.clone(), "")] {
            let folder = Folder::new();
            let path = folder.path().join("p.deb");
            fs::write(&path, deb_of("Package: p\nVersion: 1\n", &data, suffix)).expect("write");
            assert!(deb_control(&path).expect("control").contains("Package: p"));
            let target = folder.path().join("target");
            let unpacked = unpack_deb(&path, |name| name.starts_with("usr/bin"), &target).expect("unpack");
            assert_eq!(unpacked, Unpacked { files: 2, bytes: 4 });
            assert_eq!(folder.read("usr/bin/alias"), "tool", "the link leads below the target");
            assert!(!target.join("usr/share").exists());
        }
    }

    #[test]
    fn a_broken_package_is_refused() {
        let folder = Folder::new();
        let path = folder.path().join("p.deb");
        let whole = deb_of("Package: p\n", &xz(&sample()), ".xz");
        for (bytes, text) in [
            (&b"hello"[..], "is not a Debian package"),
            (&whole[..whole.len() - 10], "cut off or damaged"),
            (&whole[..80], "cut off or damaged"),
        ] {
            fs::write(&path, bytes).expect("write");
            let error = unpack_deb(&path, |_| true, &folder.path().join("target")).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn a_source_archive_inside_a_package_is_unpacked_on_the_way() {
        let folder = Folder::new();
        let cache = Cache::open(&folder.path().join("cache")).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let inner = xz(&sample());
        let data =
            tar_of(&[Member::File("./usr/share/doc/x", b"doc"), Member::File("./usr/src/l.tar.xz", &inner)]);
        let path = folder.path().join("p.deb");
        fs::write(&path, deb_of("Package: p\n", &xz(&data), ".xz")).expect("write");
        let target = folder.path().join("target");
        let (name, unpacked) =
            unpack_tar_in_deb(&ctx, "test", &path, |name| name.extension() == Some("xz"), 1, &target)
                .expect("unpack");
        assert_eq!((name.as_str(), unpacked.files), ("usr/src/l.tar.xz", 4));
        assert_eq!(folder.read("Makefile"), "VERSION = 1\n");
    }

    #[test]
    fn what_follows_a_stream_is_ignored_and_size_is_limited() {
        let mut bytes = xz(b"payload");
        bytes.extend([7, 0, 0, 0]);
        assert_eq!(decompress(&bytes, 100).expect("unpack"), b"payload");
        assert!(decompress(&bytes, 3).is_err());
        assert_eq!(decompress(b"plain", 100).expect("as is"), b"plain");
    }
}
