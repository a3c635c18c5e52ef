//! Clients that write to files of one watched folder, each to its own, in growing number. Read
//! [`ModifyScaling`] first.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::FileType;
use rustix::fs::inotify::WatchFlags;

use crate::parallel::{Crew, Share};
use crate::round::{c_path, failed, open_root};
use crate::sys::{self, notify};
use crate::watch::{self, Heard, Limit, Listener, ListenerPost, Names};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext,
    ScenarioInfo, Setting, Workload, WorkloadError, WorkloadInfo,
};

const DELIVERED: &str = "delivered";
const OTHER_MASK: &str = "other-mask";
const OTHER_DIR: &str = "other-dir";
/// Size of every file.
const FILE_BYTES: usize = 4096;
/// Ticks of both clocks in a second.
const TICKS_PER_SECOND: f64 = 1e9;

const fn measure(
    name: &'static str,
    summary: &'static str,
    unit: &'static str,
    better: Better,
) -> MeasureInfo {
    MeasureInfo { name, phase: "write", summary, unit, better, scenarios: &[] }
}

static INFO: WorkloadInfo = WorkloadInfo {
    name: "modify-scaling",
    title: "writes below a watched folder",
    summary: "Clients write one byte at offset 0, each over and over to a file of its own in one folder, while \
              a listener reads the events of a watch. Files are made and opened before, and closed after, \
              the timed writes. The listener's CPU is the one after the clients'; where there is none free, \
              its work is part of the clients' time.",
    source: "Jan Kara's design in his review on linux-fsdevel of checking parent watches without child \
             dentry flags, and Partha Satapathy's runs of it (1,024 files on tmpfs, 1,000,000 writes of each \
             of 1 to 1,024 clients)",
    scenarios: &[
        ScenarioInfo {
            name: DELIVERED,
            summary: "the folder is watched for modification, and the listener gets every event that the \
                      queue neither merges nor loses",
            default: true,
        },
        ScenarioInfo {
            name: OTHER_MASK,
            summary: "the folder is watched for changed attributes, which writing does not make",
            default: true,
        },
        ScenarioInfo {
            name: OTHER_DIR,
            summary: "another folder of the same filesystem is watched for modification",
            default: true,
        },
        ScenarioInfo { name: "unwatched", summary: "nothing is watched", default: true },
    ],
    parameters: &[
        ParameterInfo {
            name: "clients",
            summary: "threads that write, each to its own file; the source sweeps 1, 2, 4 to 1024",
            unit: "threads",
            domain: Domain::Integer { default: 4, min: 1, max: 1024 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "writes",
            summary: "writes of each client",
            unit: "writes",
            domain: Domain::Integer { default: 10_000, min: 1, max: 100_000_000 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "files",
            summary: "files of 4 KiB in the folder; at least one for each client",
            unit: "files",
            domain: Domain::Integer { default: 1024, min: 1, max: 100_000 },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo {
        name: "write",
        operation: "one byte written by one client",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        measure("client_min", "all writes of the fastest client", "ticks", Better::Lower),
        measure("client_mean", "all writes of a client, on average", "ticks", Better::Lower),
        measure("client_max", "all writes of the slowest client", "ticks", Better::Lower),
        measure("rate", "writes of all clients in a second of the clock", "writes/s", Better::Higher),
        measure("events", "events of modification that the listener read", "events", Better::Neither),
        measure("overflows", "times that the queue was full and events were lost", "events", Better::Neither),
        measure(
            "delivered_ratio",
            "events read for each write; the rest was merged with the last event in the queue, or lost. \
             Arms compare only where this is alike",
            "",
            Better::Neither,
        ),
        watch::shared_cpu("write"),
        Limit::Queue.measure("write", &[]),
    ],
    checks: &[
        CheckInfo {
            name: "writes",
            summary: "every write returned 1",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: DELIVERED, inject: "pwrite64:retval=0:when=5" },
        },
        CheckInfo {
            name: "events",
            summary: "events came where the folder is watched for them, no more than writes, and nowhere else",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: DELIVERED, inject: "inotify_add_watch:retval=1" },
        },
        CheckInfo {
            name: "clients heard",
            summary: "every client's file was in an event, unless the queue was full, and no client's where \
                      nothing is delivered",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: DELIVERED, inject: "inotify_add_watch:retval=1" },
        },
        CheckInfo {
            name: "other events",
            summary: "nothing but modification of the files was heard",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_lost_client_and_a_stray_event_fail_their_checks"),
        },
        CheckInfo {
            name: "bytes",
            summary: "a walk afterwards finds every file with its 4 KiB",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: DELIVERED, inject: "write:retval=4096:when=5" },
        },
    ],
    refusals: &[],
    scale: "writes",
    presets: &[
        Preset {
            name: "source",
            summary: "the mail's, at 64 clients, from where on its time for each client is constant",
            values: &[
                ("clients", Setting::Integer(64)),
                ("writes", Setting::Integer(1_000_000)),
                ("files", Setting::Integer(1024)),
            ],
        },
        Preset {
            name: "guest",
            summary: "4 clients of 10,000 writes",
            values: &[
                ("clients", Setting::Integer(4)),
                ("writes", Setting::Integer(10_000)),
                ("files", Setting::Integer(1024)),
            ],
        },
        Preset {
            name: "quick",
            summary: "2 clients of 100 writes, for a first look",
            values: &[
                ("clients", Setting::Integer(2)),
                ("writes", Setting::Integer(100)),
                ("files", Setting::Integer(16)),
            ],
        },
    ],
};

