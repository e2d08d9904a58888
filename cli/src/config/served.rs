//! Virtio devices of virtual machines that other virtual machines serve.

use stile_blob::{Nested, Served};
use stile_board::MAX_SERVED;

use super::devices::MACHINES_WITH_FUNCTIONS;
use super::draft::{Given, ServedDraft};
use super::{Arch, KernelSource, Mistake, Place, VmConfig};

/// Type of a network card (Virtio 1.2, section 5.1).
pub const NET: u32 = 1;
/// Type of a block device (Virtio 1.2, section 5.2).
pub const BLOCK: u32 = 2;
/// Type of a console (Virtio 1.2, section 5.3).
pub const CONSOLE: u32 = 3;
/// Type of an entropy device (Virtio 1.2, section 5.4).
pub(super) const RNG: u32 = 4;
/// Type of a traditional memory balloon (Virtio 1.2, section 5.5).
pub(super) const BALLOON: u32 = stile_blob::BALLOON;
/// Type of a socket device (Virtio 1.2, section 5.10).
pub const VSOCK: u32 = 19;
/// Type of a file system device (Virtio 1.2, section 5.11).
pub const FS: u32 = 26;
/// Types of devices (Virtio 1.2, section 5): their names, and the begins of the arguments of `stile-devices`.
const DEVICES: [(&str, u32, &str); 7] = [
    ("net", NET, "net="),
    ("block", BLOCK, "block="),
    ("console", CONSOLE, "console="),
    ("rng", RNG, "rng"),
    ("balloon", BALLOON, "balloon="),
    ("vsock", VSOCK, "vsock="),
    ("fs", FS, "fs="),
];

/// Random bytes: a device of the command line.
pub fn random_bytes() -> ServedDraft {
    let place = Place::Flag("--rng");
    let device = Some(Given::new("rng".to_owned(), place.clone()));
    ServedDraft { device, by: None, cid: None, folder: None, forwards: Vec::new(), place }
}

/// A console whose output goes to a file in a folder: a device of the command line.
pub fn console(folder: &str) -> ServedDraft {
    let place = Place::Flag("--console");
    let given = |text: &str| Some(Given::new(text.to_owned(), place.clone()));
    ServedDraft { device: given(device_name(CONSOLE)), by: None, cid: None, folder: given(folder), forwards: Vec::new(), place }
}

/// Sockets that ports of this machine lead to: a device of the command line. `forwards` are as in the configuration.
pub fn sockets(forwards: &[String]) -> ServedDraft {
    let place = Place::Flag("--vsock");
    let given = |text: &str| Given::new(text.to_owned(), place.clone());
    let forwards = forwards.iter().map(|forward| given(forward)).collect();
    ServedDraft { device: Some(given(device_name(VSOCK))), by: None, cid: None, folder: None, forwards, place }
}

/// Type of a device that the virtual machine serves that `stile run` adds: random bytes, sockets or a console that no
/// other one is to serve.
pub fn added(draft: &ServedDraft) -> Option<u32> {
    let device = draft.device.as_ref().filter(|_| draft.by.is_none())?;
    [RNG, VSOCK, CONSOLE].into_iter().find(|added| device_name(*added) == device.value)
}

/// Name of a type of device.
pub fn device_name(device: u32) -> &'static str {
    DEVICES.iter().find(|(_, number, _)| *number == device).map_or("unknown", |(name, ..)| name)
}

