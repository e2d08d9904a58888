//! Explanations of some machines.

use std::path::Path;

use super::explain;
use crate::{
    config::{Flags, MachineConfig},
    image::{Seed, VmFiles, plan, plan_for},
};

fn config(text: &str) -> MachineConfig {
    MachineConfig::from_text("machine.toml", text, Path::new(""), &Flags::default()).expect("valid")
}

#[test]
fn one_vm_without_its_files() {
    let config = config("[[vm]]\nkernel = \"debian\"\n");
    insta::assert_snapshot!("one_vm", explain(&config, &[], None).text());
}

#[test]
fn several_vms() {
    let config = config(
        "[machine]\ncpus = 8\nmemory = \"2G\"\n\
         [[vm]]\nname = \"web\"\nkernel = \"debian\"\nvcpus = 4\ncpus = \"0-3\"\npinned = true\nappend = \"quiet\"\n\
         [[vm]]\nname = \"database\"\nkernel = \"debian:6.1\"\ntopology = \"1x3x1\"\ncpus = [3, 5]\nexec = \"uname -a\"\non_reset = \"stop\"\n\
         [vm.techniques]\nwfi_passthrough = false\nablate = [\"timer\", \"state\"]\n\
         [[vm]]\nname = \"installer\"\nkernel = \"debian-installer\"\nmemory = \"256M\"\ncpus = [7]\n",
    );
    let mut kernel = vec![0; 30_000_000];
    kernel[16..24].copy_from_slice(&0x200_0000u64.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    let initrd = vec![1; 1_500_000];
    let plans: Vec<_> = config
        .vms
        .iter()
        .zip([true, true, false])
        .map(|(vm, there)| {
            let files = VmFiles { kernel: &kernel, initrd: Some(&initrd), bootargs: "", domains: &[], disks: &[] };
            there.then(|| plan(vm, &files, Seed::Fixed).expect("it fits"))
        })
        .collect();
    insta::assert_snapshot!("several_vms", explain(&config, &plans, Some(35 << 20)).text());
}

#[test]
fn programs_get_numbers() {
    let config = config("[machine]\ncpus = 2\n[[vm]]\nname = \"a\"\nkernel = \"debian\"\nvcpus = 2\npinned = true\nmemory = \"64M\"\n");
    let object = serde_json::to_value(explain(&config, &[], None)).expect("JSON");
    let vm = &object["vms"][0];
    assert_eq!((&object["cpus"], &vm["memory"], &vm["cpus"]), (&2.into(), &(64 << 20).into(), &serde_json::json!([[0], [1]])));
    let ram = vm["map"].as_array().expect("a map").iter().find(|place| place["what"] == "RAM").expect("RAM");
    assert_eq!(ram["end"].as_u64().zip(ram["start"].as_u64()).map(|(end, start)| end - start), Some(64 << 20));
    assert_eq!(vm["interrupts"][0]["trigger"], "level");
    assert_eq!(object["facts"][1], serde_json::json!({"name": "physical CPUs", "text": "2"}));
}

/// The names of all members, also of those inside of others.
fn members(value: &serde_json::Value) -> Vec<&str> {
    match value {
        serde_json::Value::Array(all) => all.iter().flat_map(members).collect(),
        serde_json::Value::Object(all) => all.iter().flat_map(|(name, value)| std::iter::once(&name[..]).chain(members(value))).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn members_have_names_without_spaces() {
    for arch in ["aarch64", "x86_64"] {
        let config = config(&format!("[machine]\narch = \"{arch}\"\n[[vm]]\nkernel = \"debian\"\n"));
        let object = serde_json::to_value(explain(&config, &[], None)).expect("JSON");
        let members = members(&object);
        assert!(members.len() > 40 && members.iter().all(|name| !name.contains([' ', '/'])), "{members:?}");
    }
}

#[test]
fn assigned_functions() {
    let config = config("[[vm]]\nkernel = \"debian\"\n[[vm.pci]]\nfunction = \"0000:00:02.0\"\n[[vm.pci]]\nfunction = \"0000:00:05.1\"\n");
    let text = explain(&config, &[], None).text();
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("  0x") || line.contains(" (SPI ")).collect();
    assert!(rows.len() > 10 && rows.iter().all(|row| row.chars().count() <= 80), "tables fit a terminal: {rows:#?}");
    insta::assert_snapshot!("assigned_functions", text);
}

#[test]
fn devices_of_a_pc() {
    let config = config(
        "[machine]\narch = \"x86_64\"\ncpu = \"max\"\n[[vm]]\nkernel = \"debian\"\n[[vm.pci]]\nfunction = \"0000:00:09.0\"\n\
         [[vm.disk]]\nfile = \"a.img\"\nformat = \"raw\"\n[[vm.net]]\nforward = [\"2222:22\"]\n",
    );
    let text = explain(&config, &[], None).text();
    let alone = "assigned: it is this VM's alone. The guest finds it at 0000:00";
    for line in [
        &format!("  PCI function   0000:00:09.0, {alone}:01.0"),
        &format!("  disk           /dev/vda: a.img (raw, not there yet), QEMU's virtio-blk at 0000:00:02.0, {alone}:02.0"),
        &format!("  network        through the emulator, port 2222 leads to 22, QEMU's virtio-net at 0000:00:03.0, {alone}:03.0"),
        "DMA and messages go through the IOMMU, by tables of the VM's RAM and of its vectors: each exits, as AVIC is not used",
        "  RAM            filled before the guest starts",
        "  0x00c0000000-0x00dfffffff   512 MiB   BARs of PCI functions",
        "  0x03f8-0x03ff   16550A UART, the console ",
    ] {
        assert!(text.contains(line), "{line} in:\n{text}");
    }
}

#[test]
fn served_networks() {
    let net = "[[vm.net]]\nserved = true\n";
    let config = config(&format!(
        "[[vm]]\nname = \"a\"\nkernel = \"debian\"\n{net}[[vm]]\nname = \"b\"\nkernel = \"debian\"\n{net}forward = [\"2222:22\"]\n"
    ));
    let text = explain(&config, &[], None).text();
    let by = "served by service, which can access all of this VM's RAM";
    for line in [
        &format!("virtio net at 0001:00:01.0, through the emulator as 10.0.2.15, {by}"),
        &format!("virtio net at 0001:00:01.0, through the emulator as 10.0.2.16, port 2222 leads to 10.0.2.16:22, {by}"),
        "through the emulator, port 2222 leads to 10.0.2.16:22, QEMU's virtio-net at 0000:00:01.0",
        "2 devices of a, b",
    ] {
        assert!(text.contains(line), "{line} in:\n{text}");
    }
}

#[test]
fn served_disks() {
    let config = config(
        "[[vm]]\nname = \"a\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"a.img\"\nformat = \"raw\"\nreadonly = true\nserved = true\n\
         [[vm.disk]]\nfile = \"b.qcow2\"\nserved = true\n",
    );
    let text = explain(&config, &[], None).text();
    for (device, image) in [(1, "a.img (raw, read-only)"), (2, "b.qcow2 (qcow2)")] {
        let found = text.lines().find(|line| line.contains(&format!("virtio block at 0001:00:0{device}.0, "))).expect("a row of each disk");
        assert!(found.contains(&format!("{image}, served by service")), "{found}");
    }
}

#[test]
fn served_sockets() {
    let vm = |name: &str| format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n[[vm.served]]\ndevice = \"vsock\"\n");
    let by = "served by service, which can access all of this VM's RAM";
    let says = |vms: &[String], line: &str| {
        let text = explain(&config(&vms.concat()), &[], None).text();
        assert!(text.contains(&format!("virtio vsock at 0001:00:01.0, {line}, {by}")), "{line} in:\n{text}");
    };
    says(&[vm("a"), vm("b")], "CID 3, to b (CID 4)");
    says(&[vm("a"), vm("b")], "CID 4, to a (CID 3)");
    says(&[vm("a")], "CID 3, to no other VM");
}

#[test]
fn a_pc() {
    let config = config(
        "[machine]\narch = \"x86_64\"\n[[vm]]\nname = \"test\"\nkernel = \"debian\"\nvcpus = 2\n\
         [vm.techniques]\napic_virtualization = \"delivery\"\ndecode_cache = \"protect\"\n",
    );
    // A Multiboot header with addresses, at 1 MiB like the loaded file, followed by the entry point.
    let words = [0x1bad_b002u32, 1 << 16, 0xe451_4ffe, 0x10_0000, 0x10_0000, 0, 0, 0x10_0020];
    let mut kernel: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    kernel.resize(0x5000, 0x90);
    let files = VmFiles { kernel: &kernel, initrd: None, bootargs: "", domains: &[], disks: &[] };
    let plan = plan_for(config.arch, &config.vms[0], &files, Seed::Fixed).expect("it fits");
    insta::assert_snapshot!("a_pc", explain(&config, &[Some(plan)], None).text());
}

#[test]
fn too_little_memory_is_said() {
    let config = config("[machine]\nmemory = \"1G\"\n[[vm]]\nkernel = \"debian\"\nmemory = \"900M\"\n");
    let text = explain(&config, &[], Some(100 << 20)).text();
    assert!(text.contains("need 1064M"), "{text}");
}

#[test]
fn the_timer_of_a_pc() {
    let says = |vms: &str| {
        let text = explain(&config(&format!("[machine]\narch = \"x86_64\"\ncpus = 4\n{vms}")), &[], None).text();
        text.lines().find_map(|line| line.trim().strip_prefix("timers")).map(|says| says.trim().to_owned()).expect("it is told")
    };
    let vm = "[[vm]]\nkernel = \"debian\"\n";
    assert_eq!(says(vm), "passed through: nothing else may run on its CPUs");
    assert_eq!(says(&format!("{vm}vcpus = 4\npinned = true\n")), "passed through: nothing else may run on its CPUs");
    let shared = "passed through while a vCPU has its CPU for itself; those that may share it: ";
    assert_eq!(says(&format!("{vm}vcpus = 5\npinned = true\n")), format!("{shared}its own vCPUs"));
    assert_eq!(says(&format!("{vm}vcpus = 2\n")), format!("{shared}its own vCPUs"));
    assert_eq!(says(&format!("{vm}cpus = \"0\"\n{vm}name = \"other\"\n")), format!("{shared}other"));
    assert_eq!(says(&format!("{vm}cap = \"50%\"\n")), "trapped: Stile needs the CPU's timer for the cap");
    let trapped = "[vm.techniques]\ntimer = \"trapped\"\n";
    assert_eq!(says(&format!("{vm}{trapped}")), "trapped, as configured: each write of IA32_TSC_DEADLINE exits");
    let direct = format!("{vm}[vm.techniques]\ntimer = \"direct\"\n");
    let passed = "passed through: nothing else may run on its CPUs; expiries";
    assert_eq!(says(&direct), format!("{passed} exit: timer = \"direct\" needs ipi = \"direct\""));
    let taken = format!("{passed} take no exit, once the guest asks for that (docs/x86-ipi.md)");
    assert_eq!(says(&format!("{direct}ipi = \"direct\"\n")), taken);
}

#[test]
fn direct_ipis() {
    let says = |arch: &str, vms: &str| {
        let text = explain(&config(&format!("[machine]\narch = \"{arch}\"\ncpus = 4\n{vms}")), &[], None).text();
        let lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("IPIs"));
        lines.take_while(|line| !line.starts_with("address")).map(str::to_owned).collect::<Vec<_>>()
    };
    let vm = "[[vm]]\nkernel = \"debian:6.1\"\nvcpus = 2\n";
    let direct = "[vm.techniques]\nipi = \"direct\"\n";
    for arch in ["x86_64", "aarch64"] {
        assert!(says(arch, vm)[0].contains("trapped, as configured: each exits at its sender"), "{:?}", says(arch, vm));
    }
    let alone = says("x86_64", &format!("{vm}pinned = true\n{direct}"));
    assert!(alone[0].contains("direct, once the guest asks") && alone[1].contains("every other VM must trust this one"), "{alone:?}");
    assert_eq!(alone.len(), 2);
    let shared = says("x86_64", &format!("{vm}{direct}"));
    assert!(shared[2].starts_with("HLT exits while a CPU is shared"), "{shared:?}");
    let shared = says("x86_64", &format!("{vm}pinned = true\n{direct}{vm}name = \"other\"\n"));
    assert!(shared[2].starts_with("HLT exits while a CPU is shared"), "{shared:?}");
    let trapped = says("x86_64", &format!("{vm}{direct}timer = \"trapped\"\napic_virtualization = \"delivery\"\n"));
    assert_eq!(trapped, ["IPIs           trapped: ipi = \"direct\" needs apic_virtualization = \"posted\""]);
    let gate = direct.replace("direct", "gate");
    let untrusted = says("x86_64", &format!("{vm}pinned = true\n{gate}"));
    assert!(untrusted[0].contains("through the gate, once") && untrusted[1].contains("no other VM has to trust"), "{untrusted:?}");
    let both = says("x86_64", &format!("{vm}{direct}{vm}name = \"second\"\n{gate}"));
    assert!(
        both[0].ends_with("trapped on a machine where second gets its gate, as all APICs are in xAPIC mode there; on others:"),
        "{both:?}"
    );
    assert!(both[1].contains("direct, once the guest asks") && both[2].contains("every other VM must trust this one"), "{both:?}");
    let trapped = says("x86_64", &format!("{vm}{gate}apic_virtualization = \"off\"\n"));
    assert_eq!(trapped, ["IPIs           trapped: ipi = \"gate\" needs apic_virtualization = \"posted\""]);
    assert_eq!(says("aarch64", &format!("{vm}{gate}")), ["IPIs           trapped: ipi = \"gate\" is for x86-64"]);
    let arm = |vm: &str, techniques: &str| says("aarch64", &format!("{vm}{direct}{techniques}"));
    let (own, interrupts) = (format!("{vm}cpus = \"0-1\"\npinned = true\n"), "interrupts = \"direct\"\n");
    let trusted = arm(&own, interrupts);
    assert!(
        trusted[0].contains("direct while its interrupts are") && trusted[1].contains("every other VM must trust this one"),
        "{trusted:?}"
    );
    for (says, why) in [
        (arm(&own, ""), "needs interrupts = \"direct\""),
        (arm(vm, interrupts), "its interrupts are virtual"),
        (arm(&own, &format!("{interrupts}binary_point = \"common\"\n")), "binary_point"),
        (arm(&format!("{vm}cpus = \"1-2\"\npinned = true\n"), interrupts), "vCPU 0 must have CPU 0, whose affinity it has: cpus = \"0-1\""),
    ] {
        assert!(says.len() == 1 && says[0].contains("trapped: ") && says[0].contains(why), "{says:?}");
    }
}

