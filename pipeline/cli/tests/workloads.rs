//! `kdelta workloads run` for real, in folders of this host: what it prints, how it ends, and that it
//! leaves nothing behind.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;

/// A folder on tmpfs; `None`, with the reason printed, where there is none.
fn folder() -> Option<TempDir> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.starts_with("tmpfs /dev/shm ") || line.contains(" /dev/shm tmpfs ")) {
        return tempfile::tempdir_in("/dev/shm").ok();
    }
    println!("skipped: /dev/shm is no tmpfs");
    None
}

fn kdelta(workload: &str, folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kdelta"));
    command.args(["workloads", "run", workload, "--dir"]).arg(folder).args(more);
    command
}

fn run(workload: &str, folder: &Path, more: &[&str]) -> (Output, String, String) {
    let output = kdelta(workload, folder, more).output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("the folder").next().is_none()
}

#[test]
fn a_round_prints_its_cost_checks_and_calls_and_leaves_nothing_behind() {
    let Some(folder) = folder() else { return };
    let (output, out, err) =
        run("create", folder.path(), &["--preset", "quick", "--rounds", "2", "--param", "files=6"]);
    assert_eq!(output.status.code(), Some(0), "{err}");
    for text in [
        "create/sane on tmpfs: dirs=3 files=6 ",
        "round 2 of 2",
        "user share",
        "check files: ok (expected 12, got 12)",
        "system calls: close 20, mkdirat 8, openat 20, statx 18, write 24",
    ] {
        assert!(out.contains(text), "{text} is not in\n{out}");
    }
    assert!(is_empty(folder.path()));
}

#[test]
fn a_round_that_fails_says_why_and_leaves_nothing_behind() {
    let Some(folder) = folder() else { return };
    let more = ["--param", "xattrs=64", "--param", "list_bytes=64"];
    let (output, _, err) = run("xattr/flistxattr-count", folder.path(), &more);
    if err.contains("refuses the attribute") {
        println!("skipped: {err}");
        return;
    }
    assert_eq!(output.status.code(), Some(5), "{err}");
    assert!(err.starts_with("error: xattr/flistxattr-count: flistxattr on "), "{err}");
    assert!(is_empty(folder.path()));
}

#[test]
fn stopping_ends_the_round_and_removes_its_folder() {
    let Some(folder) = folder() else { return };
    let mut child = kdelta("create", folder.path(), &["--param", "dirs=1", "--param", "files=1000000"])
        .spawn()
        .expect("starts");
    while is_empty(folder.path()) && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let kill = Command::new("kill").arg(child.id().to_string()).status().expect("kill");
    assert!(kill.success());
    assert_eq!(child.wait().expect("ends").code(), Some(5));
    assert!(is_empty(folder.path()));
}
