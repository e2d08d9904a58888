//! Changes for which a virtual machine is rebuilt: of its kernel, initial RAM file system, disks in memory, command line,
//! memory and vCPUs.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use stile_board::MAX_VCPUS;
use stile_board::memory_disks::MAX_MEMORY_DISKS;

use crate::draft::{Given, VmDraft, changed};
use crate::{Mistake, Place, memory_disk, value};

/// RAM of a virtual machine without a size in its configuration, in bytes.
pub const DEFAULT_MEMORY: u64 = 512 << 20;

/// A virtual machine to rebuild or to add. Fields without a new value keep the image's; an added one has all values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remake {
    /// Its number in the image; those of added ones follow.
    pub vm: usize,
    /// Its name.
    pub name: String,
    /// Place of its first new value.
    pub place: Place,
    /// The kernel's file on the boot medium.
    pub kernel: Option<Given<String>>,
    /// The new initial RAM file system: a file on the boot medium; `Some(None)` removes the image's.
    pub initrd: Option<Option<Given<String>>>,
    /// Whether it is given an initial RAM file system by a file's name, or by a word that only `stile` knows.
    pub has_initrd: bool,
    /// The file on the boot medium of each disk in memory. `None`, or beyond the end: the image's.
    pub disks: Vec<Option<Given<String>>>,
    /// The part of the command line that the configuration gives.
    pub append: Append,
    /// RAM in bytes.
    pub memory: Option<Given<u64>>,
    /// Number of vCPUs.
    pub vcpus: Option<Given<u16>>,
}

impl Remake {
    /// The files on the boot medium that it names.
    pub fn files(&self) -> impl Iterator<Item = &Given<String>> {
        self.kernel.iter().chain(self.initrd.iter().flatten()).chain(self.disks.iter().flatten())
    }
}

/// The end of a kernel's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Append {
    /// In the image.
    pub old: String,
    /// From now on.
    pub new: String,
    /// Place of the latter, if they differ.
    pub place: Option<Place>,
}

impl Append {
    /// The whole command line, of which the image's is `line`. `None` if that does not end as the image's configuration says: an
    /// option of the command decided.
    pub fn apply(&self, line: &str) -> Option<String> {
        if self.place.is_none() {
            return Some(line.to_owned());
        }
        let before = line.strip_suffix(self.old.trim())?;
        Some(format!("{} {}", before.trim_end(), self.new).trim().to_owned())
    }
}

/// Whether a kernel's name is not that of a file: `stile` fetches, makes or finds such a kernel.
fn is_word(kernel: &str) -> bool {
    let is = |word: &str| kernel.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '-']));
    kernel == "disk" || kernel == "stile" || kernel.starts_with("stile:") || is("debian")
}

/// Whether an initial RAM file system's name is not that of a file.
fn is_initrd_word(initrd: &str) -> bool {
    matches!(initrd, "busybox" | "none")
}

/// The boot medium's file with the last part of a path as its name. Letters of ASCII in upper and lower case are the same, as on the medium.
fn find<'f>(path: &str, files: &[&'f str]) -> Option<&'f str> {
    let name = path.rsplit('/').next()?;
    files.iter().find(|file| file.eq_ignore_ascii_case(name)).copied()
}

