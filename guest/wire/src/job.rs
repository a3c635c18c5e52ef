//! The job: everything the init is told. Read [`Job`] first.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Version of [`Job`] and of the frames; guest and host must agree on it.
pub const JOB_VERSION: u32 = 3;
/// Where the init finds its job inside the initramfs.
pub const JOB_PATH: &str = "/kdelta/job.json";
/// Folder inside the initramfs that holds the modules named by [`Job::modules`].
pub const MODULE_DIR: &str = "/kdelta/modules";
/// Path of strace(1) inside the guest, where a job needs it.
pub const STRACE: &str = "/usr/bin/strace";
/// Name of the virtio-serial port that carries frames.
pub const RESULT_PORT: &str = "org.kdelta.results";
/// Start of a console line that tells the host which stage the init has reached.
pub const STAGE_PREFIX: &str = "kdelta-stage: ";

/// What one boot has to do, identical for every arm that differs only in its kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// [`JOB_VERSION`] of the writer.
    pub version: u32,
    /// What a tick of [`crate::Phase::elapsed`] is.
    pub clock: Clock,
    /// Seed of everything the workloads choose by chance (file names above all).
    pub seed: u64,
    /// Guest microseconds to sleep before the first scenario, for boot-time background work to end.
    pub settle_us: u64,
    /// CPU that workloads are pinned to; `None` leaves the scheduler free.
    pub cpu: Option<usize>,
    /// Kernel modules to load, in this order.
    pub modules: Vec<ModuleJob>,
    /// Block device the filesystem is made on.
    pub disk: DiskKind,
    /// Filesystem made afresh for every round.
    pub filesystem: FilesystemJob,
    /// What the image of a used filesystem is for, in the memory window that the host attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageUse>,
    /// What to run, in this order.
    pub scenarios: Vec<ScenarioJob>,
    /// Set when the workloads are on trial and not the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

/// How a boot goes on when a round of a workload fails: the failure is told by
/// [`crate::Frame::RoundFailed`], and the next scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Guest seconds after which a round is killed: a lie told to it may let it wait forever.
    pub round_seconds: u64,
}

/// What a boot does with the image of a used filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ImageUse {
    /// Makes it: one filesystem for all rounds of all scenarios, each in a folder of its own, kept
    /// as it is after the last.
    Save {
        /// Removes every n-th file before it is kept.
        remove_every: Option<u32>,
    },
    /// Puts it on the disk before every round, instead of mkfs.
    Restore,
}

/// One kernel module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleJob {
    /// File name inside [`MODULE_DIR`].
    pub file: String,
    /// Whether the guest does without it when it refuses to load (an accelerated checksum on a CPU
    /// that lacks the instruction, say).
    pub optional: bool,
}

/// What a tick of elapsed time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// One executed guest instruction: the TSC under `-icount shift=0` (QEMU docs, `tcg-icount`).
    Instructions,
    /// One nanosecond of `CLOCK_MONOTONIC_RAW` (clock_gettime(2)).
    Nanoseconds,
}

/// Which block device the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// No block device.
    None,
    /// brd: `/dev/ram0`, and `/dev/ram1` for an external log.
    Ram,
    /// NVMe, each disk a controller of its own, found by serial number.
    Nvme,
    /// virtio-blk, found by serial number.
    VirtioBlk,
}

/// Serial number of the disk under test, by which the guest finds it.
pub const DISK_SERIAL: &str = "kdelta";
/// Serial number of the disk for an external log.
pub const LOG_SERIAL: &str = "kdelta-log";

/// Which filesystem is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesystemKind {
    /// tmpfs.
    Tmpfs,
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
    /// btrfs.
    Btrfs,
}

impl FilesystemKind {
    /// Every filesystem, in the order used by help texts.
    pub const ALL: [Self; 4] = [Self::Tmpfs, Self::Xfs, Self::Ext4, Self::Btrfs];

    /// Name as mount(8) knows it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
        }
    }

    /// The filesystem called `name`, if it is one of [`Self::ALL`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it lives on a block device.
    #[must_use]
    pub fn needs_disk(self) -> bool {
        self != Self::Tmpfs
    }

    /// Why its log cannot lie on a disk of its own; `None` when it can.
    #[must_use]
    pub fn refuses_log(self) -> Option<&'static str> {
        match self {
            Self::Xfs | Self::Ext4 => None,
            Self::Tmpfs => Some("tmpfs keeps nothing and has no log"),
            Self::Btrfs => Some("btrfs has no journal, and its log trees lie among its other trees"),
        }
    }

    /// Path of its mkfs program inside the guest, if it has one.
    #[must_use]
    pub fn mkfs(self) -> Option<&'static str> {
        match self {
            Self::Tmpfs => None,
            Self::Xfs => Some("/usr/sbin/mkfs.xfs"),
            Self::Ext4 => Some("/usr/sbin/mkfs.ext4"),
            Self::Btrfs => Some("/usr/sbin/mkfs.btrfs"),
        }
    }
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How to make and mount the filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesystemJob {
    /// Which one.
    pub kind: FilesystemKind,
    /// Arguments of mkfs before the device.
    pub mkfs: Vec<String>,
    /// Mount options, as after `mount -o`, without commas.
    pub mount: Vec<String>,
    /// Log or journal on a second disk of the same kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogJob>,
}

/// A log on a disk of its own. Device names are the guest's to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogJob {
    /// Its size.
    pub bytes: u64,
    /// Arguments of the mkfs that makes the log before the filesystem; empty where the filesystem's
    /// own mkfs does (XFS).
    pub mkfs: Vec<String>,
}

/// One workload with its parameter values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioJob {
    /// Name that frames carry; unique within a job.
    pub id: String,
    /// Workload and scenario, as `xattr/flistxattr`.
    pub workload: String,
    /// Parameter values; a missing one takes the workload's default.
    pub parameters: Parameters,
    /// Rounds run first and marked as warm-up.
    pub warmup: u32,
    /// Rounds measured after them.
    pub rounds: u32,
    /// Arguments of strace(1), under which the round's process then runs; without it when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strace: Vec<String>,
}

/// Parameter values by name.
pub type Parameters = BTreeMap<String, ParameterValue>;

/// A value given to a workload parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ParameterValue {
    /// A count or size.
    Integer(u64),
    /// A mode or name.
    Text(String),
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ParameterValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number or a word")
            }
            fn visit_u64<E>(self, value: u64) -> Result<ParameterValue, E> {
                Ok(ParameterValue::Integer(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<ParameterValue, E> {
                Ok(ParameterValue::Text(value.to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

/// What the init hands to the fresh process that runs one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRequest {
    /// Scenario to run.
    pub scenario: ScenarioJob,
    /// Number of the round, warm-up included, from 0.
    pub round: u32,
    /// [`Job::seed`].
    pub seed: u64,
    /// [`Job::clock`].
    pub clock: Clock,
    /// [`Job::cpu`].
    pub cpu: Option<usize>,
    /// Filesystem under test.
    pub filesystem: FilesystemKind,
    /// Where it is mounted.
    pub mount_point: String,
    /// Whether the round may unmount it to time the work that unmounting waits for.
    pub may_unmount: bool,
}
