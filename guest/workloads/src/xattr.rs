//! Extended attribute system calls on one small file, one after the other. Read [`Xattr`] first,
//! then `steps`.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::round::{c_path, failed, open_root};
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext, ScenarioInfo, Setting,
    Workload, WorkloadError, WorkloadInfo, sys,
};

/// Name and value that the reproducer uses; the value's final NUL belongs to it.
const NAME: &str = "fsregression";
const VALUE: &[u8] = b"seed\0";
const FILE: &str = "xattr-fixture";
const COUNT: &str = "flistxattr-count";
const RETURNS: &str = "calls that returned what they should";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "xattr",
    title: "extended attribute calls",
    summary: "Sets, reads, lists or removes extended attributes of one file, over and over; \
              only the loop of system calls is timed.",
    source: "Chengfeng Lin's report of a tmpfs flistxattr slowdown and its reproducer \
             (linux-regression-evidence, tmpfs-flistxattr-small-list)",
    scenarios: &[
        ScenarioInfo {
            name: "setxattr",
            summary: "setxattr(path), replacing a value of the same size",
            default: true,
        },
        ScenarioInfo { name: "getxattr", summary: "getxattr(path)", default: true },
        ScenarioInfo { name: "listxattr", summary: "listxattr(path) of one attribute", default: true },
        ScenarioInfo {
            name: "fsetxattr",
            summary: "fsetxattr(fd), replacing a value of the same size",
            default: true,
        },
        ScenarioInfo { name: "fgetxattr", summary: "fgetxattr(fd)", default: true },
        ScenarioInfo { name: "flistxattr", summary: "flistxattr(fd) of one attribute", default: true },
        ScenarioInfo { name: COUNT, summary: "flistxattr(fd) of `xattrs` attributes", default: false },
        ScenarioInfo {
            name: "set-get-list",
            summary: "fsetxattr, fgetxattr, flistxattr in turn",
            default: false,
        },
        ScenarioInfo { name: "set-remove", summary: "setxattr, then removexattr", default: false },
    ],
    parameters: &[
        ParameterInfo {
            name: "iterations",
            summary: "turns of the timed loop",
            unit: "iterations",
            domain: Domain::Integer { default: 65_536, min: 1, max: 1 << 24 },
            scenarios: &[],
        },
        ParameterInfo {
            name: "list_bytes",
            summary: "size of the buffer handed to listxattr",
            unit: "bytes",
            // XATTR_LIST_MAX of the kernel.
            domain: Domain::Integer { default: 8192, min: 64, max: 65_536 },
            scenarios: &["listxattr", "flistxattr", COUNT, "set-get-list"],
        },
        ParameterInfo {
            name: "xattrs",
            summary: "attributes on the file; a filesystem may take fewer than the most allowed here",
            unit: "attributes",
            domain: Domain::Integer { default: 4, min: 1, max: 256 },
            scenarios: &[COUNT],
        },
        ParameterInfo {
            name: "namespace",
            summary: "namespace of the attributes; tmpfs has user attributes since linux 6.6 only",
            unit: "",
            domain: Domain::Choice { default: "user", choices: &["user", "trusted"] },
            scenarios: &[],
        },
    ],
    limits: &[],
    phases: &[PhaseInfo { name: "calls", operation: "one system call", primary: true, scenarios: &[] }],
    measures: &[],
    checks: &[CheckInfo {
        name: RETURNS,
        summary: "every call returned what it must: the value's length, the exact length of the list of names \
                  (`flistxattr-count`), or success",
        scenarios: &[],
        filesystems: &[],
        proof: Proof::Injection { scenario: "flistxattr", inject: "flistxattr:retval=0:when=5" },
    }],
    refusals: &[],
    scale: "iterations",
    presets: &[
        Preset {
            name: "source",
            summary: "values of the report",
            values: &[("iterations", Setting::Integer(65_536)), ("list_bytes", Setting::Integer(8192))],
        },
        Preset {
            name: "guest",
            // At 4096 iterations one timer tick more or less is 1 % of flistxattr on tmpfs.
            summary: "as the report, so that timer ticks average out",
            values: &[("iterations", Setting::Integer(65_536)), ("list_bytes", Setting::Integer(8192))],
        },
        Preset {
            name: "quick",
            summary: "the reproducer's quick mode, for a first look",
            values: &[("iterations", Setting::Integer(4096)), ("list_bytes", Setting::Integer(8192))],
        },
    ],
};

