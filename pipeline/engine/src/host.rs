//! Facts about the host that a guest cannot know. Read [`facts`] first.

use std::fs;
use std::io;

use camino::Utf8Path;
use kdelta_model::HostFacts;
use kdelta_wire::FilesystemKind;

/// Reads them from `/proc` and `/sys`; what a host does not tell stays empty.
#[must_use]
pub fn facts() -> HostFacts {
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        cpuinfo.lines().filter(|line| line.starts_with(name)).filter_map(value_of).collect::<Vec<_>>()
    };
    let mut sockets = field("physical id");
    sockets.sort_unstable();
    sockets.dedup();
    let memory_kib: u64 = read("/proc/meminfo")
        .lines()
        .find(|line| line.starts_with("MemTotal:"))
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0);
    HostFacts {
        cpu_model: field("model name").first().map(|name| (*name).to_owned()).unwrap_or_default(),
        cpus: cpus(),
        sockets: sockets.len().max(1),
        numa_nodes: count_nodes(),
        memory_mib: memory_kib / 1024,
        governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
            .unwrap_or_else(|| "none".to_owned()),
        turbo: turbo(),
        kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        load: load(),
    }
}

/// Logical CPUs that we may use.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// One-minute load average; 0 when unknown.
#[must_use]
pub fn load() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// Steal and total time of all CPUs, in clock ticks (proc_stat(5)).
#[must_use]
pub fn steal_and_total() -> (u64, u64) {
    let text = read("/proc/stat");
    let fields: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    (fields.get(7).copied().unwrap_or(0), fields.iter().take(8).sum())
}

/// The filesystem that `folder` lies on, when it is one that workloads know (statfs(2) lists the
/// magic numbers).
///
/// # Errors
/// When the folder cannot be looked at.
pub fn filesystem_of(folder: &Utf8Path) -> io::Result<Option<FilesystemKind>> {
    let magic = rustix::fs::statfs(folder.as_std_path())?.f_type;
    Ok(match magic {
        0x0102_1994 => Some(FilesystemKind::Tmpfs),
        0x5846_5342 => Some(FilesystemKind::Xfs),
        0xef53 => Some(FilesystemKind::Ext4),
        0x9123_683e => Some(FilesystemKind::Btrfs),
        _ => None,
    })
}

fn turbo() -> Option<bool> {
    if let Some(off) = line("/sys/devices/system/cpu/intel_pstate/no_turbo") {
        return Some(off == "0");
    }
    line("/sys/devices/system/cpu/cpufreq/boost").map(|on| on == "1")
}

fn count_nodes() -> usize {
    let nodes = fs::read_dir("/sys/devices/system/node").map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                name.to_str()
                    .and_then(|name| name.strip_prefix("node"))
                    .is_some_and(|id| id.parse::<u32>().is_ok())
            })
            .count()
    });
    nodes.max(1)
}

fn value_of(line: &str) -> Option<&str> {
    line.split_once(':').map(|(_, value)| value.trim())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
