//! How many operations a timed loop did in each second of its time. Read [`Seconds`] first.

use crate::budget::TICKS_PER_SECOND;

/// Longest series, which is the longest time that a workload can be given.
const MOST: usize = 3602;

/// Operations of one worker in each second since it started; under counting, a second is 10^9
/// instructions. Room for all of them exists before the first.
#[derive(Debug)]
pub(crate) struct Seconds {
    counts: Vec<u64>,
    end: u64,
}

impl Seconds {
    /// An empty series.
    pub(crate) fn new() -> Self {
        Self { counts: Vec::with_capacity(MOST), end: 0 }
    }

    /// The first second begins.
    #[inline]
    pub(crate) fn start(&mut self, now: u64) {
        self.counts.clear();
        self.counts.push(0);
        self.end = now + TICKS_PER_SECOND;
    }

    /// One operation is done.
    #[inline]
    pub(crate) fn add(&mut self, now: u64) {
        while now >= self.end && self.counts.len() < MOST {
            self.end += TICKS_PER_SECOND;
            self.counts.push(0);
        }
        if let Some(count) = self.counts.last_mut() {
            *count += 1;
        }
    }
}

/// Operations of all workers together in each second that was over for all of them.
pub(crate) fn whole<'a>(workers: impl IntoIterator<Item = &'a Seconds>) -> Vec<u64> {
    let mut sums: Option<Vec<u64>> = None;
    for Seconds { counts, .. } in workers {
        let whole = counts.split_last().map_or(&[][..], |(_, before)| before);
        match &mut sums {
            None => sums = Some(whole.to_vec()),
            Some(sums) => {
                sums.truncate(whole.len());
                sums.iter_mut().zip(whole).for_each(|(sum, count)| *sum += count);
            }
        }
    }
    sums.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(ends: &[u64]) -> Seconds {
        let mut seconds = Seconds::new();
        seconds.start(100);
        ends.iter().for_each(|end| seconds.add(100 + end * TICKS_PER_SECOND / 10));
        seconds
    }

    #[test]
    fn operations_are_counted_in_the_second_they_end_in_and_the_last_second_is_left_out() {
        let (one, other) = (series(&[1, 2, 9, 10, 31, 32]), series(&[5, 15, 25, 26]));
        assert_eq!(whole([&one]), [3, 1, 0]);
        assert_eq!(whole([&one, &other]), [4, 2]);
        assert_eq!(whole([&series(&[1, 2])]), [0; 0]);
        assert_eq!(whole([]), [0; 0]);
    }
}
