//! What each round of a trial is to show, and whether it did. Read [`list`] for the rounds, then
//! [`judge`] for what is made of them.

use std::collections::{BTreeMap, BTreeSet};

use kdelta_model::Outcome;
use kdelta_wire::{FilesystemKind, ParameterValue, Parameters, Round, ScenarioJob};
use kdelta_workloads::{CheckInfo, Domain, ParameterError, Proof, Selection, WorkloadInfo, resolve};
use serde::Serialize;

use super::EXEMPT;
use crate::vm::BootResult;

/// The preset of every trial.
const PRESET: &str = "quick";
/// Under strace a call costs about a hundred times as much, and a few calls count as exactly as many:
/// the scale of counted rounds is halved until it is at most this.
const COUNTED_SCALE: u64 = 256;
/// How strace(1) counts calls: threads and processes followed, a table of counts and names alone.
const COUNT: [&str; 5] = ["-f", "-qq", "-c", "-U", "calls,name"];

/// The answer of a whole trial, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Everything is as claimed.
    AsClaimed,
    /// A workload does not do what it claims.
    Disproved,
    /// The kernel did not boot, or broke down.
    KernelFailed,
    /// The host could not do its part.
    HostFailed,
}

/// One scenario on one filesystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioTrial {
    /// Workload and scenario.
    pub scenario: String,
    /// Why it does not run there, if it is not meant to.
    pub refused: Option<&'static str>,
    /// What is not as claimed; nothing when all is.
    pub problems: Vec<Problem>,
    /// By how much the number of each call grew when the work was doubled: by strace, by the census.
    pub calls: BTreeMap<String, (i64, i64)>,
    /// Lies told to it.
    pub lies: Vec<Lie>,
    /// False when the boot broke off before it was through.
    pub complete: bool,
}

impl ScenarioTrial {
    /// Whether all that was seen is as claimed.
    #[must_use]
    pub fn is_as_claimed(&self) -> bool {
        self.problems.is_empty() && self.lies.iter().all(|lie| matches!(lie.answer, Answer::Noticed { .. }))
    }
}

/// Something that is not as claimed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "problem", rename_all = "kebab-case")]
pub enum Problem {
    /// A round ended with an error.
    RoundFailed {
        /// Which round.
        round: &'static str,
        /// What happened.
        message: String,
    },
    /// The boot ended well and a round is missing.
    RoundLost {
        /// Which round.
        round: &'static str,
    },
    /// A check failed that nobody lied to.
    CheckFailed {
        /// Which round.
        round: &'static str,
        /// The check.
        check: String,
        /// What must be.
        expected: String,
        /// What was.
        actual: String,
    },
    /// The round differs from the description.
    Promise {
        /// How.
        message: String,
    },
    /// The workload counts no calls.
    NoCensus,
    /// Doubling the parameter for it did not make more operations.
    NoGrowth {
        /// Operations of the primary phase, once and twice.
        ops: (u64, u64),
    },
    /// strace counted other calls than the workload.
    CallsDiffer {
        /// The call.
        call: String,
        /// Growth by strace.
        traced: i64,
        /// Growth by the census.
        counted: i64,
    },
    /// strace's table cannot be read.
    NoTrace {
        /// What it wrote.
        text: String,
    },
}

/// A lie and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lie {
    /// The check that must notice.
    pub check: &'static str,
    /// The lie, as strace takes it.
    pub inject: &'static str,
    /// What came of it.
    pub answer: Answer,
}

/// What came of a lie.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The check failed, as it must.
    Noticed {
        /// What must have been.
        expected: String,
        /// What the lie made of it.
        actual: String,
    },
    /// The check passed.
    Unnoticed {
        /// Checks that failed instead.
        others: Vec<String>,
    },
    /// The round ended with an error before the check.
    RoundFailed {
        /// The error.
        message: String,
    },
    /// The boot broke off before.
    NotTold,
}

/// One round of a trial.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    selection: Selection,
    role: Role,
    parameters: Parameters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// As it is.
    Plain,
    /// Under strace that counts.
    Counted,
    /// The same with twice the work.
    CountedTwice,
    /// Under strace that lies, for the check with this place in the workload's list.
    Lie(usize),
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Counted => "under strace",
            Self::CountedTwice => "under strace, twice the work",
            Self::Lie(_) => "under a lie",
        }
    }
}

impl Charge {
    /// Name that frames carry.
    pub(super) fn id(&self) -> String {
        let (name, role) = (self.selection.name(), self.role.name());
        match self.role {
            Role::Lie(check) => format!("{name} [{role}, {check}]"),
            _ => format!("{name} [{role}]"),
        }
    }

