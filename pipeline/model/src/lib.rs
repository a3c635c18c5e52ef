//! The domain: what is asked ([`Experiment`]), what will be done ([`Plan`]) and what came out
//! ([`RunRecord`]). Plain data with public fields; no I/O and no clock.
//!
//! Read [`Experiment`] first, then [`Plan`], then [`RunRecord`].

pub mod experiment;
pub mod guest;
pub mod kernel;
pub mod metric;
pub mod plan;
pub mod record;
mod text;

pub use kernel::{
    ConfigBase, DebLocation, DebianPackage, Digest, KernelIdentity, KernelRequest, KernelSource, PatchSource,
};
pub use text::ParseError;
