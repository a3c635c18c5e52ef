//! From an experiment to a run record: decide, build, boot, judge. Read [`start`] first; [`resume`]
//! goes on where an interrupted run stopped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use kdelta_model::{
    AgedRecord, Arm, ArmRecord, BootPurpose, BootRecord, ConfigDifference, ExperimentRecord, MeasureChoice,
    MeasureMode, MeasureRecord, Outcome, Plan, PlannedBoot, RECORD_VERSION, RunRecord,
};
use kdelta_wire::{DiskKind, FilesystemKind, ImageUse, JOB_VERSION, Job};

use crate::aged::{self, AgedError, AgedImage};
use crate::compare;
use crate::config::{ConfigError, LoadedExperiment};
use crate::host;
use crate::image::{self, GuestImage, ImageError};
use crate::journal::{JournalError, RunFolder};
use crate::kernel::{self, Kernel, KernelError, MakeOptions};
use crate::layout::Context;
use crate::plan;
use crate::probe::{self, ProbeError};
use crate::process::ProcessError;
use crate::shell;
use crate::vm::{self, BootSpec, Deadlines, Guest, Qemu, QemuMissing, Window};

/// Guest time that a boot idles before the first round: the kernel's own background work of the
/// first seconds (crypto self-tests, RCU, deferred probes) ends in it. Free under icount.
const SETTLE_INSTRUCTIONS_US: u64 = 30_000_000;
/// The same in wall mode, where it costs real time.
const SETTLE_WALL_US: u64 = 2_000_000;
/// Seeds differ in how long they settle by up to this, so that each meets the timer tick (1 to 10 ms)
/// at another phase. A prime stride spreads neighbouring seeds.
const PHASE_SPREAD_US: u64 = 10_000;
const PHASE_STRIDE_US: u64 = 3_907;
/// Boots of one arm that may fail before the rest of its boots is skipped: a kernel that panics
/// twice will panic again.
const FAILURES_PER_ARM: usize = 2;
/// Times a boot is tried when the host, not the guest, failed.
const HOST_TRIES: usize = 3;

/// What a run is made from.
#[derive(Clone, Copy)]
pub struct RunRequest<'a> {
    /// What is asked.
    pub experiment: &'a LoadedExperiment,
    /// Run folder to make.
    pub folder: &'a Utf8Path,
    /// Command that was given, for the record.
    pub command: &'a str,
    /// The init's static executable.
    pub init: &'a Utf8Path,
    /// Ask package archives again.
    pub refresh: bool,
}

/// Why a run did not end with a record.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The experiment cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// QEMU is missing.
    #[error(transparent)]
    Qemu(#[from] QemuMissing),
    /// A kernel could not be made.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// The initramfs could not be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A used filesystem could not be made.
    #[error(transparent)]
    Aged(Box<AgedError>),
    /// The KVM probe could not be made.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The run folder cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Wall time was asked for and cannot be had.
    #[error(
        "wall time cannot be measured here: {0}; use measure: instructions (counts instead of time), or a host whose KVM boots a guest"
    )]
    NoKvm(String),
    /// A resumed run would not boot the same as before.
    #[error(
        "{what} is not what this run began with (now {now}, then {before}); its earlier boots cannot be continued: start a new run"
    )]
    Changed {
        /// What changed.
        what: String,
        /// What it is now.
        now: String,
        /// What it was at the start.
        before: String,
    },
    /// Raw values that statistics refuse.
    #[error("the observations cannot be judged: {0}")]
    Statistics(#[from] kdelta_stats::StatsError),
    /// The user asked to stop.
    #[error(
        "interrupted after {done} of {total} boots; go on with: kdelta run --resume {}",
        shell::quote(.folder.as_str())
    )]
    Interrupted {
        /// Boots that are safe.
        done: usize,
        /// Boots planned.
        total: usize,
        /// Run folder.
        folder: Utf8PathBuf,
    },
    /// The user asked to stop before the first boot.
    #[error("interrupted before the first boot; finished kernels are kept, run the same command again")]
    Stopped,
}

