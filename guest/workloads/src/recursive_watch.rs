//! Processes that each watch a subtree of its own, as `inotifywait -r` does: a gate for the path that
//! `connector` times, and no timing. Read [`RecursiveWatch`] first, then `watch_subtree`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kdelta_wire::Clock;
use rustix::fs::FileType;
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::parallel::{Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, EVENT_BYTES, Heard, Limit};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock,
};

const GATE: &str = "gate";
const TRACED: &str = "traced-gate";
/// Folders in a folder.
const FANOUT: u64 = 8;
/// Ticks of a millisecond: watchers that add in the same one are at it together.
const BUCKET: u64 = 1_000_000;
/// Seconds to wait for another watcher, after which it is taken for dead.
const PATIENCE: i64 = 60;
/// Making, closing and removing the probe file.
const PROBE_EVENTS: u64 = 3;
/// Instances that are left to others.
const MARGIN: u64 = 8;

const fn fact(name: &'static str, summary: &'static str, unit: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: "gate", summary, unit, better: Better::Neither, scenarios: &[] }
}

const fn counted(name: &'static str, summary: &'static str) -> CheckInfo {
    CheckInfo {
        name,
        summary,
        scenarios: &[TRACED],
        filesystems: &[],
        proof: Proof::Test("traced_counts_that_differ_fail_their_checks"),
    }
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "recursive-watch",
    title: "recursive watchers (gate, no timing)",
    summary: "A gate: it says whether a real topology of watchers takes the path that `connector` times, and its \
              phase must not be compared. Processes start together, each watches every folder of its own \
              subtree, hears of a probe file that its neighbour makes and removes, and removes its watches.",
    source: "the real-topology gate of Chengfeng Lin's report of slower concurrent inotify watch setup \
             (linux-regression-evidence: 8 processes of inotifywait -m -r, 4,177 folders of a kernel tree)",
    scenarios: &[
        ScenarioInfo {
            name: GATE,
            summary: "counts what the kernel tells of the watches (/proc/PID/fdinfo) and of their removal",
            default: true,
        },
        ScenarioInfo {
            name: TRACED,
            summary: "counts with tracefs, in addition, the marks added and the connectors allocated and \
                      detached; needs root and a kernel with CONFIG_FUNCTION_TRACER",
            default: false,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "watchers",
            summary: "processes, each with its subtree and its inotify instance",
            unit: "processes",
            domain: Domain::Integer { default: 8, min: 2, max: 64 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "dirs",
            summary: "folders of each subtree, its root included; 8 in each folder",
            unit: "folders",
            domain: Domain::Integer { default: 522, min: 1, max: 100_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "cpus",
            summary: "fewest CPUs that must have added watches; a guest with one CPU cannot pass with more than 1",
            unit: "CPUs",
            domain: Domain::Integer { default: 2, min: 1, max: 64 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: "gate",
        operation: "one folder watched and unwatched; not a timing, compare no cost of it",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        fact("cpus", "CPUs that watches were added from", "CPUs"),
        fact("transitions", "adds that followed one of another process", "adds"),
        fact("shared_milliseconds", "milliseconds in which more than one process added watches", "ms"),
        fact("most_at_once", "most processes that added watches in one millisecond", "processes"),
        Limit::Instances.measure("gate", &[]),
        Limit::Watches.measure("gate", &[]),
    ],
    checks: &[
        CheckInfo {
            name: "watches",
            summary: "the kernel has as many watches as a walk finds folders",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: GATE, inject: "inotify_add_watch:retval=7:when=3" },
        },
        CheckInfo {
            name: "inodes",
            summary: "the watches of a process are of distinct inodes, so that each has a connector",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("what_the_kernel_tells_of_watches_can_fail_the_checks"),
        },
        CheckInfo {
            name: "superblocks",
            summary: "all watches are on one filesystem",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("what_the_kernel_tells_of_watches_can_fail_the_checks"),
        },
        CheckInfo {
            name: "removals",
            summary: "the kernel said of every watch that it is gone (IN_IGNORED)",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: GATE, inject: "inotify_rm_watch:retval=0:when=3" },
        },
        CheckInfo {
            name: "probe events",
            summary: "every watcher heard of its probe file made, closed and removed",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: GATE, inject: "unlinkat:retval=0:when=1" },
        },
        CheckInfo {
            name: "other events",
            summary: "no queue was full, and nothing else happened",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("what_the_kernel_tells_of_watches_can_fail_the_checks"),
        },
        CheckInfo {
            name: "processes",
            summary: "every watcher is a process of its own",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("watchers_one_after_the_other_fail_the_checks"),
        },
        CheckInfo {
            name: "CPUs",
            summary: "watches were added from as many CPUs as `cpus` asks for",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("watchers_one_after_the_other_fail_the_checks"),
        },
        CheckInfo {
            name: "watchers at once",
            summary: "more than one process added watches in some millisecond",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("watchers_one_after_the_other_fail_the_checks"),
        },
        counted("marks added", "fsnotify_add_mark_locked() was called once for each folder"),
        counted("connectors allocated", "one connector was allocated for each folder"),
        counted(
            "connectors detached",
            "fsnotify_detach_connector_from_object() was called once for each folder",
        ),
    ],
    refusals: &[],
    scale: "dirs",
    presets: &[
        Preset {
            name: "source",
            summary: "8 watchers of 522 folders each, 4,176 in all, on 2 CPUs or more",
            values: &[
                ("watchers", Setting::Integer(8)),
                ("dirs", Setting::Integer(522)),
                ("cpus", Setting::Integer(2)),
            ],
        },
        Preset {
            name: "guest",
            summary: "4 watchers of 500 folders, on any number of CPUs",
            values: &[
                ("watchers", Setting::Integer(4)),
                ("dirs", Setting::Integer(500)),
                ("cpus", Setting::Integer(1)),
            ],
        },
        Preset {
            name: "quick",
            summary: "2 watchers of 20 folders, for a first look",
            values: &[
                ("watchers", Setting::Integer(2)),
                ("dirs", Setting::Integer(20)),
                ("cpus", Setting::Integer(1)),
            ],
        },
    ],
};

/// The workload `recursive-watch`.
pub(crate) struct RecursiveWatch;

impl Workload for RecursiveWatch {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let (watchers, dirs) = (round.integer("watchers")?, round.integer("dirs")?);
        let (cpus, online) = (round.integer("cpus")?, sys::online_cpus() as u64);
        if online < cpus {
            return Err(WorkloadError::Unavailable {
                what: format!("{cpus} CPUs ({online} online)"),
                next: "give the guest more CPUs, or set the parameter `cpus` lower and lose that part of the gate",
            });
        }
        let _instances = Limit::Instances.at_least(watchers + MARGIN)?;
        let _watches = Limit::Watches.at_least(watchers * dirs + MARGIN)?;
        let trace = if round.scenario() == TRACED { Some(Trace::start()?) } else { None };
        let mut members = make_subtrees(round, watchers, dirs)?;
        round.sync()?;
        let clock = round.clock();
        let values = {
            let all = members.clone();
            round.parallel("gate", Crew::Processes, &mut members, |subtree, _| {
                let outcome = watch_subtree(clock, subtree, &all)?;
                Ok(Share { ops: outcome.adds.len() as u64, values: outcome.encode() })
            })?
        };
        let outcomes = values.iter().map(|values| Outcome::decode(values)).collect::<Option<Vec<_>>>();
        let mut outcomes = outcomes.ok_or_else(|| WorkloadError::Worker {
            number: 0,
            message: "a watcher sent half of what it found".to_owned(),
        })?;
        for (outcome, subtree) in outcomes.iter_mut().zip(&members) {
            outcome.fetch_adds(&subtree.adds, dirs)?;
        }
        if let Some(trace) = trace {
            let pids = outcomes.iter().map(|outcome| outcome.pid).collect();
            trace.finish(&pids)?.judge(round, watchers * dirs);
        }
        let mut folders = 0;
        for subtree in &members {
            visit(&subtree.path, |_| {
                folders += 1;
                Ok(())
            })?;
        }
        Limit::Instances.record(round, "gate")?;
        Limit::Watches.record(round, "gate")?;
        // Each folder is opened by its watcher and by this walk.
        for call in ["openat", "close"] {
            round.count(call, 2 * folders, 2 * folders);
        }
        judge(round, &outcomes, folders, cpus);
        Ok(())
    }
}

