//! Creating files that get attributes at birth: inherited ACLs, labels of a security module. Read
//! [`CreateXattr`] first; the tree is in `tree`.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kdelta_wire::FilesystemKind;
use rustix::io::Errno;

use crate::parallel::Share;
use crate::round::{failed, lost};
use crate::sys::ioctls::BulkRequest;
use crate::tree::parameters as tree_parameters;
use crate::tree::{Tree, timed};
use crate::{
    Better, CheckInfo, Domain, MeasureInfo, ParameterInfo, PhaseInfo, Proof, RoundContext, ScenarioInfo,
    Workload, WorkloadError, WorkloadInfo, round, sys,
};

const PHASE: &str = "create";
const ACL: &str = "inherited ACLs";
const LABELS: &str = "labels";
/// One file in so many is looked at.
const SAMPLE: usize = 1000;
/// Names of attributes that files may get at birth.
const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
const SMACK: &CStr = c"security.SMACK64";
const SELINUX: &CStr = c"security.selinux";

static INFO: WorkloadInfo = WorkloadInfo {
    name: "create-with-xattr",
    title: "create files that get attributes",
    summary: "Creates files as create/sane does, in folders whose files inherit an ACL, or under a security \
              module that labels them; timed are open, write and close of every file.",
    source: "Dave Chinner's patch `xfs: initialise attr fork on inode create` (fs_mark, creation 25 % slower \
             under SELinux), and Christoph Hellwig on inherited attributes in the mails about parent pointers",
    scenarios: &[
        ScenarioInfo { name: "plain", summary: "folders without a default ACL", default: true },
        ScenarioInfo {
            name: "acl",
            summary: "folders with a default ACL that names a user, so that every file stores an ACL",
            default: true,
        },
    ],
    parameters: &[
        tree_parameters::THREADS,
        tree_parameters::DIRS,
        tree_parameters::FILES,
        tree_parameters::SIZE,
        tree_parameters::WRITE_SIZE,
        tree_parameters::SYNC,
        tree_parameters::ORDER,
        ParameterInfo {
            name: "label",
            summary: "label that the kernel's security module must give every file; `none` means that no file \
                      may have one. The kernel's command line decides (security=, selinux=)",
            unit: "",
            domain: Domain::Choice { default: "none", choices: &["none", "smack", "selinux"] },
            scenarios: &[],
        },
    ],
    limits: tree_parameters::LIMITS,
    phases: &[PhaseInfo {
        name: PHASE,
        operation: "one file opened, written and closed",
        primary: true,
        scenarios: &[],
    }],
    measures: &[
        MeasureInfo {
            name: "rate",
            phase: PHASE,
            summary: "all files divided by the time of the phase",
            unit: "files/s",
            better: Better::Higher,
            scenarios: &[],
        },
        MeasureInfo {
            name: "system_us_per_file",
            phase: PHASE,
            summary: "system time of the phase per file",
            unit: "us",
            better: Better::Lower,
            scenarios: &[],
        },
        MeasureInfo {
            name: "attribute_forks",
            phase: PHASE,
            summary: "XFS, as root: share of the files looked at that have an attribute fork",
            unit: "ratio",
            better: Better::Neither,
            scenarios: &[],
        },
        MeasureInfo {
            name: "inline_forks",
            phase: PHASE,
            summary: "XFS, as root: share that has one and keeps it inside of the inode",
            unit: "ratio",
            better: Better::Neither,
            scenarios: &[],
        },
    ],
    checks: &[
        CheckInfo {
            name: "files",
            summary: "a walk afterwards finds every file that was created, and no other",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Test("a_file_too_many_fails_the_check"),
        },
        CheckInfo {
            name: ACL,
            summary: "of every 1000th file, each has an ACL in `acl` and none has one in `plain`",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "acl", inject: "fsetxattr:retval=0" },
        },
        CheckInfo {
            name: LABELS,
            summary: "of every 1000th file, each has the label that is expected, and none another",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "plain", inject: "getxattr:retval=8:when=3" },
        },
    ],
    refusals: &[],
    scale: "files",
    presets: tree_parameters::PRESETS,
};

