//! Where a kernel comes from: a source tree of our own that may be patched and built, or a kernel
//! that somebody else compiled. Read [`prepare`] and [`SourceTree`] first, then [`ready_made`].

use std::fs::{self, File};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::{DebLocation, DebianPackage, Digest, KernelSource, is_url};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::archive::{self, ArchiveError};
use crate::debian::{self, DebianError, FetchedPackage};
use crate::fetch::{self, FetchError};
use crate::git::{GitError, Repository};
use crate::layout::{Context, Lock, Scratch, write_atomically};
use crate::patch::{self, PatchError};

mod image;
mod lz4;
mod mirror;

pub use image::{ImageError, extract_vmlinux};

/// The stage under which unpacking reports.
const STAGE: &str = "source";
/// Meta packages depend on one another at most this deep.
const META_DEPTH: usize = 4;

/// A source tree that belongs to us, locked while this value lives.
#[derive(Debug)]
pub struct SourceTree {
    /// `trees/KEY`: the sources are in its folder `tree`, `patch` keeps its journal beside them.
    pub folder: Utf8PathBuf,
    /// Names the tree; the same for all revisions of one repository.
    pub key: String,
    /// The source with the version that was found, `debian:linux-source-6.12=6.12.57-1@trixie`.
    pub described: String,
    /// Digest of the archive (BLAKE3), of the git tree, or of the content of a folder (BLAKE3).
    pub digest: Digest,
    /// The commit, when the source is a git revision.
    pub commit: Option<String>,
    /// The `.config` of a source folder, for `base: source`. It is never part of the tree, because
    /// kbuild refuses a tree that has one when it builds elsewhere.
    pub config: Option<Utf8PathBuf>,
    /// Held on `trees/KEY/lock`.
    pub lock: Lock,
}

/// A kernel that is not compiled here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyKernel {
    /// A bzImage or vmlinux in the cache.
    pub image: Utf8PathBuf,
    /// The source with the version that was found.
    pub described: String,
    /// BLAKE3 of the image file or of the package it came in.
    pub digest: Digest,
    /// The folder with `kernel/` and `modules.builtin` in it, when it has modules.
    pub modules: Option<Utf8PathBuf>,
    /// What `uname -r` will print, when the image says so.
    pub release: Option<String>,
}

