//! Every git command, in an environment that hooks, pagers and the host's settings do not reach.
//! Read [`Repository`] first: a user's repository or a URL, seen through one of our own, so that
//! the user's is never written.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::kernel::is_url;
use thiserror::Error;

use crate::layout::{Context, Lock, write_atomically};
use crate::process::{Output, ProcessError, Program};

/// The stage under which slow commands report.
const STAGE: &str = "git";
/// Settings that would change what commands do or print, whatever the user has configured.
const SETTINGS: [&str; 15] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.quotePath=false",
    "core.attributesFile=/dev/null",
    "advice.detachedHead=false",
    "color.ui=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "gc.auto=0",
    "log.showSignature=false",
    "maintenance.auto=false",
    "submodule.recurse=false",
];
/// Variables that point git elsewhere; `git bisect run` and hooks set some of them.
const FOREIGN: [&str; 12] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CEILING_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
];

/// A repository of somebody else, and what we keep of it: `FOLDER/repo.git` borrows the objects of a
/// local repository or is a bare clone of a remote one, `FOLDER/tree` is the one work tree.
#[derive(Clone, Debug)]
pub struct Repository {
    location: String,
    origin: Origin,
    folder: Utf8PathBuf,
    key: String,
}

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its full hash.
    pub commit: String,
    /// The hash of its tree.
    pub tree: String,
}

/// Why a git command did not do its work.
#[derive(Debug, Error)]
pub enum GitError {
    /// There is no repository at that path.
    #[error(
        "{location} is no git repository: {said}; give the path of a repository, or a URL with a scheme \
         (https://, ssh://, git://)"
    )]
    NoRepository {
        /// What was given.
        location: String,
        /// What git or the system said.
        said: String,
    },
    /// The revision cannot be one.
    #[error("`{revision}` is no revision: it begins with `-` or holds a space; give a commit, tag or branch")]
    Refused {
        /// What was given.
        revision: String,
    },
    /// There is no such commit.
    #[error("there is no commit `{revision}` in {location}; {next}")]
    NoCommit {
        /// What was given.
        revision: String,
        /// Where it was looked for.
        location: String,
        /// What to do.
        next: &'static str,
    },
    /// A command failed.
    #[error("cannot {action} {location}: {source}")]
    Failed {
        /// What was attempted.
        action: &'static str,
        /// On which repository.
        location: String,
        /// What git said.
        source: ProcessError,
    },
    /// A file name that is not UTF-8.
    #[error("{location} holds the file `{name}`, whose name is not UTF-8; remove it from the tree")]
    Name {
        /// The repository.
        location: String,
        /// The name, as far as it can be shown.
        name: String,
    },
    /// A file of the cache cannot be used.
    #[error("cannot {action} {path}: {source}; make room or choose another --cache folder")]
    Io {
        /// `create`, `remove`.
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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Local { top: Utf8PathBuf, objects: Utf8PathBuf },
    Remote,
}

impl Repository {
    /// Finds `location`, a path or a URL, and makes our own view of it when there is none yet. A
    /// remote repository is cloned, which takes its time.
    ///
    /// # Errors
    /// When there is no such repository or it cannot be cloned.
    pub fn open(ctx: &Context<'_>, location: &str) -> Result<Self, GitError> {
        let (origin, identity) =
            if is_url(location) { (Origin::Remote, location.to_owned()) } else { Self::find(ctx, location)? };
        let key = format!("git-{}", &blake3::hash(identity.as_bytes()).to_hex()[..16]);
        let folder = ctx.cache.trees().join(&key);
        let repository = Self { location: location.to_owned(), origin, folder, key };
        repository.make(ctx)?;
        Ok(repository)
    }

    /// Our folder for it, `trees/KEY`.
    #[must_use]
    pub fn folder(&self) -> &Utf8Path {
        &self.folder
    }

