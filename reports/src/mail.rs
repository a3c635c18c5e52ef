//! The text report, section by section: verdicts first, then the tables that they rest on, then
//! identity, audit, hardware and caveats. Read [`text`] first.

use kdelta_model::{
    BootPurpose, BootRecord, Cell, Comparison, Determinism, Direction, Factorial, Gate, GateState,
    KernelIdentity, MeasureMode, MetricKind, Outcome, RunRecord, Verdict,
};
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use crate::number;
use crate::table::{Align, Table, wrap};

/// Why a report could not be rendered.
#[derive(Debug, thiserror::Error)]
#[error("the report template cannot be rendered: {0:#}")]
pub struct ReportError(#[from] minijinja::Error);

const TEMPLATE: &str = include_str!("../../templates/mail/report.txt");

/// One section of the report.
#[derive(Serialize)]
struct Section {
    title: String,
    note: String,
    table: String,
}

/// What the template is given.
#[derive(Serialize)]
struct Page {
    environment: String,
    title: String,
    question: String,
    verdicts: String,
    sections: Vec<Section>,
}

impl Section {
    fn new(title: &str, note: &str, table: &Table) -> Option<Self> {
        if table.is_empty() {
            return None;
        }
        Some(Self { title: title.to_owned(), note: wrap(note, "", ""), table: table.render() })
    }
}

/// The report as plain text: ASCII, at most 72 columns outside tables.
///
/// # Errors
/// When the template cannot be rendered, which is a fault of this crate.
pub fn text(record: &RunRecord) -> Result<String, ReportError> {
    let mut sections: Vec<Section> = Vec::new();
    sections.extend(factorials(record));
    sections.extend(sandwich(record));
    sections.extend(split(record));
    sections.extend(setups(record));
    sections.extend(identity(record));
    sections.extend(audit(record));
    sections.extend(gates(record));
    sections.extend(findings(record));
    sections.extend(hardware(record));
    sections.extend(method(record));
    sections.extend(caveats(record));
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let rendered = environment.render_str(
        TEMPLATE,
        minijinja::value::Serde(Page {
            environment: environment_line(record),
            title: format!("kdelta: {}", record.experiment.name),
            question: wrap(&record.experiment.description, "", ""),
            verdicts: verdicts(record),
            sections,
        }),
    )?;
    Ok(ascii(&rendered).trim_end().to_owned() + "\n")
}

/// Kernel lists want plain ASCII; what came from outside may hold anything.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if c == '\n' || (' '..='~').contains(&c) { c } else { '?' }).collect()
}

/// Accelerator, why, machine class.
fn environment_line(record: &RunRecord) -> String {
    let measure = &record.measure;
    let guest = record.plan.arms.first().map(|arm| {
        let guest = &arm.guest;
        format!("guest with {} CPU(s), {}, disk {}", guest.cpus, guest.memory, guest.disk)
    });
    let what = match measure.mode {
        MeasureMode::Instructions => "counts instructions, not time",
        MeasureMode::Wall => "measures wall time",
    };
    let line = format!("{} ({}): {what}; {}", measure.accelerator, measure.reason, guest.unwrap_or_default());
    wrap(&line, "", "")
}

fn arm_name(record: &RunRecord, arm: usize) -> &str {
    record.plan.arms.get(arm).map_or("?", |arm| arm.name.as_str())
}

/// What stands at the top of the report: how it was measured, and the verdicts.
#[must_use]
pub fn summary(record: &RunRecord) -> String {
    ascii(&format!("{}\n\n{}", environment_line(record), verdicts(record)))
}

/// One paragraph per primary comparison, after one that says what they count if that is not elapsed.
fn verdicts(record: &RunRecord) -> String {
    let primary = record.comparisons.iter().filter(|comparison| comparison.primary);
    let list: Vec<String> = primary.map(|comparison| verdict(record, comparison)).collect();
    if list.is_empty() {
        let failed = record.boots.iter().find(|boot| boot.outcome != Outcome::Completed);
        let failed = failed.map(|boot| format!(" Boot {} failed: {}", boot.index, boot.outcome.message()));
        let text = "VERDICT: none, nothing was compared.".to_owned() + &failed.unwrap_or_default();
        return wrap(&text, "", "    ");
    }
    judged_count(record).into_iter().chain([list.join("\n")]).collect::<Vec<_>>().join("\n\n")
}