/// The workload `modify-scaling`.
pub(crate) struct ModifyScaling;

/// One client: its file, and how many writes returned 1.
struct Client {
    file: OwnedFd,
    good: u64,
}

impl Workload for ModifyScaling {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let (clients, writes) = (round.integer("clients")?, round.integer("writes")?);
        let files = round.integer("files")?;
        if files < clients {
            return Err(WorkloadError::Unavailable {
                what: format!("a file for each of {clients} clients among {files}"),
                next: "set the parameter `files` to the number of clients or more",
            });
        }
        let root = round.mount_point().to_owned();
        let path = root.join("watched");
        sys::allow_open_files(clients).map_err(|errno| failed("setrlimit(RLIMIT_NOFILE)", &root, errno))?;
        let parent = open_root(&root)?;
        let folder = watch::make_folder(&parent, &root, c"watched")?;
        watch::make_folder(&parent, &root, c"other")?;
        let names = Names::new(b'f', files);
        let bytes = [b'k'; FILE_BYTES];
        for name in names.iter() {
            let lost = |call, errno| failed(call, &path.join(&*name.to_string_lossy()), errno);
            let file = notify::create_new(folder.as_fd(), name).map_err(|errno| lost("openat", errno))?;
            sys::write(file.as_fd(), &bytes).map_err(|errno| lost("write", errno))?;
        }
        round.sync()?;

        let instance = watch::instance()?;
        let (watched, mask) = match round.scenario() {
            DELIVERED => (Some(&path), WatchFlags::MODIFY),
            OTHER_MASK => (Some(&path), WatchFlags::ATTRIB),
            _ => (None, WatchFlags::MODIFY),
        };
        let other = root.join("other");
        let watched = if round.scenario() == OTHER_DIR { Some(&other) } else { watched };
        if let Some(folder) = watched {
            watch::watch(&instance, &c_path(folder)?, mask)?;
        }
        let post = ListenerPost::after(round, clients as usize);
        let listener = Listener::start(instance, post, Heard::nothing(WatchFlags::MODIFY, files as usize))?;
        let mut members = Vec::with_capacity(clients as usize);
        for name in names.iter().take(clients as usize) {
            let file = notify::open_to_write(folder.as_fd(), name)
                .map_err(|errno| failed("openat", &path.join(&*name.to_string_lossy()), errno))?;
            members.push(Client { file, good: 0 });
        }
        round.parallel("write", Crew::Threads, &mut members, |client, _| {
            let mut good = 0;
            for _ in 0..writes {
                let written = notify::write_at(client.file.as_fd(), b"w", 0)
                    .map_err(|errno| failed("pwrite64", &path, errno))?;
                good += u64::from(written == 1);
            }
            client.good = good;
            Ok(Share { ops: writes, ..Share::default() })
        })?;
        let good = members.iter().map(|client| client.good).sum();
        drop(members);
        let heard = listener.finish()?;

        let written = clients * writes;
        round.count("mkdirat", 2, 2);
        round.count("openat", files + clients, files + clients);
        round.count("write", files, files);
        round.count("close", files + clients, files + clients);
        round.count("pwrite64", written, good);
        round.check("writes", written, good);
        measure_clients(round, written);
        post.record(round, "write");
        Limit::Queue.record(round, "write")?;
        judge(round, &heard, clients, written);
        let found = bytes_in(round, &folder, &path)?;
        round.check("bytes", files * FILE_BYTES as u64, found);
        Ok(())
    }
}

fn measure_clients(round: &mut RoundContext, written: u64) {
    let Some(phase) = round.latest("write") else { return };
    let elapsed = phase.elapsed;
    let times: Vec<u64> = phase.workers.iter().map(|worker| worker.elapsed).collect();
    let (least, most) = (times.iter().min().copied(), times.iter().max().copied());
    let mean = times.iter().sum::<u64>() as f64 / times.len().max(1) as f64;
    round.measure("write", "client_min", least.unwrap_or(0) as f64);
    round.measure("write", "client_mean", mean);
    round.measure("write", "client_max", most.unwrap_or(0) as f64);
    round.measure("write", "rate", written as f64 * TICKS_PER_SECOND / elapsed.max(1) as f64);
}

