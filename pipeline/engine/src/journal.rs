//! The run folder: what was decided, and every boot that ended, one line each. A crash at any
//! point loses at most the boots that were running. Read [`RunFolder`] first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{BootRecord, RECORD_VERSION, RunRecord};

use crate::layout::{Lock, write_atomically};
use crate::shell::quote;

mod validate;

/// A run folder, locked while this lives: two kdelta never work on one run.
#[derive(Debug)]
pub struct RunFolder {
    path: Utf8PathBuf,
    journal: File,
    lock: Lock,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that another thread has just forked shares it until it
        // runs its program, and whoever opens the run at that moment would find it taken.
        let _ = self.lock.file().unlock();
    }
}

/// Why a run folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system says no.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The folder of a new run exists.
    #[error(
        "{0} exists already; go on with `kdelta run --resume {resume}`, or choose another folder with --out",
        resume = quote(.0.as_str())
    )]
    Exists(Utf8PathBuf),
    /// The folder of a new run holds something else.
    #[error("{0} is not empty; choose another run folder with --out")]
    NotEmpty(Utf8PathBuf),
    /// There is no such file or folder.
    #[error(
        "there is no run {0:?}; give the folder that `kdelta run` printed (kdelta-runs/NAME-TIME, or that of --out)"
    )]
    Absent(Utf8PathBuf),
    /// The folder holds no run.
    #[error("{0} holds no run (no session.json); give the folder that `kdelta run` printed")]
    NoRun(Utf8PathBuf),
    /// The run has no record yet.
    #[error("the run {0} is not finished; go on with: kdelta run --resume {resume}", resume = quote(.0.as_str()))]
    Unfinished(Utf8PathBuf),
    /// Another kdelta works on it.
    #[error("another kdelta works on {0}; wait for it to end")]
    Busy(Utf8PathBuf),
    /// A file cannot be understood.
    #[error(
        "{path} cannot be understood ({message}); it was written by another version or is damaged: use the kdelta that wrote it, or run the experiment again"
    )]
    Malformed {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        message: String,
    },
}

const SESSION: &str = "session.json";
const JOURNAL: &str = "journal.jsonl";
const RECORD: &str = "record.json";

impl RunFolder {
    /// Makes a new run folder; `session` is the record so far, without boots.
    ///
    /// # Errors
    /// When it exists or cannot be written.
    pub fn create(path: &Utf8Path, session: &RunRecord) -> Result<Self, JournalError> {
        Self::check_new(path)?;
        fs::create_dir_all(path.join("boots")).map_err(|source| file_error("create", path, source))?;
        write_json(&path.join(SESSION), session)?;
        Self::open_locked(path)
    }

    /// Says early, before anything slow, that a run folder is taken.
    ///
    /// # Errors
    /// When `path` is a file, holds anything, or cannot be made.
    pub fn check_new(path: &Utf8Path) -> Result<(), JournalError> {
        fs::create_dir_all(path).map_err(|source| file_error("make the run folder", path, source))?;
        let mut entries = fs::read_dir(path).map_err(|source| file_error("look into", path, source))?;
        match entries.next() {
            None => Ok(()),
            Some(_) if path.join(SESSION).exists() => Err(JournalError::Exists(path.to_owned())),
            Some(_) => Err(JournalError::NotEmpty(path.to_owned())),
        }
    }

    /// Says early that there is no run to go on with.
    ///
    /// # Errors
    /// When `path` is not there, or is no run folder.
    pub fn check_begun(path: &Utf8Path) -> Result<(), JournalError> {
        if path.join(SESSION).exists() {
            return Ok(());
        }
        Err(if path.exists() {
            JournalError::NoRun(path.to_owned())
        } else {
            JournalError::Absent(path.to_owned())
        })
    }

