//! From boots to judgements: observations per arm, determinism, placebo scatter, verdicts, 2x2
//! tables and caveats. Read [`judge`] first. Everything here can be made again from the raw
//! rounds of a run record.

use std::collections::BTreeMap;

use kdelta_model::{
    Arm, BootPurpose, BootRecord, Cell, Comparison, Determinism, Direction, Estimate, Factorial, MeasureMode,
    Metric, MetricKind, Outcome, Pair, Plan, Unit, Verdict,
};
use kdelta_stats::{
    AbSettings, Boot, Call, Decision, Design, Interval, PairedSettings, PairedSummary, StatsError,
    VerdictSettings,
};
use kdelta_wire::Clock;
use kdelta_workloads::Better;

/// Error rate of "differs" over all looks (statistics.md, section 4).
const ALPHA: f64 = 0.05;
/// Two one-sided tests at 5 % each.
const EQUIVALENCE_ALPHA: f64 = 0.10;
/// Spread ratio from which a second, unequal-variance interval must agree (statistics.md, section 4).
const SPREAD_RATIO: f64 = 2.0;
/// Fewest seeds whose agreement says something of other seeds: the bound 0.05^(1/n) is 5 % for one
/// seed and reaches one half, "most seeds", with five (55 %).
const SEEDS_FOR_SHARE: usize = 5;
/// Boots per arm after which a session does not go on.
const MOST_BOOTS: usize = 60;

/// Judgements made from the boots of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Per pair and metric, primary ones first.
    pub comparisons: Vec<Comparison>,
    /// One per metric, when the arms are a 2x2.
    pub factorials: Vec<Factorial>,
}

/// Judges every pair of `plan` on every metric.
///
/// # Errors
/// When raw values are not finite numbers (a damaged record).
pub fn judge(plan: &Plan, boots: &[BootRecord]) -> Result<Judgement, StatsError> {
    let data = Observations::new(plan, boots)?;
    let mut comparisons = Vec::new();
    for pair in &plan.pairs {
        let judged = judged(plan, &[pair.base, pair.arm]);
        for candidate in metrics(plan.mode, &plan.arms[pair.arm]) {
            let primary = candidate.primary_phase && candidate.metric.kind == judged;
            comparisons.push(data.compare(*pair, candidate, primary)?);
        }
    }
    comparisons.sort_by_key(|comparison| !comparison.primary);
    Ok(Judgement { comparisons, factorials: data.factorials()? })
}

/// Which count a verdict on these arms is about.
fn judged(plan: &Plan, arms: &[usize]) -> MetricKind {
    MetricKind::judged(plan.mode, arms.iter().map(|arm| &plan.arms[*arm].guest.disk))
}

/// A metric that an arm's rounds have.
struct Candidate {
    metric: Metric,
    unit: Unit,
    direction: Direction,
    /// Whether its phase is one that verdicts are about.
    primary_phase: bool,
}

/// The counters of all phases of an arm, and what its workloads measure themselves.
fn metrics(mode: MeasureMode, arm: &Arm) -> Vec<Candidate> {
    let mut list = Vec::new();
    for scenario in &arm.scenarios {
        let Ok(selection) = kdelta_workloads::find(&scenario.workload) else { continue };
        let info = selection.workload.info();
        let metric =
            |phase: &str, kind| Metric { scenario: scenario.id.clone(), phase: phase.to_owned(), kind };
        for phase in info.phases_of(selection.scenario) {
            list.extend(MetricKind::COUNTERS.into_iter().map(|kind| Candidate {
                metric: metric(phase.name, kind),
                unit: unit(mode),
                direction: Direction::LowerIsBetter,
                primary_phase: phase.primary,
            }));
        }
        for measure in info.measures_of(selection.scenario) {
            let direction = match measure.better {
                Better::Lower => Direction::LowerIsBetter,
                Better::Higher => Direction::HigherIsBetter,
                Better::Neither => continue,
            };
            list.push(Candidate {
                metric: metric(measure.phase, MetricKind::Measure(measure.name.to_owned())),
                unit: Unit::named(measure.unit, clock(mode)),
                direction,
                primary_phase: false,
            });
        }
    }
    list
}