impl From<KernelError> for RunError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(Box::new(error))
    }
}

impl From<AgedError> for RunError {
    fn from(error: AgedError) -> Self {
        Self::Aged(Box::new(error))
    }
}

impl From<ProcessError> for RunError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Cancelled => Self::Stopped,
            other => KernelError::Process(other).into(),
        }
    }
}

/// Decides how to measure, makes kernels and images, boots, judges, and leaves a run folder.
///
/// # Errors
/// See [`RunError`]. Guests that fail are no error: the record says so.
pub fn start(ctx: &Context, request: &RunRequest) -> Result<RunRecord, RunError> {
    start_unguarded(ctx, request).map_err(|error| stopped(ctx, error))
}

/// Whatever broke off because the user asked to stop is no failure of its own.
fn stopped(ctx: &Context, error: RunError) -> RunError {
    match error {
        interrupted @ RunError::Interrupted { .. } => interrupted,
        _ if ctx.cancel.is_requested() => RunError::Stopped,
        other => other,
    }
}

fn start_unguarded(ctx: &Context, request: &RunRequest) -> Result<RunRecord, RunError> {
    RunFolder::check_new(request.folder)?;
    let qemu = Qemu::find(ctx.cancel)?;
    let started = Timestamp::now();
    let (measure, plan) = decide(ctx, request, &qemu)?;
    let mut made = Made::new(ctx, &plan, request.init, &request.experiment.folder, request.refresh)?;
    made.aged = aged::make_all(ctx, &qemu, &plan, &made.kernels, &made.images)?;
    let session = session(request, &plan, measure, &made, started);
    let folder = RunFolder::create(request.folder, &session)?;
    boot_and_judge(ctx, &qemu, &folder, session, Vec::new(), &made)
}

/// Goes on with the run in `folder`.
///
/// # Errors
/// As [`start`], and when the kernels are no longer the same.
pub fn resume(ctx: &Context, folder: &Utf8Path, init: &Utf8Path) -> Result<RunRecord, RunError> {
    resume_unguarded(ctx, folder, init).map_err(|error| stopped(ctx, error))
}

fn resume_unguarded(ctx: &Context, folder: &Utf8Path, init: &Utf8Path) -> Result<RunRecord, RunError> {
    let (folder, session, boots) = RunFolder::reopen(folder)?;
    let qemu = Qemu::find(ctx.cancel)?;
    unchanged("QEMU", &session.measure.qemu, &qemu.version)?;
    let mut made = Made::new(ctx, &session.plan, init, Utf8Path::new("/"), false)?;
    for (before, now) in session.kernels.iter().zip(&made.kernels) {
        let what = format!("kernel {}", before.source);
        unchanged(&what, before.image_digest.short(), now.identity.image_digest.short())?;
    }
    for (index, (before, arm)) in session.arms.iter().zip(&session.plan.arms).enumerate() {
        let now = arm_record(&session.plan, index, &made);
        unchanged("guest init", before.init_digest.short(), now.init_digest.short())?;
        let what = format!("initramfs of {}", arm.name);
        unchanged(&what, before.initramfs_digest.short(), now.initramfs_digest.short())?;
    }
    // Last, as one that is no longer in the cache takes a boot to make.
    made.aged = aged::make_all(ctx, &qemu, &session.plan, &made.kernels, &made.images)?;
    let short = |record: Option<&AgedRecord>| {
        record.map_or_else(|| "none".to_owned(), |record| record.digest.short().to_owned())
    };
    for ((before, arm), now) in session.arms.iter().zip(&session.plan.arms).zip(&made.aged) {
        let what = format!("aged filesystem of {}", arm.name);
        unchanged(&what, &short(before.aged.as_ref()), &short(now.as_ref().map(|image| &image.record)))?;
    }
    boot_and_judge(ctx, &qemu, &folder, session, boots, &made)
}