/// Which count verdicts are about, and why, where it is not elapsed.
fn judged_count(record: &RunRecord) -> Option<String> {
    let mut disks: Vec<String> = Vec::new();
    let of_cpu = |c: &&Comparison| c.primary && c.metric.kind == MetricKind::Cpu;
    for comparison in record.comparisons.iter().filter(of_cpu) {
        for arm in [comparison.base, comparison.arm].iter().filter_map(|arm| record.plan.arms.get(*arm)) {
            let disk = &arm.guest.disk;
            let name = disk.kind_name().to_owned();
            if disk.is_served_by_host() && !disks.contains(&name) {
                disks.push(name);
            }
        }
    }
    if disks.is_empty() {
        return None;
    }
    let text = format!(
        "Verdicts marked cpu are about the instructions of the workload's own process. Elapsed counts are no \
         measure on a disk of type {}: threads of the host serve it, and while the guest waits for them its clock \
         jumps to the next timer.",
        disks.join(" or ")
    );
    Some(wrap(&text, "", ""))
}

fn verdict(record: &RunRecord, comparison: &Comparison) -> String {
    let margin = record.plan.margin_percent;
    let change = comparison.estimate.as_ref().map(number::estimate).unwrap_or_default();
    let head = wrap(&format!("{}: {} {change}", comparison.verdict.name(), comparison.metric), "", "    ");
    let meaning = match &comparison.verdict {
        Verdict::Identical => "not one instruction of difference at any seed".to_owned(),
        Verdict::Regression { beyond_margin } | Verdict::Improvement { beyond_margin } => match beyond_margin
        {
            true => format!("the whole interval is beyond the margin of {margin} %"),
            false => format!("it may be smaller than the margin of {margin} %"),
        },
        Verdict::Equivalent { shift_likely: false } => format!("no change larger than {margin} %"),
        Verdict::Equivalent { shift_likely: true } => {
            format!("no change larger than {margin} %; a smaller shift is likely")
        }
        Verdict::Inconclusive { within_placebo: true, .. } => "within placebo scatter".to_owned(),
        Verdict::Inconclusive { more_boots: Some(more), .. } => {
            format!("needs about {more} more boots per arm")
        }
        Verdict::Inconclusive { more_boots: None, .. } => {
            "more boots are not expected to decide it".to_owned()
        }
        Verdict::Invalid { reason } => reason.clone(),
    };
    let arms = format!("{} against {}", arm_name(record, comparison.arm), arm_name(record, comparison.base));
    let mut facts = vec![arms, meaning];
    if let Some(estimate) = &comparison.estimate {
        facts.push(match record.measure.mode {
            MeasureMode::Instructions if estimate.seed_range.is_some() => format!("{} seeds", estimate.n),
            _ => format!("{} boots per arm", estimate.n),
        });
        facts.extend(estimate.p.map(|p| format!("p {p:.4}")));
        facts.extend(
            estimate
                .ruled_out_percent
                .filter(|limit| *limit != 0.0)
                .map(|limit| format!("ruled out: beyond +-{}", bare_percent(limit))),
        );
        facts.extend(
            estimate.detectable_percent.map(|limit| format!("detectable from {}", bare_percent(limit))),
        );
        facts.extend(
            estimate
                .seed_share_percent
                .map(|share| format!("all seeds agree: so do at least {share:.0} % of all seeds (95 %)")),
        );
    }
    facts.extend(comparison.placebo_percent.map(|limit| format!("placebo up to {}", bare_percent(limit))));
    format!("{head}\n{}", wrap(&facts.join("; "), "    ", "    "))
}

/// A size without its sign.
fn bare_percent(number: f64) -> String {
    number::percent(number.abs()).trim_start_matches('+').to_owned()
}

