//! Judgements from boots made by hand, with values whose answer is known.

use kdelta_model::MeasureMode::{Instructions, Wall};
use kdelta_model::PlannedBoot;
use proptest::prelude::*;

use super::*;
use crate::testing::{FACTORIAL, TWO_ARMS, boots, plan};

/// The primary comparison of parent and child.
fn primary(plan: &Plan, boots: &[BootRecord]) -> Comparison {
    let judgement = judge(plan, boots).expect("finite numbers");
    assert!(judgement.comparisons[0].primary, "primary ones come first");
    judgement.comparisons.into_iter().next().expect("a comparison")
}

/// Two arms in instructions mode, with a value for (arm, seed).
fn compared(value: impl Fn(&str, u64) -> f64) -> Comparison {
    let plan = plan(TWO_ARMS, Instructions);
    primary(&plan, &boots(&plan, |arm, boot, _| value(arm, boot.seed)))
}

fn estimate(comparison: &Comparison) -> &Estimate {
    comparison.estimate.as_ref().expect("an estimate")
}

fn about(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value}, expected {expected}");
}

/// A fixed, irregular number in -1..1 for each seed.
fn wobble(seed: u64) -> f64 {
    [0.31, -0.82, 0.55, -0.17, 0.94, -0.63, 0.08, -0.41][usize::try_from(seed % 8).expect("small")]
}

#[test]
fn equal_counts_at_every_seed_are_identical() {
    let comparison = compared(|_, seed| 800.0 + wobble(seed));
    assert_eq!(comparison.verdict, Verdict::Identical);
    assert_eq!(comparison.determinism, Determinism::Identical);
    assert_eq!(comparison.placebo_percent, Some(0.0));
    let estimate = estimate(&comparison);
    assert!(estimate.exact && estimate.n == 8 && estimate.p.is_none(), "{estimate:?}");
    assert_eq!((comparison.base_cell.boots.len(), comparison.arm_cell.boots.len()), (8, 8));
}

#[test]
fn the_same_change_at_every_seed_is_an_exact_regression() {
    let comparison = compared(|arm, _| if arm == "child" { 824.0 } else { 800.0 });
    assert_eq!(comparison.verdict, Verdict::Regression { beyond_margin: true });
    let estimate = estimate(&comparison);
    about(estimate.percent, 3.0, 1e-9);
    assert!(estimate.exact && estimate.interval.is_none(), "{estimate:?}");
    about(estimate.seed_share_percent.expect("all agree"), 68.77, 0.01);
    about(comparison.base_cell.round_max, 800.0, 1e-9);
}

#[test]
fn a_change_that_varies_a_little_has_an_interval_around_it() {
    let comparison =
        compared(|arm, seed| if arm == "child" { 824.0 + wobble(seed) } else { 800.0 + wobble(seed + 3) });
    assert_eq!(comparison.verdict, Verdict::Regression { beyond_margin: true });
    let (low, high) = estimate(&comparison).interval.expect("eight seeds carry one");
    assert!(low > 2.5 && low < 3.0 && high > 3.0 && high < 3.5, "{low} {high}");
}

#[test]
fn less_work_is_an_improvement() {
    let comparison = compared(|arm, _| if arm == "child" { 776.0 } else { 800.0 });
    assert_eq!(comparison.verdict, Verdict::Improvement { beyond_margin: true });
    about(estimate(&comparison).percent, -3.0, 1e-9);
}

#[test]
fn a_change_inside_the_margin_is_equivalent() {
    let comparison = compared(|arm, _| if arm == "child" { 802.0 } else { 800.0 });
    assert_eq!(comparison.verdict, Verdict::Equivalent { shift_likely: true });
    about(estimate(&comparison).ruled_out_percent.expect("exact"), 0.25, 1e-9);
}

#[test]
fn a_change_that_the_placebo_shows_too_is_no_evidence() {
    let comparison = compared(|arm, seed| match arm {
        "child" => 816.0,
        "parent, placebo" if seed == 5 => 824.0,
        _ => 800.0,
    });
    assert_eq!(comparison.verdict, Verdict::Inconclusive { more_boots: None, within_placebo: true });
    about(comparison.placebo_percent.expect("a placebo"), 3.0, 1e-9);
}