/// One watcher's part, as inherited by its process.
#[derive(Clone)]
struct Subtree {
    number: usize,
    path: PathBuf,
    /// Where it leaves when and on which CPU it added each watch: how long that list is would show in
    /// the number of reads of a pipe.
    adds: Arc<OwnedFd>,
    /// A byte says that every watch is there.
    ready: Arc<(OwnedFd, OwnedFd)>,
    /// A byte says that the probe file has come and gone.
    probed: Arc<(OwnedFd, OwnedFd)>,
}

fn make_subtrees(round: &mut RoundContext, watchers: u64, dirs: u64) -> Result<Vec<Subtree>, WorkloadError> {
    let root = round.mount_point().to_owned();
    let parent = open_root(&root)?;
    let pipe = || {
        let ends = rustix::pipe::pipe().map_err(|errno| failed("pipe", Path::new("watcher"), errno))?;
        Ok::<_, WorkloadError>(Arc::new(ends))
    };
    let mut subtrees = Vec::new();
    for number in 0..watchers {
        let mut folders: Vec<String> = vec![format!("w{number:02}")];
        for dir in 1..dirs {
            folders.push(format!("{}/d{dir:06}", folders[((dir - 1) / FANOUT) as usize]));
        }
        for folder in &folders {
            let name = CString::new(folder.as_str()).unwrap_or_default();
            sys::mkdir(parent.as_fd(), &name)
                .map_err(|errno| failed("mkdirat", &root.join(folder), errno))?;
        }
        let (number, path) = (number as usize, root.join(&folders[0]));
        let adds =
            notify::memory_file(c"adds").map_err(|errno| failed("memfd_create", Path::new("adds"), errno))?;
        subtrees.push(Subtree { number, path, adds: Arc::new(adds), ready: pipe()?, probed: pipe()? });
    }
    round.count("mkdirat", watchers * dirs, watchers * dirs);
    Ok(subtrees)
}

