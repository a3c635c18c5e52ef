//! The domain: what is asked ([`Experiment`]), what will be done ([`Plan`]) and what came out
//! ([`RunRecord`]). Plain data with public fields; no I/O and no clock.
//!
//! Read [`Experiment`] first, then [`Plan`], then [`RunRecord`].

pub mod experiment;
pub mod gate;
pub mod guest;
pub mod kernel;
pub mod metric;
pub mod plan;
pub mod record;
mod text;

pub use experiment::{
    AgedSettings, ArmSettings, Experiment, ExperimentVariable, FilesystemSettings, KernelSettings, Levels,
    MeasureChoice, WorkloadSettings,
};
pub use gate::{Gate, GateState};
pub use guest::{AioMode, CacheMode, Disk, GuestShape, Size};
pub use kernel::{
    ConfigBase, DebLocation, DebianPackage, Digest, KernelIdentity, KernelRequest, KernelSource, PatchSource,
};
pub use metric::{Direction, Metric, MetricKind, Unit};
pub use plan::{Aging, Arm, BootPurpose, ExternalLog, Filesystem, Pair, Plan, PlannedBoot, Scenario};
pub use record::{
    AgedRecord, ArmRecord, BootRecord, Cell, Comparison, ConfigDifference, ConsoleFinding, Determinism,
    Estimate, ExperimentRecord, Factorial, HostFacts, MeasureMode, MeasureRecord, Outcome, RECORD_VERSION,
    RunRecord, ScenarioSetup, Verdict,
};
pub use text::ParseError;
