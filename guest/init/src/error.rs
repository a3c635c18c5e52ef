//! Why a boot cannot go on. Read [`InitError`] first.

use kdelta_wire::DiskKind;
use thiserror::Error;

/// What stopped the init; the stage is told beside it.
#[derive(Debug, Error)]
pub(crate) enum InitError {
    /// A system call failed.
    #[error("{action} failed: {source}")]
    Call {
        /// What was tried, with its arguments.
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The job cannot be used.
    #[error("{0}")]
    Job(String),
    /// The disk did not appear.
    #[error(
        "no {kind:?} disk with serial number {serial} appeared within {seconds} s; is its driver built in or among the job's modules?"
    )]
    NoDisk {
        /// What it should be.
        kind: DiskKind,
        /// By which it is known.
        serial: &'static str,
        /// Guest seconds waited.
        seconds: u64,
    },
    /// A program ended with an error.
    #[error("{command} {outcome}: {output}")]
    Program {
        /// The command line.
        command: String,
        /// How it ended.
        outcome: String,
        /// What it printed.
        output: String,
    },
    /// A round did not end.
    #[error("the round ran for more than {seconds} s and was killed")]
    Late {
        /// Guest seconds it was given.
        seconds: u64,
    },
    /// A frame or request cannot be written or read.
    #[error("{what}: {source}")]
    Json {
        /// Which text.
        what: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// There is nowhere to send results to.
    #[error("no virtio port is named {0} and /dev/ttyS1 cannot be written: {1}")]
    NoPort(&'static str, std::io::Error),
}

/// Makes an [`InitError::Call`] of an error, for `map_err`.
pub(crate) fn failed<E: Into<std::io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> InitError {
    move |source| InitError::Call { action: action.into(), source: source.into() }
}