/// Resolves the served devices of all virtual machines, whose drafts are in the same order.
pub fn resolve(drafts: &[&[ServedDraft]], arch: Arch, is_vmx: bool, vms: &mut [VmConfig], mistakes: &mut Vec<Mistake>) {
    let servers: Vec<usize> = drafts.iter().flat_map(|served| served.iter()).filter_map(|draft| server_of(draft, vms)).collect();
    for (index, served) in drafts.iter().enumerate() {
        if let (true, Some(draft)) = (is_vmx, served.iter().find(|draft| added(draft).is_some())) {
            let what = "`stile run` adds no server to machines with VMX yet";
            let expected = format!("by = the name of another virtual machine, or {MACHINES_WITH_FUNCTIONS}");
            mistakes.push(Mistake::new(draft.place.clone(), what).expected(expected));
        }
        if let Some(extra) = served.get(MAX_SERVED) {
            let what = format!("there are {} served devices", served.len());
            mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_SERVED}")));
        }
        for draft in served.iter().filter(|draft| added(draft).is_none()) {
            let Some(device) = device(draft, mistakes) else { continue };
            if device == BALLOON && arch == Arch::X86_64 {
                let what = "virtual machines on x86_64 have no balloons yet";
                mistakes.push(Mistake::new(draft.place.clone(), what).expected("arch = \"aarch64\" in [machine]"));
            }
            if let Some(cid) = &draft.cid {
                let what = "only sockets that the VM `service` serves have a cid here";
                let expected = "device = \"vsock\" without `by`; a server of your own gets it as an argument, such as vsock=3";
                mistakes.push(Mistake::new(cid.place.clone(), what).expected(expected));
            }
            if let Some(forward) = draft.forwards.first() {
                let what = "only sockets that the VM `service` serves have forwarded ports here";
                let expected = "device = \"vsock\" without `by`; a server of your own gets them as an argument, such as forward=2222:3:22";
                mistakes.push(Mistake::new(forward.place.clone(), what).expected(expected));
            }
            if let Some(folder) = &draft.folder {
                let what = "only a console that the VM `service` serves has a folder here";
                let expected =
                    "device = \"console\" without `by`; a server of your own gets a file as an argument, such as console=/tmp/log";
                mistakes.push(Mistake::new(folder.place.clone(), what).expected(expected));
            }
            let Some(server) = server(draft, index, &servers, vms, mistakes) else { continue };
            let number = usize::from(vms[server].serves);
            if let Some((what, expected)) = refused(device, &vms[server], number) {
                mistakes
                    .push(Mistake::new(draft.device.as_ref().map_or(&draft.place, |given| &given.place).clone(), what).expected(expected));
            }
            vms[index].served.push(Served { device, server: server as u8 });
            let balloon = |vm: &VmConfig| vm.served.iter().any(|served| served.device == BALLOON && usize::from(served.server) == server);
            let others = vms.iter().enumerate().filter(|(_, vm)| vm.served.iter().any(|served| usize::from(served.server) == server));
            if others.clone().count() > 1 && others.clone().any(|(_, vm)| balloon(vm)) {
                let what = format!("\"{}\" serves a balloon, and other virtual machines beside that one", vms[server].name);
                // An access of the server's to RAM that its client gave back may be an external abort, which can end the server.
                mistakes.push(Mistake::new(draft.place.clone(), what).expected("a server of its own for each client with a balloon"));
            }
            vms[server].serves += 1;
            if usize::from(vms[server].serves) == MAX_SERVED + 1 {
                let what = format!("\"{}\" serves more than {MAX_SERVED} devices", vms[server].name);
                mistakes.push(Mistake::new(draft.place.clone(), what).expected("another server"));
            }
        }
    }
}

fn server_of(draft: &ServedDraft, vms: &[VmConfig]) -> Option<usize> {
    let by = draft.by.as_ref()?;
    vms.iter().position(|vm| vm.name == by.value)
}

fn device(draft: &ServedDraft, mistakes: &mut Vec<Mistake>) -> Option<u32> {
    let known = || DEVICES.map(|(name, ..)| format!("\"{name}\"")).join(", ");
    let Some(given) = &draft.device else {
        let what = "this served device has no type";
        mistakes.push(Mistake::new(draft.place.clone(), what).expected(format!("device = {}", known())));
        return None;
    };
    let found = DEVICES.iter().find(|(name, ..)| *name == given.value).map(|(_, number, _)| *number);
    if found.is_none() {
        let what = format!("unknown type of device \"{}\"", given.value);
        mistakes.push(Mistake::new(given.place.clone(), what).expected(known()));
    }
    found
}

/// Returns the reason for which `stile-devices` does not serve a server's device, its number `number`, and a device that it serves; `None`
/// if it serves it, or if that can't be told.
fn refused(device: u32, server: &VmConfig, number: usize) -> Option<(String, String)> {
    let command = server.exec.as_deref().filter(|_| matches!(server.kernel, KernelSource::Debian(_)))?;
    let (name, by) = (device_name(device), &server.name);
    let words = command.split_once("stile-devices ")?.1.split_whitespace();
    let (.., begin) = DEVICES.iter().find(|(_, number, _)| *number == device)?;
    // Up to the end of the command.
    let ends = |word: &&str| !word.starts_with(['|', ';', '&', ')', '>', '<']);
    let arguments: Vec<&str> = words.take_while(ends).map(|word| word.trim_end_matches([';', ')'])).collect();
    // The shell can make any arguments of these.
    if arguments.iter().any(|word| word.contains(['$', '`', '\'', '"', '*', '{'])) {
        return None;
    }
    let what = match arguments.get(number) {
        Some(argument) if argument.starts_with(begin) => return None,
        Some(argument) => format!("\"{by}\" serves this device, its number {number}, by \"{argument}\", which is none of type \"{name}\""),
        None => format!("stile-devices, which \"{by}\" runs, has no argument for this device, its number {number}"),
    };
    Some((what, format!("arguments of stile-devices in the order of the devices; this one's begins with {begin}")))
}