/// Checks what was heard of `written` writes of `clients`.
fn judge(round: &mut RoundContext, heard: &Heard, clients: u64, written: u64) {
    round.measure("write", "events", heard.wanted as f64);
    round.measure("write", "overflows", heard.overflows as f64);
    round.measure("write", "delivered_ratio", heard.wanted as f64 / written as f64);
    if round.scenario() == DELIVERED {
        let possible = (1..=written).contains(&heard.wanted);
        round.check_that("events", format!("1 to {written}"), heard.wanted, possible);
        // A client's last event is in the queue or the same as one that is, unless the queue is full.
        let all = heard.files() == clients || (heard.overflows > 0 && heard.files() < clients);
        let must = if heard.overflows > 0 { "at most " } else { "" };
        round.check_that("clients heard", format!("{must}{clients}"), heard.files(), all);
    } else {
        round.check("events", 0, heard.wanted);
        round.check("clients heard", 0, heard.files());
    }
    round.check("other events", 0, heard.other + heard.ignored);
}

/// Bytes of all files of the folder, by reading it and asking for each.
fn bytes_in(round: &mut RoundContext, folder: &OwnedFd, path: &Path) -> Result<u64, WorkloadError> {
    let (mut bytes, mut asked, mut failure) = (0, 0, None);
    notify::entries(folder.as_fd(), |name, kind| {
        if kind != FileType::Directory {
            asked += 1;
            match notify::stat(folder.as_fd(), name) {
                Ok(stat) => bytes += stat.st_size.unsigned_abs(),
                Err(errno) => failure = Some(errno),
            }
        }
    })
    .map_err(|errno| failed("getdents64", path, errno))?;
    round.count("newfstatat", asked, asked);
    failure.map_or(Ok(bytes), |errno| Err(failed("newfstatat", path, errno)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::watch::tests::{assert_measures_declared, event};
    use crate::{find, resolve, run};

    const SMALL: [(&str, Setting); 3] =
        [("clients", Setting::Integer(3)), ("writes", Setting::Integer(200)), ("files", Setting::Integer(5))];

    #[test]
    fn events_are_heard_of_every_client_where_its_folder_is_watched_for_them_and_nowhere_else() {
        for scenario in INFO.scenarios {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let name = format!("modify-scaling/{}", scenario.name);
            let round = run(&request(&name, folder.path(), &SMALL), None).expect("runs");
            assert_sound(&round);
            assert_measures_declared(&INFO, scenario.name, &round);
            let phase = &round.phases[0];
            assert_eq!((phase.ops, phase.workers.len()), (600, 3));
            assert_eq!(round.census["pwrite64"].attempted, 600);
            assert_eq!(phase.measures["events"] > 0.0, scenario.name == DELIVERED, "{}", scenario.name);
            let [least, mean, most] =
                ["client_min", "client_mean", "client_max"].map(|name| phase.measures[name]);
            assert!(0.0 < least && least <= mean && mean <= most, "{least} {mean} {most}");
        }
    }

    #[test]
    fn more_clients_than_files_are_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = [("clients", Setting::Integer(3)), ("files", Setting::Integer(2))];
        let error = run(&request("modify-scaling/unwatched", folder.path(), &parameters), None);
        let message = error.expect_err("too few files").to_string();
        assert!(
            message.starts_with("a file for each of 3 clients among 2 is not available here"),
            "{message}"
        );
    }

    #[test]
    fn a_lost_client_and_a_stray_event_fail_their_checks() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let failures = |scenario: &str, events: &[Vec<u8>]| {
            let name = format!("modify-scaling/{scenario}");
            let request = request(&name, folder.path(), &SMALL);
            let scenario = find(&name).expect("known").scenario;
            let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
            let mut round = RoundContext::for_test(request, scenario, parameters);
            let mut heard = Heard::nothing(WatchFlags::MODIFY, 5);
            heard.take(&events.concat());
            judge(&mut round, &heard, 2, 4);
            let checks = round.finish().checks.into_iter().filter(|check| !check.passed);
            checks.map(|check| check.name).collect::<Vec<_>>().join(", ")
        };
        let of = |number: u32| event(WatchFlags::MODIFY.bits(), &format!("f{number:08}"));
        let overflow = event(rustix::fs::inotify::ReadFlags::QUEUE_OVERFLOW.bits(), "");
        assert_eq!(failures(DELIVERED, &[of(0), of(1)]), "");
        assert_eq!(failures(DELIVERED, &[of(0), of(0)]), "clients heard");
        assert_eq!(failures(DELIVERED, &[of(0), overflow]), "");
        assert_eq!(failures(DELIVERED, &[of(0), of(1), event(WatchFlags::OPEN.bits(), "")]), "other events");
        assert_eq!(failures(DELIVERED, &[of(0), of(1), of(2)]), "clients heard");
        assert_eq!(failures(DELIVERED, &[of(0), of(1), of(0), of(1), of(0)]), "events");
        assert_eq!(failures("unwatched", &[of(0)]), "events, clients heard");
    }
}