/// R1: parent, child, parent again.
fn sandwich(record: &RunRecord) -> Vec<Section> {
    let mut sections = Vec::new();
    for comparison in record.comparisons.iter().filter(|comparison| comparison.primary) {
        let mut table = Table::new(&[
            ("state", Align::Left),
            ("boots", Align::Decimal),
            (comparison.unit.name(), Align::Decimal),
            ("range of rounds", Align::Left),
            ("sd", Align::Decimal),
            ("vs parent", Align::Left),
        ]);
        let change = comparison
            .estimate
            .as_ref()
            .map(|estimate| number::percent(estimate.percent))
            .unwrap_or_default();
        table.row(state("parent A", &comparison.base_cell, String::new()));
        table.row(state("child", &comparison.arm_cell, change));
        let again = match &comparison.determinism {
            Determinism::NotChecked => None,
            Determinism::Identical => Some("same seed: same bits, drift 0".to_owned()),
            Determinism::Differs { ppm } => Some(format!("same seed differs by {ppm} ppm")),
        };
        if let Some(again) = again {
            let repeats = record
                .boots
                .iter()
                .filter(|boot| boot.purpose == BootPurpose::Repeat && boot.arm == comparison.base)
                .count();
            let none = String::new;
            table.row(["parent B".to_owned(), repeats.to_string(), none(), none(), none(), again]);
        }
        let title = format!("{}: parent, child, parent", comparison.metric);
        let direction = match comparison.direction {
            Direction::LowerIsBetter => "lower is better",
            Direction::HigherIsBetter => "higher is better",
        };
        let (parent, child) = (arm_name(record, comparison.base), arm_name(record, comparison.arm));
        let roles = match (parent, child) {
            ("parent", "child") => String::new(),
            _ => format!("parent = {parent}, child = {child}; "),
        };
        let note =
            format!("{roles}{direction}; mean of boot values (midmean of rounds); ranges skip the warm-up");
        sections.extend(Section::new(&title, &note, &table));
    }
    sections
}

/// One row of a parent, child, parent table.
fn state(name: &str, cell: &Cell, change: String) -> Vec<String> {
    if cell.boots.is_empty() {
        return vec![name.to_owned(), "0".to_owned()];
    }
    vec![
        name.to_owned(),
        cell.boots.len().to_string(),
        number::value(cell.mean),
        format!("{}..{}", number::value(cell.round_min), number::value(cell.round_max)),
        number::spread(cell.sd),
        change,
    ]
}

/// R3: change x feature.
fn factorials(record: &RunRecord) -> Vec<Section> {
    record.factorials.iter().filter_map(factorial).collect()
}

fn factorial(factorial: &Factorial) -> Option<Section> {
    let (change, before, after) = &factorial.change;
    let (feature, off, on) = &factorial.feature;
    let mut table = Table::new(&[
        (factorial.unit.name(), Align::Left),
        (before, Align::Decimal),
        (after, Align::Decimal),
        (&format!("{change} effect"), Align::Left),
    ]);
    let [before_off, before_on, after_off, after_on] = &factorial.cells;
    let text = |estimate: &Option<kdelta_model::Estimate>| {
        estimate.as_ref().map(number::estimate).unwrap_or_default()
    };
    let point = |estimate: &Option<kdelta_model::Estimate>| {
        estimate.as_ref().map(|estimate| number::percent(estimate.percent)).unwrap_or_default()
    };
    table.row([
        format!("{off} (control)"),
        number::value(before_off.mean),
        number::value(after_off.mean),
        text(&factorial.effect_off),
    ]);
    table.row([
        on.clone(),
        number::value(before_on.mean),
        number::value(after_on.mean),
        text(&factorial.effect_on),
    ]);
    let recovered = match factorial.recovered_percent {
        Some(share) => format!("{share:.0} % of the cost recovered"),
        None => String::new(),
    };
    table.row([
        format!("cost of {feature}"),
        point(&factorial.cost_before),
        point(&factorial.cost_after),
        recovered,
    ]);
    let mut rendered = table.render();
    if let Some(interaction) = &factorial.interaction {
        let ratio = 1.0 + interaction.percent / 100.0;
        rendered.push_str(&format!(
            "\n  interaction ({on}/{off} after, over before): {ratio:.4}, {}",
            number::estimate(interaction)
        ));
        rendered.push_str(&format!("\n  n = {} boots per cell, compared seed by seed", interaction.n));
    }
    Some(Section {
        title: format!("{}: {change} x {feature}", factorial.metric),
        note: String::new(),
        table: rendered,
    })
}