/// The workload `create-with-xattr`.
pub(crate) struct CreateXattr;

impl Workload for CreateXattr {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let tree = Tree::prepare(round, 1)?;
        if round.scenario() == "acl" {
            set_default_acls(round, &tree)?;
        }
        round.sync()?;
        timed(round, PHASE, &mut tree.branches(), |branch| branch.create().map(Share::of))?;
        tree.count_creation(round);
        measure(round);
        verify(round, &tree)
    }
}

/// A default ACL that is not the same as a mode: owner, one more user, group, mask, others. The
/// layout is that of `struct posix_acl_xattr_header` and `_entry`
/// (kernel `include/uapi/linux/posix_acl_xattr.h`): version 2, then tag, permissions, id.
fn default_acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    // ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER; the mask differs from the group.
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 6, NOBODY), (0x02, 6, 0), (0x04, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 4, NOBODY)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn set_default_acls(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    let acl = default_acl();
    for branch in tree.branches() {
        for folder in branch.handles() {
            sys::fsetxattr(folder.as_fd(), DEFAULT_ACL, &acl).map_err(|errno| match errno {
                Errno::OPNOTSUPP => WorkloadError::Unavailable {
                    what: format!("a POSIX ACL on {}", round.filesystem()),
                    next: "build the kernel with this filesystem's POSIX_ACL option, and mount without noacl",
                },
                errno => failed("fsetxattr", branch.path(), errno),
            })?;
        }
        let folders = branch.handles().len() as u64;
        round.count("fsetxattr", folders, folders);
    }
    Ok(())
}

fn measure(round: &mut RoundContext) {
    let Some(phase) = round.latest(PHASE) else { return };
    let files = phase.ops.max(1) as f64;
    let (rate, system) = (files / phase.elapsed.max(1) as f64 * 1e9, phase.system_ns as f64 / 1e3 / files);
    round.measure(PHASE, "rate", rate);
    round.measure(PHASE, "system_us_per_file", system);
}

/// What a sample of the files has.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    files: u64,
    acls: u64,
    smack: u64,
    selinux: u64,
}

fn verify(round: &mut RoundContext, tree: &Tree) -> Result<(), WorkloadError> {
    let survey = tree.survey(round)?;
    round.check("files", tree.file_count(), survey.files);
    let mut found = Found::default();
    let mut forks = Forks::default();
    let root = round::open_root(round.mount_point())?;
    for branch in tree.branches() {
        for file in branch.sample(SAMPLE) {
            let file = file?;
            found.files += 1;
            for (count, name) in
                [(&mut found.acls, ACCESS_ACL), (&mut found.smack, SMACK), (&mut found.selinux, SELINUX)]
            {
                *count += u64::from(has(round, &file, name)?);
            }
            if round.filesystem() == FilesystemKind::Xfs {
                forks.look(round, root.as_fd(), &file)?;
            }
        }
    }
    let Found { files, acls, smack, selinux } = found;
    let some = |expected: bool| if expected { files } else { 0 };
    let of = |count: u64| format!("{count} of {files}");
    round.check(ACL, of(some(round.scenario() == "acl")), of(acls));
    let label = round.choice("label")?;
    let expected = (some(label == "smack"), some(label == "selinux"));
    let text = |(smack, selinux): (u64, u64)| format!("smack {}, selinux {}", of(smack), of(selinux));
    round.check(LABELS, text(expected), text((smack, selinux)));
    forks.measure(round);
    Ok(())
}

/// Whether `file` has the attribute `name`.
fn has(round: &mut RoundContext, file: &CStr, name: &CStr) -> Result<bool, WorkloadError> {
    let mut value = [0; 256];
    let result = match sys::getxattr(file, name, &mut value) {
        Ok(length) => Ok(length > 0),
        // getxattr(2): no such attribute, or none of its kind here.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(failed("getxattr", Path::new(&*file.to_string_lossy()), errno)),
    };
    round.count("getxattr", 1, u64::from(result == Ok(true)));
    result
}

