//! Allocating files step by step from several processes, after the test fallocate2 of will-it-scale.
//! Read [`Fallocate`] first.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::budget::{Budget, OPERATIONS, SECONDS_PARAMETER};
use crate::parallel::{Crew, Share};
use crate::round::{failed, open_root};
use crate::sys::{namespace, space};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, sys,
};

const PHASE: &str = "allocate";
/// `stx_blocks` counts in these (statx(2)).
const STAT_BLOCK_BYTES: u64 = 512;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "fallocate",
    title: "allocate files in steps",
    summary: "Processes, each with a file in a folder of its own, allocate it step by step up to its full size, \
              truncate it to nothing and begin again. Before the phase every file is filled once, which proves \
              that all fit.",
    source: "the test fallocate2 of will-it-scale with the sizes of a report about containers: steps of 1 MiB up \
             to 128 MiB",
    scenarios: &[ScenarioInfo { name: "steps", summary: "a file for each process", default: true }],
    parameters: &[
        ParameterInfo {
            name: "workers",
            summary: "processes",
            unit: "processes",
            domain: Domain::Integer { default: 1, min: 1, max: 1024 },
            scenarios: &[],
        },
        ParameterInfo {
            name: OPERATIONS,
            summary: "fallocate calls of each process",
            unit: "operations",
            domain: Domain::Integer { default: 1_024, min: 1, max: 1_000_000_000 },
            scenarios: &[],
        },
        SECONDS_PARAMETER,
        ParameterInfo {
            name: "step_bytes",
            summary: "bytes that one call allocates",
            unit: "bytes",
            domain: Domain::Integer { default: 1 << 20, min: 4096, max: 1 << 30 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "file_bytes",
            summary: "size at which a file is truncated; rounded up to whole steps",
            unit: "bytes",
            domain: Domain::Integer { default: 128 << 20, min: 4096, max: 1 << 40 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one fallocate call; a truncation after each whole file is part of it",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        MeasureInfo {
            name: "per_second",
            phase: PHASE,
            summary: "fallocate calls of all processes together in a second of the clock",
            unit: "1/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "slowest_per_second",
            phase: PHASE,
            summary: "fallocate calls in a second of the slowest process",
            unit: "1/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "fastest_per_second",
            phase: PHASE,
            summary: "fallocate calls in a second of the fastest process",
            unit: "1/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "cpu_share",
            phase: PHASE,
            summary: "CPU time of the processes, of all that they could have had: from 0.8 on the phase is bound by \
                      the CPU and not by the disk (rules M5 and M6)",
            unit: "ratio",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "disk_bytes",
            phase: PHASE,
            summary: "size of the filesystem",
            unit: "bytes",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "fill_percent",
            phase: PHASE,
            summary: "how full it is when every file has its full size, as seen before the phase",
            unit: "%",
            better: Better::Neither,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: "size",
            summary: "each file has the size that its last calls gave it",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "steps", inject: "fallocate:retval=0:when=40" },
        },
        CheckInfo {
            name: "allocated",
            summary: "each file has no fewer blocks than its size asks for, so that no call before the last did \
                      nothing",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "steps", inject: "fallocate:retval=0:when=35" },
        },
    ],
    refusals: &[],
    scale: OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "4 processes, 128 MiB in steps of 1 MiB, 30 s; `workers` is to be swept up to the CPUs",
            values: &[
                ("workers", Setting::Integer(4)),
                (OPERATIONS, Setting::Integer(1_000_000_000)),
                ("seconds", Setting::Integer(30)),
                ("step_bytes", Setting::Integer(1 << 20)),
                ("file_bytes", Setting::Integer(128 << 20)),
            ],
        },
        Preset {
            name: "guest",
            summary: "2 processes, 32 MiB in steps of 1 MiB, so that half of a disk of 512 MiB stays free",
            values: &[
                ("workers", Setting::Integer(2)),
                (OPERATIONS, Setting::Integer(1_024)),
                ("step_bytes", Setting::Integer(1 << 20)),
                ("file_bytes", Setting::Integer(32 << 20)),
            ],
        },
        Preset {
            name: "quick",
            summary: "2 processes, 1 MiB in steps of 64 KiB, two and a half times, for a first look",
            values: &[
                ("workers", Setting::Integer(2)),
                (OPERATIONS, Setting::Integer(40)),
                ("step_bytes", Setting::Integer(65_536)),
                ("file_bytes", Setting::Integer(1 << 20)),
            ],
        },
    ],
};

