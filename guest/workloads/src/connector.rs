//! Adding and removing inotify watches from several CPUs, each watch of its own inode or all of one
//! inode, and three controls. Read [`Connector`] first, then `topology`.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::WatchFlags;

use crate::parallel::{Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, EVENT_BYTES, Heard, Limit, Names};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo,
};

const DISTINCT: &str = "distinct";
const SHARED: &str = "shared";
const BULK: &str = "bulk-directory-watch";
const MASK_UPDATE: &str = "existing-mask-update";
const PATH_LOOKUP: &str = "path-lookup";
const TOPOLOGIES: &[&str] = &[DISTINCT, SHARED];
const ADDING: &[&str] = &[DISTINCT, SHARED, BULK];
const CALLING: &[&str] = &[MASK_UPDATE, PATH_LOOKUP];
const LISTENING: &[&str] = &[DISTINCT, SHARED, BULK, MASK_UPDATE];

/// Instances that are left to others, as in the reproducer.
const MARGIN: u64 = 8;
/// Lookups before the timed ones, as in the reproducer.
const WARM_LOOKUPS: u64 = 16;
/// The first watch of an instance (`idr_alloc_cyclic(.., 1, ..)`, kernel `fs/notify/inotify/inotify_user.c`).
const FIRST_WATCH: i32 = 1;

