//! The run record: everything one run stored, and the judgements made from it. Reports are made
//! from this alone. Read [`RunRecord`] first.

use kdelta_wire::{Hello, Round};
use serde::{Deserialize, Serialize};

use crate::gate::Gate;
use crate::kernel::{Digest, KernelIdentity};
use crate::metric::{Direction, Metric, Unit};
use crate::plan::{BootPurpose, Plan};

/// Version of [`RunRecord`]; raised whenever a field is added or changes its meaning.
pub const RECORD_VERSION: u32 = 2;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`RECORD_VERSION`] of the writer.
    pub version: u32,
    /// Version of kdelta that wrote it.
    pub kdelta: String,
    /// What was asked.
    pub experiment: ExperimentRecord,
    /// When the run started, RFC 3339 in UTC.
    pub started: String,
    /// How it was measured, and why so.
    pub measure: MeasureRecord,
    /// Facts about the host that the guest cannot know.
    pub host: HostFacts,
    /// What was decided before the first boot.
    pub plan: Plan,
    /// Digest of [`Self::plan`].
    pub plan_digest: Digest,
    /// Identity of each of [`Plan::kernels`], in their order.
    pub kernels: Vec<KernelIdentity>,
    /// Options in which the kernels of compared arms differ; empty when only the source does.
    pub config_differences: Vec<ConfigDifference>,
    /// What was really booted, for each of [`Plan::arms`].
    pub arms: Vec<ArmRecord>,
    /// Boots that ended, in plan order.
    pub boots: Vec<BootRecord>,
    /// Judgements, the primary metrics first.
    pub comparisons: Vec<Comparison>,
    /// 2x2 tables, when the arms are two factors of two levels.
    pub factorials: Vec<Factorial>,
    /// Conditions of valid measurement, with their numbers, in the order of the rules.
    pub gates: Vec<Gate>,
    /// What the reader must know before believing anything.
    pub caveats: Vec<String>,
}

/// What was asked, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExperimentRecord {
    /// Name.
    pub name: String,
    /// The question.
    pub description: String,
    /// The experiment file after `--set`, as YAML.
    pub yaml: String,
    /// Command that was given.
    pub command: String,
}

/// What a tick is, and on what it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureMode {
    /// Executed instructions, QEMU TCG with `-icount shift=0,sleep=off`.
    Instructions,
    /// Wall time, KVM.
    Wall,
}

/// How it was measured: the first line of every report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureRecord {
    /// Mode.
    pub mode: MeasureMode,
    /// `TCG with icount` or `KVM`.
    pub accelerator: String,
    /// Why this one.
    pub reason: String,
    /// `qemu-system-x86_64 --version`, first line.
    pub qemu: String,
}

/// Facts about the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// CPU model name.
    pub cpu_model: String,
    /// Logical CPUs usable by us.
    pub cpus: usize,
    /// CPU sockets.
    pub sockets: usize,
    /// NUMA nodes.
    pub numa_nodes: usize,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Scaling governor of CPU 0, `none` when the host has no frequency scaling.
    pub governor: String,
    /// Whether turbo is on, when the host says.
    pub turbo: Option<bool>,
    /// `uname -r`.
    pub kernel: String,
    /// One-minute load average at the start.
    pub load: f64,
}

/// Options in which two kernels of compared arms differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigDifference {
    /// Index in [`Plan::kernels`].
    pub base: usize,
    /// Index in [`Plan::kernels`].
    pub kernel: usize,
    /// Lines of the configuration, `-` for the base's and `+` for the other's.
    pub lines: Vec<String>,
}

/// What was really booted for an arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmRecord {
    /// Kernel command line.
    pub cmdline: String,
    /// Digest of the initramfs without the job.
    pub initramfs_digest: Digest,
    /// Digest of the init inside it.
    pub init_digest: Digest,
    /// Debian packages of the guest's userland, with versions.
    pub userland: Vec<String>,
    /// QEMU arguments, with paths and seeds replaced by names.
    pub qemu_arguments: Vec<String>,
    /// The image that every round starts from, when the filesystem was used before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aged: Option<AgedRecord>,
}

