//! Keeps a copy of a user's source folder, which is itself never written. Read [`update`] first,
//! then [`Seen`], what is remembered of each file.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::Digest;
use serde::{Deserialize, Serialize};

use super::{SourceError, io_error};
use crate::git;
use crate::layout::{Context, write_atomically};

/// How often progress is told.
const TELL: Duration = Duration::from_millis(200);
/// A file changed this recently may change again without a new time stamp: its content is looked at
/// the next time too. File systems stamp with the clock tick, 1 to 10 ms; some only with seconds.
const SETTLED: i128 = 2_000_000_000;
/// Makes an executable from a plain file.
const EXECUTABLE: u32 = 0o111;

/// What is remembered of one file of the user's folder: as long as its stamp is the same, so is its
/// content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    stamp: Stamp,
    kind: Kind,
    digest: String,
}

/// Size, inode, and times in nanoseconds. The time of the last inode change cannot be set by
/// programs, so that `cp -p` and `touch -d` do not hide a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    inode: u64,
    modified: i128,
    changed: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Plain,
    Executable,
    Link,
}

/// Makes `FOLDER/tree` hold what `user` holds, and returns the digest of it and how many files were
/// written or deleted. Files that are equal are left alone, and what is written gets the present
/// time: with the user's own, make(1) would take a file that was saved during the last build for
/// older than its object.
///
/// # Errors
/// When a file cannot be read or written, or the folder was built in.
pub fn update(
    ctx: &Context<'_>,
    stage: &str,
    user: &Utf8Path,
    folder: &Utf8Path,
) -> Result<(Digest, usize), SourceError> {
    let files = list(ctx, user)?;
    let tree = folder.join("tree");
    fs::create_dir_all(&tree).map_err(|source| io_error("create", &tree, source))?;
    let memory = folder.join("mirror.json");
    let known: BTreeMap<Utf8PathBuf, Seen> =
        fs::read(&memory).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let mut changes = remove_strays(&tree, &files)?;
    let mut seen = BTreeMap::new();
    let mut told = Instant::now();
    let total = files.len() as u64;
    for (done, name) in (0..).zip(files) {
        if ctx.cancel.is_requested() {
            return Err(SourceError::Cancelled);
        }
        if told.elapsed() >= TELL {
            ctx.progress(stage, done, Some(total), name.as_str());
            told = Instant::now();
        }
        let entry = match known.get(&name) {
            Some(entry) if is_current(entry, &user.join(&name), &tree.join(&name)) => entry.clone(),
            _ => {
                let (entry, written) = copy(&user.join(&name), &tree.join(&name))?;
                changes += usize::from(written);
                entry
            }
        };
        seen.insert(name, entry);
    }
    let digest = digest(&seen);
    if seen != known {
        let text = serde_json::to_vec(&seen).unwrap_or_default();
        write_atomically(&memory, &text).map_err(|source| io_error("write", &memory, source))?;
    }
    Ok((digest, changes))
}

/// The files to copy, sorted.
fn list(ctx: &Context<'_>, user: &Utf8Path) -> Result<Vec<Utf8PathBuf>, SourceError> {
    let mut files = if user.join(".git").exists() {
        git::files_of(ctx, user)?
    } else {
        refuse_built(user)?;
        let mut files = Vec::new();
        walk(user, Utf8Path::new(""), &mut files)?;
        files.sort();
        files
    };
    // Kbuild refuses a tree with a .config when it builds elsewhere.
    files.retain(|name| name != ".config");
    Ok(files)
}

/// What kbuild itself looks for before it builds elsewhere (`outputmakefile` in the top Makefile).
fn refuse_built(user: &Utf8Path) -> Result<(), SourceError> {
    let built = |found: String| Err(SourceError::Built { path: user.to_owned(), found });
    if user.join("include/config").exists() {
        return built("include/config".into());
    }
    for arch in user.join("arch").read_dir_utf8().into_iter().flatten().flatten() {
        if arch.path().join("include/generated").exists() {
            return built(format!("arch/{}/include/generated", arch.file_name()));
        }
    }
    Ok(())
}

