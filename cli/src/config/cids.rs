//! Addresses of virtual machines for their sockets: CIDs (Virtio 1.2, section 5.10.4).

use super::draft::{Given, ServedDraft, VmDraft};
use super::served::{VSOCK, added, device_name};
use super::{Mistake, VmConfig};

/// The first address that a virtual machine may have: lower ones are the host's, or reserved.
const FIRST: u32 = 3;
/// The highest one: the next one stands for any.
const LAST: u32 = u32::MAX - 1;

/// Gives an address to each virtual machine whose sockets the VM `service` serves: the configuration's, or the lowest that is free. `drafts`
/// are in the order of `vms`.
pub fn assign(drafts: &[VmDraft], vms: &mut [VmConfig], mistakes: &mut Vec<Mistake>) {
    let is_socket = |served: &&ServedDraft| added(served) == Some(VSOCK);
    let mut taken: Vec<u32> = Vec::new();
    for (draft, vm) in drafts.iter().zip(vms.iter_mut()) {
        for other in draft.served.iter().filter(|served| added(served).is_some() && !is_socket(served)) {
            if let Some(cid) = &other.cid {
                let device = other.device.as_ref().map_or("", |device| &device.value);
                let what = format!("a device of type \"{device}\" has no cid");
                mistakes.push(Mistake::new(cid.place.clone(), what).expected(format!("device = \"{}\"", device_name(VSOCK))));
            }
        }
        for forward in draft.served.iter().filter(|served| added(served).is_some() && !is_socket(served)).flat_map(|other| &other.forwards)
        {
            let expected = format!("device = \"{}\"; ports of a network are those of [[vm.net]]", device_name(VSOCK));
            mistakes.push(Mistake::new(forward.place.clone(), "only sockets have forwarded ports here").expected(expected));
        }
        let mut sockets = draft.served.iter().filter(is_socket);
        let Some(first) = sockets.next() else { continue };
        if let Some(second) = sockets.next() {
            let what = format!("\"{}\" has two devices for sockets", vm.name);
            mistakes.push(Mistake::new(second.place.clone(), what).expected("one, which has all connections"));
        }
        let Some(Given { value, place }) = &first.cid else { continue };
        match u32::try_from(*value).ok().filter(|cid| (FIRST..=LAST).contains(cid)) {
            None => mistakes.push(Mistake::new(place.clone(), format!("cid: {value} is out of range ({FIRST} to {LAST})"))),
            Some(cid) if taken.contains(&cid) => {
                mistakes.push(Mistake::new(place.clone(), format!("another virtual machine has the cid {cid}")).expected("one of its own"));
            }
            Some(cid) => {
                vm.cid = Some(cid);
                taken.push(cid);
            }
        }
    }
    for (_, vm) in drafts.iter().zip(vms).filter(|(draft, _)| draft.served.iter().any(|served| is_socket(&served) && served.cid.is_none()))
    {
        let free = (FIRST..=LAST).find(|cid| !taken.contains(cid));
        vm.cid = free;
        taken.extend(free);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::service::served_again;
    use super::super::{Flags, MachineConfig};

    fn read(text: &str) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, Path::new("/"), &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    fn vm(name: &str, cid: &str) -> String {
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n[[vm.served]]\ndevice = \"vsock\"\n{cid}\n")
    }

    #[test]
    fn each_virtual_machine_has_an_address() {
        let config = read(&[vm("a", ""), vm("b", "cid = 3"), vm("c", "cid = 4294967294"), vm("d", "")].concat()).unwrap();
        let cids: Vec<_> = config.vms.iter().map(|vm| vm.cid).collect();
        assert_eq!(cids, [Some(4), Some(3), Some(4_294_967_294), Some(5), None]);
        assert_eq!(config.vms[4].exec.as_deref(), Some(&served_again(" vsock=4 vsock=3 vsock=4294967294 vsock=5")[..]));
    }

    #[test]
    fn mistakes_are_reported() {
        let says = |text: &str, what: &str| {
            let said = read(text).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        says(&vm("a", "cid = 2"), "cid: 2 is out of range (3 to 4294967294)");
        says(&vm("a", "cid = 4294967295"), "is out of range");
        says(&[vm("a", "cid = 7"), vm("b", "cid = 7")].concat(), "another virtual machine has the cid 7");
        says(&vm("a", "[[vm.served]]\ndevice = \"vsock\""), "\"a\" has two devices for sockets");
        says(&vm("a", "[[vm.served]]\ndevice = \"rng\"\ncid = 3"), "a device of type \"rng\" has no cid");
        let by = "by = \"s\"\ncid = 3\n[[vm]]\nname = \"s\"\nkernel = \"debian\"\nexec = \"stile-devices vsock=3\"";
        says(&vm("a", by), "only sockets that the VM `service` serves have a cid here");
    }
}