static INFO: WorkloadInfo = WorkloadInfo {
    name: "connector",
    title: "inotify watches from several CPUs",
    summary: "Many inotify instances each add one watch, and then remove it, from workers that share them out \
              among distinct cores. The watches are of as many files, or of hard links to one file on which \
              a watch is kept all the time. Instances, files and events are dealt with outside of the \
              timed phases.",
    source: "Chengfeng Lin's report of slower concurrent inotify watch setup and its reproducer \
             (linux-regression-evidence, fsnotify-concurrent-inotify-watch-setup). There, order alternates \
             from round to round and distinct/shared is taken per round: list both scenarios in one experiment",
    scenarios: &[
        ScenarioInfo {
            name: DISTINCT,
            summary: "one file for each instance: every add allocates a connector, every removal detaches it",
            default: true,
        },
        ScenarioInfo {
            name: SHARED,
            summary: "hard links to one file that a keeper watches: marks come and go, the connector stays. How \
                      many marks an add passes depends on the addresses of the instances \
                      (fsnotify_compare_groups), hence the spread from round to round",
            default: true,
        },
        ScenarioInfo {
            name: BULK,
            summary: "control: one instance, one thread, `items` folders",
            default: true,
        },
        ScenarioInfo {
            name: MASK_UPDATE,
            summary: "control: one watch whose mask changes from modification to attributes and back",
            default: true,
        },
        ScenarioInfo {
            name: PATH_LOOKUP,
            summary: "control: one path opened with O_PATH and closed; no inotify at all",
            default: true,
        },
    ],
    parameters: &[
        ParameterInfo {
            name: "items",
            summary: "instances with a file each (distinct, shared), folders (bulk-directory-watch) or calls",
            unit: "items",
            domain: Domain::Integer { default: 96, min: 1, max: 1 << 20 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "workers",
            summary: "threads, each on its own core as far as there are cores; divides `items`",
            unit: "threads",
            domain: Domain::Integer { default: 4, min: 1, max: 64 },
            scenarios: TOPOLOGIES,
        },
    ],
    limits: &[],
    phases: &[
        PhaseInfo { name: "add", operation: "one watch added", primary: true, scenarios: ADDING },
        PhaseInfo { name: "remove", operation: "one watch removed", primary: false, scenarios: ADDING },
        PhaseInfo {
            name: "calls",
            operation: "one mask changed, or one path looked up and closed",
            primary: true,
            scenarios: CALLING,
        },
    ],
    measures: &[
        MeasureInfo {
            name: "worker",
            phase: "add",
            summary: "time of all workers together for each watch added",
            unit: "ticks",
            better: Better::Lower,
            scenarios: TOPOLOGIES,
        },
        MeasureInfo {
            name: "worker",
            phase: "remove",
            summary: "time of all workers together for each watch removed",
            unit: "ticks",
            better: Better::Lower,
            scenarios: TOPOLOGIES,
        },
        MeasureInfo {
            name: "pair_worker",
            phase: "remove",
            summary: "time of all workers together for each watch added and removed: the reproducer's metric",
            unit: "ticks",
            better: Better::Lower,
            scenarios: TOPOLOGIES,
        },
        MeasureInfo {
            name: "cores",
            phase: "add",
            summary: "distinct physical cores that workers were put on; fewer than workers, and they take turns",
            unit: "cores",
            better: Better::Neither,
            scenarios: TOPOLOGIES,
        },
        Limit::Instances.measure("add", TOPOLOGIES),
        Limit::Watches.measure("add", ADDING),
        Limit::Queue.measure("add", &[BULK]),
    ],
    checks: &[
        CheckInfo {
            name: "adds",
            summary: "every add returned the first watch of its instance (distinct, shared), a watch \
                      (bulk-directory-watch), or the watch that was there (existing-mask-update)",
            scenarios: LISTENING,
            filesystems: &[],
            proof: Proof::Injection { scenario: DISTINCT, inject: "inotify_add_watch:retval=9:when=3" },
        },
        CheckInfo {
            name: "removes",
            summary: "every removal succeeded",
            scenarios: ADDING,
            filesystems: &[],
            proof: Proof::Injection { scenario: DISTINCT, inject: "inotify_rm_watch:error=EINVAL:when=2" },
        },
        CheckInfo {
            name: "ignored events",
            summary: "the kernel said of every watch that it is gone (IN_IGNORED)",
            scenarios: LISTENING,
            filesystems: &[],
            proof: Proof::Injection { scenario: DISTINCT, inject: "inotify_rm_watch:retval=0:when=2" },
        },
        CheckInfo {
            name: "other events",
            summary: "no queue was full, and nothing else happened",
            scenarios: LISTENING,
            filesystems: &[],
            proof: Proof::Test("an_overflow_fails_the_check"),
        },
        CheckInfo {
            name: "inodes",
            summary: "the names lead to as many inodes as they should: one each, or one for all",
            scenarios: TOPOLOGIES,
            filesystems: &[],
            proof: Proof::Injection { scenario: SHARED, inject: "linkat:retval=0:when=2" },
        },
        CheckInfo {
            name: "distinct watches",
            summary: "no two folders have the same watch descriptor",
            scenarios: &[BULK],
            filesystems: &[],
            proof: Proof::Injection { scenario: BULK, inject: "inotify_add_watch:retval=1:when=5" },
        },
        CheckInfo {
            name: "lookups",
            summary: "every lookup returned a descriptor that could be closed",
            scenarios: &[PATH_LOOKUP],
            filesystems: &[],
            proof: Proof::Injection { scenario: PATH_LOOKUP, inject: "close:error=EIO:when=40" },
        },
    ],
    refusals: &[],
    scale: "items",
    presets: &[
        Preset {
            name: "source",
            summary: "the reproducer's pair of topologies, P8: sweep `workers` over 1, 4, 6, 8 and 16",
            values: &[("items", Setting::Integer(96)), ("workers", Setting::Integer(8))],
        },
        Preset {
            name: "source-controls",
            summary: "the reproducer's number of items in its controls",
            values: &[("items", Setting::Integer(1024)), ("workers", Setting::Integer(8))],
        },
        Preset {
            name: "guest",
            // More items are other work in `shared`: each add passes the marks that are there.
            summary: "the reproducer's items with 4 workers",
            values: &[("items", Setting::Integer(96)), ("workers", Setting::Integer(4))],
        },
        Preset {
            name: "quick",
            summary: "32 items and 2 workers, for a first look",
            values: &[("items", Setting::Integer(32)), ("workers", Setting::Integer(2))],
        },
    ],
};

/// The workload `connector`.
pub(crate) struct Connector;

impl Workload for Connector {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let root = round.mount_point().to_owned();
        let parent = open_root(&root)?;
        let folder = Folder { handle: watch::make_folder(&parent, &root, c"p")?, path: root.join("p") };
        let names = Names::new(b'f', round.integer("items")?);
        match round.scenario() {
            BULK => bulk(round, &folder, &names),
            MASK_UPDATE => update_mask(round, &folder),
            PATH_LOOKUP => look_up(round, &folder),
            _ => topology(round, &folder, &names),
        }
    }
}