    /// The name of that folder, the same for all work trees of one repository.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The commit that `revision` names. A local repository is asked itself. A clone is brought up to
    /// date when it does not know the revision, or when `refresh` is set: a branch may have moved.
    ///
    /// # Errors
    /// When there is no such commit.
    pub fn resolve(&self, ctx: &Context<'_>, revision: &str, refresh: bool) -> Result<Revision, GitError> {
        check_revision(revision)?;
        if self.origin == Origin::Remote && refresh {
            self.update(ctx, None)?;
        }
        if let Some(found) = self.look_up(ctx, revision)? {
            return Ok(found);
        }
        let next = match self.origin {
            Origin::Local { .. } => "fetch it there first, or see `git log` for what there is",
            Origin::Remote => {
                if !refresh {
                    self.update(ctx, None)?;
                }
                if let Some(found) = self.look_up(ctx, revision)? {
                    return Ok(found);
                }
                // Servers give single commits that no branch has, when they are named in full.
                let full = revision.len() >= 40 && revision.chars().all(|c| c.is_ascii_hexdigit());
                if full
                    && self.update(ctx, Some(revision)).is_ok()
                    && let Some(found) = self.look_up(ctx, revision)?
                {
                    return Ok(found);
                }
                "the clone was brought up to date: check the spelling, and that the commit was pushed"
            }
        };
        Err(GitError::NoCommit { revision: revision.to_owned(), location: self.location.clone(), next })
    }

    /// Makes `FOLDER/tree` hold exactly `revision`. Only files that differ are written, so that a
    /// build that follows is incremental. The tree has no `.git`: nothing in a build may depend on it.
    /// The caller holds the lock of the folder.
    ///
    /// # Errors
    /// When git fails or the disk is full.
    pub fn checkout(&self, ctx: &Context<'_>, revision: &Revision) -> Result<(), GitError> {
        let tree = self.folder.join("tree");
        let index = self.folder.join("index");
        fs::create_dir_all(&tree).map_err(|source| io_error("create", &tree, source))?;
        // Left behind by a run that was killed: whoever holds our lock owns the index.
        remove_if_there(&self.folder.join("index.lock"))?;
        let git = |arguments: &[&str]| {
            program()
                .args(arguments.iter().copied())
                .dir(&tree)
                .env("GIT_DIR", self.git_dir())
                .env("GIT_WORK_TREE", tree.as_str())
                .env("GIT_INDEX_FILE", index.as_str())
        };
        let failed = |source| self.failed("check out a commit of", source);
        if index.is_file() {
            // Files that were patched and restored are recognized by their content; the command also
            // fails when some differ, which is what the next one is for.
            match git(&["update-index", "-q", "--refresh"]).output(ctx.cancel) {
                Ok(_) | Err(ProcessError::Failed { .. }) => {}
                Err(source) => return Err(failed(source)),
            }
        }
        ctx.stage(STAGE, &format!("check out {}", &revision.commit[..12.min(revision.commit.len())]), || {
            let log = self.folder.join("git.log");
            git(&["read-tree", "-v", "--reset", "-u", &revision.commit])
                .logged(&log, None, ctx.cancel, || tell_progress(ctx, &log))
                .map_err(failed)?;
            git(&["clean", "-ffdxq"]).output(ctx.cancel).map_err(failed)?;
            Ok(((), String::new()))
        })
    }

    fn git_dir(&self) -> Utf8PathBuf {
        self.folder.join("repo.git")
    }

    /// A command on our repository.
    fn ours(&self) -> Program {
        program().env("GIT_DIR", self.git_dir())
    }

    fn find(ctx: &Context<'_>, location: &str) -> Result<(Origin, String), GitError> {
        let wrong = |said: String| GitError::NoRepository { location: location.to_owned(), said };
        let top = Utf8Path::new(location).canonicalize_utf8().map_err(|error| wrong(error.to_string()))?;
        let ask = |arguments: &[&str]| -> Result<Output, GitError> {
            let git = program().args(arguments.iter().copied()).dir(&top);
            git.output(ctx.cancel).map_err(|error| match error {
                ProcessError::Failed { said, .. } => wrong(said),
                ProcessError::Cancelled => GitError::Cancelled,
                source => GitError::Failed { action: "open", location: location.to_owned(), source },
            })
        };
        let common = ask(&["rev-parse", "--path-format=absolute", "--git-common-dir"])?.text();
        let objects = ask(&["rev-parse", "--path-format=absolute", "--git-path", "objects"])?.text();
        Ok((Origin::Local { top, objects: objects.into() }, common))
    }