/// Attribute forks of XFS inodes.
#[derive(Clone, Copy, Debug, Default)]
struct Forks {
    inodes: u64,
    forks: u64,
    inline: u64,
}

impl Forks {
    fn look(
        &mut self,
        round: &mut RoundContext,
        root: BorrowedFd<'_>,
        file: &CStr,
    ) -> Result<(), WorkloadError> {
        let path = Path::new(std::ffi::OsStr::from_bytes(file.to_bytes()));
        let number = std::fs::symlink_metadata(path).map_err(|error| lost("statx", path, &error))?.ino();
        let mut request = BulkRequest::of_inode(number);
        let answer = request.next(root);
        round.count("statx", 1, 1);
        round.count("ioctl", 1, u64::from(answer.is_ok()));
        // Not root, or a kernel without the call: nothing is known then.
        if answer.is_err() {
            return Ok(());
        }
        for record in request.records().filter(|record| record.ino == number) {
            self.inodes += 1;
            self.forks += u64::from(record.fork_offset > 0);
            self.inline += u64::from(record.fork_offset > 0 && record.attribute_extents == 0);
        }
        Ok(())
    }

    fn measure(self, round: &mut RoundContext) {
        if self.inodes > 0 {
            let inodes = self.inodes as f64;
            round.measure(PHASE, "attribute_forks", self.forks as f64 / inodes);
            round.measure(PHASE, "inline_forks", self.inline as f64 / inodes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::request;
    use crate::{Setting, resolve, run};

    const SMALL: [(&str, Setting); 3] =
        [("threads", Setting::Integer(2)), ("dirs", Setting::Integer(3)), ("files", Setting::Integer(7))];

    /// A folder on tmpfs, which has ACLs wherever distributions build the kernel.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
    }

    #[test]
    fn files_inherit_an_acl_or_have_none() {
        for (name, acls) in [("create-with-xattr/plain", 0), ("create-with-xattr/acl", 2)] {
            let folder = folder();
            let round = match run(&request(name, folder.path(), &SMALL), None) {
                Err(WorkloadError::Unavailable { what, .. }) => {
                    println!("skipped: {what}");
                    continue;
                }
                round => round.expect("runs"),
            };
            assert!(round.checks.iter().all(|check| check.passed), "{round:?}");
            assert_eq!((round.phases[0].ops, round.census["getxattr"].succeeded), (14, acls), "{name}");
            assert!(round.phases[0].measures["rate"] > 0.0);
        }
    }

    #[test]
    fn a_label_that_is_missing_fails_the_check() {
        let folder = folder();
        let mut given = SMALL.to_vec();
        given.push(("label", Setting::Text("smack")));
        let round = run(&request("create-with-xattr/plain", folder.path(), &given), None).expect("runs");
        let check = round.checks.iter().find(|check| check.name == LABELS).expect("a check");
        assert_eq!(check.expected, "smack 2 of 2, selinux 0 of 2");
        if !check.passed {
            assert_eq!(check.actual, "smack 0 of 2, selinux 0 of 2");
        }
    }

    #[test]
    fn an_acl_has_a_header_and_five_entries() {
        let acl = default_acl();
        assert_eq!((acl.len(), &acl[..8]), (44, &[2, 0, 0, 0, 1, 0, 6, 0][..]));
    }

    #[test]
    fn a_file_too_many_fails_the_check() {
        let folder = folder();
        let request = request("create-with-xattr/plain", folder.path(), &SMALL);
        let scenario = INFO.scenario("plain").expect("known");
        let parameters = resolve(&INFO, scenario, &request.scenario.parameters).expect("allowed");
        let mut round = RoundContext::for_test(request, scenario, parameters);
        let tree = Tree::prepare(&mut round, 1).expect("folders");
        tree.fill(&mut round).expect("files");
        std::fs::write(folder.path().join("t00/d0000/stray"), "").expect("a stray file");
        verify(&mut round, &tree).expect("a census");
        let failed: Vec<_> = round.finish().checks.into_iter().filter(|check| !check.passed).collect();
        assert!(failed.len() == 1 && failed[0].name == "files", "{failed:?}");
    }
}