/// The image of a used filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgedRecord {
    /// Digest of its bytes.
    pub digest: Digest,
    /// Bytes of its blocks that are not zero.
    pub bytes: u64,
    /// Digest of the kernel that made it.
    pub kernel: Digest,
    /// All that mkfs printed when it was made.
    pub mkfs_output: String,
    /// Its line of `/proc/mounts` while it was made.
    pub mount_line: String,
}

/// One boot that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BootRecord {
    /// Index in [`Plan::boots`].
    pub index: usize,
    /// Index in [`Plan::arms`].
    pub arm: usize,
    /// Its seed.
    pub seed: u64,
    /// What it was for.
    pub purpose: BootPurpose,
    /// How it ended.
    pub outcome: Outcome,
    /// First frame, when the init got that far.
    pub hello: Option<Hello>,
    /// How each scenario's filesystem was made and mounted.
    pub setups: Vec<ScenarioSetup>,
    /// Every round, warm-up included.
    pub rounds: Vec<Round>,
    /// What the console had to say.
    pub console: Vec<ConsoleFinding>,
    /// CPU time that QEMU took on the host, in seconds.
    pub host_cpu_seconds: f64,
    /// CPU time that QEMU took until the init spoke, in seconds.
    pub init_cpu_seconds: Option<f64>,
    /// How long the boot took on the host, in seconds.
    pub wall_seconds: f64,
    /// Seconds from the session's start to this boot's.
    pub started_seconds: f64,
    /// One-minute load average before it.
    pub load_before: f64,
    /// Share of CPU time stolen from the host's CPUs during the boot, in percent.
    pub steal_percent: f64,
}

/// How a boot ended. A failure has an owner: the kernel, the workload or the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Every scenario ran to its end.
    Completed,
    /// The kernel never reached the init.
    BootFailed {
        /// What is known.
        message: String,
    },
    /// Panic, oops, BUG, lockup or hung task; the kernel's fault.
    KernelFailed {
        /// Title of the first finding on the console.
        message: String,
    },
    /// A workload or mkfs failed.
    WorkloadFailed {
        /// Stage and message.
        message: String,
    },
    /// Nothing moved until the deadline.
    TimedOut {
        /// Stage that did not end.
        stage: String,
        /// Its deadline, in seconds.
        after_seconds: u64,
    },
    /// The host could not do its part; never evidence about a kernel.
    HostFailed {
        /// What happened.
        message: String,
    },
}

impl Outcome {
    /// One word for tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed => "ok",
            Self::BootFailed { .. } => "no boot",
            Self::KernelFailed { .. } => "kernel",
            Self::WorkloadFailed { .. } => "workload",
            Self::TimedOut { .. } => "timeout",
            Self::HostFailed { .. } => "host",
        }
    }

    /// The text that goes with it.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Completed => "completed".to_owned(),
            Self::BootFailed { message } => format!("the kernel did not reach the init: {message}"),
            Self::KernelFailed { message } => format!("the kernel failed: {message}"),
            Self::WorkloadFailed { message } => format!("the workload failed: {message}"),
            Self::TimedOut { stage, after_seconds } => {
                format!("no progress in stage \"{stage}\" for {after_seconds} s; the guest hangs")
            }
            Self::HostFailed { message } => format!("the host failed: {message}"),
        }
    }
}

/// How a scenario's filesystem was made and mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioSetup {
    /// Scenario.
    pub scenario: String,
    /// All that mkfs printed.
    pub mkfs_output: String,
    /// Its line of `/proc/mounts`.
    pub mount_line: String,
}

/// One thing the kernel said on the console that matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleFinding {
    /// `panic`, `oops`, `bug`, `warning`, `hung-task`, `soft-lockup` and their kind.
    pub kind: String,
    /// Whether it makes the boot's numbers void.
    pub fatal: bool,
    /// The line that tells.
    pub title: String,
    /// The lines around it.
    pub text: String,
}

/// One metric, one pair of arms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Index of the arm compared with.
    pub base: usize,
    /// Index of the arm in question.
    pub arm: usize,
    /// What is compared.
    pub metric: Metric,
    /// Its unit.
    pub unit: Unit,
    /// Which way is better.
    pub direction: Direction,
    /// Whether the verdict counts (else it is labelled exploratory).
    pub primary: bool,
    /// Values of the base arm.
    pub base_cell: Cell,
    /// Values of the arm in question.
    pub arm_cell: Cell,
    /// Change of the arm against its base.
    pub estimate: Option<Estimate>,
    /// What repeated boots of one seed showed.
    pub determinism: Determinism,
    /// Largest change of the placebo at any seed, in percent; `None` without one.
    pub placebo_percent: Option<f64>,
    /// The judgement.
    pub verdict: Verdict,
}

