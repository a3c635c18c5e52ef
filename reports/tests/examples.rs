//! The reports of `reports/examples` are what the code renders. The records beside them are made
//! by `pipeline/engine/src/testing/examples.rs`. `KDELTA_UPDATE=1 cargo test -p kdelta-report`
//! renders them anew.

use std::fs;
use std::path::{Path, PathBuf};

use kdelta_model::RunRecord;

/// Widest line of a mail outside tables.
const WIDTH: usize = 72;
/// Sections that are text; the others are tables, or quote what programs printed.
const PROSE: [&str; 4] = ["", "Hardware", "Method", "Caveats"];

fn path(name: &str, ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{name}.{ending}"))
}

fn json(name: &str) -> String {
    fs::read_to_string(path(name, "json")).expect("a record")
}

fn report(name: &str) -> String {
    let record: RunRecord = serde_json::from_str(&json(name)).expect("a record");
    kdelta_report::text(&record).expect("a report")
}

fn keep_current(name: &str) {
    let (text, path) = (report(name), path(name, "txt"));
    if std::env::var_os("KDELTA_UPDATE").is_some() {
        fs::write(&path, &text).expect("write");
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{} is out of date; run with KDELTA_UPDATE=1 and commit it", path.display());
}

#[test]
fn the_report_of_two_arms_is_current() {
    keep_current("demo");
}

#[test]
fn the_report_of_a_two_by_two_is_current() {
    keep_current("factorial");
}

#[test]
fn a_report_is_plain_ascii_without_blanks_at_the_ends_of_lines() {
    for name in ["demo", "factorial"] {
        let text = report(name);
        assert!(text.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{name}");
        for line in text.lines() {
            assert_eq!(line, line.trim_end(), "{name}");
        }
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}");
        assert!(!text.contains("\n\n\n"), "{name}: two empty lines");
    }
}

#[test]
fn prose_is_at_most_72_columns_wide() {
    for name in ["demo", "factorial"] {
        let text = report(name);
        let lines: Vec<&str> = text.lines().collect();
        let mut section = "";
        for (number, line) in lines.iter().enumerate() {
            let underlined = lines.get(number + 1).is_some_and(|next| {
                next.len() == line.len() && !line.is_empty() && next.chars().all(|c| c == '-')
            });
            if underlined {
                section = line;
            }
            let prose = !line.starts_with(' ') || PROSE.contains(&section);
            // A word that is longer than a line stands alone on one.
            let breakable = line.split_whitespace().count() > 1;
            assert!(!prose || !breakable || line.len() <= WIDTH, "{name}, {section}: {line}");
        }
        assert!(!section.is_empty(), "{name} has no sections");
    }
}

#[test]
fn rendering_twice_gives_the_same_bytes() {
    for name in ["demo", "factorial"] {
        assert_eq!(report(name), report(name));
        let record: RunRecord = serde_json::from_str(&json(name)).expect("a record");
        let again: RunRecord =
            serde_json::from_str(&serde_json::to_string(&record).expect("JSON")).expect("a record");
        assert_eq!(kdelta_report::text(&again).expect("a report"), report(name));
    }
}

#[test]
fn a_record_survives_json_without_loss() {
    for name in ["demo", "factorial"] {
        let stored: serde_json::Value = serde_json::from_str(&json(name)).expect("JSON");
        let record: RunRecord = serde_json::from_value(stored.clone()).expect("a record");
        assert_eq!(serde_json::to_value(&record).expect("JSON"), stored, "{name}");
    }
}

#[test]
fn the_summary_is_the_beginning_of_the_report() {
    for name in ["demo", "factorial"] {
        let record: RunRecord = serde_json::from_str(&json(name)).expect("a record");
        let (summary, text) = (kdelta_report::summary(&record), report(name));
        for line in summary.lines() {
            assert!(text.contains(line), "{name}: {line}");
        }
    }
}

#[test]
fn every_primary_verdict_and_every_caveat_is_printed() {
    for name in ["demo", "factorial"] {
        let record: RunRecord = serde_json::from_str(&json(name)).expect("a record");
        let text = report(name).split_whitespace().collect::<Vec<_>>().join(" ");
        for comparison in record.comparisons.iter().filter(|comparison| comparison.primary) {
            let head = format!("{}: {}", comparison.verdict.name(), comparison.metric);
            assert!(text.contains(&head), "{name}: {head}");
        }
        for caveat in &record.caveats {
            let caveat = caveat.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&caveat), "{name}: {caveat}");
        }
    }
}

#[test]
fn a_verdict_about_the_process_s_own_instructions_says_so_and_why() {
    let said = |kind: &str, disk: &str| {
        let mut record: serde_json::Value = serde_json::from_str(&json("demo")).expect("JSON");
        for arm in record["plan"]["arms"].as_array_mut().expect("arms") {
            arm["guest"]["disk"]["type"] = disk.into();
        }
        for comparison in record["comparisons"].as_array_mut().expect("comparisons") {
            if comparison["primary"] == true {
                comparison["metric"]["kind"] = kind.into();
            }
        }
        let record: RunRecord = serde_json::from_value(record).expect("a record");
        let text = kdelta_report::text(&record).expect("a report");
        let summary = kdelta_report::summary(&record);
        let why = "Verdicts marked cpu are about the instructions of the workload's own\n\
                   process. Elapsed counts are no measure on a disk of type nvme: threads\n\
                   of the host serve it, and while the guest waits for them its clock jumps\n\
                   to the next timer.\n\n\
                   REGRESSION: xattr/flistxattr, calls, cpu +4.30 %";
        assert_eq!(text.contains(why), summary.contains(why), "the summary says what the report says");
        (text.contains(why), text.contains("Verdicts marked"))
    };
    assert_eq!(said("cpu", "nvme"), (true, true));
    assert_eq!(said("elapsed", "nvme"), (false, false), "an old record, or wall time");
    assert_eq!(said("elapsed", "none"), (false, false));
}

#[test]
fn a_log_of_its_own_and_a_used_filesystem_are_told_with_their_mkfs() {
    use kdelta_model::{AgedRecord, Aging, Digest, ExternalLog};
    let mut record: RunRecord = serde_json::from_str(&json("factorial")).expect("a record");
    record.plan.arms[0].filesystem.log = Some(ExternalLog { bytes: 64 << 20, mkfs: Vec::new() });
    let scenario = record.plan.arms[1].scenarios[0].clone();
    record.plan.arms[1].aged = Some(Aging { scenarios: vec![scenario], remove_every: Some(2), seed: 9 });
    record.arms[1].aged = Some(AgedRecord {
        digest: Digest("d39810e49334".repeat(6)),
        bytes: 42_400_000,
        kernel: Digest("ee5d487bc0e4".repeat(6)),
        mkfs_output: "made\tonce  \n".to_owned(),
        mount_line: String::new(),
    });
    let text = kdelta_report::text(&record).expect("a report");
    let section = text.split_once("Filesystems\n").and_then(|(_, rest)| rest.split_once("\n\n"));
    let section = section.expect("a section").0;
    assert!(
        section
            .contains("  unpatched, parent=0: mkfs.xfs -f -n parent=0, log of 64 MiB on a disk of its own\n")
    );
    let words = section.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("every round starts from a filesystem used by create/sane x 2 dirs=10"),
        "{section}"
    );
    assert!(
        words.contains("every file number 2 removed, seed 9: image d39810e49334, 40 MiB in use"),
        "{section}"
    );
    assert!(words.contains("made once by the kernel ee5d487bc0e4"), "{section}");
    assert!(section.contains("\n    made    once\n"), "{section}");
}
