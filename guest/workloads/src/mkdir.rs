//! Many folders in one folder, made and removed. Read [`Mkdir`] first.

use std::os::fd::AsFd;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::inventory::each_entry;
use crate::round::{failed, open_root};
use crate::sys::names::Names;
use crate::{
    CheckInfo, Domain, ParameterInfo, PhaseInfo, Preset, Proof, RoundContext, ScenarioInfo, Setting,
    Workload, WorkloadError, WorkloadInfo, sys,
};

static INFO: WorkloadInfo = WorkloadInfo {
    name: "mkdir",
    title: "make and remove folders",
    summary: "Makes many folders in one folder, waits until they are on the device, and removes them in the same \
              order.",
    source: "mkdir and rmdir of 10,000 and 100,000 folders in one, as filesystem developers time them by hand",
    scenarios: &[ScenarioInfo { name: "flat", summary: "all in one folder, from one thread", default: true }],
    parameters: &[ParameterInfo {
        name: "dirs",
        summary: "folders",
        unit: "folders",
        domain: Domain::Integer { default: 10_000, min: 1, max: 4_000_000 },
        scenarios: &[],
    }],
    limits: &[],
    phases: &[
        PhaseInfo { name: "mkdir", operation: "one folder made", primary: true, scenarios: &[] },
        PhaseInfo {
            name: "drain",
            operation: "one folder made before; the time is syncfs",
            primary: false,
            scenarios: &[],
        },
        PhaseInfo { name: "rmdir", operation: "one empty folder removed", primary: false, scenarios: &[] },
        PhaseInfo {
            name: "quiesce",
            operation: "one folder removed before; the time is syncfs and, in a guest, unmount",
            primary: false,
            scenarios: &[],
        },
    ],
    measures: &[],
    checks: &[
        CheckInfo {
            name: "made",
            summary: "reading the folder finds as many folders as were made, and nothing else",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "flat", inject: "mkdirat:retval=0:when=7" },
        },
        CheckInfo {
            name: "removed",
            summary: "every folder was there to be removed",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "flat", inject: "mkdirat:retval=0:when=7" },
        },
        CheckInfo {
            name: "folders left",
            summary: "reading the folder again finds nothing",
            scenarios: &[],
            filesystems: &[],
            proof: Proof::Injection { scenario: "flat", inject: "unlinkat:retval=0:when=7" },
        },
    ],
    refusals: &[],
    scale: "dirs",
    presets: &[
        Preset { name: "source", summary: "100,000 folders", values: &[("dirs", Setting::Integer(100_000))] },
        Preset {
            name: "source-10k",
            summary: "10,000 folders",
            values: &[("dirs", Setting::Integer(10_000))],
        },
        Preset {
            name: "guest",
            summary: "5,000 folders, which a guest makes and removes in some seconds",
            values: &[("dirs", Setting::Integer(5_000))],
        },
        Preset {
            name: "quick",
            summary: "200 folders, for a first look",
            values: &[("dirs", Setting::Integer(200))],
        },
    ],
};

/// The workload `mkdir`.
pub(crate) struct Mkdir;

impl Workload for Mkdir {
    fn info(&self) -> &'static WorkloadInfo {
        &INFO
    }

    fn round(&self, round: &mut RoundContext) -> Result<(), WorkloadError> {
        let dirs = round.integer("dirs")?;
        let mut names = Names::with_capacity(dirs as usize, 8);
        for number in 0..dirs {
            names.push(format!("d{number:07}").as_bytes());
        }
        let mount_point = round.mount_point().to_owned();
        let path = mount_point.join("parent");
        let root = open_root(&mount_point)?;
        sys::mkdir(root.as_fd(), c"parent").map_err(|errno| failed("mkdirat", &path, errno))?;
        let parent =
            sys::open_dir(root.as_fd(), c"parent").map_err(|errno| failed("openat", &path, errno))?;
        let lost = |call, number| {
            let path = &path;
            let name = names.get(number).to_string_lossy();
            move |errno| failed(call, &path.join(&*name), errno)
        };
        round.sync()?;
        round.phase("mkdir", dirs, || {
            for number in 0..dirs as u32 {
                sys::mkdir(parent.as_fd(), names.get(number)).map_err(lost("mkdirat", number))?;
            }
            Ok(())
        })?;
        round.phase("drain", dirs, || {
            sys::syncfs(root.as_fd()).map_err(|errno| failed("syncfs", &mount_point, errno))
        })?;
        let (folders, others) = contents(&path)?;
        round.check(
            "made",
            format!("{dirs} folders, 0 others"),
            format!("{folders} folders, {others} others"),
        );
        let removed = round.phase("rmdir", dirs, || {
            let mut removed = 0;
            for number in 0..dirs as u32 {
                match sys::rmdir(parent.as_fd(), names.get(number)) {
                    Ok(()) => removed += 1,
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(lost("unlinkat", number)(errno)),
                }
            }
            Ok(removed)
        })?;
        round.count("mkdirat", dirs, dirs);
        round.count("unlinkat", dirs, removed);
        round.check("removed", dirs, removed);
        let (folders, others) = contents(&path)?;
        round.check("folders left", 0, folders + others);
        drop((parent, root));
        round.quiesce(dirs)
    }
}

/// Folders and other names in the folder at `path`. Filesystems without kinds in their folders (XFS
/// made with `ftype=0`) are not told apart: everything is a folder there.
fn contents(path: &std::path::Path) -> Result<(u64, u64), WorkloadError> {
    let (mut folders, mut others) = (0, 0);
    each_entry(open_root(path)?.as_fd(), |_, kind| {
        let is_folder = matches!(kind, FileType::Directory | FileType::Unknown);
        *(if is_folder { &mut folders } else { &mut others }) += 1_u64;
        Ok(())
    })
    .map_err(|errno| failed("getdents64", path, errno))?;
    Ok((folders, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::tests::{assert_sound, request};
    use crate::run;

    #[test]
    fn folders_are_made_found_and_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parameters = INFO.preset("quick").expect("a preset").values;
        let round = run(&request("mkdir/flat", folder.path(), parameters), None).expect("runs");
        assert_sound(&round);
        let phases: Vec<_> = round.phases.iter().map(|phase| (phase.name.as_str(), phase.ops)).collect();
        assert_eq!(phases, [("mkdir", 200), ("drain", 200), ("rmdir", 200), ("quiesce", 200)]);
        assert_eq!((round.census["mkdirat"].succeeded, round.census["unlinkat"].succeeded), (200, 200));
        assert_eq!(std::fs::read_dir(folder.path().join("parent")).expect("the folder").count(), 0);
    }

    #[test]
    fn a_folder_that_is_there_already_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("parent")).expect("a folder");
        let error = run(&request("mkdir/flat", folder.path(), &[]), None).expect_err("exists");
        let path = folder.path().join("parent").display().to_string();
        assert_eq!(error, WorkloadError::Call { call: "mkdirat", path, errno: libc::EEXIST });
    }
}
