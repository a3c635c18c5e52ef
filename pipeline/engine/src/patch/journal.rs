//! Applies patches to a tree in place and takes them back, also after a crash. Read [`apply`] first;
//! [`Journal`] is what lies on the disk in between.
//!
//! `<folder>/tree` is the tree and `<folder>/applied` the journal: the pristine form of every file
//! that the patches touch. The journal appears by one rename before the first file changes, and goes
//! by one rename after the last file is back, so that its presence means "the tree may differ".

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::diff::{self, FileDiff};
use super::{Patch, PatchError, rejection};
use crate::git;
use crate::layout::Context;
use crate::process::{ProcessError, Program};

/// Version of the journal; another one is refused.
const VERSION: u32 = 1;

/// The list that a journal holds beside its copies.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    version: u32,
    /// Every path that the patches touch.
    entries: Vec<Entry>,
    /// Folders that did not exist, outermost first.
    made_folders: Vec<Utf8PathBuf>,
}

/// One path before the patches.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: Utf8PathBuf,
    before: Before,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Before {
    /// There was no such file.
    Absent,
    /// A file; its copy has this name in the journal.
    File { copy: String },
    /// A symbolic link.
    Link { target: Utf8PathBuf },
}

/// Applies `patches` to `<folder>/tree`, after taking back what an earlier call applied. The caller
/// holds the lock of the folder. When it fails, the tree is as it was unpacked.
///
/// # Errors
/// When a patch names a file outside of the tree, does not apply, or the disk fails.
pub fn apply(ctx: &Context, folder: &Utf8Path, patches: &[Patch]) -> Result<(), PatchError> {
    restore(folder)?;
    if patches.is_empty() {
        return Ok(());
    }
    let tree = folder.join("tree");
    let series = patches.iter().map(|patch| parsed(&tree, patch)).collect::<Result<Vec<_>, _>>()?;
    save(folder, &series)?;
    let applied = patches
        .iter()
        .zip(&series)
        .enumerate()
        .try_for_each(|(index, (patch, files))| apply_one(ctx, folder, &patch_name(index), patch, files));
    if applied.is_err() {
        restore(folder)?;
    }
    applied
}

/// Puts the tree back to what it was before [`apply`]. Files that were touched get a new time stamp
/// even if their content never changed, because objects may have been built from the changed ones.
/// May be called at any time and again after a crash.
///
/// # Errors
/// When the disk fails or the journal is damaged.
pub fn restore(folder: &Utf8Path) -> Result<(), PatchError> {
    let journal = folder.join("applied");
    for leftover in [folder.join("applied.making"), folder.join("applied.done")] {
        remove_folder(&leftover)?;
    }
    if !journal.exists() {
        return Ok(());
    }
    let tree = folder.join("tree");
    if tree.is_dir() {
        put_back(&tree, &journal)?;
        sync(&tree)?;
    }
    let done = folder.join("applied.done");
    fs::rename(&journal, &done).map_err(io_error("rename", &journal))?;
    remove_folder(&done)
}

fn io_error(doing: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> PatchError {
    let path = path.to_owned();
    move |source| PatchError::Io { doing, path, source }
}

/// The changes of a patch, all of them inside of the tree.
fn parsed(tree: &Utf8Path, patch: &Patch) -> Result<Vec<FileDiff>, PatchError> {
    let origin = || patch.origin.clone();
    let files =
        diff::parse(&patch.text, 1).map_err(|damage| PatchError::Damaged { origin: origin(), damage })?;
    if files.is_empty() {
        return Err(PatchError::Nothing { place: origin(), found: "its text has no diff".into() });
    }
    for file in &files {
        for path in file.paths() {
            let submodule = file.is_submodule().then(|| "is a submodule, not a file".to_owned());
            if let Some(why) = submodule.or_else(|| hostile(tree, path)) {
                return Err(PatchError::Refused { origin: origin(), path: path.to_owned(), why });
            }
        }
    }
    Ok(files)
}

/// Why a path must not be touched.
fn hostile(tree: &Utf8Path, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return Some("is absolute".into());
    }
    if path.contains('\0') {
        return Some("has a NUL byte".into());
    }
    for component in path.split('/') {
        let why = match component {
            "" => "has an empty component",
            "." => "has the component `.`",
            ".." => "leaves the tree by `..`",
            _ if component.eq_ignore_ascii_case(".git") => "lies in git's own folder",
            _ => continue,
        };
        return Some(why.into());
    }
    link_on_the_way(tree, Utf8Path::new(path)).map(|link| format!("passes through the symbolic link {link}"))
}

/// The first folder on the way to `path` that is a symbolic link.
fn link_on_the_way<'p>(tree: &Utf8Path, path: &'p Utf8Path) -> Option<&'p Utf8Path> {
    let parents = path.ancestors().skip(1).filter(|parent| !parent.as_str().is_empty());
    parents.filter(|parent| tree.join(parent).is_symlink()).last()
}

fn patch_name(index: usize) -> String {
    format!("{:04}.patch", index + 1)
}

