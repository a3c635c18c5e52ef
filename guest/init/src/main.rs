//! PID 1 of the guest: does what the job says and sends what it found. Read `follow` first; the
//! same program, called as `kdelta-init round`, is the fresh process of one round.
//!
//! Nothing leaves the guest before the last round has ended, except stage lines on the console:
//! a host that empties a queue interrupts the guest at a moment that is not reproducible.

mod aging;
mod child;
mod console;
mod disks;
mod error;
mod facts;
mod filesystem;
mod image;
mod port;
mod power;
mod setup;
mod sys;

use std::process::ExitCode;
use std::time::Duration;

use kdelta_wire::{DiskKind, Frame, ImageUse, Job, RoundFailed, RoundRequest, ScenarioJob};

use console::Console;
use disks::Disks;
use error::InitError;
use filesystem::MOUNT_POINT;
use sys::Window;

fn main() -> ExitCode {
    // The kernel hands words of its command line that it does not know to PID 1 as arguments.
    if std::process::id() != 1 {
        return not_first();
    }
    let mut boot = Boot { console: Console::inherited(), stage: String::new(), frames: Vec::new() };
    power::off_on_panic();
    let last = match follow(&mut boot) {
        Ok(()) => Frame::Done,
        Err(error) => Frame::Failure { stage: boot.stage.clone(), message: error.to_string() },
    };
    boot.console.say(&format!("kdelta: {}", describe(&last)));
    boot.frames.push(last);
    if let Err(error) = port::send(&boot.frames) {
        boot.console.say(&format!("kdelta: results are lost: {error}"));
    }
    power::off()
}

/// Any process but PID 1: that of a round, or a mistake.
fn not_first() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(child::COMMAND) {
        return child::main();
    }
    eprintln!("kdelta-init is the first process of a kdelta guest and does nothing elsewhere");
    ExitCode::from(2)
}

/// One life of the guest.
struct Boot {
    console: Console,
    /// What is being done now.
    stage: String,
    /// What will be sent.
    frames: Vec<Frame>,
}

impl Boot {
    fn stage(&mut self, stage: impl Into<String>) {
        self.stage = stage.into();
        self.console.say(&format!("{}{}", kdelta_wire::STAGE_PREFIX, self.stage));
    }
}

/// The steps of a boot.
fn follow(boot: &mut Boot) -> Result<(), InitError> {
    boot.stage = "mount proc, sys, dev, tmp and run".into();
    setup::mount_system()?;
    boot.console = Console::open()?;
    boot.stage("read the job");
    boot.frames.push(Frame::Hello(facts::hello()?));
    let job = setup::read_job()?;
    if !job.modules.is_empty() {
        boot.stage("load modules");
        setup::load_modules(&job.modules)?;
    }
    if job.disk != DiskKind::None {
        boot.stage("wait for the disk");
    }
    let disks = Disks::wait_for(&job)?;
    if let Some(cpu) = job.cpu {
        setup::pin(cpu)?;
    }
    boot.stage(format!("settle for {} us", job.settle_us));
    std::thread::sleep(Duration::from_micros(job.settle_us));
    if let Some(ImageUse::Save { remove_every }) = job.image {
        aging::age(boot, &job, &disks, remove_every)?;
    } else {
        let window = job.image.map(|_| image::window()).transpose()?;
        for scenario in &job.scenarios {
            for round in 0..scenario.warmup + scenario.rounds {
                run_round(boot, &job, &disks, window.as_ref(), scenario, round)?;
            }
        }
    }
    boot.stage("send results");
    Ok(())
}

/// One round, on a filesystem made for it, or put back for it.
fn run_round(
    boot: &mut Boot,
    job: &Job,
    disks: &Disks,
    window: Option<&Window>,
    scenario: &ScenarioJob,
    round: u32,
) -> Result<(), InitError> {
    let name = format!("{} {}/{}", scenario.id, round + 1, scenario.warmup + scenario.rounds);
    let mkfs_output = match (window, &disks.test) {
        (Some(window), Some(disk)) => {
            boot.stage(format!("restore {name}"));
            image::restore(window, job.disk, disk)?
        }
        _ => {
            if job.filesystem.kind.mkfs().is_some() {
                boot.stage(format!("mkfs {name}"));
            }
            filesystem::make(&job.filesystem, disks)?
        }
    };
    boot.stage(format!("mount {name}"));
    let mount_line = filesystem::mount(&job.filesystem, disks)?;
    if round == 0 {
        boot.frames.push(Frame::Mounted { scenario: scenario.id.clone(), mkfs_output, mount_line });
    }
    boot.stage(format!("round {name}"));
    let request = RoundRequest {
        scenario: scenario.clone(),
        round,
        seed: job.seed,
        clock: job.clock,
        cpu: job.cpu,
        filesystem: job.filesystem.kind,
        mount_point: MOUNT_POINT.to_owned(),
        may_unmount: true,
    };
    let limit = job.trial.map(|trial| Duration::from_secs(trial.round_seconds));
    match child::run(&request, limit) {
        Ok(round) => boot.frames.push(Frame::Round(round)),
        Err(error) if job.trial.is_some() => {
            child::outlive_children();
            let (scenario, message) = (scenario.id.clone(), error.to_string());
            boot.frames.push(Frame::RoundFailed(RoundFailed { scenario, round, message }));
        }
        Err(error) => return Err(error),
    }
    boot.stage(format!("unmount {name}"));
    filesystem::unmount_if_mounted()?;
    child::reap_orphans();
    Ok(())
}

/// What the console shows at the end.
fn describe(last: &Frame) -> String {
    match last {
        Frame::Failure { stage, message } => format!("failed at `{stage}`: {message}"),
        _ => "done".to_owned(),
    }
}