/// The workload `fallocate`.
pub(crate) struct Fallocate;

impl Workload for Fallocate {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let mut members = Member::prepare(round)?;
        let full = fill(round, &members)?;
        round.sync()?;
        let ends = round.parallel(PHASE, Crew::Processes, &mut members, |member, _| member.play())?;
        report(round, full);
        let (mut sizes, mut right_sizes, mut allocated) = (0, 0, 0);
        for (member, end) in members.iter().zip(&ends) {
            let [calls, truncations, size] = <[u64; 3]>::try_from(end.as_slice()).unwrap_or_default();
            round.count("fallocate", calls, calls);
            round.count("ftruncate", truncations, truncations);
            let found = member.stat()?;
            sizes += 1;
            right_sizes += u64::from(found.stx_size == size);
            allocated += u64::from(found.stx_blocks * STAT_BLOCK_BYTES >= size);
        }
        round.check("size", format!("{sizes} files"), format!("{right_sizes} files"));
        round.check("allocated", format!("{sizes} files"), format!("{allocated} files"));
        Ok(())
    }
}

/// One process and its file.
struct Member {
    path: PathBuf,
    file: OwnedFd,
    budget: Budget,
    step: u64,
    full: u64,
}

impl Member {
    fn prepare(round: &mut RoundContext) -> Result<Vec<Self>, WorkloadError> {
        let (workers, step) = (round.integer("workers")?, round.integer("step_bytes")?);
        let full = round.integer("file_bytes")?.next_multiple_of(step);
        let budget = round.budget()?;
        sys::allow_open_files(workers)
            .map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", round.mount_point(), errno))?;
        let root = open_root(round.mount_point())?;
        let mut members = Vec::with_capacity(workers as usize);
        for number in 0..workers {
            let text = format!("p{number}");
            let path = round.mount_point().join(&text).join("file");
            let name = CString::new(text).unwrap_or_default();
            sys::mkdir(root.as_fd(), &name).map_err(|errno| failed("mkdirat", &path, errno))?;
            let dir = sys::open_dir(root.as_fd(), &name).map_err(|errno| failed("openat", &path, errno))?;
            let file = sys::create(dir.as_fd(), c"file").map_err(|errno| failed("openat", &path, errno))?;
            members.push(Self { path, file, budget, step, full });
        }
        Ok(members)
    }

    /// Timed: nothing here but system calls and their arguments.
    fn play(&mut self) -> Result<Share, WorkloadError> {
        let (mut size, mut truncations) = (0, 0);
        while self.budget.next() {
            space::fallocate(self.file.as_fd(), size, self.step)
                .map_err(|errno| failed("fallocate", &self.path, errno))?;
            size += self.step;
            if size == self.full {
                space::truncate(self.file.as_fd(), 0)
                    .map_err(|errno| failed("ftruncate", &self.path, errno))?;
                (size, truncations) = (0, truncations + 1);
            }
        }
        let ops = self.budget.turns();
        Ok(Share { ops, values: vec![ops, truncations, size] })
    }

    fn stat(&self) -> Result<rustix::fs::Statx, WorkloadError> {
        namespace::stat_open(self.file.as_fd()).map_err(|errno| failed("statx", &self.path, errno))
    }
}

/// The filesystem with every file at its full size.
#[derive(Clone, Copy)]
struct Full {
    disk_bytes: f64,
    percent: f64,
}

