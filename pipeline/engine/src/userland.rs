//! The programs that make filesystems inside the guest, taken from Debian packages, so that a guest
//! is the same on every host. Read [`Userland`] first, then [`collect`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::{DebianPackage, Digest};
use kdelta_wire::{FilesystemKind, STRACE};
use object::{Object, ObjectSection};
use thiserror::Error;

use crate::archive::{self, ArchiveError};
use crate::debian::{self, DebianError, FetchedPackage, USERLAND_RELEASE};
use crate::initramfs::Entry;
use crate::layout::Context;

/// The stage under which unpacking reports.
const STAGE: &str = "userland";
/// Raised when what is taken from packages changes, so that older folders are not used.
const RECIPE: &str = "kdelta-userland-1";
/// Where a package may have a program.
const PROGRAM_FOLDERS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
/// Where the dynamic loader looks, in its order (ld.so(8)).
const LIBRARY_FOLDERS: [&str; 4] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib", "usr/lib"];
/// `DT_NEEDED` of elf(5): the value is the offset of a library's name.
const NEEDED: u64 = 1;

/// A filesystem that a guest can make.
struct Maker {
    filesystem: FilesystemKind,
    /// Packages that hold the program and every library it is linked with.
    packages: &'static [&'static str],
    /// Files that it reads.
    settings: &'static [&'static str],
}

const MAKERS: [Maker; 3] = [
    Maker {
        filesystem: FilesystemKind::Xfs,
        packages: &["xfsprogs", "libblkid1", "libc6", "libinih1", "liburcu8t64", "libuuid1"],
        settings: &[],
    },
    Maker {
        filesystem: FilesystemKind::Ext4,
        packages: &["e2fsprogs", "libblkid1", "libc6", "libcom-err2", "libext2fs2t64", "libuuid1"],
        settings: &["etc/mke2fs.conf"],
    },
    Maker {
        filesystem: FilesystemKind::Btrfs,
        packages: &[
            "btrfs-progs",
            "libblkid1",
            "libc6",
            "libudev1",
            "libuuid1",
            "zlib1g",
            "libcap2",
            "liblzo2-2",
            "libzstd1",
        ],
        settings: &[],
    },
];

/// A program for the guest that no filesystem needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// strace(1), at [`STRACE`].
    Strace,
}

impl Tool {
    fn need(self) -> Need {
        match self {
            Self::Strace => Need {
                program: STRACE,
                packages: &["strace", "libc6", "libunwind8", "liblzma5"],
                settings: &[],
            },
        }
    }
}

/// A program, the packages that hold it and all it is linked with, and the files that it reads.
struct Need {
    program: &'static str,
    packages: &'static [&'static str],
    settings: &'static [&'static str],
}

/// Programs for the guest and everything they load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Userland {
    /// What to put into the guest, sorted by path.
    pub files: Vec<GuestFile>,
    /// The packages they come from, as `NAME=VERSION@RELEASE`.
    pub packages: Vec<String>,
    /// BLAKE3 of paths, permissions and contents.
    pub digest: Digest,
}

/// One file for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Absolute path in the guest; no link is needed for it.
    pub guest: Utf8PathBuf,
    /// Where it is on the host.
    pub host: Utf8PathBuf,
    /// Permission bits.
    pub mode: u32,
}

impl Userland {
    /// The files as entries of an initramfs.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.files.iter().map(|file| Entry::host(&file.guest, file.mode, &file.host)).collect()
    }
}

/// Why programs for the guest are not there.
#[derive(Debug, Error)]
pub enum UserlandError {
    /// A package did not come.
    #[error("the guest's mkfs programs come from Debian {USERLAND_RELEASE}: {0}")]
    Debian(#[from] DebianError),
    /// A package cannot be unpacked.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A package does not have what it should.
    #[error("{wanted}{needed} is in none of the packages {packages}; report this as a bug of kdelta")]
    Missing {
        /// The file.
        wanted: String,
        /// Who needs it.
        needed: String,
        /// Where it was looked for.
        packages: String,
    },
    /// A program cannot be understood.
    #[error(
        "{path} cannot be read as a program: {reason}; delete the folder `userland` of the cache and try again"
    )]
    Broken {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
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
}

