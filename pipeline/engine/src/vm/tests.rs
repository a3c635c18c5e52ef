//! What QEMU and the kernel are told, as snapshots: a change here changes every number.

use kdelta_model::MeasureMode::{Instructions, Wall};

use super::*;
use crate::testing::{TWO_ARMS, plan};

fn arm(settings: &str, mode: MeasureMode) -> Arm {
    plan(&TWO_ARMS.replace("{type: tmpfs}", settings), mode).arms[0].clone()
}

fn spec(arm: &Arm, mode: MeasureMode) -> BootSpec<'_> {
    BootSpec {
        arm,
        kernel: Utf8Path::new("/k/vmlinux"),
        kernel_hz: Some(250),
        initramfs: Utf8Path::new("/r/0003/initramfs"),
        mode,
        seed: 3,
        folder: Utf8Path::new("/r/0003"),
        deadlines: Deadlines::default(),
        pins: &[],
        window: None,
    }
}

/// Arguments, one option with its value a line.
fn lines(spec: &BootSpec) -> String {
    let mut text = String::new();
    for word in arguments(spec).into_iter() {
        text.push_str(if word.starts_with('-') { "\n" } else { " " });
        text.push_str(&word);
    }
    text.trim_start().to_owned()
}

#[test]
fn tmpfs_with_one_cpu_counting_instructions() {
    let arm = arm("{type: tmpfs}", Instructions);
    insta::assert_snapshot!(cmdline(&spec(&arm, Instructions)), @"console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps randomize_kstack_offset=off random.trust_cpu=off nolapic_timer no_timer_check tsc=reliable tsc_early_khz=1000000 cryptomgr.notests=1 lpj=4000000");
    insta::assert_snapshot!(lines(&spec(&arm, Instructions)), @r"
    -nodefaults
    -no-user-config
    -no-reboot
    -display none
    -bios qboot.rom
    -machine q35,i8042=off,sata=off,smbus=off,usb=off,vmport=off,graphics=off,hpet=on
    -accel tcg
    -icount shift=0,sleep=off
    -cpu qemu64,+rdrand
    -rtc base=2026-01-01T00:00:03,clock=vm
    -seed 3
    -smp 1
    -m 1024M
    -kernel /k/vmlinux
    -initrd /r/0003/initramfs
    -append console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps randomize_kstack_offset=off random.trust_cpu=off nolapic_timer no_timer_check tsc=reliable tsc_early_khz=1000000 cryptomgr.notests=1 lpj=4000000
    -chardev file,id=console,path=/r/0003/console.log
    -serial chardev:console
    -chardev file,id=fallback,path=/r/0003/results-serial.bin
    -serial chardev:fallback
    -chardev file,id=results,path=/r/0003/results.bin
    -device virtio-serial-pci,id=ports,max_ports=2,ioeventfd=off
    -device virtserialport,bus=ports.0,chardev=results,name=org.kdelta.results
    ");
}

#[test]
fn a_ram_disk_and_two_cpus_counting_instructions() {
    let arm = arm("{type: xfs}, cpus: 2", Instructions);
    insta::assert_snapshot!(cmdline(&spec(&arm, Instructions)), @"console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps randomize_kstack_offset=off random.trust_cpu=off nolapic_timer no_timer_check tsc=reliable tsc_early_khz=1000000 cryptomgr.notests=1 lpj=4000000 cpu_init_udelay=0 brd.rd_nr=1 brd.rd_size=524288");
    insta::assert_snapshot!(lines(&spec(&arm, Instructions)), @r"
    -nodefaults
    -no-user-config
    -no-reboot
    -display none
    -bios qboot.rom
    -machine q35,i8042=off,sata=off,smbus=off,usb=off,vmport=off,graphics=off,hpet=on
    -accel tcg
    -icount shift=0,sleep=off
    -cpu qemu64,+rdrand
    -rtc base=2026-01-01T00:00:03,clock=vm
    -seed 3
    -smp 2
    -m 1024M
    -global hpet.msi=on
    -global hpet.timers=4
    -kernel /k/vmlinux
    -initrd /r/0003/initramfs
    -append console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps randomize_kstack_offset=off random.trust_cpu=off nolapic_timer no_timer_check tsc=reliable tsc_early_khz=1000000 cryptomgr.notests=1 lpj=4000000 cpu_init_udelay=0 brd.rd_nr=1 brd.rd_size=524288
    -chardev file,id=console,path=/r/0003/console.log
    -serial chardev:console
    -chardev file,id=fallback,path=/r/0003/results-serial.bin
    -serial chardev:fallback
    -chardev file,id=results,path=/r/0003/results.bin
    -device virtio-serial-pci,id=ports,max_ports=2,ioeventfd=off
    -device virtserialport,bus=ports.0,chardev=results,name=org.kdelta.results
    ");
}

#[test]
fn an_nvme_disk_counting_instructions() {
    let arm = arm("{type: xfs}, disk: {type: nvme, cache: none, aio: io-uring}", Instructions);
    insta::assert_snapshot!(lines(&spec(&arm, Instructions)), @r"
    -nodefaults
    -no-user-config
    -no-reboot
    -display none
    -bios qboot.rom
    -machine q35,i8042=off,sata=off,smbus=off,usb=off,vmport=off,graphics=off,hpet=on
    -accel tcg
    -icount shift=0,sleep=off
    -cpu qemu64,+rdrand
    -rtc base=2026-01-01T00:00:03,clock=vm
    -seed 3
    -smp 1
    -m 1024M
    -kernel /k/vmlinux
    -initrd /r/0003/initramfs
    -append console=ttyS0 loglevel=5 panic=-1 oops=panic nokaslr norandmaps randomize_kstack_offset=off random.trust_cpu=off nolapic_timer no_timer_check tsc=reliable tsc_early_khz=1000000 cryptomgr.notests=1 lpj=4000000
    -chardev file,id=console,path=/r/0003/console.log
    -serial chardev:console
    -chardev file,id=fallback,path=/r/0003/results-serial.bin
    -serial chardev:fallback
    -chardev file,id=results,path=/r/0003/results.bin
    -device virtio-serial-pci,id=ports,max_ports=2,ioeventfd=off
    -device virtserialport,bus=ports.0,chardev=results,name=org.kdelta.results
    -drive if=none,id=disk,format=raw,cache=none,aio=io_uring,file=/r/0003/disk.raw
    -device nvme,drive=disk,serial=kdelta
    ");
}

#[test]
fn a_virtio_disk_in_wall_time_with_words_of_the_arm_s_own() {
    let arm = arm("{type: ext4}, disk: {type: virtio-blk}, cmdline: [mitigations=off], cpus: 2", Wall);
    insta::assert_snapshot!(cmdline(&spec(&arm, Wall)), @"console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off");
    insta::assert_snapshot!(lines(&spec(&arm, Wall)), @r"
    -nodefaults
    -no-user-config
    -no-reboot
    -display none
    -bios qboot.rom
    -machine q35,i8042=off,sata=off,smbus=off,usb=off,vmport=off,graphics=off,hpet=on
    -accel kvm
    -cpu host
    -seed 3
    -smp 2
    -m 1024M
    -kernel /k/vmlinux
    -initrd /r/0003/initramfs
    -append console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off
    -chardev file,id=console,path=/r/0003/console.log
    -serial chardev:console
    -chardev file,id=fallback,path=/r/0003/results-serial.bin
    -serial chardev:fallback
    -chardev file,id=results,path=/r/0003/results.bin
    -device virtio-serial-pci,id=ports,max_ports=2
    -device virtserialport,bus=ports.0,chardev=results,name=org.kdelta.results
    -drive if=none,id=disk,format=raw,cache=writeback,aio=threads,file=/r/0003/disk.raw
    -device virtio-blk-pci,drive=disk,serial=kdelta
    ");
}

/// The part of the arguments that is about disks and the window.
fn disks(spec: &BootSpec) -> String {
    let lines = lines(spec);
    lines.split_once(RESULT_PORT).map(|(_, rest)| rest.trim().to_owned()).unwrap_or_default()
}

#[test]
fn an_external_log_is_a_second_disk_of_the_same_kind_with_a_serial_number_of_its_own() {
    let ram = arm("{type: xfs, log: 64MiB}, memory: 2GiB", Instructions);
    let line = cmdline(&spec(&ram, Instructions));
    assert!(line.ends_with(" brd.rd_nr=2 brd.rd_size=524288"), "{line}");
    assert_eq!(disks(&spec(&ram, Instructions)), "");
    let nvme = arm("{type: xfs, log: 64MiB}, disk: {type: nvme}", Instructions);
    insta::assert_snapshot!(disks(&spec(&nvme, Instructions)), @r"
    -drive if=none,id=disk,format=raw,cache=writeback,aio=threads,file=/r/0003/disk.raw
    -device nvme,drive=disk,serial=kdelta
    -drive if=none,id=log,format=raw,cache=writeback,aio=threads,file=/r/0003/log.raw
    -device nvme,drive=log,serial=kdelta-log
    ");
    let virtio = arm("{type: ext4, log: 64MiB}, disk: {type: virtio-blk, cache: none}", Instructions);
    insta::assert_snapshot!(disks(&spec(&virtio, Instructions)), @r"
    -drive if=none,id=disk,format=raw,cache=none,aio=threads,file=/r/0003/disk.raw
    -device virtio-blk-pci,drive=disk,serial=kdelta,ioeventfd=off
    -drive if=none,id=log,format=raw,cache=none,aio=threads,file=/r/0003/log.raw
    -device virtio-blk-pci,drive=log,serial=kdelta-log,ioeventfd=off
    ");
}

#[test]
fn disk_images_are_made_for_the_disk_and_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = Utf8Path::from_path(dir.path()).expect("UTF-8");
    let lengths = |settings: &str| {
        let arm = arm(settings, Instructions);
        prepare(&BootSpec { folder, ..spec(&arm, Instructions) }).expect("images");
        [DISK, LOG_DISK].map(|name| fs::metadata(folder.join(name)).map(|file| file.len() >> 20).ok())
    };
    let nvme = "disk: {type: nvme, size: 1GiB}";
    assert_eq!(lengths(&format!("{{type: xfs, log: 64MiB}}, {nvme}")), [Some(1024), Some(64)]);
    assert_eq!(lengths(&format!("{{type: xfs}}, {nvme}")), [Some(1024), None]);
    assert_eq!(lengths("{type: xfs, log: 64MiB}, memory: 2GiB"), [None, None]);
}

#[test]
fn a_window_is_memory_of_the_host_that_most_guests_only_read() {
    let arm = arm("{type: xfs}", Instructions);
    let window = |writable| {
        let window = Window { path: Utf8Path::new("/c/aged/a,b/image"), bytes: 1 << 29, writable };
        disks(&BootSpec { window: Some(window), ..spec(&arm, Instructions) })
    };
    insta::assert_snapshot!(window(false), @r"
    -object memory-backend-file,id=window,share=on,readonly=on,size=536870912,mem-path=/c/aged/a,,b/image
    -device ivshmem-plain,memdev=window
    ");
    insta::assert_snapshot!(window(true), @r"
    -object memory-backend-file,id=window,share=on,size=536870912,mem-path=/c/aged/a,,b/image
    -device ivshmem-plain,memdev=window
    ");
}

#[test]
fn pins_change_no_argument_of_qemu() {
    let arm = arm("{type: tmpfs}", Wall);
    let free = spec(&arm, Wall);
    assert_eq!(arguments(&BootSpec { pins: &[2, 3], ..free.clone() }), arguments(&free));
}

#[test]
fn a_comma_in_a_path_is_doubled_where_qemu_would_split() {
    let arm = arm("{type: xfs}, disk: {type: nvme}", Instructions);
    let spec = BootSpec { folder: Utf8Path::new("/runs/a,b"), ..spec(&arm, Instructions) };
    let arguments = arguments(&spec);
    assert!(arguments.contains(&"file,id=console,path=/runs/a,,b/console.log".to_owned()), "{arguments:?}");
    assert!(arguments.iter().any(|word| word.ends_with(",file=/runs/a,,b/disk.raw")), "{arguments:?}");
}

#[test]
fn an_unknown_tick_rate_leaves_the_delay_loop_to_the_kernel() {
    let arm = arm("{type: tmpfs}", Instructions);
    for kernel_hz in [None, Some(0)] {
        let line = cmdline(&BootSpec { kernel_hz, ..spec(&arm, Instructions) });
        assert!(!line.contains("lpj="), "{line}");
    }
}

#[test]
fn every_seed_gives_a_date_that_exists() {
    for (seed, expected) in [
        (0, "2026-01-01T00:00:00"),
        (3661, "2026-01-01T01:01:01"),
        (86_399, "2026-01-01T23:59:59"),
        (86_400, "2026-01-01T00:00:00"),
        (u64::MAX, "2026-01-01T07:00:15"),
    ] {
        assert_eq!(start_date(seed), expected, "{seed}");
    }
}

#[test]
fn frames_that_arrive_in_pieces_are_read_once_and_a_missing_file_is_no_frame() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = Utf8PathBuf::try_from(dir.path().join("results.bin")).expect("UTF-8");
    let mut port = Port::new(path.clone());
    assert_eq!(port.read(), Ok(Vec::new()));
    let failure = Frame::Failure { stage: "mkfs".into(), message: "no".into() };
    let bytes = [&failure, &Frame::Done].map(|frame| kdelta_wire::encode(frame).expect("a frame")).concat();
    let mut written = Vec::new();
    let mut read = Vec::new();
    for piece in bytes.chunks(7) {
        written.extend_from_slice(piece);
        fs::write(&path, &written).expect("write");
        read.extend(port.read().expect("frames"));
    }
    assert_eq!(read, [failure, Frame::Done]);
    assert_eq!(port.read(), Ok(Vec::new()), "nothing is read twice");
}