/// Calls `each` for the folder at `path` and, after it, for every folder in it.
fn visit(path: &Path, mut each: impl FnMut(&Path) -> Result<(), WorkloadError>) -> Result<(), WorkloadError> {
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        each(&path)?;
        let folder = open_root(&path)?;
        notify::entries(folder.as_fd(), |name, kind| {
            if kind == FileType::Directory {
                left.push(path.join(&*name.to_string_lossy()));
            }
        })
        .map_err(|errno| failed("getdents64", &path, errno))?;
        sys::close(folder).map_err(|errno| failed("close", &path, errno))?;
    }
    Ok(())
}

/// What one watcher found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    pid: u64,
    /// Watches that the kernel lists, their distinct inodes and filesystems.
    listed: u64,
    inodes: u64,
    devices: Vec<u64>,
    /// Adds and removals that succeeded.
    added: u64,
    removed: u64,
    /// Events by kind.
    probe_events: u64,
    ignored: u64,
    other: u64,
    /// Reads, and ioctls that asked for something to read.
    reads: u64,
    asked: u64,
    /// When each watch was added, and on which CPU.
    adds: Vec<(u64, u64)>,
}

impl Outcome {
    /// All but the adds, which [`Self::leave_adds`] leaves elsewhere.
    fn encode(&self) -> Vec<u64> {
        let Self { pid, listed, inodes, added, removed, probe_events, ignored, other, reads, asked, .. } =
            *self;
        let mut values =
            vec![pid, listed, inodes, added, removed, probe_events, ignored, other, reads, asked];
        values.extend(&self.devices);
        values
    }

    fn decode(values: &[u64]) -> Option<Self> {
        let (head, devices) = values.split_first_chunk::<10>()?;
        let &[pid, listed, inodes, added, removed, probe_events, ignored, other, reads, asked] = head;
        let (devices, adds) = (devices.to_vec(), Vec::new());
        Some(Self {
            pid,
            listed,
            inodes,
            devices,
            added,
            removed,
            probe_events,
            ignored,
            other,
            reads,
            asked,
            adds,
        })
    }

    fn leave_adds(&self, file: &OwnedFd) -> Result<(), WorkloadError> {
        let numbers = self.adds.iter().flat_map(|&(tick, cpu)| [tick, cpu]);
        let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        match notify::write_at(file.as_fd(), &bytes, 0) {
            Ok(length) if length == bytes.len() => Ok(()),
            Ok(_) => Err(failed("pwrite64", Path::new("adds"), Errno::NOSPC)),
            Err(errno) => Err(failed("pwrite64", Path::new("adds"), errno)),
        }
    }