/// Conditions of valid measurement: those that are not met with what to do, the others as a list.
fn gates(record: &RunRecord) -> Option<Section> {
    /// More of one rule are counted, not listed.
    const LISTED: usize = 3;
    if record.gates.is_empty() {
        return None;
    }
    let mut rules: Vec<&str> = record.gates.iter().map(|gate| gate.rule.as_str()).collect();
    rules.dedup();
    let of = |rule: &str, state: GateState| -> Vec<&Gate> {
        record.gates.iter().filter(|gate| gate.rule == rule && gate.state == state).collect()
    };
    let mut lines = Vec::new();
    for rule in &rules {
        for state in [GateState::Void, GateState::Missed, GateState::Noted] {
            let gates = of(rule, state);
            for gate in gates.iter().take(LISTED) {
                let text = format!("{rule} {}: {}: {}", state.name(), gate.subject, gate.finding);
                lines.push(wrap(&text, "", "    "));
            }
            if gates.len() > LISTED {
                lines.push(format!("    and {} more of {rule}", gates.len() - LISTED));
            }
            lines.extend(gates.first().map(|gate| wrap(&format!("-> {}", gate.next), "    ", "       ")));
        }
    }
    let whole = |state: GateState| -> Vec<&str> {
        let all = |rule: &&&str| record.gates.iter().all(|gate| gate.rule != ***rule || gate.state == state);
        rules.iter().filter(all).copied().collect()
    };
    for (words, state) in [("met", GateState::Met), ("not measured", GateState::NotMeasured)] {
        let names = whole(state);
        if !names.is_empty() {
            lines.push(wrap(&format!("{words}: {}", names.join(", ")), "", "    "));
        }
    }
    Some(Section { title: "Gates".to_owned(), note: String::new(), table: lines.join("\n") })
}

/// The counts beside those that verdicts are about.
fn split(record: &RunRecord) -> Option<Section> {
    let mut table = Table::new(&[
        ("metric", Align::Left),
        ("parent", Align::Decimal),
        ("child", Align::Decimal),
        ("change", Align::Left),
        ("child", Align::Left),
    ]);
    let mut unit = "";
    let judged = |c: &&Comparison| !c.primary && c.estimate.is_some();
    for comparison in record.comparisons.iter().filter(judged) {
        unit = comparison.unit.name();
        let change = comparison.estimate.as_ref().map(number::estimate).unwrap_or_default();
        table.row([
            comparison.metric.to_string(),
            number::value(comparison.base_cell.mean),
            number::value(comparison.arm_cell.mean),
            change,
            arm_name(record, comparison.arm).to_owned(),
        ]);
    }
    let note = format!(
        "{unit}; exploratory, no verdict. A phase alone is elapsed, cpu is the workload's own process; sys and user \
         are sampled at timer ticks, so they are coarse where a phase is short."
    );
    Section::new("Where it went", &note, &table)
}

