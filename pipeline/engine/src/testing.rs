//! What the tests of several modules share: plans made from text, and boots with chosen values.
//! Read [`plan`] and [`boot`] first; [`SimulatedGuest`] is a machine that never runs a kernel.

mod examples;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;

use camino::{Utf8Path, Utf8PathBuf};
use kdelta_model::{
    Arm, ArmRecord, BootRecord, Digest, ExperimentRecord, HostFacts, KernelIdentity, KernelRequest,
    MeasureMode, MeasureRecord, Metric, Outcome, Plan, PlannedBoot, RECORD_VERSION, RunRecord, ScenarioSetup,
};
use kdelta_wire::{Check, GuestCpu, Hello, JOB_VERSION, OpCount, Phase, Round};

use crate::cancel::Cancel;
use crate::config::{self, ConfigError, LoadedExperiment};
use crate::console::Console;
use crate::process::ProcessError;
use crate::vm::{self, BootResult, BootSpec, Deadlines, Guest};

/// Operations of every phase: values are exact to 1/10,000.
pub(crate) const OPS: u64 = 10_000;

/// A parent and a child that differs by one patch, on tmpfs.
pub(crate) const TWO_ARMS: &str = "version: 1
name: two
kernel: {source: \"debian:linux-source-6.12\"}
settings: {filesystem: {type: tmpfs}}
workloads: [{workload: xattr/flistxattr}]
arms:
  - {name: parent}
  - {name: child, kernel: {patches: [slow.patch]}}
";

/// A patch crossed with a feature, on xfs.
pub(crate) const FACTORIAL: &str = "version: 1
name: four
kernel: {source: \"debian:linux-source-6.12\"}
settings: {filesystem: {type: xfs}}
workloads: [{workload: create}]
factors:
  - factor: kernel
    levels: [{name: unpatched}, {name: patched, kernel: {patches: [fast.patch]}}]
  - factor: parent pointers
    levels:
      - {name: parent=0, filesystem: {type: xfs, mkfs: [\"-n\", \"parent=0\"]}}
      - {name: parent=1, filesystem: {type: xfs, mkfs: [\"-n\", \"parent=1\"]}}
";

/// The experiment that `yaml` says, as if it lay in `/e`.
pub(crate) fn loaded(yaml: &str) -> Result<LoadedExperiment, ConfigError> {
    config::parse("test.yaml", yaml, Utf8PathBuf::from("/e"), &BTreeMap::new())
}

/// The plan of an experiment that is known to be good.
pub(crate) fn plan(yaml: &str, mode: MeasureMode) -> Plan {
    crate::plan::make(&loaded(yaml).expect("an experiment"), mode).expect("a plan")
}

/// Rounds of a boot of `arm`, every measured round of a phase with the value that `value` gives it.
pub(crate) fn rounds(arm: &Arm, value: &dyn Fn(&Metric) -> f64) -> Vec<Round> {
    let mut rounds = Vec::new();
    for scenario in &arm.scenarios {
        let selection = kdelta_workloads::find(&scenario.workload).expect("a workload");
        for number in 0..scenario.warmup + scenario.rounds {
            let warmup = number < scenario.warmup;
            let phases = selection.workload.info().phases_of(selection.scenario).map(|phase| {
                let kind = kdelta_model::MetricKind::Elapsed;
                let metric = Metric { scenario: scenario.id.clone(), phase: phase.name.to_owned(), kind };
                // A first round is slower: caches are cold.
                phase_of(phase.name, value(&metric) * if warmup { 1.5 } else { 1.0 })
            });
            let check = Check {
                name: "results".to_owned(),
                expected: OPS.to_string(),
                actual: OPS.to_string(),
                passed: true,
            };
            rounds.push(Round {
                scenario: scenario.id.clone(),
                round: number,
                warmup,
                parameters: scenario.parameters.clone(),
                phases: phases.collect(),
                checks: vec![check],
                census: [("calls".to_owned(), OpCount { attempted: OPS, succeeded: OPS })].into(),
                trace: None,
            });
        }
    }
    rounds
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small"
)]
fn phase_of(name: &str, value: f64) -> Phase {
    let elapsed = (value * OPS as f64).round() as u64;
    let cpu_ns = elapsed - elapsed / 100;
    Phase {
        name: name.to_owned(),
        ops: OPS,
        elapsed,
        cpu_ns,
        // Every timer tick fell into the kernel, so that getrusage(2) shares all time out to it.
        user_ns: 0,
        system_ns: cpu_ns,
        voluntary_switches: 0,
        involuntary_switches: 2,
        minor_faults: 7,
        guest: GuestCpu { system: cpu_ns / 10_000_000, ..GuestCpu::default() },
        ..Phase::default()
    }
}

/// A boot that went well.
pub(crate) fn boot(plan: &Plan, planned: &PlannedBoot, value: &dyn Fn(&Metric) -> f64) -> BootRecord {
    let arm = &plan.arms[planned.arm];
    BootRecord {
        index: planned.index,
        arm: planned.arm,
        seed: planned.seed,
        purpose: planned.purpose,
        outcome: Outcome::Completed,
        hello: Some(hello()),
        setups: setups(arm),
        rounds: rounds(arm, value),
        console: Vec::new(),
        host_cpu_seconds: 2.5,
        init_cpu_seconds: Some(1.2),
        wall_seconds: 2.6,
        started_seconds: 3.0 * f64::from(u32::try_from(planned.index).expect("few boots")),
        load_before: 1.0,
        steal_percent: 0.0,
    }
}

/// All boots of a plan; `value` is told the arm's name, the boot and the metric.
pub(crate) fn boots(plan: &Plan, value: impl Fn(&str, &PlannedBoot, &Metric) -> f64) -> Vec<BootRecord> {
    let one = |planned: &PlannedBoot| {
        let name = &plan.arms[planned.arm].name;
        boot(plan, planned, &|metric| value(name, planned, metric))
    };
    plan.boots.iter().map(one).collect()
}

fn hello() -> Hello {
    Hello {
        version: JOB_VERSION,
        kernel_release: "6.12.57".to_owned(),
        kernel_version: "#1".to_owned(),
        cmdline: "console=ttyS0".to_owned(),
        boot_id: "00000000-0000-4000-8000-000000000000".to_owned(),
        cpus: 1,
        memory_kib: 1_015_000,
        clocksource: "tsc".to_owned(),
    }
}

fn setups(arm: &Arm) -> Vec<ScenarioSetup> {
    let kind = arm.filesystem.kind;
    let (mkfs_output, source) = match kind.mkfs() {
        None => (String::new(), "tmpfs"),
        Some(_) => (format!("{}\n", arm.filesystem.mkfs.join(" ")), "/dev/ram0"),
    };
    let setup = |scenario: &kdelta_model::Scenario| ScenarioSetup {
        scenario: scenario.id.clone(),
        mkfs_output: mkfs_output.clone(),
        mount_line: format!("{source} /mnt {kind} rw,relatime 0 0"),
    };
    arm.scenarios.iter().map(setup).collect()
}

/// What happens to one try of a boot, before the model is asked.
pub(crate) type Script = dyn Fn(&Arm, u64, usize) -> Option<Outcome> + Sync;
/// Value of a metric of an arm at a seed.
pub(crate) type Model = dyn Fn(&Arm, u64, &Metric) -> f64 + Sync;

/// A guest whose values come from a model and whose failures come from a script.
pub(crate) struct SimulatedGuest<'a> {
    model: &'a Model,
    script: &'a Script,
    /// Asked to stop once this many tries have begun.
    cancel_at: Option<usize>,
    tries: Mutex<BTreeMap<Utf8PathBuf, usize>>,
}

impl<'a> SimulatedGuest<'a> {
    pub(crate) fn new(model: &'a Model, script: &'a Script) -> Self {
        Self { model, script, cancel_at: None, tries: Mutex::default() }
    }

    pub(crate) fn cancelled_at(self, tries: usize) -> Self {
        Self { cancel_at: Some(tries), ..self }
    }

    /// Tries so far, of all boots.
    pub(crate) fn tries(&self) -> usize {
        self.tries.lock().expect("no panic elsewhere").values().sum()
    }
}

impl Guest for SimulatedGuest<'_> {
    fn boot(
        &self,
        spec: &BootSpec,
        cancel: &Cancel,
        on_stage: &dyn Fn(&str),
    ) -> Result<BootResult, ProcessError> {
        assert!(fs::metadata(spec.initramfs).is_ok(), "the initramfs of a boot is there while it runs");
        let number = {
            let mut tries = self.tries.lock().expect("no panic elsewhere");
            let number = tries.entry(spec.folder.to_owned()).or_insert(0);
            *number += 1;
            let number = *number;
            if self.cancel_at.is_some_and(|limit| tries.values().sum::<usize>() >= limit) {
                cancel.request();
            }
            number
        };
        if cancel.is_requested() {
            return Err(ProcessError::Cancelled);
        }
        on_stage("settle");
        let outcome = (self.script)(spec.arm, spec.seed, number).unwrap_or(Outcome::Completed);
        let worked = outcome == Outcome::Completed;
        let value = |metric: &Metric| (self.model)(spec.arm, spec.seed, metric);
        Ok(BootResult {
            outcome,
            hello: Some(hello()),
            setups: setups(spec.arm),
            rounds: if worked { rounds(spec.arm, &value) } else { Vec::new() },
            failed_rounds: Vec::new(),
            console: Console::default(),
            host_cpu_seconds: 2.5,
            init_cpu_seconds: Some(1.2),
            wall_seconds: 2.6,
        })
    }
}

/// A record without boots, as it is before the first one: every field is the same on every machine.
pub(crate) fn record(yaml: &str, mode: MeasureMode) -> RunRecord {
    let loaded = loaded(yaml).expect("an experiment");
    let plan = crate::plan::make(&loaded, mode).expect("a plan");
    let kernels: Vec<KernelIdentity> = plan.kernels.iter().map(identity).collect();
    let arm_record = |arm: &Arm| ArmRecord {
        cmdline: vm::cmdline(&spec(arm, mode)),
        initramfs_digest: digest("initramfs"),
        init_digest: digest("init"),
        userland: match arm.filesystem.kind.mkfs() {
            None => Vec::new(),
            Some(_) => vec!["xfsprogs 6.13.0-2".to_owned()],
        },
        qemu_arguments: vm::arguments(&spec(arm, mode)),
        aged: None,
    };
    RunRecord {
        version: RECORD_VERSION,
        kdelta: "0.1.0".to_owned(),
        experiment: ExperimentRecord {
            name: loaded.experiment.name.clone(),
            description: loaded.experiment.description.clone(),
            yaml: loaded.yaml.clone(),
            command: format!("kdelta run {}.yaml", loaded.experiment.name),
        },
        started: "2026-01-01T00:00:00Z".to_owned(),
        measure: MeasureRecord {
            mode,
            accelerator: match mode {
                MeasureMode::Instructions => "QEMU TCG with icount".to_owned(),
                MeasureMode::Wall => "KVM".to_owned(),
            },
            reason: "the experiment asks for it".to_owned(),
            qemu: "QEMU emulator version 10.0.8".to_owned(),
        },
        host: HostFacts {
            cpu_model: "Example CPU".to_owned(),
            cpus: 2,
            sockets: 1,
            numa_nodes: 1,
            memory_mib: 8192,
            governor: "none".to_owned(),
            turbo: None,
            kernel: "6.12.0".to_owned(),
            load: 0.5,
        },
        plan_digest: Digest(blake3::hash(&plan.canonical().expect("JSON")).to_hex().to_string()),
        kernels,
        config_differences: Vec::new(),
        arms: plan.arms.iter().map(arm_record).collect(),
        plan,
        boots: Vec::new(),
        comparisons: Vec::new(),
        factorials: Vec::new(),
        gates: Vec::new(),
        caveats: Vec::new(),
    }
}

fn spec(arm: &Arm, mode: MeasureMode) -> BootSpec<'_> {
    BootSpec {
        arm,
        kernel: Utf8Path::new("KERNEL"),
        kernel_hz: Some(250),
        initramfs: Utf8Path::new("INITRAMFS"),
        mode,
        seed: 0,
        folder: Utf8Path::new("BOOT"),
        deadlines: Deadlines::default(),
        pins: &[],
        window: None,
    }
}

/// A digest that only its label decides.
pub(crate) fn digest(label: &str) -> Digest {
    Digest(blake3::hash(label.as_bytes()).to_hex().to_string())
}

/// What a build of `request` would be.
pub(crate) fn identity(request: &KernelRequest) -> KernelIdentity {
    let patches: Vec<String> = request.patches.iter().map(ToString::to_string).collect();
    let label = format!("{} {patches:?} {}", request.source, request.placebo);
    KernelIdentity {
        source: format!("{} 6.12.57-1", request.source),
        source_digest: digest("source"),
        commit: None,
        patch_digest: Some(digest(&label)).filter(|_| !patches.is_empty()),
        patches: patches.iter().map(|path| path.trim_start_matches("/e/").to_owned()).collect(),
        config_digest: Some(digest("config")),
        release: "6.12.57".to_owned(),
        compiler: "gcc (Debian 14.2.0-19) 14.2.0".to_owned(),
        build_stamp: "kdelta@kdelta, 1970-01-01, #1".to_owned(),
        build_id: Some(digest(&label).0[..40].to_owned()),
        image_digest: digest(&label),
        placebo: request.placebo,
        debug_options: Vec::new(),
    }
}
