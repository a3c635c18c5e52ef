//! Plans from small experiments: what is decided, and every contradiction that is refused.

use kdelta_model::MeasureMode::{Instructions, Wall};

use super::*;
use crate::testing::{FACTORIAL, TWO_ARMS, loaded, plan};

fn names(plan: &Plan) -> Vec<&str> {
    plan.arms.iter().map(|arm| arm.name.as_str()).collect()
}

fn with_xfs(arms: &str) -> String {
    TWO_ARMS.replace("type: tmpfs", "type: xfs, mkfs: [-m, crc=1], mount: [noatime]").replace(
        "  - {name: child, kernel: {patches: [slow.patch]}}\n",
        &format!("  - {{name: child, {arms}}}\n"),
    )
}

#[test]
fn patches_of_an_arm_come_after_those_of_the_experiment() {
    let yaml = TWO_ARMS.replace("-6.12\"}", "-6.12\", patches: [first.patch], options: [CONFIG_A=y]}");
    let plan = plan(&yaml, Instructions);
    let patches = |arm: &Arm| -> Vec<String> {
        plan.kernels[arm.kernel].patches.iter().map(ToString::to_string).collect()
    };
    assert_eq!(patches(&plan.arms[0]), ["/e/first.patch"]);
    assert_eq!(patches(&plan.arms[1]), ["/e/first.patch", "/e/slow.patch"]);
    assert_eq!(plan.kernels[0].options, ["CONFIG_A=y"]);
}

#[test]
fn a_filesystem_of_the_same_type_adds_arguments_and_another_type_replaces_them() {
    let same = plan(&with_xfs("filesystem: {type: xfs, mkfs: [-n, parent=1]}"), Instructions);
    assert_eq!(same.arms[0].filesystem.mkfs, ["-f", "-m", "crc=1"]);
    assert_eq!(same.arms[1].filesystem.mkfs, ["-f", "-m", "crc=1", "-n", "parent=1"]);
    assert_eq!(same.arms[1].filesystem.mount, ["noatime"]);
    let other = plan(&with_xfs("filesystem: {type: ext4, mkfs: [-O, fast_commit]}"), Instructions);
    assert_eq!(other.arms[1].filesystem.mkfs, ["-F", "-O", "fast_commit"]);
    assert!(other.arms[1].filesystem.mount.is_empty());
}

#[test]
fn mkfs_is_told_to_overwrite_unless_the_experiment_says_so_itself() {
    for (kind, mkfs, expected) in [
        ("tmpfs", "", vec![]),
        ("xfs", "", vec!["-f"]),
        ("btrfs", "-d, single", vec!["-f", "-d", "single"]),
        ("ext4", "", vec!["-F"]),
        ("xfs", "-f, -K", vec!["-f", "-K"]),
    ] {
        let yaml = TWO_ARMS.replace("type: tmpfs", &format!("type: {kind}, mkfs: [{mkfs}]"));
        assert_eq!(plan(&yaml, Instructions).arms[0].filesystem.mkfs, expected, "{kind} {mkfs}");
    }
}

#[test]
fn an_external_log_brings_the_arguments_that_both_mkfs_need() {
    let of = |kind: &str, mkfs: &str| {
        let settings = format!("type: {kind}, mkfs: [{mkfs}], log: 64MiB}}, memory: 2GiB");
        let plan = plan(&TWO_ARMS.replace("type: tmpfs}", &settings), Instructions);
        let Filesystem { mkfs, log, .. } = plan.arms[1].filesystem.clone();
        let log = log.expect("a log");
        assert_eq!(log.bytes, 64 << 20);
        (mkfs.join(" "), log.mkfs.join(" "))
    };
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    assert_eq!(of("xfs", "-m, crc=1"), pair("-f -m crc=1", ""));
    assert_eq!(of("ext4", ""), pair("-F -b 4096", "-F -b 4096 -O journal_dev"));
    assert_eq!(of("ext4", "-b, 1024, -O, quota"), pair("-F -b 1024 -O quota", "-F -b 1024 -O journal_dev"));
    assert_eq!(of("ext4", "-b1024"), pair("-F -b1024", "-F -b1024 -O journal_dev"));
}

