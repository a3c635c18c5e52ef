//! From an experiment to ordered boots: arms and factors crossed, defaults filled in, every name
//! checked against the catalogue. Read [`make`] first.

use std::collections::{BTreeMap, BTreeSet};

use kdelta_model::{
    AgedSettings, Aging, Arm, ArmSettings, BootPurpose, ConfigBase, Experiment, ExternalLog, Filesystem,
    FilesystemSettings, GuestShape, KernelRequest, MeasureMode, Pair, Plan, PlannedBoot, Scenario, Size,
    WorkloadSettings,
};
use kdelta_wire::{DiskKind, FilesystemKind, Parameters};
use kdelta_workloads::Selection;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::builtin;
use crate::config::{ConfigError, LoadedExperiment};

/// Margin in percent below which a change of instruction counts is not worth reporting
/// (statistics.md, section 4).
const INSTRUCTIONS_MARGIN: f64 = 0.5;
/// The same for wall time.
const WALL_MARGIN: f64 = 2.0;
/// Seeds of a first look in instructions mode (statistics.md, section 6.4).
const SEEDS: u32 = 8;
/// Pairs of boots of a first look in wall mode (statistics.md, section 3).
const PAIRS: u32 = 5;
/// More boots than this per arm are a slip of the pen.
pub const MOST_BOOTS: u32 = 1000;
/// More arms than this cannot be read in one table.
const MOST_ARMS: usize = 64;
/// More boots than this in all take weeks.
const MOST_BOOTS_IN_ALL: u64 = 20_000;
/// More rounds than this in one boot belong into more boots.
const MOST_ROUNDS: u32 = 1000;
/// The first round of a boot differs from all others (cold caches, first allocations).
const WARMUP: u32 = 1;
/// The same in instructions mode on a disk that threads of the host serve: creates on NVMe took up to
/// four rounds to settle (62.9k, 42.1k, 38.6k instructions each).
const SERVED_WARMUP: u32 = 4;
/// A small kernel boots in it, and a filesystem has a page cache worth the name.
const LEAST_MEMORY: Size = Size::from_mib(256);
/// The machine has 40 address bits (`-cpu qemu64`), 1 TiB, of which devices take a part at the top.
const MOST_MEMORY: Size = Size::from_mib(512 << 10);
/// Smaller than the smallest filesystem that mkfs makes with a journal.
const LEAST_DISK: Size = Size::from_mib(16);
/// The largest file of an ext4 on the host, which holds the disk.
const MOST_DISK: Size = Size::from_mib(16 << 20);
/// A week.
const LONGEST_DEADLINE_SECONDS: u64 = 7 * 24 * 3600;
/// UUID of a filesystem whose image is kept, so that it does not depend on who makes it.
const AGED_UUID: &str = "6b64656c-7461-4000-8000-000000000001";
/// Block size of an ext4 filesystem with a journal of its own, which must have the same; mke2fs
/// would choose each by the size of its disk.
const EXT4_BLOCK: &str = "4096";
/// A guest that computes for ten minutes without reaching its next stage hangs.
const STAGE_DEADLINE_SECONDS: u64 = 600;

