//! Parameters and presets of every workload on a tree. Read [`PARAMETERS`] first, then [`PRESETS`].

use kdelta_wire::ParameterValue;

use crate::{Domain, ParameterInfo, Preset, ProductLimit, RoundContext, Setting};

pub(crate) const THREADS: ParameterInfo = ParameterInfo {
    name: "threads",
    summary: "processes side by side, each in a top folder of its own (what fs_mark calls threads)",
    unit: "processes",
    domain: Domain::Integer { default: 1, min: 1, max: 64 },
    scenarios: &[],
};
pub(crate) const DIRS: ParameterInfo = ParameterInfo {
    name: "dirs",
    summary: "folders in each top folder",
    unit: "folders",
    domain: Domain::Integer { default: 10, min: 1, max: 10_000 },
    scenarios: &[],
};
pub(crate) const FILES: ParameterInfo = ParameterInfo {
    name: "files",
    summary: "files of each process, spread over its folders",
    unit: "files",
    domain: Domain::Integer { default: 10_000, min: 1, max: 1_000_000 },
    scenarios: &[],
};
pub(crate) const SIZE: ParameterInfo = ParameterInfo {
    name: "size",
    summary: "bytes written to each file",
    unit: "bytes",
    domain: Domain::Integer { default: 0, min: 0, max: 1 << 30 },
    scenarios: &[],
};
pub(crate) const WRITE_SIZE: ParameterInfo = ParameterInfo {
    name: "write_size",
    summary: "bytes of one write call; the last one of a file writes what is left",
    unit: "bytes",
    domain: Domain::Integer { default: 16_384, min: 1, max: 16 << 20 },
    scenarios: &[],
};
pub(crate) const SYNC: ParameterInfo = ParameterInfo {
    name: "sync",
    summary: "what follows the writes of a file",
    unit: "",
    domain: Domain::Choice { default: "none", choices: &["none", "fsync"] },
    scenarios: &[],
};
pub(crate) const ORDER: ParameterInfo = ParameterInfo {
    name: "order",
    summary: "one file in each folder in turn, or one folder after the other",
    unit: "",
    domain: Domain::Choice { default: "round-robin", choices: &["round-robin", "per-directory"] },
    scenarios: &[],
};

/// Parameters that describe a tree.
pub(crate) const PARAMETERS: &[ParameterInfo] = &[THREADS, DIRS, FILES, SIZE, WRITE_SIZE, SYNC, ORDER];

/// Bounds on those parameters together.
pub(crate) const LIMITS: &[ProductLimit] = &[
    ProductLimit {
        parameters: &["threads", "files"],
        max: 4_000_000,
        reason: "the names of all files are kept in memory, 41 bytes each",
    },
    ProductLimit {
        parameters: &["threads", "dirs"],
        max: 400_000,
        reason: "every folder is kept open, and a process has at most 1,048,576 open files",
    },
];

/// The value of `parameter`, or its default in a scenario that does not take it.
pub(crate) fn integer(round: &RoundContext, parameter: &ParameterInfo) -> u64 {
    round.integer(parameter.name).unwrap_or_else(|_| match parameter.domain.default_value() {
        ParameterValue::Integer(value) => value,
        ParameterValue::Text(_) => 0,
    })
}

const NONE: Setting = Setting::Text("none");

pub(crate) const SOURCE: Preset = Preset {
    name: "source",
    summary: "one thread and iteration of `fs_mark -D 10000 -S 0 -n 100000 -s 0`, of 40 and 8",
    values: &[
        (DIRS.name, Setting::Integer(10_000)),
        (FILES.name, Setting::Integer(100_000)),
        (SIZE.name, Setting::Integer(0)),
        (SYNC.name, NONE),
    ],
};
pub(crate) const SOURCE_1M: Preset = Preset {
    name: "source-1m",
    summary: "one thread and iteration of `fs_mark -D 1000 -S 0 -n 200 -s 1048576`",
    values: &[
        (DIRS.name, Setting::Integer(1_000)),
        (FILES.name, Setting::Integer(200)),
        (SIZE.name, Setting::Integer(1 << 20)),
        (SYNC.name, NONE),
    ],
};
pub(crate) const SOURCE_MAILDIR: Preset = Preset {
    name: "source-maildir",
    summary: "one thread and iteration of `fs_mark -w 778 -D 1000 -S 0 -n 6000 -s 16384`",
    values: &[
        (DIRS.name, Setting::Integer(1_000)),
        (FILES.name, Setting::Integer(6_000)),
        (SIZE.name, Setting::Integer(16_384)),
        (WRITE_SIZE.name, Setting::Integer(778)),
        (SYNC.name, NONE),
    ],
};
pub(crate) const GUEST: Preset = Preset {
    name: "guest",
    summary: "10,000 empty files, which fit a guest of 1 GiB",
    values: &[
        (DIRS.name, Setting::Integer(10)),
        (FILES.name, Setting::Integer(10_000)),
        (SIZE.name, Setting::Integer(0)),
        (SYNC.name, NONE),
    ],
};

/// Presets of every workload on a tree.
pub(crate) const PRESETS: &[Preset] = &[
    SOURCE,
    SOURCE_1M,
    SOURCE_MAILDIR,
    GUEST,
    Preset {
        name: "quick",
        summary: "two processes with 30 small files each, for a first look",
        values: &[
            (THREADS.name, Setting::Integer(2)),
            (DIRS.name, Setting::Integer(3)),
            (FILES.name, Setting::Integer(30)),
            (SIZE.name, Setting::Integer(1_000)),
            (WRITE_SIZE.name, Setting::Integer(600)),
        ],
    },
];
