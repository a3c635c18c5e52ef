//! Plan, build, boot, collect, compare: what happens between an experiment and its run record.
//!
//! Data flows one way: `config` reads an experiment, `plan` orders boots, `source`, `patch` and
//! `kernel` make the kernels, `image` the initramfs, `vm` boots and collects frames, `compare`
//! judges, `run` ties it together and `journal` keeps it. The engine prints nothing: it emits
//! [`Event`]s. Read [`run`] first.

pub mod aged;
pub mod archive;
pub mod builtin;
pub mod cancel;
pub mod caveats;
pub mod compare;
pub mod config;
pub mod console;
pub mod debian;
pub mod doctor;
pub mod event;
pub mod fetch;
pub mod gates;
pub mod git;
pub mod host;
pub mod image;
pub mod initramfs;
pub mod journal;
pub mod kconfig;
pub mod kernel;
pub mod layout;
pub mod modules;
pub mod patch;
pub mod plan;
pub mod probe;
pub mod process;
pub mod prove;
pub mod run;
pub mod shell;
pub mod source;
mod sys;
#[cfg(test)]
mod testing;
pub mod userland;
pub mod vm;

pub use cancel::Cancel;
pub use event::{Event, EventSink};
pub use layout::{Cache, Context};
