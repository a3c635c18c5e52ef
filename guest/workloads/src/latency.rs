//! Times of single operations and their percentiles. Read [`Latencies`] first.

/// Ticks that single operations took. Room for all of them exists before the first.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    /// Room for `count` operations.
    pub(crate) fn with_capacity(count: usize) -> Self {
        // Any value but 0: zeroes are pages that the kernel hands out only when they are written to,
        // which would be a page fault every 512 operations inside of a timed loop.
        let mut ticks = vec![u64::MAX; count];
        ticks.clear();
        Self(ticks)
    }

    /// Adds one operation; beyond the capacity it would allocate.
    #[inline]
    pub(crate) fn push(&mut self, ticks: u64) {
        self.0.push(ticks);
    }

    /// Adds those of `other`.
    pub(crate) fn extend(&mut self, other: impl IntoIterator<Item = u64>) {
        self.0.extend(other);
    }

    /// All of them, in order of arrival, to look at.
    pub(crate) fn ticks(&self) -> &[u64] {
        &self.0
    }

    /// All of them, in order of arrival.
    pub(crate) fn into_ticks(self) -> Vec<u64> {
        self.0
    }

    /// `p50`, `p99`, `p999` and `max` in ticks, by nearest rank: the smallest value that at least
    /// that share of all operations does not exceed. `None` without operations.
    pub(crate) fn summary(&self) -> Option<[(&'static str, u64); 4]> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = *sorted.last()?;
        let rank = |per_mille: usize| sorted[(sorted.len() * per_mille).div_ceil(1000).max(1) - 1];
        Some([("p50", rank(500)), ("p99", rank(990)), ("p999", rank(999)), ("max", last)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut latencies = Latencies::with_capacity(1000);
        latencies.extend((1..=1000).rev());
        assert_eq!(latencies.summary(), Some([("p50", 500), ("p99", 990), ("p999", 999), ("max", 1000)]));
        let mut one = Latencies::with_capacity(1);
        one.push(7);
        assert_eq!(one.summary(), Some([("p50", 7), ("p99", 7), ("p999", 7), ("max", 7)]));
        assert_eq!(Latencies::with_capacity(0).summary(), None);
    }
}