/// The mkfs programs for `filesystems`, where [`FilesystemKind::mkfs`] says that the guest looks for
/// them; one that needs none brings nothing. `refresh` asks for newer packages even when an earlier
/// answer is known.
///
/// # Errors
/// When a package cannot be fetched, or is not as expected.
pub fn collect(
    ctx: &Context<'_>,
    filesystems: &[FilesystemKind],
    refresh: bool,
) -> Result<Userland, UserlandError> {
    collect_with(ctx, filesystems, &[], refresh)
}

/// As [`collect`], with `tools` besides.
///
/// # Errors
/// As [`collect`].
pub fn collect_with(
    ctx: &Context<'_>,
    filesystems: &[FilesystemKind],
    tools: &[Tool],
    refresh: bool,
) -> Result<Userland, UserlandError> {
    let makers = MAKERS.iter().filter(|maker| filesystems.contains(&maker.filesystem)).filter_map(|maker| {
        let Maker { filesystem, packages, settings } = *maker;
        Some(Need { program: filesystem.mkfs()?, packages, settings })
    });
    let needs: Vec<Need> = makers.chain(tools.iter().map(|tool| tool.need())).collect();
    if needs.is_empty() {
        return Ok(Userland { files: Vec::new(), packages: Vec::new(), digest: digest(&[])? });
    }
    let names: BTreeSet<&str> = needs.iter().flat_map(|need| need.packages.iter().copied()).collect();
    let mut packages = Vec::new();
    for name in names {
        let release = Some(USERLAND_RELEASE.to_owned());
        let package = DebianPackage { name: name.to_owned(), version: None, release };
        packages.push(debian::fetch(ctx, &package, refresh)?);
    }
    let root = unpack(ctx, &packages)?;
    let packages: Vec<String> = packages.iter().map(FetchedPackage::pinned).collect();
    let files = files_of(&needs, &root, &packages)?;
    let digest = digest(&files)?;
    Ok(Userland { files, packages, digest })
}

/// The folder that holds what the packages hold.
fn unpack(ctx: &Context<'_>, packages: &[FetchedPackage]) -> Result<Utf8PathBuf, UserlandError> {
    let mut hasher = blake3::Hasher::new();
    for part in [RECIPE].into_iter().chain(packages.iter().map(|package| package.sha256.as_str())) {
        hasher.update(part.as_bytes()).update(b"\0");
    }
    let root = ctx.cache.userland().join(&hasher.finalize().to_hex()[..32]);
    if root.is_dir() {
        return Ok(root);
    }
    ctx.stage(STAGE, &format!("unpack {} packages", packages.len()), || {
        let create = |source| UserlandError::Io { action: "create", path: root.clone(), source };
        let scratch = ctx.cache.scratch().map_err(create)?;
        let mut bytes = 0;
        for (done, package) in (0..).zip(packages) {
            ctx.progress(STAGE, done, Some(packages.len() as u64), &package.name);
            let wanted = |path: &Utf8Path| {
                let parts =
                    ["usr/sbin", "usr/bin", "usr/lib", "usr/lib64", "sbin", "bin", "lib", "lib64", "etc"];
                parts.iter().any(|part| path.starts_with(part))
                    && !path.starts_with("usr/lib/x86_64-linux-gnu/gconv")
            };
            bytes += archive::unpack_deb(&package.path, wanted, scratch.path())?.bytes;
        }
        scratch.publish(&root).map_err(create)?;
        Ok::<_, UserlandError>(((), format!("{:.1} MB", bytes as f64 / 1e6)))
    })?;
    Ok(root)
}