/// The workload `xattr`.
pub(crate) struct Xattr;

impl Workload for Xattr {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let fixture = Fixture::make(round)?;
        let mut list = match round.integer("list_bytes") {
            Ok(bytes) => vec![0_u8; bytes as usize],
            Err(_) => Vec::new(),
        };
        round.sync()?;
        steps(round, &fixture, &mut list)
    }
}

/// The file and its attributes.
struct Fixture {
    path: PathBuf,
    c_path: CString,
    file: OwnedFd,
    name: CString,
    /// What listing must return when the file has exactly our attributes.
    list_length: usize,
}

impl Fixture {
    fn make(round: &RoundContext) -> Result<Self, WorkloadError> {
        let path = round.mount_point().join(FILE);
        let root = open_root(round.mount_point())?;
        let file_name = CString::new(FILE).unwrap_or_default();
        let file = sys::create(root.as_fd(), &file_name).map_err(|errno| failed("openat", &path, errno))?;
        sys::write(file.as_fd(), b"x").map_err(|errno| failed("write", &path, errno))?;
        let base = format!("{}.{NAME}", round.choice("namespace")?);
        let names: Vec<String> = match round.scenario() {
            COUNT => (0..round.integer("xattrs")?).map(|number| format!("{base}.{number:03}")).collect(),
            "set-remove" => Vec::new(),
            _ => vec![base.clone()],
        };
        let mut list_length = 0;
        for name in names {
            let name = CString::new(name).unwrap_or_default();
            sys::fsetxattr(file.as_fd(), &name, VALUE).map_err(|errno| match errno {
                Errno::OPNOTSUPP => WorkloadError::NoAttributes { name: name.to_string_lossy().into_owned() },
                errno => failed("fsetxattr", &path, errno),
            })?;
            list_length += name.as_bytes_with_nul().len();
        }
        let name = CString::new(base).unwrap_or_default();
        Ok(Self { c_path: c_path(&path)?, path, file, name, list_length })
    }
}

/// The timed loop of each scenario.
fn steps(round: &mut RoundContext, fixture: &Fixture, list: &mut [u8]) -> Result<(), WorkloadError> {
    let Fixture { c_path: path, name, list_length, .. } = fixture;
    let file = fixture.file.as_fd();
    let mut value = [0_u8; 64];
    let is = |call, result: Result<usize, Errno>, right: fn(usize) -> bool| match result {
        Ok(length) => Ok(u64::from(right(length))),
        Err(errno) => Err((call, errno)),
    };
    let whole = |length| length == VALUE.len();
    let some = |length| length > 0;
    let done = |call, result: Result<(), Errno>| result.map(|()| 1).map_err(|errno| (call, errno));
    match round.scenario() {
        "setxattr" => {
            repeat(round, fixture, &["setxattr"], || done("setxattr", sys::setxattr(path, name, VALUE)))
        }
        "getxattr" => repeat(round, fixture, &["getxattr"], || {
            is("getxattr", sys::getxattr(path, name, &mut value), whole)
        }),
        "listxattr" => {
            repeat(round, fixture, &["listxattr"], || is("listxattr", sys::listxattr(path, list), some))
        }
        "fsetxattr" => {
            repeat(round, fixture, &["fsetxattr"], || done("fsetxattr", sys::fsetxattr(file, name, VALUE)))
        }
        "fgetxattr" => repeat(round, fixture, &["fgetxattr"], || {
            is("fgetxattr", sys::fgetxattr(file, name, &mut value), whole)
        }),
        "flistxattr" => {
            repeat(round, fixture, &["flistxattr"], || is("flistxattr", sys::flistxattr(file, list), some))
        }
        COUNT => repeat(round, fixture, &["flistxattr"], || match sys::flistxattr(file, list) {
            Ok(length) => Ok(u64::from(length == *list_length)),
            Err(errno) => Err(("flistxattr", errno)),
        }),
        "set-get-list" => repeat(round, fixture, &["fsetxattr", "fgetxattr", "flistxattr"], || {
            Ok(done("fsetxattr", sys::fsetxattr(file, name, VALUE))?
                + is("fgetxattr", sys::fgetxattr(file, name, &mut value), whole)?
                + is("flistxattr", sys::flistxattr(file, list), some)?)
        }),
        "set-remove" => repeat(round, fixture, &["setxattr", "removexattr"], || {
            Ok(done("setxattr", sys::setxattr(path, name, VALUE))?
                + done("removexattr", sys::removexattr(path, name))?)
        }),
        other => Err(WorkloadError::Undeclared(other.to_owned())),
    }
}

