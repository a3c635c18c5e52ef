//! The wish to stop. One [`Cancel`] is shared by everything that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once, by a signal or by a failing sibling; every wait loop looks at it.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
}

impl Cancel {
    /// A wish not yet uttered, that `flag` (a signal handler's, say) can utter.
    #[must_use]
    pub fn with_flag(flag: Arc<AtomicBool>) -> Self {
        Self { flag }
    }

    /// Asks everything that shares this to stop.
    pub fn request(&self) {
        self.flag.store(true, Ordering::SeqCst);
    }

    /// Whether stopping was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }
}
