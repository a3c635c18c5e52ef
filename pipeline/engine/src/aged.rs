//! Images of used filesystems: made by one boot before the session, kept in the cache, attached to
//! every boot that starts from them. Read [`make_all`] first.
//!
//! An image does not depend on what is measured: it is made with default mount options by the first
//! arm that asks for it, and all arms that ask for the same share it.

use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{AgedRecord, Arm, Digest, Outcome, Plan};
use kdelta_wire::{ImageHeader, ImageUse, Job};
use serde::{Deserialize, Serialize};

use crate::image::{self, GuestImage, ImageError};
use crate::kernel::{Kernel, Owner};
use crate::layout::Context;
use crate::process::ProcessError;
use crate::run;
use crate::vm::{BootResult, BootSpec, Deadlines, Guest, Window};

/// Raised whenever the same inputs would give another image.
const RECIPE: &str = "kdelta-aged-1";
/// The stage under which progress is told.
const STAGE: &str = "aged filesystem";
const IMAGE: &str = "image";
const FACTS: &str = "facts.json";

/// An image that can be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgedImage {
    /// The file; its length is a power of two.
    pub path: Utf8PathBuf,
    /// Length of the file.
    pub window: u64,
    /// What is in it.
    pub record: AgedRecord,
}

impl AgedImage {
    /// How a boot sees it.
    #[must_use]
    pub fn window(&self) -> Window<'_> {
        Window { path: &self.path, bytes: self.window, writable: false }
    }
}

/// What is kept beside an image.
#[derive(Serialize, Deserialize)]
struct Facts {
    /// Bytes of the image; the rest of the file is zero.
    length: u64,
    record: AgedRecord,
}

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AgedError {
    /// The boot that makes it failed.
    #[error("the filesystem that {arm} starts from could not be made: {}", .outcome.message())]
    Boot {
        /// The arm that asked for it first.
        arm: String,
        /// How it ended.
        outcome: Outcome,
    },
    /// A workload did not do what it claims.
    #[error(
        "the filesystem that {arm} starts from is not what was asked for: {scenario} round {round}: {check} must be {expected} and is {actual}"
    )]
    Check {
        /// The arm that asked for it first.
        arm: String,
        /// What ran.
        scenario: String,
        /// From 0.
        round: u32,
        /// Name of the check.
        check: String,
        /// What must be.
        expected: String,
        /// What was.
        actual: String,
    },
    /// The boot ended well and left no image.
    #[error(
        "the boot that makes the filesystem {arm} starts from left no image; report this as a bug of kdelta"
    )]
    NoImage {
        /// The arm that asked for it first.
        arm: String,
    },
    /// The guest's initramfs cannot be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A stored image is not what was stored.
    #[error("{path} is damaged ({message}); delete it and try again")]
    Damaged {
        /// The folder.
        path: Utf8PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Stopped.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl AgedError {
    /// Whose fault it is.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match self {
            Self::Boot { outcome, .. } => match outcome {
                Outcome::BootFailed { .. } | Outcome::KernelFailed { .. } | Outcome::TimedOut { .. } => {
                    Owner::Kernel
                }
                // Most often it does not fit onto the disk.
                Outcome::WorkloadFailed { .. } => Owner::User,
                Outcome::Completed | Outcome::HostFailed { .. } => Owner::Host,
            },
            Self::Check { .. } => Owner::User,
            Self::NoImage { .. }
            | Self::Image(_)
            | Self::File { .. }
            | Self::Damaged { .. }
            | Self::Process(_) => Owner::Host,
        }
    }
}

/// The image of each arm of `plan`, where it starts from one.
///
/// # Errors
/// When one cannot be made.
pub fn make_all(
    ctx: &Context,
    guest: &dyn Guest,
    plan: &Plan,
    kernels: &[Kernel],
    images: &[GuestImage],
) -> Result<Vec<Option<AgedImage>>, AgedError> {
    let mut made: Vec<Option<AgedImage>> = Vec::with_capacity(plan.arms.len());
    for (index, arm) in plan.arms.iter().enumerate() {
        let image = match first_alike(&plan.arms, index) {
            None => None,
            Some(first) if first < index => made[first].clone(),
            Some(_) => Some(make(ctx, guest, plan, arm, &kernels[arm.kernel], &images[arm.kernel])?),
        };
        made.push(image);
    }
    Ok(made)
}