#[test]
fn a_log_is_a_matter_of_the_arm_that_asks_for_it() {
    let yaml =
        with_xfs("filesystem: {type: xfs, log: 128MiB}").replace("settings: {", "settings: {memory: 2GiB, ");
    let plan = plan(&yaml, Instructions);
    assert_eq!(plan.arms[0].filesystem.log, None);
    assert_eq!(plan.arms[1].filesystem.log.as_ref().map(|log| log.bytes), Some(128 << 20));
    assert_eq!(plan.arms[1].filesystem.mkfs, plan.arms[0].filesystem.mkfs);
    let other = with_xfs("filesystem: {type: btrfs}")
        .replace("type: xfs,", "type: xfs, log: 64MiB,")
        .replace("settings: {", "settings: {memory: 2GiB, ");
    assert_eq!(
        super::make(&loaded(&other).expect("yaml"), Instructions).expect("a plan").arms[1].filesystem.log,
        None
    );
}

const AGED: &str = "type: xfs, aged: {workload: create, preset: quick, rounds: 3, remove_every: 2, seed: 9}";

#[test]
fn a_used_filesystem_has_a_fixed_uuid_and_its_own_workload_and_seed() {
    let plan = plan(&TWO_ARMS.replace("type: tmpfs", AGED), Instructions);
    let [parent, child, placebo] = plan.arms.as_slice() else { panic!("{:?}", names(&plan)) };
    assert_eq!((&parent.aged, &parent.aged), (&child.aged, &placebo.aged), "all share one image");
    let aged = parent.aged.as_ref().expect("a used filesystem");
    assert_eq!((aged.seed, aged.remove_every, aged.scenarios.len()), (9, Some(2), 1));
    let scenario = &aged.scenarios[0];
    assert_eq!((scenario.workload.as_str(), scenario.warmup, scenario.rounds), ("create/sane", 0, 3));
    assert_eq!(scenario.parameters["files"].to_string(), "30");
    assert_eq!(parent.filesystem.mkfs, ["-f", "-m", "uuid=6b64656c-7461-4000-8000-000000000001"]);
    insta::assert_snapshot!(aged, @"a filesystem used by create/sane x 3 dirs=3 files=30 order=round-robin size=1000 sync=none threads=2 write_size=600, every file number 2 removed, seed 9");
}

#[test]
fn a_uuid_that_the_experiment_gives_stays() {
    let mkfs = |kind: &str, mkfs: &str| {
        let settings = format!("type: {kind}, mkfs: [{mkfs}], aged: {{workload: create}}");
        plan(&TWO_ARMS.replace("type: tmpfs", &settings), Instructions).arms[0].filesystem.mkfs.join(" ")
    };
    assert_eq!(mkfs("ext4", ""), "-F -U 6b64656c-7461-4000-8000-000000000001");
    assert_eq!(mkfs("btrfs", ""), "-f -U 6b64656c-7461-4000-8000-000000000001");
    assert_eq!(mkfs("ext4", "-U, clear"), "-F -U clear");
    assert_eq!(mkfs("xfs", "-m, \"crc=1,uuid=1234\""), "-f -m crc=1,uuid=1234");
}

#[test]
fn machine_and_command_line_of_an_arm_win_over_the_shape() {
    let yaml = with_xfs("memory: 2GiB, cpus: 2, disk: {type: ram, size: 768MiB}, cmdline: [quiet]")
        .replace("settings: {", "settings: {cmdline: [mitigations=off], ");
    let plan = plan(&yaml, Instructions);
    assert_eq!(plan.arms[0].guest.memory.to_string(), "1GiB");
    assert_eq!(plan.arms[0].guest.disk.capacity().expect("a disk").to_string(), "512MiB");
    let guest = &plan.arms[1].guest;
    assert_eq!((guest.memory.to_string().as_str(), guest.cpus), ("2GiB", 2));
    assert_eq!(guest.disk.capacity().expect("a disk").to_string(), "768MiB");
    assert_eq!(guest.cmdline, ["mitigations=off", "quiet"]);
}