/// The folder of all files.
struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Makes an empty file.
    fn make_file(&self, name: &CStr) -> Result<(), WorkloadError> {
        notify::make_file(self.handle.as_fd(), name)
            .map_err(|errno| failed("mknodat", &self.join(name), errno))
    }

    fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(&*name.to_string_lossy())
    }

    /// Full paths of `names`, for a call that takes no folder.
    fn paths(&self, names: &Names) -> Result<Vec<CString>, WorkloadError> {
        names.iter().map(|name| c_path(&self.join(name))).collect()
    }

    /// Distinct inodes that `names` lead to; a name that is not there counts as one more.
    fn inodes(&self, round: &mut RoundContext, names: &Names) -> u64 {
        let mut inodes = BTreeSet::new();
        let mut found = 0;
        for name in names.iter() {
            let stat = notify::stat(self.handle.as_fd(), name);
            found += u64::from(stat.is_ok());
            inodes.insert(stat.map_or((0, 0), |stat| (stat.st_dev, stat.st_ino)));
        }
        round.count("newfstatat", names.count() as u64, found);
        inodes.len() as u64
    }
}

/// What one worker has to do.
struct Slice<'a> {
    groups: &'a [OwnedFd],
    paths: &'a [CString],
    watches: &'a mut [i32],
    good: u64,
}

impl Slice<'_> {
    /// Adds every watch; what fails is left as -1. Timed.
    fn add(&mut self) {
        let mut good = 0;
        for ((group, path), watch) in self.groups.iter().zip(self.paths).zip(self.watches.iter_mut()) {
            *watch = notify::add_watch(group.as_fd(), path, WatchFlags::ATTRIB).unwrap_or(-1);
            good += u64::from(*watch == FIRST_WATCH);
        }
        self.good = good;
    }

    /// Removes every watch. Timed.
    fn remove(&mut self) {
        let mut good = 0;
        for (group, watch) in self.groups.iter().zip(&*self.watches) {
            good += u64::from(notify::remove_watch(group.as_fd(), *watch).is_ok());
        }
        self.good = good;
    }
}