/// One number of one boot, with the raw rounds behind it.
#[derive(Clone, Debug, PartialEq)]
struct BootValue {
    seed: u64,
    /// When, for the drift: seconds since the session's start in wall mode. In instructions mode the
    /// boot's place in the plan, because the clock of the host also tells how many guests ran at a time.
    time: f64,
    rounds: Vec<f64>,
    value: f64,
}

/// Where a boot lies on the axis of its session's drift; see [`BootValue::time`].
#[expect(clippy::cast_precision_loss, reason = "a session has at most thousands of boots")]
fn time(mode: MeasureMode, boot: &BootRecord) -> f64 {
    match mode {
        MeasureMode::Instructions => boot.index as f64,
        MeasureMode::Wall => boot.started_seconds,
    }
}

type Table = BTreeMap<(usize, Metric), Vec<BootValue>>;

struct Observations<'a> {
    plan: &'a Plan,
    boots: &'a [BootRecord],
    sample: Table,
    repeats: Table,
}

impl<'a> Observations<'a> {
    fn new(plan: &'a Plan, boots: &'a [BootRecord]) -> Result<Self, StatsError> {
        let (mut sample, mut repeats) = (Table::new(), Table::new());
        for boot in boots.iter().filter(|boot| boot.outcome == Outcome::Completed) {
            let Some(arm) = plan.arms.get(boot.arm) else { continue };
            let table = match boot.purpose {
                BootPurpose::Unmeasured => continue,
                BootPurpose::Sample | BootPurpose::Placebo => &mut sample,
                BootPurpose::Repeat => &mut repeats,
            };
            for Candidate { metric, .. } in metrics(plan.mode, arm) {
                let rounds: Vec<f64> = boot
                    .rounds
                    .iter()
                    .filter(|round| round.scenario == metric.scenario && !round.warmup)
                    .flat_map(|round| &round.phases)
                    .filter(|phase| phase.name == metric.phase)
                    .filter_map(|phase| metric.kind.value(phase))
                    .collect();
                if rounds.is_empty() {
                    continue;
                }
                let value = kdelta_stats::midmean(&rounds)?;
                let entry = BootValue { seed: boot.seed, time: time(plan.mode, boot), rounds, value };
                table.entry((boot.arm, metric)).or_default().push(entry);
            }
        }
        Ok(Self { plan, boots, sample, repeats })
    }

    fn values(&self, arm: usize, metric: &Metric) -> &[BootValue] {
        self.sample.get(&(arm, metric.clone())).map_or(&[], Vec::as_slice)
    }

    fn compare(&self, pair: Pair, candidate: Candidate, primary: bool) -> Result<Comparison, StatsError> {
        let Candidate { metric, unit, direction, .. } = candidate;
        let determinism = self.determinism(pair, &metric);
        let exact = self.plan.mode == MeasureMode::Instructions
            && !matches!(determinism, Determinism::Differs { .. });
        let placebo = if exact { self.placebo_largest(pair.base, &metric)? } else { None };
        let judged = match self.fault(pair, &metric) {
            Some(reason) => Err(reason),
            None if exact => self.by_seed(pair, &metric, direction, placebo)?,
            None => self.by_boot(pair, &metric, direction)?,
        };
        let (estimate, verdict) = match judged {
            Ok((estimate, decision)) => (Some(estimate), verdict(&decision)),
            Err(reason) => (None, Verdict::Invalid { reason }),
        };
        Ok(Comparison {
            base: pair.base,
            arm: pair.arm,
            unit,
            direction,
            primary,
            base_cell: cell(self.values(pair.base, &metric)),
            arm_cell: cell(self.values(pair.arm, &metric)),
            estimate,
            determinism,
            placebo_percent: placebo.map(kdelta_stats::log_to_percent),
            verdict,
            metric,
        })
    }

