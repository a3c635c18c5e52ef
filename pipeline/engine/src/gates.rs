//! The rules of valid measurement, applied to a finished run: every gate with its numbers. Read
//! [`list`] first; the rules are those of docs/method.md, and each function is named after its rule.

use std::collections::{BTreeMap, BTreeSet};

use kdelta_model::{
    BootPurpose, BootRecord, Comparison, Gate, GateState, MeasureMode, Metric, MetricKind, Outcome,
    RunRecord, Verdict,
};
use kdelta_wire::{DiskKind, ParameterValue, Phase, Worker};

/// User share of CPU time up to which a kernel benchmark is one (Chinner: at most 10 %), in percent.
const USER_SHARE_GOOD: f64 = 10.0;
/// User share above which a verdict on elapsed cost says too little about the kernel, in percent.
const USER_SHARE_BAD: f64 = 25.0;
/// User time below this share of elapsed time cannot hide anything, in percent.
const USER_MATTERS: f64 = 10.0;
/// A change of system time from which it is a headline even when elapsed cost stays, in percent.
const SYSTEM_HEADLINE: f64 = 5.0;
/// A change from which a profile belongs to the report, in percent.
const PROFILE_WANTED: f64 = 5.0;
/// CPU use from which work is bound by the CPU, in percent.
const CPU_BOUND: f64 = 80.0;
/// CPU use below which work waits for I/O, in percent.
const IO_BOUND: f64 = 25.0;
/// Device busy time from which the device limits, in percent.
const DEVICE_BUSY: f64 = 80.0;
/// Stalls on I/O from which the device limits, in percent.
const IO_PRESSURE: f64 = 10.0;
/// Share of the device's measured bandwidth from which it limits, in percent.
const BANDWIDTH_SHARE: f64 = 70.0;
/// Dirty pages with which a phase may begin: 1 MiB of 4 KiB pages.
const QUIET_PAGES: u64 = 256;
/// Doublings over which a constant cost per operation is saturation.
const SATURATED_DOUBLINGS: usize = 3;
/// Spread of the cost per operation that counts as constant, in percent.
const SATURATED_SPREAD: f64 = 10.0;
/// Difference of event counts between arms that is none, in percent.
const DELIVERY: f64 = 5.0;
/// Events below which 5 % are chance.
const COUNTABLE: f64 = 400.0;
/// Difference of total cost below which work was moved and not removed, in percent.
const MOVED: f64 = 1.0;
/// Share of memory that a RAM disk may take, in percent.
const RAM_DISK_SHARE: f64 = 60.0;
/// Stalls on memory from which it is too small, in percent.
const MEMORY_PRESSURE: f64 = 1.0;
/// Operations per second and core that one thread must exceed to be plausible (Chinner, seed 003),
/// by workload.
const PLAUSIBLE: &[(&str, f64)] = &[("create", 20_000.0)];
/// Ticks of a second: nanoseconds, or instructions at one a nanosecond.
const TICKS: f64 = 1e9;
const SECTOR_BYTES: f64 = 512.0;

/// All gates of `record`, in the order of the rules.
#[must_use]
pub fn list(record: &RunRecord) -> Vec<Gate> {
    let phases = phases(record);
    let bandwidth = calibrated_bandwidth(&phases);
    let mut gates = Vec::new();
    for phase in &phases {
        gates.push(m1_user_share(phase));
        gates.extend(m3_plausibility(record, phase));
        let use_of_cpu = m5_cpu_use(phase);
        gates.push(m6_io_limit(phase, bandwidth, &use_of_cpu));
        gates.push(use_of_cpu);
        gates.extend(m7_quiet_start(phase));
    }
    gates.extend(m2_system_time(record));
    gates.extend(m4_profile(record));
    gates.extend(m8_cold(record, &phases));
    gates.extend(m24_saturation(record));
    gates.extend(m25_delivery(record));
    gates.extend(m37_shape(record));
    gates.extend(m44_moved(record));
    gates.push(m45_memory(record));
    gates.sort_by_key(|gate| gate.rule[1..].parse::<u32>().unwrap_or(u32::MAX));
    gates
}