/// Boots of one run must not differ in anything but what the plan says.
fn unchanged(what: &str, before: &str, now: &str) -> Result<(), RunError> {
    if before == now {
        return Ok(());
    }
    Err(RunError::Changed { what: what.to_owned(), before: before.to_owned(), now: now.to_owned() })
}

/// The plan that [`start`] would follow, without building or booting. `measure: auto` is planned
/// as instructions, because only a boot can tell whether KVM works.
///
/// # Errors
/// When the experiment cannot be used.
pub fn dry_run(experiment: &LoadedExperiment) -> Result<Plan, ConfigError> {
    let mode = match experiment.experiment.measure {
        MeasureChoice::Wall => MeasureMode::Wall,
        MeasureChoice::Auto | MeasureChoice::Instructions => MeasureMode::Instructions,
    };
    plan::make(experiment, mode)
}

/// How to measure, and the plan for it.
fn decide(ctx: &Context, request: &RunRequest, qemu: &Qemu) -> Result<(MeasureRecord, Plan), RunError> {
    let counted = |reason: String| MeasureRecord {
        mode: MeasureMode::Instructions,
        accelerator: "QEMU TCG with icount".to_owned(),
        reason,
        qemu: qemu.version.clone(),
    };
    let plan = plan::make(request.experiment, MeasureMode::Instructions)?;
    let choice = request.experiment.experiment.measure;
    if choice == MeasureChoice::Instructions {
        return Ok((counted("the experiment asks for instructions".to_owned()), plan));
    }
    match probe(ctx, request, &plan, qemu)? {
        Ok(()) => {
            let plan = plan::make(request.experiment, MeasureMode::Wall)?;
            let reason = "a probe guest booted under KVM".to_owned();
            let accelerator = "KVM".to_owned();
            Ok((
                MeasureRecord { mode: MeasureMode::Wall, accelerator, reason, qemu: qemu.version.clone() },
                plan,
            ))
        }
        Err(why) if choice == MeasureChoice::Wall => Err(RunError::NoKvm(why)),
        Err(why) => {
            ctx.warn(format!("measuring instructions instead of wall time: {why}"));
            Ok((counted(format!("no usable KVM: {why}")), plan))
        }
    }
}

/// Whether the first kernel boots under KVM; the inner error says why not.
fn probe(
    ctx: &Context,
    request: &RunRequest,
    plan: &Plan,
    qemu: &Qemu,
) -> Result<Result<(), String>, RunError> {
    let Some(arm) = plan.arms.first() else { return Ok(Err("there is nothing to boot".to_owned())) };
    let folder = &request.experiment.folder;
    let (kernel, _) = Made::one(ctx, plan, arm.kernel, request.init, folder, request.refresh)?;
    Ok(probe::kvm(ctx, qemu, &kernel, request.init)?)
}

/// Kernels and guest images of a plan.
struct Made {
    kernels: Vec<Kernel>,
    images: Vec<GuestImage>,
    /// For each arm; shorter before [`aged::make_all`].
    aged: Vec<Option<AgedImage>>,
}

impl Made {
    fn new(
        ctx: &Context,
        plan: &Plan,
        init: &Utf8Path,
        folder: &Utf8Path,
        refresh: bool,
    ) -> Result<Self, RunError> {
        // A patch that does not apply is told before the parent is built for minutes.
        for request in &plan.kernels {
            kernel::check(ctx, request, MakeOptions { folder, refresh, modules: &[] })
                .map_err(|error| RunError::Kernel(Box::new(error)))?;
        }
        let (mut kernels, mut images) = (Vec::new(), Vec::new());
        for index in 0..plan.kernels.len() {
            let (kernel, image) = Self::one(ctx, plan, index, init, folder, refresh)?;
            kernels.push(kernel);
            images.push(image);
        }
        Ok(Self { kernels, images, aged: Vec::new() })
    }