    /// Why numbers of this pair cannot be used, if so: boots that failed or semantic checks.
    fn fault(&self, pair: Pair, metric: &Metric) -> Option<String> {
        for arm in [pair.base, pair.arm] {
            let name = &self.plan.arms[arm].name;
            for boot in self.boots.iter().filter(|boot| boot.arm == arm) {
                let rounds = boot.rounds.iter().filter(|round| round.scenario == metric.scenario);
                if let Some(check) = rounds.flat_map(|round| &round.checks).find(|check| !check.passed) {
                    return Some(format!(
                        "check \"{}\" failed on {name} (boot {}): expected {}, got {}",
                        check.name, boot.index, check.expected, check.actual
                    ));
                }
                match &boot.outcome {
                    Outcome::Completed | Outcome::HostFailed { .. } => {}
                    outcome => {
                        return Some(format!(
                            "boots fail on {name} (boot {}): {}",
                            boot.index,
                            outcome.message()
                        ));
                    }
                }
            }
            if self.values(arm, metric).is_empty() {
                return Some(format!("no boot of {name} gave a value"));
            }
        }
        None
    }

    /// Compares repeated boots with the boot they repeat: raw rounds, bit for bit.
    fn determinism(&self, pair: Pair, metric: &Metric) -> Determinism {
        let mut checked = false;
        let mut worst = 0.0_f64;
        for arm in [pair.base, pair.arm] {
            let Some(repeats) = self.repeats.get(&(arm, metric.clone())) else { continue };
            for repeat in repeats {
                let Some(first) = self.values(arm, metric).iter().find(|value| value.seed == repeat.seed)
                else {
                    continue;
                };
                checked = true;
                if first.rounds.len() != repeat.rounds.len() {
                    worst = f64::INFINITY;
                }
                for (one, other) in first.rounds.iter().zip(&repeat.rounds) {
                    if one.to_bits() != other.to_bits() {
                        worst = worst.max(((one - other) / one).abs());
                    }
                }
            }
        }
        match (checked, worst > 0.0) {
            (false, _) => Determinism::NotChecked,
            (true, false) => Determinism::Identical,
            // At least 1: what is not equal is never printed as 0.
            (true, true) => Determinism::Differs { ppm: (worst * 1e6).ceil().clamp(1.0, 1e12) as u64 },
        }
    }

    /// Largest |log ratio| of the placebo of `base` over common seeds.
    fn placebo_largest(&self, base: usize, metric: &Metric) -> Result<Option<f64>, StatsError> {
        let Some(placebo) = self.plan.arms.iter().position(|arm| arm.placebo_of == Some(base)) else {
            return Ok(None);
        };
        let ratios = log_ratios(self.values(base, metric), self.values(placebo, metric));
        if ratios.is_empty() {
            return Ok(None);
        }
        Ok(Some(kdelta_stats::summarize_pairs(&ratios, &paired_settings())?.largest_abs_log))
    }

    /// Instructions mode: both arms ran the same seeds (statistics.md, section 6).
    fn by_seed(
        &self,
        pair: Pair,
        metric: &Metric,
        direction: Direction,
        placebo: Option<f64>,
    ) -> Result<Judged, StatsError> {
        let ratios = log_ratios(self.values(pair.base, metric), self.values(pair.arm, metric));
        if ratios.is_empty() {
            return Ok(Err("no seed gave a positive value on both arms".to_owned()));
        }
        let summary = kdelta_stats::summarize_pairs(&ratios, &paired_settings())?;
        let settings = self.verdict_settings(direction, kdelta_stats::SEEDS)?;
        let decision = kdelta_stats::decide_paired(&summary, placebo, &settings)?;
        Ok(Ok((estimate_of_pairs(&summary, &decision, settings.margin_log)?, decision)))
    }

