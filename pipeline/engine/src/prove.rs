//! Puts workloads on trial in real guests: do they do what they claim, do they make the system calls
//! that they count, and do their checks notice a lie? Read [`prove`] first, then [`Trial`].

mod charge;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use camino::Utf8Path;
use kdelta_model::{
    Arm, ArmSettings, ConfigBase, ConsoleFinding, FilesystemSettings, KernelIdentity, KernelRequest,
    KernelSource, MeasureMode, Outcome, PatchSource,
};
use kdelta_wire::{DiskKind, FilesystemKind, JOB_VERSION, Job, Round};
use kdelta_workloads::Selection;
use serde::Serialize;

use crate::builtin;
use crate::compare;
use crate::config::ConfigError;
use crate::image::{self, GuestImage};
use crate::kernel::{self, Kernel, MakeOptions};
use crate::layout::Context;
use crate::plan;
use crate::probe::ProbeError;
use crate::process::ProcessError;
use crate::run::{self, RunError};
use crate::userland::Tool;
use crate::vm::{BootSpec, Deadlines, Guest, Qemu};

use charge::Charge;
pub use charge::{Answer, Lie, Problem, ScenarioTrial, Standing};

/// Version of [`Trial`] as JSON.
pub const TRIAL_VERSION: u32 = 1;
/// System calls that strace counts and a census need not: what the language runtime, libc and the
/// harness do for themselves, in numbers that depend on buffer sizes and timing and not on the
/// workload. One that a workload counts is compared all the same.
pub const EXEMPT: &[&str] = &[
    // Folders are read in pieces as large as libc's buffer.
    "getdents64",
    // The allocator.
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "brk",
    "mprotect",
    // Threads and processes: stacks, start, end, and waiting for each other.
    "futex",
    "clone3",
    "clone",
    "wait4",
    "exit",
    "exit_group",
    "set_robust_list",
    "rseq",
    "sched_yield",
    "sched_setaffinity",
    "sched_getaffinity",
    "rt_sigaction",
    "rt_sigprocmask",
    "sigaltstack",
    "restart_syscall",
    // The clock, where the vDSO cannot read it.
    "clock_gettime",
    // The counters of a phase, read from /proc and /sys.
    "pread64",
];
/// Fragments of the kernel: every filesystem and disk, so that one kernel serves every trial.
pub const FRAGMENTS: &[&str] =
    &["guest", "tmpfs", "xfs", "ext4", "btrfs", "disk-ram", "disk-nvme", "disk-virtio-blk"];
/// Guest seconds after which a round is killed. A lie may let it wait forever; the longest quick round
/// takes a second under strace.
const ROUND_SECONDS: u64 = 30;
/// Seed of every trial.
const SEED: u64 = 1;
/// The name under which progress is told.
const STAGE: &str = "trial";

/// What is put on trial, and where.
#[derive(Clone, Copy)]
pub struct ProveRequest<'a> {
    /// The scenarios.
    pub selections: &'a [Selection],
    /// The filesystems.
    pub filesystems: &'a [FilesystemKind],
    /// Disk of the filesystems that need one.
    pub disk: DiskKind,
    /// The kernel.
    pub kernel: &'a KernelSource,
    /// Patches on it.
    pub patches: &'a [PatchSource],
    /// The init's static executable.
    pub init: &'a Utf8Path,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// [`TRIAL_VERSION`].
    pub version: u32,
    /// Version of kdelta.
    pub kdelta: String,
    /// The kernel.
    pub kernel: KernelIdentity,
    /// First line of `qemu --version`.
    pub qemu: String,
    /// Debian packages of the guest's programs, strace among them.
    pub userland: Vec<String>,
    /// Calls that are compared only where a workload counts them.
    pub exempt: &'static [&'static str],
    /// One for each filesystem, in the order asked for.
    pub filesystems: Vec<FilesystemTrial>,
}

/// One filesystem, and so one boot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilesystemTrial {
    /// Which one.
    pub filesystem: FilesystemKind,
    /// The disk under it.
    pub disk: DiskKind,
    /// How the boot ended.
    pub outcome: Outcome,
    /// What the kernel complained of.
    pub console: Vec<ConsoleFinding>,
    /// CPU time of QEMU, in seconds.
    pub host_cpu_seconds: f64,
    /// Wall time, in seconds.
    pub wall_seconds: f64,
    /// One for each scenario, in the order asked for.
    pub scenarios: Vec<ScenarioTrial>,
    /// Every round that ended, raw: what was made of it can be made again.
    pub rounds: Vec<Round>,
}