/// Decides everything: which kernels, which arms, which boots in which order.
///
/// # Errors
/// When the experiment contradicts itself or names something that does not exist.
pub fn make(loaded: &LoadedExperiment, mode: MeasureMode) -> Result<Plan, ConfigError> {
    let experiment = &loaded.experiment;
    if !is_name(&experiment.name) {
        let message = format!("{:?} cannot be the name of an experiment; give a short word", experiment.name);
        return Err(ConfigError::invalid("name", message));
    }
    let settings = arm_settings(experiment)?;
    let mut planner = Planner { loaded, warmup: WARMUP, kernels: Vec::new(), arms: Vec::new() };
    planner.warmup = planner.default_warmup(&settings, mode)?;
    let fragments = planner.fragments(&settings)?;
    for (place, levels, settings) in &settings {
        planner.add_arm(place, levels.clone(), settings, &fragments)?;
    }
    let pairs = pairs(experiment, &planner.arms);
    let wants_placebo = mode == MeasureMode::Instructions && experiment.placebo.unwrap_or(true);
    if wants_placebo {
        planner.add_placebos(&pairs);
    }
    let default = if mode == MeasureMode::Instructions { SEEDS } else { PAIRS };
    let boots = experiment.boots.unwrap_or(default);
    if boots == 0 || boots > MOST_BOOTS {
        return Err(ConfigError::invalid("boots", format!("{boots} boots; 1 to {MOST_BOOTS} are possible")));
    }
    let default = if mode == MeasureMode::Instructions { INSTRUCTIONS_MARGIN } else { WALL_MARGIN };
    let margin_percent = experiment.margin_percent.unwrap_or(default);
    if !(margin_percent > 0.0 && margin_percent < 100.0) {
        return Err(ConfigError::invalid(
            "margin_percent",
            format!("{margin_percent}; it lies between 0 and 100"),
        ));
    }
    let deadline_seconds = experiment.deadline_seconds.unwrap_or(STAGE_DEADLINE_SECONDS);
    if deadline_seconds == 0 || deadline_seconds > LONGEST_DEADLINE_SECONDS {
        let message = format!("{deadline_seconds} s; 1 to {LONGEST_DEADLINE_SECONDS} are possible");
        return Err(ConfigError::invalid("deadline_seconds", message));
    }
    let repeats = u64::from(experiment.repeats.unwrap_or(1));
    let in_all = (u64::from(boots) + repeats) * planner.arms.len() as u64;
    if in_all > MOST_BOOTS_IN_ALL {
        let message = format!("{in_all} boots in all, at most {MOST_BOOTS_IN_ALL} are possible");
        return Err(ConfigError::invalid("boots, repeats", message));
    }
    let order = match mode {
        MeasureMode::Instructions => by_seed(&planner.arms, boots, experiment),
        MeasureMode::Wall => by_coin(&planner.arms, boots, experiment.seed),
    };
    let boots = order
        .into_iter()
        .enumerate()
        .map(|(index, (arm, seed, purpose))| PlannedBoot { index, arm, seed, purpose })
        .collect();
    Ok(Plan {
        mode,
        margin_percent,
        seed: experiment.seed,
        deadline_seconds,
        kernels: planner.kernels,
        arms: planner.arms,
        pairs,
        boots,
    })
}

type NamedSettings = (String, BTreeMap<String, String>, ArmSettings);

/// The arms as settings over the experiment's, each with its place in the file.
fn arm_settings(experiment: &Experiment) -> Result<Vec<NamedSettings>, ConfigError> {
    let common = ArmSettings {
        kernel: experiment.settings.kernel.over(&experiment.kernel),
        ..experiment.settings.clone()
    };
    match (experiment.arms.is_empty(), experiment.factors.is_empty()) {
        (false, false) => Err(ConfigError::invalid("arms", "give arms or factors, not both")),
        (true, true) => Err(ConfigError::invalid(
            "arms",
            "nothing to compare: list arms, or factors whose levels are crossed into arms",
        )),
        (false, true) if experiment.arms.len() > MOST_ARMS => {
            Err(ConfigError::invalid("arms", format!("{} arms; at most {MOST_ARMS}", experiment.arms.len())))
        }
        (false, true) => {
            let arms = experiment.arms.iter().enumerate();
            Ok(arms.map(|(i, arm)| (format!("arms[{i}]"), BTreeMap::new(), arm.over(&common))).collect())
        }
        (true, false) => crossed(experiment, &common),
    }
}

