//! What comes before the first scenario: system mounts, the job, modules, the CPU. Read
//! the functions in the order in which `follow` calls them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use kdelta_wire::{DiskKind, JOB_PATH, JOB_VERSION, Job, MODULE_DIR, ModuleJob};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::thread::CpuSet;

use crate::error::{InitError, failed};

/// Mounts /proc, /sys, /dev, /tmp and /run.
pub(crate) fn mount_system() -> Result<(), InitError> {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"), ("tmpfs", "/run")]
    {
        std::fs::create_dir_all(target).map_err(failed(format!("mkdir {target}")))?;
        rustix::mount::mount(kind, target, kind, MountFlags::empty(), None::<&CStr>)
            .map_err(failed(format!("mount {kind} on {target}")))?;
    }
    Ok(())
}

/// Reads the job and refuses one that this init cannot follow.
pub(crate) fn read_job() -> Result<Job, InitError> {
    let text = std::fs::read_to_string(JOB_PATH).map_err(failed(format!("read {JOB_PATH}")))?;
    parse_job(&text)
}

fn parse_job(text: &str) -> Result<Job, InitError> {
    // The version comes first: a job of another version may have other fields.
    let version = serde_json::from_str::<serde_json::Value>(text)
        .map_err(|source| InitError::Json { what: JOB_PATH, source })?
        .get("version")
        .and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(JOB_VERSION)) {
        let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
        return Err(InitError::Job(format!("the job has version {found}, this init needs {JOB_VERSION}")));
    }
    let job: Job = serde_json::from_str(text).map_err(|source| InitError::Json { what: JOB_PATH, source })?;
    let kind = job.filesystem.kind;
    if kind.needs_disk() && job.disk == DiskKind::None {
        return Err(InitError::Job(format!("{kind} needs a disk and the job has none")));
    }
    if let (Some(_), Some(reason)) = (&job.filesystem.log, kind.refuses_log()) {
        return Err(InitError::Job(format!("the job has a log for {kind}: {reason}")));
    }
    if job.image.is_some() && !kind.needs_disk() {
        return Err(InitError::Job(format!("the job has an image of a used filesystem for {kind}")));
    }
    Ok(job)
}

/// Loads modules in order, with the parameters that the kernel's command line has for them; a
/// module that is there already is no error, and an optional one may refuse.
pub(crate) fn load_modules(modules: &[ModuleJob]) -> Result<(), InitError> {
    let cmdline = std::fs::read_to_string("/proc/cmdline").map_err(failed("read /proc/cmdline"))?;
    for module in modules {
        let path = Path::new(MODULE_DIR).join(&module.file);
        let parameters = module_parameters(&cmdline, &module.file);
        let action = || format!("load module {} with `{parameters}`", path.display());
        let file = File::open(&path).map_err(failed(action()))?;
        let argument =
            CString::new(parameters.as_str()).map_err(|error| InitError::Job(error.to_string()))?;
        match rustix::system::finit_module(file.as_fd(), &argument, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) if module.optional => {}
            Err(errno) => return Err(failed(action())(errno)),
        }
    }
    Ok(())
}

/// `rd_size=1 max_part=2` of `brd.rd_size=1 quiet brd.max_part=2`, for `brd.ko`: the kernel keeps
/// such words for modules that are built in and leaves the others to whoever loads the module.
fn module_parameters(cmdline: &str, file: &str) -> String {
    let module = file.split('.').next().unwrap_or(file).replace('-', "_");
    let ours = cmdline.split_ascii_whitespace().filter_map(|word| {
        let (owner, parameter) = word.split_once('.')?;
        (owner.replace('-', "_") == module).then_some(parameter)
    });
    ours.collect::<Vec<_>>().join(" ")
}

/// Keeps this process, and those it starts, on `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<(), InitError> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(InitError::Job(format!("the job pins to CPU {cpu}, which cannot exist")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(failed(format!("pin to CPU {cpu}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(version: u32, disk: &str, kind: &str) -> String {
        format!(
            r#"{{"version":{version},"clock":"instructions","seed":1,"settle_us":0,"cpu":0,"modules":[],
            "disk":"{disk}","filesystem":{{"kind":"{kind}","mkfs":[],"mount":[]}},"scenarios":[]}}"#
        )
    }

    #[test]
    fn a_job_is_read_or_refused_with_the_reason() {
        assert!(parse_job(&job(JOB_VERSION, "none", "tmpfs")).is_ok());
        for (text, reason) in [
            (job(99, "none", "tmpfs"), "the job has version 99, this init needs 3"),
            ("{}".to_owned(), "the job has version none, this init needs 3"),
            (job(JOB_VERSION, "none", "xfs"), "xfs needs a disk and the job has none"),
            (job(JOB_VERSION, "floppy", "xfs"), "/kdelta/job.json: unknown variant `floppy`"),
            (
                job(JOB_VERSION, "ram", "btrfs")
                    .replace("\"mount\":[]", r#""mount":[],"log":{"bytes":1,"mkfs":[]}"#),
                "the job has a log for btrfs: btrfs has no journal",
            ),
            (
                job(JOB_VERSION, "none", "tmpfs")
                    .replace("\"scenarios\"", r#""image":"restore","scenarios""#),
                "the job has an image of a used filesystem for tmpfs",
            ),
        ] {
            let error = parse_job(&text).expect_err("refused").to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn a_module_gets_its_words_of_the_command_line() {
        let cmdline = "quiet brd.rd_size=524288 console=ttyS0 virtio-blk.a=1 brd.max_part=2 brdx.y=3\n";
        for (file, parameters) in
            [("brd.ko", "rd_size=524288 max_part=2"), ("virtio_blk.ko", "a=1"), ("xfs.ko", "")]
        {
            assert_eq!(module_parameters(cmdline, file), parameters);
        }
    }
}