/// How filesystems were made and mounted, once per arm.
fn setups(record: &RunRecord) -> Option<Section> {
    let mut text = String::new();
    let mut seen = Vec::new();
    for (index, arm) in record.plan.arms.iter().enumerate().filter(|(_, arm)| arm.placebo_of.is_none()) {
        let Some(setup) =
            record.boots.iter().filter(|boot| boot.arm == index).find_map(|boot| boot.setups.first())
        else {
            continue;
        };
        let image = record.arms.get(index).and_then(|arm| arm.aged.as_ref()).map(|image| &image.digest);
        let known = (setup.mkfs_output.as_str(), setup.mount_line.as_str(), image);
        if seen.contains(&known) {
            continue;
        }
        seen.push(known);
        let arguments: Vec<&str> = arm.filesystem.mkfs.iter().map(String::as_str).collect();
        let log = arm.filesystem.log.as_ref();
        let log =
            log.map_or(String::new(), |log| format!(", log of {} on a disk of its own", mib(log.bytes)));
        match arm.filesystem.kind.mkfs() {
            Some(_) => text.push_str(&format!(
                "  {}: mkfs.{} {}{log}\n",
                arm.name,
                arm.filesystem.kind,
                arguments.join(" ")
            )),
            None => text.push_str(&format!("  {}:\n", arm.name)),
        }
        let mut output = setup.mkfs_output.as_str();
        if let (Some(aging), Some(image)) =
            (&arm.aged, record.arms.get(index).and_then(|arm| arm.aged.as_ref()))
        {
            output = &image.mkfs_output;
            let line = format!(
                "every round starts from {aging}: image {}, {} in use, made once by the kernel {}",
                image.digest.short(),
                mib(image.bytes),
                image.kernel.short()
            );
            text.push_str(&wrap(&line, "    ", "    "));
            text.push('\n');
        }
        for line in output.lines() {
            text.push_str(&format!("    {}\n", line.trim_end().replace('\t', "    ")));
        }
        text.push_str(&format!("    mounted: {}\n", setup.mount_line));
    }
    let text = text.trim_end().to_owned();
    (!text.is_empty()).then(|| Section { title: "Filesystems".to_owned(), note: String::new(), table: text })
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// R7: what is the same and what is not.
fn identity(record: &RunRecord) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut shown: Vec<(usize, usize)> = Vec::new();
    for comparison in &record.comparisons {
        let (Some(base), Some(arm)) =
            (record.plan.arms.get(comparison.base), record.plan.arms.get(comparison.arm))
        else {
            continue;
        };
        let kernels = (base.kernel, arm.kernel);
        if shown.contains(&kernels) {
            continue;
        }
        let (Some(one), Some(other)) = (record.kernels.get(base.kernel), record.kernels.get(arm.kernel))
        else {
            continue;
        };
        shown.push(kernels);
        let table = identity_table(record, (comparison.base, one), (comparison.arm, other), kernels);
        let title = format!("Identity: {} and {}", base.name, arm.name);
        let note = "\"differs\" is expected of the source or its patches, and of what follows from them.";
        sections.extend(Section::new(&title, note, &table));
    }
    sections
}

fn identity_table(
    record: &RunRecord,
    (base_arm, base): (usize, &KernelIdentity),
    (other_arm, other): (usize, &KernelIdentity),
    kernels: (usize, usize),
) -> Table {
    let mut table = Table::new(&[
        ("field", Align::Left),
        ("parent", Align::Left),
        ("child", Align::Left),
        ("", Align::Left),
    ]);
    let mut field = |name: &str, one: String, other: String| {
        let word = if one == other { "same" } else { "differs" };
        let other = if one == other { "=".to_owned() } else { other };
        table.row([name.to_owned(), one, other, word.to_owned()]);
    };
    let none = || "none".to_owned();
    field("source", base.source.clone(), other.source.clone());
    field("source digest", base.source_digest.short().to_owned(), other.source_digest.short().to_owned());
    if base.commit.is_some() || other.commit.is_some() {
        let commit = |identity: &KernelIdentity| {
            identity.commit.as_deref().map_or_else(none, |id| id.get(..12).unwrap_or(id).to_owned())
        };
        field("commit", commit(base), commit(other));
    }
    let patches = |identity: &KernelIdentity| match identity.patches.len() {
        0 => none(),
        count => format!("{count}, {}", identity.patch_digest.as_ref().map_or("", |digest| digest.short())),
    };
    field("patches", patches(base), patches(other));
    let config = |identity: &KernelIdentity| {
        identity.config_digest.as_ref().map_or_else(none, |digest| digest.short().to_owned())
    };
    field("config", config(base), config(other));
    field("release", base.release.clone(), other.release.clone());
    field("build stamp", base.build_stamp.clone(), other.build_stamp.clone());
    field("image", base.image_digest.short().to_owned(), other.image_digest.short().to_owned());
    let build_id = |identity: &KernelIdentity| {
        identity.build_id.as_deref().map_or_else(none, |id| id.get(..12).unwrap_or(id).to_owned())
    };
    field("build id", build_id(base), build_id(other));
    if let (Some(one), Some(other)) = (record.arms.get(base_arm), record.arms.get(other_arm)) {
        field("init", one.init_digest.short().to_owned(), other.init_digest.short().to_owned());
        field(
            "initramfs",
            one.initramfs_digest.short().to_owned(),
            other.initramfs_digest.short().to_owned(),
        );
        let digest =
            |text: &str| if text.len() > 24 { format!("{} characters", text.len()) } else { text.to_owned() };
        field(
            "command line",
            digest(&one.cmdline),
            if one.cmdline == other.cmdline {
                digest(&one.cmdline)
            } else {
                format!("{}, other", digest(&other.cmdline))
            },
        );
    }
    let compiler = if base.compiler == other.compiler {
        base.compiler.clone()
    } else {
        format!("{} / {}", base.compiler, other.compiler)
    };
    table.row([
        "compiler".to_owned(),
        compiler,
        String::new(),
        if base.compiler == other.compiler { "same" } else { "differs" }.to_owned(),
    ]);
    for difference in record.config_differences.iter().filter(|entry| (entry.base, entry.kernel) == kernels) {
        for line in &difference.lines {
            table.row(["config line", line.as_str(), "", "differs"]);
        }
    }
    for (who, identity) in [("parent", base), ("child", other)] {
        for (number, subject) in identity.patches.iter().enumerate() {
            let shown: String = subject.chars().take(50).collect();
            table.row([format!("{who} patch {}", number + 1), shown]);
        }
    }
    table
}