/// Why there is no kernel to work with.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A Debian package did not come.
    #[error(transparent)]
    Debian(#[from] DebianError),
    /// A download failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An archive cannot be unpacked.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A git command failed.
    #[error(transparent)]
    Git(#[from] GitError),
    /// Patches of an earlier run could not be taken back.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A file is no kernel.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The archive is not the promised one.
    #[error(
        "{path} has the wrong content: expected sha256 {expected}, got {actual}; correct the checksum or the file"
    )]
    Checksum {
        /// The archive.
        path: Utf8PathBuf,
        /// As given.
        expected: String,
        /// As found.
        actual: String,
    },
    /// The tree is no kernel source.
    #[error("{described} is no kernel source: it has no Makefile and Kconfig at its top{hint}")]
    NotKernel {
        /// What was unpacked.
        described: String,
        /// Where they were looked for.
        hint: &'static str,
    },
    /// A tree that somebody built in.
    #[error(
        "{path} was built in (it has {found}), and kbuild refuses such a tree; run `make mrproper` there, or give a git repository"
    )]
    Built {
        /// The tree.
        path: Utf8PathBuf,
        /// What lies in it.
        found: String,
    },
    /// The cache lies in the folder that is copied into it.
    #[error(
        "the cache {cache} lies in the source folder {path}, which would be copied into itself without end; choose a cache elsewhere with --cache or KDELTA_CACHE"
    )]
    CacheInside {
        /// The source folder.
        path: Utf8PathBuf,
        /// The cache.
        cache: Utf8PathBuf,
    },
    /// A file name that cannot be handled.
    #[error("{folder} holds the file `{name}`, {reason}; remove it from the tree")]
    Name {
        /// The tree.
        folder: Utf8PathBuf,
        /// The name, as far as it can be shown.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The wrong kind of source.
    #[error("{described} is {found}; {next}")]
    Kind {
        /// The source.
        described: String,
        /// What it is.
        found: &'static str,
        /// What to give.
        next: &'static str,
    },
    /// A package without a kernel.
    #[error(
        "{described} holds no kernel (boot/vmlinuz-*); give a linux-image package, see https://packages.debian.org/linux-image"
    )]
    NoKernel {
        /// The package.
        described: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// `read`, `create`, `lock`.
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

impl SourceError {
    /// Whether asking for something else would help; if not, the machine or the network is at fault.
    #[must_use]
    pub fn is_about_the_request(&self) -> bool {
        match self {
            Self::Checksum { .. }
            | Self::NotKernel { .. }
            | Self::Built { .. }
            | Self::CacheInside { .. }
            | Self::Name { .. }
            | Self::Kind { .. }
            | Self::NoKernel { .. }
            | Self::Image(_) => true,
            Self::Git(error) => {
                matches!(
                    error,
                    GitError::NoRepository { .. } | GitError::Refused { .. } | GitError::NoCommit { .. }
                )
            }
            Self::Debian(error) => matches!(error, DebianError::NotFound { .. }),
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Archive(error) => !matches!(error, ArchiveError::Io { .. } | ArchiveError::Cancelled),
            Self::Fetch(error) => matches!(error, FetchError::Url { .. } | FetchError::Checksum { .. }),
            Self::Patch(_) | Self::Cancelled => false,
        }
    }
}

/// Makes the tree of `source` ready: fetched, unpacked, clean of patches, and locked. `refresh` asks
/// for newer packages and branches even when an earlier answer is known.
///
/// # Errors
/// When it cannot be fetched or read, or is no kernel source.
pub fn prepare(ctx: &Context<'_>, source: &KernelSource, refresh: bool) -> Result<SourceTree, SourceError> {
    match source {
        KernelSource::Debian(package) => from_debian(ctx, package, refresh),
        KernelSource::Tarball { location, sha256 } => from_tarball(ctx, location, sha256.as_deref()),
        KernelSource::Git { repository, revision } => from_git(ctx, repository, revision, refresh),
        KernelSource::Dir { path } => from_folder(ctx, path),
        KernelSource::Image { .. } | KernelSource::Deb(_) => Err(SourceError::Kind {
            described: source.to_string(),
            found: "a compiled kernel",
            next: "give a source, such as debian:linux-source-6.12",
        }),
    }
}

/// Finds the ready-made kernel of `source` and puts it into the cache.
///
/// # Errors
/// When it cannot be fetched, or is no kernel for x86-64.
pub fn ready_made(
    ctx: &Context<'_>,
    source: &KernelSource,
    refresh: bool,
) -> Result<ReadyKernel, SourceError> {
    match source {
        KernelSource::Image { path } => from_image(ctx, path),
        KernelSource::Deb(DebLocation::File(path)) => {
            let path = canonical(path)?;
            let described = format!("deb:{path}");
            from_deb(ctx, &path, described)
        }
        KernelSource::Deb(DebLocation::Package(package)) => {
            let found = follow_meta(ctx, package, refresh)?;
            let described = format!("deb:{}", found.pinned());
            from_deb(ctx, &found.path, described)
        }
        _ => Err(SourceError::Kind {
            described: source.to_string(),
            found: "a source that is compiled here",
            next: "give image:PATH or deb:PACKAGE for a ready-made kernel",
        }),
    }
}

/// What is remembered of an archive, in `origin.json` beside the tree.
#[derive(Debug, Serialize, Deserialize)]
struct OriginRecord {
    sha256: String,
}

fn from_debian(ctx: &Context<'_>, package: &DebianPackage, refresh: bool) -> Result<SourceTree, SourceError> {
    let found = debian::fetch(ctx, package, refresh)?;
    let described = format!("debian:{}", found.pinned());
    let digest = digest_file(&found.path)?;
    let (folder, key, lock) = claim(ctx, &format!("debian-{}", &digest.0[..16]))?;
    if !folder.join("tree").is_dir() {
        let wanted = |name: &Utf8Path| {
            name.starts_with("usr/src") && name.file_name().is_some_and(|name| name.contains(".tar"))
        };
        unpack(ctx, &folder, &described, |scratch| {
            Ok(archive::unpack_tar_in_deb(ctx, STAGE, &found.path, wanted, 1, scratch.path())?.1)
        })?;
    }
    patch::restore(&folder)?;
    Ok(SourceTree { folder, key, described, digest, commit: None, config: None, lock })
}

fn from_tarball(ctx: &Context<'_>, location: &str, sha256: Option<&str>) -> Result<SourceTree, SourceError> {
    let (path, described) = if is_url(location) {
        let name = location.rsplit('/').next().unwrap_or_default();
        let safe: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        let path = ctx.cache.downloads().join(format!("{}-{safe}", sha256.unwrap_or_default()));
        if !path.is_file() {
            // It appears there only after its checksum was found right.
            fetch::download(ctx, location, sha256, &path)?;
        }
        (path, format!("tarball:{location}"))
    } else {
        let path = canonical(location)?;
        let described = format!("tarball:{path}");
        (path, described)
    };
    let digest = digest_file(&path)?;
    let (folder, key, lock) = claim(ctx, &format!("tarball-{}", &digest.0[..16]))?;
    let record = folder.join("origin.json");
    if let Some(expected) = sha256.filter(|_| !is_url(location)) {
        // The content is known by its BLAKE3, so one look at its SHA-256 is enough for ever.
        let known =
            fs::read(&record).ok().and_then(|text| serde_json::from_slice::<OriginRecord>(&text).ok());
        let known = match known {
            Some(known) => known,
            None => {
                let sha256 =
                    fetch::digest_of(&path).map_err(|source| io_error("read", &path, source))?.sha256;
                let known = OriginRecord { sha256 };
                write_atomically(&record, &serde_json::to_vec(&known).unwrap_or_default())
                    .map_err(|source| io_error("write", &record, source))?;
                known
            }
        };
        if known.sha256 != expected {
            return Err(SourceError::Checksum { path, expected: expected.to_owned(), actual: known.sha256 });
        }
    }
    if !folder.join("tree").is_dir() {
        unpack(ctx, &folder, &described, |scratch| {
            Ok(archive::unpack_tar(ctx, STAGE, &path, 1, scratch.path())?)
        })?;
    }
    patch::restore(&folder)?;
    Ok(SourceTree { folder, key, described, digest, commit: None, config: None, lock })
}

fn from_git(
    ctx: &Context<'_>,
    location: &str,
    revision: &str,
    refresh: bool,
) -> Result<SourceTree, SourceError> {
    let repository = Repository::open(ctx, location)?;
    let found = repository.resolve(ctx, revision, refresh)?;
    let (folder, key, lock) = claim(ctx, repository.key())?;
    patch::restore(&folder)?;
    repository.checkout(ctx, &found)?;
    let described = format!("git:{location}#{revision}");
    check_kernel(&folder.join("tree"), &described, "")?;
    let digest = Digest(found.tree);
    Ok(SourceTree { folder, key, described, digest, commit: Some(found.commit), config: None, lock })
}

fn from_folder(ctx: &Context<'_>, path: &str) -> Result<SourceTree, SourceError> {
    let path = canonical(path)?;
    let described = format!("dir:{path}");
    if ctx.cache.root().starts_with(&path) {
        return Err(SourceError::CacheInside { path, cache: ctx.cache.root().to_owned() });
    }
    check_kernel(&path, &described, "")?;
    let key = format!("dir-{}", &blake3::hash(path.as_str().as_bytes()).to_hex()[..16]);
    let (folder, key, lock) = claim(ctx, &key)?;
    patch::restore(&folder)?;
    let digest = ctx.stage(STAGE, &described, || {
        let (digest, copied) = mirror::update(ctx, STAGE, &path, &folder)?;
        Ok::<_, SourceError>((digest, format!("{copied} files changed")))
    })?;
    let config = Some(path.join(".config")).filter(|config| config.is_file());
    Ok(SourceTree { folder, key, described, digest, commit: None, config, lock })
}

fn from_image(ctx: &Context<'_>, path: &str) -> Result<ReadyKernel, SourceError> {
    let path = canonical(path)?;
    let bytes = fs::read(&path).map_err(|source| io_error("read", &path, source))?;
    let release = image::check(&path, &bytes)?;
    let digest = Digest(blake3::hash(&bytes).to_hex().to_string());
    // A copy, so that every boot of a run has the same bits whatever happens to the original.
    let copy = ctx.cache.kernels().join(format!("{}.image", &digest.0[..16]));
    if !copy.is_file() {
        write_atomically(&copy, &bytes).map_err(|source| io_error("write", &copy, source))?;
    }
    Ok(ReadyKernel { image: copy, described: format!("image:{path}"), digest, modules: None, release })
}

fn from_deb(ctx: &Context<'_>, path: &Utf8Path, described: String) -> Result<ReadyKernel, SourceError> {
    let digest = digest_file(path)?;
    let target = ctx.cache.kernels().join(format!("deb-{}", &digest.0[..16]));
    if !target.is_dir() {
        ctx.stage(STAGE, &format!("unpack {described}"), || {
            let scratch = ctx.cache.scratch().map_err(|source| io_error("create", &target, source))?;
            let wanted = |name: &Utf8Path| {
                name.as_str().starts_with("boot/vmlinuz-")
                    || name.starts_with("lib/modules")
                    || name.starts_with("usr/lib/modules")
            };
            let unpacked = archive::unpack_deb(path, wanted, scratch.path())?;
            find_image(scratch.path())
                .ok_or_else(|| SourceError::NoKernel { described: described.clone() })?;
            scratch.publish(&target).map_err(|source| io_error("create", &target, source))?;
            Ok::<_, SourceError>(((), format!("{} files", unpacked.files)))
        })?;
    }
    let image = find_image(&target).ok_or_else(|| SourceError::NoKernel { described: described.clone() })?;
    let bytes = fs::read(&image).map_err(|source| io_error("read", &image, source))?;
    let release = image::check(&image, &bytes)?;
    let name = image.file_name().and_then(|name| name.strip_prefix("vmlinuz-")).unwrap_or_default();
    let modules = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|folder| target.join(folder).join(name))
        .find(|folder| folder.is_dir());
    Ok(ReadyKernel { image, described, digest, modules, release })
}