    /// Opens a run to go on with it: the session and the boots that ended. A last line torn by a
    /// crash is cut off.
    ///
    /// # Errors
    /// When there is no run, it is damaged, or somebody works on it.
    pub fn reopen(path: &Utf8Path) -> Result<(Self, RunRecord, Vec<BootRecord>), JournalError> {
        Self::check_begun(path)?;
        let session: RunRecord = read_record(&path.join(SESSION))?;
        let folder = Self::open_locked(path)?;
        let mut boots: BTreeMap<usize, BootRecord> = BTreeMap::new();
        for boot in folder.read_journal()? {
            validate::planned(&session.plan, &boot)
                .map_err(|message| JournalError::Malformed { path: path.join(JOURNAL), message })?;
            // A boot that the host spoiled may have been done again: the last line counts.
            boots.insert(boot.index, boot);
        }
        Ok((folder, session, boots.into_values().collect()))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Folder for the files of boot `index`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn boot_folder(&self, index: usize) -> Result<Utf8PathBuf, JournalError> {
        let path = self.path.join(format!("boots/{index:04}"));
        fs::create_dir_all(&path).map_err(|source| file_error("create", &path, source))?;
        Ok(path)
    }

    /// Adds a boot that ended; on return it is on the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&self, boot: &BootRecord) -> Result<(), JournalError> {
        let path = self.path.join(JOURNAL);
        let mut line = serde_json::to_vec(boot)
            .map_err(|error| JournalError::Malformed { path: path.clone(), message: error.to_string() })?;
        line.push(b'\n');
        let mut file = &self.journal;
        file.write_all(&line)
            .and_then(|()| file.sync_data())
            .map_err(|source| file_error("write", &path, source))
    }

    /// Writes the finished record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&self, record: &RunRecord) -> Result<Utf8PathBuf, JournalError> {
        let path = self.path.join(RECORD);
        write_json(&path, record)?;
        Ok(path)
    }

    fn open_locked(path: &Utf8Path) -> Result<Self, JournalError> {
        let lock_path = path.join("lock");
        let lock = Lock::try_acquire(&lock_path).map_err(|source| file_error("lock", &lock_path, source))?;
        let lock = lock.ok_or_else(|| JournalError::Busy(path.to_owned()))?;
        let journal_path = path.join(JOURNAL);
        let journal = File::options()
            .create(true)
            .append(true)
            .open(&journal_path)
            .map_err(|source| file_error("open", &journal_path, source))?;
        Ok(Self { path: path.to_owned(), journal, lock })
    }

    fn read_journal(&self) -> Result<Vec<BootRecord>, JournalError> {
        let path = self.path.join(JOURNAL);
        let text = fs::read(&path).map_err(|source| file_error("read", &path, source))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < text.len() {
            self.journal.set_len(whole as u64).map_err(|source| file_error("cut", &path, source))?;
        }
        text[..whole]
            .split(|byte| *byte == b'\n')
            .enumerate()
            .filter(|(_, line)| !line.is_empty())
            .map(|(number, line)| {
                serde_json::from_slice(line).map_err(|error| JournalError::Malformed {
                    path: path.clone(),
                    message: format!("line {}: {error}", number + 1),
                })
            })
            .collect()
    }
}

/// The record of a finished run: a run folder or the `record.json` itself.
///
/// # Errors
/// When there is none or it is of another version.
pub fn read_finished(path: &Utf8Path) -> Result<RunRecord, JournalError> {
    if !path.exists() {
        return Err(JournalError::Absent(path.to_owned()));
    }
    if !path.is_dir() {
        return read_record(path);
    }
    let record = path.join(RECORD);
    match (record.exists(), path.join(SESSION).exists()) {
        (true, _) => read_record(&record),
        (false, true) => Err(JournalError::Unfinished(path.to_owned())),
        (false, false) => Err(JournalError::NoRun(path.to_owned())),
    }
}

fn read_record(path: &Utf8Path) -> Result<RunRecord, JournalError> {
    /// Read first, so that a newer record is told apart from a damaged one.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let text = fs::read(path).map_err(|source| file_error("read", path, source))?;
    let malformed = |message: String| JournalError::Malformed { path: path.to_owned(), message };
    let versioned: Versioned = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    if versioned.version != RECORD_VERSION {
        return Err(malformed(format!(
            "record version {}, this kdelta reads {RECORD_VERSION}",
            versioned.version
        )));
    }
    let record: RunRecord = serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    validate::record(&record).map_err(malformed)?;
    Ok(record)
}

fn write_json(path: &Utf8Path, record: &RunRecord) -> Result<(), JournalError> {
    let mut bytes = serde_json::to_vec_pretty(record)
        .map_err(|error| JournalError::Malformed { path: path.to_owned(), message: error.to_string() })?;
    bytes.push(b'\n');
    write_atomically(path, &bytes).map_err(|source| file_error("write", path, source))
}

fn file_error(action: &'static str, path: &Utf8Path, source: io::Error) -> JournalError {
    JournalError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
