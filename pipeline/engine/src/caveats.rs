//! What a reader must know before believing a report: made from the record alone. Read [`list`]
//! first; rule numbers are those of the methodology (docs/method.md).

use std::collections::BTreeSet;

use kdelta_model::{BootPurpose, Determinism, MeasureMode, MetricKind, Outcome, RunRecord};

/// Steal above this share of CPU time makes wall time untrustworthy (methodology M33), in percent.
const STEAL_LIMIT: f64 = 1.0;
/// Fewest seeds that carry a test (statistics.md, section 6.4).
const TESTABLE_SEEDS: usize = 8;

/// The caveats of `record`, most important first.
#[must_use]
pub fn list(record: &RunRecord) -> Vec<String> {
    let mut caveats = Vec::new();
    caveats.extend(failures(record));
    caveats.extend(mode(record));
    caveats.extend(kernels(record));
    caveats.extend(sample(record));
    caveats.extend(aged(record));
    caveats.extend(scope(record));
    caveats
}

fn failures(record: &RunRecord) -> Vec<String> {
    let mut caveats = Vec::new();
    let missing = record.plan.boots.len() - record.boots.len().min(record.plan.boots.len());
    if missing > 0 {
        caveats.push(format!(
            "{missing} planned boots were not done: their arm failed too often, or the run was stopped."
        ));
    }
    let host = record.boots.iter().filter(|boot| matches!(boot.outcome, Outcome::HostFailed { .. })).count();
    if host > 0 {
        caveats
            .push(format!("{host} boots failed by fault of the host and are not evidence about any kernel."));
    }
    let warned: BTreeSet<&str> = record
        .boots
        .iter()
        .flat_map(|boot| boot.console.iter().filter(|finding| !finding.fatal))
        .map(|finding| finding.title.as_str())
        .collect();
    caveats.extend(warned.into_iter().map(|title| format!("The kernel complained while it booted: {title}")));
    caveats
}

fn mode(record: &RunRecord) -> Vec<String> {
    let mut caveats = Vec::new();
    match record.measure.mode {
        MeasureMode::Instructions => {
            caveats.push(
                "Instruction counts do not see cache misses, branch mispredictions, lock contention between real \
                 CPUs, or the speed of a device. A change here is a change in work done, not in time."
                    .to_owned(),
            );
            if record.plan.arms.iter().any(|arm| arm.guest.cpus > 1) {
                caveats.push(
                    "More than one virtual CPU shares one count: parallel speed is not modelled.".to_owned(),
                );
            }
        }
        MeasureMode::Wall => {
            let worst = record.boots.iter().map(|boot| boot.steal_percent).fold(0.0, f64::max);
            if worst > STEAL_LIMIT {
                caveats
                    .push(format!("Up to {worst:.1} % of CPU time was stolen from this host during a boot."));
            }
            if record.host.governor != "performance" {
                caveats
                    .push(format!("The frequency governor was {}, not performance.", record.host.governor));
            }
        }
    }
    if record.plan.arms.iter().any(|arm| arm.guest.disk.is_served_by_host()) {
        caveats.push(
            "The disk is emulated by threads of the host: its completions arrive at moments that no seed fixes, and \
             it has no device's speed. A disk of type ram gives exact counts."
                .to_owned(),
        );
    }
    if record.comparisons.iter().any(|c| c.primary && c.metric.kind == MetricKind::Cpu) {
        caveats.push(
            "Verdicts marked cpu count the workload's own process: what kernel threads do for it, such as writeback, \
             is not in them."
                .to_owned(),
        );
    }
    let differs = |d: &Determinism| matches!(d, Determinism::Differs { .. });
    if record.measure.mode == MeasureMode::Instructions
        && record.comparisons.iter().any(|comparison| comparison.primary && differs(&comparison.determinism))
    {
        caveats.push(
            "Repeated boots of one seed differed: judged as noisy data, the boot as the unit.".to_owned(),
        );
    }
    if record.measure.mode == MeasureMode::Instructions
        && record.comparisons.iter().any(|c| c.primary && c.determinism == Determinism::NotChecked)
    {
        caveats.push("Determinism was not checked (repeats: 0).".to_owned());
    }
    caveats
}