/// Finds the changes of a virtual machine, in the drafts `new` and `old`, for which it is rebuilt; `None` without any. `files`: names of
/// the boot medium's files for virtual machines.
pub fn remake(
    (new, old): (&VmDraft, &VmDraft),
    vm: usize,
    name: &str,
    files: &[&str],
    keys: &mut Vec<String>,
    mistakes: &mut Vec<Mistake>,
) -> Option<Remake> {
    let before = mistakes.len();
    let kernel = kernel((new, old), files, mistakes);
    let initrd = initrd((new, old), kernel.is_some(), files, mistakes);
    let disks = disks((new, old), files, mistakes);
    let append = changed(&new.append, &old.append).map(|append| append.map_or_else(|| new.place.clone(), |given| given.place.clone()));
    new.append.iter().for_each(|given| value::no_nul(given, mistakes));
    let memory = changed(&new.memory, &old.memory).and_then(|given| match given {
        Some(given) => value::vm_memory(given, mistakes).map(|memory| Given::new(memory, given.place.clone())),
        None => Some(Given::new(DEFAULT_MEMORY, new.place.clone())),
    });
    let vcpus = changed(&new.vcpus, &old.vcpus).and_then(|given| match given {
        Some(given) => value::number(given, "vCPUs", 1, MAX_VCPUS, mistakes).map(|vcpus| Given::new(vcpus as u16, given.place.clone())),
        None => Some(Given::new(1, new.place.clone())),
    });
    let initrd_place = || initrd.as_ref().map(|given| given.as_ref().map_or_else(|| new.place.clone(), |given| given.place.clone()));
    let places = [
        ("kernel", kernel.as_ref().map(|given| given.place.clone())),
        ("initrd", initrd_place()),
        ("disk", disks.iter().flatten().next().map(|given| given.place.clone())),
        ("append", append.clone()),
        ("memory", memory.as_ref().map(|given| given.place.clone())),
        ("vcpus", vcpus.as_ref().map(|given| given.place.clone())),
    ];
    let mut first = None;
    for (key, place) in places.into_iter().filter_map(|(key, place)| Some((key, place?))) {
        let from = |given: &Given<String>| format!(", VMS\\{}", given.value);
        let file = match key {
            "kernel" => kernel.as_ref().map(from),
            "initrd" => initrd.iter().flatten().next().map(from),
            "disk" => Some(disks.iter().flatten().map(from).collect()),
            _ => None,
        };
        keys.push(format!("{name}: {key}{}", file.unwrap_or_default()));
        first.get_or_insert((key, place));
    }
    let (key, place) = first.filter(|_| mistakes.len() == before)?;
    if let Some(why) = obstacle(new, vcpus.is_some()) {
        mistakes
            .push(Mistake::new(place, format!("\"{key}\" can't be changed here, since the virtual machine has {why}")).expected(NEW_IMAGE));
        return None;
    }
    let text = |draft: &VmDraft| draft.append.as_ref().map(|given| given.value.clone()).unwrap_or_default();
    Some(Remake {
        vm,
        name: name.to_owned(),
        place,
        kernel,
        initrd,
        has_initrd: new.initrd.as_ref().is_some_and(|given| given.value != "none"),
        disks,
        append: Append { old: text(old), new: text(new), place: append },
        memory,
        vcpus,
    })
}

