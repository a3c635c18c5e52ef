//! `kdelta run`: an experiment file to a verdict. [`execute`] is shared with `compare`.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use jiff::Timestamp;
use kdelta_engine::config::{self, LoadedExperiment};
use kdelta_engine::journal::RunFolder;
use kdelta_engine::run::{self, RunRequest};
use kdelta_engine::{Context, shell};
use kdelta_model::{Plan, RunRecord};

use crate::args::{Global, Run, Running, map};
use crate::exit::Exit;
use crate::progress::{Progress, seconds};
use crate::settings::{self, Settings};
use crate::terminal::say;

/// Host CPU seconds to boot one guest, and instructions a second afterwards: for estimates only.
const BOOT_SECONDS: f64 = 1.5;
/// Seconds that the first build of a small kernel takes on two CPUs.
const FIRST_BUILD_SECONDS: f64 = 300.0;
/// Seconds for the next kernel of the same tree and configuration.
const NEXT_BUILD_SECONDS: f64 = 20.0;

/// Runs or resumes an experiment.
pub fn run(global: &Global, args: &Run) -> anyhow::Result<Exit> {
    let started = Instant::now();
    if let Some(folder) = &args.resume {
        // A folder without a run is told before what this machine lacks.
        RunFolder::check_begun(folder)?;
        let settings = Settings::new(global)?;
        let init = settings::init(global)?;
        let progress = Progress::new(global.json);
        let record = run::resume(&context(&settings, &progress), folder, &init)?;
        return conclude(&record, folder, &progress, started);
    }
    let Some(path) = &args.experiment else { bail!("give an experiment file, or --resume DIR") };
    let loaded = config::load(path, &map(&args.values))?;
    execute(global, &loaded, &args.running, &command_line())
}

/// What was typed, so that it can be typed again.
pub fn command_line() -> String {
    shell::line(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

/// Runs an experiment that is already read.
pub fn execute(
    global: &Global,
    loaded: &LoadedExperiment,
    running: &Running,
    command: &str,
) -> anyhow::Result<Exit> {
    let started = Instant::now();
    if running.dry_run {
        let plan = run::dry_run(loaded)?;
        say((preview(&plan, global)).trim_end())?;
        return Ok(Exit::NoRegression);
    }
    // A mistake in the experiment is told before anything is fetched or built.
    run::dry_run(loaded)?;
    let settings = Settings::new(global)?;
    let init = settings::init(global)?;
    let progress = Progress::new(global.json);
    let folder = running.out.clone().unwrap_or_else(|| default_folder(&loaded.experiment.name));
    let request =
        RunRequest { experiment: loaded, folder: &folder, command, init: &init, refresh: running.refresh };
    let record = run::start(&context(&settings, &progress), &request)?;
    conclude(&record, &folder, &progress, started)
}

fn context<'a>(settings: &'a Settings, progress: &'a Progress) -> Context<'a> {
    Context { cache: &settings.cache, events: progress, cancel: &settings.cancel, jobs: settings.jobs }
}

fn default_folder(name: &str) -> Utf8PathBuf {
    let safe: String = name
        .chars()
        .take(60)
        .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    Utf8PathBuf::from(format!("kdelta-runs/{safe}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ")))
}

/// Writes the report, prints the verdict, where the report is, and what each stage took.
fn conclude(
    record: &RunRecord,
    folder: &Utf8Path,
    progress: &Progress,
    started: Instant,
) -> anyhow::Result<Exit> {
    let report = kdelta_report::text(record)?;
    let path = folder.join("report.txt");
    say(kdelta_report::summary(record))?;
    fs::write(&path, &report).with_context(|| {
        format!("cannot write {path}; `kdelta report {}` prints it", shell::quote(folder.as_str()))
    })?;
    say(format!("report: {path}"))?;
    say(format!("record: {}", folder.join("record.json")))?;
    for (stage, took, detail) in progress.stages() {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        say(format!("  {:>12}  {stage}{detail}", seconds(took)))?;
    }
    say(format!("  {:>12}  in all", seconds(started.elapsed())))?;
    Ok(Exit::of(record))
}

/// The plan and a rough cost.
fn preview(plan: &Plan, global: &Global) -> String {
    let jobs = global.jobs.map_or_else(kdelta_engine::host::cpus, usize::from).max(1);
    let mut text = String::from("kernels:\n");
    let mut compiled = 0;
    for kernel in &plan.kernels {
        let placebo = if kernel.placebo { ", placebo" } else { "" };
        text.push_str(&format!("  {}, {} patch(es){placebo}\n", kernel.source, kernel.patches.len()));
        compiled += usize::from(kernel.source.is_compiled());
    }
    text.push_str("arms:\n");
    for arm in &plan.arms {
        let log = arm.filesystem.log.as_ref();
        let log =
            log.map_or(String::new(), |log| format!(", log of {} MiB on a disk of its own", log.bytes >> 20));
        text.push_str(&format!(
            "  {}: {} on {}, disk {}{log}\n",
            arm.name, arm.filesystem.kind, arm.guest.memory, arm.guest.disk
        ));
        if let Some(aged) = &arm.aged {
            text.push_str(&format!("    starts from {aged}\n"));
        }
        for scenario in &arm.scenarios {
            let values: Vec<String> =
                scenario.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            text.push_str(&format!(
                "    {} {} x ({} + {})\n",
                scenario.workload,
                values.join(" "),
                scenario.warmup,
                scenario.rounds
            ));
        }
    }
    let counts: Vec<String> = run::boots_by_purpose(plan)
        .into_iter()
        .map(|(purpose, count)| format!("{count} {purpose}"))
        .collect();
    text.push_str(&format!("boots: {} ({})\n", plan.boots.len(), counts.join(", ")));
    let builds = match compiled {
        0 => 0.0,
        count => FIRST_BUILD_SECONDS + NEXT_BUILD_SECONDS * (count - 1) as f64,
    };
    let boots = plan.boots.len() as f64 * BOOT_SECONDS / jobs as f64;
    if compiled == 0 {
        text.push_str(&format!(
            "cost: no kernel to build, at least {} for booting, and what the workloads take\n",
            seconds(std::time::Duration::from_secs_f64(boots)),
        ));
        return text;
    }
    text.push_str(&format!(
        "cost: up to about {} for kernels that are not in the store yet, at least {} for booting, and what the workloads take\n",
        seconds(std::time::Duration::from_secs_f64(builds)),
        seconds(std::time::Duration::from_secs_f64(boots)),
    ));
    text
}
