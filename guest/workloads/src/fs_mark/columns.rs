//! The numbers of fs_mark: what a child reports and what a line of its table is made of. Read
//! [`Line`] first.

use super::PHASE;
use crate::RoundContext;

/// Ticks of both clocks in a second: nanoseconds, and instructions under `-icount shift=0`.
pub(super) const SECOND: u64 = 1_000_000_000;

/// Time that calls of one kind took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) sum: u64,
    pub(super) min: u64,
    pub(super) max: u64,
    /// Sum of what is averaged: of the calls, or for writes of the average of every file.
    pub(super) averaged: f64,
}

impl Cost {
    /// As fs_mark: a minimum of 0 counts as none yet.
    #[inline]
    pub(super) fn add(&mut self, ticks: u64) {
        self.sum += ticks;
        self.max = self.max.max(ticks);
        if self.min == 0 || ticks < self.min {
            self.min = ticks;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.max = self.max.max(other.max);
        if self.min == 0 || other.min < self.min {
            self.min = other.min;
        }
        self.averaged += other.averaged;
    }
}

/// Kinds of calls, in the order of fs_mark's columns.
pub(super) const KINDS: [&str; 5] = ["creat", "write", "fsync", "sync", "close"];
pub(super) const CREAT: usize = 0;
pub(super) const WRITE: usize = 1;
pub(super) const FSYNC: usize = 2;
pub(super) const SYNC: usize = 3;
pub(super) const CLOSE: usize = 4;

/// What one child did in one iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ChildReport {
    pub(super) files: u64,
    pub(super) loop_ticks: u64,
    pub(super) made: u64,
    pub(super) refused: u64,
    pub(super) first_subdir: u64,
    pub(super) subdirs: u64,
    pub(super) costs: [Cost; 5],
}

impl ChildReport {
    pub(super) fn encode(&self) -> Vec<u64> {
        let head = [self.files, self.loop_ticks, self.made, self.refused, self.first_subdir, self.subdirs];
        let costs =
            self.costs.iter().flat_map(|cost| [cost.sum, cost.min, cost.max, cost.averaged.to_bits()]);
        head.into_iter().chain(costs).collect()
    }

    pub(super) fn decode(values: &[u64]) -> Option<Self> {
        let &[files, loop_ticks, made, refused, first_subdir, subdirs] = values.first_chunk()?;
        let mut costs = [Cost::default(); 5];
        for (cost, numbers) in costs.iter_mut().zip(values[6..].chunks_exact(4)) {
            let &[sum, min, max, averaged] = numbers.first_chunk()?;
            *cost = Cost { sum, min, max, averaged: f64::from_bits(averaged) };
        }
        Some(Self { files, loop_ticks, made, refused, first_subdir, subdirs, costs })
    }

    fn rate(&self) -> f64 {
        self.files as f64 / self.loop_ticks as f64 * SECOND as f64
    }
}

/// One line of fs_mark's table, and what lies behind it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// Files of this iteration.
    pub(super) files: u64,
    /// Sum of the threads' rates.
    pub(super) files_per_sec: f64,
    /// Sum of the threads' time outside of the five kinds of calls, in ticks.
    pub(super) overhead: f64,
    pub(super) full_percent: f64,
    pub(super) costs: [Cost; 5],
}

impl Line {
    pub(super) fn of(children: &[ChildReport]) -> Self {
        let mut line = Self::default();
        for child in children {
            line.files += child.files;
            line.files_per_sec += child.rate();
            let calls: u64 = child.costs.iter().map(|cost| cost.sum).sum();
            line.overhead += child.loop_ticks as f64 - calls as f64;
            for (at, (sum, cost)) in line.costs.iter_mut().zip(child.costs).enumerate() {
                // sync(2) is one call of a thread; all else is averaged over files.
                let per = if at == SYNC { 1.0 } else { child.files as f64 };
                sum.merge(Cost { averaged: cost.averaged / per / children.len() as f64, ..cost });
            }
        }
        line
    }
}

/// The columns of fs_mark's table, of every iteration and of all.
pub(super) fn measure(round: &mut RoundContext, table: &[Line], size: u64) {
    let lines = table.len().max(1) as f64;
    let (mut count, mut implied, mut rate, mut overhead) = (0, 0.0, 0.0, 0.0);
    let mut costs = [Cost::default(); KINDS.len()];
    for (number, line) in table.iter().enumerate() {
        count += line.files;
        implied += line.files as f64 / line.files_per_sec * 1e9;
        rate += line.files_per_sec / lines;
        overhead += line.overhead / 1e3 / lines;
        let columns = [
            ("fsuse_percent", line.full_percent),
            ("count", count as f64),
            ("size", size as f64),
            ("files_per_sec", line.files_per_sec),
            ("app_overhead_us", line.overhead / 1e3),
        ];
        for (name, value) in columns {
            round.measure(PHASE, &format!("{name}#{}", number + 1), value);
            round.measure(PHASE, name, value);
        }
        for (sum, cost) in costs.iter_mut().zip(line.costs) {
            sum.merge(cost);
        }
    }
    round.measure(PHASE, "files_per_sec", rate);
    round.measure(PHASE, "app_overhead_us", overhead);
    for (kind, cost) in KINDS.iter().zip(costs) {
        round.measure(PHASE, &format!("{kind}_min"), cost.min as f64);
        round.measure(PHASE, &format!("{kind}_avg"), cost.averaged / lines);
        round.measure(PHASE, &format!("{kind}_max"), cost.max as f64);
    }
    let elapsed = round.latest(PHASE).map_or(0, |phase| phase.elapsed);
    round.measure(PHASE, "real_to_implied", elapsed as f64 / implied);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(seconds: u64) -> ChildReport {
        let mut report = ChildReport { files: 100, loop_ticks: seconds * SECOND, ..Default::default() };
        report.costs[CREAT] = Cost { sum: SECOND, min: 5, max: 9, averaged: 1000.0 };
        report
    }

    /// Trap C: two threads, one twice as slow as the other, made 200 files in 2 s and not in 1.33.
    #[test]
    fn the_rate_is_the_sum_of_the_threads_rates_and_more_than_files_over_time() {
        let line = Line::of(&[child(1), child(2)]);
        assert_eq!((line.files, line.files_per_sec), (200, 150.0));
        let wall = 2.0;
        assert!(line.files_per_sec > line.files as f64 / wall);
        let implied = line.files as f64 / line.files_per_sec;
        assert!((wall / implied - 1.5).abs() < 1e-9, "{implied}");
    }

    #[test]
    fn overhead_is_what_is_left_of_the_loop_and_averages_are_means_over_threads() {
        let mut slow = child(2);
        slow.costs[CREAT] = Cost { sum: SECOND, min: 3, max: 20, averaged: 3000.0 };
        let line = Line::of(&[child(1), slow]);
        assert_eq!(line.overhead, SECOND as f64);
        let creat = line.costs[CREAT];
        assert_eq!((creat.min, creat.max, creat.averaged), (3, 20, 20.0));
    }

    #[test]
    fn a_report_survives_the_pipe() {
        let mut report = child(3);
        report.costs[WRITE].averaged = 0.1;
        (report.made, report.refused, report.first_subdir, report.subdirs) = (1, 99, 6_527, 1);
        assert_eq!(ChildReport::decode(&report.encode()), Some(report));
        assert_eq!(ChildReport::decode(&[1, 2]), None);
    }
}