#[test]
fn interrupts_of_an_arm_vm() {
    let says = |vms: &str| {
        let text = explain(&config(&format!("[machine]\ncpus = 3\n{vms}")), &[], None).text();
        text.lines().find_map(|line| line.trim().strip_prefix("interrupts ")).map(|says| says.trim().to_owned())
    };
    let vm = |vm: &str, techniques: &str| {
        let vm = format!("[[vm]]\nkernel = \"debian\"\nvcpus = 2\n{vm}[vm.techniques]\ninterrupts = \"direct\"\n{techniques}");
        says(&vm).expect("it is told")
    };
    let own = "cpus = \"1-2\"\npinned = true\n";
    let virtual_ones = says("[[vm]]\nkernel = \"debian\"\n").expect("it is told");
    assert!(virtual_ones.starts_with("virtual, as configured: each that arrives exits"), "{virtual_ones}");
    assert_eq!(vm(own, ""), "direct: timers and SGIs come without an exit");
    let beside = "[[vm]]\nname = \"other\"\nkernel = \"debian\"\ncpus = \"1\"\n";
    assert_eq!(vm(own, beside), "direct while a vCPU has its CPU for itself; those that may share it: other");
    let refused = [
        (vm("cpus = \"1-2\"\n", ""), "pinned = true"),
        (
            vm("pinned = true\n", "[[vm]]\nkernel = \"debian\"\ncpus = \"2\"\npinned = true\n[vm.techniques]\ninterrupts = \"direct\"\n"),
            "no CPU is left",
        ),
        (vm(own, "wfi_passthrough = false\n"), "WFI traps"),
        (vm(&format!("{own}cap = \"50%\"\n"), ""), "cap"),
        (vm(&format!("{own}nested = true\n"), ""), "EL2"),
        (vm(own, "[[vm.pci]]\nfunction = \"0000:00:02.0\"\n"), "PCI"),
    ];
    for (says, why) in refused {
        assert!(says.starts_with("virtual, although") && says.contains(why), "{says}");
    }
}

#[test]
fn values_fake_no_other_lines() {
    let text = explain(&config("[[vm]]\nkernel = \"debian\"\nappend = \"a\\n  initrd         none\\u001b[2J\"\n"), &[], None).text();
    assert!(text.contains("  command line   a\\n  initrd         none\\u{1b}[2J"), "{text}");
}
