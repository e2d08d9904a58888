//! The configuration file on a boot medium, against the one of which the image was made.

use stile_blob::Share;
use stile_board::CpuId;
use stile_config::boot::{Changes, NAME};

use crate::marks::reach;
use crate::target::Target;

/// A file: changes in range, or mistakes that can be shown.
pub const BOOT_CONFIGURATION: Target = Target {
    name: "boot-configuration",
    run: boot_configuration,
    seeds: with_another_vm,
    mutations: 1500,
    marks: &["nothing", "slice", "removed", "cpus", "cap", "mistake", "fixed", "remade", "added"],
};

/// The text of the image.
const IMAGE: &str = r#"[machine]
arch = "aarch64"
slice = "2ms"

[[vm]]
name = "one"
kernel = "debian"
vcpus = 2
cpus = [0, 1]

[[vm]]
name = "two"
kernel = "debian"
"#;

const CPUS: u32 = 4;

/// A file with a virtual machine that the image does not have.
fn with_another_vm() -> Vec<Vec<u8>> {
    vec![format!("{IMAGE}\n[[vm]]\nname = \"three\"\nkernel = \"Image\"\n").into_bytes()]
}

fn boot_configuration(bytes: &[u8]) {
    match Changes::read(NAME, bytes, (IMAGE, &["one", "two"]), CPUS, &["Image", "debian"]) {
        Ok(changes) => check(&changes),
        Err(mistakes) => {
            let text = mistakes.to_string();
            assert!(mistakes.count() > 0 && text.contains(NAME));
            reach(if text.contains("the image was made") { "fixed" } else { "mistake" });
        }
    }
}

fn check(changes: &Changes) {
    assert!((2..=stile_board::MAX_VMS).contains(&changes.vms.len()));
    assert!(changes.vms.iter().any(|vm| !vm.is_removed), "a machine without VMs");
    if changes.keys.is_empty() {
        reach("nothing");
    }
    if let Some(slice) = changes.slice_us {
        reach("slice");
        assert!((100..=1_000_000).contains(&slice));
    }
    for remake in &changes.remakes {
        reach("remade");
        assert!(remake.vm < changes.vms.len() && remake.kernel.as_ref().is_none_or(|kernel| kernel.value == "Image"));
        if remake.vm >= 2 {
            reach("added");
            assert!(remake.kernel.is_some() && remake.memory.is_some() && remake.vcpus.is_some() && !changes.vms[remake.vm].is_removed);
        }
        assert!(remake.memory.as_ref().is_none_or(|memory| stile_board::map::is_ram_size(memory.value)));
        assert!(remake.vcpus.as_ref().is_none_or(|vcpus| (1..=256).contains(&vcpus.value)));
    }
    for vm in &changes.vms {
        if vm.is_removed {
            reach("removed");
        }
        if let Some((cpus, class)) = vm.cpus {
            reach("cpus");
            assert!(cpus.iter().all(|cpu: CpuId| cpu.index() < CPUS as usize));
            assert!(class.is_none() || cpus.is_empty());
        }
        if let Some(cap) = vm.cap {
            reach("cap");
            assert!(cap.is_none_or(|cap| (1..=Share::MAX_CAP).contains(&cap)));
        }
        assert!(vm.weight.is_none_or(|weight| (1..=Share::MAX_WEIGHT).contains(&weight)));
    }
}
