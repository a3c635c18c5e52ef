//! Opening and closing one file while nobody, somebody else, or a listener to its own folder is
//! watching. Read [`OpenClose`] first.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::inotify::WatchFlags;

use crate::latency::Latencies;
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, Heard, Limit, Listener, ListenerPost};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo, clock,
};

const PARENT: &str = "parent";
const OTHER: &str = "other";
/// Events of one operation, when they are listened to: one of opening, one of closing.
const EVENTS_PER_OPERATION: u64 = 2;

const fn ticks(name: &'static str, summary: &'static str) -> MeasureInfo {
    MeasureInfo { name, phase: "open-close", summary, unit: "ticks", better: Better::Lower, scenarios: &[] }
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "open-close",
    title: "open and close with a listener",
    summary: "Opens one file for reading and closes it, over and over, each time measured by itself, while a \
              second thread waits for inotify events on the next CPU.",
    source: "the event-path test in Partha Satapathy's mail to linux-fsdevel about checking parent watches \
             without child dentry flags (100,000 iterations; worker on CPU 2, listener on CPU 4)",
    scenarios: &[
        ScenarioInfo { name: "none", summary: "the listener watches nothing", default: true },
        ScenarioInfo {
            name: OTHER,
            summary: "it watches another folder of the same filesystem, where nothing happens",
            default: true,
        },
        ScenarioInfo {
            name: PARENT,
            summary: "it watches the file's folder for opening and closing, and reads two events an operation",
            default: true,
        },
    ],
    parameters: &[ParameterInfo {
        name: "operations",
        summary: "times that the file is opened and closed",
        unit: "operations",
        domain: Domain::Integer { default: 100_000, min: 1, max: 1 << 26 },
        scenarios: &[],
    }],
    limits: &[],
    phases: &[PhaseInfo {
        name: "open-close",
        operation: "one openat(2) and one close(2)",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        ticks("p50", "median of one operation"),
        ticks("p99", "99th percentile of one operation"),
        ticks("p999", "99.9th percentile of one operation"),
        ticks("max", "longest operation"),
        MeasureInfo {
            name: "events",
            phase: "open-close",
            summary: "events of opening and closing that the listener read",
            unit: "events",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "overflows",
            phase: "open-close",
            summary: "times that the queue was full",
            unit: "events",
            better: Better::Neither,
            scenarios: &[],
        },
        watch::shared_cpu("open-close"),
        Limit::Queue.measure("open-close", &[]),
    ],
    checks: &[
        CheckInfo {
            name: "events",
            summary: "the listener got two events for each operation in its folder, and none otherwise",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: PARENT, inject: "close:retval=0:when=150" },
        },
        CheckInfo {
            name: "queue overflows",
            summary: "the queue was never full",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("an_overflow_and_a_stray_event_fail_their_checks"),
        },
        CheckInfo {
            name: "other events",
            summary: "nothing but opening and closing was heard",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("an_overflow_and_a_stray_event_fail_their_checks"),
        },
    ],
    refusals: &[],
    scale: "operations",
    presets: &[
        Preset {
            name: "source",
            summary: "the mail's",
            values: &[("operations", Setting::Integer(100_000))],
        },
        Preset {
            name: "guest",
            summary: "a fifth of the mail's",
            values: &[("operations", Setting::Integer(20_000))],
        },
        Preset {
            name: "quick",
            summary: "200 operations, for a first look",
            values: &[("operations", Setting::Integer(200))],
        },
    ],
};

/// The workload `open-close`.
pub(crate) struct OpenClose;

impl Workload for OpenClose {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let (operations, clock) = (round.integer("operations")?, round.clock());
        let root = round.mount_point().to_owned();
        let (own, path) = (root.join("own"), root.join("own/file"));
        let parent = open_root(&root)?;
        let folder = watch::make_folder(&parent, &root, c"own")?;
        watch::make_folder(&parent, &root, c"other")?;
        round.count("mkdirat", 2, 2);
        notify::make_file(folder.as_fd(), c"file").map_err(|errno| failed("mknodat", &path, errno))?;
        let mut latencies = Latencies::with_capacity(operations as usize);
        round.sync()?;