#[test]
fn a_failed_check_voids_the_pair_and_is_named() {
    let plan = plan(TWO_ARMS, Instructions);
    let mut boots = boots(&plan, |_, _, _| 800.0);
    let check = &mut boots[6].rounds[2].checks[0];
    (check.actual, check.passed) = ("9999".to_owned(), false);
    let name = &plan.arms[boots[6].arm].name;
    let reason = format!("check \"results\" failed on {name} (boot 6): expected 10000, got 9999");
    assert_eq!(primary(&plan, &boots).verdict, Verdict::Invalid { reason });
}

#[test]
fn a_kernel_that_failed_voids_the_pair_and_a_host_that_failed_does_not() {
    let plan = plan(TWO_ARMS, Instructions);
    let mut boots = boots(&plan, |_, _, _| 800.0);
    let child = boots.iter().position(|boot| plan.arms[boot.arm].name == "child").expect("a boot");
    boots[child].outcome = Outcome::HostFailed { message: "no memory".into() };
    let comparison = primary(&plan, &boots);
    assert_eq!((comparison.verdict, comparison.arm_cell.boots.len()), (Verdict::Identical, 7));
    boots[child].outcome = Outcome::KernelFailed { message: "BUG: x".into() };
    let reason = format!("boots fail on child (boot {child}): the kernel failed: BUG: x");
    assert_eq!(primary(&plan, &boots).verdict, Verdict::Invalid { reason });
}

#[test]
fn a_placebo_that_fails_costs_only_the_placebo() {
    let plan = plan(TWO_ARMS, Instructions);
    let mut boots = boots(&plan, |arm, _, _| if arm == "child" { 824.0 } else { 800.0 });
    for boot in boots.iter_mut().filter(|boot| boot.purpose == BootPurpose::Placebo) {
        boot.outcome = Outcome::KernelFailed { message: "BUG: x".into() };
    }
    let comparison = primary(&plan, &boots);
    assert_eq!(comparison.placebo_percent, None);
    assert_eq!(comparison.verdict, Verdict::Regression { beyond_margin: true });
}

#[test]
fn repeats_that_differ_make_the_boot_the_unit() {
    let value = |arm: &str, boot: &PlannedBoot, _: &Metric| {
        let base = if arm == "child" { 880.0 } else { 800.0 };
        let repeat = if boot.purpose == BootPurpose::Repeat { 0.4 } else { 0.0 };
        base + wobble(boot.seed + u64::from(arm == "child") * 3) + repeat
    };
    let plan = plan(TWO_ARMS, Instructions);
    let comparison = primary(&plan, &boots(&plan, value));
    let Determinism::Differs { ppm } = comparison.determinism else { panic!("{comparison:?}") };
    assert!((400..=600).contains(&ppm), "{ppm}");
    assert_eq!(comparison.placebo_percent, None, "a placebo by seed says nothing here");
    let estimate = estimate(&comparison);
    assert_eq!((estimate.n, estimate.seed_range, estimate.exact), (8, None, false));
    about(estimate.percent, 10.0, 0.5);
    assert!(estimate.p.is_some_and(|p| p < 0.01), "{estimate:?}");
    assert_eq!(comparison.verdict, Verdict::Regression { beyond_margin: true });
}

/// Plan of a patch on a filesystem with this disk, and boots whose child runs 3 % more instructions
/// while elapsed counts are all over the place.
fn waiting(disks: [&str; 2], mode: MeasureMode) -> (Plan, Vec<BootRecord>) {
    let yaml = TWO_ARMS
        .replace("type: tmpfs", "type: xfs")
        .replace("{name: parent}", &format!("{{name: parent, disk: {{type: {}}}}}", disks[0]))
        .replace("{name: child,", &format!("{{name: child, disk: {{type: {}}},", disks[1]));
    let plan = plan(&yaml, mode);
    let value = |arm: &str, boot: &PlannedBoot, _: &Metric| {
        (if arm == "child" { 824.0 } else { 800.0 })
            + 0.1 * wobble(boot.seed + 3 * boot.arm as u64)
            + if boot.purpose == BootPurpose::Repeat { 0.05 } else { 0.0 }
    };
    let mut boots = boots(&plan, value);
    for (number, boot) in boots.iter_mut().enumerate() {
        for phase in boot.rounds.iter_mut().flat_map(|round| &mut round.phases) {
            phase.elapsed *= 1 + (number as u64 * 7) % 11;
        }
    }
    (plan, boots)
}

