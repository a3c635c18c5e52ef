//! Threads that write to disjoint parts of one file while a folder of another filesystem is, or is
//! not, watched. Read [`SharedWrite`] first, then [`Elsewhere`].

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;

use crate::budget::{OPERATIONS, SECONDS};
use crate::parallel::{Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, EVENT_BYTES, Heard};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo,
};

const WATCHED: &str = "watched";
/// Bytes of one slot and of one write.
const SLOT: usize = 4096;
/// Where another filesystem may be mounted, best first. A guest has tmpfs on /tmp and /run.
const CANDIDATES: [&str; 4] = ["/dev/shm", "/run", "/tmp", "/var/tmp"];
/// `TMPFS_MAGIC` (uapi `linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// What slots hold before the timed writes.
const OLD: u8 = 0xa5;
/// Ticks of both clocks in a second.
const TICKS_PER_SECOND: f64 = 1e9;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "shared-write",
    title: "shared writes, a watch elsewhere",
    summary: "Threads write whole slots of 4 KiB, each in its own part of one file, over and over, while an \
              inotify watch is on a folder of another filesystem where nothing happens, or while there is \
              no watch at all. The time limit is hard: what was written until then is reported.",
    source: "Robin Holt's mail to linux-kernel of 2006-02-23: 512 threads writing parts of one file on XFS took 22 \
             minutes instead of 6 seconds, 220 times as long, once udevd watched a folder elsewhere; hence the \
             flag in dentries (commit c32ccd87bfd1) and the time limit here",
    scenarios: &[
        ScenarioInfo { name: "unwatched", summary: "no watch anywhere", default: true },
        ScenarioInfo {
            name: WATCHED,
            summary: "one watch on a folder of the other filesystem",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "threads",
            summary: "threads that write",
            unit: "threads",
            domain: Domain::Integer { default: 4, min: 1, max: 512 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "slots",
            summary: "slots of each thread, written in turn",
            unit: "slots",
            domain: Domain::Integer { default: 16, min: 1, max: 65_536 },
            scenarios: &[],
        },
        ParameterInfo {
            name: OPERATIONS,
            summary: "writes of each thread",
            unit: "writes",
            domain: Domain::Integer { default: 10_000, min: 1, max: 100_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: SECONDS,
            summary: "a thread stops after this time whatever is left to do, and the measure `done` says so; \
                      0 is no limit",
            unit: "seconds",
            domain: Domain::Integer { default: 60, min: 0, max: 3600 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: "write",
        operation: "4 KiB written by one thread",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        MeasureInfo {
            name: "rate",
            phase: "write",
            summary: "writes of all threads in a second of the clock",
            unit: "writes/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "done",
            phase: "write",
            summary: "writes done of those asked for; below 1 the time was over before",
            unit: "",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "other_is_tmpfs",
            phase: "write",
            summary: "1 if the other filesystem is tmpfs, as in the source",
            unit: "",
            better: Better::Neither,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: "writes",
            summary: "every write returned 4096",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: WATCHED, inject: "pwrite64:retval=512:when=5" },
        },
        CheckInfo {
            name: "slots",
            summary: "every slot that was written to holds what its thread writes, and no other does",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: WATCHED, inject: "pwrite64:retval=4096:when=4+" },
        },
        CheckInfo {
            name: "bytes",
            summary: "the file is as long as before",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: WATCHED, inject: "write:retval=4096:when=1" },
        },
        CheckInfo {
            name: "other filesystem",
            summary: "the watched folder is on another filesystem than the file (st_dev)",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_folder_of_the_same_filesystem_fails_the_check"),
        },
        CheckInfo {
            name: "events",
            summary: "nothing was heard from the watched folder",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("an_event_in_the_watched_folder_fails_the_check"),
        },
    ],
    refusals: &[],
    scale: OPERATIONS,
    presets: &[
        Preset {
            name: "source",
            summary: "the mail's 512 threads; sweep `threads` over 1, 2, 4 to the number of CPUs",
            values: &[
                ("threads", Setting::Integer(512)),
                ("slots", Setting::Integer(1)),
                ("operations", Setting::Integer(100_000)),
                ("seconds", Setting::Integer(300)),
            ],
        },
        Preset {
            name: "guest",
            summary: "4 threads of 10,000 writes, at most 60 seconds of the guest's clock",
            values: &[
                ("threads", Setting::Integer(4)),
                ("slots", Setting::Integer(16)),
                ("operations", Setting::Integer(10_000)),
                ("seconds", Setting::Integer(60)),
            ],
        },
        Preset {
            name: "quick",
            summary: "2 threads of 50 writes, for a first look",
            values: &[
                ("threads", Setting::Integer(2)),
                ("slots", Setting::Integer(4)),
                ("operations", Setting::Integer(50)),
                ("seconds", Setting::Integer(10)),
            ],
        },
    ],
};