    /// Makes `repo.git` when it is not there.
    fn make(&self, ctx: &Context<'_>) -> Result<(), GitError> {
        fs::create_dir_all(&self.folder).map_err(|source| io_error("create", &self.folder, source))?;
        let _lock = self.lock(ctx)?;
        let git_dir = self.git_dir();
        if !git_dir.is_dir() {
            let scratch = ctx.cache.scratch().map_err(|source| io_error("create", &git_dir, source))?;
            match &self.origin {
                Origin::Local { .. } => {
                    program()
                        .args(["init", "--quiet", "--bare", "--template="])
                        .arg(scratch.path().as_str())
                        .output(ctx.cancel)
                        .map_err(|source| self.failed("borrow the objects of", source))?;
                }
                Origin::Remote => self.clone_to(ctx, scratch.path())?,
            }
            scratch.publish(&git_dir).map_err(|source| io_error("create", &git_dir, source))?;
        }
        if let Origin::Local { objects, .. } = &self.origin {
            // gitrepository-layout(5): objects that are not here are looked for there. Written every
            // time, because the user's repository may have moved behind the same key.
            let alternates = git_dir.join("objects/info/alternates");
            let text = format!("{objects}\n");
            if fs::read_to_string(&alternates).ok().as_deref() != Some(&text) {
                let written = fs::create_dir_all(git_dir.join("objects/info"))
                    .and_then(|()| write_atomically(&alternates, text.as_bytes()));
                written.map_err(|source| io_error("write", &alternates, source))?;
            }
        }
        Ok(())
    }

    fn clone_to(&self, ctx: &Context<'_>, target: &Utf8Path) -> Result<(), GitError> {
        ctx.stage(STAGE, &format!("clone {}", self.location), || {
            let log = self.folder.join("git.log");
            program()
                .args(["clone", "--bare", "--progress", "--template=", "--"])
                .arg(self.location.as_str())
                .arg(target.as_str())
                .logged(&log, None, ctx.cancel, || tell_progress(ctx, &log))
                .map_err(|source| self.failed("clone", source))?;
            Ok(((), String::new()))
        })
    }

    /// Fetches branches and tags, or one commit.
    fn update(&self, ctx: &Context<'_>, commit: Option<&str>) -> Result<(), GitError> {
        let _lock = self.lock(ctx)?;
        ctx.stage(STAGE, &format!("fetch {}", self.location), || {
            let log = self.folder.join("git.log");
            let fetch = self.ours().args(["fetch", "--progress", "--no-write-fetch-head"]);
            let fetch = match commit {
                Some(commit) => fetch.args(["origin", commit]),
                None => fetch.args([
                    "--prune",
                    "origin",
                    "+refs/heads/*:refs/heads/*",
                    "+refs/tags/*:refs/tags/*",
                ]),
            };
            fetch
                .logged(&log, None, ctx.cancel, || tell_progress(ctx, &log))
                .map_err(|source| self.failed("fetch from", source))?;
            Ok(((), String::new()))
        })
    }

    fn look_up(&self, ctx: &Context<'_>, revision: &str) -> Result<Option<Revision>, GitError> {
        let ask = |object: String| {
            let git = match &self.origin {
                Origin::Local { top, .. } => program().dir(top),
                Origin::Remote => self.ours(),
            };
            match git.args(["rev-parse", "--verify", "--quiet"]).arg(object).output(ctx.cancel) {
                Ok(output) => Ok(Some(output.text())),
                Err(ProcessError::Failed { .. }) => Ok(None),
                Err(source) => Err(self.failed("look up a commit in", source)),
            }
        };
        let Some(commit) = ask(format!("{revision}^{{commit}}"))? else {
            return Ok(None);
        };
        let tree = ask(format!("{commit}^{{tree}}"))?;
        Ok(tree.map(|tree| Revision { commit, tree }))
    }

    fn lock(&self, ctx: &Context<'_>) -> Result<Lock, GitError> {
        let path = self.folder.join("repo.lock");
        Lock::acquire(&path, ctx.cancel, || ctx.warn("waiting for another kdelta that fetches"))
            .map_err(|source| io_error("lock", &path, source))
    }

