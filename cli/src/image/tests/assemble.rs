//! Whole images, read back as the hypervisor does.

use std::path::Path;

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use stile_blob::Blob;
use stile_blob::write::Function;
use stile_board::map::RAM_BASE;

use super::{ElfSegment, elf, image};
use crate::{
    config::{Flags, MachineConfig},
    image::{Error, Hypervisor, HypervisorError, Image, Seed, VmFiles, VmPlan, assemble, plan},
};

/// Link address of the tests' hypervisor.
const BASE: u64 = 0x7f80_0000_0000;

/// A hypervisor of two segments; the second one ends with zeros.
fn hypervisor_elf() -> Vec<u8> {
    let text = ElfSegment { vaddr: BASE, paddr: BASE, data: image(0, 0, 0x800), mem_len: 0x800 };
    let data = ElfSegment { vaddr: BASE + 0x1000, paddr: BASE + 0x1000, data: vec![9; 16], mem_len: 0x2345 };
    elf(BASE, &[text, data])
}

fn config(text: &str) -> MachineConfig {
    MachineConfig::from_text("machine.toml", text, Path::new(""), &Flags::default()).expect("valid")
}

fn plans(config: &MachineConfig, kernel: &[u8], initrd: Option<&[u8]>, seed: Seed) -> Vec<VmPlan> {
    let files = VmFiles { kernel, initrd, bootargs: "quiet", domains: &[], disks: &[] };
    config.vms.iter().map(|vm| plan(vm, &files, seed).expect("it fits")).collect()
}

fn made(seed: Seed) -> (MachineConfig, Image) {
    let config = config(
        "[machine]\nslice = \"1ms\"\n[[vm]]\nname = \"a\"\nkernel = \"debian\"\nmemory = \"64M\"\nvcpus = 2\n\
         [[vm]]\nname = \"b\"\nkernel = \"debian\"\nmemory = \"128M\"\ncpus = [1, 2]\npinned = true\non_reset = \"stop\"\n\
         [vm.techniques]\nwfi_passthrough = false\n",
    );
    let hypervisor = Hypervisor::from_elf(&hypervisor_elf()).expect("a hypervisor");
    let plans = plans(&config, &image(0, 0x20_0000, 10_000), Some(&[3; 5000]), seed);
    let image = assemble(&hypervisor, &config, &plans, true, "").expect("an image");
    (config, image)
}

