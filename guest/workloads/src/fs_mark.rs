//! fs_mark 3.3 as its source does it (github.com/josefbacik/fs_mark, `fs_mark.c`): the same folders,
//! names, system calls and columns. Read [`FsMark`] first, then [`FsMark::child`].
//!
//! Three things in it are easily misread, and are kept as they are. (A) `-D` without `-N` changes the
//! subdirectory every 180 seconds, beginning at the second modulo D: a shorter iteration fills one.
//! (B) Before every file its subdirectory is made; all but the first of these calls fail, outside of
//! the time of every single call but inside of the loop's. (C) Files/sec is the sum of the rates of
//! the threads, not all files divided by the time that they took.
//!
//! Not as in the original: the letters of names are drawn before, so that App Overhead is less; the
//! seconds come from `epoch` and the ticks since then, so that all arms get the same names; times are
//! ticks and not whole microseconds; children answer through pipes and not through log files.

mod columns;
mod found;
mod rules;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::PathBuf;

use kdelta_wire::{Clock, Worker};
use rustix::io::Errno;

use crate::names::{LETTERS, letter};
use crate::parallel::{self, Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::{RoundContext, WorkloadError, clock, sys};

use columns::{CLOSE, CREAT, ChildReport, Cost, FSYNC, Line, SECOND, SYNC, WRITE};
pub(crate) use found::{NAMES, REFUSED, SUBDIRS};
use rules::{Again, Method, Target, TimeHash};

/// The one timed part of the workload.
pub(crate) const PHASE: &str = "create";

/// A whole round.
pub(crate) fn round(round: &mut RoundContext) -> Result<(), WorkloadError> {
    round_with(round, || ())
}

/// As [`round`], with something done to the files before they are checked.
pub(crate) fn round_with(round: &mut RoundContext, meddle: impl FnOnce()) -> Result<(), WorkloadError> {
    let program = FsMark::prepare(round)?;
    round.sync()?;
    let outcome = program.run(round)?;
    meddle();
    found::judge(round, &program, &outcome)
}

/// Everything that the children of all iterations need.
#[derive(Debug)]
struct FsMark {
    clock: Clock,
    epoch: u64,
    iterations: u64,
    files: u64,
    size: u64,
    subdirs: u64,
    method: Method,
    /// Zeros, as fs_mark writes them.
    block: Vec<u8>,
    tops: Vec<Top>,
}

/// What one `-d` names: the folder of one thread.
#[derive(Debug)]
struct Top {
    path: PathBuf,
    c_path: CString,
    /// Letters of all names; iteration `k` begins at the `k`th.
    letters: Vec<u8>,
}

/// What all iterations came to.
#[derive(Debug, Default)]
struct Outcome {
    lines: Vec<Line>,
    /// mkdir(2) calls that succeeded, and that found the folder there; those of `-d` folders are in
    /// neither.
    made: u64,
    refused: u64,
    /// Subdirectories of every `-d` folder.
    subdirs: Vec<BTreeSet<u64>>,
}

impl FsMark {
    /// Makes the `-d` folders and draws the letters of names.
    fn prepare(round: &mut RoundContext) -> Result<Self, WorkloadError> {
        let [threads, iterations, files, size] =
            ["threads", "iterations", "files", "size"].map(|name| round.integer(name));
        let (threads, iterations, files, size) = (threads?, iterations?, files?, size?);
        let mut rng = round.rng();
        let root = open_root(round.mount_point())?;
        let mut tops = Vec::with_capacity(threads as usize);
        for number in 0..threads {
            let path = round.mount_point().join(number.to_string());
            let name = CString::new(number.to_string()).unwrap_or_default();
            sys::mkdir(root.as_fd(), &name).map_err(|errno| failed("mkdirat", &path, errno))?;
            let letters = (0..files as usize * LETTERS + iterations as usize).map(|_| letter(&mut rng));
            tops.push(Top { c_path: c_path(&path)?, path, letters: letters.collect() });
        }
        round.count("mkdirat", threads, threads);
        Ok(Self {
            clock: round.clock(),
            epoch: round.integer("epoch")?,
            iterations,
            files,
            size,
            subdirs: round.integer("dirs")?,
            method: Method::of(round.integer("sync_method")?),
            block: vec![0; round.integer("write_size")? as usize],
            tops,
        })
    }

    /// Files of all iterations.
    fn file_count(&self) -> u64 {
        self.files * self.iterations * self.tops.len() as u64
    }

    /// Paths of the `-d` folders.
    fn tops(&self) -> impl Iterator<Item = &PathBuf> {
        self.tops.iter().map(|top| &top.path)
    }

    /// Runs every iteration as the phase [`PHASE`] and claims its calls.
    fn run(&self, round: &mut RoundContext) -> Result<Outcome, WorkloadError> {
        let posts = round.posts(self.tops.len());
        let ((outcome, workers), in_place) = round.phase(PHASE, self.file_count(), || {
            let (mut outcome, mut workers, mut in_place) = (Outcome::default(), Vec::<Worker>::new(), 0);
            outcome.subdirs = vec![BTreeSet::new(); self.tops.len()];
            let origin = clock::now(self.clock);
            for iteration in 0..self.iterations {
                let begun = clock::now(self.clock) - origin;
                let mut tops: Vec<&Top> = self.tops.iter().collect();
                let crew = parallel::crew(
                    Crew::Forked,
                    self.clock,
                    &posts,
                    &mut tops,
                    |top, _| self.child(top, iteration, origin),
                    |open| open(),
                )?;
                in_place += crew.in_place;
                let started = |worker: Worker| Worker { started: worker.started + begun, ..worker };
                workers.extend(crew.workers.into_iter().map(started));
                let children: Vec<ChildReport> =
                    crew.values.iter().filter_map(|values| ChildReport::decode(values)).collect();
                for (child, subdirs) in children.iter().zip(&mut outcome.subdirs) {
                    outcome.made += child.made;
                    outcome.refused += child.refused;
                    let passed = (0..child.subdirs).map(|step| (child.first_subdir + step) % self.subdirs);
                    subdirs.extend(passed.filter(|_| self.subdirs > 1));
                }
                let full_percent = self.full_percent()?;
                outcome.lines.push(Line { full_percent, ..Line::of(&children) });
            }
            Ok(((outcome, workers), in_place))
        })?;
        round.add_workers(workers, in_place);
        self.count(round, &outcome);
        Ok(outcome)
    }

    /// `FSUse%` of the first folder, as get_df_full() has it but not cut to a whole number.
    fn full_percent(&self) -> Result<f64, WorkloadError> {
        let Some(top) = self.tops.first() else { return Ok(0.0) };
        let space = sys::files::space(&top.c_path).map_err(|errno| failed("statfs", &top.path, errno))?;
        let used = space.blocks.saturating_sub(space.available);
        Ok(if space.blocks == 0 { 0.0 } else { 100.0 * used as f64 / space.blocks as f64 })
    }

    /// write(2) calls of one file: at least one, also of nothing.
    fn writes_each(&self) -> u64 {
        self.size.div_ceil(self.block.len() as u64).max(1)
    }

    fn count(&self, round: &mut RoundContext, outcome: &Outcome) {
        let (files, threads) = (self.file_count(), self.tops.len() as u64);
        let again = match self.method.again {
            Again::None => 0,
            Again::First => threads * self.iterations,
            Again::Reverse | Again::InOrder => files,
        };
        round.count("mkdir", files + threads * self.iterations, outcome.made);
        let fsyncs = again + u64::from(self.method.before_close) * files;
        let syncs = u64::from(self.method.sync) * threads * self.iterations;
        for (call, count) in [
            ("openat", files + again),
            ("write", files * self.writes_each()),
            ("fsync", fsyncs),
            ("sync", syncs),
            ("close", files + again),
            ("statfs", (threads + 1) * self.iterations),
        ] {
            if count > 0 {
                round.count(call, count, count);
            }
        }
    }

    /// thread_work(): what a freshly forked child does in one iteration.
    fn child(&self, top: &Top, iteration: u64, origin: u64) -> Result<Share, WorkloadError> {
        let now = || clock::now(self.clock);
        let second = |ticks: u64| self.epoch + ticks.saturating_sub(origin) / SECOND;
        let error = |call, errno| failed(call, &top.path, errno);
        let mut policy = TimeHash::new(second(now()), self.subdirs);
        let mut target = Target::new(&top.c_path, self.subdirs);
        let mut named = vec![(1, 1); self.files as usize];
        let letters = |file: usize| &top.letters[iteration as usize + file * LETTERS..][..LETTERS];
        if let Err(errno) = sys::files::mkdir_path(&top.c_path)
            && errno != Errno::EXIST
        {
            return Err(error("mkdir", errno));
        }
        let space = sys::files::space(&top.c_path).map_err(|errno| error("statfs", errno))?;
        if space.available.saturating_mul(space.block_bytes) < self.size * self.files {
            return Err(error("statfs", Errno::NOSPC));
        }
        let mut report = ChildReport { files: self.files, ..ChildReport::default() };
        let mut entered = None;
        let begun = now();
        for (number, entry) in named.iter_mut().enumerate() {
            let naming = second(now());
            let subdir = policy.pick(naming);
            if entered.map(|(subdir, _)| subdir) != Some(subdir) {
                target.enter(subdir);
                target.stamp(naming);
                report.subdirs += 1;
            } else if entered != Some((subdir, naming)) {
                target.stamp(naming);
            }
            entered = Some((subdir, naming));
            *entry = (subdir, naming);
            match sys::files::mkdir_path(target.folder()) {
                Ok(()) => report.made += 1,
                Err(Errno::EXIST) => report.refused += 1,
                Err(errno) => return Err(error("mkdir", errno)),
            }
            target.letters(letters(number));
            self.file(&target, &mut report.costs).map_err(|(call, errno)| error(call, errno))?;
        }
        report.first_subdir = named.first().map_or(0, |(subdir, _)| *subdir);
        if self.method.sync {
            let before = now();
            sys::files::sync();
            report.costs[SYNC].add(now() - before);
        }
        let mut again = |number: usize| {
            let (subdir, naming) = named[number];
            target.enter(subdir);
            target.stamp(naming);
            target.letters(letters(number));
            let before = now();
            let file = sys::files::open_path(target.file()).map_err(|errno| error("openat", errno))?;
            sys::fsync(file.as_fd()).map_err(|errno| error("fsync", errno))?;
            sys::close(file).map_err(|errno| error("close", errno))?;
            Ok::<u64, WorkloadError>(now() - before)
        };
        match self.method.again {
            Again::None => {}
            // The original leaves the extremes alone here.
            Again::First => report.costs[FSYNC].sum += again(0)?,
            Again::Reverse => {
                for number in (0..named.len()).rev() {
                    report.costs[FSYNC].add(again(number)?);
                }
            }
            Again::InOrder => {
                for number in 0..named.len() {
                    report.costs[FSYNC].add(again(number)?);
                }
            }
        }
        report.loop_ticks = now() - begun;
        for at in [CREAT, FSYNC, SYNC, CLOSE] {
            report.costs[at].averaged = report.costs[at].sum as f64;
        }
        Ok(Share { ops: self.files, values: report.encode() })
    }

    /// The calls on one file, each timed: open, write_file(), fsync before close, close.
    #[inline]
    fn file(&self, target: &Target, costs: &mut [Cost; 5]) -> Result<(), (&'static str, Errno)> {
        let now = || clock::now(self.clock);
        let before = now();
        let file = sys::files::create_path(target.file()).map_err(|errno| ("openat", errno))?;
        costs[CREAT].add(now() - before);
        let (mut left, mut spent, mut calls) = (self.size, 0, 0_u64);
        loop {
            let piece = &self.block[..left.min(self.block.len() as u64) as usize];
            let before = now();
            let written = sys::write(file.as_fd(), piece).map_err(|errno| ("write", errno))?;
            let ticks = now() - before;
            // As the original, which gives up after a short write.
            if written != piece.len() {
                return Err(("write", Errno::NOSPC));
            }
            costs[WRITE].add(ticks);
            spent += ticks;
            calls += 1;
            left -= written as u64;
            if left == 0 {
                break;
            }
        }
        costs[WRITE].averaged += spent as f64 / calls as f64;
        if self.method.before_close {
            let before = now();
            sys::fsync(file.as_fd()).map_err(|errno| ("fsync", errno))?;
            costs[FSYNC].add(now() - before);
        }
        let before = now();
        sys::close(file).map_err(|errno| ("close", errno))?;
        costs[CLOSE].add(now() - before);
        Ok(())
    }
}
