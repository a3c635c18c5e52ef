//! Plan, build, boot, collect, compare: what happens between an experiment and its run record.
//!
//! Data flows one way: `config` reads an experiment, `plan` orders boots, `source`, `patch` and
//! `kernel` make the kernels, `image` the initramfs, `vm` boots, `collect` turns frames into
//! observations, `compare` judges, `run` ties it together and `store` keeps it. The engine prints
//! nothing: it emits [`Event`]s. Read [`run`] first.

pub mod cancel;
pub mod event;
pub mod fetch;
pub mod git;
pub mod kconfig;
pub mod layout;
pub mod patch;
pub mod process;
pub mod source;
mod sys;

pub use cancel::Cancel;
pub use event::{Event, EventSink};
pub use layout::{Cache, Context};