/// The virtual machine that serves a device to number `client`; `servers` are all that serve any.
fn server(draft: &ServedDraft, client: usize, servers: &[usize], vms: &[VmConfig], mistakes: &mut Vec<Mistake>) -> Option<usize> {
    let Some(by) = &draft.by else {
        let what = "nobody serves this device";
        mistakes.push(Mistake::new(draft.place.clone(), what).expected("by = the name of another virtual machine"));
        return None;
    };
    let mut refuse = |what: String, expected: &str| {
        mistakes.push(Mistake::new(by.place.clone(), what).expected(expected));
        None
    };
    let Some(server) = server_of(draft, vms) else {
        return refuse(format!("there is no virtual machine \"{}\"", by.value), "the name of another virtual machine");
    };
    if server == client {
        return refuse("a virtual machine can't serve itself".to_owned(), "the name of another virtual machine");
    }
    if servers.contains(&client) {
        return refuse(format!("\"{}\" serves others, and can't be served itself", vms[client].name), "a server without served devices");
    }
    for vm in [&vms[client], &vms[server]] {
        if vm.techniques.nested != Nested::Off {
            return refuse(format!("\"{}\" has an EL2 of its own, and can't serve or be served devices", vm.name), "nested = false");
        }
    }
    Some(server)
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
    fn a_server_is_named() {
        let served = "[[vm.served]]\ndevice = \"block\"\nby = \"server\"\n";
        let text = format!(
            "[[vm]]\nname = \"one\"\nkernel = \"debian\"\n{served}[[vm]]\nname = \"server\"\nkernel = \"debian\"\n\
             [[vm]]\nname = \"two\"\nkernel = \"debian\"\n{served}[[vm.served]]\ndevice = \"net\"\nby = \"server\"\n"
        );
        let config = read(&text).unwrap();
        let [one, server, two] = &config.vms[..] else { panic!("three VMs") };
        assert_eq!(one.served, [Served { device: 2, server: 1 }]);
        assert_eq!(two.served, [Served { device: 2, server: 1 }, Served { device: 1, server: 1 }]);
        assert_eq!((one.serves, server.serves), (0, 3));
    }

    #[test]
    fn mistakes_are_reported_with_their_places() {
        let says = |served: &str, more: &str, what: &str| {
            let served = format!("[[vm.served]]\n{served}\n");
            let other = "[[vm]]\nname = \"other\"\nkernel = \"debian\"\n";
            let said = read(&format!("[[vm]]\nname = \"one\"\nkernel = \"debian\"\n{served}{other}{more}")).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        says("device = \"block\"", "", "nobody serves this device");
        says("by = \"other\"", "", "has no type");
        let by = |exec: &str| format!("[[vm]]\nname = \"s\"\nkernel = \"debian\"\nexec = \"{exec}\"\n");
        let serves = |device: &str| format!("device = \"{device}\"\nby = \"s\"");
        says(&serves("rng"), &by("stile-devices ; true"), "has no argument for this device, its number 0");
        says(&serves("rng"), &by("stile-devices block=/dev/vda"), "by \"block=/dev/vda\", which is none of type \"rng\"");
        says("device = \"tape\"\nby = \"other\"", "", "unknown type of device \"tape\"");
        says("device = \"block\"\nby = \"another\"", "", "there is no virtual machine \"another\"");
        says("device = \"block\"\nby = \"one\"", "", "can't serve itself");
        says("device = \"block\"\nby = \"other\"", "[[vm.served]]\ndevice = \"block\"\nby = \"one\"\n", "serves others");
        says("device = \"block\"\nby = \"other\"", "nested = true\n", "has an EL2 of its own");
        let other = "[[vm.served]]\ndevice = \"balloon\"\nby = \"s\"\n";
        says(
            "device = \"block\"\nby = \"s\"",
            &format!("{other}[[vm]]\nname = \"s\"\nkernel = \"debian\"\n"),
            "serves a balloon, and other",
        );
        let of_pc = |cpu: &str, device: &str| {
            let text = format!(
                "[machine]\narch = \"x86_64\"\n{cpu}\n[[vm]]\nname = \"one\"\nkernel = \"debian\"\n[[vm.served]]\n{device}\n\
                 [[vm]]\nname = \"s\"\nkernel = \"debian\"\n"
            );
            read(&text)
        };
        let (vmx, amd) = ("", "cpu = \"max\"");
        assert!([vmx, amd].iter().all(|cpu| of_pc(cpu, &serves("block")).is_ok()));
        assert_eq!(of_pc(amd, "device = \"rng\"").unwrap().vms[2].serves, 1);
        assert!(of_pc(vmx, "device = \"rng\"").unwrap_err().contains("adds no server to machines with VMX"));
        assert!(of_pc(amd, "device = \"console\"\nfolder = \"/\"").unwrap().vms[0].console.is_some());
        assert!(of_pc(amd, &serves("balloon")).unwrap_err().contains("no balloons yet"));
        let nine = "device = \"block\"\nby = \"other\"\n[[vm.served]]\n".repeat(9) + "device = \"block\"\nby = \"other\"";
        says(&nine, "", "there are 10 served devices");
    }
}
