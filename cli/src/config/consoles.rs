//! Consoles of virtual machines whose output goes to files of this machine.

use std::path::Path;

use super::draft::{ServedDraft, VmDraft};
use super::served::{CONSOLE, added, device_name};
use super::{Mistake, Place, VmConfig};
use crate::disk::folder::Folder;

/// Gives a file to each virtual machine whose console the VM `service` serves: in the folder of the configuration, relative to `base`, or to
/// the current one if it is the command line's. `drafts` are in the order of `vms`.
pub fn assign(drafts: &[VmDraft], vms: &mut [VmConfig], base: &Path, mistakes: &mut Vec<Mistake>) {
    let is_console = |served: &&ServedDraft| added(served) == Some(CONSOLE);
    for (draft, vm) in drafts.iter().zip(vms.iter_mut()) {
        for other in draft.served.iter().filter(|served| added(served).is_some() && !is_console(served)) {
            if let Some(folder) = &other.folder {
                let device = other.device.as_ref().map_or("", |device| &device.value);
                let what = format!("a device of type \"{device}\" has no folder");
                let expected = format!("device = \"{}\", or [[vm.share]] for a folder", device_name(CONSOLE));
                mistakes.push(Mistake::new(folder.place.clone(), what).expected(expected));
            }
        }
        let mut consoles = draft.served.iter().filter(is_console);
        let Some(first) = consoles.next() else { continue };
        if let Some(second) = consoles.next() {
            let what = format!("\"{}\" has two served consoles", vm.name);
            mistakes.push(Mistake::new(second.place.clone(), what).expected("one, whose file has its name"));
        }
        let Some(given) = first.folder.as_ref().filter(|given| !given.value.is_empty()) else {
            let what = "nobody serves this console, and its output has no folder";
            let expected = "folder = a folder for the file, or by = the name of another virtual machine";
            mistakes.push(Mistake::new(first.place.clone(), what).expected(expected));
            continue;
        };
        let path = match given.place {
            Place::Flag(_) => Path::new(&given.value).to_owned(),
            _ => base.join(&given.value),
        };
        let folder = Folder { path, read_only: false, tag: String::new(), served: false };
        match folder.problem() {
            Some((what, expected)) => mistakes.push(Mistake::new(given.place.clone(), what).expected(expected)),
            None => vm.console = Some(folder.path.join(format!("{}.log", vm.name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::service::served_again;
    use super::super::{Flags, MachineConfig};

    fn read(text: &str, base: &Path) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, base, &Flags::default()).map_err(|mistakes| mistakes.to_string())
    }

    fn vm(name: &str, more: &str) -> String {
        format!("[[vm]]\nname = \"{name}\"\nkernel = \"debian\"\n[[vm.served]]\ndevice = \"console\"\n{more}\n")
    }

    #[test]
    fn each_console_has_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        for folder in ["one", "two"] {
            std::fs::create_dir(dir.path().join(folder)).expect("a folder");
        }
        let text = [("a", "one"), ("b", "two"), ("c", "one")].map(|(name, folder)| vm(name, &format!("folder = \"{folder}\"")));
        let config = read(&text.concat(), dir.path()).unwrap();
        assert_eq!(config.vms[2].console, Some(dir.path().join("one/c.log")));
        let exec = config.vms[3].exec.as_deref().expect("a command");
        assert!(
            exec.ends_with(&served_again(" console=/mnt/folder0/a.log console=/mnt/folder1/b.log console=/mnt/folder0/c.log")),
            "{exec}"
        );
        let folders: Vec<_> = config.vms[3].folders.iter().map(|folder| (&folder.tag[..], &folder.path)).collect();
        assert_eq!(folders, [("folder0", &dir.path().join("one")), ("folder1", &dir.path().join("two"))]);
    }

    #[test]
    fn mistakes_are_reported() {
        let says = |text: &str, what: &str| {
            let said = read(text, Path::new("/")).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        says(&vm("a", ""), "its output has no folder");
        says(&vm("a", "folder = \"no-such-folder\""), "the folder \"/no-such-folder\" does not exist");
        says(&vm("a", "folder = \"tmp\"\n[[vm.served]]\ndevice = \"console\""), "\"a\" has two served consoles");
        says(&vm("a", "folder = \"tmp\"\n[[vm.served]]\ndevice = \"rng\"\nfolder = \"tmp\""), "a device of type \"rng\" has no folder");
        let by = "by = \"s\"\nfolder = \"tmp\"\n[[vm]]\nname = \"s\"\nkernel = \"debian\"\nexec = \"stile-devices console=/tmp/a\"";
        says(&vm("a", by), "only a console that the VM `service` serves has a folder here");
    }
}
