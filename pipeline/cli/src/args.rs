//! What can be typed. Read [`Args`] first; doc comments here are the help texts.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};
use kdelta_engine::plan::MOST_BOOTS;
use kdelta_model::{KernelSource, PatchSource};
use kdelta_wire::{DiskKind, FilesystemKind};

const EXIT_CODES: &str = "Exit codes: 0 no regression, 1 regression, 2 usage, 3 inconclusive, \
4 kernel did not build or boot, 5 host trouble. With --bisect-exit: 0 good, 1 bad, 125 skip, 129 abort.";

/// What did this kernel change do to filesystem performance, and how sure is that?
#[derive(Debug, Parser)]
#[command(name = "kdelta", version, after_help = EXIT_CODES)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Folder for sources, builds and images; may be deleted at any time
    /// [default: $KDELTA_CACHE, $XDG_CACHE_HOME/kdelta or ~/.cache/kdelta]
    #[arg(long, global = true, value_name = "DIR")]
    pub cache: Option<Utf8PathBuf>,
    /// The guest's init [default: $KDELTA_INIT, or kdelta-init beside kdelta, in ../lib/kdelta, or in
    /// the build tree]
    #[arg(long, global = true, value_name = "FILE")]
    pub init: Option<Utf8PathBuf>,
    /// Parallel compiler jobs and guests [default: one per CPU]
    #[arg(short, long, global = true, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Print progress as JSON lines on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Exit as `git bisect run` expects
    #[arg(long, global = true)]
    pub bisect_exit: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an experiment file
    Run(Run),
    /// Compare two kernels, or a kernel with and without patches, without an experiment file
    Compare(Box<Compare>),
    /// Render a finished run again
    Report(Report),
    /// List workloads, describe one, run one here without a guest, or put them on trial in guests
    Workloads(Workloads),
    /// Say what this machine lacks, and the command that mends it
    Doctor,
}

/// Where a run goes and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Running {
    /// Run folder to make [default: kdelta-runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<Utf8PathBuf>,
    /// Print the plan and what it costs; build and boot nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Ask the package archives for newer versions
    #[arg(long)]
    pub refresh: bool,
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The experiment file
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    pub experiment: Option<Utf8PathBuf>,
    /// Value of a variable of the experiment
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub values: Vec<(String, String)>,
    /// Go on with an interrupted run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "dry_run", "refresh"])]
    pub resume: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub running: Running,
}

/// Arguments of `compare`.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// Kernel of both sides, with --patch making the difference: debian:linux-source-6.12,
    /// tarball:PATH, tarball:URL#sha256=HEX, git:REPOSITORY#REVISION, dir:PATH
    #[arg(long, value_name = "KERNEL", required_unless_present = "parent", conflicts_with_all = ["parent", "child"], requires = "patches")]
    pub kernel: Option<KernelSource>,
    /// Kernel of the parent side; besides the above image:PATH, deb:PATH or deb:PACKAGE
    #[arg(long, value_name = "KERNEL", requires = "child")]
    pub parent: Option<KernelSource>,
    /// Kernel of the child side
    #[arg(long, value_name = "KERNEL", requires = "parent")]
    pub child: Option<KernelSource>,
    /// Patch of the child: a file, an mbox, a folder of patches, or git:REPOSITORY#A..B
    #[arg(long = "patch", value_name = "PATCH")]
    pub patches: Vec<PatchSource>,
    /// Kernel option of both sides, as CONFIG_FOO=y
    #[arg(long = "config", value_name = "OPTION")]
    pub options: Vec<String>,
    /// Workload, as `kdelta workloads` lists them
    #[arg(long = "workload", value_name = "WORKLOAD", required = true)]
    pub workloads: Vec<String>,
    /// Parameter of the workloads
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = assignment)]
    pub parameters: Vec<(String, String)>,
    /// Filesystem: tmpfs, xfs, ext4 or btrfs
    #[arg(long, value_name = "TYPE", default_value = "tmpfs")]
    pub fs: String,
    /// mkfs arguments, in one word
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    pub mkfs: Option<String>,
    /// Mount options, separated by commas
    #[arg(long, value_name = "OPTIONS")]
    pub mount: Option<String>,
    /// Guest shape: tmpfs, ram, nvme, virtio-blk, or a file [default: tmpfs or ram]
    #[arg(long, value_name = "GUEST")]
    pub guest: Option<String>,
    /// auto, instructions or wall
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub measure: String,
    /// Seeds (instructions) or pairs of boots (wall) [default: 8 or 5]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_BOOTS)))]
    pub boots: Option<u32>,
    /// Smallest change that matters, in percent [default: 0.5 or 2]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = margin)]
    pub margin: Option<f64>,
    /// Write the experiment file that this command stands for, and stop
    #[arg(long, value_name = "FILE")]
    pub write_experiment: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub running: Running,
}

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct Report {
    /// A run folder, or its record.json
    pub run: Utf8PathBuf,
    /// Print the run record as JSON instead of text
    #[arg(long)]
    pub as_json: bool,
    /// Judge the raw rounds again before rendering
    #[arg(long)]
    pub judge_again: bool,
}