fn crossed(experiment: &Experiment, common: &ArmSettings) -> Result<Vec<NamedSettings>, ConfigError> {
    let unnamed = ArmSettings { name: None, ..common.clone() };
    let mut arms = vec![(String::new(), BTreeMap::new(), unnamed)];
    for (f, factor) in experiment.factors.iter().enumerate() {
        let place = format!("factors[{f}]");
        if factor.levels.is_empty() {
            return Err(ConfigError::invalid(place, format!("factor {} has no levels", factor.factor)));
        }
        if arms.len() * factor.levels.len() > MOST_ARMS {
            return Err(ConfigError::invalid(
                place,
                format!("the factors cross to more than {MOST_ARMS} arms"),
            ));
        }
        let mut next = Vec::new();
        for (name, levels, below) in &arms {
            for (l, level) in factor.levels.iter().enumerate() {
                let Some(label) = level.name.as_ref().filter(|name| is_name(name)) else {
                    return Err(ConfigError::invalid(format!("{place}.levels[{l}]"), "a level needs a name"));
                };
                let mut levels = levels.clone();
                if levels.insert(factor.factor.clone(), label.clone()).is_some() {
                    return Err(ConfigError::invalid(
                        place,
                        format!("two factors are called {}", factor.factor),
                    ));
                }
                let name = if name.is_empty() { label.clone() } else { format!("{name}, {label}") };
                let settings = ArmSettings { name: Some(name.clone()), ..level.over(below) };
                next.push((name, levels, settings));
            }
        }
        arms = next;
    }
    Ok(arms
        .into_iter()
        .map(|(name, levels, settings)| (format!("arm \"{name}\""), levels, settings))
        .collect())
}

struct Planner<'a> {
    loaded: &'a LoadedExperiment,
    /// Warm-up rounds of workloads that do not say.
    warmup: u32,
    kernels: Vec<KernelRequest>,
    arms: Vec<Arm>,
}

