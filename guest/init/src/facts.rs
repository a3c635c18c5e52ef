//! What only the guest can tell about its kernel. Read [`hello`] first.

use kdelta_wire::{Hello, JOB_VERSION};

use crate::error::{InitError, failed};

/// The first frame.
pub(crate) fn hello() -> Result<Hello, InitError> {
    let name = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    Ok(Hello {
        version: JOB_VERSION,
        kernel_release: text(name.release()),
        kernel_version: text(name.version()),
        cmdline: read("/proc/cmdline")?,
        boot_id: read("/proc/sys/kernel/random/boot_id")?,
        cpus: count_cpus(&read("/proc/stat")?),
        memory_kib: memory_total(&read("/proc/meminfo")?),
        // Left out of small kernels.
        clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .unwrap_or_else(|_| "unknown".into()),
    })
}

fn read(path: &str) -> Result<String, InitError> {
    let text = std::fs::read_to_string(path).map_err(failed(format!("read {path}")))?;
    Ok(text.trim().to_owned())
}

/// Lines `cpu0`, `cpu1`... of `/proc/stat`, one for each CPU online.
fn count_cpus(stat: &str) -> u32 {
    let numbered = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count() as u32
}

/// `MemTotal` in KiB; 0 when it is not there.
fn memory_total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_and_memory_are_read_from_proc() {
        assert_eq!(count_cpus("cpu  1 2\ncpu0 1\ncpu1 1\nintr 5\nctxt 1\n"), 2);
        assert_eq!(memory_total("MemTotal:        1004388 kB\nMemFree: 5 kB\n"), 1_004_388);
        assert_eq!(memory_total("nothing"), 0);
    }
}
