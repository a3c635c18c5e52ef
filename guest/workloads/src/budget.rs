//! When a loop ends: after a number of operations, or after a time. Read [`Budget`] first.

use kdelta_wire::Clock;

use crate::{Domain, ParameterInfo, clock};

/// Turns between two looks at the clock.
const STRIDE: u64 = 16;
/// Ticks of both clocks in a second: nanoseconds, and instructions under `-icount shift=0`.
pub(crate) const TICKS_PER_SECOND: u64 = 1_000_000_000;

/// Name of the parameter that bounds a loop by its operations.
pub(crate) const OPERATIONS: &str = "operations";
/// Name of the parameter that bounds a loop by its time.
pub(crate) const SECONDS: &str = "seconds";

/// The parameter [`SECONDS`] of every workload that can run for a time.
pub(crate) const SECONDS_PARAMETER: ParameterInfo = ParameterInfo {
    name: SECONDS,
    summary: "stop after this time, whatever is left to do; 0 leaves the number of operations alone",
    unit: "seconds",
    domain: Domain::Integer { default: 0, min: 0, max: 3600 },
    scenarios: &[],
};

/// How long one loop goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: u64,
    turns: u64,
    ticks: Option<u64>,
    end: u64,
    clock: Clock,
}

impl Budget {
    /// `operations` turns, or fewer when `seconds` (if not 0) are over before; the time starts with
    /// the first turn.
    pub(crate) fn new(operations: u64, seconds: u64, clock: Clock) -> Self {
        let ticks = (seconds > 0).then_some(seconds * TICKS_PER_SECOND);
        Self { left: operations, turns: 0, ticks, end: 0, clock }
    }

    /// Whether there is another turn. The clock is read every 16 turns.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if let Some(ticks) = self.ticks {
            if self.turns == 0 {
                self.end = clock::now(self.clock).saturating_add(ticks);
            } else if self.turns.is_multiple_of(STRIDE) && clock::now(self.clock) >= self.end {
                self.left = 0;
                return false;
            }
        }
        self.turns += 1;
        true
    }

    /// Turns so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_bound_a_loop_and_so_does_time() {
        let mut by_count = Budget::new(5, 0, Clock::Nanoseconds);
        while by_count.next() {}
        assert_eq!(by_count.turns(), 5);
        assert!(!by_count.next());
        let mut by_time = Budget::new(u64::MAX, 1, Clock::Nanoseconds);
        let start = clock::now(Clock::Nanoseconds);
        while by_time.next() {}
        assert!(clock::now(Clock::Nanoseconds) - start >= TICKS_PER_SECOND);
        assert!(by_time.turns() > STRIDE);
    }
}