fn walk(root: &Utf8Path, folder: &Utf8Path, files: &mut Vec<Utf8PathBuf>) -> Result<(), SourceError> {
    let place = root.join(folder);
    let read = |source| io_error("read", &place, source);
    for entry in fs::read_dir(&place).map_err(read)? {
        let entry = entry.map_err(read)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return Err(SourceError::Name {
                folder: place.clone(),
                name: name.to_string_lossy().into_owned(),
                reason: "whose name is not UTF-8",
            });
        };
        let path = folder.join(name);
        let kind = entry.file_type().map_err(read)?;
        if kind.is_dir() {
            walk(root, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Deletes what the user's folder does not have any more; returns how many files that were.
fn remove_strays(tree: &Utf8Path, files: &[Utf8PathBuf]) -> Result<usize, SourceError> {
    let wanted: HashSet<&Utf8Path> = files.iter().map(|file| file.as_path()).collect();
    let folders: HashSet<&Utf8Path> = files.iter().flat_map(|file| file.ancestors().skip(1)).collect();
    remove_below(tree, Utf8Path::new(""), &wanted, &folders)
}

fn remove_below(
    tree: &Utf8Path,
    folder: &Utf8Path,
    wanted: &HashSet<&Utf8Path>,
    folders: &HashSet<&Utf8Path>,
) -> Result<usize, SourceError> {
    let place = tree.join(folder);
    let mut removed = 0;
    for entry in place.read_dir_utf8().map_err(|source| io_error("read", &place, source))? {
        let entry = entry.map_err(|source| io_error("read", &place, source))?;
        let name = folder.join(entry.file_name());
        let failed = |source| io_error("delete", entry.path(), source);
        let is_dir = entry.file_type().map_err(failed)?.is_dir();
        if is_dir && folders.contains(name.as_path()) {
            removed += remove_below(tree, &name, wanted, folders)?;
        } else if is_dir {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
            removed += 1;
        } else if !wanted.contains(name.as_path()) {
            fs::remove_file(entry.path()).map_err(failed)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether neither the user's file nor the presence of our copy changed since the last time.
fn is_current(entry: &Seen, user: &Utf8Path, ours: &Utf8Path) -> bool {
    let same =
        user.symlink_metadata().is_ok_and(|it| stamp(&it) == entry.stamp && kind(&it) == Some(entry.kind));
    let present =
        ours.symlink_metadata().is_ok_and(|it| it.len() == entry.stamp.size && kind(&it) == Some(entry.kind));
    same && present
}

/// Copies a file unless ours has the same content already; says whether it was written.
fn copy(user: &Utf8Path, ours: &Utf8Path) -> Result<(Seen, bool), SourceError> {
    let read = |source| io_error("read", user, source);
    let write = |source| io_error("write", ours, source);
    let metadata = user.symlink_metadata().map_err(read)?;
    let Some(kind) = kind(&metadata) else {
        return Err(SourceError::Name {
            folder: user.parent().unwrap_or(user).to_owned(),
            name: user.file_name().unwrap_or_default().to_owned(),
            reason: "a device, pipe or socket",
        });
    };
    let content = content(user, kind).map_err(read)?;
    let digest = blake3::hash(&content).to_hex().to_string();
    let entry = Seen { stamp: settled(stamp(&metadata)), kind, digest };
    let same = ours.symlink_metadata().is_ok_and(|it| self::kind(&it) == Some(kind))
        && self::content(ours, kind).is_ok_and(|present| present == content);
    if same {
        return Ok((entry, false));
    }
    if let Some(parent) = ours.parent() {
        fs::create_dir_all(parent).map_err(write)?;
    }
    match fs::remove_file(ours) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(write(source)),
        _ => {}
    }
    if kind == Kind::Link {
        symlink(String::from_utf8_lossy(&content).as_ref(), ours).map_err(write)?;
    } else {
        fs::write(ours, &content).map_err(write)?;
        let mode = if kind == Kind::Executable { 0o755 } else { 0o644 };
        fs::set_permissions(ours, fs::Permissions::from_mode(mode)).map_err(write)?;
    }
    Ok((entry, true))
}

fn content(path: &Utf8Path, kind: Kind) -> io::Result<Vec<u8>> {
    match kind {
        Kind::Link => Ok(path.read_link_utf8()?.into_string().into_bytes()),
        Kind::Plain | Kind::Executable => fs::read(path),
    }
}

fn kind(metadata: &Metadata) -> Option<Kind> {
    if metadata.is_symlink() {
        Some(Kind::Link)
    } else if !metadata.is_file() {
        None
    } else if metadata.mode() & EXECUTABLE != 0 {
        Some(Kind::Executable)
    } else {
        Some(Kind::Plain)
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Stamp {
        size: metadata.len(),
        inode: metadata.ino(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// A stamp that never matches, when the file changed a moment ago.
fn settled(stamp: Stamp) -> Stamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let age = i128::try_from(now).unwrap_or_default() - stamp.changed;
    if age < SETTLED { Stamp { changed: 0, ..stamp } } else { stamp }
}

/// One digest of all paths, kinds and contents.
fn digest(seen: &BTreeMap<Utf8PathBuf, Seen>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for (name, entry) in seen {
        let kind = match entry.kind {
            Kind::Plain => "file",
            Kind::Executable => "executable",
            Kind::Link => "link",
        };
        // A NUL ends each part: no path holds one.
        for part in [name.as_str(), kind, &entry.digest] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
    }
    Digest(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::git::tests::Sample;
    use crate::layout::Cache;

    struct Bench {
        dir: tempfile::TempDir,
        cache: Cache,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("folder");
            let cache =
                Cache::open(&Utf8Path::from_path(dir.path()).expect("UTF-8").join("cache")).expect("cache");
            let bench = Self { dir, cache };
            bench.write("Makefile", "VERSION = 1\n");
            bench.write("Kconfig", "mainmenu\n");
            bench.write("fs/a.c", "one\n");
            bench.write("fs/b.c", "same\n");
            symlink("a.c", bench.user().join("fs/link.c")).expect("link");
            bench
        }

        fn user(&self) -> Utf8PathBuf {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8").join("linux")
        }

        fn tree(&self) -> Utf8PathBuf {
            self.cache.trees().join("t/tree")
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.user().join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            fs::write(path, text).expect("write");
        }

        fn update(&self) -> Result<(Digest, usize), SourceError> {
            let cancel = Cancel::default();
            let ctx = Context { cache: &self.cache, events: &Silent, cancel: &cancel, jobs: 1 };
            update(&ctx, "test", &self.user(), &self.cache.trees().join("t"))
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.tree().join(name)).expect(name)
        }
    }

    #[test]
    fn only_what_changed_is_written_and_what_is_gone_is_deleted() {
        let bench = Bench::new();
        let (first, copied) = bench.update().expect("copy");
        assert_eq!(copied, 5);
        assert_eq!(bench.read("fs/link.c"), "one\n");
        assert_eq!(bench.update().expect("again"), (first.clone(), 0));
        bench.write("fs/a.c", "two\n");
        bench.write("fs/new/c.c", "new\n");
        fs::remove_file(bench.user().join("fs/b.c")).expect("remove");
        let (second, changed) = bench.update().expect("change");
        assert_eq!(changed, 3);
        assert_ne!(first, second);
        assert_eq!(bench.read("fs/a.c"), "two\n");
        assert!(!bench.tree().join("fs/b.c").exists());
        bench.write("fs/a.c", "one\n");
        bench.write("fs/b.c", "same\n");
        fs::remove_dir_all(bench.user().join("fs/new")).expect("remove");
        assert_eq!(bench.update().expect("back").0, first, "the digest is of the content alone");
        assert!(!bench.tree().join("fs/new").exists());
    }

    #[test]
    fn a_changed_file_is_newer_than_what_was_built_from_the_old_one() {
        let bench = Bench::new();
        bench.update().expect("copy");
        let built = SystemTime::now();
        bench.write("fs/a.c", "two\n");
        let source = fs::File::options().write(true).open(bench.user().join("fs/a.c")).expect("open");
        source.set_modified(built - Duration::from_secs(100)).expect("time");
        bench.update().expect("change");
        let ours = fs::metadata(bench.tree().join("fs/a.c")).expect("metadata").modified().expect("time");
        // File systems stamp with the clock tick, which is up to 10 ms behind.
        assert!(ours >= built - Duration::from_millis(20), "make would not compile it");
    }

    #[test]
    fn a_touched_file_is_not_written() {
        let bench = Bench::new();
        bench.update().expect("copy");
        let before = fs::metadata(bench.tree().join("fs/a.c")).expect("metadata").modified().expect("time");
        bench.write("fs/a.c", "one\n");
        assert_eq!(bench.update().expect("touch").1, 0);
        let after = fs::metadata(bench.tree().join("fs/a.c")).expect("metadata").modified().expect("time");
        assert_eq!(before, after);
    }

    #[test]
    fn a_damaged_copy_is_written_again() {
        let bench = Bench::new();
        let (first, _) = bench.update().expect("copy");
        fs::remove_file(bench.tree().join("fs/a.c")).expect("remove");
        fs::write(bench.tree().join("fs/b.c"), "longer than it was\n").expect("write");
        assert_eq!(bench.update().expect("repair"), (first, 2));
        assert_eq!((bench.read("fs/a.c"), bench.read("fs/b.c")), ("one\n".into(), "same\n".into()));
    }

    #[test]
    fn a_configuration_stays_outside_and_a_built_tree_is_refused() {
        let bench = Bench::new();
        bench.write(".config", "CONFIG_X=y\n");
        bench.update().expect("copy");
        assert!(!bench.tree().join(".config").exists());
        bench.write("arch/x86/include/generated/x.h", "");
        let error = bench.update().expect_err("built").to_string();
        assert!(error.contains("arch/x86/include/generated") && error.contains("mrproper"), "{error}");
    }

    #[test]
    fn ignored_files_of_a_repository_are_not_copied() {
        let sample = Sample::new();
        sample.write(".gitignore", "*.o\n/include/config/\n");
        sample.write("fs/x.o", "object");
        sample.write("include/config/auto.conf", "");
        sample.write("fs/untracked.c", "new");
        let (cache, cancel) = (sample.cache(), Cancel::default());
        let ctx = Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 };
        let folder = cache.trees().join("t");
        let (_, copied) = update(&ctx, "test", &sample.path(), &folder).expect("copy");
        assert_eq!(copied, 7);
        assert!(folder.join("tree/fs/untracked.c").exists());
        assert!(!folder.join("tree/fs/x.o").exists() && !folder.join("tree/include").exists());
    }
}