/// `distinct` and `shared`.
fn topology(round: &mut RoundContext, folder: &Folder, names: &Names) -> Result<(), WorkloadError> {
    let (items, workers) = (round.integer("items")?, round.integer("workers")?);
    if items % workers != 0 {
        return Err(WorkloadError::Unavailable {
            what: format!("an even share of {items} items for {workers} workers"),
            next: "set the parameter `items` to a multiple of `workers`",
        });
    }
    let shared = round.scenario() == SHARED;
    let _instances = Limit::Instances.at_least(items + 1 + MARGIN)?;
    let _watches = Limit::Watches.at_least(items + 1)?;
    sys::allow_open_files(items + 1)
        .map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &folder.path, errno))?;
    let keeper = if shared { Some(keep(round, folder, names)?) } else { None };
    if !shared {
        for name in names.iter() {
            folder.make_file(name)?;
        }
        round.count("mknodat", items, items);
    }
    let inodes = folder.inodes(round, names);
    let paths = folder.paths(names)?;
    let groups = (0..items).map(|_| watch::instance()).collect::<Result<Vec<_>, _>>()?;
    let mut watches = vec![-1; items as usize];
    round.sync()?;

    let share = (items / workers) as usize;
    let mut slices: Vec<Slice<'_>> = groups
        .chunks(share)
        .zip(paths.chunks(share))
        .zip(watches.chunks_mut(share))
        .map(|((groups, paths), watches)| Slice { groups, paths, watches, good: 0 })
        .collect();
    let (posts, cores) = posts(round, workers as usize);
    let ops = share as u64;
    round.parallel_at("add", Crew::Threads, &posts, &mut slices, |slice, _| {
        slice.add();
        Ok(Share { ops, ..Share::default() })
    })?;
    let added = slices.iter().map(|slice| slice.good).sum();
    round.parallel_at("remove", Crew::Threads, &posts, &mut slices, |slice, _| {
        slice.remove();
        Ok(Share { ops, ..Share::default() })
    })?;
    let removed = slices.iter().map(|slice| slice.good).sum();

    let worker_ticks = |round: &RoundContext, phase| {
        let workers = round.latest(phase).map(|phase| phase.workers.as_slice()).unwrap_or_default();
        workers.iter().map(|worker| worker.elapsed).sum::<u64>() as f64 / items as f64
    };
    let (add, remove) = (worker_ticks(round, "add"), worker_ticks(round, "remove"));
    round.measure("add", "worker", add);
    round.measure("remove", "worker", remove);
    round.measure("remove", "pair_worker", add + remove);
    round.measure("add", "cores", cores as f64);
    Limit::Instances.record(round, "add")?;
    Limit::Watches.record(round, "add")?;
    round.check("inodes", if shared { 1 } else { items }, inodes);
    let mut removals = items;
    let mut heard = Heard::nothing(WatchFlags::ATTRIB, 0);
    if let Some((keeper, watch)) = keeper {
        notify::remove_watch(keeper.as_fd(), watch)
            .map_err(|errno| failed("inotify_rm_watch", &folder.path, errno))?;
        removals += 1;
        drain(round, &mut heard, &[keeper])?;
    }
    drain(round, &mut heard, &groups)?;
    for group in groups {
        sys::close(group).map_err(|errno| failed("close", Path::new("inotify"), errno))?;
    }
    for call in ["inotify_init1", "close"] {
        round.count(call, items, items);
    }
    count_watches(round, items, added, removed);
    judge(round, &heard, removals);
    Ok(())
}

/// Makes the file that all names lead to, the names, and a watch that stays during the timed phases.
fn keep(round: &mut RoundContext, folder: &Folder, names: &Names) -> Result<(OwnedFd, i32), WorkloadError> {
    folder.make_file(c"keeper")?;
    for name in names.iter() {
        notify::link(folder.handle.as_fd(), c"keeper", name)
            .map_err(|errno| failed("linkat", &folder.join(name), errno))?;
    }
    let items = names.count() as u64;
    round.count("linkat", items, items);
    let keeper = watch::instance()?;
    let watch = watch::watch(&keeper, &c_path(&folder.path.join("keeper"))?, WatchFlags::ATTRIB)?;
    Ok((keeper, watch))
}

fn count_watches(round: &mut RoundContext, items: u64, added: u64, removed: u64) {
    round.count("inotify_add_watch", items, added);
    round.count("inotify_rm_watch", items, removed);
    round.check("adds", items, added);
    round.check("removes", items, removed);
}

/// Takes all that is in the queues.
fn drain(round: &mut RoundContext, heard: &mut Heard, groups: &[OwnedFd]) -> Result<(), WorkloadError> {
    let mut bytes = vec![0; EVENT_BYTES];
    let mut reads = 0;
    for group in groups {
        reads += heard
            .drain(group.as_fd(), &mut bytes)
            .map_err(|(call, errno)| failed(call, Path::new("inotify"), errno))?;
    }
    let asked = reads + groups.len() as u64;
    round.count("read", reads, reads);
    round.count("ioctl", asked, asked);
    Ok(())
}

/// Checks what was heard after `removals` of watches.
fn judge(round: &mut RoundContext, heard: &Heard, removals: u64) {
    round.check("ignored events", removals, heard.ignored);
    round.check("other events", 0, heard.overflows + heard.wanted + heard.other);
}

/// One CPU for each of `workers`, on distinct cores as far as there are any, beginning with the
/// round's; and how many cores that makes.
fn posts(round: &RoundContext, workers: usize) -> (Vec<Option<usize>>, usize) {
    let cores = cores();
    let used = workers.min(cores.len());
    let Some(first) = round.cpu() else { return (vec![None; workers], used) };
    let start = cores.iter().position(|cpu| *cpu == first).unwrap_or(0);
    ((0..workers).map(|number| Some(cores[(start + number) % cores.len()])).collect(), used)
}