fn find_image(folder: &Utf8Path) -> Option<Utf8PathBuf> {
    let entries = folder.join("boot").read_dir_utf8().ok()?;
    entries.flatten().map(|entry| entry.path().to_owned()).find(|path| path.is_file())
}

/// Fetches `package`, or what it stands for: `linux-image-amd64` depends on one real kernel.
fn follow_meta(
    ctx: &Context<'_>,
    package: &DebianPackage,
    refresh: bool,
) -> Result<FetchedPackage, SourceError> {
    let mut found = debian::fetch(ctx, package, refresh)?;
    for _ in 0..META_DEPTH {
        let control = archive::deb_control(&found.path)?;
        let Some((name, version)) = image_dependency(&control) else { break };
        let next = DebianPackage { name, version, release: Some(found.release.clone()) };
        found = debian::fetch(ctx, &next, refresh)?;
    }
    Ok(found)
}

/// The `linux-image-…` that a package depends on, and the version when it must be an exact one.
fn image_dependency(control: &str) -> Option<(String, Option<String>)> {
    let depends = debian::control_field(control, "Depends")?;
    let relation = depends.split(',').map(str::trim).find(|it| it.starts_with("linux-image-"))?;
    let (name, rest) = relation.split_once([' ', '(']).unwrap_or((relation, ""));
    let version = rest.trim_start_matches([' ', '(']).strip_prefix('=').map(|it| it.trim_matches([' ', ')']));
    Some((name.to_owned(), version.map(str::to_owned)))
}