/// Writes the journal aside, flushes it and makes it appear.
fn save(folder: &Utf8Path, series: &[Vec<FileDiff>]) -> Result<(), PatchError> {
    let (tree, making, ready) = (folder.join("tree"), folder.join("applied.making"), folder.join("applied"));
    fs::create_dir(&making).map_err(io_error("create", &making))?;
    let touched: BTreeSet<&str> = series.iter().flatten().flat_map(FileDiff::paths).collect();
    let mut entries = Vec::new();
    let mut made_folders = BTreeSet::new();
    for (index, path) in touched.into_iter().map(Utf8Path::new).enumerate() {
        let before = pristine(&tree.join(path), &making, format!("{index:06}"))?;
        entries.push(Entry { path: path.to_owned(), before });
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_str().is_empty());
        made_folders.extend(parents.filter(|parent| !tree.join(parent).is_dir()).map(Utf8Path::to_owned));
    }
    for (index, files) in series.iter().enumerate() {
        let path = making.join(patch_name(index));
        fs::write(&path, diff::render(files)).map_err(io_error("write", &path))?;
    }
    let list = making.join("journal.json");
    let journal = Journal { version: VERSION, entries, made_folders: made_folders.into_iter().collect() };
    let json = serde_json::to_vec_pretty(&journal)
        .map_err(|error| PatchError::Journal { path: list.clone(), why: error.to_string() })?;
    fs::write(&list, json).map_err(io_error("write", &list))?;
    sync(&making)?;
    fs::rename(&making, &ready).map_err(io_error("rename", &making))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("flush", folder))
}

/// Copies one file into the journal, with its mode.
fn pristine(path: &Utf8Path, journal: &Utf8Path, copy: String) -> Result<Before, PatchError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Before::Absent);
        }
        Err(error) => return Err(io_error("read", path)(error)),
    };
    if meta.is_symlink() {
        let target = path.read_link_utf8().map_err(io_error("read the link", path))?;
        return Ok(Before::Link { target });
    }
    if !meta.is_file() {
        // A folder may make room for a file; what it holds is listed by itself.
        return Ok(Before::Absent);
    }
    fs::copy(path, journal.join(&copy)).map_err(io_error("copy", path))?;
    Ok(Before::File { copy })
}

fn put_back(tree: &Utf8Path, journal: &Utf8Path) -> Result<(), PatchError> {
    let list = journal.join("journal.json");
    let broken = |why: String| PatchError::Journal { path: journal.to_owned(), why };
    let json = fs::read(&list).map_err(io_error("read", &list))?;
    let Journal { version, entries, made_folders } =
        serde_json::from_slice(&json).map_err(|error| broken(error.to_string()))?;
    if version != VERSION {
        return Err(broken(format!("version {version} instead of {VERSION}")));
    }
    // What the patches made goes first, so that no link of theirs is followed later.
    for entry in entries.iter().filter(|entry| matches!(entry.before, Before::Absent)).rev() {
        if link_on_the_way(tree, &entry.path).is_none() {
            remove_file(&tree.join(&entry.path))?;
        }
    }
    for folder in made_folders.iter().rev() {
        if link_on_the_way(tree, folder).is_none() {
            // Only when empty; what somebody else put there stays.
            let _ = fs::remove_dir(tree.join(folder));
        }
    }
    let fresh = journal.join("fresh");
    for entry in &entries {
        let path = tree.join(&entry.path);
        remove_file(&fresh)?;
        match &entry.before {
            Before::Absent => continue,
            Before::File { copy } => {
                let copy = journal.join(copy);
                fs::copy(&copy, &fresh).map_err(io_error("copy", &copy))?;
            }
            Before::Link { target } => symlink(target, &fresh).map_err(io_error("make the link", &fresh))?,
        }
        if let Some(link) = link_on_the_way(tree, &entry.path) {
            return Err(broken(format!("the folder {link} of {} has become a symbolic link", entry.path)));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io_error("create", parent))?;
        }
        fs::rename(&fresh, &path).map_err(io_error("restore", &path))?;
    }
    Ok(())
}

/// Removes a file or link; a folder or nothing is left alone.
fn remove_file(path: &Utf8Path) -> Result<(), PatchError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_dir() => fs::remove_file(path).map_err(io_error("remove", path)),
        _ => Ok(()),
    }
}

fn remove_folder(path: &Utf8Path) -> Result<(), PatchError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Utf8Path) -> Result<(), PatchError> {
    let flush = || -> io::Result<()> { Ok(rustix::fs::syncfs(File::open(folder)?)?) };
    flush().map_err(io_error("flush", folder))
}

/// `git apply` of the patch file `name` of the journal.
pub(super) fn git_apply(folder: &Utf8Path, name: &str) -> Program {
    let journal = folder.join("applied");
    let (patch, nowhere) = (absolute(&journal.join(name)), absolute(&journal.join("no-repository")));
    git::apply(&folder.join("tree"), &patch, &nowhere)
}

fn absolute(path: &Utf8Path) -> Utf8PathBuf {
    camino::absolute_utf8(path).unwrap_or_else(|_| path.to_owned())
}

fn apply_one(
    ctx: &Context,
    folder: &Utf8Path,
    name: &str,
    patch: &Patch,
    files: &[FileDiff],
) -> Result<(), PatchError> {
    match git_apply(folder, name).output(ctx.cancel) {
        Ok(_) => Ok(()),
        Err(ProcessError::Failed { said, .. }) => Err(PatchError::DoesNotApply {
            origin: patch.origin.clone(),
            subject: patch.subject.clone(),
            report: rejection::report(ctx, folder, name, files, &said)?,
        }),
        Err(error) => Err(error.into()),
    }
}