    fn one(
        ctx: &Context,
        plan: &Plan,
        index: usize,
        init: &Utf8Path,
        folder: &Utf8Path,
        refresh: bool,
    ) -> Result<(Kernel, GuestImage), RunError> {
        let users: Vec<&Arm> = plan.arms.iter().filter(|arm| arm.kernel == index).collect();
        let label = users.first().map_or("unused", |arm| arm.name.as_str());
        let modules = wanted_modules(&users);
        let options = MakeOptions { folder, refresh, modules: &modules };
        let kernel =
            kernel::make(ctx, label, &plan.kernels[index], options).map_err(|error| match error {
                KernelError::Process(ProcessError::Cancelled) => RunError::Stopped,
                error => error.into(),
            })?;
        // All arms get the same programs, whichever filesystem they use.
        let filesystems: BTreeSet<FilesystemKind> = plan.arms.iter().map(|arm| arm.filesystem.kind).collect();
        let image = image::make(ctx, init, &filesystems, &kernel.modules, refresh)?;
        Ok((kernel, image))
    }
}

/// Modules that a ready-made kernel needs for its arms, should it not have them built in.
pub(crate) fn wanted_modules(arms: &[&Arm]) -> Vec<String> {
    let mut names = vec!["virtio_pci".to_owned(), "virtio_console".to_owned()];
    for arm in arms {
        let disk = match arm.guest.disk.kind {
            DiskKind::None => None,
            DiskKind::Ram => Some("brd"),
            DiskKind::Nvme => Some("nvme"),
            DiskKind::VirtioBlk => Some("virtio_blk"),
        };
        let filesystem = Some(arm.filesystem.kind.name()).filter(|name| *name != "tmpfs");
        for name in disk.into_iter().chain(filesystem) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// What the init of `arm` is told.
pub(crate) fn job(arm: &Arm, seed: u64, mode: MeasureMode, kernel: &Kernel) -> Job {
    let settle = if mode == MeasureMode::Instructions { SETTLE_INSTRUCTIONS_US } else { SETTLE_WALL_US };
    Job {
        version: JOB_VERSION,
        clock: compare::clock(mode),
        seed,
        settle_us: settle + seed.wrapping_mul(PHASE_STRIDE_US) % PHASE_SPREAD_US,
        cpu: Some(0),
        modules: kernel::module_jobs(&kernel.modules),
        disk: arm.guest.disk.kind,
        filesystem: arm.filesystem.clone(),
        image: arm.aged.as_ref().map(|_| ImageUse::Restore),
        scenarios: arm.scenarios.clone(),
        trial: None,
    }
}

/// The record as far as it is known before the first boot.
fn session(
    request: &RunRequest,
    plan: &Plan,
    measure: MeasureRecord,
    made: &Made,
    started: Timestamp,
) -> RunRecord {
    let experiment = &request.experiment.experiment;
    let digest = plan.canonical().map(|bytes| kernel::digest_of(&bytes)).unwrap_or_default();
    RunRecord {
        version: RECORD_VERSION,
        kdelta: env!("CARGO_PKG_VERSION").to_owned(),
        experiment: ExperimentRecord {
            name: experiment.name.clone(),
            description: experiment.description.trim().to_owned(),
            yaml: request.experiment.yaml.clone(),
            command: request.command.to_owned(),
        },
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        measure,
        host: host::facts(),
        plan_digest: digest,
        kernels: made.kernels.iter().map(|kernel| kernel.identity.clone()).collect(),
        config_differences: config_differences(plan, &made.kernels),
        arms: (0..plan.arms.len()).map(|arm| arm_record(plan, arm, made)).collect(),
        plan: plan.clone(),
        boots: Vec::new(),
        comparisons: Vec::new(),
        factorials: Vec::new(),
        gates: Vec::new(),
        caveats: Vec::new(),
    }
}

fn arm_record(plan: &Plan, index: usize, made: &Made) -> ArmRecord {
    let arm = &plan.arms[index];
    let (kernel, image) = (&made.kernels[arm.kernel], &made.images[arm.kernel]);
    let aged = made.aged.get(index).and_then(Option::as_ref);
    let spec = BootSpec {
        arm,
        kernel: Utf8Path::new("KERNEL"),
        kernel_hz: hz(kernel),
        initramfs: Utf8Path::new("INITRAMFS"),
        mode: plan.mode,
        seed: 0,
        folder: Utf8Path::new("BOOT"),
        deadlines: Deadlines::default(),
        pins: &[],
        window: aged.map(|aged| Window { path: Utf8Path::new("AGED"), ..aged.window() }),
    };
    ArmRecord {
        cmdline: vm::cmdline(&spec),
        initramfs_digest: image.digest.clone(),
        init_digest: image.init_digest.clone(),
        userland: image.userland.clone(),
        qemu_arguments: vm::arguments(&spec),
        aged: aged.map(|aged| aged.record.clone()),
    }
}

/// `CONFIG_HZ` of a kernel, when its configuration is known.
pub(crate) fn hz(kernel: &Kernel) -> Option<u32> {
    let config = kernel.config.as_deref()?;
    config.lines().find_map(|line| line.strip_prefix("CONFIG_HZ=")?.parse().ok())
}

/// Lines in which the configurations of compared kernels differ, but for the local version.
fn config_differences(plan: &Plan, kernels: &[Kernel]) -> Vec<ConfigDifference> {
    let mut pairs: Vec<(usize, usize)> =
        plan.pairs.iter().map(|pair| (plan.arms[pair.base].kernel, plan.arms[pair.arm].kernel)).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let lines = |kernel: usize| -> Option<BTreeSet<&str>> {
        let config = kernels.get(kernel)?.config.as_deref()?;
        Some(
            config
                .lines()
                .filter(|line| line.contains("CONFIG_") && !line.contains("CONFIG_LOCALVERSION"))
                .collect(),
        )
    };
    let mut differences = Vec::new();
    for (base, kernel) in pairs {
        let (Some(one), Some(other)) = (lines(base), lines(kernel)) else { continue };
        let removed = one.difference(&other).map(|line| format!("-{line}"));
        let added = other.difference(&one).map(|line| format!("+{line}"));
        let lines: Vec<String> = removed.chain(added).collect();
        if !lines.is_empty() {
            differences.push(ConfigDifference { base, kernel, lines });
        }
    }
    differences
}

/// Does the boots that are still to do, judges all, and writes the record.
fn boot_and_judge(
    ctx: &Context,
    guest: &dyn Guest,
    folder: &RunFolder,
    session: RunRecord,
    done: Vec<BootRecord>,
    made: &Made,
) -> Result<RunRecord, RunError> {
    let total = session.plan.boots.len();
    let mut boots = ctx.stage("boots", &format!("{total} planned, {} done", done.len()), || {
        let runner = Runner::new(ctx, guest, folder, &session, made, done);
        let boots = runner.run()?;
        let detail = format!("{} of {total} boots", boots.len());
        Ok::<_, RunError>((boots, detail))
    })?;
    boots.sort_by_key(|boot| boot.index);
    let mut record = RunRecord { boots, ..session };
    judge(&mut record)?;
    folder.finish(&record)?;
    Ok(record)
}

/// Makes every derived part of a record again from its raw rounds.
///
/// # Errors
/// When raw values cannot be judged.
pub fn judge(record: &mut RunRecord) -> Result<(), kdelta_stats::StatsError> {
    let judgement = compare::judge(&record.plan, &record.boots)?;
    record.comparisons = judgement.comparisons;
    record.factorials = judgement.factorials;
    record.gates = crate::gates::list(record);
    crate::gates::lower(&record.gates, &mut record.comparisons);
    record.caveats = crate::caveats::list(record);
    Ok(())
}

/// Works off the boots of a plan on several threads.
struct Runner<'a> {
    ctx: &'a Context<'a>,
    guest: &'a dyn Guest,
    folder: &'a RunFolder,
    session: &'a RunRecord,
    made: &'a Made,
    began: Instant,
    /// Seconds of the session that had passed when this process took it up.
    offset: f64,
    state: Mutex<State>,
}

struct State {
    queue: VecDeque<PlannedBoot>,
    done: Vec<BootRecord>,
    running: BTreeMap<usize, String>,
    failures: BTreeMap<usize, usize>,
    error: Option<RunError>,
}

impl<'a> Runner<'a> {
    fn new(
        ctx: &'a Context<'a>,
        guest: &'a dyn Guest,
        folder: &'a RunFolder,
        session: &'a RunRecord,
        made: &'a Made,
        done: Vec<BootRecord>,
    ) -> Self {
        // A failure of the host says nothing about a kernel; the boot is still to be done.
        let done: Vec<BootRecord> =
            done.into_iter().filter(|boot| !matches!(boot.outcome, Outcome::HostFailed { .. })).collect();
        let finished: BTreeSet<usize> = done.iter().map(|boot| boot.index).collect();
        let queue =
            session.plan.boots.iter().filter(|boot| !finished.contains(&boot.index)).copied().collect();
        let mut failures = BTreeMap::new();
        for boot in done.iter().filter(|boot| blames_guest(&boot.outcome)) {
            *failures.entry(boot.arm).or_insert(0) += 1;
        }
        let started: Option<Timestamp> = session.started.parse().ok();
        let offset =
            started.map_or(0.0, |started| Timestamp::now().duration_since(started).as_secs_f64().max(0.0));
        let state = State { queue, done, running: BTreeMap::new(), failures, error: None };
        Self { ctx, guest, folder, session, made, began: Instant::now(), offset, state: Mutex::new(state) }
    }

    /// Instructions do not care what else runs; time does.
    fn workers(&self) -> usize {
        match self.session.plan.mode {
            MeasureMode::Instructions => self.ctx.jobs.max(1),
            MeasureMode::Wall => 1,
        }
    }

    fn run(self) -> Result<Vec<BootRecord>, RunError> {
        let total = self.session.plan.boots.len();
        std::thread::scope(|scope| {
            for _ in 0..self.workers() {
                scope.spawn(|| self.work());
            }
        });
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.error {
            Some(error) => Err(error),
            None if state.done.len() < total && self.ctx.cancel.is_requested() => {
                Err(RunError::Interrupted {
                    done: state.done.len(),
                    total,
                    folder: self.folder.path().to_owned(),
                })
            }
            None => Ok(state.done),
        }
    }

    fn work(&self) {
        while let Some(boot) = self.next() {
            match self.boot(boot) {
                Ok(Some(record)) => self.keep(record),
                Ok(None) => return,
                Err(error) => {
                    self.locked().error.get_or_insert(error);
                    return;
                }
            }
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next boot worth doing.
    fn next(&self) -> Option<PlannedBoot> {
        let mut state = self.locked();
        if self.ctx.cancel.is_requested() || state.error.is_some() {
            return None;
        }
        while let Some(boot) = state.queue.pop_front() {
            if state.failures.get(&boot.arm).is_none_or(|count| *count < FAILURES_PER_ARM) {
                return Some(boot);
            }
        }
        None
    }

    fn keep(&self, record: BootRecord) {
        let mut state = self.locked();
        // Nothing is written behind a line that a full disk cut short.
        if state.error.is_some() {
            return;
        }
        if let Err(error) = self.folder.append(&record) {
            state.error = Some(error.into());
            return;
        }
        state.running.remove(&record.index);
        if blames_guest(&record.outcome) {
            *state.failures.entry(record.arm).or_insert(0) += 1;
        }
        if record.outcome != Outcome::Completed {
            let name = &self.session.plan.arms[record.arm].name;
            self.ctx.warn(format!("boot {} of {name}: {}", record.index, record.outcome.message()));
        }
        state.done.push(record);
        self.tell(&state);
    }

    fn tell(&self, state: &State) {
        let running: Vec<&str> = state.running.values().map(String::as_str).collect();
        let (done, total) = (state.done.len() as u64, self.session.plan.boots.len() as u64);
        self.ctx.progress("boots", done, Some(total), &running.join("; "));
    }

    /// Boots once; `None` when the user asked to stop.
    fn boot(&self, planned: PlannedBoot) -> Result<Option<BootRecord>, RunError> {
        let plan = &self.session.plan;
        let arm = &plan.arms[planned.arm];
        let (kernel, image) = (&self.made.kernels[arm.kernel], &self.made.images[arm.kernel]);
        let folder = self.folder.boot_folder(planned.index)?;
        let initramfs = folder.join("initramfs");
        image::with_job(image, &job(arm, planned.seed, plan.mode, kernel), &initramfs)?;
        let stage = Duration::from_secs(plan.deadline_seconds);
        let pins: Vec<usize> = match plan.mode {
            MeasureMode::Instructions => Vec::new(),
            MeasureMode::Wall => pins(arm.guest.cpus),
        };
        let spec = BootSpec {
            arm,
            kernel: &kernel.image,
            kernel_hz: hz(kernel),
            initramfs: &initramfs,
            mode: plan.mode,
            seed: planned.seed,
            folder: &folder,
            deadlines: Deadlines { stage, ..Deadlines::default() },
            pins: &pins,
            window: self.made.aged.get(planned.arm).and_then(Option::as_ref).map(AgedImage::window),
        };
        let label = format!("{}, seed {}", arm.name, planned.seed);
        let on_stage = |stage: &str| {
            let mut state = self.locked();
            state.running.insert(planned.index, format!("{label}: {stage}"));
            self.tell(&state);
        };
        on_stage("boot");
        let mut record = None;
        for _ in 0..HOST_TRIES {
            let load_before = host::load();
            let (steal, ticks) = host::steal_and_total();
            let started_seconds = self.offset + self.began.elapsed().as_secs_f64();
            let result = match self.guest.boot(&spec, self.ctx.cancel, &on_stage) {
                Ok(result) => result,
                Err(error) => {
                    let _ = fs::remove_file(&initramfs);
                    return match error {
                        ProcessError::Cancelled => Ok(None),
                        error => Err(error.into()),
                    };
                }
            };
            let (steal_after, ticks_after) = host::steal_and_total();
            let entry = BootRecord {
                index: planned.index,
                arm: planned.arm,
                seed: planned.seed,
                purpose: planned.purpose,
                outcome: result.outcome,
                hello: result.hello,
                setups: result.setups,
                rounds: result.rounds,
                console: result.console.findings,
                host_cpu_seconds: result.host_cpu_seconds,
                init_cpu_seconds: result.init_cpu_seconds,
                wall_seconds: result.wall_seconds,
                started_seconds,
                load_before,
                steal_percent: share(steal_after.saturating_sub(steal), ticks_after.saturating_sub(ticks)),
            };
            let again = matches!(entry.outcome, Outcome::HostFailed { .. });
            record = Some(entry);
            if !again {
                break;
            }
        }
        let _ = fs::remove_file(&initramfs);
        Ok(record)
    }
}

#[expect(clippy::cast_precision_loss, reason = "tick counts stay far below 2^53")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The last CPUs of the host for the guest: interrupts tend to land on the first.
fn pins(wanted: u32) -> Vec<usize> {
    let cpus = host::cpus();
    let first = cpus.saturating_sub(wanted as usize);
    (first..cpus).collect()
}

/// Whether a boot failed by fault of the guest: its kernel or its workload.
fn blames_guest(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Completed | Outcome::HostFailed { .. })
}

/// Boots of a plan by purpose, for a preview of what a run costs.
#[must_use]
pub fn boots_by_purpose(plan: &Plan) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for boot in &plan.boots {
        let purpose = match boot.purpose {
            BootPurpose::Unmeasured => "unmeasured",
            BootPurpose::Sample => "sample",
            BootPurpose::Repeat => "determinism check",
            BootPurpose::Placebo => "placebo",
        };
        *counts.entry(purpose).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