/// Takes the folder of one tree for this process.
fn claim(ctx: &Context<'_>, key: &str) -> Result<(Utf8PathBuf, String, Lock), SourceError> {
    let folder = ctx.cache.trees().join(key);
    fs::create_dir_all(&folder).map_err(|source| io_error("create", &folder, source))?;
    let path = folder.join("lock");
    let lock = Lock::acquire(&path, ctx.cancel, || {
        ctx.warn("waiting for another kdelta (or for compilers that a killed one left) to release the tree");
    })
    .map_err(|source| io_error("lock", &path, source))?;
    Ok((folder, key.to_owned(), lock))
}

/// Unpacks into a scratch folder that becomes `FOLDER/tree` when it is whole.
fn unpack(
    ctx: &Context<'_>,
    folder: &Utf8Path,
    described: &str,
    work: impl FnOnce(&Scratch) -> Result<archive::Unpacked, SourceError>,
) -> Result<(), SourceError> {
    ctx.stage(STAGE, &format!("unpack {described}"), || {
        let tree = folder.join("tree");
        let scratch = ctx.cache.scratch().map_err(|source| io_error("create", &tree, source))?;
        let unpacked = work(&scratch).map_err(|error| match error {
            SourceError::Archive(ArchiveError::Cancelled) => SourceError::Cancelled,
            error => error,
        })?;
        check_kernel(scratch.path(), described, " or in its one top folder")?;
        scratch.publish(&tree).map_err(|source| io_error("create", &tree, source))?;
        Ok(((), format!("{} files, {} MB", unpacked.files, unpacked.bytes / 1_000_000)))
    })
}