/// The programs, what they load, and what they read.
fn files_of(needs: &[Need], root: &Utf8Path, packages: &[String]) -> Result<Vec<GuestFile>, UserlandError> {
    let missing = |wanted: &str, needed: String| UserlandError::Missing {
        wanted: wanted.to_owned(),
        needed,
        packages: packages.join(", "),
    };
    let mut files: BTreeMap<Utf8PathBuf, GuestFile> = BTreeMap::new();
    let mut waiting = VecDeque::new();
    let mut add = |guest: Utf8PathBuf, host: Utf8PathBuf| -> Result<bool, UserlandError> {
        let metadata = fs::metadata(&host).map_err(|source| UserlandError::Io {
            action: "read",
            path: host.clone(),
            source,
        })?;
        let mode = metadata.permissions().mode() & 0o755;
        Ok(files.insert(guest.clone(), GuestFile { guest, host, mode }).is_none())
    };
    for need in needs {
        let path = Utf8Path::new(need.program);
        let name = path.file_name().unwrap_or_default();
        let program = find(root, &PROGRAM_FOLDERS, name).ok_or_else(|| missing(name, String::new()))?;
        if add(path.to_owned(), program.clone())? {
            waiting.push_back(program);
        }
        for setting in need.settings {
            let file = find(root, &[""], setting).ok_or_else(|| missing(setting, String::new()))?;
            add(Utf8PathBuf::from("/").join(setting), file)?;
        }
    }
    while let Some(file) = waiting.pop_front() {
        let links = Links::read(&file)?;
        let needed = || format!(" (needed by {})", file.file_name().unwrap_or_default());
        if let Some(loader) = links.loader {
            // The path is written into the program. Packages of a merged /usr have it elsewhere.
            let relative = loader.trim_start_matches('/');
            let host = find(root, &["", "usr"], relative).ok_or_else(|| missing(&loader, needed()))?;
            if add(Utf8PathBuf::from("/").join(relative), host.clone())? {
                waiting.push_back(host);
            }
        }
        // The loader is in memory already when a library asks for it.
        for library in links.libraries.into_iter().filter(|name| !name.starts_with("ld-linux")) {
            let host = find(root, &LIBRARY_FOLDERS, &library).ok_or_else(|| missing(&library, needed()))?;
            // One folder for all: the first that the loader looks in.
            let guest = Utf8PathBuf::from("/").join(LIBRARY_FOLDERS[0]).join(&library);
            if add(guest, host.clone())? {
                waiting.push_back(host);
            }
        }
    }
    Ok(files.into_values().collect())
}

/// The file `name` in one of `folders` below `root`, with links resolved; nothing outside `root`.
fn find(root: &Utf8Path, folders: &[&str], name: &str) -> Option<Utf8PathBuf> {
    folders
        .iter()
        .filter_map(|folder| root.join(folder).join(name).canonicalize_utf8().ok())
        .find(|path| path.starts_with(root) && path.is_file())
}

/// What an ELF file asks the system to load.
#[derive(Debug, Default, PartialEq, Eq)]
struct Links {
    loader: Option<String>,
    libraries: Vec<String>,
}

impl Links {
    fn read(path: &Utf8Path) -> Result<Self, UserlandError> {
        let bytes = fs::read(path).map_err(|source| UserlandError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&bytes).map_err(|reason| UserlandError::Broken { path: path.to_owned(), reason })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = object::File::parse(bytes).map_err(|error| error.to_string())?;
        let section = |name: &str| {
            let section = file.section_by_name(name);
            section.map(|section| section.data().map_err(|error| format!("{name}: {error}"))).transpose()
        };
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|byte| *byte == 0)?;
            String::from_utf8(bytes[..end].to_vec()).ok()
        };
        let loader = section(".interp")?.and_then(text);
        let (dynamic, names) =
            (section(".dynamic")?.unwrap_or_default(), section(".dynstr")?.unwrap_or_default());
        let mut libraries = Vec::new();
        for (tag, value) in dynamic.as_chunks::<16>().0.iter().map(|entry| (word(entry, 0), word(entry, 8))) {
            if tag == NEEDED {
                let name = usize::try_from(value).ok().and_then(|at| text(names.get(at..)?));
                let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
                libraries.push(name.ok_or("the name of a library is out of range")?);
            }
        }
        Ok(Self { loader, libraries })
    }
}