#[test]
fn factors_are_crossed_and_compared_only_along_the_one_that_changes_the_kernel() {
    let plan = plan(FACTORIAL, Instructions);
    assert_eq!(
        names(&plan),
        [
            "unpatched, parent=0",
            "unpatched, parent=1",
            "patched, parent=0",
            "patched, parent=1",
            "unpatched, parent=0, placebo",
            "unpatched, parent=1, placebo"
        ]
    );
    assert_eq!(plan.pairs, [Pair { base: 0, arm: 2 }, Pair { base: 1, arm: 3 }]);
    assert_eq!(plan.arms[3].levels["kernel"], "patched");
    assert_eq!(plan.arms[3].levels["parent pointers"], "parent=1");
    assert_eq!(plan.kernels.len(), 3, "two kernels and one placebo serve six arms");
}

#[test]
fn factors_without_a_kernel_are_compared_along_each_of_them() {
    let yaml = FACTORIAL.replace(", kernel: {patches: [fast.patch]}}", ", cpus: 2}");
    let plan = plan(&yaml, Instructions);
    assert_eq!(plan.kernels.len(), 1);
    let pairs: Vec<(usize, usize)> = plan.pairs.iter().map(|pair| (pair.base, pair.arm)).collect();
    assert_eq!(pairs, [(0, 2), (1, 3), (0, 1), (2, 3)]);
    assert!(plan.arms.iter().all(|arm| arm.placebo_of.is_none()), "one kernel needs no placebo");
}

#[test]
fn each_parent_arm_gets_a_placebo_with_its_kernel_and_machine() {
    let plan = plan(TWO_ARMS, Instructions);
    let placebo = &plan.arms[2];
    assert_eq!((placebo.name.as_str(), placebo.placebo_of), ("parent, placebo", Some(0)));
    let kernel = &plan.kernels[placebo.kernel];
    assert!(kernel.placebo && kernel.patches.is_empty());
    assert_eq!(placebo.guest, plan.arms[0].guest);
    let off = super::make(&loaded(&format!("{TWO_ARMS}placebo: false\n")).expect("yaml"), Instructions);
    assert_eq!(names(&off.expect("a plan")), ["parent", "child"]);
    assert_eq!(
        names(&super::make(&loaded(TWO_ARMS).expect("yaml"), Wall).expect("a plan")),
        ["parent", "child"]
    );
}

#[test]
fn a_ready_made_parent_has_no_placebo() {
    let yaml = TWO_ARMS
        .replace("debian:linux-source-6.12", "image:/boot/vmlinuz-a")
        .replace("patches: [slow.patch]", "source: \"image:/boot/vmlinuz-b\"");
    assert_eq!(names(&plan(&yaml, Instructions)), ["parent", "child"]);
}

#[test]
fn instructions_mode_goes_seed_by_seed_with_repeats_after_the_first() {
    let yaml = format!("{TWO_ARMS}boots: 2\nseed: 40\nrepeats: 2\n");
    let plan = plan(&yaml, Instructions);
    let order: Vec<String> =
        plan.boots.iter().map(|boot| format!("{} {} {:?}", boot.arm, boot.seed, boot.purpose)).collect();
    assert_eq!(
        order,
        [
            "0 40 Sample",
            "1 40 Sample",
            "2 40 Placebo",
            "0 40 Repeat",
            "1 40 Repeat",
            "0 40 Repeat",
            "1 40 Repeat",
            "0 41 Sample",
            "1 41 Sample",
            "2 41 Placebo"
        ]
    );
    assert!(plan.boots.iter().enumerate().all(|(position, boot)| boot.index == position));
}