/// R8: every boot.
fn audit(record: &RunRecord) -> Option<Section> {
    let primary =
        record.comparisons.iter().find(|comparison| comparison.primary).map(|comparison| &comparison.metric);
    let mut table = Table::new(&[
        ("#", Align::Decimal),
        ("arm", Align::Left),
        ("role", Align::Left),
        ("seed", Align::Decimal),
        ("rounds", Align::Decimal),
        ("failed", Align::Decimal),
        ("load", Align::Decimal),
        ("cpu s", Align::Decimal),
        ("outcome", Align::Left),
        ("values of measured rounds", Align::Left),
    ]);
    for boot in &record.boots {
        let values = primary.map(|metric| round_values(boot, metric)).unwrap_or_default();
        table.row([
            boot.index.to_string(),
            arm_name(record, boot.arm).to_owned(),
            role(boot.purpose).to_owned(),
            boot.seed.to_string(),
            boot.rounds.len().to_string(),
            failed_checks(boot).to_string(),
            format!("{:.1}", boot.load_before),
            format!("{:.1}", boot.host_cpu_seconds),
            boot.outcome.name().to_owned(),
            values,
        ]);
    }
    let metric = primary
        .map(|metric| format!("values: {metric}; all others are in the run record"))
        .unwrap_or_default();
    Section::new("Run audit", &metric, &table)
}

fn round_values(boot: &BootRecord, metric: &kdelta_model::Metric) -> String {
    let values: Vec<String> = boot
        .rounds
        .iter()
        .filter(|round| round.scenario == metric.scenario && !round.warmup)
        .flat_map(|round| &round.phases)
        .filter(|phase| phase.name == metric.phase)
        .filter_map(|phase| metric.kind.value(phase))
        .map(|value| format!("{value:.2}"))
        .collect();
    values.join(" ")
}

fn role(purpose: BootPurpose) -> &'static str {
    match purpose {
        BootPurpose::Unmeasured => "unmeasured",
        BootPurpose::Sample => "sample",
        BootPurpose::Repeat => "repeat",
        BootPurpose::Placebo => "placebo",
    }
}

fn failed_checks(boot: &BootRecord) -> usize {
    boot.rounds.iter().flat_map(|round| &round.checks).filter(|check| !check.passed).count()
}