/// Returns a virtual machine to add to those of the image (`known`); `None` if it has mistakes, such as a kernel that is not a file of the
/// boot medium. `files`: as for [`remake`].
pub fn added(new: &VmDraft, vm: usize, name: &str, (files, known): (&[&str], &[String]), mistakes: &mut Vec<Mistake>) -> Option<Remake> {
    let before = mistakes.len();
    let kernel = new.kernel.as_ref().and_then(|given| file("kernel", given, is_word(&given.value), files, mistakes));
    if kernel.is_none() {
        let what = format!("the image has no virtual machine \"{name}\"");
        let expected = format!("one of \"{}\", or for a new one a kernel in the folder VMS", known.join("\", \""));
        let mistake = Mistake::new(new.place_of_name().clone(), what).expected(expected);
        mistakes.insert(before, mistake.similar_among(name, known.iter().map(|name| &name[..])));
    }
    let initrd = new.initrd.as_ref().filter(|given| given.value != "none");
    let initrd = initrd.and_then(|given| file("initrd", given, is_initrd_word(&given.value), files, mistakes));
    if let Some(extra) = new.disks.get(MAX_MEMORY_DISKS) {
        let what = format!("there are {} disks", new.disks.len());
        mistakes.push(Mistake::new(extra.place.clone(), what).expected(format!("at most {MAX_MEMORY_DISKS}")));
    }
    let mut disks = Vec::new();
    for disk in &new.disks {
        if !disk.in_memory {
            let what = "this disk is not in memory: others can't be added here";
            mistakes.push(Mistake::new(disk.place.clone(), what).expected("in_memory = true, or a new image by `stile image`"));
        }
        memory_disk::check(disk, mistakes);
        match &disk.file {
            Some(given) => disks.push(file("disk", given, false, files, mistakes)),
            None => mistakes.push(Mistake::new(disk.place.clone(), "this disk has no image").expected("file = a file in the folder VMS")),
        }
    }
    new.append.iter().for_each(|given| value::no_nul(given, mistakes));
    let memory = match &new.memory {
        Some(given) => value::vm_memory(given, mistakes).map(|memory| Given::new(memory, given.place.clone())),
        None => Some(Given::new(DEFAULT_MEMORY, new.place.clone())),
    };
    let vcpus = match &new.vcpus {
        Some(given) => value::number(given, "vCPUs", 1, MAX_VCPUS, mistakes).map(|vcpus| Given::new(vcpus as u16, given.place.clone())),
        None => Some(Given::new(1, new.place.clone())),
    };
    if mistakes.len() != before {
        return None;
    }
    let append = Append {
        old: String::new(),
        new: new.append.as_ref().map(|given| given.value.clone()).unwrap_or_default(),
        place: new.append.as_ref().map(|given| given.place.clone()),
    };
    let has_initrd = initrd.is_some();
    Some(Remake {
        vm,
        name: name.to_owned(),
        place: new.place.clone(),
        kernel,
        initrd: Some(initrd),
        has_initrd,
        disks,
        append,
        memory,
        vcpus,
    })
}

/// Returns the file on the boot medium that an added virtual machine's key names. `is_word`: the value is a word that only `stile` knows.
fn file(key: &str, given: &Given<String>, is_word: bool, files: &[&str], mistakes: &mut Vec<Mistake>) -> Option<Given<String>> {
    const EXPECTED: &str = "a file in the folder VMS, or a new image by `stile image`";
    let found = find(&given.value, files).filter(|_| !is_word);
    match found {
        Some(file) => return Some(Given::new(file.to_owned(), given.place.clone())),
        None if is_word => {
            let what = format!("the {key} \"{}\" is not available at boot: only `stile` provides it", given.value);
            mistakes.push(Mistake::new(given.place.clone(), what).expected(EXPECTED));
        }
        None => mistakes.push(missing(given, files, EXPECTED)),
    }
    None
}

const NEW_IMAGE: &str = "the image's value, or a new image by `stile image`";

/// Whether others serve a virtual machine devices.
pub fn is_served(vm: &VmDraft) -> bool {
    !vm.served.is_empty()
        || vm.folders.iter().any(|folder| folder.served)
        || vm.disks.iter().any(|disk| disk.served)
        || vm.networks.iter().any(|network| network.served)
}

/// A feature of a virtual machine that only `stile` can rebuild.
fn obstacle(vm: &VmDraft, has_other_vcpus: bool) -> Option<&'static str> {
    match () {
        () if is_served(vm) => Some("served devices"),
        () if !vm.domains.is_empty() => Some("domains"),
        () if has_other_vcpus && vm.topology.is_some() => Some("a topology"),
        () => None,
    }
}

