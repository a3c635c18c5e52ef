//! `kdelta workloads run`: rounds on this host, for a look. Each is a fresh process
//! ([`round`]) in a fresh folder, which is removed whatever happens.

use std::env;

use anyhow::{Context, anyhow, bail};
use camino::Utf8Path;
use kdelta_engine::process::{ProcessError, Program};
use kdelta_engine::{Cancel, host};
use kdelta_wire::{
    Clock, FilesystemKind, ParameterValue, Parameters, Phase, Round, RoundRequest, ScenarioJob,
};
use kdelta_workloads::{Selection, resolve};

use crate::args::WorkloadsRun;
use crate::exit::Exit;
use crate::settings;
use crate::terminal::{say, tell};

/// Below this much CPU time the shares of user and system time are noise: most kernels share it out
/// by the timer tick, and this is ten ticks of 100 Hz.
const LEAST_CPU_NS: u64 = 100_000_000;

/// Runs every scenario that the name stands for.
pub fn run(args: &WorkloadsRun) -> anyhow::Result<Exit> {
    let selected = kdelta_workloads::select(&args.name)?;
    let jobs = jobs(&selected, args)?;
    let kind = host::filesystem_of(&args.dir)
        .with_context(|| format!("cannot look at {}", args.dir))?
        .with_context(|| {
            format!("{} is not on tmpfs, xfs, ext4 or btrfs; try a folder in /dev/shm", args.dir)
        })?;
    let cancel = settings::cancel()?;
    let (mut sound, mut ran) = (true, false);
    for (selection, parameters) in jobs {
        if let Some(reason) = selection.workload.info().refusal(selection.scenario, kind) {
            tell(format!("{} does not run on {kind}: {reason}", selection.name()));
            continue;
        }
        ran = true;
        say(format!("{} on {kind}: {}", selection.name(), listed(&parameters)))?;
        for number in 0..args.rounds {
            let round = match one(&selection, &parameters, number, kind, &args.dir, &cancel) {
                Ok(round) => round,
                Err(error) => {
                    tell(format!("error: {}: {error:#}", selection.name()));
                    return Ok(Exit::Host);
                }
            };
            if args.rounds > 1 {
                say(format!("round {} of {}", number + 1, args.rounds))?;
            }
            say(render(&selection, &round).trim_end())?;
            sound &= round.checks.iter().all(|check| check.passed);
        }
    }
    match (ran, sound) {
        (false, _) => Ok(Exit::Usage),
        (true, true) => Ok(Exit::NoRegression),
        (true, false) => {
            tell("error: the workload did not do what it claims: its numbers mean nothing");
            Ok(Exit::Inconclusive)
        }
    }
}

/// The parameters of each scenario: preset, then what was given, checked.
fn jobs(selected: &[Selection], args: &WorkloadsRun) -> anyhow::Result<Vec<(Selection, Parameters)>> {
    let given: Parameters = args
        .parameters
        .iter()
        .map(|(name, value)| {
            let value =
                value.parse().map_or_else(|_| ParameterValue::Text(value.clone()), ParameterValue::Integer);
            (name.clone(), value)
        })
        .collect();
    let takes = |selection: &Selection, name: &str| {
        selection.workload.info().parameters_of(selection.scenario).any(|parameter| parameter.name == name)
    };
    let mut jobs = Vec::new();
    for &selection in selected {
        let (info, scenario) = (selection.workload.info(), selection.scenario);
        let preset = info.preset(&args.preset).with_context(|| {
            let known: Vec<&str> = info.presets.iter().map(|preset| preset.name).collect();
            format!("{} has no preset {}; it has {}", info.name, args.preset, known.join(", "))
        })?;
        let mut parameters = preset.parameters(info, scenario);
        // What another of the scenarios takes is not for this one; what none takes is an error.
        let ours = |name: &str| takes(&selection, name) || !selected.iter().any(|one| takes(one, name));
        parameters.extend(given.clone().into_iter().filter(|(name, _)| ours(name)));
        jobs.push((selection, resolve(info, scenario, &parameters)?));
    }
    Ok(jobs)
}

/// One round in a process and a folder of its own.
fn one(
    selection: &Selection,
    parameters: &Parameters,
    number: u32,
    filesystem: FilesystemKind,
    dir: &Utf8Path,
    cancel: &Cancel,
) -> anyhow::Result<Round> {
    let folder = tempfile::Builder::new()
        .prefix("kdelta-")
        .tempdir_in(dir)
        .with_context(|| format!("cannot make a folder in {dir}"))?;
    let request = RoundRequest {
        scenario: ScenarioJob {
            id: selection.name(),
            workload: selection.name(),
            parameters: parameters.clone(),
            warmup: 0,
            rounds: 1,
            strace: Vec::new(),
        },
        round: number,
        seed: 0,
        clock: Clock::Nanoseconds,
        cpu: None,
        filesystem,
        mount_point: folder.path().to_str().context("the folder's name is not UTF-8")?.to_owned(),
        may_unmount: false,
    };
    let this = env::current_exe()?.into_os_string().into_string();
    let this = this.map_err(|path| anyhow!("{} is not UTF-8", path.display()))?;
    let request = serde_json::to_string(&request)?;
    let output = Program::new(this).args(["workloads", "round"]).arg(request).output(cancel);
    let output = match output {
        Ok(output) => output,
        // The whole command line says less than the workload does.
        Err(ProcessError::Failed { said, status, .. }) if said.trim().is_empty() => bail!("{status}"),
        Err(ProcessError::Failed { said, .. }) => bail!("{}", said.trim()),
        Err(error) => return Err(error.into()),
    };
    folder.close().with_context(|| format!("cannot clean up in {dir}"))?;
    serde_json::from_slice(&output.stdout).context("the round's answer cannot be read")
}

