//! What the engine says while it works. The command line turns [`Event`]s into a progress bar,
//! plain lines or JSON lines.

use std::time::Duration;

use serde::Serialize;

/// One thing worth telling.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A stage begins.
    StageStarted {
        /// Its name, unique among the stages that run at one time.
        stage: String,
        /// What it works on.
        detail: String,
    },
    /// A stage moved on.
    StageProgress {
        /// Its name.
        stage: String,
        /// Units done.
        done: u64,
        /// Units in all, when known; `about` when it is an estimate.
        total: Option<u64>,
        /// What is being done now.
        detail: String,
    },
    /// A stage ended well.
    StageFinished {
        /// Its name.
        stage: String,
        /// How long it took.
        #[serde(serialize_with = "seconds")]
        took: Duration,
        /// What came of it, `cached` for example.
        detail: String,
    },
    /// Something the user should know that is no error.
    Warning {
        /// What, and what to do.
        text: String,
    },
}

/// Takes events; called from several threads.
pub trait EventSink: Sync {
    /// Takes one event.
    fn emit(&self, event: Event);
}

/// Drops every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl EventSink for Silent {
    fn emit(&self, _: Event) {}
}

fn seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}