/// The kernel's file on the boot medium, if it is there.
fn kernel((new, old): (&VmDraft, &VmDraft), files: &[&str], mistakes: &mut Vec<Mistake>) -> Option<Given<String>> {
    let (given, old) = match (&new.kernel, &old.kernel) {
        (Some(given), Some(old)) => (given, old),
        (None, None) => return None,
        (Some(given), None) => {
            let what = "\"kernel\" can't be added here: the image was made without it";
            mistakes.push(Mistake::new(given.place.clone(), what).expected("no such key, or a new image by `stile image`"));
            return None;
        }
        (None, Some(_)) => {
            let what = "\"kernel\" can't be removed here: the image was made by it";
            mistakes.push(Mistake::new(new.place.clone(), what).expected(NEW_IMAGE));
            return None;
        }
    };
    if is_word(&given.value) {
        if given.value != old.value {
            let what = format!("the kernel \"{}\" is not available at boot: only `stile` provides it", given.value);
            mistakes.push(Mistake::new(given.place.clone(), what).expected("a file in the folder VMS, or a new image by `stile image`"));
        }
        return None;
    }
    let found = find(&given.value, files);
    if found.is_none() && given.value != old.value {
        mistakes.push(missing(given, files, "kernel as in the image, or the name of a file there"));
    }
    let found = found?;
    // The image's initial RAM file system may have modules of the image's kernel.
    if is_word(&old.value) && new.initrd.as_ref().is_none_or(|given| find(&given.value, files).is_none()) {
        let what = format!("the image's initial RAM file system belongs to the kernel \"{}\"", old.value);
        mistakes.push(Mistake::new(given.place.clone(), what).expected("an initrd in the folder VMS, too"));
        return None;
    }
    Some(Given::new(found.to_owned(), given.place.clone()))
}

/// The file of the initial RAM file system on the boot medium, if it is there, or none any more.
fn initrd(
    (new, old): (&VmDraft, &VmDraft),
    has_kernel: bool,
    files: &[&str],
    mistakes: &mut Vec<Mistake>,
) -> Option<Option<Given<String>>> {
    let Some(given) = &new.initrd else {
        let old = old.initrd.as_ref()?;
        if new.kernel.as_ref().is_some_and(|kernel| is_word(&kernel.value)) && !has_kernel {
            let what = "\"initrd\" can't be removed here: only `stile` has the one that belongs to the kernel";
            mistakes.push(Mistake::new(new.place.clone(), what).expected(format!("initrd = \"{}\", or a new image", old.value)));
            return None;
        }
        return Some(None);
    };
    let is_same = old.initrd.as_ref().is_some_and(|old| old.value == given.value);
    if given.value == "none" && !is_same {
        return Some(None);
    }
    let found = find(&given.value, files).filter(|_| !is_initrd_word(&given.value));
    if found.is_none() && !is_same {
        mistakes.push(missing(given, files, "initrd as in the image, or the name of a file there"));
    }
    found.map(|file| Some(Given::new(file.to_owned(), given.place.clone())))
}

/// The files of the disks in memory on the boot medium, as far as they are there.
fn disks((new, old): (&VmDraft, &VmDraft), files: &[&str], mistakes: &mut Vec<Mistake>) -> Vec<Option<Given<String>>> {
    // A different number of disks is a mistake, which `compare_fixed` reports.
    let pairs = files_in_memory(new).zip(files_in_memory(old));
    let found = pairs.map(|(new, old)| {
        let given = new.as_ref()?;
        let file = find(&given.value, files);
        if file.is_none() && changed(new, old).is_some() {
            mistakes.push(missing(given, files, "file as in the image, or the name of a file there"));
        }
        file.map(|file| Given::new(file.to_owned(), given.place.clone()))
    });
    found.collect()
}

/// The file of each disk in memory.
fn files_in_memory(vm: &VmDraft) -> impl Iterator<Item = &Option<Given<String>>> {
    vm.disks.iter().filter(|disk| disk.in_memory).map(|disk| &disk.file)
}

/// A file that the boot medium lacks.
fn missing(given: &Given<String>, files: &[&str], expected: &str) -> Mistake {
    let name = given.value.rsplit('/').next().unwrap_or_default();
    let what = format!("the folder VMS has no file \"{name}\"");
    let mistake = Mistake::new(given.place.clone(), what).expected(expected);
    mistake.similar_among(name, files.iter().copied())
}