    /// What the init is told.
    pub(super) fn job(&self) -> ScenarioJob {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let strace = match self.role {
            Role::Plain => Vec::new(),
            Role::Counted | Role::CountedTwice => owned(&COUNT),
            Role::Lie(check) => {
                let mut words = owned(&COUNT);
                if let Proof::Injection { inject, .. } = self.selection.workload.info().checks[check].proof {
                    words.extend(["-e".to_owned(), format!("inject={inject}")]);
                }
                words
            }
        };
        ScenarioJob {
            id: self.id(),
            workload: self.selection.name(),
            parameters: self.parameters.clone(),
            warmup: 0,
            rounds: 1,
            strace,
        }
    }
}

/// The checks of a scenario that a lie told to it must make fail, with their places.
fn lies(selection: Selection) -> impl Iterator<Item = (usize, &'static CheckInfo, &'static str)> {
    selection.workload.info().checks.iter().enumerate().filter_map(move |(place, check)| match check.proof {
        Proof::Injection { scenario, inject } if scenario == selection.scenario.name => {
            Some((place, check, inject))
        }
        _ => None,
    })
}

/// The rounds for `selections` on `filesystem`.
///
/// # Errors
/// When the preset, or the preset with twice the work, is not allowed.
pub(super) fn list(
    selections: &[Selection],
    filesystem: FilesystemKind,
) -> Result<Vec<Charge>, ParameterError> {
    let mut charges = Vec::new();
    for &selection in selections {
        let (info, scenario) = (selection.workload.info(), selection.scenario);
        if info.refusal(scenario, filesystem).is_some() {
            continue;
        }
        let preset = info.preset(PRESET).map(|preset| preset.parameters(info, scenario)).unwrap_or_default();
        let once = resolve(info, scenario, &preset)?;
        charges.push(Charge { selection, role: Role::Plain, parameters: once.clone() });
        let scale = counted_scale(info, &once);
        for (role, scale) in [(Role::Counted, scale), (Role::CountedTwice, 2 * scale)] {
            let mut parameters = once.clone();
            parameters.insert(info.scale.to_owned(), ParameterValue::Integer(scale));
            charges.push(Charge { selection, role, parameters: resolve(info, scenario, &parameters)? });
        }
        let here = |place: usize| {
            let check = &info.checks[place];
            check.filesystems.is_empty() || check.filesystems.contains(&filesystem)
        };
        for (place, ..) in lies(selection).filter(|(place, ..)| here(*place)) {
            charges.push(Charge { selection, role: Role::Lie(place), parameters: once.clone() });
        }
    }
    Ok(charges)
}

/// The scale of a counted round. Only even numbers are halved, so that what was a multiple of the number of
/// workers stays one for long.
fn counted_scale(info: &WorkloadInfo, quick: &Parameters) -> u64 {
    let Some(&ParameterValue::Integer(mut scale)) = quick.get(info.scale) else { return 0 };
    let least =
        info.parameters.iter().find(|parameter| parameter.name == info.scale).map_or(0, |parameter| {
            match parameter.domain {
                Domain::Integer { min, .. } => min,
                Domain::Choice { .. } => 0,
            }
        });
    while scale > COUNTED_SCALE && scale.is_multiple_of(2) && scale / 2 >= least {
        scale /= 2;
    }
    scale
}

