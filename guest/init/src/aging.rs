//! Makes a used filesystem: runs workloads on it one after the other, removes some of what they left,
//! and keeps it. Read [`age`] first.

use std::path::{Path, PathBuf};

use kdelta_wire::{Frame, Job, RoundRequest};

use crate::disks::Disks;
use crate::error::{InitError, failed};
use crate::filesystem::{self, MOUNT_POINT};
use crate::{Boot, child, image};

/// Runs every scenario of `job` on one filesystem and keeps its image.
pub(crate) fn age(
    boot: &mut Boot,
    job: &Job,
    disks: &Disks,
    remove_every: Option<u32>,
) -> Result<(), InitError> {
    let Some(disk) = &disks.test else {
        return Err(InitError::Job("there is no disk whose image could be kept".to_owned()));
    };
    boot.stage("mkfs");
    let mkfs_output = filesystem::make(&job.filesystem, disks)?;
    boot.stage("mount");
    let mount_line = filesystem::mount(&job.filesystem, disks)?;
    let first = job.scenarios.first().map(|scenario| scenario.id.clone()).unwrap_or_default();
    boot.frames.push(Frame::Mounted { scenario: first, mkfs_output, mount_line });
    let mut folders = 0;
    for scenario in &job.scenarios {
        for round in 0..scenario.warmup + scenario.rounds {
            boot.stage(format!("age {} {}/{}", scenario.id, round + 1, scenario.warmup + scenario.rounds));
            // Each in a folder of its own: workloads make what they need and expect it to be new.
            let folder = format!("{MOUNT_POINT}/aged-{folders:04}");
            folders += 1;
            std::fs::create_dir(&folder).map_err(failed(format!("mkdir {folder}")))?;
            let request = RoundRequest {
                scenario: scenario.clone(),
                round,
                seed: job.seed,
                clock: job.clock,
                cpu: job.cpu,
                filesystem: job.filesystem.kind,
                mount_point: folder,
                may_unmount: false,
            };
            boot.frames.push(Frame::Round(child::run(&request, None)?));
            child::reap_orphans();
        }
    }
    if let Some(every) = remove_every {
        // A file that was never written to the disk would leave no hole there.
        boot.stage("sync");
        std::fs::File::open(MOUNT_POINT)
            .and_then(|root| Ok(rustix::fs::syncfs(root)?))
            .map_err(failed(format!("sync {MOUNT_POINT}")))?;
        boot.stage(format!("remove every file number {every}"));
        remove(Path::new(MOUNT_POINT), every).map_err(failed(format!("remove files below {MOUNT_POINT}")))?;
    }
    boot.stage("unmount");
    filesystem::unmount_if_mounted()?;
    boot.stage("keep the image");
    let kept = image::save(disk)?;
    boot.console.say(&format!("kdelta: {}", kept.trim_end()));
    Ok(())
}

/// Removes every file number `every` below `root`, counted in the order of names.
fn remove(root: &Path, every: u32) -> std::io::Result<u64> {
    let mut files = Vec::new();
    list(root, &mut files)?;
    let (mut removed, every) = (0, every.max(1) as usize);
    for file in files.iter().skip(every - 1).step_by(every) {
        std::fs::remove_file(file)?;
        removed += 1;
    }
    Ok(removed)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        match entry.file_type()?.is_dir() {
            true => list(&entry.path(), files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_file_goes_whatever_folder_it_is_in() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["a/1", "a/2", "b/c/1", "b/c/2", "b/c/3"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, "x").expect("a file");
        }
        assert_eq!(remove(folder.path(), 2).expect("removed"), 2);
        let mut left = Vec::new();
        list(folder.path(), &mut left).expect("a list");
        let left: Vec<_> = left.iter().map(|path| path.strip_prefix(folder.path()).expect("below")).collect();
        assert_eq!(left, ["a/1", "b/c/1", "b/c/3"].map(Path::new));
        assert_eq!(remove(folder.path(), 4).expect("removed"), 0, "fewer than that are left");
    }
}