/// The workload `shared-write`.
pub(crate) struct SharedWrite;

/// One thread's part of the file.
struct Part {
    first_slot: u64,
    slots: u64,
    bytes: Vec<u8>,
    turns: u64,
    good: u64,
}

impl Workload for SharedWrite {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let root = round.mount_point().to_owned();
        let elsewhere = Elsewhere::find(&root, &CANDIDATES)?;
        let (threads, slots) = (round.integer("threads")?, round.integer("slots")?);
        let path = root.join("shared");
        let file = fill(&root, &path, threads * slots)?;
        let budget = round.budget()?;
        let asked = threads * round.integer(OPERATIONS)?;
        let mut parts: Vec<Part> = (0..threads)
            .map(|thread| Part {
                first_slot: thread * slots,
                slots,
                bytes: vec![mark_of(thread); SLOT],
                turns: 0,
                good: 0,
            })
            .collect();
        round.sync()?;

        let instance = if round.scenario() == WATCHED { Some(elsewhere.watch()?) } else { None };
        round.parallel("write", Crew::Threads, &mut parts, |part, _| {
            let mut budget = budget;
            let (mut good, mut slot) = (0, 0);
            while budget.next() {
                let offset = (part.first_slot + slot) * SLOT as u64;
                let written = notify::write_at(file.as_fd(), &part.bytes, offset)
                    .map_err(|errno| failed("pwrite64", &path, errno))?;
                good += u64::from(written == SLOT);
                slot += 1;
                if slot == part.slots {
                    slot = 0;
                }
            }
            (part.turns, part.good) = (budget.turns(), good);
            Ok(Share { ops: part.turns, ..Share::default() })
        })?;

        let turns: u64 = parts.iter().map(|part| part.turns).sum();
        let good = parts.iter().map(|part| part.good).sum();
        let elapsed = round.latest("write").map_or(0, |phase| phase.elapsed);
        round.measure("write", "rate", turns as f64 * TICKS_PER_SECOND / elapsed.max(1) as f64);
        round.measure("write", "done", turns as f64 / asked as f64);
        round.measure("write", "other_is_tmpfs", f64::from(u8::from(elsewhere.is_tmpfs)));
        round.count("pwrite64", turns, good);
        round.check("writes", turns, good);
        verify(round, &file, &path, &parts)?;
        elsewhere.judge(round, instance.as_ref())
    }
}

/// What the slots of a thread hold after it wrote them.
fn mark_of(thread: u64) -> u8 {
    // Never [`OLD`], nor 0.
    1 + (thread % 0x80) as u8
}

/// Makes the file with `slots` slots and one behind them, which nobody writes to again.
fn fill(root: &Path, path: &Path, slots: u64) -> Result<OwnedFd, WorkloadError> {
    let parent = open_root(root)?;
    let file = sys::create(parent.as_fd(), c"shared").map_err(|errno| failed("openat", path, errno))?;
    for _ in 0..=slots {
        let written = sys::write(file.as_fd(), &[OLD; SLOT]).map_err(|errno| failed("write", path, errno))?;
        if written != SLOT {
            return Err(failed("write", path, Errno::NOSPC));
        }
    }
    Ok(file)
}