    /// Wall time, or counts that are not deterministic: boots are the sample (section 3).
    fn by_boot(&self, pair: Pair, metric: &Metric, direction: Direction) -> Result<Judged, StatsError> {
        let (base, arm) = (self.values(pair.base, metric), self.values(pair.arm, metric));
        if base.iter().chain(arm).any(|value| value.value <= 0.0) {
            return Ok(Err("a boot value is zero: no relative change can be given".to_owned()));
        }
        let boots = |values: &[BootValue]| -> Vec<Boot> {
            values.iter().map(|value| Boot { y: value.value.ln(), t: value.time, session: 0 }).collect()
        };
        let rounds: Vec<&[f64]> = base.iter().chain(arm).map(|value| value.rounds.as_slice()).collect();
        let resolution_log = kdelta_stats::resolution(&rounds)?.extension_log();
        let settings = AbSettings {
            schedule: kdelta_stats::BOOTS_PER_SIDE,
            alpha: ALPHA,
            equivalence_alpha: EQUIVALENCE_ALPHA,
            resolution_log,
        };
        let summary = match kdelta_stats::compare_ab(&boots(base), &boots(arm), &settings) {
            Ok(summary) => summary,
            Err(StatsError::TooFew { .. }) => {
                return Ok(Err(format!("{} and {} boots are too few", base.len(), arm.len())));
            }
            Err(error) => return Err(error),
        };
        let level = match summary.look {
            Some(look) => settings.schedule.nominal_p(look, ALPHA)?,
            None => ALPHA,
        };
        let spread = spread_ratio(&summary.parent_adjusted, &summary.child_adjusted);
        let cross_check = if spread > SPREAD_RATIO {
            kdelta_stats::welch(&summary.parent_adjusted, &summary.child_adjusted, level)?
                .map(|welch| welch.interval)
        } else {
            None
        };
        let verdict_settings = self.verdict_settings(direction, kdelta_stats::BOOTS_PER_SIDE)?;
        let decision = kdelta_stats::decide_ab(&summary, cross_check, &verdict_settings)?;
        let n = summary.parent_n.min(summary.child_n);
        let detectable = match summary.pooled_sd_log {
            Some(sd) if sd > 0.0 => Some(kdelta_stats::minimum_detectable_log(sd, n, Design::TwoArms)?),
            _ => None,
        };
        let estimate = Estimate {
            percent: kdelta_stats::log_to_percent(summary.estimate_log),
            interval: summary.interval_log.map(percent_interval),
            seed_range: None,
            p: summary.p,
            n,
            exact: false,
            seed_share_percent: None,
            ruled_out_percent: decision.ruled_out_log.map(kdelta_stats::log_to_percent),
            detectable_percent: detectable.map(kdelta_stats::log_to_percent),
        };
        Ok(Ok((estimate, decision)))
    }

    fn verdict_settings(
        &self,
        direction: Direction,
        schedule: kdelta_stats::Schedule,
    ) -> Result<VerdictSettings, StatsError> {
        Ok(VerdictSettings {
            margin_log: kdelta_stats::percent_to_log(self.plan.margin_percent)?,
            worse_is_higher: direction == Direction::LowerIsBetter,
            schedule,
            max_n: MOST_BOOTS,
        })
    }

    /// 2x2 tables of the phases that verdicts are about, when there are two factors of two levels.
    fn factorials(&self) -> Result<Vec<Factorial>, StatsError> {
        let Some(layout) = Layout::find(self.plan) else { return Ok(Vec::new()) };
        let mut tables = Vec::new();
        // One count for all cells, or they could not be set against each other.
        let shown = [judged(self.plan, &layout.cells), MetricKind::System];
        for Candidate { metric, primary_phase, .. } in
            metrics(self.plan.mode, &self.plan.arms[layout.cells[0]])
        {
            let wanted = primary_phase && shown.contains(&metric.kind);
            if wanted && layout.cells.iter().all(|arm| !self.values(*arm, &metric).is_empty()) {
                tables.push(self.factorial(&layout, metric)?);
            }
        }
        Ok(tables)
    }