impl Planner<'_> {
    /// Fragments for all filesystems and disks of the experiment, so that arms share one kernel
    /// configuration and differ only in what they say.
    fn fragments(&self, settings: &[NamedSettings]) -> Result<Vec<String>, ConfigError> {
        let mut names = BTreeSet::new();
        for (place, _, settings) in settings {
            let filesystem = filesystem(place, settings)?;
            names.insert(filesystem.kind.name().to_owned());
            match self.shape(place, settings, &filesystem)?.disk.kind {
                DiskKind::None => {}
                DiskKind::Ram => drop(names.insert("disk-ram".to_owned())),
                DiskKind::Nvme => drop(names.insert("disk-nvme".to_owned())),
                DiskKind::VirtioBlk => drop(names.insert("disk-virtio-blk".to_owned())),
            }
        }
        Ok(std::iter::once("guest".to_owned()).chain(names).collect())
    }

    /// One number for all arms, whichever disk each has: arms differ only in what they say.
    fn default_warmup(&self, settings: &[NamedSettings], mode: MeasureMode) -> Result<u32, ConfigError> {
        if mode == MeasureMode::Wall {
            return Ok(WARMUP);
        }
        for (place, _, settings) in settings {
            let filesystem = filesystem(place, settings)?;
            if self.shape(place, settings, &filesystem)?.disk.is_served_by_host() {
                return Ok(SERVED_WARMUP);
            }
        }
        Ok(WARMUP)
    }

    fn shape(
        &self,
        place: &str,
        settings: &ArmSettings,
        filesystem: &Filesystem,
    ) -> Result<GuestShape, ConfigError> {
        let kind = filesystem.kind;
        let default = if kind.needs_disk() { "ram" } else { "tmpfs" };
        let name = self.loaded.experiment.guest.as_deref().unwrap_or(default);
        let mut shape = builtin::guest(name, &self.loaded.folder)
            .map_err(|error| ConfigError::invalid("guest", error))?;
        shape.memory = settings.memory.unwrap_or(shape.memory);
        shape.cpus = settings.cpus.unwrap_or(shape.cpus);
        shape.disk = settings.disk.clone().unwrap_or(shape.disk);
        shape.cmdline.extend(settings.cmdline.iter().cloned());
        check_shape(place, &shape, filesystem)?;
        Ok(shape)
    }

    fn add_arm(
        &mut self,
        place: &str,
        levels: BTreeMap<String, String>,
        settings: &ArmSettings,
        fragments: &[String],
    ) -> Result<(), ConfigError> {
        let name = settings.name.clone().ok_or_else(|| ConfigError::invalid(place, "an arm needs a name"))?;
        if !is_name(&name) {
            return Err(ConfigError::invalid(place, format!("{name:?} cannot be the name of an arm")));
        }
        if self.arms.iter().any(|arm| arm.name == name) {
            return Err(ConfigError::invalid(place, format!("two arms are called {name:?}")));
        }
        let filesystem = filesystem(place, settings)?;
        let guest = self.shape(place, settings, &filesystem)?;
        let aged = settings.filesystem.as_ref().and_then(|filesystem| filesystem.aged.as_ref());
        let aged = aged.map(|aged| aging(place, aged, filesystem.kind)).transpose()?;
        let workloads = &self.loaded.experiment.workloads;
        let scenarios = scenarios(workloads, settings, filesystem.kind, self.warmup)?;
        let kernel = self.kernel(place, settings, fragments)?;
        self.arms.push(Arm { name, levels, kernel, guest, filesystem, aged, scenarios, placebo_of: None });
        Ok(())
    }

    fn kernel(
        &mut self,
        place: &str,
        settings: &ArmSettings,
        fragments: &[String],
    ) -> Result<usize, ConfigError> {
        let kernel = &settings.kernel;
        let Some(source) = kernel.source.clone() else {
            return Err(ConfigError::invalid(
                format!("{place}.kernel"),
                "no kernel source; give one, such as source: \"debian:linux-source-6.12\"",
            ));
        };
        let plain = kernel.patches.is_empty() && kernel.options.is_empty() && kernel.fragments.is_empty();
        if !source.is_compiled() && !plain {
            return Err(ConfigError::invalid(
                format!("{place}.kernel"),
                format!("{source} is a ready-made kernel: it takes no patches, fragments or options"),
            ));
        }
        let request = KernelRequest {
            source: source.under(self.loaded.folder.as_str()),
            patches: kernel.patches.iter().map(|patch| patch.under(self.loaded.folder.as_str())).collect(),
            base: match kernel.base.clone().unwrap_or_default() {
                ConfigBase::File(path) => ConfigBase::File(self.loaded.folder.join(path).into_string()),
                base => base,
            },
            fragments: fragments
                .iter()
                .cloned()
                .chain(kernel.fragments.iter().map(|name| match builtin::is_path(name) {
                    true => self.loaded.folder.join(name).into_string(),
                    false => name.clone(),
                }))
                .collect(),
            options: kernel.options.clone(),
            placebo: false,
        };
        Ok(self.kernel_index(request))
    }

    fn kernel_index(&mut self, request: KernelRequest) -> usize {
        self.kernels.iter().position(|known| *known == request).unwrap_or_else(|| {
            self.kernels.push(request);
            self.kernels.len() - 1
        })
    }

    /// One placebo for each parent arm whose child has another kernel.
    fn add_placebos(&mut self, pairs: &[Pair]) {
        let bases: BTreeSet<usize> = pairs
            .iter()
            .filter(|pair| self.arms[pair.base].kernel != self.arms[pair.arm].kernel)
            .map(|pair| pair.base)
            .collect();
        for base in bases {
            let arm = self.arms[base].clone();
            let kernel = &self.kernels[arm.kernel];
            if !kernel.source.is_compiled() {
                continue;
            }
            let kernel = self.kernel_index(KernelRequest { placebo: true, ..kernel.clone() });
            let name = format!("{}, placebo", arm.name);
            self.arms.push(Arm { name, kernel, placebo_of: Some(base), ..arm });
        }
    }
}