fn check_kernel(tree: &Utf8Path, described: &str, hint: &'static str) -> Result<(), SourceError> {
    if ["Makefile", "Kconfig"].iter().all(|name| tree.join(name).is_file()) {
        return Ok(());
    }
    Err(SourceError::NotKernel { described: described.to_owned(), hint })
}

fn digest_file(path: &Utf8Path) -> Result<Digest, SourceError> {
    let read = || -> io::Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path)?)?;
        Ok(Digest(hasher.finalize().to_hex().to_string()))
    };
    read().map_err(|source| io_error("read", path, source))
}

fn canonical(path: &str) -> Result<Utf8PathBuf, SourceError> {
    Utf8Path::new(path).canonicalize_utf8().map_err(|source| io_error("find", Utf8Path::new(path), source))
}

fn io_error(action: &'static str, path: &Utf8Path, source: io::Error) -> SourceError {
    SourceError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::archive::tests::{Member, deb_of, tar_of, xz};
    use crate::cancel::Cancel;
    use crate::event::{Event, EventSink, Silent};
    use crate::git::tests::Sample;
    use crate::layout::Cache;

    struct Bench {
        dir: tempfile::TempDir,
        cache: Cache,
        cancel: Cancel,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("folder");
            let cache =
                Cache::open(&Utf8Path::from_path(dir.path()).expect("UTF-8").join("cache")).expect("cache");
            Self { dir, cache, cancel: Cancel::default() }
        }

        fn ctx(&self) -> Context<'_> {
            Context { cache: &self.cache, events: &Silent, cancel: &self.cancel, jobs: 1 }
        }

        fn file(&self, name: &str, bytes: &[u8]) -> Utf8PathBuf {
            let path = Utf8Path::from_path(self.dir.path()).expect("UTF-8").join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            fs::write(&path, bytes).expect("write");
            path
        }

        fn prepare(&self, source: &str) -> Result<SourceTree, SourceError> {
            prepare(&self.ctx(), &source.parse().expect(source), false)
        }
    }

    fn kernel_tarball() -> Vec<u8> {
        xz(&tar_of(&[
            Member::File("linux-6.12/Makefile", b"VERSION = 6\n"),
            Member::File("linux-6.12/Kconfig", b"mainmenu\n"),
        ]))
    }

    #[test]
    fn a_tarball_is_unpacked_once_and_known_by_its_content() {
        let bench = Bench::new();
        let path = bench.file("linux.tar.xz", &kernel_tarball());
        let first = bench.prepare(&format!("tarball:{path}")).expect("prepare");
        assert_eq!(fs::read_to_string(first.folder.join("tree/Makefile")).expect("read"), "VERSION = 6\n");
        let marker = first.folder.join("tree/marker");
        fs::write(&marker, "").expect("write");
        let (digest, folder) = (first.digest.clone(), first.folder.clone());
        drop(first);
        let again = bench.file("elsewhere/copy.tar.xz", &kernel_tarball());
        let second = bench.prepare(&format!("tarball:{again}")).expect("prepare");
        assert_eq!((&second.digest, &second.folder), (&digest, &folder));
        assert!(marker.exists(), "it was unpacked a second time");
    }

    #[test]
    fn a_tarball_with_a_wrong_checksum_is_refused_each_time() {
        let bench = Bench::new();
        let path = bench.file("linux.tar.xz", &kernel_tarball());
        let right = fetch::digest_of(&path).expect("digest").sha256;
        let wrong = "0".repeat(64);
        for (sum, good) in [(&wrong, false), (&right, true), (&wrong, false)] {
            let result = bench.prepare(&format!("tarball:{path}#sha256={sum}"));
            assert_eq!(result.is_ok(), good, "{result:?}");
        }
    }

    #[test]
    fn a_tarball_with_a_wrong_checksum_is_never_unpacked() {
        let bench = Bench::new();
        // Not even an archive: unpacking it would fail in another way.
        let path = bench.file("linux.tar.xz", b"something else");
        let actual = fetch::digest_of(&path).expect("digest").sha256;
        let error = bench.prepare(&format!("tarball:{path}#sha256={}", "0".repeat(64))).expect_err("wrong");
        assert_eq!(
            error.to_string(),
            format!(
                "{path} has the wrong content: expected sha256 {}, got {actual}; correct the checksum or the file",
                "0".repeat(64)
            )
        );
        let path = bench.file("linux.tar.xz", &kernel_tarball());
        bench.prepare(&format!("tarball:{path}#sha256={}", "0".repeat(64))).expect_err("wrong");
        for tree in bench.cache.trees().read_dir_utf8().expect("list").flatten() {
            assert!(!tree.path().join("tree").exists(), "it was unpacked before it was checked");
        }
    }

    #[test]
    fn a_source_folder_that_holds_the_cache_is_refused() {
        let bench = Bench::new();
        let folder = bench.file("Makefile", b"VERSION = 6\n").parent().expect("a folder").to_owned();
        bench.file("Kconfig", b"mainmenu\n");
        let folder = folder.canonicalize_utf8().expect("a folder");
        let refused = |path: &Utf8Path| {
            let error = bench.prepare(&format!("dir:{path}")).expect_err("endless");
            assert!(error.is_about_the_request(), "{error}");
            error.to_string()
        };
        assert_eq!(
            refused(&folder),
            format!(
                "the cache {folder}/cache lies in the source folder {folder}, which would be copied into itself \
                 without end; choose a cache elsewhere with --cache or KDELTA_CACHE"
            )
        );
        refused(&folder.join("cache/.."));
        refused(&folder.join("cache"));
        // A folder whose name begins alike is another folder.
        bench.file("cache-of-sources/Makefile", b"VERSION = 6\n");
        bench.file("cache-of-sources/Kconfig", b"mainmenu\n");
        bench.prepare(&format!("dir:{folder}/cache-of-sources")).expect("a source");
    }

    #[test]
    fn a_tree_that_could_not_be_unpacked_is_not_there() {
        let bench = Bench::new();
        let bytes = kernel_tarball();
        let path = bench.file("linux.tar.xz", &bytes[..bytes.len() - 20]);
        bench.prepare(&format!("tarball:{path}")).expect_err("cut off");
        let other = bench.file("other.tar.xz", &xz(&tar_of(&[Member::File("a/b", b"x")])));
        let error = bench.prepare(&format!("tarball:{other}")).expect_err("no kernel").to_string();
        assert!(error.contains("is no kernel source"), "{error}");
        for tree in bench.cache.trees().read_dir_utf8().expect("list").flatten() {
            assert!(!tree.path().join("tree").exists());
        }
        assert_eq!(bench.cache.root().join("tmp").read_dir_utf8().expect("list").count(), 0);
    }

    #[test]
    fn revisions_of_one_repository_share_a_tree() {
        let sample = Sample::new();
        let (cache, cancel) = (sample.cache(), Cancel::default());
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let tree_of = |revision: &str| {
            let source = format!("git:{}#{revision}", sample.path()).parse().expect("source");
            let tree = prepare(&ctx, &source, false).expect("prepare");
            let text = fs::read_to_string(tree.folder.join("tree/fs/a.c")).expect("read");
            (tree.key.clone(), tree.digest.clone(), tree.commit.clone().expect("commit"), text)
        };
        let (first, second) = (tree_of("v1"), tree_of("main"));
        assert_eq!(first.0, second.0);
        assert_eq!((first.3.as_str(), second.3.as_str()), ("one\n", "two\n"));
        assert_eq!(second.1.0, sample.git(&["rev-parse", "main^{tree}"]));
        assert_eq!(first.2, sample.git(&["rev-parse", "v1"]));
    }

    #[test]
    fn a_compiled_kernel_is_no_source_and_the_other_way_round() {
        let bench = Bench::new();
        let error = bench.prepare("image:/boot/vmlinuz").expect_err("compiled").to_string();
        assert!(error.contains("is a compiled kernel"), "{error}");
        let source = "dir:/src/linux".parse().expect("source");
        let error = ready_made(&bench.ctx(), &source, false).expect_err("source").to_string();
        assert!(error.contains("image:PATH"), "{error}");
    }

    #[test]
    fn a_kernel_package_gives_its_image_and_modules() {
        let bench = Bench::new();
        let data = tar_of(&[
            Member::File(
                "./boot/vmlinuz-6.12-cloud",
                &image::tests::bzimage(b"\x7fELF", "6.12-cloud (x@y) #1"),
            ),
            Member::File("./boot/System.map-6.12-cloud", b"map"),
            Member::File("./usr/lib/modules/6.12-cloud/kernel/fs/xfs.ko", b"module"),
        ]);
        let path = bench.file("k.deb", &deb_of("Package: linux-image\nVersion: 1\n", &data, ""));
        let source = format!("deb:{path}").parse().expect("source");
        let kernel = ready_made(&bench.ctx(), &source, false).expect("kernel");
        assert_eq!(kernel.release.as_deref(), Some("6.12-cloud"));
        let modules = kernel.modules.clone().expect("modules");
        assert!(modules.join("kernel/fs/xfs.ko").is_file());
        assert_eq!(ready_made(&bench.ctx(), &source, false).expect("again"), kernel);
        let empty = bench.file("e.deb", &deb_of("Package: e\n", &tar_of(&[Member::File("./x", b"x")]), ""));
        let source = format!("deb:{empty}").parse().expect("source");
        let error = ready_made(&bench.ctx(), &source, false).expect_err("no kernel").to_string();
        assert!(error.contains("holds no kernel"), "{error}");
    }

    #[test]
    fn a_meta_package_names_the_real_one() {
        let control = "Package: linux-image-cloud-amd64\nDepends: linux-image-6.12.118+deb13-cloud-amd64 (= 6.12.118-1)\n";
        let expected = ("linux-image-6.12.118+deb13-cloud-amd64".to_owned(), Some("6.12.118-1".to_owned()));
        assert_eq!(image_dependency(control), Some(expected));
        assert_eq!(image_dependency("Depends: kmod, linux-base (>= 4.3~)\n"), None);
        assert_eq!(image_dependency("Package: x\n"), None);
    }

    struct Printed;

    impl EventSink for Printed {
        fn emit(&self, event: Event) {
            if !matches!(event, Event::StageProgress { .. }) {
                println!("  {event:?}");
            }
        }
    }

    #[test]
    #[ignore = "downloads 400 MB from Debian into /var/tmp/kdelta-real; run by hand"]
    fn real_packages_become_kernels() {
        let cache = Cache::open(Utf8Path::new("/var/tmp/kdelta-real")).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Printed, cancel: &cancel, jobs: 2 };
        for source in ["debian:linux-source-6.12", "debian:linux-source-6.1@bookworm"] {
            let started = Instant::now();
            let tree = prepare(&ctx, &source.parse().expect(source), false).expect(source);
            println!("{} {} {:?}", tree.described, tree.digest.short(), started.elapsed());
        }
        for source in ["deb:linux-image-cloud-amd64@bookworm", "deb:linux-image-cloud-amd64@trixie"] {
            let started = Instant::now();
            let kernel = ready_made(&ctx, &source.parse().expect(source), false).expect(source);
            println!("{kernel:?} {:?}", started.elapsed());
            let bytes = fs::read(&kernel.image).expect("image");
            println!("vmlinux: {:?}", extract_vmlinux(&bytes).map(|vmlinux| vmlinux.len()));
            let Some(modules) = kernel.modules else { continue };
            for wanted in ["virtio_pci", "virtio_console", "nvme", "xfs", "ext4", "btrfs"] {
                let order = crate::modules::load_order(&modules, &[wanted.to_owned()]).expect(wanted);
                let names: Vec<_> = order.iter().map(|module| (&module.name, module.optional)).collect();
                println!("{wanted}: {names:?}");
            }
        }
    }
}