/// Times `step`, which makes the system calls `made` once each and returns how many did as they should.
fn repeat(
    round: &mut RoundContext,
    fixture: &Fixture,
    made: &[&str],
    mut step: impl FnMut() -> Result<u64, (&'static str, Errno)>,
) -> Result<(), WorkloadError> {
    let iterations = round.integer("iterations")?;
    let ops = iterations * made.len() as u64;
    let good = round.phase("calls", ops, || {
        let mut good = 0;
        for _ in 0..iterations {
            good += step().map_err(|(call, errno)| failed(call, &fixture.path, errno))?;
        }
        Ok(good)
    })?;
    for call in made {
        round.count(call, iterations, good / made.len() as u64);
    }
    round.check(RETURNS, ops, good);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    /// A folder on tmpfs, whose user attributes need Linux 6.6, else wherever temporary files are.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
    }

    #[test]
    fn every_scenario_runs_and_its_checks_pass() {
        for scenario in INFO.scenarios {
            let folder = folder();
            let name = format!("xattr/{}", scenario.name);
            let request = request(&name, folder.path(), &[("iterations", Setting::Integer(20))]);
            let round = run(&request, None).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_sound(&round);
            let calls = match scenario.name {
                "set-get-list" => 3,
                "set-remove" => 2,
                _ => 1,
            };
            assert_eq!(round.phases[0].ops, 20 * calls, "{name}");
        }
    }

    #[test]
    fn a_list_that_is_longer_than_our_attributes_is_found() {
        let folder = folder();
        let parameters = [("iterations", Setting::Integer(5)), ("xattrs", Setting::Integer(3))];
        let request = request("xattr/flistxattr-count", folder.path(), &parameters);
        assert_sound(&run(&request, None).expect("runs"));
        // The file of the first round stays, so a second one with fewer attributes lists too many.
        let mut fewer = request.clone();
        fewer.scenario.parameters.insert("xattrs".into(), Setting::Integer(2).value());
        let round = run(&fewer, None).expect("runs");
        let check = round.checks.last().expect("a check");
        assert_eq!((check.expected.as_str(), check.actual.as_str(), check.passed), ("5", "0", false));
        assert_eq!(round.census["flistxattr"].succeeded, 0);
    }

    #[test]
    fn an_error_names_call_path_and_errno() {
        let folder = folder();
        let parameters = [
            ("iterations", Setting::Integer(1)),
            ("xattrs", Setting::Integer(64)),
            ("list_bytes", Setting::Integer(64)),
        ];
        let request = request("xattr/flistxattr-count", folder.path(), &parameters);
        let path = folder.path().join(FILE).display().to_string();
        let error = run(&request, None).expect_err("64 names do not fit");
        assert_eq!(error, WorkloadError::Call { call: "flistxattr", path, errno: libc::ERANGE });
    }
}