impl Trial {
    /// The answer in one word: the worst of all.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let of_boot = |trial: &FilesystemTrial| match trial.outcome {
            Outcome::Completed => Standing::AsClaimed,
            Outcome::HostFailed { .. } => Standing::HostFailed,
            Outcome::WorkloadFailed { .. } => Standing::Disproved,
            Outcome::BootFailed { .. } | Outcome::KernelFailed { .. } | Outcome::TimedOut { .. } => {
                Standing::KernelFailed
            }
        };
        let scenarios = self.filesystems.iter().flat_map(|trial| &trial.scenarios);
        let of_scenarios = scenarios.map(|trial| match trial.is_as_claimed() {
            true => Standing::AsClaimed,
            false => Standing::Disproved,
        });
        // What a boot that broke off did not show is no fault of a workload's.
        let boots: Vec<Standing> = self.filesystems.iter().map(of_boot).collect();
        boots.into_iter().chain(of_scenarios).max().unwrap_or(Standing::AsClaimed)
    }
}

/// Makes the kernel, boots one guest for each filesystem, and judges what came back.
///
/// # Errors
/// When kernel or image cannot be made, QEMU is missing, or the user asks to stop. A guest that
/// fails is no error: the trial says so.
pub fn prove(ctx: &Context, request: &ProveRequest) -> Result<Trial, RunError> {
    prove_unguarded(ctx, request).map_err(|error| match error {
        _ if ctx.cancel.is_requested() => RunError::Stopped,
        other => other,
    })
}

fn prove_unguarded(ctx: &Context, request: &ProveRequest) -> Result<Trial, RunError> {
    let qemu = Qemu::find(ctx.cancel)?;
    let arms = request.filesystems.iter().map(|&kind| arm(kind, request.disk));
    let arms: Vec<Arm> = arms.collect::<Result<_, ConfigError>>()?;
    let kernel_request = KernelRequest {
        source: request.kernel.clone(),
        patches: request.patches.to_vec(),
        base: ConfigBase::default(),
        fragments: FRAGMENTS.iter().map(|name| (*name).to_owned()).collect(),
        options: Vec::new(),
        placebo: false,
    };
    let modules = run::wanted_modules(&arms.iter().collect::<Vec<_>>());
    let options = MakeOptions { folder: Utf8Path::new("."), refresh: false, modules: &modules };
    kernel::check(ctx, &kernel_request, options)?;
    let kernel = kernel::make(ctx, "on trial", &kernel_request, options)?;
    let kinds = request.filesystems.iter().copied().collect();
    let image = image::make_with(ctx, request.init, &kinds, &[Tool::Strace], &kernel.modules, false)?;
    let filesystems = boot_all(ctx, &qemu, request, &arms, &kernel, &image)?;
    Ok(Trial {
        version: TRIAL_VERSION,
        kdelta: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: kernel.identity,
        qemu: qemu.version,
        userland: image.userland,
        exempt: EXEMPT,
        filesystems,
    })
}

/// The machine and filesystem of one boot.
fn arm(kind: FilesystemKind, disk: DiskKind) -> Result<Arm, ConfigError> {
    let shape = match (kind.needs_disk(), disk) {
        (false, _) | (true, DiskKind::None) => "tmpfs",
        (true, DiskKind::Ram) => "ram",
        (true, DiskKind::Nvme) => "nvme",
        (true, DiskKind::VirtioBlk) => "virtio-blk",
    };
    let guest =
        builtin::guest(shape, Utf8Path::new(".")).map_err(|error| ConfigError::invalid("guest", error))?;
    let settings = ArmSettings { filesystem: Some(FilesystemSettings::new(kind)), ..ArmSettings::default() };
    let filesystem = plan::filesystem("filesystem", &settings)?;
    plan::check_shape("disk", &guest, &filesystem)?;
    Ok(Arm {
        name: kind.name().to_owned(),
        levels: std::collections::BTreeMap::new(),
        kernel: 0,
        guest,
        filesystem,
        aged: None,
        scenarios: Vec::new(),
        placebo_of: None,
    })
}