    /// Takes up to `most` adds from where [`Self::leave_adds`] left them.
    fn fetch_adds(&mut self, file: &OwnedFd, most: u64) -> Result<(), WorkloadError> {
        let mut bytes = vec![0; most as usize * 16];
        let length = notify::read_at(file.as_fd(), &mut bytes, 0)
            .map_err(|errno| failed("pread64", Path::new("adds"), errno))?;
        let (words, _) = bytes[..length].as_chunks::<8>();
        let (pairs, _) = words.as_chunks::<2>();
        self.adds = pairs.iter().map(|pair| pair.map(u64::from_le_bytes).into()).collect();
        Ok(())
    }
}

/// What one process does: watches every folder of its subtree, tells its neighbours, makes the probe
/// of the next one, hears of its own, and removes its watches.
fn watch_subtree(clock: Clock, own: &Subtree, all: &[Subtree]) -> Result<Outcome, WorkloadError> {
    let mask = WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE;
    let instance = watch::instance()?;
    let mut outcome = Outcome { pid: u64::from(std::process::id()), ..Outcome::default() };
    let mut watches = Vec::new();
    visit(&own.path, |path| {
        let number = watch::watch(&instance, &c_path(path)?, mask)?;
        outcome.adds.push((clock::now(clock), rustix::thread::sched_getcpu() as u64));
        outcome.added += u64::from(number > 0);
        watches.push(number);
        // As a walk would that waits for a disk; on one CPU nobody else would get a turn for long.
        rustix::thread::sched_yield();
        Ok(())
    })?;
    list_watches(&instance, &mut outcome)?;

    let next = &all[(own.number + 1) % all.len()];
    tell(&own.ready.1)?;
    await_word(&next.ready.0)?;
    probe(&next.path)?;
    tell(&next.probed.1)?;
    await_word(&own.probed.0)?;

    let mut heard = Heard::nothing(mask, 0);
    let mut bytes = vec![0; EVENT_BYTES];
    drain(&instance, &mut heard, &mut bytes, &mut outcome)?;
    outcome.probe_events = heard.wanted;
    for number in &watches {
        outcome.removed += u64::from(notify::remove_watch(instance.as_fd(), *number).is_ok());
    }
    drain(&instance, &mut heard, &mut bytes, &mut outcome)?;
    outcome.ignored = heard.ignored;
    outcome.other = heard.other + heard.overflows + heard.wanted - outcome.probe_events;
    outcome.leave_adds(&own.adds)?;
    Ok(outcome)
}

fn drain(
    instance: &OwnedFd,
    heard: &mut Heard,
    bytes: &mut [u8],
    outcome: &mut Outcome,
) -> Result<(), WorkloadError> {
    let reads = heard
        .drain(instance.as_fd(), bytes)
        .map_err(|(call, errno)| failed(call, Path::new("inotify"), errno))?;
    outcome.reads += reads;
    outcome.asked += reads + 1;
    Ok(())
}

/// Says one word into a pipe.
fn tell(pipe: &OwnedFd) -> Result<(), WorkloadError> {
    sys::write(pipe.as_fd(), b"w")
        .map(|_| ())
        .map_err(|errno| failed("write", Path::new("watcher's pipe"), errno))
}

/// Waits for one word from a pipe.
fn await_word(pipe: &OwnedFd) -> Result<(), WorkloadError> {
    let lost = |errno| failed("wait for another watcher", Path::new("watcher's pipe"), errno);
    if !notify::wait_for(pipe.as_fd(), PATIENCE).map_err(lost)? {
        return Err(lost(Errno::TIMEDOUT));
    }
    notify::read(pipe.as_fd(), &mut [0]).map(|_| ()).map_err(lost)
}

/// Makes a file, closes it, and removes it.
fn probe(folder: &Path) -> Result<(), WorkloadError> {
    let lost = |call, errno| failed(call, &folder.join("probe"), errno);
    let parent = open_root(folder)?;
    let file = notify::create_new(parent.as_fd(), c"probe").map_err(|errno| lost("openat", errno))?;
    sys::close(file).map_err(|errno| lost("close", errno))?;
    sys::unlink(parent.as_fd(), c"probe").map_err(|errno| lost("unlinkat", errno))
}