    fn failed(&self, action: &'static str, source: ProcessError) -> GitError {
        match source {
            ProcessError::Cancelled => GitError::Cancelled,
            source => GitError::Failed { action, location: self.location.clone(), source },
        }
    }
}

/// The files of the work tree at `folder` that git tracks or would track, sorted; files that are
/// ignored, and those that were deleted but not yet committed, are not among them.
///
/// # Errors
/// When `folder` is no work tree, or a name is not UTF-8.
pub fn files_of(ctx: &Context<'_>, folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>, GitError> {
    let output = program()
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .dir(folder)
        .output(ctx.cancel)
        .map_err(|source| match source {
            ProcessError::Cancelled => GitError::Cancelled,
            source => GitError::Failed { action: "list the files of", location: folder.to_string(), source },
        })?;
    let mut files = Vec::new();
    for name in output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).map_err(|_| GitError::Name {
            location: folder.to_string(),
            name: String::from_utf8_lossy(name).into_owned(),
        })?;
        // A name with a slash at its end is a repository inside the repository.
        if !name.ends_with('/') && folder.join(name).symlink_metadata().is_ok_and(|it| !it.is_dir()) {
            files.push(Utf8PathBuf::from(name));
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// The commits of a range, as patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// One mbox, oldest commit first; empty when the range is.
    pub(crate) mbox: Vec<u8>,
    /// Merges in the range, which are no patches.
    pub(crate) merges: usize,
}

/// Options of `git format-patch` that make its output the same whatever the user has configured.
const FORMAT_PATCH: [&str; 24] = [
    "--stdout",
    "--no-numbered",
    "--no-signature",
    "--no-cover-letter",
    "--no-attach",
    "--no-thread",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--patch",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=default",
    "--indent-heuristic",
    "-O/dev/null",
    "--no-notes",
    "--no-base",
    "--no-add-header",
    "--no-signoff",
    "--binary",
    "--find-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--subject-prefix=PATCH",
];

/// Reads the commits of `range` (`A..B`) of the local `repository`.
///
/// # Errors
/// When there is no such repository or range.
pub(crate) fn range(ctx: &Context<'_>, repository: &Utf8Path, range: &str) -> Result<Range, ProcessError> {
    let run = |command: &str, options: &[&str]| {
        let git = program().dir(repository).arg(command).args(options.iter().copied());
        git.args(["--end-of-options", range, "--"]).output(ctx.cancel)
    };
    let merges = run("rev-list", &["--count", "--merges"])?.text().parse().unwrap_or(0);
    Ok(Range { mbox: run("format-patch", &FORMAT_PATCH)?.stdout, merges })
}

/// `git apply` of the file `patch` to the folder `tree`, which need not be a repository. `nowhere`
/// is a path at which there is none: inside of one, git would take the paths of the patch as
/// relative to its top and silently skip them all, and it must not touch an index.
pub(crate) fn apply(tree: &Utf8Path, patch: &Utf8Path, nowhere: &Utf8Path) -> Program {
    program()
        .dir(tree)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_DIR", nowhere.as_str())
        .args(["apply", "--whitespace=nowarn", "-p1"])
        .arg(patch.as_str())
}

/// git, in an environment of ours. The user's own settings stay readable, for credentials and
/// address rewriting alone; what would change results is overruled.
fn program() -> Program {
    let mut program = Program::new("git").arg("--no-pager");
    for setting in SETTINGS {
        program = program.arg("-c").arg(setting);
    }
    for name in FOREIGN {
        program = program.env_remove(name);
    }
    program
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh")
        .env("GIT_ASKPASS", "true")
        .env("SSH_ASKPASS_REQUIRE", "never")
}

fn check_revision(revision: &str) -> Result<(), GitError> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if revision.is_empty() || revision.starts_with('-') || revision.contains(odd) {
        return Err(GitError::Refused { revision: revision.to_owned() });
    }
    Ok(())
}

/// Tells the last percentage that git printed into `log`.
fn tell_progress(ctx: &Context<'_>, log: &Utf8Path) {
    let tail = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(256)))?;
        let mut bytes = Vec::new();
        file.take(256).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if let Some((done, detail)) = tail().ok().as_deref().and_then(percentage) {
        ctx.progress(STAGE, done, Some(100), &detail);
    }
}

