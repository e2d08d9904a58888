//! Runs each target on its corpus and on a fixed number of mutations of it, and checks that the corpus reaches the target's marks.
//!
//! Environment: STILE_FUZZ_MUTATIONS multiplies the number of mutations.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stile_fuzz::mutate::{Random, mutate};
use stile_fuzz::{Target, corpus, marks, target};

macro_rules! targets {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                check(target($name).expect("a target"));
            }
        )*

        #[test]
        fn every_target_is_tested() {
            let names: Vec<_> = stile_fuzz::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

targets! {
    smmu: "smmu",
    pci: "pci",
    its: "its",
    guest_its: "guest-its",
    blob: "blob",
    image: "image",
    bus: "bus",
    boot_configuration: "boot-configuration",
    configuration: "configuration",
    console: "console",
    control: "control",
    decode_cache: "decode-cache",
    decode: "decode",
    devices_aarch64: "devices-aarch64",
    devices_x86_64: "devices-x86_64",
    boot_loader: "boot-loader",
    disk: "disk",
    efi: "efi",
    figures: "figures",
    acpi: "acpi",
    device_tree: "device-tree",
    multiboot: "multiboot",
    flash: "flash",
    apic: "apic",
    apic_virtualized: "apic-virtualized",
    io_apic: "io-apic",
    vgic: "vgic",
    vgic_against_reference: "vgic-against-reference",
    kernel_aarch64: "kernel-aarch64",
    kernel_x86_64: "kernel-x86_64",
    line_from_stile: "line-from-stile",
    line_to_stile: "line-to-stile",
    nested_interrupts: "nested-interrupts",
    nested_registers: "nested-registers",
    package: "package",
    served_queues: "served-queues",
    report: "report",
    sampler: "sampler",
    snapshot: "snapshot",
    vhost_user: "vhost-user",
    virtio: "virtio",
    vmx_entries: "vmx-entries",
    vmx_exits: "vmx-exits",
    walk_aarch64: "walk-aarch64",
    walk_x86_64: "walk-x86_64",
}

fn check(target: &Target) {
    let file = corpus::path(target.name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut inputs = corpus::parse(&text).unwrap_or_else(|line| panic!("{}:{line}: not hexadecimal", file.display()));
    inputs.extend((target.seeds)());
    marks::take();
    for input in &inputs {
        run(target, input);
    }
    let reached = marks::take();
    let missed: Vec<_> = target.marks.iter().filter(|mark| !reached.contains(*mark)).collect();
    assert!(missed.is_empty(), "the corpus of {} no longer reaches {missed:?}", target.name);

    let more = std::env::var("STILE_FUZZ_MUTATIONS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let mut random = Random::new(0x5eed);
    for _ in 0..target.mutations * more {
        let [one, other] = [(); 2].map(|()| &inputs[random.below(inputs.len())]);
        run(target, &mutate(one, other, &mut random));
    }
}

/// Runs the target on an input; shows the input if that panics.
fn run(target: &Target, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        panic!("{} fails with this input; once fixed, keep it in fuzz/corpus/{0}.hex:\n{}", target.name, corpus::line(input));
    }
}