    fn factorial(&self, layout: &Layout, metric: Metric) -> Result<Factorial, StatsError> {
        let [before_off, before_on, after_off, after_on] = layout.cells.map(|arm| self.values(arm, &metric));
        let ratio = |base, arm| estimate_by_seed(&log_ratios(base, arm));
        let cost_before = ratio(before_off, before_on)?;
        let cost_after = ratio(after_off, after_on)?;
        let recovered_percent = match (&cost_before, &cost_after) {
            (Some(before), Some(after)) if before.percent > 0.0 => {
                Some(100.0 * kdelta_stats::share_recovered(before.percent, after.percent)?)
            }
            _ => None,
        };
        let mut interaction = Vec::new();
        for seed in before_off.iter().map(|value| value.seed) {
            let at = |values: &[BootValue]| log_at(values, seed);
            if let (Some(a), Some(b), Some(c), Some(d)) =
                (at(before_off), at(before_on), at(after_off), at(after_on))
            {
                interaction.push((d - c) - (b - a));
            }
        }
        Ok(Factorial {
            unit: unit(self.plan.mode),
            change: layout.change.clone(),
            feature: layout.feature.clone(),
            cells: layout.cells.map(|arm| cell(self.values(arm, &metric))),
            cost_before,
            cost_after,
            effect_off: ratio(before_off, after_off)?,
            effect_on: ratio(before_on, after_on)?,
            interaction: estimate_by_seed(&interaction)?,
            recovered_percent,
            metric,
        })
    }
}

type Judged = Result<(Estimate, Decision), String>;

/// Which arms are the cells of a 2x2, and what its factors are called.
struct Layout {
    change: (String, String, String),
    feature: (String, String, String),
    /// Before off, before on, after off, after on.
    cells: [usize; 4],
}

impl Layout {
    /// The factor whose levels have different kernels is the change; without one, the first.
    fn find(plan: &Plan) -> Option<Self> {
        let arms: Vec<(usize, &Arm)> =
            plan.arms.iter().enumerate().filter(|(_, arm)| arm.placebo_of.is_none()).collect();
        let first = arms.first()?.1;
        if arms.len() != 4 || first.levels.len() != 2 {
            return None;
        }
        let other_level = |factor: &String| {
            arms.iter()
                .find_map(|(_, arm)| arm.levels.get(factor).filter(|level| **level != first.levels[factor]))
        };
        let mut factors: Vec<(String, String, String)> = Vec::new();
        for (factor, level) in &first.levels {
            factors.push((factor.clone(), level.clone(), other_level(factor)?.clone()));
        }
        let changes_kernel = |factor: &(String, String, String)| {
            let kernel_at = |level: &String| {
                arms.iter()
                    .find(|(_, arm)| arm.levels.get(&factor.0) == Some(level))
                    .map(|(_, arm)| arm.kernel)
            };
            kernel_at(&factor.1) != kernel_at(&factor.2)
        };
        if !changes_kernel(&factors[0]) && changes_kernel(&factors[1]) {
            factors.swap(0, 1);
        }
        let (change, feature) = (factors[0].clone(), factors[1].clone());
        let arm_at = |change_level: &String, feature_level: &String| {
            let fits = |arm: &Arm| {
                arm.levels.get(&change.0) == Some(change_level)
                    && arm.levels.get(&feature.0) == Some(feature_level)
            };
            arms.iter().find(|(_, arm)| fits(arm)).map(|(index, _)| *index)
        };
        let cells = [
            arm_at(&change.1, &feature.1)?,
            arm_at(&change.1, &feature.2)?,
            arm_at(&change.2, &feature.1)?,
            arm_at(&change.2, &feature.2)?,
        ];
        Some(Self { change, feature, cells })
    }
}

fn paired_settings() -> PairedSettings {
    PairedSettings { schedule: kdelta_stats::SEEDS, alpha: ALPHA, equivalence_alpha: EQUIVALENCE_ALPHA }
}

/// `ln(arm) - ln(base)` for each seed that has a positive value on both.
fn log_ratios(base: &[BootValue], arm: &[BootValue]) -> Vec<f64> {
    base.iter().filter_map(|value| Some(log_at(arm, value.seed)? - log_at(base, value.seed)?)).collect()
}

fn log_at(values: &[BootValue], seed: u64) -> Option<f64> {
    values.iter().find(|value| value.seed == seed && value.value > 0.0).map(|value| value.value.ln())
}

