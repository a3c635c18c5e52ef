//! The experiment file: what is asked, as a user writes it. Read [`Experiment`] first; the engine
//! turns it into a [`crate::Plan`].

use std::collections::BTreeMap;

use kdelta_wire::{FilesystemKind, Parameters};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guest::{Disk, Size};
use crate::kernel::{ConfigBase, KernelSource, PatchSource};

/// One question about performance, with everything needed to answer it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Version of this format: 1.
    pub version: u32,
    /// Short name; the run's folder is named after it.
    pub name: String,
    /// The question in one or two sentences; printed in the report.
    #[serde(default)]
    pub description: String,
    /// How to measure: `auto` takes wall time when a KVM guest boots here, else instructions.
    #[serde(default)]
    pub measure: MeasureChoice,
    /// Boots of each arm in instructions mode, each with its own seed (8, 12, 18, 27, 40 or 60 for
    /// a verdict on values that vary), or pairs of boots in wall mode (5, 7, 10, 15, 22, 33, 50).
    /// Default: 8 and 5.
    #[serde(default)]
    pub boots: Option<u32>,
    /// Seed of the session: order of boots and every seed handed to guests.
    #[serde(default)]
    pub seed: u64,
    /// Smallest change that matters, in percent. Default: 0.5 for instructions, 2 for wall time.
    #[serde(default)]
    pub margin_percent: Option<f64>,
    /// Extra boots of the first seed of each arm, which must give the same bits (instructions mode).
    /// Default: 1.
    #[serde(default)]
    pub repeats: Option<u32>,
    /// CPU seconds that a guest may use without reaching its next stage. Default: 600.
    #[serde(default)]
    pub deadline_seconds: Option<u64>,
    /// Whether to boot the placebo, the parent with a change that does nothing. Instructions mode
    /// with compiled kernels only; on by default there.
    #[serde(default)]
    pub placebo: Option<bool>,
    /// Values that `--set NAME=VALUE` fills in; `${NAME}` in any text below stands for them.
    #[serde(default)]
    pub variables: BTreeMap<String, ExperimentVariable>,
    /// Kernel of every arm, unless an arm says otherwise.
    #[serde(default)]
    pub kernel: KernelSettings,
    /// Guest shape: the name of a file of `configs/guests/` or a path. Default: the one that fits
    /// the filesystem.
    #[serde(default)]
    pub guest: Option<String>,
    /// Settings of every arm besides the kernel.
    #[serde(default)]
    pub settings: ArmSettings,
    /// What runs in each boot, in this order.
    pub workloads: Vec<WorkloadSettings>,
    /// Named arms, the first is the one that others are compared with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<ArmSettings>,
    /// Factors whose levels are crossed into arms (instead of `arms`); two factors of two levels
    /// make a 2x2 table. The first level of each is the one to compare with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Levels>,
}

/// How to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureChoice {
    /// Wall time if a guest boots under KVM here, else instructions; the report says which and why.
    #[default]
    Auto,
    /// Executed instructions under QEMU's `-icount`.
    Instructions,
    /// Wall time under KVM; refused where KVM cannot boot a guest.
    Wall,
}

/// A value that `--set` may fill in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExperimentVariable {
    /// What it is for; shown when it is missing.
    pub description: String,
    /// Used when `--set` does not say; a variable without one must be set.
    #[serde(default)]
    pub default: Option<String>,
}

/// A kernel; what an arm leaves out comes from the experiment's `kernel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelSettings {
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<KernelSource>,
    /// Patches on top, in order; an arm's come after the experiment's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<PatchSource>,
    /// What the configuration starts from. Default: allnoconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ConfigBase>,
    /// Fragments of `configs/kernel/` or paths, beside those for the guest, filesystem and disk,
    /// which are always taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fragments: Vec<String>,
    /// Single options, as `CONFIG_FOO=y`; they win over fragments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// What one arm sets; whatever it leaves out comes from the experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmSettings {
    /// Name in tables; needed in `arms` and for levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its kernel.
    #[serde(default)]
    pub kernel: KernelSettings,
    /// Filesystem, with its mkfs arguments and mount options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemSettings>,
    /// Guest memory, instead of the shape's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Virtual CPUs, instead of the shape's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Disk, instead of the shape's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Added to the kernel command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cmdline: Vec<String>,
    /// Workload parameters that win over the workload's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub parameters: Parameters,
}