/// Counts the watches that the kernel lists for `instance` (proc_pid_fdinfo(5)).
fn list_watches(instance: &OwnedFd, outcome: &mut Outcome) -> Result<(), WorkloadError> {
    let path = PathBuf::from(format!("/proc/self/fdinfo/{}", instance.as_raw_fd()));
    let lost = |call, errno| failed(call, &path, errno);
    let file =
        notify::open_to_read(rustix::fs::CWD, &c_path(&path)?).map_err(|errno| lost("openat", errno))?;
    let mut text = Vec::new();
    let mut bytes = vec![0; EVENT_BYTES];
    loop {
        let length = notify::read(file.as_fd(), &mut bytes).map_err(|errno| lost("read", errno))?;
        outcome.reads += 1;
        if length == 0 {
            break;
        }
        text.extend_from_slice(&bytes[..length]);
    }
    let listed = Listed::parse(&String::from_utf8_lossy(&text));
    outcome.listed = listed.watches;
    outcome.inodes = listed.inodes.len() as u64;
    outcome.devices = listed.devices.into_iter().collect();
    Ok(())
}

/// Watches of one instance in `/proc/PID/fdinfo`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listed {
    watches: u64,
    inodes: BTreeSet<(u64, u64)>,
    devices: BTreeSet<u64>,
}

impl Listed {
    /// Of lines as `inotify wd:3 ino:9e7e sdev:800013 mask:800afce ...`.
    fn parse(text: &str) -> Self {
        let mut listed = Self::default();
        for line in text.lines().filter(|line| line.starts_with("inotify wd:")) {
            let field = |name: &str| {
                let word = line.split(' ').find_map(|word| word.strip_prefix(name))?;
                u64::from_str_radix(word, 16).ok()
            };
            listed.watches += 1;
            if let (Some(inode), Some(device)) = (field("ino:"), field("sdev:")) {
                listed.inodes.insert((device, inode));
                listed.devices.insert(device);
            }
        }
        listed
    }
}

/// How the adds of all watchers lie in time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Concurrency {
    processes: u64,
    cpus: u64,
    transitions: u64,
    shared_milliseconds: u64,
    most_at_once: u64,
}

impl Concurrency {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut adds: Vec<(u64, u64, u64)> = outcomes
            .iter()
            .flat_map(|outcome| outcome.adds.iter().map(|&(tick, cpu)| (tick, cpu, outcome.pid)))
            .collect();
        adds.sort_unstable();
        let first = adds.first().map_or(0, |&(tick, ..)| tick);
        let mut buckets: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for &(tick, _, pid) in &adds {
            buckets.entry((tick - first) / BUCKET).or_default().insert(pid);
        }
        let distinct =
            |of: fn(&(u64, u64, u64)) -> u64| adds.iter().map(of).collect::<BTreeSet<_>>().len() as u64;
        Self {
            processes: distinct(|&(_, _, pid)| pid),
            cpus: distinct(|&(_, cpu, _)| cpu),
            transitions: adds.windows(2).filter(|pair| pair[0].2 != pair[1].2).count() as u64,
            shared_milliseconds: buckets.values().filter(|pids| pids.len() > 1).count() as u64,
            most_at_once: buckets.values().map(|pids| pids.len() as u64).max().unwrap_or(0),
        }
    }
}

