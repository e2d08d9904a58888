//! Served disks: a virtual machine that serves them is added to those of the configuration.

use stile_blob::{Nested, Served};
use stile_board::{MAX_SERVED, MAX_VMS};

use super::draft::{Given, VmDraft};
use super::served::BLOCK;
use super::{DebianKernel, KernelSource, Mistake, Place, VmConfig};
use crate::disk::drive::Drive;

/// Name of the virtual machine that serves disks.
pub const NAME: &str = "storage";

/// Its RAM: the kernel, a small system, and a cache of the disks' content.
const MEMORY: &str = "256M";

/// Takes the served disks of all virtual machines, whose `drafts` are in the same order. Returns them with the draft of the next virtual
/// machine, which serves them; `None` if there are none.
pub fn take(drafts: &[VmDraft], vms: &mut [VmConfig], mistakes: &mut Vec<Mistake>) -> Option<(VmDraft, Vec<Drive>)> {
    let before = mistakes.len();
    let server = vms.len();
    let mut disks: Vec<Drive> = Vec::new();
    for (draft, vm) in drafts.iter().zip(vms.iter_mut()) {
        let Some(first) = draft.disks.iter().find(|disk| disk.served) else { continue };
        let mut refuse = |what: String, expected: String| mistakes.push(Mistake::new(first.place.clone(), what).expected(expected));
        if vm.techniques.nested != Nested::Off || draft.inside {
            let what = "disks can't be served to a virtual machine with an EL2 of its own, or inside of one".to_owned();
            refuse(what, "nested = false".to_owned());
        }
        if vm.serves != 0 {
            refuse(format!("\"{}\" serves others, and can't be served itself", vm.name), "a disk without served = true".to_owned());
        }
        if vm.kernel == KernelSource::Disk && draft.disks.first().is_some_and(|disk| disk.served) {
            let what = format!("\"{}\" starts from its first disk, which can't be a served one yet", vm.name);
            refuse(what, "a kernel, such as kernel = \"debian\", or a disk before this one".to_owned());
        }
        let (served, own): (Vec<Drive>, _) = std::mem::take(&mut vm.disks).into_iter().partition(|drive| drive.served);
        vm.disks = own;
        vm.served.extend(served.iter().map(|_| Served { device: BLOCK, server: server as u8 }));
        if vm.served.len() > MAX_SERVED {
            refuse(format!("\"{}\" has {} served devices", vm.name, vm.served.len()), format!("at most {MAX_SERVED}"));
        }
        disks.extend(served);
        if disks.len() > MAX_SERVED {
            refuse(format!("there are {} served disks up to this virtual machine's", disks.len()), format!("at most {MAX_SERVED}"));
        }
    }
    if disks.is_empty() || mistakes.len() != before {
        return None;
    }
    if vms.iter().any(|vm| vm.name == NAME) {
        let what = format!("a virtual machine is called \"{NAME}\", as the one that serves disks");
        mistakes.push(Mistake::new(Place::File, what).expected("another name"));
    }
    if vms.len() == MAX_VMS {
        let what = format!("there are {MAX_VMS} virtual machines, and one that serves disks");
        mistakes.push(Mistake::new(Place::File, what).expected(format!("at most {MAX_VMS} in all")));
    }
    let given = |text: &str| Some(Given::new(text.to_owned(), Place::Nowhere));
    let draft = VmDraft {
        name: given(NAME),
        kernel: given(DebianKernel::SERVER.word()),
        memory: given(MEMORY),
        exec: given(&command(disks.iter().map(|drive| drive.read_only))),
        ..VmDraft::new(Place::Nowhere)
    };
    Some((draft, disks))
}

/// The command that serves disks, which are this virtual machine's PCI functions from device 1 on. Each is found by its address: with
/// another one's, a client would get another client's data.
fn command(read_only: impl Iterator<Item = bool>) -> String {
    let disks = (1..).zip(read_only).map(|(device, read_only)| {
        let option = if read_only { ",readonly" } else { "" };
        format!(" block=/dev/$(ls 0000:00:{device:02x}.0/virtio*/block){option}")
    });
    format!("cd /sys/bus/pci/devices; exec stile-devices{}", disks.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Flags, MachineConfig};
    use super::*;

    fn read(text: &str) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, Path::new("/"), &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn a_vm_that_serves_disks_is_added() {
        let text = "[[vm]]\nname = \"a\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"one\"\nserved = true\n[[vm.disk]]\nfile = \"own\"\n\
                    [[vm]]\nname = \"b\"\nkernel = \"debian\"\n[[vm.disk]]\nfile = \"two\"\nreadonly = true\nserved = true\n";
        let config = read(text).unwrap();
        let [a, b, server] = &config.vms[..] else { panic!("three VMs") };
        let block = Served { device: 2, server: 2 };
        assert_eq!((&a.served[..], &b.served[..]), (&[block][..], &[block][..]));
        assert_eq!((a.disks.len(), a.functions.len(), b.functions.len()), (1, 1, 0));
        assert_eq!((&server.name[..], server.serves, server.functions.len()), ("storage", 2, 2));
        assert_eq!(server.disks.iter().map(|drive| drive.file.as_path()).collect::<Vec<_>>(), [Path::new("/one"), Path::new("/two")]);
        assert_eq!(
            server.exec.as_deref(),
            Some(
                "cd /sys/bus/pci/devices; exec stile-devices block=/dev/$(ls 0000:00:01.0/virtio*/block) \
                 block=/dev/$(ls 0000:00:02.0/virtio*/block),readonly"
            )
        );
    }

    #[test]
    fn mistakes_are_reported() {
        let disk = "[[vm.disk]]\nfile = \"one\"\nserved = true\n";
        let says = |text: &str, what: &str| {
            let said = read(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        says(&format!("[[vm]]\n{disk}"), "starts from its first disk");
        says(&format!("[[vm]]\nkernel = \"debian\"\nnested = true\n{disk}"), "can't be served to a virtual machine with an EL2");
        says(&format!("[[vm]]\nname = \"storage\"\nkernel = \"debian\"\n{disk}"), "is called \"storage\"");
        says(&format!("[[vm]]\nkernel = \"debian\"\n{}", disk.repeat(9)), "9 disks and networks");
        says(&format!("[[vm]]\nkernel = \"debian\"\n{}[[vm]]\nkernel = \"debian\"\n{}", disk.repeat(5), disk.repeat(5)), "10 served disks");
        let other = format!("[machine]\narch = \"x86_64\"\n[[vm]]\nkernel = \"debian\"\n{disk}");
        says(&other, "no disks and networks yet");
    }
}