/// Reads `Receiving objects:  12% (34/280)`.
fn percentage(text: &str) -> Option<(u64, String)> {
    let line = text.rsplit(['\r', '\n']).find(|line| line.contains('%'))?;
    let (what, rest) = line.split_once(':')?;
    let (number, _) = rest.split_once('%')?;
    Some((number.trim().parse().ok()?, what.trim().to_owned()))
}

fn remove_if_there(path: &Utf8Path) -> Result<(), GitError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path, source)),
        _ => Ok(()),
    }
}

fn io_error(action: &'static str, path: &Utf8Path, source: io::Error) -> GitError {
    GitError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::cancel::Cancel;
    use crate::event::Silent;
    use crate::layout::Cache;

    /// A repository with two commits and a tag on the first.
    pub(crate) struct Sample {
        pub(crate) dir: tempfile::TempDir,
    }

    impl Sample {
        pub(crate) fn new() -> Self {
            let sample = Self { dir: tempfile::tempdir().expect("folder") };
            fs::create_dir(sample.path()).expect("folder");
            sample.git(&["init", "--quiet", "--initial-branch=main"]);
            sample.write("Makefile", "VERSION = 1\n");
            sample.write("Kconfig", "mainmenu\n");
            sample.write("fs/a.c", "one\n");
            sample.write("fs/b.c", "same\n");
            sample.commit("first");
            sample.git(&["tag", "v1"]);
            sample.write("fs/a.c", "two\n");
            sample.write("fs/new.c", "new\n");
            sample.commit("second");
            sample
        }

        pub(crate) fn root(&self) -> &Utf8Path {
            Utf8Path::from_path(self.dir.path()).expect("UTF-8")
        }

        pub(crate) fn path(&self) -> Utf8PathBuf {
            self.root().join("linux")
        }

        pub(crate) fn cache(&self) -> Cache {
            Cache::open(&self.root().join("cache")).expect("cache")
        }

        pub(crate) fn write(&self, name: &str, text: &str) {
            let path = self.path().join(name);
            fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            fs::write(path, text).expect("write");
        }

        pub(crate) fn commit(&self, subject: &str) {
            self.git(&["add", "--all"]);
            self.git(&[
                "-c",
                "user.name=T",
                "-c",
                "user.email=t@example.org",
                "commit",
                "--quiet",
                "-m",
                subject,
            ]);
        }

        pub(crate) fn git(&self, arguments: &[&str]) -> String {
            let git = program().args(arguments.iter().copied()).dir(self.path());
            git.output(&Cancel::default()).expect("git").text()
        }
    }

    fn with(sample: &Sample, work: impl FnOnce(&Context<'_>)) {
        let (cache, cancel) = (sample.cache(), Cancel::default());
        work(&Context { cache: &cache, events: &Silent, cancel: &cancel, jobs: 1 });
    }

    fn modified(path: &Utf8Path) -> SystemTime {
        fs::metadata(path).expect("metadata").modified().expect("time")
    }

    #[test]
    fn a_checkout_writes_only_what_differs_and_never_the_user_s_repository() {
        let sample = Sample::new();
        let before = sample.git(&["status", "--porcelain"]) + &sample.git(&["worktree", "list"]);
        with(&sample, |ctx| {
            let repository = Repository::open(ctx, sample.path().as_str()).expect("open");
            let tree = repository.folder().join("tree");
            let first = repository.resolve(ctx, "v1", false).expect("v1");
            repository.checkout(ctx, &first).expect("check out");
            assert_eq!(first.tree, sample.git(&["rev-parse", "v1^{tree}"]));
            assert!(!tree.join("fs/new.c").exists() && !tree.join(".git").exists());
            let untouched = SystemTime::now() - Duration::from_secs(3600);
            let old = fs::File::options().write(true).open(tree.join("fs/b.c")).expect("open");
            old.set_modified(untouched).expect("time");
            let (same, changed) = (modified(&tree.join("fs/b.c")), modified(&tree.join("fs/a.c")));
            let second = repository.resolve(ctx, "main", false).expect("main");
            repository.checkout(ctx, &second).expect("check out");
            assert_eq!(fs::read_to_string(tree.join("fs/a.c")).expect("read"), "two\n");
            assert!(tree.join("fs/new.c").exists());
            assert_eq!(modified(&tree.join("fs/b.c")), same, "an equal file was written");
            assert!(modified(&tree.join("fs/a.c")) > changed);
        });
        assert_eq!(before, sample.git(&["status", "--porcelain"]) + &sample.git(&["worktree", "list"]));
    }

    #[test]
    fn whatever_happened_to_the_tree_a_checkout_makes_it_exact() {
        let sample = Sample::new();
        with(&sample, |ctx| {
            let repository = Repository::open(ctx, sample.path().as_str()).expect("open");
            let tree = repository.folder().join("tree");
            let first = repository.resolve(ctx, "v1", false).expect("v1");
            repository.checkout(ctx, &first).expect("check out");
            fs::write(tree.join("fs/a.c"), "patched\n").expect("write");
            fs::remove_file(tree.join("fs/b.c")).expect("remove");
            fs::write(tree.join("fs/stray.o"), "object").expect("write");
            fs::write(repository.folder().join("index.lock"), "").expect("write");
            repository.checkout(ctx, &first).expect("check out again");
            assert_eq!(fs::read_to_string(tree.join("fs/a.c")).expect("read"), "one\n");
            assert_eq!(fs::read_to_string(tree.join("fs/b.c")).expect("read"), "same\n");
            assert!(!tree.join("fs/stray.o").exists());
        });
    }

    #[test]
    fn a_clone_fetches_what_it_does_not_know() {
        let sample = Sample::new();
        with(&sample, |ctx| {
            let url = format!("file://{}", sample.path());
            let repository = Repository::open(ctx, &url).expect("clone");
            let head = repository.resolve(ctx, "HEAD", false).expect("HEAD");
            repository.checkout(ctx, &head).expect("check out");
            sample.write("fs/a.c", "three\n");
            sample.commit("third");
            sample.git(&["tag", "v3"]);
            let third = repository.resolve(ctx, "v3", false).expect("fetched");
            repository.checkout(ctx, &third).expect("check out");
            let text = fs::read_to_string(repository.folder().join("tree/fs/a.c")).expect("read");
            assert_eq!(text, "three\n");
            let error = repository.resolve(ctx, "v4", false).expect_err("unknown").to_string();
            assert!(error.contains("no commit `v4`") && error.contains("brought up to date"), "{error}");
        });
    }

    #[test]
    fn odd_revisions_and_places_are_refused() {
        let sample = Sample::new();
        with(&sample, |ctx| {
            let repository = Repository::open(ctx, sample.path().as_str()).expect("open");
            for revision in ["--upload-pack=x", "", "a b"] {
                let result = repository.resolve(ctx, revision, false);
                assert!(matches!(result, Err(GitError::Refused { .. })), "{revision}");
            }
            let error = repository.resolve(ctx, "nosuch", false).expect_err("unknown").to_string();
            assert!(
                error.contains("no commit `nosuch`") && error.contains("fetch it there first"),
                "{error}"
            );
            let error = Repository::open(ctx, "/nonexistent").expect_err("no repository").to_string();
            assert!(error.contains("is no git repository"), "{error}");
            let error =
                Repository::open(ctx, "ext::sh -c://x").expect_err("a program, not a place").to_string();
            assert!(error.contains("cannot clone"), "{error}");
        });
    }

    #[test]
    fn ignored_and_deleted_files_are_no_files() {
        let sample = Sample::new();
        sample.write(".gitignore", "*.o\n");
        sample.write("fs/x.o", "object");
        sample.write("fs/untracked.c", "new");
        fs::remove_file(sample.path().join("fs/b.c")).expect("remove");
        with(&sample, |ctx| {
            let files = files_of(ctx, &sample.path()).expect("list");
            let names: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
            assert_eq!(names, [".gitignore", "Kconfig", "Makefile", "fs/a.c", "fs/new.c", "fs/untracked.c"]);
        });
    }

    #[test]
    fn git_s_progress_is_read() {
        let text = "Receiving objects:  11% (31/280)\rReceiving objects:  12% (34/280)\r";
        assert_eq!(percentage(text), Some((12, "Receiving objects".into())));
        assert_eq!(percentage("Cloning into bare repository"), None);
    }
}