#[test]
fn a_verdict_on_a_disk_that_the_host_serves_is_about_the_process_and_not_about_waiting() {
    for disks in [["nvme", "nvme"], ["virtio-blk", "virtio-blk"], ["ram", "nvme"], ["nvme", "ram"]] {
        let (plan, boots) = waiting(disks, Instructions);
        let judgement = judge(&plan, &boots).expect("finite numbers");
        let primary: Vec<&Comparison> = judgement.comparisons.iter().filter(|c| c.primary).collect();
        assert_eq!(primary.len(), 1, "{disks:?}");
        assert_eq!(primary[0].metric.kind, MetricKind::Cpu, "{disks:?}");
        assert_eq!(primary[0].verdict, Verdict::Regression { beyond_margin: true }, "{disks:?}");
        about(estimate(primary[0]).percent, 3.0, 0.1);
        let elapsed = judgement.comparisons.iter().find(|c| c.metric.kind == MetricKind::Elapsed);
        assert!(elapsed.is_some_and(|elapsed| !elapsed.primary), "it is still shown");
    }
}

#[test]
fn a_verdict_is_about_elapsed_time_and_about_elapsed_counts_of_a_ram_disk() {
    for (disks, mode) in [(["nvme", "nvme"], Wall), (["ram", "nvme"], Wall), (["ram", "ram"], Instructions)] {
        let (plan, boots) = waiting(disks, mode);
        assert_eq!(primary(&plan, &boots).metric.kind, MetricKind::Elapsed, "{disks:?} {mode:?}");
    }
}

#[test]
fn a_two_by_two_on_a_disk_that_the_host_serves_is_about_the_process() {
    let kinds = |settings: &str, feature: &str| -> Vec<MetricKind> {
        let yaml = FACTORIAL
            .replace("settings: {", &format!("settings: {{{settings}"))
            .replace("{name: parent=1,", &format!("{{name: parent=1, {feature}"));
        let plan = plan(&yaml, Instructions);
        let judgement = judge(&plan, &boots(&plan, |arm, _, _| cells(arm))).expect("a judgement");
        judgement.factorials.iter().map(|table| table.metric.kind.clone()).collect()
    };
    assert_eq!(kinds("", ""), [MetricKind::Elapsed, MetricKind::System]);
    assert_eq!(kinds("disk: {type: nvme}, ", ""), [MetricKind::Cpu, MetricKind::System]);
    let one_side = kinds("", "disk: {type: virtio-blk}, ");
    assert_eq!(one_side, [MetricKind::Cpu, MetricKind::System], "all cells show one count");
}

#[test]
fn wall_time_is_judged_by_boots_and_not_checked_for_determinism() {
    let plan = plan(TWO_ARMS, Wall);
    let value = |arm: &str, boot: &PlannedBoot, _: &Metric| {
        (if arm == "child" { 900.0 } else { 800.0 }) + 2.0 * wobble(boot.seed + u64::from(arm == "child") * 3)
    };
    let comparison = primary(&plan, &boots(&plan, value));
    assert_eq!(comparison.determinism, Determinism::NotChecked);
    assert_eq!((comparison.unit.clone(), estimate(&comparison).n), (Unit::NanosecondsPerOp, 5));
    assert_eq!(comparison.verdict, Verdict::Regression { beyond_margin: true });
}

#[test]
fn a_drift_is_over_the_order_of_boots_for_counts_and_over_the_clock_for_time() {
    let estimate_of = |mode, clock: fn(usize) -> f64| {
        let plan = plan(TWO_ARMS, mode);
        let value = |arm: &str, boot: &PlannedBoot, _: &Metric| {
            (if arm == "child" { 820.0 } else { 800.0 })
                + boot.index as f64
                + wobble(boot.seed + 3 * boot.arm as u64)
                + if boot.purpose == BootPurpose::Repeat { 0.4 } else { 0.0 }
        };
        let mut boots = boots(&plan, value);
        for boot in &mut boots {
            boot.started_seconds = clock(boot.index);
        }
        estimate(&primary(&plan, &boots)).clone()
    };
    let one = |index: usize| 3.0 * index as f64;
    // Three guests at a time, with a break in between.
    let three = |index: usize| 4.0 * (index / 3) as f64 + if index > 9 { 900.0 } else { 0.0 };
    assert_eq!(estimate_of(Instructions, one), estimate_of(Instructions, three));
    about(estimate_of(Instructions, one).percent, 2.5, 0.25);
    assert_ne!(estimate_of(Wall, one), estimate_of(Wall, three));
}