/// Reads every slot.
fn verify(
    round: &mut RoundContext,
    file: &OwnedFd,
    path: &Path,
    parts: &[Part],
) -> Result<(), WorkloadError> {
    // Turn by turn, so a slot was written to if its thread had more turns than slots before it.
    let marks = parts.iter().enumerate().flat_map(|(thread, part)| {
        (0..part.slots).map(move |slot| if part.turns > slot { mark_of(thread as u64) } else { OLD })
    });
    let (mut slots, mut right) = (0, 0);
    let mut found = vec![0; SLOT];
    for mark in marks.chain([OLD]) {
        let length = notify::read_at(file.as_fd(), &mut found, slots * SLOT as u64)
            .map_err(|errno| failed("pread64", path, errno))?;
        right += u64::from(length == SLOT && found.iter().all(|byte| *byte == mark));
        slots += 1;
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| failed("fstat", path, errno))?;
    round.check("slots", slots, right);
    round.check("bytes", slots * SLOT as u64, stat.st_size);
    Ok(())
}

/// Tells folders of one process apart.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A folder of our own on another filesystem, which goes when this is dropped.
struct Elsewhere {
    path: PathBuf,
    c_path: CString,
    device: u64,
    own_device: u64,
    is_tmpfs: bool,
}

impl Elsewhere {
    /// Makes a folder in the first of `candidates` that is on another filesystem than `root`, and
    /// on tmpfs if one of them is.
    fn find(root: &Path, candidates: &[&str]) -> Result<Self, WorkloadError> {
        let own_device = device_of(root)?;
        let mut places: Vec<(&Path, bool)> = candidates
            .iter()
            .map(Path::new)
            .filter(|place| device_of(place).is_ok_and(|device| device != own_device))
            .map(|place| (place, is_tmpfs(place)))
            .collect();
        places.sort_by_key(|(_, is_tmpfs)| !is_tmpfs);
        let made =
            places.into_iter().find_map(|(place, is_tmpfs)| Self::make(place, own_device, is_tmpfs).ok());
        made.ok_or_else(|| WorkloadError::Unavailable {
            what: format!(
                "a folder that can be written to on another filesystem than {} ({} were tried)",
                root.display(),
                candidates.join(", ")
            ),
            next: "mount a tmpfs on /tmp or /run",
        })
    }

    fn make(place: &Path, own_device: u64, is_tmpfs: bool) -> Result<Self, WorkloadError> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("kdelta-watched-{}-{number}", std::process::id()));
        let c_path = c_path(&path)?;
        sys::mkdir(rustix::fs::CWD, &c_path).map_err(|errno| failed("mkdirat", &path, errno))?;
        let mut made = Self { path, c_path, device: 0, own_device, is_tmpfs };
        made.device = device_of(&made.path)?;
        Ok(made)
    }

    fn watch(&self) -> Result<OwnedFd, WorkloadError> {
        let instance = watch::instance()?;
        watch::watch(&instance, &self.c_path, WatchFlags::ALL_EVENTS)?;
        Ok(instance)
    }

    /// Checks that it is elsewhere, and that nothing happened there.
    fn judge(&self, round: &mut RoundContext, instance: Option<&OwnedFd>) -> Result<(), WorkloadError> {
        let (own, other) = (self.own_device, self.device);
        round.check_that("other filesystem", format!("not {own}"), other, own != other);
        let mut heard = Heard::nothing(WatchFlags::ALL_EVENTS, 0);
        if let Some(instance) = instance {
            heard
                .drain(instance.as_fd(), &mut vec![0; EVENT_BYTES])
                .map_err(|(call, errno)| failed(call, &self.path, errno))?;
        }
        round.check("events", 0, heard.wanted + heard.other + heard.ignored + heard.overflows);
        Ok(())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let name: &CStr = &self.c_path;
        let _ = sys::rmdir(rustix::fs::CWD, name);
    }
}