/// Whether a text can stand in tables and on lines of a console.
fn is_name(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(char::is_control)
}

pub(crate) fn filesystem(place: &str, settings: &ArmSettings) -> Result<Filesystem, ConfigError> {
    let FilesystemSettings { kind, mkfs, mount, log, aged } =
        settings.filesystem.clone().ok_or_else(|| {
            ConfigError::invalid(
                format!("{place}.filesystem"),
                "no filesystem; give one under settings, such as filesystem: {type: xfs}",
            )
        })?;
    if kind == FilesystemKind::Tmpfs && !mkfs.is_empty() {
        return Err(ConfigError::invalid(
            format!("{place}.filesystem.mkfs"),
            "tmpfs has no mkfs; use mount options",
        ));
    }
    if log.is_some() && aged.is_some() {
        return Err(ConfigError::invalid(
            format!("{place}.filesystem.aged"),
            "the image of a used filesystem holds its log; leave out `log`, or `aged`",
        ));
    }
    // Every round makes the filesystem anew, over the one of the round before.
    let force = match kind {
        FilesystemKind::Tmpfs => None,
        FilesystemKind::Xfs | FilesystemKind::Btrfs => Some("-f"),
        FilesystemKind::Ext4 => Some("-F"),
    };
    let force = force.filter(|flag| !mkfs.iter().any(|word| word == flag)).map(str::to_owned);
    let mut mkfs: Vec<String> = force.into_iter().chain(mkfs).collect();
    if aged.is_some() {
        fix_uuid(kind, &mut mkfs);
    }
    let log = log.map(|size| external_log(place, kind, size, &mut mkfs)).transpose()?;
    Ok(Filesystem { kind, mkfs, mount, log })
}

/// Gives the filesystem the same UUID each time, unless the experiment says one.
fn fix_uuid(kind: FilesystemKind, mkfs: &mut Vec<String>) {
    let (flag, value) = match kind {
        FilesystemKind::Tmpfs => return,
        FilesystemKind::Xfs => ("-m", format!("uuid={AGED_UUID}")),
        FilesystemKind::Ext4 | FilesystemKind::Btrfs => ("-U", AGED_UUID.to_owned()),
    };
    let given = match kind {
        FilesystemKind::Xfs => mkfs.iter().any(|word| word.contains("uuid=")),
        _ => has_flag(mkfs, flag),
    };
    if !given {
        mkfs.extend([flag.to_owned(), value]);
    }
}

/// Whether `flag` is among the arguments, with its value in the next word or in the same.
fn has_flag(arguments: &[String], flag: &str) -> bool {
    arguments.iter().any(|word| word.starts_with(flag))
}

/// A log of `size` on a disk of its own; the guest adds the names of the disks.
fn external_log(
    place: &str,
    kind: FilesystemKind,
    size: Size,
    mkfs: &mut Vec<String>,
) -> Result<ExternalLog, ConfigError> {
    let refuse = |message: String| ConfigError::invalid(format!("{place}.filesystem.log"), message);
    if let Some(reason) = kind.refuses_log() {
        return Err(refuse(format!("{reason}; xfs and ext4 can have a log on a disk of its own")));
    }
    if !size.bytes().is_multiple_of(4096) {
        return Err(refuse(format!("{size}; it must be a multiple of 4KiB")));
    }
    let twice = |what: &str| refuse(format!("mkfs is told where the log is already: {what}"));
    if kind == FilesystemKind::Xfs {
        if let Some(word) = mkfs.iter().find(|word| word.contains("logdev=") || word.contains("internal")) {
            return Err(twice(word));
        }
        return Ok(ExternalLog { bytes: size.bytes(), mkfs: Vec::new() });
    }
    if has_flag(mkfs, "-J") {
        return Err(twice("-J"));
    }
    if !has_flag(mkfs, "-b") {
        mkfs.extend(["-b".to_owned(), EXT4_BLOCK.to_owned()]);
    }
    // The journal needs the block size of the filesystem, and nothing else of it.
    let at = mkfs.iter().position(|word| word.starts_with("-b")).unwrap_or_default();
    let words = if mkfs[at] == "-b" { 2 } else { 1 };
    let block = mkfs.iter().skip(at).take(words).cloned();
    let own = ["-F".to_owned()].into_iter().chain(block);
    let journal = own.chain(["-O", "journal_dev"].map(str::to_owned)).collect();
    Ok(ExternalLog { bytes: size.bytes(), mkfs: journal })
}