#[test]
fn the_largest_seed_of_a_session_wraps_around() {
    let plan = plan(&format!("{TWO_ARMS}seed: {}\n", u64::MAX), Instructions);
    assert_eq!(plan.boots.last().map(|boot| boot.seed), Some(6));
}

#[test]
fn wall_mode_boots_each_arm_once_a_block_in_an_order_that_the_seed_decides() {
    let with = |seed: u64| plan(&format!("{TWO_ARMS}seed: {seed}\nboots: 20\n"), Wall);
    let order = |plan: &Plan| plan.boots.iter().map(|boot| boot.arm).collect::<Vec<_>>();
    let one = with(7);
    assert_eq!(one, with(7));
    assert_ne!(order(&one), order(&with(8)));
    let (first, blocks) = one.boots.split_at(2);
    assert!(first.iter().all(|boot| boot.purpose == BootPurpose::Unmeasured));
    let mut parent_first = 0;
    for (number, block) in blocks.chunks(2).enumerate() {
        let mut arms: Vec<usize> = block.iter().map(|boot| boot.arm).collect();
        parent_first += usize::from(arms == [0, 1]);
        arms.sort_unstable();
        assert_eq!(arms, [0, 1], "block {number}");
        assert!(block.iter().all(|boot| boot.seed == 8 + number as u64), "block {number}");
        assert!(block.iter().all(|boot| boot.purpose == BootPurpose::Sample), "block {number}");
    }
    assert_eq!(blocks.len(), 40);
    assert!((4..=16).contains(&parent_first), "{parent_first} of 20 blocks begin with the parent");
}

#[test]
fn arms_share_the_fragments_of_all_filesystems_and_disks() {
    let plan = plan(&with_xfs("filesystem: {type: ext4}, disk: {type: nvme}"), Instructions);
    assert_eq!(plan.kernels[0].fragments, ["guest", "disk-nvme", "disk-ram", "ext4", "xfs"]);
    assert_eq!(plan.kernels.iter().filter(|kernel| !kernel.placebo).count(), 1, "one kernel serves both");
}

#[test]
fn a_fragment_is_a_name_or_a_path_from_the_experiment_s_folder() {
    let yaml = TWO_ARMS
        .replace("-6.12\"}", "-6.12\", fragments: [nvme, my/own.config], base: \"file:base.config\"}");
    let kernel = &plan(&yaml, Instructions).kernels[0];
    assert_eq!(kernel.fragments, ["guest", "tmpfs", "nvme", "/e/my/own.config"]);
    assert_eq!(kernel.base.to_string(), "file:/e/base.config");
}

#[test]
fn a_workload_s_parameters_win_over_the_preset_and_the_arm_s_over_both() {
    let yaml = TWO_ARMS
        .replace(
            "{workload: xattr/flistxattr}",
            "{workload: xattr/flistxattr, preset: quick, parameters: {list_bytes: 100}}, {workload: create}",
        )
        .replace("{name: parent}", "{name: parent, parameters: {list_bytes: 200, files: 5}}");
    let plan = plan(&yaml, Instructions);
    let of = |arm: usize, name: &str| {
        plan.arms[arm]
            .scenarios
            .iter()
            .find_map(|scenario| scenario.parameters.get(name))
            .map(ToString::to_string)
    };
    assert_eq!(of(0, "iterations").as_deref(), Some("4096"));
    assert_eq!(of(1, "list_bytes").as_deref(), Some("100"));
    assert_eq!(of(0, "list_bytes").as_deref(), Some("200"));
    assert_eq!(of(0, "files").as_deref(), Some("5"));
}

#[test]
fn a_workload_name_stands_for_its_default_scenarios() {
    let ids = |workload: &str| -> Vec<String> {
        let yaml = TWO_ARMS.replace("{workload: xattr/flistxattr}", workload);
        plan(&yaml, Instructions).arms[0].scenarios.iter().map(|scenario| scenario.id.clone()).collect()
    };
    assert_eq!(ids("{workload: xattr/flistxattr, name: list}"), ["list"]);
    let all = ids("{workload: xattr}");
    assert!(all.len() > 1 && all.contains(&"xattr/flistxattr".to_owned()), "{all:?}");
    assert!(ids("{workload: xattr, name: x}").contains(&"x/flistxattr".to_owned()));
}