/// What came back of one charge.
enum Came<'a> {
    Round(&'a Round),
    Failed(&'a str),
    /// The boot broke off before.
    Nothing,
}

/// What the boot `result` of `filesystem` shows about each of `selections`.
pub(super) fn judge(
    selections: &[Selection],
    filesystem: FilesystemKind,
    charges: &[Charge],
    result: &BootResult,
) -> Vec<ScenarioTrial> {
    let rounds: BTreeMap<&str, &Round> =
        result.rounds.iter().map(|round| (round.scenario.as_str(), round)).collect();
    let failed: BTreeMap<&str, &str> = (result.failed_rounds.iter())
        .map(|failed| (failed.scenario.as_str(), failed.message.as_str()))
        .collect();
    let came = |charge: &Charge| {
        let id = charge.id();
        match (rounds.get(id.as_str()), failed.get(id.as_str())) {
            (Some(round), _) => Came::Round(round),
            (None, Some(message)) => Came::Failed(message),
            (None, None) => Came::Nothing,
        }
    };
    let one = |&selection: &Selection| {
        let (info, scenario) = (selection.workload.info(), selection.scenario);
        let mut trial = ScenarioTrial {
            scenario: selection.name(),
            refused: info.refusal(scenario, filesystem),
            problems: Vec::new(),
            calls: BTreeMap::new(),
            lies: Vec::new(),
            complete: result.outcome == Outcome::Completed,
        };
        let mut counted: [Option<&Round>; 2] = [None; 2];
        for charge in charges.iter().filter(|charge| charge.selection.name() == trial.scenario) {
            match (charge.role, came(charge)) {
                (Role::Lie(place), came) => trial.lies.push(answered(&info.checks[place], came)),
                (role, Came::Nothing) if trial.complete => {
                    trial.problems.push(Problem::RoundLost { round: role.name() });
                }
                (_, Came::Nothing) => {}
                (role, Came::Failed(message)) => trial
                    .problems
                    .push(Problem::RoundFailed { round: role.name(), message: message.to_owned() }),
                (role, Came::Round(round)) => {
                    trial.problems.extend(failed_checks(role, round));
                    match role {
                        Role::Counted => counted[0] = Some(round),
                        Role::CountedTwice => counted[1] = Some(round),
                        _ => {
                            let broken = info.broken_promises(scenario, filesystem, round).into_iter();
                            trial.problems.extend(broken.map(|message| Problem::Promise { message }));
                            if round.census.is_empty() {
                                trial.problems.push(Problem::NoCensus);
                            }
                        }
                    }
                }
            }
        }
        if let [Some(once), Some(twice)] = counted {
            let primary = info.phases_of(scenario).find(|phase| phase.primary).map(|phase| phase.name);
            audit(&mut trial, primary.unwrap_or_default(), once, twice);
        }
        trial
    };
    selections.iter().map(one).collect()
}

fn failed_checks(role: Role, round: &Round) -> impl Iterator<Item = Problem> {
    round.checks.iter().filter(|check| !check.passed).map(move |check| Problem::CheckFailed {
        round: role.name(),
        check: check.name.clone(),
        expected: check.expected.clone(),
        actual: check.actual.clone(),
    })
}

/// Whether the check that must notice a lie did.
fn answered(check: &'static CheckInfo, came: Came) -> Lie {
    let inject = match check.proof {
        Proof::Injection { inject, .. } => inject,
        Proof::Test(_) => "",
    };
    let answer = match came {
        Came::Nothing => Answer::NotTold,
        Came::Failed(message) => Answer::RoundFailed { message: message.to_owned() },
        Came::Round(round) => {
            let failed = || round.checks.iter().filter(|check| !check.passed);
            match failed().find(|failed| failed.name == check.name) {
                Some(failed) => {
                    Answer::Noticed { expected: failed.expected.clone(), actual: failed.actual.clone() }
                }
                None => Answer::Unnoticed { others: failed().map(|check| check.name.clone()).collect() },
            }
        }
    };
    Lie { check: check.name, inject, answer }
}

/// Compares what strace counted with the census. Differences of two rounds, so that what every
/// process does once does not matter.
fn audit(trial: &mut ScenarioTrial, primary: &str, once: &Round, twice: &Round) {
    let ops =
        |round: &Round| round.phases.iter().find(|phase| phase.name == primary).map_or(0, |phase| phase.ops);
    if ops(twice) <= ops(once) {
        trial.problems.push(Problem::NoGrowth { ops: (ops(once), ops(twice)) });
    }
    let (traced_once, traced_twice) = match (traced(once), traced(twice)) {
        (Ok(once), Ok(twice)) => (once, twice),
        (Err(text), _) | (_, Err(text)) => {
            trial.problems.push(Problem::NoTrace { text });
            return;
        }
    };
    let names: BTreeSet<&str> = (traced_once.keys().chain(traced_twice.keys()))
        .map(String::as_str)
        .chain(once.census.keys().chain(twice.census.keys()).map(String::as_str))
        .collect();
    let growth = |once: u64, twice: u64| twice.cast_signed().wrapping_sub(once.cast_signed());
    for name in names {
        let traced = |table: &BTreeMap<String, u64>| table.get(name).copied().unwrap_or(0);
        let counted = |round: &Round| round.census.get(name).map_or(0, |count| count.attempted);
        let traced = growth(traced(&traced_once), traced(&traced_twice));
        let claimed = growth(counted(once), counted(twice));
        let is_counted = once.census.contains_key(name) || twice.census.contains_key(name);
        if is_counted {
            trial.calls.insert(name.to_owned(), (traced, claimed));
        }
        if traced != claimed && (is_counted || !EXEMPT.contains(&name)) {
            trial.problems.push(Problem::CallsDiffer { call: name.to_owned(), traced, counted: claimed });
        }
    }
}

/// The table of `strace -c -U calls,name`; the text when it is none.
fn traced(round: &Round) -> Result<BTreeMap<String, u64>, String> {
    let text = round.trace.as_deref().unwrap_or_default();
    let row = |line: &str| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    };
    let table: BTreeMap<String, u64> = text.lines().filter_map(row).collect();
    let total: Option<u64> = table.get("total").copied();
    let calls: BTreeMap<String, u64> = table.into_iter().filter(|(name, _)| name != "total").collect();
    // The last line adds up the others: a table that was cut short does not.
    if total.is_some() && total == Some(calls.values().sum()) { Ok(calls) } else { Err(text.to_owned()) }
}