fn kernels(record: &RunRecord) -> Vec<String> {
    let mut caveats = Vec::new();
    let debug: BTreeSet<&str> =
        record.kernels.iter().flat_map(|kernel| kernel.debug_options.iter().map(String::as_str)).collect();
    if !debug.is_empty() {
        let names: Vec<&str> = debug.into_iter().collect();
        caveats.push(format!(
            "Debug options distort the numbers: {}. Repeat without them before believing a headline.",
            names.join(", ")
        ));
    }
    if !record.config_differences.is_empty() {
        caveats.push(
            "The kernels' configurations differ (see Identity): a change may come from an option, not from the source."
                .to_owned(),
        );
    }
    let sources: BTreeSet<&str> =
        record.kernels.iter().map(|kernel| kernel.source_digest.0.as_str()).collect();
    if sources.len() > 1 {
        caveats.push(
            "The kernels come from different sources: the change is that between two releases, not that of one patch."
                .to_owned(),
        );
    }
    if record.kernels.iter().any(|kernel| kernel.config_digest.is_none()) {
        caveats.push("Ready-made kernels: their configurations and compilers were not compared.".to_owned());
    }
    caveats
}

fn sample(record: &RunRecord) -> Vec<String> {
    let mut caveats = Vec::new();
    let placebos = record.boots.iter().any(|boot| boot.purpose == BootPurpose::Placebo);
    let kernels_differ = record
        .plan
        .pairs
        .iter()
        .any(|pair| record.plan.arms[pair.base].kernel != record.plan.arms[pair.arm].kernel);
    if record.measure.mode == MeasureMode::Instructions && kernels_differ && !placebos {
        caveats.push(
            "No placebo was booted: how far a change of layout alone moves the counts is not known here."
                .to_owned(),
        );
    }
    let seeds =
        record.comparisons.iter().filter_map(|comparison| comparison.estimate.as_ref()).map(|e| e.n).min();
    if let (MeasureMode::Instructions, Some(seeds)) = (record.measure.mode, seeds)
        && seeds < TESTABLE_SEEDS
    {
        caveats.push(format!("{seeds} seeds: exact for these, but too few for a test where seeds differ."));
    }
    caveats
}

/// What is said of a used filesystem holds for that one.
fn aged(record: &RunRecord) -> Vec<String> {
    let images: BTreeSet<&str> =
        record.arms.iter().filter_map(|arm| arm.aged.as_ref()).map(|image| image.digest.short()).collect();
    if images.is_empty() {
        return Vec::new();
    }
    let digests: Vec<&str> = images.into_iter().collect();
    vec![format!(
        "Rounds start from a used filesystem (image {}): nothing is said of ones that were used otherwise or \
         for longer.",
        digests.join(", ")
    )]
}

fn scope(record: &RunRecord) -> Vec<String> {
    let filesystems: BTreeSet<&str> = record.plan.arms.iter().map(|arm| arm.filesystem.kind.name()).collect();
    let workloads: BTreeSet<&str> = record
        .plan
        .arms
        .iter()
        .flat_map(|arm| arm.scenarios.iter().map(|scenario| scenario.workload.as_str()))
        .collect();
    let list = |set: BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(", ");
    vec![format!(
        "Scope: {} on {}, at the parameters listed. Nothing is said of other workloads, filesystems or sizes.",
        list(workloads),
        list(filesystems)
    )]
}

#[cfg(test)]
mod tests {
    use kdelta_model::MeasureMode::{Instructions, Wall};

    use super::*;
    use crate::testing::{TWO_ARMS, boots, record};

    /// Caveats of a run on xfs on this disk that hold `words`.
    fn about(disk: &str, mode: MeasureMode, words: &str) -> usize {
        let settings = format!("settings: {{disk: {{type: {disk}}}, filesystem: {{type: xfs}}}}");
        let yaml = TWO_ARMS.replace("settings: {filesystem: {type: tmpfs}}", &settings);
        let mut record = record(&yaml, mode);
        record.boots = boots(&record.plan, |_, _, _| 800.0);
        crate::run::judge(&mut record).expect("finite numbers");
        record.caveats.iter().filter(|caveat| caveat.contains(words)).count()
    }

    #[test]
    fn a_verdict_about_the_process_s_own_count_says_what_is_not_in_it() {
        let words = "what kernel threads do for it, such as writeback, is not in them";
        assert_eq!(about("nvme", Instructions, words), 1);
        assert_eq!(about("virtio-blk", Instructions, words), 1);
        assert_eq!(about("ram", Instructions, words), 0);
        assert_eq!(about("nvme", Wall, words), 0);
        assert_eq!(about("nvme", Wall, "The disk is emulated by threads of the host"), 1);
    }
}
