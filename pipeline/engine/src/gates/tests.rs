//! Gates of records made by hand, with numbers whose answer is known.

use kdelta_model::MeasureMode::Instructions;
use kdelta_model::PlannedBoot;
use kdelta_wire::{BlockIo, Check, PageFlow, Pressure};

use super::*;
use crate::testing::{TWO_ARMS, boots, plan, record};

/// A record of two arms after `edit` saw every phase with its arm.
fn judged(edit: impl Fn(usize, &mut Phase)) -> RunRecord {
    sweep(TWO_ARMS, |_, _, _| 800.0, edit)
}

fn sweep(
    yaml: &str,
    value: impl Fn(&str, &PlannedBoot, &Metric) -> f64,
    edit: impl Fn(usize, &mut Phase),
) -> RunRecord {
    let plan = plan(yaml, Instructions);
    let mut made = record(yaml, Instructions);
    made.boots = boots(&plan, value);
    for boot in &mut made.boots {
        for round in &mut boot.rounds {
            round.phases.iter_mut().for_each(|phase| edit(boot.arm, phase));
        }
    }
    crate::run::judge(&mut made).expect("judged");
    made
}

/// The gates of `rule`, by state and finding.
fn found<'a>(record: &'a RunRecord, rule: &str) -> Vec<&'a Gate> {
    record.gates.iter().filter(|gate| gate.rule == rule).collect()
}

fn states(record: &RunRecord, rule: &str) -> Vec<GateState> {
    found(record, rule).iter().map(|gate| gate.state).collect()
}

#[test]
fn user_share_is_judged_only_where_user_time_matters() {
    for (user, system, state) in [
        (5_u64, 95_u64, GateState::Met),
        (15, 85, GateState::Noted),
        (40, 60, GateState::Missed),
        (0, 0, GateState::NotMeasured),
    ] {
        let record = judged(|_, phase| {
            (phase.user_ns, phase.system_ns) = (phase.elapsed * user / 100, phase.elapsed * system / 100);
        });
        assert!(
            states(&record, "M1").iter().all(|found| *found == state),
            "{user} {:?}",
            found(&record, "M1")
        );
    }
    // 40 % of the CPU time, and 4 % of the elapsed time: it waits, and user time hides nothing.
    let waiting = judged(|_, phase| {
        (phase.user_ns, phase.system_ns) = (phase.elapsed * 4 / 100, phase.elapsed * 6 / 100);
    });
    let gates = found(&waiting, "M1");
    assert_eq!(gates[0].state, GateState::Met);
    assert!((gates[0].numbers["user share, percent"] - 40.0).abs() < 0.1, "{gates:?}");
}

#[test]
fn a_busy_device_and_stalls_limit_a_phase() {
    let busy = judged(|_, phase| {
        phase.io = Some(BlockIo { busy_ms: phase.elapsed * 9 / 10 / 1_000_000, ..BlockIo::default() });
        phase.io.as_mut().expect("set").busy_ms = phase.io.expect("set").busy_ms.max(1);
        phase.elapsed = 1_000_000;
    });
    assert!(states(&busy, "M6").iter().all(|state| *state == GateState::Missed));
    let stalled = judged(|_, phase| {
        phase.elapsed = 1_000_000_000;
        phase.pressure = Some(Pressure { io_us: 150_000, ..Pressure::default() });
    });
    let gates = found(&stalled, "M6");
    assert_eq!(gates[0].state, GateState::Missed);
    assert!((gates[0].numbers["stalled on I/O, percent"] - 15.0).abs() < 1e-9, "{gates:?}");
    assert!(states(&judged(|_, _| {}), "M6").iter().all(|state| *state == GateState::NotMeasured));
}

#[test]
fn a_phase_that_begins_with_dirty_pages_is_named() {
    let dirty =
        |pages| judged(move |_, phase| phase.pages = PageFlow { dirty_before: pages, ..PageFlow::default() });
    assert!(states(&dirty(256), "M7").iter().all(|state| *state == GateState::Met));
    assert!(states(&dirty(257), "M7").iter().all(|state| *state == GateState::Missed));
}