/// How a filesystem is used before it is measured.
fn aging(place: &str, settings: &AgedSettings, kind: FilesystemKind) -> Result<Aging, ConfigError> {
    let place = format!("{place}.filesystem.aged");
    if !kind.needs_disk() {
        let message = format!("{kind} has no disk whose state could be kept; use xfs, ext4 or btrfs");
        return Err(ConfigError::invalid(place, message));
    }
    if let Some(every @ 0..=1) = settings.remove_every {
        let message = format!("{every}; 2 removes half of the files, and nothing is left of fewer");
        return Err(ConfigError::invalid(format!("{place}.remove_every"), message));
    }
    let mut workload = WorkloadSettings::new(&settings.workload);
    workload.preset.clone_from(&settings.preset);
    workload.parameters.clone_from(&settings.parameters);
    workload.rounds = settings.rounds;
    workload.warmup = Some(0);
    // The parameters of the arm are those of what is measured.
    let scenarios =
        scenarios(&[workload], &ArmSettings::default(), kind, 0).map_err(|error| match error {
            ConfigError::Invalid { place: inner, message } => {
                ConfigError::Invalid { place: inner.replacen("workloads[0]", &place, 1), message }
            }
            error => error,
        })?;
    Ok(Aging { scenarios, remove_every: settings.remove_every, seed: settings.seed })
}

pub(crate) fn check_shape(
    place: &str,
    shape: &GuestShape,
    filesystem: &Filesystem,
) -> Result<(), ConfigError> {
    let (kind, disk) = (filesystem.kind, shape.disk.kind);
    if kind.needs_disk() && disk == DiskKind::None {
        return Err(ConfigError::invalid(
            format!("{place}.disk"),
            format!("{kind} needs a disk; use guest: ram, nvme or virtio-blk"),
        ));
    }
    if shape.cpus == 0 || shape.cpus > 64 {
        return Err(ConfigError::invalid(
            format!("{place}.cpus"),
            format!("{} CPUs; 1 to 64 are possible", shape.cpus),
        ));
    }
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&shape.memory) {
        return Err(ConfigError::invalid(
            format!("{place}.memory"),
            format!("{}; {LEAST_MEMORY} to {MOST_MEMORY} are possible", shape.memory),
        ));
    }
    if let Some(size) = shape.disk.capacity().filter(|size| !(LEAST_DISK..=MOST_DISK).contains(size)) {
        return Err(ConfigError::invalid(
            format!("{place}.disk.size"),
            format!("{size}; {LEAST_DISK} to {MOST_DISK} are possible"),
        ));
    }
    if let (DiskKind::Ram, Some(size)) = (disk, shape.disk.capacity()) {
        let log = filesystem.log.as_ref().map_or(0, |log| log.bytes);
        if log > size.bytes() {
            let message = "all RAM disks have one size, so the log is at most as large as the disk";
            return Err(ConfigError::invalid(
                format!("{place}.filesystem.log"),
                format!("{message}: {size}"),
            ));
        }
        // A full RAM disk and the page cache of what lies on it must both fit.
        if size.bytes().saturating_add(log).saturating_mul(2) > shape.memory.bytes() {
            let log = if log > 0 { format!(" with a log of {} MiB", log >> 20) } else { String::new() };
            return Err(ConfigError::invalid(
                format!("{place}.disk"),
                format!(
                    "a RAM disk of {size}{log} needs twice that in guest memory, which is {}",
                    shape.memory
                ),
            ));
        }
    }
    if let Some(word) = shape.cmdline.iter().find(|word| word.contains('"') || word.contains('\n')) {
        return Err(ConfigError::invalid(
            format!("{place}.cmdline"),
            format!("{word:?} cannot be on a command line"),
        ));
    }
    Ok(())
}