fn word(entry: &[u8; 16], at: usize) -> u64 {
    entry[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn digest(files: &[GuestFile]) -> Result<Digest, UserlandError> {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let content = fs::read(&file.host).map_err(|source| UserlandError::Io {
            action: "read",
            path: file.host.clone(),
            source,
        })?;
        hasher
            .update(format!("{}\0{:o}\0{}\0", file.guest, file.mode, content.len()).as_bytes())
            .update(&content);
    }
    Ok(Digest(hasher.finalize().to_hex().to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use super::*;
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::initramfs;
    use crate::layout::Cache;
    use crate::process::Program;

    #[test]
    fn every_filesystem_on_a_disk_has_its_packages() {
        for kind in FilesystemKind::ALL {
            assert_eq!(MAKERS.iter().any(|maker| maker.filesystem == kind), kind.mkfs().is_some(), "{kind}");
        }
    }

    #[test]
    fn what_this_test_is_linked_with_is_read() {
        let links = Links::read(Utf8Path::new("/proc/self/exe")).expect("readable");
        assert!(links.libraries.iter().any(|name| name.starts_with("libc.so")), "{links:?}");
        assert!(links.loader.is_some_and(|loader| loader.starts_with("/lib")));
        assert!(Links::parse(b"no program").is_err());
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let folder = tempfile::tempdir().expect("folder");
        let root = Utf8Path::from_path(folder.path()).expect("UTF-8").canonicalize_utf8().expect("root");
        fs::create_dir_all(root.join("usr/lib")).expect("folder");
        fs::write(root.join("usr/lib/libx.so.1.2"), "x").expect("write");
        symlink("libx.so.1.2", root.join("usr/lib/libx.so.1")).expect("link");
        symlink("/etc/passwd", root.join("usr/lib/liby.so.1")).expect("link");
        let found = find(&root, &LIBRARY_FOLDERS, "libx.so.1");
        assert_eq!(found, Some(root.join("usr/lib/libx.so.1.2")));
        assert_eq!(find(&root, &LIBRARY_FOLDERS, "liby.so.1"), None);
    }

    #[test]
    #[ignore = "downloads 15 MB from Debian into /var/tmp/kdelta-real and needs root for chroot; run by hand"]
    fn real_programs_run_in_a_root_of_their_own() {
        let cache = Cache::open(Utf8Path::new("/var/tmp/kdelta-real")).expect("cache");
        let cancel = Cancel::default();
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 2 };
        for filesystem in [FilesystemKind::Xfs, FilesystemKind::Ext4, FilesystemKind::Btrfs] {
            let started = Instant::now();
            let userland = collect(&ctx, &[filesystem], false).expect("userland");
            println!("{filesystem}: {:?} in {:?}", userland.packages, started.elapsed());
            let folder = tempfile::tempdir().expect("folder");
            let root = Utf8Path::from_path(folder.path()).expect("UTF-8");
            for file in &userland.files {
                println!("  {} {:o}", file.guest, file.mode);
                let place = root.join(file.guest.strip_prefix("/").expect("absolute"));
                fs::create_dir_all(place.parent().expect("parent")).expect("folder");
                fs::copy(&file.host, &place).expect("copy");
            }
            let program = Program::new("chroot").arg(root.as_str()).arg(filesystem.mkfs().expect("mkfs"));
            let output = program.arg("-V").output(&cancel).expect("runs");
            println!("  {}{}", output.text(), String::from_utf8_lossy(&output.stderr));
            // mkfs.btrfs looks whether the disk is mounted.
            fs::create_dir_all(root.join("proc/self")).expect("folder");
            fs::write(root.join("proc/self/mounts"), "").expect("mounts");
            fs::write(root.join("disk"), "").expect("disk");
            fs::File::options()
                .write(true)
                .open(root.join("disk"))
                .and_then(|it| it.set_len(1 << 30))
                .expect("size");
            let program = Program::new("chroot").arg(root.as_str()).arg(filesystem.mkfs().expect("mkfs"));
            program.arg("/disk").output(&cancel).expect("makes a filesystem");
            let size =
                initramfs::write(&ctx, &userland.entries(), &root.join("initramfs")).expect("initramfs");
            println!("  initramfs: {size} bytes");
        }
        let all = collect(&ctx, &FilesystemKind::ALL, false).expect("all");
        println!("all: {} files, {}", all.files.len(), all.digest);
    }
}