#[test]
fn event_counts_that_differ_between_arms_void_their_scenario() {
    let lossy = judged(|arm, phase| {
        phase.measures.insert("overflow events".to_owned(), if arm == 0 { 1000.0 } else { 1060.0 });
    });
    let gates = found(&lossy, "M25");
    assert!(gates.iter().all(|gate| gate.state == GateState::Void), "{gates:?}");
    assert!((gates[0].numbers["difference, percent"] - 6.0).abs() < 1e-9);
    let reason = lossy.comparisons.iter().find_map(|comparison| match &comparison.verdict {
        Verdict::Invalid { reason } => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.expect("an invalid verdict").starts_with("M25: "));
    let equal = judged(|_, phase| {
        phase.measures.insert("overflow events".to_owned(), 7.0);
    });
    assert!(states(&equal, "M25").iter().all(|state| *state == GateState::Met));
}

#[test]
fn few_events_decide_nothing_and_shares_differ_by_points() {
    assert_eq!(delivery("overflow", &[20.0, 5.0], &[30.0]).0, GateState::NotMeasured);
    assert_eq!(delivery("overflow", &[0.0], &[500.0]).0, GateState::Void);
    let (state, base, arm, points) = delivery("delivered_ratio", &[0.5, 0.7], &[0.62]);
    assert_eq!(state, GateState::Met);
    assert!((base - 0.6).abs() < 1e-12 && (arm - 0.62).abs() < 1e-12 && (points - 2.0).abs() < 1e-9);
    assert_eq!(delivery("delivered_ratio", &[0.5], &[0.56]).0, GateState::Void);
}

#[test]
fn a_failed_check_voids_its_scenario_and_no_other() {
    let plan = plan(TWO_ARMS, Instructions);
    let mut made = record(TWO_ARMS, Instructions);
    made.boots = boots(&plan, |_, _, _| 800.0);
    let scenario = made.boots[0].rounds[0].scenario.clone();
    made.boots[0].rounds[0].checks.push(Check {
        name: "files".to_owned(),
        expected: "2".to_owned(),
        actual: "1".to_owned(),
        passed: false,
    });
    crate::run::judge(&mut made).expect("judged");
    let void: Vec<_> = found(&made, "M37").into_iter().filter(|gate| gate.state == GateState::Void).collect();
    assert_eq!(void.len(), 1);
    assert_eq!(void[0].scenario.as_deref(), Some(scenario.as_str()));
    assert!(void[0].finding.contains("first: files"), "{void:?}");
}

#[test]
fn memory_stalls_void_everything() {
    let short = judged(|_, phase| {
        phase.pressure = Some(Pressure { memory_us: phase.elapsed / 1000 / 50, ..Pressure::default() });
        phase.elapsed = phase.elapsed.max(1_000_000);
        phase.pressure.as_mut().expect("set").memory_us = phase.elapsed / 1000 / 50;
    });
    assert_eq!(states(&short, "M45"), [GateState::Void]);
    assert!(short.comparisons.iter().all(|c| matches!(c.verdict, Verdict::Invalid { .. })));
}

#[test]
fn a_saving_that_the_quiesce_phase_pays_is_moved() {
    const UNLINK: &str = "
version: 1
name: moved
kernel: {source: 'debian:linux-source-6.12'}
settings: {filesystem: {type: xfs}}
workloads: [{workload: unlink}]
arms:
  - {name: parent}
  - {name: child, kernel: {patches: [p.patch]}}
";
    let cost = |quiesce: f64| {
        sweep(
            UNLINK,
            move |arm, _, metric| match (arm, metric.phase.as_str()) {
                ("child", "unlink") => 9_000.0,
                ("child", "quiesce") => quiesce,
                (_, "quiesce") => 5_000.0,
                _ => 10_000.0,
            },
            |_, _| {},
        )
    };
    let moved = cost(6_000.0);
    let gates = found(&moved, "M44");
    assert_eq!(gates[0].state, GateState::Missed, "{gates:?}");
    assert!((gates[0].numbers["in the system call, percent"] + 10.0).abs() < 0.01);
    assert!(gates[0].numbers["with what follows, percent"].abs() < 0.01);
    assert_eq!(states(&cost(5_000.0), "M44"), [GateState::Met]);
}

#[test]
fn a_sweep_whose_cost_stays_is_saturated() {
    let series = |costs: &[(u64, f64, f64)]| {
        saturated_from(&costs.iter().map(|(level, a, b)| (*level, (*a, *b))).collect())
    };
    let early =
        [(1, 10.0, 12.0), (2, 5.0, 6.0), (4, 3.0, 3.0), (8, 3.1, 3.2), (16, 3.0, 3.1), (32, 3.2, 3.2)];
    assert_eq!(series(&early), Some(Some(4)));
    assert_eq!(series(&[(1, 8.0, 8.0), (2, 4.0, 4.0), (4, 2.0, 2.0), (8, 1.0, 1.0)]), Some(None));
    assert_eq!(series(&[(1, 8.0, 8.0), (4, 8.0, 8.0)]), None);
    // One arm that still scales is no shared bottleneck.
    assert_eq!(series(&[(1, 3.0, 8.0), (2, 3.0, 4.0), (4, 3.0, 2.0), (8, 3.0, 1.0)]), Some(None));
}

#[test]
fn system_time_that_grows_alone_is_a_headline() {
    let record = judged(|arm, phase| {
        phase.system_ns = if arm == 1 { phase.elapsed * 12 / 10 } else { phase.elapsed };
    });
    let gates = found(&record, "M2");
    assert!(gates.iter().all(|gate| (gate.numbers["system time, percent"] - 20.0).abs() < 0.1), "{gates:?}");
}
