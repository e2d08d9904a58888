use alloc::borrow::ToOwned;
use alloc::string::ToString;
use std::format;
use std::vec;

use proptest::prelude::*;
use stile_blob::write::{self, File, Machine};
use stile_blob::{Blob, Mitigations, Mode, OnReset, Settings, Share, Techniques};
use stile_board::map::RAM_BASE;

use super::*;

const MIB: u64 = 1 << 20;

/// An arm64 `Image` of a MiB.
fn arm_kernel(fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; MIB as usize];
    bytes[8..16].fill(0);
    bytes[16..24].copy_from_slice(&(2 * MIB).to_le_bytes());
    bytes[24..32].copy_from_slice(&0xa_u64.to_le_bytes());
    bytes[56..60].copy_from_slice(b"ARM\x64");
    bytes
}

/// A bzImage for 16 MiB.
fn pc_kernel(fill: u8) -> Vec<u8> {
    let mut file = vec![0; 3 * 512 + 4096];
    file[3 * 512..].fill(fill);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[2]);
    put(0x201, b"\x66HdrS\x0f\x02");
    put(0x236, &[1]);
    put(0x22c, &0x7fff_ffffu32.to_le_bytes());
    put(0x258, &0x100_0000u64.to_le_bytes());
    put(0x260, &0x20_0000u32.to_le_bytes());
    file
}

/// The blob of an image with one virtual machine.
fn blob(is_pc: bool, kernel: &[u8], initrd: Option<&[u8]>) -> Vec<u8> {
    blob_with_disks(is_pc, kernel, initrd, &[])
}

/// The blob of an image with one virtual machine, which has these disks in memory.
fn blob_with_disks(is_pc: bool, kernel: &[u8], initrd: Option<&[u8]>, disks: &[&[u8]]) -> Vec<u8> {
    let guest = Guest {
        kernel_name: "Image",
        initrd,
        bootargs: "console=ttyAMA0 quiet",
        memory: 64 * MIB,
        disks,
        vcpus: 2,
        topology: None,
        nested: false,
        pci: false,
        served: 0,
        serves: 0,
        gic: Gic::V3,
        domains: &[],
        seed: Some(core::array::from_fn(|at| at as u8)),
    };
    let plan = if is_pc { pc::plan(&guest, kernel, &AT_BOOT) } else { plan::plan(&guest, kernel, &AT_BOOT) }.expect("a plan");
    let vm = Vm {
        name: "guest",
        memory: guest.memory,
        ram_base: plan.ram_base,
        firmware: 0,
        disks: guest.disk_sizes().into_iter().collect(),
        vcpus: guest.vcpus,
        topology: None,
        class: None,
        cpus: stile_board::CpuSet::EMPTY,
        pinned: false,
        share: Share::default(),
        entry: plan.kernel.entry,
        info: plan.layout.dtb.start,
        mode: plan.mode,
        loads: heapless::Vec::new(),
        on_reset: OnReset::default(),
        techniques: Techniques::default(),
        functions: heapless::Vec::new(),
        served: heapless::Vec::new(),
        serves: 0,
        gic: Gic::V3,
    };
    let file = |bytes, gpa| File { vm: 0, bytes, gpa, mem_len: 0 };
    let mut files = Vec::new();
    for segment in &plan.kernel.segments {
        files.push(File { mem_len: segment.mem_len, ..file(plan.kernel.bytes(segment), segment.gpa) });
    }
    files.extend(initrd.zip(plan.layout.initrd.clone()).map(|(bytes, range)| file(bytes, range.start)));
    files.push(file(&plan.dtb, plan.layout.dtb.start));
    files.extend(plan.more.iter().map(|(gpa, bytes)| file(&bytes[..], *gpa)));
    files.extend(
        plan.disks.iter().map(|disk| File { mem_len: disk.region.end - disk.region.start, ..file(&disk.bytes, disk.region.start) }),
    );
    files.iter_mut().for_each(|file| file.mem_len = file.mem_len.max(file.bytes.len() as u64));
    let settings = Settings { report_exits: false, slice_us: 5000, mitigations: Mitigations::Auto };
    write::blob(&Machine { settings, vms: vec![vm], text: "" }, &write::symbols(&[]), &files).expect("a blob")
}