/// The process of one round: a request as argument, a round on standard output.
pub fn round(request: &str) -> anyhow::Result<Exit> {
    let request: RoundRequest = serde_json::from_str(request).context("the request cannot be read")?;
    match kdelta_workloads::run(&request, None) {
        Ok(round) => {
            say(serde_json::to_string(&round)?)?;
            Ok(Exit::NoRegression)
        }
        Err(error) => {
            tell(error.to_string());
            Ok(Exit::Host)
        }
    }
}

fn listed(parameters: &Parameters) -> String {
    let words: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(" ")
}

/// What a reader wants to see of a round.
#[expect(clippy::cast_precision_loss, reason = "for a look")]
fn render(selection: &Selection, round: &Round) -> String {
    let info = selection.workload.info();
    let width = round.phases.iter().map(|phase| phase.name.len()).max().unwrap_or(0).max(5);
    let mut text = format!(
        "  {:width$}  {:>10}  {:>13}  {:>10}  {:>12}  {:>10}\n",
        "phase", "operations", "elapsed ns/op", "user ns/op", "system ns/op", "user share"
    );
    for phase in &round.phases {
        let per_op = |ns: u64| format!("{:.1}", ns as f64 / phase.ops.max(1) as f64);
        text.push_str(&format!(
            "  {:width$}  {:>10}  {:>13}  {:>10}  {:>12}  {:>10}\n",
            phase.name,
            phase.ops,
            per_op(phase.elapsed),
            per_op(phase.user_ns),
            per_op(phase.system_ns),
            user_share(phase)
        ));
    }
    for phase in round.phases.iter().filter(|phase| !phase.workers.is_empty()) {
        let range = |of: fn(&kdelta_wire::Worker) -> u64| {
            let values = || phase.workers.iter().map(of);
            format!("{} to {}", values().min().unwrap_or(0), values().max().unwrap_or(0))
        };
        text.push_str(&format!(
            "  workers of {}: {}, each {} operations in {} ns, begun after {} ns\n",
            phase.name,
            phase.workers.len(),
            range(|worker| worker.ops),
            range(|worker| worker.elapsed),
            range(|worker| worker.started)
        ));
    }
    for (phase, name, value) in (round.phases.iter())
        .flat_map(|phase| phase.measures.iter().map(move |(name, value)| (phase.name.as_str(), name, value)))
    {
        let known = info.measures.iter().find(|measure| measure.phase == phase && measure.name == name);
        let unit = known.map_or("", |measure| if measure.unit == "ticks" { "ns" } else { measure.unit });
        text.push_str(&format!("  {name} of {phase}: {value} {unit}\n"));
    }
    for check in &round.checks {
        let word = if check.passed { "ok" } else { "FAILED" };
        text.push_str(&format!(
            "  check {}: {word} (expected {}, got {})\n",
            check.name, check.expected, check.actual
        ));
    }
    let census: Vec<String> = (round.census.iter())
        .map(|(name, count)| match count.attempted == count.succeeded {
            true => format!("{name} {}", count.attempted),
            false => format!("{name} {} ({} succeeded)", count.attempted, count.succeeded),
        })
        .collect();
    text.push_str(&format!("  system calls: {}\n", census.join(", ")));
    text.push_str("  (this host's clock, not pinned, not quiet: no evidence)\n");
    text
}

/// Share of a phase's CPU time that was spent outside of the kernel.
#[expect(clippy::cast_precision_loss, reason = "for a look")]
fn user_share(phase: &Phase) -> String {
    let cpu = phase.user_ns + phase.system_ns;
    if cpu < LEAST_CPU_NS {
        return "too short".to_owned();
    }
    format!("{:.1} %", 100.0 * phase.user_ns as f64 / cpu as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_share_of_a_short_phase_is_not_told() {
        let phase = |user_ns, system_ns| Phase { user_ns, system_ns, ..Phase::default() };
        assert_eq!(user_share(&phase(3_000_000, 97_000_000)), "3.0 %");
        assert_eq!(user_share(&phase(0, 200_000_000)), "0.0 %");
        assert_eq!(user_share(&phase(50_000_000, 49_999_999)), "too short");
    }
}