#[test]
fn a_few_seeds_that_agree_say_nothing_of_all_seeds() {
    let share = |seeds: u32| {
        let plan = plan(&format!("{TWO_ARMS}boots: {seeds}\n"), Instructions);
        let boots = boots(&plan, |arm, _, _| if arm == "child" { 824.0 } else { 800.0 });
        estimate(&primary(&plan, &boots)).seed_share_percent
    };
    for seeds in 1..5 {
        assert_eq!(share(seeds), None, "{seeds} seeds");
    }
    about(share(5).expect("five agree"), 54.93, 0.01);
    about(share(12).expect("twelve agree"), 77.91, 0.01);
}

#[test]
fn fewer_boots_than_the_first_look_needs_say_how_many_are_missing() {
    let plan = plan(&format!("{TWO_ARMS}boots: 1\n"), Wall);
    let comparison = primary(&plan, &boots(&plan, |arm, _, _| if arm == "child" { 900.0 } else { 800.0 }));
    assert_eq!(comparison.verdict, Verdict::Inconclusive { more_boots: Some(4), within_placebo: false });
    let estimate = estimate(&comparison);
    assert_eq!((estimate.n, estimate.interval, estimate.p), (1, None, None));
    about(estimate.percent, 12.5, 1e-9);
}

#[test]
fn no_boots_at_all_are_no_values() {
    let plan = plan(TWO_ARMS, Instructions);
    let comparison = primary(&plan, &[]);
    assert_eq!(comparison.verdict, Verdict::Invalid { reason: "no boot of parent gave a value".into() });
    assert_eq!(comparison.base_cell, Cell::default());
}

#[test]
fn zero_values_are_told_and_never_panic() {
    let zero = |mode: MeasureMode| {
        let plan = plan(TWO_ARMS, mode);
        primary(&plan, &boots(&plan, |arm, _, _| if arm == "child" { 0.0 } else { 800.0 })).verdict
    };
    let reason = "no seed gave a positive value on both arms".to_owned();
    assert_eq!(zero(Instructions), Verdict::Invalid { reason });
    let reason = "a boot value is zero: no relative change can be given".to_owned();
    assert_eq!(zero(Wall), Verdict::Invalid { reason });
}

#[test]
fn the_order_of_rounds_in_a_record_does_not_matter() {
    let plan = plan(TWO_ARMS, Instructions);
    let mut boots =
        boots(&plan, |arm, boot, _| (if arm == "child" { 824.0 } else { 800.0 }) + wobble(boot.seed));
    for boot in &mut boots {
        for (number, round) in boot.rounds.iter_mut().enumerate() {
            round.phases[0].elapsed += number as u64 * 100;
        }
    }
    let before = judge(&plan, &boots).expect("a judgement");
    for boot in &mut boots {
        boot.rounds.reverse();
    }
    assert_eq!(judge(&plan, &boots).expect("a judgement"), before);
    boots.reverse();
    let reversed = primary(&plan, &boots);
    assert_eq!(reversed.verdict, before.comparisons[0].verdict);
    assert_eq!(reversed.estimate, before.comparisons[0].estimate);
}

/// Cells of the 2x2: 100 and 111.2 before the patch, 100.1 and 102.9 after it.
fn cells(arm: &str) -> f64 {
    match arm {
        "unpatched, parent=0" => 100.0,
        "unpatched, parent=1" => 111.2,
        "patched, parent=0" => 100.1,
        "patched, parent=1" => 102.9,
        placebo => cells(placebo.trim_end_matches(", placebo")),
    }
}

