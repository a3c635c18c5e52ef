//! Explains options of a small tree.

use std::fs;

use proptest::prelude::*;

use super::*;

const TREE: [(&str, &str); 6] = [
    (
        "Kconfig",
        r#"mainmenu "Linux/$(ARCH)"
cc-option = $(success,$(CC) -Werror $(1))
source "init/Kconfig"
source "arch/$(SRCARCH)/Kconfig"
source "arch/$(HEADER_ARCH)/um/Kconfig"
source "drivers/Kconfig"
"#,
    ),
    (
        "init/Kconfig",
        r#"config MODULES
	bool "Loadable modules"
	modules
	help
	  config IN_HELP is text, as is
	  depends on NOTHING.

config EXPERT
	bool "Expert"
config DEBUG_KERNEL
	bool "Kernel debugging" if EXPERT
	default y if NEVER
choice
	prompt "Compression"
	default GZIP
config GZIP
	bool "gzip"
config XZ
	bool "xz"
endchoice
config HIDDEN
	def_bool y
	depends on EXPERT && \
		MODULES
config DETECT_HUNG_TASK
	bool "Detect hung tasks"
	depends on DEBUG_KERNEL # a comment
config STACK
	bool "Stack protector"
	depends on $(cc-option,-fstack-protector if (x)) && !LOCKDOWN
config LOCKDOWN
	bool
"#,
    ),
    ("arch/x86/Kconfig", "config X86\n\tdef_bool y\nconfig NR_CPUS\n\tint \"CPUs\" if EXPERT\n\tdefault 8\n"),
    ("arch/arm/Kconfig", "config ARM\n\tdef_bool y\n"),
    (
        "drivers/Kconfig",
        r#"menuconfig BLK_DEV
	bool "Block devices"
	depends on BLOCK
config BLOCK
	bool "The block layer"
if BLK_DEV
orsource "virtio/Kconfig"
config VIRTIO_BLK
	tristate "Virtio block"
	depends on VIRTIO
config NBD
	tristate "Network block device"
	depends on NET
endif # BLK_DEV
menu "Tracing"
	depends on DEBUG_KERNEL
	visible if EXPERT
config TRACER
	bool "Tracer"
	depends on PERF || (KPROBES && X86) || FTRACE
endmenu
config KPROBES
	bool "Kprobes"
config FTRACE
	bool "Ftrace"
	depends on NEVER
config NET
	bool "Networking"
	depends on NO_SUCH
"#,
    ),
    (
        "drivers/virtio/Kconfig",
        "config VIRTIO\n\ttristate\nconfig VIRTIO_PCI\n\ttristate \"PCI\"\n\tselect VIRTIO if X86\nconfig VIRTIO_MMIO\n\tbool \"MMIO\"\n\tdepends on FTRACE\n\tselect VIRTIO\n",
    ),
];

/// The sentences about `symbol`.
fn why(config: &str, symbol: &str) -> String {
    let home = tempfile::tempdir().expect("a temporary folder");
    let tree = Utf8Path::from_path(home.path()).expect("UTF-8");
    for (path, text) in TREE {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }
    explain(tree, "x86", config, symbol).join("\n")
}