/// What went wrong in boots: failures with their console text.
fn findings(record: &RunRecord) -> Option<Section> {
    /// Lines of a console that a mail can bear.
    const SHOWN: usize = 24;
    let mut text = String::new();
    for boot in record.boots.iter().filter(|boot| boot.outcome != Outcome::Completed) {
        text.push_str(&format!(
            "  boot {} ({}): {}\n",
            boot.index,
            arm_name(record, boot.arm),
            boot.outcome.message()
        ));
        for line in boot
            .console
            .iter()
            .filter(|finding| finding.fatal)
            .take(1)
            .flat_map(|finding| finding.text.lines())
            .take(SHOWN)
        {
            text.push_str(&format!("    | {line}\n"));
        }
    }
    let text = text.trim_end().to_owned();
    (!text.is_empty()).then(|| Section { title: "Failed boots".to_owned(), note: String::new(), table: text })
}

/// R15: hardware and guest.
fn hardware(record: &RunRecord) -> Option<Section> {
    let host = &record.host;
    let mut lines = vec![
        format!(
            "host: {}, {} CPU(s), {} socket(s), {} NUMA node(s), {} MiB; linux {}; governor {}; turbo {}; load {:.1} at the start",
            host.cpu_model,
            host.cpus,
            host.sockets,
            host.numa_nodes,
            host.memory_mib,
            host.kernel,
            host.governor,
            host.turbo.map_or("unknown", |on| if on { "on" } else { "off" }),
            host.load
        ),
        format!("QEMU: {}", record.measure.qemu),
    ];
    let mut guests: Vec<String> = Vec::new();
    for arm in record.plan.arms.iter().filter(|arm| arm.placebo_of.is_none()) {
        let guest = format!("{} CPU(s), {}, disk {}", arm.guest.cpus, arm.guest.memory, arm.guest.disk);
        if !guests.contains(&guest) {
            guests.push(guest);
        }
    }
    lines.push(format!("guest: {}", guests.join(" / ")));
    if let Some(arm) = record.arms.first() {
        lines.push(format!("guest command line: {}", arm.cmdline));
        if !arm.userland.is_empty() {
            lines.push(format!("guest programs: {}", arm.userland.join(" ")));
        }
    }
    if let Some(hello) = record.boots.iter().find_map(|boot| boot.hello.as_ref()) {
        lines.push(format!("guest clock source: {}", hello.clocksource));
    }
    let table = lines.iter().map(|line| wrap(line, "  ", "    ")).collect::<Vec<_>>().join("\n");
    Some(Section { title: "Hardware".to_owned(), note: String::new(), table })
}

/// What was done, and how to do it again.
fn method(record: &RunRecord) -> Option<Section> {
    let scenarios: Vec<String> = record.plan.arms.first().map_or(Vec::new(), |arm| {
        arm.scenarios
            .iter()
            .map(|scenario| {
                let parameters: Vec<String> =
                    scenario.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!(
                    "{} on {}: {}; {} warm-up and {} measured rounds per boot, filesystem {} for each",
                    scenario.workload,
                    arm.filesystem.kind,
                    parameters.join(" "),
                    scenario.warmup,
                    scenario.rounds,
                    if arm.aged.is_some() { "put back" } else { "made afresh" }
                )
            })
            .collect()
    });
    let mut lines = scenarios;
    lines.push(format!(
        "{} boots, plan {} fixed before the first boot, session seed {}, margin {} %, alpha 0.05",
        record.plan.boots.len(),
        record.plan_digest.short(),
        record.plan.seed,
        record.plan.margin_percent
    ));
    lines.push(format!("started {}, kdelta {}", record.started, record.kdelta));
    lines.push(format!("again: {}", record.experiment.command));
    let table = lines.iter().map(|line| wrap(line, "  ", "    ")).collect::<Vec<_>>().join("\n");
    Some(Section { title: "Method".to_owned(), note: String::new(), table })
}

/// R16.
fn caveats(record: &RunRecord) -> Option<Section> {
    let list: Vec<String> = record.caveats.iter().map(|caveat| wrap(caveat, "  - ", "    ")).collect();
    (!list.is_empty()).then(|| Section {
        title: "Caveats".to_owned(),
        note: String::new(),
        table: list.join("\n"),
    })
}