/// Arguments of `workloads`.
#[derive(Debug, clap::Args)]
pub struct Workloads {
    #[command(subcommand)]
    pub command: Option<WorkloadsCommand>,
}

/// What to do with workloads.
#[derive(Debug, Subcommand)]
pub enum WorkloadsCommand {
    /// List them, as without any word
    List,
    /// Print the page of one: scenarios, phases, checks, parameters, presets
    Describe {
        /// Workload, or one of its scenarios
        name: String,
    },
    /// Run one in a fresh folder of this host, without a guest: a look and no evidence
    Run(WorkloadsRun),
    /// Put them on trial in real guests: do they do what they claim, make the calls that they count,
    /// and notice a lie?
    Prove(Prove),
    /// The process of one round
    #[command(hide = true)]
    Round {
        /// What to run, as JSON
        request: String,
    },
}

/// Arguments of `workloads run`.
#[derive(Debug, clap::Args)]
pub struct WorkloadsRun {
    /// Workload (its default scenarios) or scenario
    pub name: String,
    /// Folder in which each round gets a fresh one, removed afterwards
    #[arg(long, value_name = "DIR")]
    pub dir: Utf8PathBuf,
    /// Parameter of the workload
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = assignment)]
    pub parameters: Vec<(String, String)>,
    /// Parameter values to start from
    #[arg(long, value_name = "PRESET", default_value = "guest")]
    pub preset: String,
    /// Rounds, each a fresh process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
}

/// Arguments of `workloads prove`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 all is as claimed, 3 it is not (nothing that such a workload measures is \
evidence), 2 usage, 4 kernel did not build or boot, 5 host trouble."
)]
pub struct Prove {
    /// Workloads or scenarios [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Filesystem: tmpfs, xfs, ext4 or btrfs [default: each]
    #[arg(long = "filesystem", value_name = "TYPE", value_parser = filesystem)]
    pub filesystems: Vec<FilesystemKind>,
    /// Kernel, as for `compare`
    #[arg(long, value_name = "KERNEL", default_value = "debian:linux-source-6.12")]
    pub kernel: KernelSource,
    /// Patch on it, as for `compare`: is a kernel that lies found out?
    #[arg(long = "patch", value_name = "PATCH")]
    pub patches: Vec<PatchSource>,
    /// Disk: ram, nvme or virtio-blk
    #[arg(long, value_name = "DISK", default_value = "ram", value_parser = disk)]
    pub disk: DiskKind,
    /// Write what was found as JSON
    #[arg(long, value_name = "FILE")]
    pub out: Option<Utf8PathBuf>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

/// As `plan` takes it from an experiment file.
fn margin(text: &str) -> Result<f64, String> {
    let wrong = || "a margin is a number of percent between 0 and 100, such as 0.5".to_owned();
    text.parse().ok().filter(|percent| *percent > 0.0 && *percent < 100.0).ok_or_else(wrong)
}

fn disk(text: &str) -> Result<DiskKind, String> {
    match text {
        "ram" => Ok(DiskKind::Ram),
        "nvme" => Ok(DiskKind::Nvme),
        "virtio-blk" => Ok(DiskKind::VirtioBlk),
        _ => Err("known are ram, nvme, virtio-blk".to_owned()),
    }
}

fn filesystem(text: &str) -> Result<FilesystemKind, String> {
    let known = || format!("known are {}", FilesystemKind::ALL.map(FilesystemKind::name).join(", "));
    FilesystemKind::from_name(text).ok_or_else(known)
}

/// Assignments as a map; a later one wins.
pub fn map(assignments: &[(String, String)]) -> BTreeMap<String, String> {
    assignments.iter().cloned().collect()
}