/// Gives every file its full size once, looks how full the filesystem is, and empties the files.
fn fill(round: &mut RoundContext, members: &[Member]) -> Result<Full, WorkloadError> {
    let count = members.len() as u64;
    let no_room = || WorkloadError::Unavailable {
        what: format!("room for {count} files of {} bytes", members.first().map_or(0, |member| member.full)),
        next: "lower `workers` or `file_bytes`, or take a larger disk",
    };
    let root = open_root(round.mount_point())?;
    // Asked before anything is taken: filling the disk would hurt whoever else uses it.
    let stat = space::statfs(root.as_fd()).map_err(|errno| failed("fstatfs", round.mount_point(), errno))?;
    let wanted: f64 = members.iter().map(|member| member.full as f64).sum();
    if wanted > stat.f_bavail as f64 * stat.f_bsize as f64 {
        return Err(no_room());
    }
    for member in members {
        space::fallocate(member.file.as_fd(), 0, member.full).map_err(|errno| match errno {
            Errno::NOSPC => no_room(),
            errno => failed("fallocate", &member.path, errno),
        })?;
    }
    let stat = space::statfs(root.as_fd()).map_err(|errno| failed("fstatfs", round.mount_point(), errno))?;
    for member in members {
        space::truncate(member.file.as_fd(), 0).map_err(|errno| failed("ftruncate", &member.path, errno))?;
    }
    round.count("fallocate", count, count);
    round.count("ftruncate", count, count);
    let (blocks, free) = (stat.f_blocks as f64, stat.f_bfree as f64);
    Ok(Full { disk_bytes: blocks * stat.f_bsize as f64, percent: (blocks - free) / blocks * 100.0 })
}

fn report(round: &mut RoundContext, full: Full) {
    let Some(phase) = round.latest(PHASE) else { return };
    let rates: Vec<f64> =
        phase.workers.iter().map(|worker| worker.ops as f64 * 1e9 / worker.elapsed.max(1) as f64).collect();
    let cpus = phase.workers.len().min(sys::online_cpus()) as f64;
    let cpu_ns: u64 = phase.workers.iter().map(|worker| worker.cpu_ns).sum();
    let cpu_share = cpu_ns as f64 / (phase.elapsed as f64 * cpus);
    let per_second = phase.ops as f64 * 1e9 / phase.elapsed as f64;
    round.measure(PHASE, "per_second", per_second);
    round.measure(PHASE, "slowest_per_second", rates.iter().copied().fold(f64::INFINITY, f64::min));
    round.measure(PHASE, "fastest_per_second", rates.iter().copied().fold(0.0, f64::max));
    round.measure(PHASE, "cpu_share", cpu_share);
    round.measure(PHASE, "disk_bytes", full.disk_bytes);
    round.measure(PHASE, "fill_percent", full.percent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    #[test]
    fn files_are_filled_and_emptied_by_every_process() {
        let folder =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder");
        let parameters = INFO.preset("quick").expect("a preset").values;
        let round = run(&request("fallocate/steps", folder.path(), parameters), None).expect("runs");
        assert_sound(&round);
        let phase = &round.phases[0];
        assert_eq!((phase.ops, phase.workers.len()), (80, 2));
        // Two fillings in the phase and one before it, for each of two processes.
        assert_eq!(round.census["ftruncate"].attempted, 2 * 3);
        assert_eq!(round.census["fallocate"].attempted, 80 + 2);
        assert!(phase.measures["cpu_share"] > 0.0 && phase.measures["fill_percent"] > 0.0);
        assert!(phase.measures["slowest_per_second"] <= phase.measures["fastest_per_second"]);
    }

    #[test]
    fn the_full_size_is_rounded_up_to_whole_steps() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = [
            ("file_bytes", Setting::Integer(10_000)),
            ("step_bytes", Setting::Integer(4096)),
            (OPERATIONS, Setting::Integer(7)),
        ];
        let round = run(&request("fallocate/steps", folder.path(), &parameters), None).expect("runs");
        assert_sound(&round);
        assert_eq!(round.census["ftruncate"].attempted, 1 + 2);
        let size = std::fs::metadata(folder.path().join("p0/file")).expect("the file").len();
        assert_eq!(size, 4096);
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = [("workers", Setting::Integer(16)), ("file_bytes", Setting::Integer(1 << 40))];
        let error = run(&request("fallocate/steps", folder.path(), &parameters), None);
        match error.expect_err("does not fit") {
            WorkloadError::Unavailable { next, .. } => assert!(next.contains("file_bytes")),
            // A filesystem with a limit on the size of a file.
            error => assert!(error.to_string().contains("fallocate"), "{error}"),
        }
    }
}
