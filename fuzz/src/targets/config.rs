//! Configuration files.

use std::path::Path;

use stile::config::{Flags, Look, MachineConfig};

use crate::marks::reach;
use crate::target::Target;

/// A TOML file: a configuration, or mistakes that can be shown.
pub const CONFIGURATION: Target = Target {
    name: "configuration",
    run: configuration,
    seeds: texts,
    mutations: 1500,
    marks: &["machine", "mistake", "x86_64", "several VMs", "domain", "share", "disk", "bridge", "folder"],
};

/// Files with all settings.
fn texts() -> Vec<Vec<u8>> {
    const ALL: &str = r#"# all
[machine]
arch = "aarch64"
cpus = 4
memory = "8G"
cpu = "max"
slice = "2500us"
mitigations = "all"

[[vm]]
name = "one"
kernel = "debian:6.12"
initrd = "busybox"
append = "quiet loglevel=3"
memory = "1G"
vcpus = 2
cpus = [0, 1]
pinned = true
weight = 200
cap = "150%"
nested = true
on_reset = "stop"
exec = 'nproc; uname -r'

[vm.techniques]
nested = "nv"
binary_point = "common"
wfi_passthrough = false

[[vm.domain]]
kernel = "Cargo.toml"
append = "console=hvc0"
memory = "64M"
vcpus = 1

[[vm]]
name = "two"
kernel = "Cargo.toml"
initrd = "none"
cpus = "2-3"

[[vm.disk]]
file = "a.img"
format = "raw"
readonly = true

[[vm.net]]
forward = ["2222:22"]

[[vm.net]]
bridge = "lan0"

[[vm.share]]
path = "src"
readonly = true
tag = "code"

[[vm]]
name = "three"

[[vm.disk]]
file = "b.qcow2"
"#;
    const PC: &str = r#"machine = { arch = "x86_64", cpus = 1 }
vm = [{ kernel = "debian", vcpus = 2, techniques = { apic_virtualization = "posted", decode_cache = "verify", timer = "passthrough" } }]
"#;
    const WRONG: &str =
        "[machine]\ncpus = 99\nspeed = 1\n[[vm]]\nkernel = 7\nvcpus = -1\nmemory = \"1Q\"\ncpus = \"3-1,x\"\nname = \"A b\"\ncap = \"x%\"";
    [ALL, PC, WRONG].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Absolute names would make the result depend on this machine, and reading a device may not end.
    if text.contains('/') {
        return;
    }
    match MachineConfig::from_text("fuzz.toml", text, Path::new(env!("CARGO_MANIFEST_DIR")), &Flags::default()) {
        Ok(machine) => {
            reach("machine");
            check(&machine);
        }
        Err(mistakes) => {
            reach("mistake");
            assert!(mistakes.count() > 0);
            let narrow = Look { colour: true, width: Some(20) };
            assert!(!mistakes.to_string().is_empty() && !mistakes.render(narrow).is_empty());
        }
    }
}

fn check(machine: &MachineConfig) {
    if machine.arch == stile::config::Arch::X86_64 {
        reach("x86_64");
    }
    if machine.vms.len() > 1 {
        reach("several VMs");
    }
    assert!((1..=stile_board::MAX_VMS).contains(&machine.vms.len()));
    assert!((1..=stile_board::MAX_CPUS as u32).contains(&machine.cpus));
    assert!((100..=1_000_000).contains(&machine.slice.as_micros()));
    for vm in &machine.vms {
        assert!(stile_blob::is_name(&vm.name));
        assert!((1..=stile_board::MAX_VCPUS).contains(&usize::from(vm.vcpus)));
        assert!(stile_board::map::is_ram_size(vm.memory));
        assert!(vm.cpus.without(&machine.present_cpus()).is_empty(), "CPUs that the machine lacks");
        assert!(!vm.append.contains('\0'));
        if vm.share != stile_blob::Share::default() {
            reach("share");
        }
        assert!(vm.functions.len() >= vm.emulated_functions());
        assert!(vm.functions.len() <= stile_board::MAX_FUNCTIONS);
        if !vm.disks.is_empty() {
            reach("disk");
        }
        if vm.folders.iter().any(|folder| stile::disk::folder::is_tag(&folder.tag)) {
            reach("folder");
        }
        if vm.networks.iter().any(|network| network.bridge.is_some()) {
            reach("bridge");
        }
        if !vm.domains.is_empty() {
            reach("domain");
        }
    }
}