fn scenarios(
    workloads: &[WorkloadSettings],
    arm: &ArmSettings,
    kind: FilesystemKind,
    default_warmup: u32,
) -> Result<Vec<Scenario>, ConfigError> {
    if workloads.is_empty() {
        return Err(ConfigError::invalid(
            "workloads",
            "nothing to run; `kdelta workloads` lists what there is",
        ));
    }
    let mut list: Vec<Scenario> = Vec::new();
    let mut used = BTreeSet::new();
    for (index, settings) in workloads.iter().enumerate() {
        let place = format!("workloads[{index}]");
        let warmup = settings.warmup.unwrap_or(default_warmup);
        if settings.rounds > MOST_ROUNDS || warmup > MOST_ROUNDS {
            return Err(ConfigError::invalid(
                place,
                format!("at most {MOST_ROUNDS} rounds and as many for warm-up"),
            ));
        }
        if settings.rounds == 0 {
            return Err(ConfigError::invalid(
                format!("{place}.rounds"),
                "at least one round must be measured",
            ));
        }
        if settings.workload.trim().is_empty() {
            return Err(ConfigError::invalid(
                format!("{place}.workload"),
                "the name is empty; `kdelta workloads` lists what there is",
            ));
        }
        if let Some(name) = settings.name.as_ref().filter(|name| !is_name(name)) {
            return Err(ConfigError::invalid(
                format!("{place}.name"),
                format!("{name:?} cannot be the name of a workload; leave it out, or give a word for tables"),
            ));
        }
        let selected = kdelta_workloads::select(&settings.workload)
            .map_err(|error| ConfigError::invalid(format!("{place}.workload"), error))?;
        for selection in &selected {
            let id = match (&settings.name, selected.len()) {
                (Some(name), 1) => name.clone(),
                (Some(name), _) => format!("{name}/{}", selection.scenario.name),
                (None, _) => selection.name(),
            };
            if list.iter().any(|known| known.id == id) {
                return Err(ConfigError::invalid(
                    place,
                    format!("{id:?} runs twice; give each a name of its own"),
                ));
            }
            let parameters = parameters(&place, settings, selection, arm, kind, &mut used)?;
            let workload = selection.name();
            let strace = Vec::new();
            list.push(Scenario { id, workload, parameters, warmup, rounds: settings.rounds, strace });
        }
    }
    match arm.parameters.iter().find(|(name, _)| !used.contains(*name)) {
        None => Ok(list),
        Some((name, value)) => Err(ConfigError::invalid(
            "parameters",
            format!("no workload of this experiment takes {name} (set to {value})"),
        )),
    }
}

