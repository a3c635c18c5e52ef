//! Finds out whether a guest boots under KVM, by booting one: a device node proves nothing. Read
//! [`kvm`] first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use camino::Utf8Path;
use kdelta_model::{Arm, Filesystem, MeasureMode, Outcome};
use kdelta_wire::{Clock, DiskKind, FilesystemKind, JOB_VERSION, Job};

use crate::builtin::{self, BuiltinError};
use crate::image::{self, ImageError};
use crate::kernel::{self, Kernel};
use crate::layout::Context;
use crate::process::ProcessError;
use crate::vm::{BootSpec, Deadlines, Guest};

/// A guest that works under KVM reaches its end within a second or two.
const DEADLINE: Duration = Duration::from_secs(20);
/// How much of a message stays: reports begin with it, and the first lines tell.
const MESSAGE_LENGTH: usize = 120;

/// Why the probe itself could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The guest's image cannot be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The built-in guest shape is broken.
    #[error(transparent)]
    Shape(#[from] BuiltinError),
    /// There is no room for its files.
    #[error("cannot make a folder for the KVM probe in {path}: {source}")]
    Folder {
        /// The cache.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Stopped.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Boots `kernel` under KVM with nothing to do. The inner error says why KVM cannot be used.
///
/// # Errors
/// When the probe cannot be made; that says nothing about KVM.
pub fn kvm(
    ctx: &Context,
    guest: &dyn Guest,
    kernel: &Kernel,
    init: &Utf8Path,
) -> Result<Result<(), String>, ProbeError> {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Ok(Err(format!("/dev/kvm cannot be opened: {error}")));
    }
    let image = image::make(ctx, init, &BTreeSet::new(), &kernel.modules, false)?;
    let scratch = ctx
        .cache
        .scratch()
        .map_err(|source| ProbeError::Folder { path: ctx.cache.root().to_string(), source })?;
    let initramfs = scratch.path().join("initramfs");
    let filesystem =
        Filesystem { kind: FilesystemKind::Tmpfs, mkfs: Vec::new(), mount: Vec::new(), log: None };
    let job = Job {
        version: JOB_VERSION,
        clock: Clock::Nanoseconds,
        seed: 0,
        settle_us: 0,
        cpu: Some(0),
        modules: kernel::module_jobs(&kernel.modules),
        disk: DiskKind::None,
        filesystem: filesystem.clone(),
        image: None,
        scenarios: Vec::new(),
        trial: None,
    };
    image::with_job(&image, &job, &initramfs)?;
    let arm = Arm {
        name: "probe".to_owned(),
        levels: BTreeMap::new(),
        kernel: 0,
        guest: builtin::guest("tmpfs", Utf8Path::new("."))?,
        filesystem,
        aged: None,
        scenarios: Vec::new(),
        placebo_of: None,
    };
    let spec = BootSpec {
        arm: &arm,
        kernel: &kernel.image,
        kernel_hz: None,
        initramfs: &initramfs,
        mode: MeasureMode::Wall,
        seed: 0,
        folder: scratch.path(),
        deadlines: Deadlines { boot: DEADLINE, stage: DEADLINE, wall_factor: 1 },
        pins: &[],
        window: None,
    };
    ctx.stage("kvm probe", "a guest must boot under KVM", || {
        let result = guest.boot(&spec, ctx.cancel, &|_| {})?;
        let answer = match result.outcome {
            Outcome::Completed => Ok(()),
            outcome => {
                let message = outcome.message();
                let first: String =
                    message.lines().next().unwrap_or_default().chars().take(MESSAGE_LENGTH).collect();
                Err(format!("a probe guest did not boot under KVM: {first}"))
            }
        };
        let detail = if answer.is_ok() { "KVM works" } else { "KVM does not work here" };
        Ok((answer, detail.to_owned()))
    })
}