        let mask = WatchFlags::OPEN | WatchFlags::CLOSE;
        let instance = watch::instance()?;
        match round.scenario() {
            PARENT => watch_folder(&instance, &own, mask)?,
            OTHER => watch_folder(&instance, &root.join("other"), mask)?,
            _ => {}
        }
        let post = ListenerPost::after(round, 1);
        let listener = Listener::start(instance, post, Heard::nothing(mask, 0))?;
        round.phase("open-close", operations, || {
            for _ in 0..operations {
                let start = clock::now(clock);
                let file = notify::open_to_read(folder.as_fd(), c"file")
                    .map_err(|errno| failed("openat", &path, errno))?;
                sys::close(file).map_err(|errno| failed("close", &path, errno))?;
                latencies.push(clock::now(clock).saturating_sub(start));
            }
            Ok(())
        })?;
        let heard = listener.finish()?;

        round.measure_latencies("open-close", &latencies);
        post.record(round, "open-close");
        Limit::Queue.record(round, "open-close")?;
        for call in ["openat", "close"] {
            round.count(call, operations, operations);
        }
        judge(round, &heard, operations);
        Ok(())
    }
}

fn watch_folder(instance: &OwnedFd, path: &std::path::Path, mask: WatchFlags) -> Result<(), WorkloadError> {
    watch::watch(instance, &c_path(path)?, mask).map(|_| ())
}

/// Checks what the listener heard of `operations`.
fn judge(round: &mut RoundContext, heard: &Heard, operations: u64) {
    round.measure("open-close", "events", heard.wanted as f64);
    round.measure("open-close", "overflows", heard.overflows as f64);
    let expected = if round.scenario() == PARENT { operations * EVENTS_PER_OPERATION } else { 0 };
    round.check("events", expected, heard.wanted);
    round.check("queue overflows", 0, heard.overflows);
    round.check("other events", 0, heard.other + heard.ignored);
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify::ReadFlags;

    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::watch::tests::{assert_measures_declared, event};
    use crate::{find, resolve, run};

    #[test]
    fn two_events_are_heard_of_each_operation_in_the_watched_folder_and_none_elsewhere() {
        for (scenario, events) in [("none", 0.0), (OTHER, 0.0), (PARENT, 600.0)] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let name = format!("open-close/{scenario}");
            let request = request(&name, folder.path(), &[("operations", Setting::Integer(300))]);
            let round = run(&request, None).expect("runs");
            assert_sound(&round);
            assert_measures_declared(&INFO, scenario, &round);
            assert_eq!(round.phases[0].ops, 300);
            assert_eq!(round.phases[0].measures["events"], events, "{scenario}");
            assert_eq!(round.census["openat"].succeeded, 300);
        }
    }

    #[test]
    fn a_pinned_round_has_its_listener_on_the_next_cpu() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut request =
            request("open-close/parent", folder.path(), &[("operations", Setting::Integer(10))]);
        request.cpu = Some(rustix::thread::sched_getcpu());
        match run(&request, None) {
            Ok(round) => assert_sound(&round),
            // The next CPU may be forbidden to this test.
            Err(WorkloadError::Call { call: "sched_setaffinity", .. }) => eprintln!("skipped: one CPU only"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_overflow_and_a_stray_event_fail_their_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let request = request("open-close/parent", folder.path(), &[]);
        let scenario = find("open-close/parent").expect("known").scenario;
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let mut heard = Heard::nothing(WatchFlags::OPEN | WatchFlags::CLOSE, 0);
        heard.take(&event(WatchFlags::OPEN.bits(), "file"));
        heard.take(&event(ReadFlags::QUEUE_OVERFLOW.bits(), ""));
        heard.take(&event(WatchFlags::ATTRIB.bits(), "file"));
        judge(&mut round, &heard, 1);
        let round = round.finish();
        let failed: Vec<_> = round.checks.iter().filter(|check| !check.passed).collect();
        let names: Vec<_> = failed.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["events", "queue overflows", "other events"]);
    }
}