/// A filesystem to make and mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemSettings {
    /// `tmpfs`, `xfs`, `ext4` or `btrfs`.
    #[schemars(with = "String", extend("enum" = FilesystemKind::ALL.map(FilesystemKind::name)))]
    #[serde(rename = "type")]
    pub kind: FilesystemKind,
    /// mkfs arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs: Vec<String>,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount: Vec<String>,
    /// Size of an external log (XFS) or journal (ext4), on a second disk of the same kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Size>,
    /// A filesystem that was used before: made once, and put back before every round instead of
    /// making a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aged: Option<AgedSettings>,
}

impl FilesystemSettings {
    /// `kind` with every default.
    #[must_use]
    pub fn new(kind: FilesystemKind) -> Self {
        Self { kind, mkfs: Vec::new(), mount: Vec::new(), log: None, aged: None }
    }
}

/// How a filesystem is used before it is measured: a workload runs on it, each round in a folder of
/// its own, and what it leaves stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgedSettings {
    /// Workload and scenario, or a workload's name for its default scenarios. One that removes all
    /// it made leaves little.
    pub workload: String,
    /// Named set of parameter values to start from. Default: `guest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Parameter values; see `kdelta workloads NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub parameters: Parameters,
    /// How many times it runs.
    #[serde(default = "one")]
    pub rounds: u32,
    /// Removes every n-th file afterwards, in the order of names, which leaves holes: 2 removes half.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_every: Option<u32>,
    /// Seed of names and contents, apart from the session's: all boots begin with the same image.
    #[serde(default)]
    pub seed: u64,
}

fn one() -> u32 {
    1
}

/// One workload to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSettings {
    /// Workload and scenario, as `kdelta workloads` lists them: `xattr/flistxattr`.
    pub workload: String,
    /// Name in tables, when the same workload runs more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Named set of parameter values to start from: `guest` (sized for a small guest, the default)
    /// or `source` (as in the mail or report that the workload comes from).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Parameter values; see `kdelta workloads describe NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub parameters: Parameters,
    /// Rounds measured in each boot.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// Rounds run first and not judged. Default: 1, but 4 in instructions mode when the disk of some
    /// arm is `nvme` or `virtio-blk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u32>,
}

impl WorkloadSettings {
    /// `workload` with every default.
    #[must_use]
    pub fn new(workload: &str) -> Self {
        Self {
            workload: workload.to_owned(),
            name: None,
            preset: None,
            parameters: Parameters::new(),
            rounds: default_rounds(),
            warmup: None,
        }
    }
}

/// Rounds measured in each boot unless the experiment says otherwise.
fn default_rounds() -> u32 {
    4
}

/// A factor and its levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Levels {
    /// Name of the factor, `kernel` for example.
    pub factor: String,
    /// Its levels; the first is the one to compare with.
    pub levels: Vec<ArmSettings>,
}

impl KernelSettings {
    /// These settings where they speak, else `base`'s; lists are joined, `base`'s first.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        Self {
            source: self.source.clone().or_else(|| base.source.clone()),
            patches: joined(&base.patches, &self.patches),
            base: self.base.clone().or_else(|| base.base.clone()),
            fragments: joined(&base.fragments, &self.fragments),
            options: joined(&base.options, &self.options),
        }
    }
}

impl ArmSettings {
    /// These settings where they speak, else `base`'s. Command lines and patches are joined;
    /// a filesystem of the same type joins mkfs and mount arguments, another type replaces it.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let filesystem = match (&base.filesystem, &self.filesystem) {
            (Some(below), Some(above)) if below.kind == above.kind => Some(FilesystemSettings {
                kind: above.kind,
                mkfs: joined(&below.mkfs, &above.mkfs),
                mount: joined(&below.mount, &above.mount),
                log: above.log.or(below.log),
                aged: above.aged.clone().or_else(|| below.aged.clone()),
            }),
            (below, above) => above.clone().or_else(|| below.clone()),
        };
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters.clone());
        Self {
            name: self.name.clone().or_else(|| base.name.clone()),
            kernel: self.kernel.over(&base.kernel),
            filesystem,
            memory: self.memory.or(base.memory),
            cpus: self.cpus.or(base.cpus),
            disk: self.disk.clone().or_else(|| base.disk.clone()),
            cmdline: joined(&base.cmdline, &self.cmdline),
            parameters,
        }
    }
}

fn joined<T: Clone>(first: &[T], second: &[T]) -> Vec<T> {
    [first, second].concat()
}