/// The first CPU of each core, from `thread_siblings_list` (kernel
/// `Documentation/admin-guide/cputopology.rst`); every CPU where the kernel does not tell.
fn cores() -> Vec<usize> {
    let first_of_core = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = std::fs::read_to_string(path).ok()?;
        siblings.trim().split([',', '-']).next()?.parse::<usize>().ok()
    };
    (0..sys::online_cpus()).filter(|&cpu| first_of_core(cpu).is_none_or(|first| first == cpu)).collect()
}

/// The control `bulk-directory-watch`.
fn bulk(round: &mut RoundContext, folder: &Folder, names: &Names) -> Result<(), WorkloadError> {
    let items = names.count() as u64;
    let mask = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
    let _watches = Limit::Watches.at_least(items + MARGIN)?;
    // The events of all removals wait in the queue.
    let _queue = Limit::Queue.at_least(items + 1)?;
    for name in names.iter() {
        sys::mkdir(folder.handle.as_fd(), name)
            .map_err(|errno| failed("mkdirat", &folder.join(name), errno))?;
    }
    round.count("mkdirat", items, items);
    let paths = folder.paths(names)?;
    let group = watch::instance()?;
    let mut watches = vec![-1; names.count()];
    round.sync()?;
    let added = round.phase("add", items, || {
        let mut good = 0;
        for (path, watch) in paths.iter().zip(&mut watches) {
            *watch = notify::add_watch(group.as_fd(), path, mask).unwrap_or(-1);
            good += u64::from(*watch >= FIRST_WATCH);
        }
        Ok(good)
    })?;
    let removed = round.phase("remove", items, || {
        let mut good = 0;
        for watch in &watches {
            good += u64::from(notify::remove_watch(group.as_fd(), *watch).is_ok());
        }
        Ok(good)
    })?;
    Limit::Watches.record(round, "add")?;
    Limit::Queue.record(round, "add")?;
    let mut heard = Heard::nothing(mask, 0);
    drain(round, &mut heard, &[group])?;
    count_watches(round, items, added, removed);
    let distinct: BTreeSet<i32> = watches.into_iter().collect();
    round.check("distinct watches", items, distinct.len());
    judge(round, &heard, items);
    Ok(())
}

/// The control `existing-mask-update`.
fn update_mask(round: &mut RoundContext, folder: &Folder) -> Result<(), WorkloadError> {
    let items = round.integer("items")?;
    folder.make_file(c"target")?;
    let path = c_path(&folder.path.join("target"))?;
    let group = watch::instance()?;
    let number = watch::watch(&group, &path, WatchFlags::ATTRIB)?;
    for mask in [WatchFlags::MODIFY, WatchFlags::ATTRIB] {
        watch::watch(&group, &path, mask)?;
    }
    round.sync()?;
    let same = round.phase("calls", items, || {
        let mut same = 0;
        for item in 0..items {
            let mask = if item & 1 == 0 { WatchFlags::MODIFY } else { WatchFlags::ATTRIB };
            same += u64::from(notify::add_watch(group.as_fd(), &path, mask) == Ok(number));
        }
        Ok(same)
    })?;
    notify::remove_watch(group.as_fd(), number)
        .map_err(|errno| failed("inotify_rm_watch", &folder.path, errno))?;
    let mut heard = Heard::nothing(WatchFlags::MODIFY | WatchFlags::ATTRIB, 0);
    drain(round, &mut heard, &[group])?;
    round.count("inotify_add_watch", items, same);
    round.check("adds", items, same);
    judge(round, &heard, 1);
    Ok(())
}