/// Values of one metric on one arm: one per boot, the midmean of its rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Seed and value of each boot, in plan order.
    pub boots: Vec<(u64, f64)>,
    /// Mean of the boot values.
    pub mean: f64,
    /// Smallest round value, warm-up excluded.
    pub round_min: f64,
    /// Largest round value, warm-up excluded.
    pub round_max: f64,
    /// Standard deviation of the boot values; 0 with one boot.
    pub sd: f64,
}

/// A relative change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Point estimate, in percent of the base.
    pub percent: f64,
    /// Interval at 95 %, in percent; absent when there are too few boots for one.
    pub interval: Option<(f64, f64)>,
    /// Smallest and largest change at any seed, in percent; for pairs by seed only.
    pub seed_range: Option<(f64, f64)>,
    /// Two-sided p value; absent for exact statements.
    pub p: Option<f64>,
    /// Pairs of boots (seeds), or boots per side.
    pub n: usize,
    /// Every seed gave exactly the same change.
    pub exact: bool,
    /// When all seeds agree in sign or lie within the margin, and are enough to say so: share of all
    /// seeds for which that holds, at least, in percent at 95 % confidence.
    pub seed_share_percent: Option<f64>,
    /// Changes beyond this are ruled out, in percent.
    pub ruled_out_percent: Option<f64>,
    /// Smallest change that this many boots would find, in percent.
    pub detectable_percent: Option<f64>,
}

/// What boots of the same arm and seed showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "determinism", rename_all = "kebab-case")]
pub enum Determinism {
    /// Wall time, or no repeated boot.
    NotChecked,
    /// The same bits.
    Identical,
    /// Different bits: judged as noisy data.
    Differs {
        /// Largest difference, in parts per million.
        ppm: u64,
    },
}

/// A judgement about one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Not one instruction of difference, at any seed.
    Identical,
    /// Worse.
    Regression {
        /// The whole interval is beyond the margin.
        beyond_margin: bool,
    },
    /// Better.
    Improvement {
        /// The whole interval is beyond the margin.
        beyond_margin: bool,
    },
    /// No change larger than the margin.
    Equivalent {
        /// A smaller change is likely all the same.
        shift_likely: bool,
    },
    /// Neither shown nor ruled out.
    Inconclusive {
        /// About how many more boots per arm would decide it.
        more_boots: Option<usize>,
        /// The change is not larger than what the placebo shows.
        within_placebo: bool,
    },
    /// The numbers cannot be used.
    Invalid {
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// As reports print it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Identical => "IDENTICAL",
            Self::Regression { .. } => "REGRESSION",
            Self::Improvement { .. } => "IMPROVEMENT",
            Self::Equivalent { .. } => "EQUIVALENT",
            Self::Inconclusive { .. } => "INCONCLUSIVE",
            Self::Invalid { .. } => "INVALID",
        }
    }
}

/// A 2x2 table of one metric: a change (before, after) and a feature (off, on).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Factorial {
    /// What is compared.
    pub metric: Metric,
    /// Its unit.
    pub unit: Unit,
    /// Factor that is the change, and its levels before and after.
    pub change: (String, String, String),
    /// Factor that is the feature, and its levels off and on.
    pub feature: (String, String, String),
    /// Values of the cells: before off, before on, after off, after on.
    pub cells: [Cell; 4],
    /// On against off, before the change.
    pub cost_before: Option<Estimate>,
    /// On against off, after the change.
    pub cost_after: Option<Estimate>,
    /// After against before with the feature off: the control, which should be about 0.
    pub effect_off: Option<Estimate>,
    /// After against before with the feature on.
    pub effect_on: Option<Estimate>,
    /// (on/off after) / (on/off before), as a change in percent.
    pub interaction: Option<Estimate>,
    /// Share of the feature's cost that the change recovers, in percent; absent when the cost
    /// before is not positive.
    pub recovered_percent: Option<f64>,
}
