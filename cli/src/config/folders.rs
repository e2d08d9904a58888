//! Folders of this machine that virtual machines share.

use std::path::Path;

use super::draft::{FolderDraft, Given};
use super::{Arch, DebianKernel, KernelSource, Mistake, Place};
use crate::disk::folder::{Folder, TAG, default_tag, is_tag};

impl From<&Folder> for FolderDraft {
    /// A folder of the command line.
    fn from(folder: &Folder) -> Self {
        let place = Place::Flag("--share");
        let given = |text: &str| Some(Given::new(text.to_owned(), place.clone()));
        let (read_only, served) = (folder.read_only, folder.served);
        Self { path: given(&folder.path.to_string_lossy()), read_only, tag: given(&folder.tag), served, place: place.clone() }
    }
}

/// The folder, with a path relative to `base`, or to the current folder if it is the command line's.
fn folder(draft: &FolderDraft, base: &Path, mistakes: &mut Vec<Mistake>) -> Option<Folder> {
    let Some(given) = draft.path.as_ref().filter(|given| !given.value.is_empty()) else {
        mistakes.push(Mistake::new(draft.place.clone(), "this shared folder has no path").expected("path = a folder"));
        return None;
    };
    let path = match given.place {
        Place::Flag(_) => Path::new(&given.value).to_owned(),
        _ => base.join(&given.value),
    };
    if let Some(tag) = draft.tag.as_ref().filter(|tag| !is_tag(&tag.value)) {
        mistakes.push(Mistake::new(tag.place.clone(), format!("\"{}\" can't be a tag", tag.value)).expected(TAG));
        return None;
    }
    let tag = draft.tag.as_ref().map_or_else(|| default_tag(&path), |tag| tag.value.clone());
    let folder = Folder { path, read_only: draft.read_only, tag, served: draft.served };
    match folder.problem() {
        Some((what, expected)) => {
            mistakes.push(Mistake::new(given.place.clone(), what).expected(expected));
            None
        }
        None => Some(folder),
    }
}

/// Resolves the folders of a virtual machine with this kernel.
pub fn resolve(drafts: &[FolderDraft], arch: Arch, kernel: &KernelSource, base: &Path, mistakes: &mut Vec<Mistake>) -> Vec<Folder> {
    // A misspelt kernel counts as the newest one: with other mistakes, the kernel is not judged.
    if let (KernelSource::Debian(which), true) = (kernel, mistakes.is_empty())
        && let Some(first) = drafts.iter().find(|draft| !which.has_folders(arch, draft.served))
    {
        let name = if *which == DebianKernel::Newest { "newest kernel" } else { "kernel of this name" };
        let what = format!("Debian's {name} is one for clouds, which has no file system for shared folders");
        let words = DebianKernel::with_folders(arch, first.served).map(|kernel| format!("kernel = \"{}\"", kernel.word()));
        mistakes.push(Mistake::new(first.place.clone(), what).expected(words.collect::<Vec<_>>().join(" or ")));
    }
    let mut folders: Vec<Folder> = Vec::new();
    for draft in drafts {
        let Some(folder) = folder(draft, base, mistakes) else { continue };
        if folders.iter().any(|other| other.tag == folder.tag) {
            let place = draft.tag.as_ref().map_or(&draft.place, |tag| &tag.place);
            let what = format!("another shared folder of this virtual machine has the tag \"{}\"", folder.tag);
            mistakes.push(Mistake::new(place.clone(), what).expected("a tag of its own"));
        }
        folders.push(folder);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, MachineConfig};
    use super::*;

    fn read(text: &str, base: &Path, flags: &Flags) -> Result<MachineConfig, String> {
        MachineConfig::from_text("machine.toml", text, base, flags).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a b")).unwrap();
        let vm = |name: &str, kernel: &str| format!("[[vm]]\nname = \"{name}\"\nkernel = \"{kernel}\"\n[[vm.share]]\npath = \"a b\"\n");
        let second = "[[vm.net]]\n[[vm.share]]\npath = \".\"\nreadonly = true\ntag = \"all\"\n";
        let text = vm("one", "debian:6.1") + second + &vm("two", "debian:6.12");
        let config = read(&text, dir.path(), &Flags::default()).unwrap();
        let folder = |path: &str, read_only, tag: &str| Folder { path: dir.path().join(path), read_only, tag: tag.into(), served: false };
        assert_eq!(config.vms[0].folders, [folder("a b", false, "a-b"), folder(".", true, "all")]);
        assert_eq!(config.vms[1].folders, [folder("a b", false, "a-b")]);
        let devices = |vm: usize| config.vms[vm].functions.iter().map(|function| function.device()).collect::<Vec<_>>();
        assert_eq!((devices(0), devices(1)), (vec![1, 2, 3], vec![4]));
    }

    #[test]
    fn folders_of_the_command_line_are_added() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::parse(&format!("{},tag=x", dir.path().display())).unwrap();
        let flags = Flags { shares: vec![folder.clone()], ..Flags::default() };
        let config = read("[[vm]]\nkernel = \"debian:6.1\"\n", Path::new("/nowhere"), &flags).unwrap();
        assert_eq!(config.vms[0].folders, [folder]);
    }

    #[test]
    fn mistakes_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let says = |kernel: &str, share: &str, what: &str| {
            let text = format!("[[vm]]\nkernel = \"{kernel}\"\n[[vm.share]]\n{share}\n");
            let said = read(&text, dir.path(), &Flags::default()).unwrap_err();
            assert!(said.contains(what), "{said}");
        };
        let old = "debian:6.1";
        says(old, "readonly = true", "this shared folder has no path");
        says(old, "path = \"none\"", "none\" does not exist");
        says(old, "path = \"file\"", "file\" is not a folder");
        says(old, "path = \".\"\ntag = \"a b\"", "\"a b\" can't be a tag");
        says(old, "paht = \".\"", "unknown key \"paht\" in [[vm.share]]");
        says(old, "path = \".\"\n[[vm.share]]\npath = \".\"", "has the tag");
        says(old, &format!("path = \".\"\n{}", "[[vm.net]]\n".repeat(8)), "there are 9 disks, networks and shared folders");
        says("debian", "path = \".\"", "no file system for shared folders");
        let nested = "debian:6.1\"\nnested = true #";
        says(nested, "path = \".\"", "can't be assigned to a virtual machine with an EL2");
        let pc = |cpu: &str, kernel: &str, share: &str| {
            let text = format!("[machine]\narch = \"x86_64\"\n{cpu}\n[[vm]]\nkernel = \"{kernel}\"\n[[vm.share]]\npath = \".\"\n{share}\n");
            read(&text, dir.path(), &Flags::default())
        };
        assert!(pc("", old, "").unwrap_err().contains("with VMX have no disks (other than in memory), networks and shared folders yet"));
        let (amd, served) = ("cpu = \"max\"", "served = true");
        assert!(pc(amd, old, "").unwrap_err().contains("no file system for shared folders; expected kernel = \"debian-general\""));
        assert!(pc(amd, "debian:6.12", served).unwrap_err().contains("expected kernel = \"debian-general\" or kernel = \"debian:6.1\""));
        assert_eq!(pc(amd, "debian-general", "").unwrap().vms[0].functions[0].device(), 2);
        let config = pc(amd, old, served).unwrap();
        assert_eq!(config.vms[1].kernel, KernelSource::Debian(DebianKernel::General));
    }
}