#[test]
fn a_fragment_is_read_with_origins() {
    let text = "# comment\n\nCONFIG_A=y\r\nCONFIG_B=m\nCONFIG_S=\"a \\\" b\"\nCONFIG_N=-1\nCONFIG_H=0xFf\n# CONFIG_C is not set\nCONFIG_D=n\n";
    let read: Vec<String> = parse(text, "x.config")
        .expect("a fragment")
        .into_iter()
        .map(|request| format!("{} {} {}", request.origin, request.name, request.value))
        .collect();
    insta::assert_snapshot!(read.join("\n"), @r#"
    x.config:3 A y
    x.config:4 B m
    x.config:5 S "a \" b"
    x.config:6 N -1
    x.config:7 H 0xFf
    x.config:8 C n
    x.config:9 D n
    "#);
}

#[test]
fn a_line_that_is_no_option_is_shown_with_its_number() {
    let check = |line: &str, why: &str| {
        let error = parse(&format!("CONFIG_A=y\n{line}\n"), "f").expect_err(line).to_string();
        assert!(error.contains("f:2") && error.contains(line) && error.contains(why), "{error}");
    };
    check("CONFIG_X", "write CONFIG_NAME=y");
    check("XFS_FS=y", "a name is CONFIG_");
    check("CONFIG_X = y", "without spaces");
    check("CONFIG_X=yes", "a value is y, m, n");
    check("CONFIG_X=", "a value is y, m, n");
    check("CONFIG_X=\"a", "does not end");
    check("CONFIG_X=\"a\" # why", "a line of its own");
}

#[test]
fn the_later_request_wins() {
    let requests = parse("CONFIG_A=y\nCONFIG_B=y\n# CONFIG_A is not set\n", "f").expect("a fragment");
    let merged = merge(requests);
    assert_eq!(merged.len(), 2);
    assert_eq!((merged[0].value.as_str(), merged[0].origin.as_str()), ("n", "f:3"));
}

#[test]
fn unset_absent_and_n_are_the_same_and_numbers_are_compared() {
    let requests =
        parse("CONFIG_A=n\nCONFIG_B=n\nCONFIG_C=y\nCONFIG_D=m\nCONFIG_H=0x10\n", "f").expect("a fragment");
    let dropped = dropped(&requests, "# CONFIG_A is not set\nCONFIG_D=y\nCONFIG_H=0x0010\n");
    let names: Vec<_> = dropped.iter().map(|d| (d.request.name.as_str(), d.actual.as_deref())).collect();
    assert_eq!(names, [("C", None), ("D", Some("y"))]);
}

#[test]
fn missing_dependencies_are_named_with_what_would_meet_them() {
    insta::assert_snapshot!(why("CONFIG_BLOCK=y\nCONFIG_X86=y\n", "VIRTIO_BLK"), @r"
    VIRTIO_BLK depends on BLK_DEV, which is not set; turn on BLK_DEV
    VIRTIO_BLK depends on VIRTIO, which is not set; VIRTIO in turn lacks BLK_DEV
    ");
    insta::assert_snapshot!(why("CONFIG_BLOCK=y\nCONFIG_X86=y\nCONFIG_BLK_DEV=y\n", "CONFIG_VIRTIO_BLK"), @"VIRTIO_BLK depends on VIRTIO, which is not set and has no prompt: VIRTIO_PCI selects it; turn that on; with more dependencies, VIRTIO_MMIO selects it");
    insta::assert_snapshot!(why("", "VIRTIO_BLK"), @r"
    VIRTIO_BLK depends on BLK_DEV, which is not set; BLK_DEV in turn lacks BLOCK
    VIRTIO_BLK depends on VIRTIO, which is not set; VIRTIO in turn lacks BLK_DEV
    ");
    insta::assert_snapshot!(why("CONFIG_EXPERT=y\n", "DETECT_HUNG_TASK"), @"DETECT_HUNG_TASK depends on DEBUG_KERNEL, which is not set; turn on DEBUG_KERNEL");
    insta::assert_snapshot!(why("CONFIG_BLK_DEV=y\n", "NBD"), @"NBD depends on NET, which is not set; NET in turn lacks NO_SUCH");
    insta::assert_snapshot!(why("CONFIG_X86=y\nCONFIG_DEBUG_KERNEL=y\n", "TRACER"), @r"
    TRACER depends on PERF || (KPROBES && X86) || FTRACE: PERF is not set, KPROBES is not set, X86 is y, FTRACE is not set
    TRACER can be set only with EXPERT, which is not set; turn on EXPERT; without that it takes its default
    ");
}

#[test]
fn options_that_nobody_is_asked_about_say_what_sets_them() {
    insta::assert_snapshot!(why("CONFIG_BLK_DEV=y\nCONFIG_X86=y\n", "VIRTIO"), @"VIRTIO has no prompt, so that a fragment cannot set it: VIRTIO_PCI selects it; turn that on; with more dependencies, VIRTIO_MMIO selects it");
    insta::assert_snapshot!(why("CONFIG_MODULES=y\n", "HIDDEN"), @r"
    HIDDEN depends on EXPERT, which is not set; turn on EXPERT
    HIDDEN has no prompt, so that a fragment cannot set it: its default is y
    ");
    insta::assert_snapshot!(why("", "DEBUG_KERNEL"), @"DEBUG_KERNEL can be set only with EXPERT, which is not set; turn on EXPERT; without that it takes its default");
    insta::assert_snapshot!(why("CONFIG_NR_CPUS=8\n", "NR_CPUS"), @"NR_CPUS can be set only with EXPERT, which is not set; turn on EXPERT; without that it takes its default");
    insta::assert_snapshot!(why("CONFIG_GZIP=y\n", "XZ"), @r#"XZ is one answer of the choice "Compression", and GZIP was chosen; only one can be on"#);
    insta::assert_snapshot!(why("CONFIG_LOCKDOWN=y\n", "STACK"), @"STACK depends on !LOCKDOWN, but LOCKDOWN is y");
    insta::assert_snapshot!(why("", "STACK"), @"STACK depends on $(cc-option,-fstack-protector if (x)), which the compiler or another tool decides");
    insta::assert_snapshot!(why("", "KPROBES"), @"all that KPROBES depends on is on, as far as can be seen from the kernel's Kconfig files; run `make menuconfig` in the tree, search for it with `/`, and compare");
}

#[test]
fn options_that_are_on_against_the_wish_say_who_wants_them() {
    insta::assert_snapshot!(why("CONFIG_X86=y\nCONFIG_VIRTIO_PCI=y\nCONFIG_VIRTIO=y\n", "VIRTIO"), @r"
    VIRTIO is y because VIRTIO_PCI selects it; to turn it off, turn off what selects it
    VIRTIO cannot be m while MODULES is not set
    ");
    insta::assert_snapshot!(why("CONFIG_GZIP=y\n", "GZIP"), @r#"GZIP is the answer of the choice "Compression"; turn on another answer"#);
    insta::assert_snapshot!(
        why("CONFIG_MODULES=y\nCONFIG_BLK_DEV=y\nCONFIG_VIRTIO=m\nCONFIG_VIRTIO_BLK=m\n", "VIRTIO_BLK"), @"VIRTIO_BLK depends on VIRTIO, which is only m"
    );
}

#[test]
fn unknown_options_get_the_nearest_names() {
    insta::assert_snapshot!(why("", "VIRTIO_BKL"), @"this kernel has no option VIRTIO_BKL for x86; the nearest names are VIRTIO_BLK, VIRTIO");
    insta::assert_snapshot!(why("", "HUNG_TASK"), @"this kernel has no option HUNG_TASK for x86; the nearest name is DETECT_HUNG_TASK");
    insta::assert_snapshot!(why("", "ARM"), @"this kernel has no option ARM for x86; none has a similar name");
    insta::assert_snapshot!(why("", "IN_HELP"), @"this kernel has no option IN_HELP for x86; none has a similar name");
}

#[test]
fn a_folder_that_is_no_kernel_tree_is_named() {
    let text = explain(Utf8Path::new("/nonexistent"), "x86", "", "A").join("");
    assert!(text.contains("/nonexistent/Kconfig") && text.contains("is this a kernel tree?"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_kconfig_is_read_without_a_panic(
        text in "(config |A|B|\n|\n\t|menu \"x\"|endmenu|if |endif|choice|endchoice|depends on |select |bool |\"|source \"Kconfig\"|help|default |prompt |visible if |\\\\\n|#|\\PC| if |&&|!|\\(){0,60}",
        config in "(CONFIG_|A|B|=|y|m|\n|\\PC){0,20}",
    ) {
        let home = tempfile::tempdir().expect("a temporary folder");
        let tree = Utf8Path::from_path(home.path()).expect("UTF-8");
        fs::write(tree.join("Kconfig"), &text).expect("a file");
        prop_assert!(!explain(tree, "x86", &config, "A").is_empty());
        if let Ok(requests) = parse(&text, "f") {
            let _ = dropped(&merge(requests), &config);
        }
    }
}