/// Boots every filesystem, as many at a time as there are jobs.
fn boot_all(
    ctx: &Context,
    guest: &dyn Guest,
    request: &ProveRequest,
    arms: &[Arm],
    kernel: &Kernel,
    image: &GuestImage,
) -> Result<Vec<FilesystemTrial>, RunError> {
    let charges: Vec<Vec<Charge>> = request
        .filesystems
        .iter()
        .map(|&kind| charge::list(request.selections, kind))
        .collect::<Result<_, _>>()
        .map_err(|error| ConfigError::invalid("parameters", error))?;
    // The last of the list (ext4, btrfs) take longest: with them first, no CPU waits at the end.
    let queue: Mutex<VecDeque<usize>> = Mutex::new((0..arms.len()).rev().collect());
    let results = Mutex::new(Vec::new());
    let told = Mutex::new(vec![0; arms.len()]);
    let rounds: usize = charges.iter().map(Vec::len).sum();
    let tell = |index: usize, detail: &str, done: Option<usize>| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        // A line that the guest is still writing names no round yet.
        told[index] = done.unwrap_or(told[index]);
        let done: usize = told.iter().sum();
        ctx.progress(STAGE, done as u64, Some(rounds as u64), detail);
    };
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(index) = next.filter(|_| !ctx.cancel.is_requested()) else { return };
            let on_stage = |stage: &str| {
                let at = charges[index].iter().position(|charge| stage.contains(&charge.id()));
                tell(index, &format!("{}: {stage}", arms[index].name), at);
            };
            let scenarios = charges[index].iter().map(Charge::job).collect();
            let arm = Arm { scenarios, ..arms[index].clone() };
            let result = boot(ctx, guest, &arm, kernel, image, &on_stage);
            tell(index, "", Some(charges[index].len()));
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    let detail = format!("{rounds} rounds in {} guests", arms.len());
    let mut results = ctx.stage(STAGE, &detail, || {
        std::thread::scope(|scope| {
            for _ in 0..ctx.jobs.clamp(1, arms.len().max(1)) {
                scope.spawn(work);
            }
        });
        let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        Ok::<_, RunError>((results, format!("{rounds} rounds")))
    })?;
    if ctx.cancel.is_requested() {
        return Err(RunError::Stopped);
    }
    results.sort_by_key(|(index, _)| *index);
    let judged = results.into_iter().map(|(index, result)| {
        let (arm, result) = (&arms[index], result?);
        let kind = arm.filesystem.kind;
        Ok(FilesystemTrial {
            filesystem: kind,
            disk: arm.guest.disk.kind,
            scenarios: charge::judge(request.selections, kind, &charges[index], &result),
            outcome: result.outcome,
            console: result.console.findings,
            rounds: result.rounds,
            host_cpu_seconds: result.host_cpu_seconds,
            wall_seconds: result.wall_seconds,
        })
    });
    judged.collect()
}

/// Boots once.
fn boot(
    ctx: &Context,
    guest: &dyn Guest,
    arm: &Arm,
    kernel: &Kernel,
    image: &GuestImage,
    on_stage: &dyn Fn(&str),
) -> Result<crate::vm::BootResult, RunError> {
    let scratch = ctx
        .cache
        .scratch()
        .map_err(|source| ProbeError::Folder { path: ctx.cache.root().to_string(), source })?;
    let initramfs = scratch.path().join("initramfs");
    let mode = MeasureMode::Instructions;
    let job = Job {
        version: JOB_VERSION,
        clock: compare::clock(mode),
        seed: SEED,
        settle_us: 0,
        cpu: Some(0),
        modules: kernel::module_jobs(&kernel.modules),
        disk: arm.guest.disk.kind,
        filesystem: arm.filesystem.clone(),
        image: None,
        scenarios: arm.scenarios.clone(),
        trial: Some(kdelta_wire::Trial { round_seconds: ROUND_SECONDS }),
    };
    image::with_job(image, &job, &initramfs)?;
    let spec = BootSpec {
        arm,
        kernel: &kernel.image,
        kernel_hz: run::hz(kernel),
        initramfs: &initramfs,
        mode,
        seed: SEED,
        folder: scratch.path(),
        deadlines: Deadlines::default(),
        window: None,
        pins: &[],
    };
    guest.boot(&spec, ctx.cancel, on_stage).map_err(|error| match error {
        ProcessError::Cancelled => RunError::Stopped,
        other => other.into(),
    })
}

#[cfg(test)]
mod tests;