#[test]
fn the_hypervisor_reads_the_image_as_written() {
    let (config, image) = made(Seed::Random);
    assert_eq!(image.hypervisor_len, 0x4000);
    assert_eq!(image.bytes[0x1000..0x1011], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
    assert_eq!(image.bytes[16..24], (image.bytes.len() as u64).to_le_bytes());

    let blob = Blob::parse(&image.bytes[image.hypervisor_len..]).expect("the hypervisor can read it");
    assert_eq!(image.hypervisor_len + blob.len(), image.bytes.len());
    assert!(blob.settings.report_exits);
    assert_eq!(blob.settings.slice_us, 1000);
    let vms: Vec<_> = blob.vms.clone().collect();
    let [a, b] = &vms[..] else { panic!("two virtual machines") };
    assert_eq!((a.name, a.vcpus, a.memory, a.entry), ("a", 2, 64 << 20, RAM_BASE));
    assert_eq!((b.cpus, b.pinned, b.on_reset), (stile_board::CpuSet::from_bits(0b110), true, stile_blob::OnReset::Stop));
    assert!(a.techniques.wfi_passthrough && !b.techniques.wfi_passthrough);
    for (vm, wanted) in [a, b].into_iter().zip(&config.vms) {
        let [kernel, initrd, dtb] = &vm.loads[..] else { panic!("three files") };
        assert_eq!((kernel.gpa, kernel.len, kernel.mem_len), (RAM_BASE, 10_000, 0x20_0000));
        assert_eq!(blob.file(initrd), Some(&[3; 5000][..]));
        assert_eq!(dtb.gpa, vm.info);
        let tree = Fdt::new(blob.file(dtb).expect("a file")).expect("a device tree");
        let memory = tree.find_node("/memory").and_then(|memory| memory.reg().ok()??.next()).expect("memory");
        assert_eq!(memory.size(), Ok(wanted.memory));
        let chosen = tree.find_node("/chosen").expect("chosen");
        let start = chosen.property("linux,initrd-start").expect("an initrd");
        assert_eq!(start.value(), initrd.gpa.to_be_bytes());
        let end = chosen.property("linux,initrd-end").expect("an initrd");
        assert_eq!(end.value(), (initrd.gpa + 5000).to_be_bytes());
    }
    assert_eq!(a.loads[0].offset, b.loads[0].offset, "one kernel for both");
}

#[test]
fn a_second_program_lies_behind_the_blob() {
    let program = |at, text: u8| Hypervisor {
        image: [[text; 0x1000], [0; 0x1000]].concat(),
        efi_entry: None,
        other_program: at,
        other: None,
        functions: vec![Function { start: 8, len: 4, name: text.to_string() }],
    };
    let config = config("[[vm]]\nkernel = \"debian\"\n");
    let plans = plans(&config, &image(0, 4096, 64), None, Seed::Fixed);
    let both = program(Some(0x100), 1).with_other(program(Some(0x100), 2)).expect("they fit");
    let image = assemble(&both, &config, &plans, false, "").expect("an image").bytes;
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes")) as usize;
    let (at, len) = (word(0x100), word(0x104));
    assert_eq!((at % 0x1000, len, &image[at..]), (0, 0x1000, &[2; 0x1000][..]), "without its zeros, at a page");
    let blob = Blob::parse(&image[0x2000..at]).expect("the hypervisor can read it");
    assert_eq!((blob.symbols.lookup(9), blob.symbols.lookup(0x2009)), (Some(("1", 1)), Some(("2", 1))));
    for other in [None, Some(0x104)] {
        assert!(program(Some(0x100), 1).with_other(program(other, 2)).is_err(), "they choose at different places");
    }
    let longer = Hypervisor { image: vec![0; 0x3000], ..program(Some(0x100), 2) };
    assert!(program(Some(0x100), 1).with_other(longer).is_err(), "they differ in length");
}

#[test]
fn fixed_seeds_make_the_same_image() {
    assert_eq!(made(Seed::Fixed).1.bytes, made(Seed::Fixed).1.bytes);
    assert_ne!(made(Seed::Random).1.bytes, made(Seed::Random).1.bytes);
}

#[test]
fn an_empty_initrd_counts_as_none() {
    let config = config("[[vm]]\nkernel = \"debian\"\n");
    let plans = plans(&config, &image(0, 4096, 64), Some(&[]), Seed::Fixed);
    assert_eq!((&plans[0].initrd, &plans[0].layout.initrd), (&None, &None));
}

#[test]
fn errors_name_the_vm() {
    let config = config("[[vm]]\nname = \"small\"\nkernel = \"debian\"\nmemory = \"2M\"\n");
    let said = |kernel: &[u8], initrd: Option<&[u8]>| {
        let files = VmFiles { kernel, initrd, bootargs: "", domains: &[], disks: &[] };
        plan(&config.vms[0], &files, Seed::Fixed).expect_err("no plan").to_string()
    };
    insta::assert_snapshot!("plan_errors", [said(b"", None), said(&image(0, 4096, 64), Some(&[1; 2 << 20]))].join("\n"));
    let files = VmFiles { kernel: &image(0, 4096, 64), initrd: None, bootargs: "a\0b", domains: &[], disks: &[] };
    assert!(matches!(plan(&config.vms[0], &files, Seed::Fixed), Err(Error::Dtb { .. })));
}

#[test]
fn other_files_are_not_hypervisors() {
    let layout = |bytes: &[u8]| match Hypervisor::from_elf(bytes) {
        Err(HypervisorError::Layout(what)) => what.to_owned(),
        Err(HypervisorError::Elf(_)) => "no ELF file".to_owned(),
        Ok(_) => "a hypervisor".to_owned(),
    };
    let far = ElfSegment { vaddr: u64::MAX - 8, paddr: 0, data: vec![], mem_len: 4 };
    let text = ElfSegment { vaddr: BASE, paddr: BASE, data: vec![0; 64], mem_len: 64 };
    let longer = ElfSegment { mem_len: 8, ..text.clone() };
    let said = [
        layout(b"text"),
        layout(&elf(0, &[])),
        layout(&elf(0, &[text.clone(), far])),
        layout(&elf(0, std::slice::from_ref(&text))),
        layout(&elf(0, &[longer])),
        layout(&elf(0, &[text])[..150]),
        layout(&hypervisor_elf()),
    ];
    insta::assert_snapshot!("no_hypervisors", said.join("\n"));
}

/// An image of the hypervisor's own ELF file contains readable names. This program stands in for it: its
/// functions' names are mangled by the same compiler.
#[test]
fn functions_have_readable_names() {
    let this = std::env::current_exe().and_then(std::fs::read).expect("this test's program");
    let Ok(file) = object::read::elf::ElfFile64::<object::Endianness>::parse(&this[..]) else {
        return; // Not a system with ELF programs.
    };
    let functions = super::super::hypervisor::functions(&file, 0, usize::MAX);
    let names: Vec<&str> = functions.iter().map(|function| &function.name[..]).collect();
    assert!(names.contains(&"stile::image::assemble::assemble"), "demangled, without the hash");
    assert!(names.iter().all(|name| !name.starts_with("_ZN") && !name.starts_with("_R")));
    let table = stile_blob::write::symbols(&functions[..functions.len().min(1000)]);
    assert!(stile_blob::Symbols::parse(&table).is_ok());
}