/// Checks what the watchers of `folders` found.
fn judge(round: &mut RoundContext, outcomes: &[Outcome], folders: u64, cpus: u64) {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let reads = sum(|outcome| outcome.reads);
    let asked = sum(|outcome| outcome.asked);
    round.count("inotify_add_watch", folders, sum(|outcome| outcome.added));
    round.count("inotify_rm_watch", folders, sum(|outcome| outcome.removed));
    round.count("read", reads, reads);
    round.count("ioctl", asked, asked);
    let devices: BTreeSet<u64> =
        outcomes.iter().flat_map(|outcome| outcome.devices.iter().copied()).collect();
    round.check("watches", folders, sum(|outcome| outcome.listed));
    round.check("inodes", folders, sum(|outcome| outcome.inodes));
    round.check("superblocks", 1, devices.len());
    round.check("removals", folders, sum(|outcome| outcome.ignored));
    round.check("probe events", outcomes.len() as u64 * PROBE_EVENTS, sum(|outcome| outcome.probe_events));
    round.check("other events", 0, sum(|outcome| outcome.other));
    let found = Concurrency::of(outcomes);
    round.check("processes", outcomes.len(), found.processes);
    round.check_that("CPUs", format!("{cpus} or more"), found.cpus, found.cpus >= cpus);
    round.check_that(
        "watchers at once",
        "1 ms or more that watchers share",
        found.shared_milliseconds,
        found.shared_milliseconds > 0,
    );
    round.measure("gate", "cpus", found.cpus as f64);
    round.measure("gate", "transitions", found.transitions as f64);
    round.measure("gate", "shared_milliseconds", found.shared_milliseconds as f64);
    round.measure("gate", "most_at_once", found.most_at_once as f64);
}

/// Functions that are counted (kernel `fs/notify/mark.c`).
const ADD_MARK: &str = "fsnotify_add_mark_locked";
const DETACH: &str = "fsnotify_detach_connector_from_object";
const TRACEFS: &str = "/sys/kernel/tracing";

/// A trace buffer of our own (kernel `Documentation/trace/ftrace.rst`, Instances), which goes when this
/// is dropped.
struct Trace {
    folder: PathBuf,
    mounted: bool,
}

impl Trace {
    fn start() -> Result<Self, WorkloadError> {
        let functions = Path::new(TRACEFS).join("available_filter_functions");
        // Where it is not mounted there is an empty folder.
        let mounted = !functions.exists()
            && rustix::mount::mount("nodev", TRACEFS, "tracefs", MountFlags::empty(), None).is_ok();
        let trace = Self { folder: Path::new(TRACEFS).join("instances/kdelta"), mounted };
        let known = std::fs::read_to_string(&functions).map_err(|error| WorkloadError::Unavailable {
            what: format!("the list of functions that can be traced ({error})"),
            next: "run as root, without lockdown, on a kernel with CONFIG_FUNCTION_TRACER=y, or run `gate`",
        })?;
        for function in [ADD_MARK, DETACH] {
            // Functions of modules are followed by a word.
            if !known.lines().any(|line| line.split(' ').next() == Some(function)) {
                return Err(WorkloadError::Unavailable {
                    what: format!("tracing of {function}()"),
                    next: "the compiler has inlined it or this kernel names it otherwise: run `gate`",
                });
            }
        }
        std::fs::create_dir_all(&trace.folder).map_err(|error| lost("mkdir", &trace.folder, &error))?;
        let pid = std::process::id();
        for (file, text) in [
            ("buffer_size_kb", "16384".to_owned()),
            ("set_ftrace_filter", format!("{ADD_MARK}\n{DETACH}\n")),
            // Children are followed.
            ("options/event-fork", "1".to_owned()),
            ("set_event_pid", pid.to_string()),
            ("events/kmem/kmem_cache_alloc/enable", "1".to_owned()),
            ("current_tracer", "function".to_owned()),
        ] {
            trace.set(file, &text)?;
        }
        Ok(trace)
    }

    fn set(&self, file: &str, text: &str) -> Result<(), WorkloadError> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).map_err(|error| lost("write", &path, &error))
    }

    /// Stops, and counts what the processes `pids` did.
    fn finish(self, pids: &BTreeSet<u64>) -> Result<Traced, WorkloadError> {
        self.set("tracing_on", "0")?;
        let path = self.folder.join("trace");
        let text = std::fs::read_to_string(&path).map_err(|error| lost("read", &path, &error))?;
        Ok(Traced::parse(&text, pids))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.set("current_tracer", "nop");
        let _ = self.set("events/kmem/kmem_cache_alloc/enable", "0");
        let _ = std::fs::remove_dir(&self.folder);
        if self.mounted {
            let _ = rustix::mount::unmount(TRACEFS, UnmountFlags::empty());
        }
    }
}

