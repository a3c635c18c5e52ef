//! The plan: an experiment with everything decided, before the first boot. Read [`Plan`] first.

use std::collections::BTreeMap;
use std::fmt;

use kdelta_wire::{FilesystemJob, LogJob, ScenarioJob};
use serde::{Deserialize, Serialize};

use crate::guest::GuestShape;
use crate::kernel::KernelRequest;
use crate::record::MeasureMode;

/// How a scenario is written in a plan: as the guest will read it.
pub type Scenario = ScenarioJob;
/// How a filesystem is written in a plan: as the guest will read it.
pub type Filesystem = FilesystemJob;
/// How a log on a disk of its own is written in a plan: as the guest will read it.
pub type ExternalLog = LogJob;

/// Ordered boots, with all that they need. Stored with its digest before the first boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How it is measured.
    pub mode: MeasureMode,
    /// Smallest change that matters, in percent.
    pub margin_percent: f64,
    /// Seed of the session.
    pub seed: u64,
    /// CPU seconds that a guest may use without reaching its next stage.
    pub deadline_seconds: u64,
    /// Kernels to build, each once.
    pub kernels: Vec<KernelRequest>,
    /// What is booted.
    pub arms: Vec<Arm>,
    /// Which arms are compared.
    pub pairs: Vec<Pair>,
    /// Boots in the order they are started.
    pub boots: Vec<PlannedBoot>,
}

/// One kind of boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Name in tables, unique.
    pub name: String,
    /// Level of each factor, by factor; empty when arms are listed.
    pub levels: BTreeMap<String, String>,
    /// Index in [`Plan::kernels`].
    pub kernel: usize,
    /// The machine.
    pub guest: GuestShape,
    /// What is made and mounted.
    pub filesystem: Filesystem,
    /// How the filesystem is used before it is measured; `None` for one made afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aged: Option<Aging>,
    /// What runs.
    pub scenarios: Vec<Scenario>,
    /// For a placebo: index of the arm it imitates.
    pub placebo_of: Option<usize>,
}

/// How a filesystem is used before it is measured. The first arm that asks for one makes its image;
/// all that ask for the same on the same filesystem and size of disk share it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aging {
    /// What runs on it, each round in a folder of its own.
    pub scenarios: Vec<Scenario>,
    /// Removes every n-th file afterwards.
    pub remove_every: Option<u32>,
    /// Seed of the boot that makes it.
    pub seed: u64,
}

/// Two arms to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Index of the arm to compare with: the parent.
    pub base: usize,
    /// Index of the arm in question: the child.
    pub arm: usize,
}

/// One boot to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedBoot {
    /// Position in [`Plan::boots`].
    pub index: usize,
    /// Index in [`Plan::arms`].
    pub arm: usize,
    /// Seed handed to QEMU and to the workloads.
    pub seed: u64,
    /// What it is for.
    pub purpose: BootPurpose,
}

/// What a boot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootPurpose {
    /// Booted once per arm before the session in wall mode, never judged.
    Unmeasured,
    /// One of the sample.
    Sample,
    /// Same arm and seed as an earlier boot: must give the same bits.
    Repeat,
    /// The parent with a change that does nothing.
    Placebo,
}

impl fmt::Display for Aging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a filesystem used by")?;
        for (number, scenario) in self.scenarios.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma} {} x {}", scenario.workload, scenario.rounds)?;
            for (name, value) in &scenario.parameters {
                write!(f, " {name}={value}")?;
            }
        }
        if let Some(every) = self.remove_every {
            write!(f, ", every file number {every} removed")?;
        }
        write!(f, ", seed {}", self.seed)
    }
}

impl Plan {
    /// The bytes whose digest reports print: gates and margin cannot change afterwards.
    ///
    /// # Errors
    /// When the plan cannot be written as JSON.
    pub fn canonical(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Kernel of the arm with index `arm`.
    #[must_use]
    pub fn kernel_of(&self, arm: usize) -> Option<&KernelRequest> {
        self.kernels.get(self.arms.get(arm)?.kernel)
    }
}
