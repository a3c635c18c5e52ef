//! Where things are kept between runs. Read [`Cache`] first; [`Context`] is what every slow
//! function of the engine is given.

use std::fs::{self, File};
use std::io;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::cancel::Cancel;
use crate::event::{Event, EventSink};

/// The cache folder. Everything in it is named by the content it was made from and appears by one
/// rename, so that it may be deleted at any time and is never seen half made.
#[derive(Clone, Debug)]
pub struct Cache {
    root: Utf8PathBuf,
}

impl Cache {
    /// The cache at `root`, created when missing.
    ///
    /// # Errors
    /// When the folders cannot be created.
    pub fn open(root: &Utf8Path) -> io::Result<Self> {
        for folder in ["downloads", "apt", "trees", "objects", "kernels", "userland", "images", "aged", "tmp"]
        {
            fs::create_dir_all(root.join(folder))?;
        }
        Ok(Self { root: root.canonicalize_utf8()? })
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// Files fetched from elsewhere.
    #[must_use]
    pub fn downloads(&self) -> Utf8PathBuf {
        self.root.join("downloads")
    }

    /// apt's state, one folder for each release.
    #[must_use]
    pub fn apt(&self) -> Utf8PathBuf {
        self.root.join("apt")
    }

    /// Unpacked kernel sources, one folder for each.
    #[must_use]
    pub fn trees(&self) -> Utf8PathBuf {
        self.root.join("trees")
    }

    /// Kbuild output folders, one for each tree and configuration.
    #[must_use]
    pub fn objects(&self) -> Utf8PathBuf {
        self.root.join("objects")
    }

    /// Finished kernels, by fingerprint.
    #[must_use]
    pub fn kernels(&self) -> Utf8PathBuf {
        self.root.join("kernels")
    }

    /// Programs for the guest, by fingerprint.
    #[must_use]
    pub fn userland(&self) -> Utf8PathBuf {
        self.root.join("userland")
    }

    /// Initramfs images, by fingerprint.
    #[must_use]
    pub fn images(&self) -> Utf8PathBuf {
        self.root.join("images")
    }

    /// Images of used filesystems, by fingerprint.
    #[must_use]
    pub fn aged(&self) -> Utf8PathBuf {
        self.root.join("aged")
    }

    /// A fresh folder on the same filesystem as the rest, removed on drop unless published.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn scratch(&self) -> io::Result<Scratch> {
        let dir = tempfile::Builder::new().prefix("making-").tempdir_in(self.root.join("tmp"))?;
        Ok(Scratch { dir })
    }
}

/// A folder in the making.
#[derive(Debug)]
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// Where to put things.
    ///
    /// # Panics
    /// Never: the cache root is UTF-8 and so are the names below it.
    #[must_use]
    pub fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).expect("a path below a UTF-8 cache root")
    }

    /// Makes the folder appear as `target` by one rename. When somebody else published the same
    /// target first, theirs stays and this one is dropped.
    ///
    /// # Errors
    /// When files cannot be flushed or the rename fails.
    pub fn publish(self, target: &Utf8Path) -> io::Result<()> {
        sync_tree(self.path())?;
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::rename(self.path(), target) {
            Ok(()) => {
                let _ = self.dir.keep();
                target.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
            }
            Err(_) if target.is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What slow functions need beside their arguments.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Where finished things are kept.
    pub cache: &'a Cache,
    /// Where events go.
    pub events: &'a dyn EventSink,
    /// Whether to stop.
    pub cancel: &'a Cancel,
    /// Parallel compiler jobs and VMs.
    pub jobs: usize,
}

impl Context<'_> {
    /// Runs `work` as a stage: announces it, and says how long it took when it went well. `work`
    /// returns its result and what to say of it.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn stage<T, E>(
        &self,
        stage: &str,
        detail: &str,
        work: impl FnOnce() -> Result<(T, String), E>,
    ) -> Result<T, E> {
        let started = Instant::now();
        self.events.emit(Event::StageStarted { stage: stage.to_owned(), detail: detail.to_owned() });
        let (value, detail) = work()?;
        self.events.emit(Event::StageFinished { stage: stage.to_owned(), took: started.elapsed(), detail });
        Ok(value)
    }

    /// Tells how far `stage` is.
    pub fn progress(&self, stage: &str, done: u64, total: Option<u64>, detail: &str) {
        self.events.emit(Event::StageProgress {
            stage: stage.to_owned(),
            done,
            total,
            detail: detail.to_owned(),
        });
    }

    /// Tells the user something that is no error.
    pub fn warn(&self, text: impl Into<String>) {
        self.events.emit(Event::Warning { text: text.into() });
    }
}

/// An exclusive lock on a file, held until dropped. Children that inherit it keep holding it, so
/// that compilers left behind by a killed run are waited for.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Waits for the lock at `path`, calling `waiting` once if somebody else holds it.
    ///
    /// # Errors
    /// When the file cannot be opened or locked, or (as `Interrupted`) when the user asks to stop.
    pub fn acquire(path: &Utf8Path, cancel: &Cancel, waiting: impl FnOnce()) -> io::Result<Self> {
        /// How often the lock is tried.
        const POLL: Duration = Duration::from_millis(100);
        if let Some(lock) = Self::try_acquire(path)? {
            return Ok(lock);
        }
        waiting();
        loop {
            std::thread::sleep(POLL);
            if cancel.is_requested() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "stopped on request"));
            }
            if let Some(lock) = Self::try_acquire(path)? {
                return Ok(lock);
            }
        }
    }

    /// The lock at `path`, or `None` when somebody else holds it.
    ///
    /// # Errors
    /// When the file cannot be opened or locked.
    pub fn try_acquire(path: &Utf8Path) -> io::Result<Option<Self>> {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// The locked file, to hand to children.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Writes `bytes` to `path` by way of a temporary file and a rename.
///
/// # Errors
/// When writing, flushing or renaming fails.
pub fn write_atomically(path: &Utf8Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    file.as_file().sync_all()?;
    fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn sync_tree(folder: &Utf8Path) -> io::Result<()> {
    // One syncfs(2) is cheaper than an fsync of every file of a kernel tree.
    Ok(rustix::fs::syncfs(File::open(folder)?)?)
}
