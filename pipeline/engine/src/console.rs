//! Reads a guest's console: which stage the init reached, and what the kernel complained of.
//! Read [`scan`] first; to add a pattern, put a log into `testdata/console/` and then an entry
//! into `PATTERNS`.

use kdelta_model::ConsoleFinding;
use kdelta_wire::STAGE_PREFIX;

/// Lines kept around a finding.
const CONTEXT_BEFORE: usize = 2;
/// Lines kept after a finding; an x86 oops with its call trace is about 50 lines long.
const CONTEXT_AFTER: usize = 40;
/// Findings kept of one boot: the first ones tell, the rest follow from them.
const KEPT: usize = 5;

/// When a pattern makes the numbers of a boot void.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fatal {
    Always,
    /// Only once the init runs: many kernels warn about odd hardware while they boot, which does
    /// not touch the measurement.
    AfterInit,
}

/// Kind, text that a line contains, and when it is fatal. The first entry that fits a line counts.
const PATTERNS: &[(&str, &str, Fatal)] = &[
    ("panic", "Kernel panic - not syncing", Fatal::Always),
    ("soft-lockup", "BUG: soft lockup", Fatal::Always),
    ("hard-lockup", "Watchdog detected hard LOCKUP", Fatal::Always),
    ("workqueue-lockup", "BUG: workqueue lockup", Fatal::Always),
    ("hung-task", "blocked for more than", Fatal::Always),
    ("rcu-stall", "rcu_sched self-detected stall", Fatal::Always),
    ("rcu-stall", "detected stalls on CPUs", Fatal::Always),
    ("rcu-stall", "self-detected stall on CPU", Fatal::Always),
    ("oops", "BUG: kernel NULL pointer dereference", Fatal::Always),
    ("oops", "BUG: unable to handle", Fatal::Always),
    ("oops", "general protection fault", Fatal::Always),
    ("oops", "Oops: ", Fatal::Always),
    ("bug", "kernel BUG at", Fatal::Always),
    ("kasan", "BUG: KASAN", Fatal::Always),
    ("bug", "BUG: ", Fatal::Always),
    ("oom", "Out of memory: Killed process", Fatal::Always),
    ("filesystem", "EXT4-fs error", Fatal::Always),
    ("ubsan", "UBSAN: ", Fatal::Always),
    ("filesystem", "Metadata corruption detected", Fatal::Always),
    ("filesystem", "Corruption of in-memory data", Fatal::Always),
    ("filesystem", "Internal error", Fatal::Always),
    ("filesystem", "BTRFS critical", Fatal::Always),
    ("filesystem", "BTRFS error", Fatal::AfterInit),
    ("disk", "I/O error, dev", Fatal::AfterInit),
    ("interrupt", "nobody cared", Fatal::Always),
    ("lockdep", "WARNING: possible", Fatal::AfterInit),
    ("warning", "WARNING: ", Fatal::AfterInit),
];

/// What a console told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console {
    /// The last stage that the init announced; `None` when it never ran.
    pub stage: Option<String>,
    /// Complaints of the kernel, in order, at most five.
    pub findings: Vec<ConsoleFinding>,
}

impl Console {
    /// The first finding that makes the boot's numbers void.
    #[must_use]
    pub fn fatal(&self) -> Option<&ConsoleFinding> {
        self.findings.iter().find(|finding| finding.fatal)
    }
}

/// Reads a whole console log, complete or not.
#[must_use]
pub fn scan(log: &[u8]) -> Console {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
    let mut console = Console::default();
    for (number, line) in lines.iter().enumerate() {
        if let Some(at) = line.find(STAGE_PREFIX) {
            console.stage = Some(line[at + STAGE_PREFIX.len()..].trim().to_owned());
            continue;
        }
        let Some((kind, _, fatal)) = PATTERNS.iter().find(|(_, pattern, _)| line.contains(pattern)) else {
            continue;
        };
        if console.findings.len() == KEPT {
            continue;
        }
        let from = number.saturating_sub(CONTEXT_BEFORE);
        let to = (number + CONTEXT_AFTER).min(lines.len());
        console.findings.push(ConsoleFinding {
            kind: (*kind).to_owned(),
            fatal: *fatal == Fatal::Always || console.stage.is_some(),
            title: without_timestamp(line).to_owned(),
            text: lines[from..to].join("\n"),
        });
    }
    console
}

/// A kernel line without `[    1.234567] `.
fn without_timestamp(line: &str) -> &str {
    match line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((stamp, text)) if stamp.trim().chars().all(|c| c.is_ascii_digit() || c == '.') => text,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// First line of a corpus file: `expect: KIND fatal|harmless TITLE` or `expect: nothing`.
    #[test]
    fn every_log_of_the_corpus_gives_what_its_first_line_says() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/console");
        let mut seen = 0;
        for entry in fs::read_dir(folder).expect("the corpus") {
            let path = entry.expect("an entry").path();
            let log = fs::read_to_string(&path).expect("a log");
            let (expected, log) = log.split_once('\n').expect("a first line");
            let found = match scan(log.as_bytes()).findings.first() {
                None => "nothing".to_owned(),
                Some(finding) => {
                    let weight = if finding.fatal { "fatal" } else { "harmless" };
                    format!("{} {weight} {}", finding.kind, finding.title)
                }
            };
            assert_eq!(format!("expect: {found}"), expected, "{}", path.display());
            seen += 1;
        }
        assert!(seen >= 14, "the corpus has only {seen} logs");
    }

    #[test]
    fn the_last_stage_is_remembered() {
        let log = b"[ 0.1] x\r\nkdelta-stage: settle\r\nkdelta-stage: mkfs create\r\nhalf a li";
        assert_eq!(scan(log).stage.as_deref(), Some("mkfs create"));
    }

    proptest::proptest! {
        #[test]
        fn no_log_makes_the_scan_panic(bytes: Vec<u8>) {
            let _ = scan(&bytes);
        }
    }
}