fn lost(call: &'static str, path: &Path, error: &std::io::Error) -> WorkloadError {
    failed(call, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// What was counted in a trace.
#[derive(Debug, Default, PartialEq, Eq)]
struct Traced {
    marks: u64,
    connectors: u64,
    detached: u64,
}

impl Traced {
    /// Of lines as `kdelta-123 [001] ..... 4.567890: FUNCTION <-CALLER` and
    /// `... kmem_cache_alloc: call_site=FUNCTION+0x1/0x2 ptr=...`. What fsnotify itself takes from a
    /// cache are connectors; marks are taken by inotify.
    fn parse(text: &str, pids: &BTreeSet<u64>) -> Self {
        let mut traced = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((task, rest)) = line.trim_start().split_once(" [") else { continue };
            let pid = task.trim_end().rsplit('-').next().and_then(|pid| pid.parse().ok());
            let Some((_, event)) = rest.split_once(": ") else { continue };
            if !pid.is_some_and(|pid| pids.contains(&pid)) {
                continue;
            }
            let event = event.trim_start();
            traced.marks += u64::from(event.split(' ').next() == Some(ADD_MARK));
            traced.detached += u64::from(event.split(' ').next() == Some(DETACH));
            traced.connectors += u64::from(event.starts_with("kmem_cache_alloc: call_site=fsnotify_"));
        }
        traced
    }

    fn judge(&self, round: &mut RoundContext, folders: u64) {
        round.check("marks added", folders, self.marks);
        round.check("connectors allocated", folders, self.connectors);
        round.check("connectors detached", folders, self.detached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::watch::tests::assert_measures_declared;
    use crate::{find, resolve, run};

    const SMALL: [(&str, Setting); 3] =
        [("watchers", Setting::Integer(3)), ("dirs", Setting::Integer(40)), ("cpus", Setting::Integer(1))];

    /// A context in which nothing has run yet.
    fn context(scenario: &str, folder: &Path) -> RoundContext {
        let name = format!("recursive-watch/{scenario}");
        let request = request(&name, folder, &SMALL);
        let scenario = find(&name).expect("known").scenario;
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        RoundContext::for_test(request, scenario, parameters)
    }

    fn failures(round: RoundContext) -> Vec<String> {
        let checks = round.finish().checks.into_iter().filter(|check| !check.passed);
        checks.map(|check| check.name).collect()
    }

    /// A watcher that did all it should with two folders, from `start` on.
    fn watcher(pid: u64, start: u64) -> Outcome {
        Outcome {
            pid,
            listed: 2,
            inodes: 2,
            devices: vec![0x13],
            added: 2,
            removed: 2,
            probe_events: PROBE_EVENTS,
            ignored: 2,
            other: 0,
            reads: 4,
            asked: 4,
            adds: vec![(start, pid % 2), (start + 10, pid % 2)],
        }
    }

    #[test]
    fn every_watcher_watches_its_subtree_and_hears_its_probe() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let round = run(&request("recursive-watch/gate", folder.path(), &SMALL), None).expect("runs");
        assert_sound(&round);
        assert_measures_declared(&INFO, GATE, &round);
        let phase = &round.phases[0];
        assert_eq!((phase.name.as_str(), phase.ops, phase.workers.len()), ("gate", 120, 3));
        assert_eq!(round.census["inotify_rm_watch"].succeeded, 120);
        let watches = round.checks.iter().find(|check| check.name == "watches").expect("a check");
        assert_eq!((watches.expected.as_str(), watches.actual.as_str()), ("120", "120"));
    }

    #[test]
    fn a_traced_round_counts_marks_and_connectors_or_says_what_it_lacks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        match run(&request("recursive-watch/traced-gate", folder.path(), &SMALL), None) {
            Err(error @ WorkloadError::Unavailable { .. }) => eprintln!("skipped: {error}"),
            round => assert_sound(&round.expect("runs")),
        }
    }

    #[test]
    fn more_cpus_than_there_are_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = request("recursive-watch/gate", folder.path(), &SMALL);
        request.scenario.parameters.insert("cpus".into(), Setting::Integer(64).value());
        if sys::online_cpus() >= 64 {
            eprintln!("skipped: there are 64 CPUs");
            return;
        }
        let error = run(&request, None).expect_err("too few").to_string();
        assert!(error.starts_with("64 CPUs (") && error.contains("give the guest more CPUs"), "{error}");
    }

    #[test]
    fn what_the_kernel_tells_of_watches_can_fail_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let judged = |edit: fn(&mut Outcome)| {
            let mut outcomes = [watcher(10, 0), watcher(11, 0)];
            edit(&mut outcomes[1]);
            let mut round = context(GATE, folder.path());
            judge(&mut round, &outcomes, 4, 2);
            failures(round).join(", ")
        };
        assert_eq!(judged(|_| {}), "");
        assert_eq!(judged(|outcome| outcome.listed = 1), "watches");
        assert_eq!(judged(|outcome| outcome.inodes = 1), "inodes");
        assert_eq!(judged(|outcome| outcome.devices = vec![0x13, 0x14]), "superblocks");
        assert_eq!(judged(|outcome| outcome.devices = vec![0x14]), "superblocks");
        assert_eq!(judged(|outcome| outcome.ignored = 1), "removals");
        assert_eq!(judged(|outcome| outcome.probe_events = 2), "probe events");
        assert_eq!(judged(|outcome| outcome.other = 1), "other events");
    }

    #[test]
    fn watchers_one_after_the_other_fail_the_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let judged = |outcomes: [Outcome; 2]| {
            let mut round = context(GATE, folder.path());
            judge(&mut round, &outcomes, 4, 2);
            failures(round).join(", ")
        };
        assert_eq!(judged([watcher(10, 0), watcher(11, 2 * BUCKET)]), "watchers at once");
        assert_eq!(judged([watcher(10, 0), watcher(12, 0)]), "CPUs");
        assert_eq!(judged([watcher(10, 0), watcher(10, 0)]), "processes, CPUs, watchers at once");
        let found = Concurrency::of(&[watcher(10, 0), watcher(11, 5), watcher(12, 3 * BUCKET)]);
        let expected =
            Concurrency { processes: 3, cpus: 2, transitions: 4, shared_milliseconds: 1, most_at_once: 2 };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_watcher_found_reaches_its_parent() {
        let outcome = watcher(7, 5);
        let values = outcome.encode();
        assert_eq!(Outcome::decode(&values[..5]), None);
        let mut decoded = Outcome::decode(&values).expect("whole");
        let file = notify::memory_file(c"test").expect("a file in memory");
        outcome.leave_adds(&file).expect("written");
        decoded.fetch_adds(&file, 9).expect("read");
        assert_eq!(decoded, outcome);
    }

    #[test]
    fn listed_watches_are_counted_with_their_inodes_and_filesystems() {
        let text = "pos:\t0\nflags:\t02004000\nino:\t1057\n\
            inotify wd:2 ino:2a sdev:13 mask:308 ignored_mask:0 fhandle-bytes:8 f_handle:2a\n\
            inotify wd:1 ino:29 sdev:13 mask:308 ignored_mask:0 \n\
            inotify wd:3 ino:29 sdev:13 mask:308 ignored_mask:0 \n";
        let listed = Listed::parse(text);
        assert_eq!((listed.watches, listed.inodes.len(), listed.devices.len()), (3, 2, 1));
    }

    #[test]
    fn traced_counts_that_differ_fail_their_checks() {
        let text = "# tracer: function\n#\n\
            \x20          kdelta-41      [000] .....   12.345678: fsnotify_add_mark_locked <-inotify_update_watch\n\
            \x20          kdelta-41      [000] .....   12.345679: kmem_cache_alloc: call_site=fsnotify_add_mark_list+0x1/0x2 ptr=00 bytes_req=56\n\
            \x20          kdelta-41      [000] .....   12.345679: kmem_cache_alloc: call_site=inotify_update_watch+0x1/0x2 ptr=00\n\
            \x20     init-sub-task-42    [001] ..s1.   12.345680: fsnotify_detach_connector_from_object <-fsnotify_put_mark\n\
            \x20          <...>-43      [001] .....   12.345681: fsnotify_add_mark_locked <-inotify_update_watch\n";
        let pids = BTreeSet::from([41, 42]);
        let traced = Traced::parse(text, &pids);
        assert_eq!(traced, Traced { marks: 1, connectors: 1, detached: 1 });
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut round = context(TRACED, folder.path());
        traced.judge(&mut round, 1);
        assert_eq!(failures(round), Vec::<String>::new());
        let mut round = context(TRACED, folder.path());
        traced.judge(&mut round, 2);
        assert_eq!(failures(round), ["marks added", "connectors allocated", "connectors detached"]);
    }
}