/// The control `path-lookup`.
fn look_up(round: &mut RoundContext, folder: &Folder) -> Result<(), WorkloadError> {
    let items = round.integer("items")?;
    folder.make_file(c"target")?;
    let path = c_path(&folder.path.join("target"))?;
    round.sync()?;
    let look = || {
        let Ok(file) = notify::open_path(&path) else { return 0 };
        u64::from(sys::close(file).is_ok())
    };
    for _ in 0..WARM_LOOKUPS {
        look();
    }
    let good = round.phase("calls", items, || Ok((0..items).map(|_| look()).sum::<u64>()))?;
    for call in ["openat", "close"] {
        round.count(call, items, good);
    }
    round.check("lookups", items, good);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify::ReadFlags;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::watch::tests::{assert_measures_declared, event};
    use crate::{find, resolve, run};

    fn quick(scenario: &str, folder: &Path, items: u64) -> kdelta_wire::RoundRequest {
        let name = format!("connector/{scenario}");
        let mut request = request(&name, folder, &[("items", Setting::Integer(items))]);
        if TOPOLOGIES.contains(&scenario) {
            request.scenario.parameters.insert("workers".into(), Setting::Integer(2).value());
        }
        request
    }

    #[test]
    fn every_scenario_does_each_item_once() {
        for scenario in INFO.scenarios {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let round = run(&quick(scenario.name, folder.path(), 16), None).expect("runs");
            assert_sound(&round);
            assert_measures_declared(&INFO, scenario.name, &round);
            let phases: Vec<_> = round.phases.iter().map(|phase| (phase.name.as_str(), phase.ops)).collect();
            if ADDING.contains(&scenario.name) {
                assert_eq!(phases, [("add", 16), ("remove", 16)], "{}", scenario.name);
                assert_eq!(round.census["inotify_rm_watch"].succeeded, 16);
            } else {
                assert_eq!(phases, [("calls", 16)], "{}", scenario.name);
            }
            if TOPOLOGIES.contains(&scenario.name) {
                let remove = &round.phases[1];
                let pair = round.phases[0].measures["worker"] + remove.measures["worker"];
                assert_eq!(remove.measures["pair_worker"], pair);
                assert_eq!((round.phases[0].workers.len(), remove.workers.len()), (2, 2));
            }
        }
    }

    #[test]
    fn shared_names_lead_to_one_inode_and_distinct_names_to_many() {
        for (scenario, inodes) in [(DISTINCT, "16"), (SHARED, "1")] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let round = run(&quick(scenario, folder.path(), 16), None).expect("runs");
            let check = round.checks.iter().find(|check| check.name == "inodes").expect("a check");
            assert_eq!((check.actual.as_str(), check.passed), (inodes, true));
            let ignored = round.checks.iter().find(|check| check.name == "ignored events").expect("a check");
            // The keeper is one more.
            assert_eq!(ignored.actual, if scenario == SHARED { "17" } else { "16" });
        }
    }

    #[test]
    fn an_uneven_share_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = run(&quick(DISTINCT, folder.path(), 17), None).expect_err("odd").to_string();
        assert!(error.contains("an even share of 17 items for 2 workers is not available"), "{error}");
    }

    #[test]
    fn an_overflow_fails_the_check() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = quick(DISTINCT, folder.path(), 16);
        let scenario = find("connector/distinct").expect("known").scenario;
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let mut heard = Heard::nothing(WatchFlags::ATTRIB, 0);
        heard.take(&event(ReadFlags::IGNORED.bits(), ""));
        heard.take(&event(ReadFlags::QUEUE_OVERFLOW.bits(), ""));
        judge(&mut round, &heard, 1);
        let checks = round.finish().checks;
        assert_eq!(checks.iter().map(|check| check.passed).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn every_core_is_used_before_one_is_used_twice() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request = quick(DISTINCT, folder.path(), 16);
        let all = cores();
        assert!(!all.is_empty() && all[0] == 0, "{all:?}");
        let scenario = find("connector/distinct").expect("known").scenario;
        let context = |request: kdelta_wire::RoundRequest| {
            let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
            RoundContext::for_test(request, scenario, parameters)
        };
        assert_eq!(posts(&context(request.clone()), 2).0, [None, None]);
        request.cpu = Some(rustix::thread::sched_getcpu());
        let (posts, used) = posts(&context(request), all.len() + 1);
        assert_eq!(used, all.len());
        assert_eq!(posts.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(posts.first(), posts.last());
    }
}