#[test]
fn counts_on_a_disk_that_the_host_serves_get_four_rounds_of_warm_up_unless_the_experiment_says() {
    let warmups = |disk: &str, workload: &str, mode| -> Vec<u32> {
        let yaml = with_xfs(&format!("disk: {{type: {disk}}}")).replace("xattr/flistxattr", workload);
        plan(&yaml, mode).arms.iter().flat_map(|arm| &arm.scenarios).map(|it| it.warmup).collect()
    };
    assert_eq!(warmups("ram", "create", Instructions), [1, 1]);
    assert_eq!(warmups("nvme", "create", Instructions), [4, 4], "the other arm of the pair gets as many");
    assert_eq!(warmups("virtio-blk", "create", Instructions), [4, 4]);
    assert_eq!(warmups("nvme", "create", Wall), [1, 1]);
    assert_eq!(warmups("nvme", "create, warmup: 2", Instructions), [2, 2]);
    assert_eq!(warmups("nvme", "create, warmup: 0", Instructions), [0, 0]);
    assert_eq!(warmups("ram", "create, warmup: 3", Instructions), [3, 3]);
}

/// Every contradiction, as a change of an experiment that is good.
#[test]
fn every_contradiction_is_refused_with_its_place_and_a_way_out() {
    let two = |from: &str, to: &str, expected: &str| check(TWO_ARMS, from, to, expected);
    let four = |from: &str, to: &str, expected: &str| check(FACTORIAL, from, to, expected);
    let add = |line: &str, expected: &str| check(&format!("{TWO_ARMS}{line}\n"), "", "", expected);

    add("boots: 0", "boots: 0 boots; 1 to 1000 are possible");
    add("boots: 1001", "boots: 1001 boots; 1 to 1000 are possible");
    add("deadline_seconds: 0", "deadline_seconds: 0 s; 1 to 604800 are possible");
    add("deadline_seconds: 18446744073709551615", "1 to 604800 are possible");
    add("repeats: 4294967295", "at most 20000 are possible");
    for margin in ["0", "-1", "100", ".nan", ".inf"] {
        add(&format!("margin_percent: {margin}"), "it lies between 0 and 100");
    }
    add("factors: [{factor: f, levels: [{name: a}]}]", "arms: give arms or factors, not both");
    two(
        "arms:\n  - {name: parent}\n  - {name: child, kernel: {patches: [slow.patch]}}\n",
        "arms: []\n",
        "arms: nothing to compare: list arms, or factors whose levels are crossed into arms",
    );
    two("{name: parent}", "{cpus: 1}", "arms[0]: an arm needs a name");
    two("name: two", "name: ' '", "name: \" \" cannot be the name of an experiment; give a short word");
    two("name: child", "name: parent", "arms[1]: two arms are called \"parent\"");
    four(
        "levels: [{name: unpatched}, ",
        "levels: [{cpus: 1}, ",
        "factors[0].levels[0]: a level needs a name",
    );
    four(
        "levels: [{name: unpatched}, ",
        "levels: [{name: ''}, ",
        "factors[0].levels[0]: a level needs a name",
    );
    four(
        "levels: [{name: unpatched}, {name: patched, kernel: {patches: [fast.patch]}}]",
        "levels: []",
        "factors[0]: factor kernel has no levels",
    );
    four("factor: parent pointers", "factor: kernel", "factors[1]: two factors are called kernel");

    add("guest: nmve", "guest: there is no guest shape called \"nmve\"; known: tmpfs, ram, nvme, virtio-blk");
    add("guest: ./no/such.yaml", "guest: cannot read guest shape /e/./no/such.yaml: No such file");
    two(
        "kernel: {source: \"debian:linux-source-6.12\"}\n",
        "",
        "arms[0].kernel: no kernel source; give one, such as source: \"debian:linux-source-6.12\"",
    );
    for kernel in ["patches: [a.patch]", "options: [CONFIG_A=y]", "fragments: [a]"] {
        two(
            "source: \"debian:linux-source-6.12\"",
            &format!("source: \"image:/boot/vmlinuz\", {kernel}"),
            "arms[0].kernel: image:/boot/vmlinuz is a ready-made kernel: it takes no patches, fragments or options",
        );
    }
    two(
        "debian:linux-source-6.12",
        "deb:linux-image-amd64",
        "arms[1].kernel: deb:linux-image-amd64 is a ready-made",
    );

    two(
        "settings: {filesystem: {type: tmpfs}}\n",
        "",
        "arms[0].filesystem: no filesystem; give one under settings, such as filesystem: {type: xfs}",
    );
    two(
        "type: tmpfs",
        "type: tmpfs, mkfs: [-f]",
        "arms[0].filesystem.mkfs: tmpfs has no mkfs; use mount options",
    );
    two(
        "type: tmpfs}",
        "type: xfs}, disk: {type: none}",
        "arms[0].disk: xfs needs a disk; use guest: ram, nvme or virtio-blk",
    );
    for (kind, reason) in [("tmpfs", "tmpfs keeps nothing and has no log"), ("btrfs", "btrfs has no journal")]
    {
        two(
            "type: tmpfs",
            &format!("type: {kind}, log: 64MiB"),
            &format!("arms[0].filesystem.log: {reason}"),
        );
    }
    two("type: tmpfs", "type: xfs, log: 1KiB", "arms[0].filesystem.log: 1KiB; it must be a multiple of 4KiB");
    two(
        "type: tmpfs}",
        "type: xfs, log: 600MiB}, memory: 4GiB",
        "arms[0].filesystem.log: all RAM disks have one size, so the log is at most as large as the disk: 512MiB",
    );
    two(
        "type: tmpfs",
        "type: xfs, log: 64MiB",
        "arms[0].disk: a RAM disk of 512MiB with a log of 64 MiB needs twice that in guest memory, which is 1GiB",
    );
    for (kind, mkfs) in [("xfs", "logdev=/dev/sdb"), ("xfs", "internal=1"), ("ext4", "-J")] {
        two(
            "type: tmpfs",
            &format!("type: {kind}, mkfs: [-l, {mkfs}], log: 64MiB"),
            &format!("arms[0].filesystem.log: mkfs is told where the log is already: {mkfs}"),
        );
    }
    let aged = |aged: &str, expected: &str| {
        let settings = format!("type: xfs, aged: {{{aged}}}");
        two("type: tmpfs", &settings, &format!("arms[0].filesystem.aged{expected}"));
    };
    aged("workload: creat", ".workload: there is no workload `creat`; did you mean: create");
    aged("workload: create, preset: huge", ".preset: no preset \"huge\"; known: source");
    aged("workload: create, rounds: 0", ".rounds: at least one round must be measured");
    aged("workload: create, parameters: {fils: 1}", ".parameters: create/sane has no parameter `fils`");
    for every in ["0", "1"] {
        let expected = format!(".remove_every: {every}; 2 removes half of the files");
        aged(&format!("workload: create, remove_every: {every}"), &expected);
    }
    two(
        "type: tmpfs",
        "type: xfs, log: 64MiB, aged: {workload: create}",
        "arms[0].filesystem.aged: the image of a used filesystem holds its log; leave out `log`, or `aged`",
    );
    two(
        "type: tmpfs",
        "type: tmpfs, aged: {workload: create}",
        "arms[0].filesystem.aged: tmpfs has no disk whose state could be kept; use xfs, ext4 or btrfs",
    );

    for cpus in ["0", "65"] {
        two("settings: {", &format!("settings: {{cpus: {cpus}, "), "CPUs; 1 to 64 are possible");
    }
    for memory in ["0MiB", "255MiB", "513GiB", "1EiB"] {
        two("settings: {", &format!("settings: {{memory: {memory}, "), "; 256MiB to 512GiB are possible");
    }
    two("settings: {", "settings: {memory: 0MiB, ", "arms[0].memory: 0B; 256MiB");
    for (kind, size) in [("nvme", "0MiB"), ("ram", "15MiB"), ("ram", "1EiB"), ("virtio-blk", "17TiB")] {
        two(
            "type: tmpfs}",
            &format!("type: xfs}}, disk: {{type: {kind}, size: {size}}}"),
            "; 16MiB to 16TiB are possible",
        );
    }
    two(
        "type: tmpfs}",
        "type: xfs}, disk: {type: nvme, size: 1EiB}",
        "arms[0].disk.size: 1EiB; 16MiB to 16TiB are possible",
    );
    two(
        "type: tmpfs}",
        "type: xfs}, disk: {type: ram, size: 600MiB}",
        "arms[0].disk: a RAM disk of 600MiB needs twice that in guest memory, which is 1GiB",
    );
    two(
        "settings: {",
        "settings: {cmdline: ['a=\"b c\"'], ",
        "arms[0].cmdline: \"a=\\\"b c\\\"\" cannot be on a command line",
    );

    let workload = |to: &str, expected: &str| two("{workload: xattr/flistxattr}", to, expected);
    workload("", "workloads: nothing to run; `kdelta workloads` lists what there is");
    for name in ["''", "' '"] {
        workload(
            &format!("{{workload: {name}}}"),
            "workloads[0].workload: the name is empty; `kdelta workloads` lists what there is",
        );
        workload(
            &format!("{{workload: xattr/flistxattr, name: {name}}}"),
            "cannot be the name of a workload; leave it out, or give a word for tables",
        );
    }
    workload(
        "{workload: xattr/flistxattr, name: \"a\\nb\"}",
        "workloads[0].name: \"a\\nb\" cannot be the name of a workload",
    );
    workload(
        "{workload: xattr/flistxattr, rounds: 0}",
        "workloads[0].rounds: at least one round must be measured",
    );
    workload(
        "{workload: xattr/flistxatr}",
        "workloads[0].workload: there is no workload `xattr/flistxatr`; did you mean: xattr/flistxattr",
    );
    workload(
        "{workload: create}, {workload: create}",
        "workloads[1]: \"create/sane\" runs twice; give each a name of its own",
    );
    workload(
        "{workload: create, preset: huge}",
        "workloads[0].preset: no preset \"huge\"; known: source, source-1m, source-maildir, guest",
    );
    workload(
        "{workload: xattr/flistxattr, parameters: {iteratoins: 5}}",
        "workloads[0].parameters: xattr/flistxattr has no parameter `iteratoins`; it has iterations, list_bytes",
    );
    workload(
        "{workload: xattr/flistxattr, parameters: {iterations: 0}}",
        "workloads[0].parameters: iterations: 0 is out of range; allowed are",
    );
    workload(
        "{workload: xattr/flistxattr, parameters: {iterations: many}}",
        "workloads[0].parameters: iterations: `many` is not a whole number",
    );
    workload(
        "{workload: xattr/flistxattr, parameters: {xattrs: 3}}",
        "workloads[0].parameters: xattr/flistxattr does not take `xattrs`; only flistxattr-count does",
    );
    two(
        "settings: {",
        "settings: {parameters: {files: 3}, ",
        "parameters: no workload of this experiment takes files (set to 3)",
    );
}

fn check(good: &str, from: &str, to: &str, expected: &str) {
    let yaml = if from.is_empty() { good.to_owned() } else { good.replacen(from, to, 1) };
    assert!(from.is_empty() || yaml != good, "{from:?} is not in the experiment");
    let error = loaded(&yaml).and_then(|loaded| super::make(&loaded, Instructions)).expect_err(&yaml);
    assert!(matches!(error, ConfigError::Invalid { .. }), "{to}: {error:?}");
    assert!(error.to_string().contains(expected), "{to}\n  is:     {error}\n  wanted: {expected}");
}