/// The first arm that starts from the same used filesystem as arm `index`, if that starts from one.
fn first_alike(arms: &[Arm], index: usize) -> Option<usize> {
    let start = |arm: &Arm| {
        let aged = arm.aged.clone()?;
        let Arm { filesystem, guest, .. } = arm;
        Some((aged, filesystem.kind, filesystem.mkfs.clone(), guest.disk.capacity()))
    };
    let own = start(&arms[index])?;
    arms.iter().position(|arm| start(arm).as_ref() == Some(&own))
}

/// Makes the image that `arm` starts from, or finds it in the cache.
fn make(
    ctx: &Context,
    guest: &dyn Guest,
    plan: &Plan,
    arm: &Arm,
    kernel: &Kernel,
    image: &GuestImage,
) -> Result<AgedImage, AgedError> {
    let Some(aging) = &arm.aged else { return Err(AgedError::NoImage { arm: arm.name.clone() }) };
    let mut maker = Arm { scenarios: aging.scenarios.clone(), ..arm.clone() };
    maker.filesystem.mount.clear();
    let save = ImageUse::Save { remove_every: aging.remove_every };
    let job = Job { image: Some(save), ..run::job(&maker, aging.seed, plan.mode, kernel) };
    let key = key(&maker, &job, kernel, image).map_err(ImageError::from)?;
    let target = ctx.cache.aged().join(&key);
    let names: Vec<&str> = aging.scenarios.iter().map(|scenario| scenario.id.as_str()).collect();
    let detail = format!("{} after {} [{}]", maker.filesystem.kind, names.join(", "), &key[..12]);
    ctx.stage(STAGE, &detail, || {
        if !target.is_dir() {
            boot(ctx, guest, plan, &maker, &job, kernel, image, &target)?;
        }
        let made = load(&target)?;
        let detail = format!("{} [{}]", megabytes(made.record.bytes), made.record.digest.short());
        Ok((made, detail))
    })
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// What an image is made from: everything that the boot is given.
fn key(maker: &Arm, job: &Job, kernel: &Kernel, image: &GuestImage) -> Result<String, serde_json::Error> {
    let mut hash = blake3::Hasher::new();
    let (guest, job) = (serde_json::to_string(&maker.guest)?, serde_json::to_string(job)?);
    for part in [RECIPE, &kernel.identity.image_digest.0, &image.digest.0, &guest, &job] {
        hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// Boots once and publishes what the guest left in the window as `target`.
#[expect(clippy::too_many_arguments, reason = "one caller; a struct would say the same again")]
fn boot(
    ctx: &Context,
    guest: &dyn Guest,
    plan: &Plan,
    maker: &Arm,
    job: &Job,
    kernel: &Kernel,
    image: &GuestImage,
    target: &Utf8Path,
) -> Result<(), AgedError> {
    let scratch = ctx.cache.scratch().map_err(file_error("make a folder in", ctx.cache.root()))?;
    let files = ctx.cache.scratch().map_err(file_error("make a folder in", ctx.cache.root()))?;
    let initramfs = files.path().join("initramfs");
    image::with_job(image, job, &initramfs)?;
    let path = scratch.path().join(IMAGE);
    // An image is never larger than its disk, but for the list of pieces: a filesystem that fills
    // its disk does not fit, and the guest says so.
    let capacity = maker.guest.disk.capacity().map_or(0, |size| size.bytes());
    let bytes = capacity.next_power_of_two();
    File::create(&path).and_then(|file| file.set_len(bytes)).map_err(file_error("make", &path))?;
    let spec = BootSpec {
        arm: maker,
        kernel: &kernel.image,
        kernel_hz: run::hz(kernel),
        initramfs: &initramfs,
        mode: plan.mode,
        seed: job.seed,
        folder: files.path(),
        deadlines: Deadlines { stage: Duration::from_secs(plan.deadline_seconds), ..Deadlines::default() },
        pins: &[],
        window: Some(Window { path: &path, bytes, writable: true }),
    };
    let on_stage = |stage: &str| ctx.progress(STAGE, 0, None, stage);
    let result = guest.boot(&spec, ctx.cancel, &on_stage)?;
    check(&maker.name, &result)?;
    let facts = finish(maker, &path, kernel.identity.image_digest.clone(), &result)?;
    let text = serde_json::to_vec_pretty(&facts).map_err(ImageError::from)?;
    let facts = scratch.path().join(FACTS);
    fs::write(&facts, text).map_err(file_error("write", &facts))?;
    scratch.publish(target).map_err(file_error("publish", target))
}

/// Refuses a boot that failed, and a workload whose checks did.
fn check(arm: &str, result: &BootResult) -> Result<(), AgedError> {
    if result.outcome != Outcome::Completed {
        return Err(AgedError::Boot { arm: arm.to_owned(), outcome: result.outcome.clone() });
    }
    for round in &result.rounds {
        if let Some(failed) = round.checks.iter().find(|check| !check.passed) {
            return Err(AgedError::Check {
                arm: arm.to_owned(),
                scenario: round.scenario.clone(),
                round: round.round,
                check: failed.name.clone(),
                expected: failed.expected.clone(),
                actual: failed.actual.clone(),
            });
        }
    }
    Ok(())
}

/// Cuts the file to what the image needs, and says what it is.
fn finish(maker: &Arm, path: &Utf8Path, kernel: Digest, result: &BootResult) -> Result<Facts, AgedError> {
    let mut file = File::options().read(true).write(true).open(path).map_err(file_error("open", path))?;
    let whole = file.metadata().map_err(file_error("read", path))?.len();
    let mut start = [0; ImageHeader::BYTES];
    file.read_exact(&mut start).map_err(file_error("read", path))?;
    let missing = || AgedError::NoImage { arm: maker.name.clone() };
    let header = ImageHeader::decode(&start, whole).ok_or_else(missing)?;
    let length = header.length().ok_or_else(missing)?;
    file.set_len(length)
        .and_then(|()| file.set_len(length.next_power_of_two()))
        .map_err(file_error("cut", path))?;
    let setup = result.setups.first();
    let record = AgedRecord {
        digest: digest(path, length)?,
        bytes: header.data,
        kernel,
        mkfs_output: setup.map(|setup| setup.mkfs_output.clone()).unwrap_or_default(),
        mount_line: setup.map(|setup| setup.mount_line.clone()).unwrap_or_default(),
    };
    Ok(Facts { length, record })
}

/// Reads an image of the cache and makes sure that it is what was stored.
fn load(folder: &Utf8Path) -> Result<AgedImage, AgedError> {
    let (path, facts) = (folder.join(IMAGE), folder.join(FACTS));
    let damaged = |message: String| AgedError::Damaged { path: folder.to_owned(), message };
    let text = fs::read(&facts).map_err(file_error("read", &facts))?;
    let Facts { length, record } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let window = fs::metadata(&path).map_err(file_error("read", &path))?.len();
    if !window.is_power_of_two() || length > window {
        return Err(damaged(format!("the image has {window} bytes")));
    }
    if digest(&path, length)? != record.digest {
        return Err(damaged("the image has another digest".to_owned()));
    }
    Ok(AgedImage { path, window, record })
}

/// Digest of the first `length` bytes of a file.
fn digest(path: &Utf8Path, length: u64) -> Result<Digest, AgedError> {
    let file = File::open(path).map_err(file_error("open", path))?;
    let mut hash = blake3::Hasher::new();
    hash.update_reader(file.take(length)).map_err(file_error("read", path))?;
    Ok(Digest(hash.finalize().to_hex().to_string()))
}

fn file_error<'a>(
    action: &'static str,
    path: &'a Utf8Path,
) -> impl FnOnce(std::io::Error) -> AgedError + use<'a> {
    move |source| AgedError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