#[test]
fn a_two_by_two_says_what_a_feature_costs_and_how_much_of_it_a_patch_recovers() {
    let plan = plan(FACTORIAL, Instructions);
    let judgement = judge(&plan, &boots(&plan, |arm, _, _| cells(arm))).expect("a judgement");
    let table = judgement.factorials.iter().find(|table| table.metric.kind == MetricKind::Elapsed);
    let table = table.expect("a table");
    let text = |one: &str, two: &str, three: &str| (one.to_owned(), two.to_owned(), three.to_owned());
    assert_eq!(table.change, text("kernel", "unpatched", "patched"));
    assert_eq!(table.feature, text("parent pointers", "parent=0", "parent=1"));
    let means = table.cells.clone().map(|cell| cell.mean);
    assert_eq!(means.map(|mean| (mean * 10.0).round() / 10.0), [100.0, 111.2, 100.1, 102.9]);
    let percent = |estimate: &Option<Estimate>| estimate.as_ref().expect("an estimate").percent;
    about(percent(&table.cost_before), 11.2, 1e-9);
    about(percent(&table.cost_after), 100.0 * (102.9 / 100.1 - 1.0), 1e-9);
    about(percent(&table.cost_after), 2.797, 0.001);
    about(percent(&table.effect_off), 0.1, 1e-9);
    about(percent(&table.effect_on), 100.0 * (102.9 / 111.2 - 1.0), 1e-9);
    about(percent(&table.interaction), 100.0 * ((102.9 / 100.1) / (111.2 / 100.0) - 1.0), 1e-9);
    about(table.recovered_percent.expect("a cost"), 75.03, 0.01);
    let verdicts: Vec<(usize, usize, Verdict)> = judgement
        .comparisons
        .into_iter()
        .filter(|comparison| comparison.primary)
        .map(|comparison| (comparison.base, comparison.arm, comparison.verdict))
        .collect();
    assert_eq!(
        verdicts,
        [
            (0, 2, Verdict::Equivalent { shift_likely: true }),
            (1, 3, Verdict::Improvement { beyond_margin: true })
        ]
    );
}

#[test]
fn nothing_is_recovered_of_a_feature_that_costs_nothing() {
    let plan = plan(FACTORIAL, Instructions);
    let judgement = judge(&plan, &boots(&plan, |_, _, _| 100.0)).expect("a judgement");
    assert_eq!(judgement.factorials[0].recovered_percent, None);
    assert!(judge(&plan, &[]).expect("a judgement").factorials.is_empty());
}

#[test]
fn the_kernel_is_the_change_whichever_factor_comes_first() {
    let (head, factors) = FACTORIAL.split_once("factors:\n").expect("factors");
    let (kernel, feature) = factors.split_at(factors.find("  - factor: parent").expect("a second factor"));
    let plan = plan(&format!("{head}factors:\n{feature}{kernel}"), Instructions);
    let turned = |arm: &str| {
        let name = arm.trim_end_matches(", placebo");
        let (feature, kernel) = name.split_once(", ").expect("two levels");
        cells(&format!("{kernel}, {feature}"))
    };
    let judgement = judge(&plan, &boots(&plan, |arm, _, _| turned(arm))).expect("a judgement");
    assert_eq!(judgement.factorials[0].change.0, "kernel");
    about(judgement.factorials[0].recovered_percent.expect("a cost"), 75.03, 0.01);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_counters_make_the_judgement_panic(
        values in proptest::collection::vec(0.0..1e9_f64, 24),
        failing in 0..30_usize,
        wall: bool,
    ) {
        let plan = plan(TWO_ARMS, if wall { Wall } else { Instructions });
        let mut boots = boots(&plan, |_, boot, _| values[boot.index % values.len()]);
        if let Some(boot) = boots.get_mut(failing) {
            boot.rounds.clear();
        }
        prop_assert!(judge(&plan, &boots).is_ok());
    }

    #[test]
    fn a_child_and_parent_that_change_places_change_the_sign(factor in 1.02..1.5_f64) {
        let one = compared(|arm, seed| 1000.0 * (if arm == "child" { factor } else { 1.0 }) + wobble(seed));
        let other = compared(|arm, seed| 1000.0 * (if arm == "child" { 1.0 } else { factor }) + wobble(seed));
        let ratio = |comparison: &Comparison| 1.0 + estimate(comparison).percent / 100.0;
        prop_assert!((ratio(&one) * ratio(&other) - 1.0).abs() < 1e-9);
        prop_assert_eq!(one.verdict, Verdict::Regression { beyond_margin: true });
        prop_assert_eq!(other.verdict, Verdict::Improvement { beyond_margin: true });
    }
}
