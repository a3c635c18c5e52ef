//! What guest and host say to each other: the [`Job`] that travels in with the initramfs and the
//! [`Frame`]s that come back over a port. Read [`Job`] first, then [`Frame`].
//!
//! The guest never learns which kernel it runs: a job is the same for parent and child.

mod frame;
mod image;
mod job;

pub use frame::{
    BlockIo, Check, Decoder, FRAME_LIMIT, Frame, FrameError, GuestCpu, Hello, OpCount, PageFlow, Phase,
    Pressure, Round, RoundFailed, Worker, encode,
};
pub use image::{BLOCK, Extent, ImageHeader, WINDOW_ID};
pub use job::{
    Clock, DISK_SERIAL, DiskKind, FilesystemJob, FilesystemKind, ImageUse, JOB_PATH, JOB_VERSION, Job,
    LOG_SERIAL, LogJob, MODULE_DIR, ModuleJob, ParameterValue, Parameters, RESULT_PORT, RoundRequest,
    STAGE_PREFIX, STRACE, ScenarioJob, Trial,
};
