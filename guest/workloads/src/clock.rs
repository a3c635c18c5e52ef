//! The clock of the timed parts. Read [`now`] first.

use kdelta_wire::Clock;

use crate::sys;

/// The current tick of `clock`.
///
/// [`Clock::Instructions`] is the time stamp counter, which counts executed instructions only in
/// a guest under `-icount shift=0`; elsewhere its ticks have no agreed meaning.
#[inline]
#[must_use]
pub fn now(clock: Clock) -> u64 {
    match clock {
        Clock::Instructions => sys::time_stamp_counter(),
        Clock::Nanoseconds => sys::monotonic_raw_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_go_forward() {
        for clock in [Clock::Instructions, Clock::Nanoseconds] {
            let before = now(clock);
            assert!(now(clock) >= before, "{clock:?}");
        }
    }
}