/// Makes the comparisons invalid whose numbers a gate voids; gates never better a verdict.
pub fn lower(gates: &[Gate], comparisons: &mut [Comparison]) {
    for gate in gates.iter().filter(|gate| gate.state == GateState::Void) {
        let touched = comparisons.iter_mut().filter(|comparison| {
            gate.scenario.as_ref().is_none_or(|scenario| *scenario == comparison.metric.scenario)
        });
        for comparison in touched.filter(|c| !matches!(c.verdict, Verdict::Invalid { .. })) {
            comparison.verdict = Verdict::Invalid { reason: format!("{}: {}", gate.rule, gate.finding) };
        }
    }
}

/// Sums over the measured rounds of one phase on one arm.
struct PhaseSum<'a> {
    arm: usize,
    arm_name: &'a str,
    workload: &'a str,
    scenario: &'a str,
    name: &'a str,
    /// Whether it comes first in its round.
    first: bool,
    rounds: Vec<&'a Phase>,
}

impl PhaseSum<'_> {
    fn subject(&self) -> Subject {
        Subject::of(self.scenario, format!("{}, {} ({})", self.scenario, self.name, self.arm_name))
    }

    fn sum(&self, value: impl Fn(&Phase) -> u64) -> f64 {
        float(self.rounds.iter().map(|phase| value(phase)).sum())
    }

    fn workers(&self) -> f64 {
        self.rounds
            .iter()
            .map(|phase| phase.workers.len().max(1))
            .max()
            .map_or(1.0, |count| float(count as u64))
    }

    /// Elapsed ticks.
    fn elapsed(&self) -> f64 {
        self.sum(|phase| phase.elapsed).max(1.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn sampled(record: &RunRecord) -> impl Iterator<Item = &BootRecord> {
    let counts =
        |boot: &&BootRecord| boot.purpose == BootPurpose::Sample && boot.outcome == Outcome::Completed;
    record.boots.iter().filter(counts)
}

fn phases(record: &RunRecord) -> Vec<PhaseSum<'_>> {
    let mut list: Vec<PhaseSum<'_>> = Vec::new();
    for boot in sampled(record) {
        let Some(arm) = record.plan.arms.get(boot.arm) else { continue };
        for round in boot.rounds.iter().filter(|round| !round.warmup) {
            let Some(scenario) = arm.scenarios.iter().find(|scenario| scenario.id == round.scenario) else {
                continue;
            };
            for (place, phase) in round.phases.iter().enumerate() {
                let known = list
                    .iter_mut()
                    .find(|sum| sum.arm == boot.arm && sum.scenario == scenario.id && sum.name == phase.name);
                match known {
                    Some(sum) => sum.rounds.push(phase),
                    None => list.push(PhaseSum {
                        arm: boot.arm,
                        arm_name: &arm.name,
                        workload: &scenario.workload,
                        scenario: &scenario.id,
                        name: &phase.name,
                        first: place == 0,
                        rounds: vec![phase],
                    }),
                }
            }
        }
    }
    list.sort_by(|a, b| (a.scenario, a.arm).cmp(&(b.scenario, b.arm)));
    list
}

/// What a gate is about: a scenario or the run, and the words for it.
struct Subject {
    scenario: Option<String>,
    text: String,
}

impl Subject {
    fn run() -> Self {
        Self { scenario: None, text: "run".to_owned() }
    }

    fn of(scenario: &str, text: String) -> Self {
        Self { scenario: Some(scenario.to_owned()), text }
    }
}

fn gate<const N: usize>(
    rule: &str,
    subject: Subject,
    state: GateState,
    numbers: [(&str, f64); N],
    finding: String,
    next: &str,
) -> Gate {
    let numbers: BTreeMap<String, f64> = numbers
        .into_iter()
        .filter(|(_, value)| value.is_finite())
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let next = if state == GateState::Met { String::new() } else { next.to_owned() };
    let Subject { scenario, text: subject } = subject;
    Gate { rule: rule.to_owned(), scenario, subject, state, numbers, finding, next }
}

/// M1: how much of the CPU time is the workload's own.
fn m1_user_share(phase: &PhaseSum<'_>) -> Gate {
    let (user, system) = (phase.sum(|phase| phase.user_ns), phase.sum(|phase| phase.system_ns));
    let share = if user + system > 0.0 { 100.0 * user / (user + system) } else { 0.0 };
    let of_elapsed = 100.0 * user / (phase.elapsed() * phase.workers());
    let state = match share {
        _ if user + system == 0.0 => GateState::NotMeasured,
        share if share <= USER_SHARE_GOOD || of_elapsed < USER_MATTERS => GateState::Met,
        share if share <= USER_SHARE_BAD => GateState::Noted,
        _ => GateState::Missed,
    };
    gate(
        "M1",
        phase.subject(),
        state,
        [
            ("user share, percent", share),
            ("user of elapsed, percent", of_elapsed),
            ("cpu time, ns", user + system),
        ],
        format!("{share:.1} % of its CPU time is spent in user space"),
        "judge the system time per operation; the elapsed cost is diluted by the program itself",
    )
}

/// M2: system time may grow while the elapsed cost stays.
fn m2_system_time(record: &RunRecord) -> Vec<Gate> {
    let mut gates = Vec::new();
    for elapsed in record.comparisons.iter().filter(|c| c.primary && c.metric.kind == MetricKind::Elapsed) {
        let system = record.comparisons.iter().find(|other| {
            other.metric == Metric { kind: MetricKind::System, ..elapsed.metric.clone() }
                && (other.base, other.arm) == (elapsed.base, elapsed.arm)
        });
        let (Some(wall), Some(sys)) =
            (elapsed.estimate.as_ref(), system.and_then(|comparison| comparison.estimate.as_ref()))
        else {
            continue;
        };
        let unchanged = wall.interval.is_none_or(|(low, high)| low <= 0.0 && high >= 0.0)
            || wall.percent.abs() < record.plan.margin_percent;
        let grew = sys.percent >= SYSTEM_HEADLINE && sys.interval.is_some_and(|(low, _)| low > 0.0);
        let state = if unchanged && grew { GateState::Missed } else { GateState::Met };
        gates.push(gate(
            "M2",
            pair_subject(record, elapsed),
            state,
            [("elapsed, percent", wall.percent), ("system time, percent", sys.percent)],
            format!("elapsed cost {:+.2} %, system time {:+.2} %", wall.percent, sys.percent),
            "read this as a regression of system time with the elapsed cost unchanged",
        ));
    }
    gates
}

/// M3: whether the absolute rate is that of the work that is meant.
fn m3_plausibility(record: &RunRecord, phase: &PhaseSum<'_>) -> Option<Gate> {
    let workload = phase.workload.split('/').next().unwrap_or_default();
    let (_, least) = PLAUSIBLE.iter().find(|(name, _)| *name == workload)?;
    if phase.name != workload {
        return None;
    }
    let ops = phase.sum(|phase| phase.ops);
    let rate = ops * TICKS / phase.elapsed() / phase.workers();
    let system_us = phase.sum(|phase| phase.system_ns) / ops.max(1.0) / 1e3;
    let state = match record.measure.mode {
        MeasureMode::Instructions => GateState::NotMeasured,
        MeasureMode::Wall if rate >= *least => GateState::Met,
        MeasureMode::Wall => GateState::Missed,
    };
    Some(gate(
        "M3",
        phase.subject(),
        state,
        [
            ("operations per second and worker", rate),
            ("system time, us/op", system_us),
            ("least plausible", *least),
        ],
        match record.measure.mode {
            MeasureMode::Instructions => "counts of instructions give no rate".to_owned(),
            MeasureMode::Wall => {
                format!("{rate:.0} operations per second and worker, {system_us:.1} us of system time each")
            }
        },
        "look at what was really measured: a rate this low is another bottleneck, or another workload",
    ))
}

/// M4: a large change wants to be explained.
fn m4_profile(record: &RunRecord) -> Option<Gate> {
    let changes = record.comparisons.iter().filter(|c| c.primary).filter_map(|c| c.estimate.as_ref());
    let largest = changes.map(|estimate| estimate.percent.abs()).fold(0.0, f64::max);
    if record.comparisons.is_empty() {
        return None;
    }
    let state = if largest < PROFILE_WANTED { GateState::Met } else { GateState::Noted };
    Some(gate(
        "M4",
        Subject::run(),
        state,
        [("largest change, percent", largest)],
        format!("the largest change of a primary metric is {largest:.2} %"),
        "say which functions paid: profile both kernels in a run of its own before naming a cause",
    ))
}

/// M5: what limits a phase.
fn m5_cpu_use(phase: &PhaseSum<'_>) -> Gate {
    let used = 100.0 * phase.sum(|phase| phase.cpu_ns) / (phase.elapsed() * phase.workers());
    let worker = |worker: &Worker| 100.0 * float(worker.cpu_ns) / float(worker.elapsed.max(1));
    let each = || phase.rounds.iter().flat_map(|phase| phase.workers.iter().map(worker));
    let (least, most) = (each().fold(f64::INFINITY, f64::min), each().fold(f64::NEG_INFINITY, f64::max));
    let (state, kind) = match used {
        used if used >= CPU_BOUND => (GateState::Met, "bound by the CPU"),
        used if used >= IO_BOUND => (GateState::Noted, "partly waiting: for locks, other tasks or I/O"),
        _ => (GateState::Noted, "mostly waiting"),
    };
    gate(
        "M5",
        phase.subject(),
        state,
        [
            ("cpu use, percent", used),
            ("least of a worker, percent", least),
            ("most of a worker, percent", most),
        ],
        format!("{used:.0} % CPU use by the workload itself: {kind}"),
        "read the process's CPU cost beside the elapsed one: the rest is other tasks and waiting",
    )
}

/// M6: whether a device limits a phase.
fn m6_io_limit(phase: &PhaseSum<'_>, bandwidth: Option<f64>, use_of_cpu: &Gate) -> Gate {
    let elapsed = phase.elapsed();
    let per_elapsed = |ticks: f64| 100.0 * ticks / elapsed;
    let has_io = phase.rounds.iter().any(|phase| phase.io.is_some());
    let busy = per_elapsed(phase.sum(|phase| phase.io.map_or(0, |io| io.busy_ms)) * 1e6);
    let stalled = per_elapsed(phase.sum(|phase| phase.pressure.map_or(0, |pressure| pressure.io_us)) * 1e3);
    let bytes =
        phase.sum(|phase| phase.io.map_or(0, |io| io.read_sectors + io.written_sectors)) * SECTOR_BYTES;
    let rate = bytes * TICKS / elapsed;
    let used = use_of_cpu.numbers.get("cpu use, percent").copied().unwrap_or(100.0);
    let fills = bandwidth.is_some_and(|bandwidth| 100.0 * rate / bandwidth >= BANDWIDTH_SHARE);
    let measured = has_io || phase.rounds.iter().any(|phase| phase.pressure.is_some());
    let limited = busy >= DEVICE_BUSY || stalled >= IO_PRESSURE || (used < IO_BOUND && fills);
    let (state, finding) = match (measured, limited) {
        (false, _) => {
            (GateState::NotMeasured, "no device counts its I/O, and the kernel measures no stalls".to_owned())
        }
        (true, false) => {
            (GateState::Met, format!("device busy {busy:.0} %, stalled on I/O {stalled:.1} % of the time"))
        }
        (true, true) => (
            GateState::Missed,
            format!(
                "limited by the device: busy {busy:.0} %, stalled on I/O {stalled:.1} % of the time, {:.0} MB/s",
                rate / 1e6
            ),
        ),
    };
    gate(
        "M6",
        phase.subject(),
        state,
        [
            ("device busy, percent", busy),
            ("stalled on I/O, percent", stalled),
            ("bytes per second", rate),
            ("calibrated bytes per second", bandwidth.unwrap_or(f64::NAN)),
        ],
        finding,
        "the relative cost is diluted by the device: take the CPU cost, a faster disk, or less data",
    )
}

/// Bandwidth of the device that a `device` scenario of the same run measured, in bytes per second.
fn calibrated_bandwidth(phases: &[PhaseSum<'_>]) -> Option<f64> {
    let rates = phases.iter().filter(|phase| phase.workload.starts_with("device/")).map(|phase| {
        phase.sum(|phase| phase.io.map_or(0, |io| io.written_sectors)) * SECTOR_BYTES * TICKS
            / phase.elapsed()
    });
    rates.filter(|rate| *rate > 0.0).reduce(f64::max)
}

/// M7: no phase inherits the writeback of the one before.
fn m7_quiet_start(phase: &PhaseSum<'_>) -> Option<Gate> {
    if !phase.first {
        return None;
    }
    let dirty = phase.rounds.iter().map(|phase| phase.pages.dirty_before).max()?;
    let state = if dirty <= QUIET_PAGES { GateState::Met } else { GateState::Missed };
    Some(gate(
        "M7",
        phase.subject(),
        state,
        [("dirty pages at its start", float(dirty))],
        format!("{dirty} pages were dirty or under writeback when it began"),
        "let writeback end first: the phase pays for what was written before it",
    ))
}

/// M8: hot and cold.
fn m8_cold(record: &RunRecord, phases: &[PhaseSum<'_>]) -> Vec<Gate> {
    let mut gates = Vec::new();
    for (arm, scenario) in record
        .plan
        .arms
        .iter()
        .enumerate()
        .flat_map(|(index, arm)| arm.scenarios.iter().map(move |scenario| (index, scenario)))
    {
        let rounds = || {
            sampled(record)
                .filter(move |boot| boot.arm == arm)
                .flat_map(|boot| &boot.rounds)
                .filter(|round| round.scenario == scenario.id && !round.warmup)
        };
        let mut checks =
            rounds().flat_map(|round| &round.checks).filter(|check| check.name == "cold cache").peekable();
        if checks.peek().is_none() {
            continue;
        }
        let failed = checks.filter(|check| !check.passed).count();
        let cold = phases
            .iter()
            .filter(|phase| phase.arm == arm && phase.scenario == scenario.id && phase.name.contains("cold"));
        let reads: f64 = cold.map(|phase| phase.sum(|phase| phase.io.map_or(0, |io| io.reads))).sum();
        let counts_io = record.plan.arms[arm].guest.disk.kind != DiskKind::Ram;
        let state = match failed {
            0 if counts_io && reads == 0.0 && has_cold_phase(phases, arm, &scenario.id) => GateState::Missed,
            0 => GateState::Met,
            _ => GateState::Void,
        };
        gates.push(gate(
            "M8",
            Subject::of(&scenario.id, format!("{} ({})", scenario.id, record.plan.arms[arm].name)),
            state,
            [
                ("failed checks of the cold cache", float(failed as u64)),
                ("reads of the device in cold phases", reads),
            ],
            match state {
                GateState::Met => "inodes were dropped from memory before every cold phase".to_owned(),
                _ => "the cache was not cold".to_owned(),
            },
            "take a larger tree, or look for what keeps inodes in memory",
        ));
    }
    gates
}

fn has_cold_phase(phases: &[PhaseSum<'_>], arm: usize, scenario: &str) -> bool {
    phases.iter().any(|phase| phase.arm == arm && phase.scenario == scenario && phase.name.contains("cold"))
}

/// M24: a sweep whose cost per operation stays the same is limited by something shared.
fn m24_saturation(record: &RunRecord) -> Vec<Gate> {
    let mut gates = Vec::new();
    let Some(pair) = record.plan.pairs.first() else { return gates };
    for (workload, parameter) in sweeps(record, pair.base) {
        let mut series = BTreeMap::new();
        for comparison in record.comparisons.iter().filter(|comparison| {
            comparison.primary && (comparison.base, comparison.arm) == (pair.base, pair.arm)
        }) {
            let scenario = record.plan.arms[pair.base]
                .scenarios
                .iter()
                .find(|scenario| scenario.id == comparison.metric.scenario && scenario.workload == workload);
            if let Some(ParameterValue::Integer(level)) =
                scenario.and_then(|scenario| scenario.parameters.get(&parameter))
            {
                series.insert(*level, (comparison.base_cell.mean, comparison.arm_cell.mean));
            }
        }
        let Some(from) = saturated_from(&series) else { continue };
        let (state, finding) = match from {
            Some(level) => (
                GateState::Noted,
                format!(
                    "from {parameter} = {level} on the cost per operation is the same in both arms: a shared resource limits both"
                ),
            ),
            None => (GateState::Met, format!("the cost per operation changes with {parameter}")),
        };
        gates.push(gate(
            "M24",
            Subject { scenario: None, text: format!("{workload} over {parameter}") },
            state,
            [("levels", float(series.len() as u64)), ("saturated from", from.map_or(f64::NAN, float))],
            finding,
            "do not read differences above that level: they are insensitive to the tested change",
        ));
    }
    gates
}

/// Workloads that run at several values of exactly one integer parameter, with its name.
fn sweeps(record: &RunRecord, arm: usize) -> Vec<(String, String)> {
    let Some(arm) = record.plan.arms.get(arm) else { return Vec::new() };
    let workloads: BTreeSet<&str> = arm.scenarios.iter().map(|scenario| scenario.workload.as_str()).collect();
    let mut found = Vec::new();
    for workload in workloads {
        let runs: Vec<_> = arm.scenarios.iter().filter(|scenario| scenario.workload == workload).collect();
        let varied: BTreeSet<&String> = runs[0]
            .parameters
            .iter()
            .filter(|(name, value)| runs.iter().any(|run| run.parameters.get(*name) != Some(value)))
            .map(|(name, _)| name)
            .collect();
        if let [parameter] = varied.into_iter().collect::<Vec<_>>()[..] {
            found.push((workload.to_owned(), parameter.clone()));
        }
    }
    found
}

/// The lowest level from which both arms keep their cost over at least three doublings; `None` when
/// there are too few levels to say.
fn saturated_from(series: &BTreeMap<u64, (f64, f64)>) -> Option<Option<u64>> {
    let levels: Vec<(u64, (f64, f64))> = series.iter().map(|(level, costs)| (*level, *costs)).collect();
    let (first, last) = (levels.first()?.0.max(1), levels.last()?.0);
    if float(last) / float(first) < 2_f64.powi(SATURATED_DOUBLINGS as i32) {
        return None;
    }
    let constant = |costs: &mut dyn Iterator<Item = f64>| {
        let costs: Vec<f64> = costs.collect();
        let (low, high) = costs
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), cost| (low.min(*cost), high.max(*cost)));
        low > 0.0 && 100.0 * (high / low - 1.0) <= SATURATED_SPREAD
    };
    let from = levels.iter().enumerate().find(|(index, (level, _))| {
        let rest = &levels[*index..];
        float(last) / float((*level).max(1)) >= 2_f64.powi(SATURATED_DOUBLINGS as i32)
            && constant(&mut rest.iter().map(|(_, costs)| costs.0))
            && constant(&mut rest.iter().map(|(_, costs)| costs.1))
    });
    Some(from.map(|(_, (level, _))| *level))
}

/// M25: both arms delivered, lost and merged as many events.
fn m25_delivery(record: &RunRecord) -> Vec<Gate> {
    const COUNTS: [&str; 4] = ["overflow", "dropped", "merged", "delivered"];
    let mut values: BTreeMap<(String, String), BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for boot in sampled(record) {
        for round in boot.rounds.iter().filter(|round| !round.warmup) {
            for (name, value) in round.phases.iter().flat_map(|phase| &phase.measures) {
                if COUNTS.iter().any(|count| name.contains(count)) {
                    let arms = values.entry((round.scenario.clone(), name.clone())).or_default();
                    arms.entry(boot.arm).or_default().push(*value);
                }
            }
        }
    }
    let mut gates = Vec::new();
    for pair in &record.plan.pairs {
        for ((scenario, name), arms) in &values {
            let (Some(base), Some(arm)) = (arms.get(&pair.base), arms.get(&pair.arm)) else { continue };
            let (state, base, arm, difference) = delivery(name, base, arm);
            gates.push(gate(
                "M25",
                Subject::of(scenario, format!("{scenario}, {name}")),
                state,
                [("parent", base), ("child", arm), ("difference, percent", difference)],
                format!("{name}: {base} in the parent, {arm} in the child"),
                "the arms did different work: enlarge the queue or slow the producers until the counts agree",
            ));
        }
    }
    gates
}

/// State, both values and their difference in percent. Shares (`..ratio`) differ by percentage points of
/// their means; counts by percent of their sums, and fewer than [`COUNTABLE`] events decide nothing.
fn delivery(name: &str, base: &[f64], arm: &[f64]) -> (GateState, f64, f64, f64) {
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    let mean = |values: &[f64]| sum(values) / float(values.len().max(1) as u64);
    let (base, arm, difference, enough) = if name.ends_with("ratio") {
        let (base, arm) = (mean(base), mean(arm));
        (base, arm, 100.0 * (arm - base).abs(), true)
    } else {
        let (base, arm) = (sum(base), sum(arm));
        let difference = match base {
            base if base == arm => 0.0,
            0.0 => f64::INFINITY,
            base => 100.0 * (arm / base - 1.0).abs(),
        };
        (base, arm, difference, base.max(arm) >= COUNTABLE)
    };
    let state = match (difference <= DELIVERY, enough) {
        (true, _) => GateState::Met,
        (false, true) => GateState::Void,
        (false, false) => GateState::NotMeasured,
    };
    (state, base, arm, difference)
}

/// M37: everything was of the shape that it claims, scenario by scenario.
fn m37_shape(record: &RunRecord) -> Vec<Gate> {
    let ids: Vec<&str> = record
        .boots
        .iter()
        .filter_map(|boot| boot.hello.as_ref())
        .map(|hello| hello.boot_id.as_str())
        .collect();
    let distinct = ids.iter().collect::<BTreeSet<_>>().len();
    // Under icount a seed fixes the boot's random numbers, and with them its id.
    let reused = record.measure.mode == MeasureMode::Wall && distinct < ids.len();
    let mut checks: BTreeMap<&str, (u64, Vec<&str>)> = BTreeMap::new();
    for round in record.boots.iter().flat_map(|boot| &boot.rounds) {
        let (made, failed) = checks.entry(&round.scenario).or_default();
        *made += round.checks.len() as u64;
        failed.extend(round.checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()));
    }
    let mut gates = Vec::new();
    for (scenario, (made, failed)) in checks {
        let state = if failed.is_empty() && !reused { GateState::Met } else { GateState::Void };
        let finding = match (failed.first(), reused) {
            (Some(name), _) => format!("{} of {made} checks failed, first: {name}", failed.len()),
            (None, true) => "two boots have the same boot id".to_owned(),
            (None, false) => format!("{made} checks of {} boots, none failed", ids.len()),
        };
        gates.push(gate(
            "M37",
            Subject::of(scenario, scenario.to_owned()),
            state,
            [
                ("checks", float(made)),
                ("failed checks", float(failed.len() as u64)),
                ("boots", float(ids.len() as u64)),
                ("distinct boot ids", float(distinct as u64)),
            ],
            finding,
            "look at the failed checks: what was measured is not what was meant",
        ));
    }
    gates
}

/// M44: work that a system call no longer does may be done later.
fn m44_moved(record: &RunRecord) -> Vec<Gate> {
    let mut gates = Vec::new();
    for comparison in record.comparisons.iter().filter(|c| c.primary) {
        let later = record.comparisons.iter().find(|other| {
            other.metric.scenario == comparison.metric.scenario
                && other.metric.phase == "quiesce"
                && other.metric.kind == MetricKind::Elapsed
                && (other.base, other.arm) == (comparison.base, comparison.arm)
        });
        let Some(later) = later else { continue };
        let (now_base, now_arm) = (comparison.base_cell.mean, comparison.arm_cell.mean);
        let (base, arm) = (now_base + later.base_cell.mean, now_arm + later.arm_cell.mean);
        if now_base <= 0.0 || base <= 0.0 {
            continue;
        }
        let (now, total) = (100.0 * (now_arm / now_base - 1.0), 100.0 * (arm / base - 1.0));
        let moved = now <= -MOVED && total.abs() < MOVED;
        gates.push(gate(
            "M44",
            pair_subject(record, comparison),
            if moved { GateState::Missed } else { GateState::Met },
            [("in the system call, percent", now), ("with what follows, percent", total)],
            format!("{now:+.2} % in the calls, {total:+.2} % with the work they leave behind"),
            "call this moved, not removed: the deferred work pays what the call saves",
        ));
    }
    gates
}

/// M45: the guest has room for the workload.
fn m45_memory(record: &RunRecord) -> Gate {
    let rounds = || sampled(record).flat_map(|boot| &boot.rounds).flat_map(|round| &round.phases);
    let major: u64 = rounds().map(|phase| phase.major_faults).sum();
    let elapsed: u64 = rounds().map(|phase| phase.elapsed).sum();
    let stalled_us: u64 =
        rounds().filter_map(|phase| phase.pressure).map(|pressure| pressure.memory_us).sum();
    let stalled = 100.0 * float(stalled_us) * 1e3 / float(elapsed.max(1));
    let share = record.plan.arms.iter().map(|arm| {
        let disk = match arm.guest.disk.kind {
            DiskKind::Ram => arm.guest.disk.capacity().map_or(0, |size| size.bytes()),
            _ => 0,
        };
        100.0 * float(disk) / float(arm.guest.memory.bytes().max(1))
    });
    let share = share.fold(0.0, f64::max);
    let state = match (stalled, share) {
        (stalled, _) if stalled >= MEMORY_PRESSURE => GateState::Void,
        (_, share) if share > RAM_DISK_SHARE => GateState::Noted,
        _ => GateState::Met,
    };
    gate(
        "M45",
        Subject::run(),
        state,
        [
            ("stalled on memory, percent", stalled),
            ("major faults", float(major)),
            ("RAM disk of memory, percent", share),
        ],
        format!(
            "stalled on memory {stalled:.1} % of the time; a RAM disk takes up to {share:.0} % of memory"
        ),
        "give the guest more memory or take a smaller disk or tree",
    )
}

fn pair_subject(record: &RunRecord, comparison: &Comparison) -> Subject {
    let name = |arm: usize| record.plan.arms.get(arm).map_or("?", |arm| arm.name.as_str());
    let metric = &comparison.metric;
    let (arm, base) = (name(comparison.arm), name(comparison.base));
    Subject::of(&metric.scenario, format!("{}, {} ({arm} against {base})", metric.scenario, metric.phase))
}

#[cfg(test)]
mod tests;