fn request<'a, 'r>(is_pc: bool, bootargs: &'r dyn Fn(Option<&str>) -> Option<String>) -> Request<'a, 'r> {
    Request { is_pc, kernel: None, initrd: None, has_initrd: false, disks: &[], memory: None, vcpus: None, bootargs }
}

/// Memory and vCPUs of a remade virtual machine, its files with their addresses, and the number of its own bytes.
type Remade = (u64, u16, Vec<(u64, Vec<u8>)>, usize);

fn remade(blob: &[u8], medium: &[u8], request: &Request<'_, '_>) -> Result<Remade, RemakeError> {
    let blob = Blob::parse(blob).expect("valid");
    let vm = blob.vms.clone().next().expect("one");
    let (vm, new) = remake(&vm, Files::at_boot(blob.files(), medium, &[]), request)?;
    let files = Files::at_boot(blob.files(), medium, &new);
    assert_eq!(vm.check(files), Ok(()));
    let contents = vm.loads.iter().map(|load| (load.gpa, files.file(load).expect("a file").to_vec())).collect();
    Ok((vm.memory, vm.vcpus, contents, new.len()))
}

fn unchanged(line: Option<&str>) -> Option<String> {
    line.map(ToOwned::to_owned)
}

fn text_in(contents: &[(u64, Vec<u8>)], text: &str) -> bool {
    contents.iter().any(|(_, bytes)| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[test]
fn nothing_new_is_the_same() {
    for (is_pc, kernel) in [(false, arm_kernel(3)), (true, pc_kernel(3))] {
        let blob = blob(is_pc, &kernel, Some(&[9; 5000]));
        let parsed = Blob::parse(&blob).expect("valid");
        let vm = parsed.vms.clone().next().expect("one");
        let before: Vec<_> = vm.loads.iter().map(|load| (load.gpa, parsed.file(load).expect("a file").to_vec())).collect();
        let (memory, vcpus, after, own) = remade(&blob, &[], &request(is_pc, &unchanged)).expect("a VM");
        assert_eq!((memory, vcpus), (64 * MIB, 2));
        assert!(before == after, "the same files at the same addresses");
        assert!(own < 256 << 10, "kernel and initial RAM file system are the image's: {own}");
    }
}

#[test]
fn memory_vcpus_and_command_line_change() {
    for (is_pc, kernel) in [(false, arm_kernel(3)), (true, pc_kernel(3))] {
        let blob = blob(is_pc, &kernel, Some(&[9; 5000]));
        let other = |line: Option<&str>| line.map(|line| line.replace("quiet", "debug"));
        let request = Request { memory: Some(128 * MIB), vcpus: Some(3), ..request(is_pc, &other) };
        let (memory, vcpus, after, _) = remade(&blob, &[], &request).expect("a VM");
        assert_eq!((memory, vcpus), (128 * MIB, 3));
        assert!(text_in(&after, "console=ttyAMA0 debug") && !text_in(&after, "quiet"));
        assert_eq!(text_in(&after, "cpu@2"), !is_pc);
        let initrd = after.iter().find(|(_, bytes)| bytes == &[9; 5000]).expect("the image's");
        assert!(initrd.0 > if is_pc { 64 * MIB } else { RAM_BASE + 64 * MIB }, "at the end of the new memory");
        let little = Request { memory: Some(2 * MIB), ..request };
        assert!(matches!(remade(&blob, &[], &little), Err(RemakeError::Plan(_))));
    }
}

#[test]
fn disks_in_memory_are_kept_replaced_and_moved() {
    for (is_pc, kernel, base) in [(false, arm_kernel(3), RAM_BASE), (true, pc_kernel(3), 0)] {
        let blob = blob_with_disks(is_pc, &kernel, None, &[&[1; 5000], &[2; 3 << 20]]);
        let medium = vec![7; 1024];
        let larger = Request { memory: Some(128 * MIB), disks: &[Some(&medium)], ..request(is_pc, &unchanged) };
        let (_, _, after, own) = remade(&blob, &medium, &larger).expect("a VM");
        let at = |gpa: u64| after.iter().find(|(at, _)| *at == base + gpa).map(|(_, bytes)| &bytes[..]);
        assert_eq!((at(128 * MIB), at(132 * MIB)), (Some(&[7; 1024][..]), Some(&[2; 3 << 20][..])));
        assert_eq!((at(64 * MIB), at(68 * MIB)), (None, None));
        assert!(own < 256 << 10, "{own}");
        let added = Request { disks: &[None, None, Some(&medium)], ..larger };
        assert_eq!(remade(&blob, &medium, &added).expect("a VM").2.iter().filter(|(_, bytes)| bytes[..] == medium).count(), 1);
        let missing = Request { disks: &[None, None, None], ..larger };
        assert!(matches!(remade(&blob, &medium, &missing), Err(RemakeError::Disk)));
        for wrong in [&medium[..0], &medium[..600]] {
            let request = Request { disks: &[None, Some(wrong)], ..larger };
            assert!(matches!(remade(&blob, &medium, &request), Err(RemakeError::Image { number: 1, .. })));
        }
    }
}

#[test]
fn files_of_the_boot_medium_are_used_where_they_are() {
    for (is_pc, old, new) in [(false, arm_kernel(3), arm_kernel(5)), (true, pc_kernel(3), pc_kernel(5))] {
        let blob = blob(is_pc, &old, None);
        let medium = [&new[..], &[8; 3000]].concat();
        let (kernel, initrd) = medium.split_at(new.len());
        let request = Request { kernel: Some(("new", kernel)), initrd: Some(Some(initrd)), ..request(is_pc, &unchanged) };
        let (_, _, after, own) = remade(&blob, &medium, &request).expect("a VM");
        assert!(after.iter().any(|(_, bytes)| bytes == initrd) && after.iter().any(|(_, bytes)| bytes.ends_with(&[5; 1000])));
        assert!(own < 256 << 10, "{own}");
        let packed = [&[0x28, 0xb5, 0x2f, 0xfd], &new[..]].concat();
        let error = remade(&blob, &[], &Request { kernel: Some(("new", &packed)), ..request }).expect_err("packed").to_string();
        assert!(error.contains("compressed with zstd; expected gzip or none"), "{error}");
    }
}

#[test]
fn a_kernel_is_unpacked_once() {
    for (is_pc, old, new) in [(false, arm_kernel(3), arm_kernel(5)), (true, pc_kernel(3), pc_kernel(5))] {
        let blob = blob(is_pc, &old, None);
        let packed = crate::gunzip::gzip(&new, 0, &[]);
        let request = Request { kernel: Some(("new", &packed)), ..request(is_pc, &unchanged) };
        let (_, _, after, own) = remade(&blob, &packed, &request).expect("a VM");
        assert!(after.iter().any(|(_, bytes)| bytes.ends_with(&[5; 1000])) && after.iter().all(|(_, bytes)| !bytes.ends_with(&[3; 1000])));
        assert!(own < new.len() + (256 << 10), "{own}");
        assert_eq!(memory_to_unpack(&packed, is_pc), 3 * new.len() as u64);
        assert_eq!(memory_to_unpack(&new, is_pc), 0);
    }
}

/// An ELF program of 64 KiB with `count` segments, whose bytes in the file are all of it.
fn overlapping_program(count: u16) -> Vec<u8> {
    const LENGTH: u64 = 64 << 10;
    let mut file = vec![0; LENGTH as usize];
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    let mut put = |at: usize, value: u64, size: usize| file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    for (at, value, size) in [(16, 2, 2), (18, 183, 2), (24, RAM_BASE, 8), (32, 64, 8), (54, 56, 2), (56, count.into(), 2)] {
        put(at, value, size);
    }
    for n in 0..u64::from(count) {
        let (at, gpa) = (64 + 56 * n as usize, RAM_BASE + n * LENGTH);
        for (at, value) in [(at + 16, gpa), (at + 24, gpa), (at + 32, LENGTH), (at + 40, LENGTH)] {
            put(at, value, 8);
        }
        put(at, 1, 4);
    }
    file
}

#[test]
fn an_unpacked_kernel_is_copied_once() {
    let blob = blob(false, &arm_kernel(3), None);
    for (count, is_fine) in [(1, true), (2, false), (14, false)] {
        let program = overlapping_program(count);
        let packed = crate::gunzip::gzip(&program, 0, &[]);
        let made = |file: &[u8]| remade(&blob, file, &Request { kernel: Some(("new", file)), ..request(false, &unchanged) });
        let (_, _, after, own) = made(&program).expect("nothing is copied");
        assert_eq!(after.iter().filter(|(_, bytes)| bytes == &program).count(), count.into());
        assert!(own < 256 << 10, "{own}");
        match made(&packed) {
            Ok(_) => assert!(is_fine, "{count}"),
            Err(RemakeError::Plan(error)) => assert!(!is_fine && error.to_string().contains("bytes of the file in common"), "{error}"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn seeds_are_the_images_or_none() {
    let new = arm_kernel(5);
    let blob = blob(false, &arm_kernel(3), Some(&[9; 5000]));
    let parsed = Blob::parse(&blob).expect("valid");
    let vm = parsed.vms.clone().next().expect("one");
    let some = |_: Option<&str>| Some("x".to_owned());
    let request = Request { kernel: Some(("new", &new)), initrd: Some(None), ..request(false, &some) };
    let seed_of = |vm: &Vm<'_>| {
        let (vm, own) = remake(vm, Files::at_boot(parsed.files(), &new, &[]), &request).expect("a VM");
        loaded::seed(&vm, Files::at_boot(parsed.files(), &new, &own))
    };
    let seed = Some(core::array::from_fn(|at| at as u8));
    assert_eq!(seed_of(&vm), seed);
    // Without the initial RAM file system's load the rest can't be read.
    let without = |gpa: u64| Vm { loads: vm.loads.iter().filter(|load| load.gpa != gpa).copied().collect(), ..vm.clone() };
    let initrd = vm.loads.iter().find(|load| load.len == 5000).expect("the initial RAM file system");
    assert!(Loaded::read(&without(initrd.gpa), parsed.files(), false).is_none());
    assert_eq!(seed_of(&without(initrd.gpa)), seed);
    assert_eq!(seed_of(&without(vm.info)), None, "no device tree, no seed");
}

#[test]
fn not_everything_can_be_made_anew() {
    let blob = blob(false, &arm_kernel(3), None);
    let parsed = Blob::parse(&blob).expect("valid");
    let vm = parsed.vms.clone().next().expect("one");
    let refusal = |vm: &Vm<'_>, request: Request<'_, '_>| remake(vm, parsed.files(), &request).expect_err("refused").to_string();
    let none = |_: Option<&str>| None;
    assert!(refusal(&vm, request(false, &none)).starts_with("\"append\" can't be changed here"));
    assert!(refusal(&Vm { serves: 1, ..vm.clone() }, request(false, &unchanged)).contains("serves devices"));
    assert!(refusal(&Vm { firmware: 2 * MIB, ..vm.clone() }, request(false, &unchanged)).contains("UEFI firmware"));
    let nine = Request { vcpus: Some(9), ..request(false, &unchanged) };
    assert_eq!(refusal(&Vm { gic: Gic::V2, ..vm.clone() }, nine), "9 vCPUs are too many for a GICv2; expected at most 8");
    // A program that is not Linux, on a PC.
    let some = |_: Option<&str>| Some("x".to_owned());
    let pc = Vm { mode: Mode::Protected, ..vm };
    assert!(refusal(&pc, request(true, &some)).contains("a file in the folder VMS"));
    assert!(refusal(&pc, Request { has_initrd: true, ..request(true, &some) }).contains("initial RAM file system"));
}

proptest! {
    #[test]
    fn any_kernel_is_read(
        is_pc: bool,
        start in 0..4_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        changes in prop::collection::vec((0..0x300_usize, any::<u8>()), 0..4),
        memory in 1..100_u64,
        vcpus in 1..=256_u16,
    ) {
        let some = |_: Option<&str>| Some(format!("a{}", "b".repeat(bytes.len() * 20)));
        let mut file = [arm_kernel(0), pc_kernel(0), b"\x7fELF\x02\x01\x01".to_vec(), Vec::new()][start].clone();
        file.truncate(0x4000);
        file.extend(&bytes);
        for (at, byte) in changes {
            if let Some(to) = file.get_mut(at) {
                *to = byte;
            }
        }
        let blob = blob(is_pc, &if is_pc { pc_kernel(1) } else { arm_kernel(1) }, None);
        let request = Request {
            kernel: Some(("x", &file)),
            initrd: Some(Some(&bytes)),
            memory: Some(memory * 2 * MIB),
            vcpus: Some(vcpus),
            ..request(is_pc, &some)
        };
        let _ = remade(&blob, &file, &request);
    }
}
