//! The records that `reports/examples` renders: real plans and real judgements over made-up boots.
//! `KDELTA_UPDATE=1 cargo test -p kdelta-engine examples` writes them anew; then do the same with
//! `-p kdelta-report`.

use std::fs;

use camino::Utf8Path;
use kdelta_model::{BootPurpose, MeasureMode, Metric, PlannedBoot, RunRecord};

use super::{boots, record};

const DEMO: &str = "version: 1
name: demo
description: >-
  Does reading the prefix of every attribute name once more slow the listing of attributes on
  tmpfs, and by how much?
measure: instructions
kernel: {source: \"debian:linux-source-6.12\"}
settings: {filesystem: {type: tmpfs}}
workloads:
  - {workload: xattr/flistxattr, rounds: 2}
  - {workload: xattr/fgetxattr, rounds: 2}
arms:
  - {name: parent}
  - {name: child, kernel: {patches: [slow-xattr-list.patch]}}
";

const FACTORIAL: &str = "version: 1
name: factorial
description: >-
  What do parent pointers cost when files are created, and how much of that cost does the patch
  recover?
measure: instructions
kernel: {source: \"debian:linux-source-6.12\"}
settings: {filesystem: {type: xfs}}
workloads:
  - {workload: create, rounds: 2, parameters: {dirs: 10, files: 10000}}
factors:
  - factor: kernel
    levels: [{name: unpatched}, {name: patched, kernel: {patches: [shortform-parent-pointers.patch]}}]
  - factor: parent pointers
    levels:
      - {name: parent=0, filesystem: {type: xfs, mkfs: [\"-n\", \"parent=0\"]}}
      - {name: parent=1, filesystem: {type: xfs, mkfs: [\"-n\", \"parent=1\"]}}
";

/// A fixed, irregular number in -1..1 for each seed and salt.
#[expect(clippy::cast_precision_loss, reason = "24 bits")]
fn scatter(seed: u64, salt: u64) -> f64 {
    let mixed =
        (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt.wrapping_mul(0xd1b5_4a32_d192_ed03));
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / f64::from(1_u32 << 23) - 1.0
}

/// A listing that got 4.3 % dearer, and a reading that did not change at all.
fn demo(arm: &str, boot: &PlannedBoot, metric: &Metric) -> f64 {
    let common = scatter(boot.seed, 0);
    if metric.scenario == "xattr/fgetxattr" {
        return 612.0 + 0.2 * common;
    }
    let parent = 797.4 + 0.3 * common;
    match boot.purpose {
        BootPurpose::Placebo => parent * (1.0 + 0.0002 * scatter(boot.seed, 1)),
        _ if arm == "child" => parent * (1.043 + 0.0001 * scatter(boot.seed, 2)),
        _ => parent,
    }
}

/// Parent pointers that cost 11.2 % before a patch and 2.8 % after it.
fn factorial(arm: &str, boot: &PlannedBoot, _: &Metric) -> f64 {
    let cost = match arm.trim_end_matches(", placebo") {
        "unpatched, parent=0" => 1.0,
        "unpatched, parent=1" => 1.112,
        "patched, parent=0" => 1.001,
        _ => 1.029,
    };
    let of_arm = u64::try_from(boot.arm).unwrap_or_default() + 1;
    62_380.0 * cost * (1.0 + 0.001 * scatter(boot.seed, 0) + 0.0002 * scatter(boot.seed, of_arm))
}

fn judged(yaml: &str, value: fn(&str, &PlannedBoot, &Metric) -> f64) -> RunRecord {
    let mut record = record(yaml, MeasureMode::Instructions);
    record.boots = boots(&record.plan, value);
    crate::run::judge(&mut record).expect("finite numbers");
    record
}

/// JSON with one boot, arm or comparison a line: short, and a change of one is a change of one line.
fn lines(record: &RunRecord) -> String {
    let value = serde_json::to_value(record).expect("JSON");
    let fields = value.as_object().expect("an object").iter().map(|(name, field)| match field.as_array() {
        Some(items) if !items.is_empty() => {
            let items: Vec<String> = items.iter().map(|item| format!("    {item}")).collect();
            format!("  \"{name}\": [\n{}\n  ]", items.join(",\n"))
        }
        _ => format!("  \"{name}\": {field}"),
    });
    format!("{{\n{}\n}}\n", fields.collect::<Vec<_>>().join(",\n"))
}

fn keep_current(record: &RunRecord) {
    let text = lines(record);
    assert_eq!(serde_json::from_str::<RunRecord>(&text).expect("a record"), *record, "nothing gets lost");
    let folder = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reports/examples");
    let path = folder.join(format!("{}.json", record.experiment.name));
    if std::env::var_os("KDELTA_UPDATE").is_some() {
        fs::write(&path, &text).expect("write");
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{path} is out of date; run with KDELTA_UPDATE=1 and commit it");
}

#[test]
fn the_example_of_two_arms_is_current() {
    keep_current(&judged(DEMO, demo));
}

#[test]
fn the_example_of_a_two_by_two_is_current() {
    keep_current(&judged(FACTORIAL, factorial));
}