fn estimate_by_seed(ratios: &[f64]) -> Result<Option<Estimate>, StatsError> {
    if ratios.is_empty() {
        return Ok(None);
    }
    let summary = kdelta_stats::summarize_pairs(ratios, &paired_settings())?;
    Ok(Some(Estimate {
        percent: kdelta_stats::log_to_percent(summary.median_log),
        interval: summary.interval_log.map(percent_interval),
        seed_range: Some(seed_range(&summary)),
        p: summary.p,
        n: summary.n,
        exact: summary.exact,
        seed_share_percent: None,
        ruled_out_percent: None,
        detectable_percent: None,
    }))
}

fn estimate_of_pairs(
    summary: &PairedSummary,
    decision: &Decision,
    margin_log: f64,
) -> Result<Estimate, StatsError> {
    let agree = summary.n >= SEEDS_FOR_SHARE && (summary.same_sign || summary.all_inside(margin_log));
    let detectable = match summary.sd_log {
        Some(sd) if sd > 0.0 => Some(kdelta_stats::minimum_detectable_log(sd, summary.n, Design::Paired)?),
        _ => None,
    };
    Ok(Estimate {
        percent: kdelta_stats::log_to_percent(summary.median_log),
        interval: summary.interval_log.map(percent_interval),
        seed_range: Some(seed_range(summary)),
        p: summary.p,
        n: summary.n,
        exact: summary.exact,
        seed_share_percent: agree.then_some(100.0 * summary.share_of_seeds_lower_bound),
        ruled_out_percent: decision.ruled_out_log.map(kdelta_stats::log_to_percent),
        detectable_percent: detectable.map(kdelta_stats::log_to_percent),
    })
}

fn seed_range(summary: &PairedSummary) -> (f64, f64) {
    (kdelta_stats::log_to_percent(summary.min_log), kdelta_stats::log_to_percent(summary.max_log))
}

fn percent_interval(interval: Interval) -> (f64, f64) {
    (kdelta_stats::log_to_percent(interval.low), kdelta_stats::log_to_percent(interval.high))
}

fn verdict(decision: &Decision) -> Verdict {
    match decision.call {
        Call::Identical => Verdict::Identical,
        Call::Regression { beyond_margin } => Verdict::Regression { beyond_margin },
        Call::Improvement { beyond_margin } => Verdict::Improvement { beyond_margin },
        Call::Equivalent { shift_likely } => Verdict::Equivalent { shift_likely },
        Call::Inconclusive { more, .. } => {
            Verdict::Inconclusive { more_boots: more, within_placebo: decision.within_placebo }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a session has at most thousands of boots")]
fn cell(values: &[BootValue]) -> Cell {
    let numbers: Vec<f64> = values.iter().map(|value| value.value).collect();
    if numbers.is_empty() {
        return Cell::default();
    }
    let rounds = || values.iter().flat_map(|value| value.rounds.iter().copied());
    Cell {
        boots: values.iter().map(|value| (value.seed, value.value)).collect(),
        mean: numbers.iter().sum::<f64>() / numbers.len() as f64,
        round_min: rounds().fold(f64::INFINITY, f64::min),
        round_max: rounds().fold(f64::NEG_INFINITY, f64::max),
        sd: sd(&numbers),
    }
}

/// Standard deviation with n-1; 0 for fewer than two values.
#[expect(clippy::cast_precision_loss, reason = "a session has at most thousands of boots")]
fn sd(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

fn spread_ratio(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (sd(one), sd(other));
    let (small, large) = (one.min(other), one.max(other));
    if small > 0.0 { large / small } else { 1.0 }
}

fn unit(mode: MeasureMode) -> Unit {
    Unit::of(clock(mode))
}

/// What a tick is in `mode`.
#[must_use]
pub fn clock(mode: MeasureMode) -> Clock {
    match mode {
        MeasureMode::Instructions => Clock::Instructions,
        MeasureMode::Wall => Clock::Nanoseconds,
    }
}

#[cfg(test)]
mod tests;