/// Parameter values of one scenario: preset, then the workload's own, then the arm's.
fn parameters(
    place: &str,
    settings: &WorkloadSettings,
    selection: &Selection,
    arm: &ArmSettings,
    kind: FilesystemKind,
    used: &mut BTreeSet<String>,
) -> Result<Parameters, ConfigError> {
    let (info, scenario) = (selection.workload.info(), selection.scenario);
    if let Some(reason) = info.refusal(scenario, kind) {
        let known: Vec<&str> = info.filesystems(scenario).map(FilesystemKind::name).collect();
        return Err(ConfigError::invalid(
            place,
            format!("{} does not run on {kind}: {reason}; it runs on {}", selection.name(), known.join(", ")),
        ));
    }
    let preset = settings.preset.as_deref().unwrap_or("guest");
    let preset = info.preset(preset).ok_or_else(|| {
        let known: Vec<&str> = info.presets.iter().map(|preset| preset.name).collect();
        ConfigError::invalid(
            format!("{place}.preset"),
            format!("no preset {preset:?}; known: {}", known.join(", ")),
        )
    })?;
    let mut parameters = preset.parameters(info, scenario);
    parameters.extend(settings.parameters.clone());
    for (name, value) in &arm.parameters {
        if info.parameters_of(scenario).any(|parameter| parameter.name == name) {
            parameters.insert(name.clone(), value.clone());
            used.insert(name.clone());
        }
    }
    kdelta_workloads::resolve(info, scenario, &parameters)
        .map_err(|error| ConfigError::invalid(format!("{place}.parameters"), error))
}

/// Which arms are compared: listed arms with the first. Crossed arms along the factor that changes
/// the kernel, at each level of the others; along every factor when none does. (What a feature
/// costs is no verdict about a kernel: the 2x2 table says it.)
fn pairs(experiment: &Experiment, arms: &[Arm]) -> Vec<Pair> {
    if experiment.factors.is_empty() {
        return (1..arms.len()).map(|arm| Pair { base: 0, arm }).collect();
    }
    let mut pairs = Vec::new();
    for factor in &experiment.factors {
        let Some(first) = factor.levels.first().and_then(|level| level.name.clone()) else { continue };
        for (index, arm) in arms.iter().enumerate() {
            let mut levels = arm.levels.clone();
            levels.insert(factor.factor.clone(), first.clone());
            if let Some(base) =
                arms.iter().position(|other| other.levels == levels).filter(|base| *base != index)
            {
                pairs.push(Pair { base, arm: index });
            }
        }
    }
    let changes_kernel = |pair: &Pair| arms[pair.base].kernel != arms[pair.arm].kernel;
    if pairs.iter().any(changes_kernel) {
        pairs.retain(changes_kernel);
    }
    pairs
}

type Order = Vec<(usize, u64, BootPurpose)>;

/// Instructions mode: seed after seed through all arms, repeats of the first seed right after it.
fn by_seed(arms: &[Arm], boots: u32, experiment: &Experiment) -> Order {
    let mut order = Vec::new();
    for number in 0..u64::from(boots) {
        let seed = experiment.seed.wrapping_add(number);
        let purpose =
            |arm: &Arm| if arm.placebo_of.is_some() { BootPurpose::Placebo } else { BootPurpose::Sample };
        order.extend(arms.iter().enumerate().map(|(index, arm)| (index, seed, purpose(arm))));
        if number == 0 {
            let real = |(_, arm): &(usize, &Arm)| arm.placebo_of.is_none();
            for _ in 0..experiment.repeats.unwrap_or(1) {
                order.extend(
                    arms.iter().enumerate().filter(real).map(|(index, _)| (index, seed, BootPurpose::Repeat)),
                );
            }
        }
    }
    order
}

/// Wall mode: one unmeasured boot of each arm, then rounds of one boot per arm in random order
/// (an independent coin for each pair; statistics.md, section 0.2).
fn by_coin(arms: &[Arm], pairs: u32, seed: u64) -> Order {
    let mut coin = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Order = (0..arms.len()).map(|arm| (arm, seed, BootPurpose::Unmeasured)).collect();
    for number in 0..u64::from(pairs) {
        let mut block: Vec<usize> = (0..arms.len()).collect();
        // Fisher-Yates.
        for last in (1..block.len()).rev() {
            block.swap(last, coin.random_range(0..=last));
        }
        let seed = seed.wrapping_add(number + 1);
        order.extend(block.into_iter().map(|arm| (arm, seed, BootPurpose::Sample)));
    }
    order
}

#[cfg(test)]
mod tests;