fn device_of(path: &Path) -> Result<u64, WorkloadError> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| failed("stat", path, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    Ok(metadata.st_dev())
}

fn is_tmpfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|filesystem| filesystem.f_type as u64 == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::watch::tests::assert_measures_declared;
    use crate::{find, resolve, run};

    const SMALL: [(&str, Setting); 3] = [
        ("threads", Setting::Integer(3)),
        ("slots", Setting::Integer(4)),
        ("operations", Setting::Integer(30)),
    ];

    fn context(folder: &Path) -> RoundContext {
        let request = request("shared-write/watched", folder, &SMALL);
        let scenario = find("shared-write/watched").expect("known").scenario;
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        RoundContext::for_test(request, scenario, parameters)
    }

    fn failures(round: RoundContext) -> Vec<String> {
        let checks = round.finish().checks.into_iter().filter(|check| !check.passed);
        checks.map(|check| check.name).collect()
    }

    #[test]
    fn every_thread_writes_its_slots_with_and_without_a_watch_elsewhere() {
        for scenario in INFO.scenarios {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let name = format!("shared-write/{}", scenario.name);
            let round = match run(&request(&name, folder.path(), &SMALL), None) {
                Err(WorkloadError::Unavailable { what, .. }) => {
                    eprintln!("skipped: there is not {what}");
                    return;
                }
                round => round.expect("runs"),
            };
            assert_sound(&round);
            assert_measures_declared(&INFO, scenario.name, &round);
            let phase = &round.phases[0];
            assert_eq!((phase.ops, phase.workers.len(), phase.measures["done"]), (90, 3, 1.0));
            assert_eq!(round.census["pwrite64"].succeeded, 90);
        }
    }

    #[test]
    fn a_round_whose_time_is_over_reports_what_it_did() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = [
            ("threads", Setting::Integer(2)),
            ("operations", Setting::Integer(100_000_000)),
            ("seconds", Setting::Integer(1)),
        ];
        match run(&request("shared-write/unwatched", folder.path(), &parameters), None) {
            Err(WorkloadError::Unavailable { what, .. }) => eprintln!("skipped: there is not {what}"),
            round => {
                let round = round.expect("runs");
                assert_sound(&round);
                let (phase, done) = (&round.phases[0], round.phases[0].measures["done"]);
                assert!(done > 0.0 && done < 1.0, "{done}");
                assert_eq!(round.census["pwrite64"].attempted, phase.ops);
                assert!(phase.elapsed >= 1_000_000_000);
            }
        }
    }

    #[test]
    fn a_folder_of_the_same_filesystem_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let same = folder.path().to_str().expect("a path");
        let refused = Elsewhere::find(folder.path(), &[same, "/nonexistent"]).err().expect("nowhere else");
        assert!(refused.to_string().contains("mount a tmpfs"), "{refused}");
        let own = device_of(folder.path()).expect("a device");
        let elsewhere = Elsewhere::make(folder.path(), own, false).expect("a folder");
        let mut round = context(folder.path());
        elsewhere.judge(&mut round, None).expect("judged");
        assert_eq!(failures(round), ["other filesystem"]);
    }

    #[test]
    fn an_event_in_the_watched_folder_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let own = device_of(folder.path()).expect("a device");
        let elsewhere = Elsewhere::make(folder.path(), own + 1, false).expect("a folder");
        let instance = elsewhere.watch().expect("a watch");
        let stray = elsewhere.path.join("stray");
        std::fs::write(&stray, "x").expect("a file");
        let mut round = context(folder.path());
        elsewhere.judge(&mut round, Some(&instance)).expect("judged");
        assert_eq!(failures(round), ["events"]);
        std::fs::remove_file(stray).expect("there");
    }

    #[test]
    fn the_folder_elsewhere_goes_with_the_round() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let elsewhere = Elsewhere::make(folder.path(), 0, false).expect("a folder");
        let path = elsewhere.path.clone();
        assert!(path.is_dir());
        drop(elsewhere);
        assert!(!path.exists());
    }
}
