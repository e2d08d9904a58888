//! The configuration file of the boot medium, which may change the settings of the image, and the files that it names.
//!
//! All of them are untrusted input. They are read once, before the VMs are created, with memory that is free afterwards.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{Blob, Files, Gic, Mode, OnReset, Settings, Share, Techniques, Vm};
use stile_board::{CpuSet, MAX_VMS};
use stile_config::boot::{Changes, NAME, Remake, VMS, VmChanges, not_removed};
use stile_config::draft::Given;
use stile_config::{Look, Mistake, Mistakes, units};
use stile_firmware::boot_files::{self, Block, File, Unread};
use stile_firmware::configuration::BootMedium;
use stile_guest_image::remake::{RemakeError, Request, memory_to_unpack, remake};
use stile_paging::PAGE_SIZE;

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::console::log;
use crate::cpu::SCHEDULE;
use crate::nodes::Near;
use crate::vm::Change;
use crate::{heap, memory};

/// Memory for reading the file: many times what a file with one VM takes.
const HEAP: u64 = 16 << 20;
/// Memory for rebuilding a VM: several times what one with 256 vCPUs takes.
const HEAP_PER_VM: u64 = 4 << 20;

const NO_MEMORY: &str = "there is no memory to read its configuration file";

/// Most files of the boot medium that are looked at.
const MAX_FILES: usize = 256;

/// Changes of the VMs, by their numbers. None for those beyond its end.
pub type OfVms = &'static [Change];

/// Applies the changes that the configuration file of `medium` makes to `settings` of an image with `blob`. Returns those of the VMs.
///
/// # Errors
/// Firmware can't read the file or the folder `VMS`; the file has mistakes, each of which is in the log; or there is no memory to read it.
pub fn read(medium: &BootMedium<'static>, blob: &Blob<'static>, settings: &mut Settings) -> Result<OfVms, &'static str> {
    if blob.text.is_empty() {
        log!("{NAME} is ignored: this image is signed, or was made without a configuration file");
        free_files(medium);
        return Ok(&[]);
    }
    let Some(text) = medium.text else {
        log!("{NAME} is a folder, or the medium is damaged: repair or delete it. Without it, the image's configuration is in force");
        return Err("the firmware can't read its configuration file");
    };
    let bytes = bytes_of(medium)?;
    if text == blob.text.as_bytes() && bytes.is_empty() {
        return Ok(&[]);
    }
    let all = memory::allocate::<[Change; MAX_VMS]>()?.write([Change::None; MAX_VMS]);
    // SAFETY: of `apply`'s allocations, nothing is left.
    let (result, pages) = unsafe { with_heap(HEAP, || apply(text, bytes, blob, settings, all)) }?;
    memory::free(pages);
    if !result? {
        free_files(medium);
    }
    Ok(all)
}

/// Frees the memory with the medium's files, which nothing uses any more.
fn free_files(medium: &BootMedium<'static>) {
    medium.files.iter().filter_map(Block::range).filter(|files| memory::is_taken(files)).cloned().for_each(memory::free);
}

/// Runs `work` with a heap of `size` bytes of its own. Returns its result, and the heap's memory, to be freed.
///
/// # Errors
/// There is no memory.
///
/// # Safety
/// Nothing that `work` allocates is used after that memory is freed.
unsafe fn with_heap<T>(size: u64, work: impl FnOnce() -> T) -> Result<(T, Range<u64>), &'static str> {
    let pages = memory::take(size, &Near::new()).ok_or(NO_MEMORY)?;
    let start = Arch::physical(pages.start) as usize;
    let mut result = None;
    // SAFETY: the pages are free memory in the direct map, of which nothing else knows; the rest is the caller's contract.
    unsafe { heap::with(start..start + size as usize, || result = Some(work())) };
    result.map(|result| (result, pages)).ok_or(NO_MEMORY)
}

/// The memory with the medium's files.
fn bytes_of(medium: &BootMedium<'static>) -> Result<&'static [u8], &'static str> {
    let files = match &medium.files {
        Some(Block::At(files)) => files,
        Some(Block::Missing(size)) => return Err(no_memory(*size)),
        Some(Block::Unreadable) => {
            log!("{VMS} is damaged, or has too many files: repair or delete it. Without it, the image's files are in force");
            return Err("the firmware can't read the folder with the files that its configuration file names");
        }
        None => return Ok(&[]),
    };
    if !memory::is_taken(files) {
        log!("the files in VMS that {NAME} names are at {:#x}", files.start);
        return Err("the memory with the files that its configuration file names is not RAM by the machine's memory map");
    }
    let size = (files.end - files.start) as usize;
    // SAFETY: the block is RAM, so that it is in the direct map. Firmware allocated it for Stile, which has it allocated since
    // `memory::setup`: nothing writes there.
    Ok(unsafe { core::slice::from_raw_parts(Arch::physical(files.start), size) })
}

/// Reads the file, and writes the changes of the VMs to `all`. Returns whether one uses `bytes`.
///
/// # Errors
/// As for [`read`].
fn apply(
    text: &[u8],
    bytes: &'static [u8],
    blob: &Blob<'static>,
    settings: &mut Settings,
    all: &mut [Change],
) -> Result<bool, &'static str> {
    let files: Vec<File<'static>> = boot_files::files(bytes).take(MAX_FILES).collect();
    let cpus = SCHEDULE.online().last().map_or(1, |cpu| cpu.index() as u32 + 1);
    let names: Vec<&str> = files.iter().map(|file| file.name).collect();
    let mut mistakes = Vec::new();
    let vms: Vec<&str> = blob.vms.clone().map(|vm| vm.name).collect();
    match Changes::read(NAME, text, (blob.text, &vms), cpus, &names) {
        Ok(changes) => {
            let mut used = changes.remakes.iter().flat_map(Remake::files).peekable();
            let is_used = used.peek().is_some();
            used.filter_map(|used| files.iter().find(|file| file.name == used.value)).try_for_each(check_read)?;
            let bytes = if is_used { bytes } else { &[] };
            let in_image = blob.vms.len();
            let added = changes.remakes.iter().filter(|remake| remake.vm >= in_image).map(|remake| added(remake, blob));
            let added: Vec<Vm<'static>> = added.collect::<Result<_, _>>()?;
            let vms = blob.vms.clone().chain(added).enumerate();
            for ((number, vm), (to, change)) in vms.zip(all.iter_mut().zip(&changes.vms)) {
                let remake = changes.remakes.iter().find(|remake| remake.vm == number);
                let work = || of_vm(&vm, change, remake, (blob, bytes), &files);
                let (result, heap) = match remake {
                    Some(remake) => {
                        let size = HEAP_PER_VM + kernel(remake, &files).map_or(0, |(_, bytes)| memory_to_unpack(bytes, Arch::HAS_PCS));
                        // SAFETY: of the allocations only a mistake is left, with which the memory stays.
                        match unsafe { with_heap(size.next_multiple_of(PAGE_SIZE), work) } {
                            Ok((Ok(result), heap)) => (result, Some(heap)),
                            Ok((Err(_), _)) | Err(_) => (Err(no_memory_for(remake, size)), None),
                        }
                    }
                    None => (work()?, None),
                };
                match result {
                    Ok(change) => {
                        *to = change;
                        heap.into_iter().for_each(memory::free);
                    }
                    Err(mistake) => mistakes.push(mistake),
                }
            }
            if mistakes.is_empty() {
                changes.keys.iter().for_each(|key| log!("{NAME} changes {key}"));
                changes.apply(settings);
                return Ok(is_used);
            }
            let text = core::str::from_utf8(text).unwrap_or_default();
            show(&Mistakes::new(Some((NAME.to_owned(), text.to_owned())), mistakes));
        }
        Err(mistakes) => show(&mistakes),
    }
    Err("its configuration file has mistakes")
}

/// Refuses a file that firmware has not read.
fn check_read(file: &File<'_>) -> Result<(), &'static str> {
    match file.bytes {
        Ok(_) => Ok(()),
        Err(Unread::Broken) => {
            log!("the file VMS\\{} can't be read", file.name);
            Err("the firmware could not read a file that its configuration file names")
        }
        Err(Unread::NoMemory(size)) => Err(no_memory(size)),
    }
}

/// Reports that firmware had no memory for the `size` bytes of the medium's files.
fn no_memory(size: u64) -> &'static str {
    log!("the files in VMS that {NAME} names need {} MiB of memory", size.div_ceil(1 << 20));
    "there is no memory for the files that its configuration file names"
}

fn show(mistakes: &Mistakes) {
    mistakes.render(Look::default()).lines().for_each(|line| log!("{line}"));
}

/// The change of a VM, or the mistake for which it can't be made.
///
/// # Errors
/// There is no memory.
fn of_vm(
    vm: &Vm<'static>,
    changes: &VmChanges,
    remake: Option<&Remake>,
    (blob, bytes): (&Blob<'static>, &'static [u8]),
    files: &[File<'static>],
) -> Result<Result<Change, Mistake>, &'static str> {
    if changes.is_removed {
        // The links may be those of a command-line option, which the image's text lacks.
        return Ok(if vm.has_links() { Err(not_removed(vm.name)) } else { Ok(Change::Removed) });
    }
    if remake.is_none() && *changes == VmChanges::default() {
        return Ok(Ok(Change::None));
    }
    let (mut vm, mut its_files) = (vm.clone(), blob.files());
    if let Some(remake) = remake {
        match made(&vm, remake, Files::at_boot(blob.files(), bytes, &[]), files) {
            Ok((made, new)) => {
                (vm, its_files) = (made, Files::at_boot(blob.files(), bytes, keep(&new)?));
                if let Err(rule) = vm.check(its_files) {
                    let what = format!("{}: the virtual machine can't be made: {rule}", remake.name);
                    return Ok(Err(Mistake::new(remake.place.clone(), what)));
                }
            }
            Err(error) => return Ok(Err(mistake(remake, &error))),
        }
    }
    changes.apply(&mut vm);
    Ok(Ok(Change::Made(memory::allocate::<(Vm<'static>, Files<'static>)>()?.write((vm, its_files)))))
}

/// Returns an added VM before its kernel is loaded: with the defaults, and the interrupt controller of the image's VMs.
///
/// # Errors
/// There is no memory.
fn added(remake: &Remake, blob: &Blob<'static>) -> Result<Vm<'static>, &'static str> {
    Ok(Vm {
        name: core::str::from_utf8(keep(remake.name.as_bytes())?).unwrap_or_default(),
        memory: 0,
        ram_base: 0,
        firmware: 0,
        disks: heapless::Vec::new(),
        vcpus: 1,
        topology: None,
        class: None,
        cpus: CpuSet::EMPTY,
        pinned: false,
        share: Share::default(),
        entry: 0,
        info: 0,
        mode: Mode::Reset,
        loads: heapless::Vec::new(),
        on_reset: OnReset::default(),
        techniques: Techniques::default(),
        functions: heapless::Vec::new(),
        served: heapless::Vec::new(),
        serves: 0,
        gic: blob.vms.clone().next().map_or(Gic::default(), |vm| vm.gic),
    })
}

/// Rebuilds a VM. Returns it with the bytes that are new.
fn made(vm: &Vm<'static>, new: &Remake, of_image: Files<'static>, files: &[File<'static>]) -> Result<(Vm<'static>, Vec<u8>), RemakeError> {
    let bootargs = |line: Option<&str>| line.map_or_else(|| Some(new.append.new.clone()), |line| new.append.apply(line));
    let disk = |given: &Option<Given<String>>| given.as_ref().and_then(|given| find(&given.value, files)).map(|(_, bytes)| bytes);
    let disks: Vec<Option<&[u8]>> = new.disks.iter().map(disk).collect();
    let request = Request {
        is_pc: Arch::HAS_PCS,
        kernel: kernel(new, files),
        initrd: new.initrd.as_ref().map(|given| given.as_ref().and_then(|given| find(&given.value, files)).map(|(_, bytes)| bytes)),
        has_initrd: new.has_initrd,
        disks: &disks,
        memory: new.memory.as_ref().map(|given| given.value),
        vcpus: new.vcpus.as_ref().map(|given| given.value),
        bootargs: &bootargs,
    };
    remake(vm, of_image, &request)
}

/// Name and contents of a file that firmware has read.
fn find(name: &str, files: &[File<'static>]) -> Option<(&'static str, &'static [u8])> {
    files.iter().find(|file| file.name == name).and_then(|file| Some((file.name, file.bytes.ok()?)))
}

/// Name and contents of a VM's new kernel, if it has one.
fn kernel(new: &Remake, files: &[File<'static>]) -> Option<(&'static str, &'static [u8])> {
    new.kernel.as_ref().and_then(|given| find(&given.value, files))
}

/// The mistake that the machine lacks `size` bytes of memory to rebuild a VM, at its kernel if that is new.
fn no_memory_for(new: &Remake, size: u64) -> Mistake {
    let (place, file) = new.kernel.as_ref().map_or((&new.place, None), |given| (&given.place, Some(&given.value)));
    let file = file.map(|file| format!(" by VMS\\{file}")).unwrap_or_default();
    let what =
        format!("{}: there is no memory to make the virtual machine{file}, which takes {} at once", new.name, units::rounded_size(size));
    Mistake::new(place.clone(), what).expected("more memory, or a kernel that is not compressed")
}

/// The mistake for which a VM can't be made, at the key that is its most likely cause.
fn mistake(new: &Remake, error: &RemakeError) -> Mistake {
    let kernel = new.kernel.as_ref().map(|given| &given.place);
    let memory = new.memory.as_ref().map(|given| &given.place);
    let disk = match error {
        RemakeError::Image { number, .. } => new.disks.get(*number).and_then(Option::as_ref),
        _ => None,
    };
    let place = match error {
        RemakeError::Bootargs => new.append.place.as_ref(),
        RemakeError::Vcpus(_) => new.vcpus.as_ref().map(|given| &given.place),
        RemakeError::Plan(_) => kernel.or(memory),
        RemakeError::Image { .. } => disk.map(|given| &given.place),
        _ => None,
    };
    let file = disk.map(|given| format!("VMS\\{} ", given.value)).unwrap_or_default();
    Mistake::new(place.unwrap_or(&new.place).clone(), format!("{}: {file}{error}", new.name))
}

/// Copies bytes to memory with the machine's lifetime.
fn keep(bytes: &[u8]) -> Result<&'static [u8], &'static str> {
    let pages = memory::take((bytes.len() as u64).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE), &Near::new()).ok_or(NO_MEMORY)?;
    let to = Arch::physical(pages.start);
    // SAFETY: the pages were just allocated, have room for the bytes, are in the direct map, and are never freed.
    unsafe {
        to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        Ok(core::slice::from_raw_parts(to, bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use stile_config::Place;
    use stile_config::boot::Append;

    use super::*;

    #[test]
    fn a_mistake_in_a_disk_names_its_file() {
        let disk = Given::new("data.img".to_owned(), Place::Text(7..17));
        let new = Remake {
            vm: 0,
            name: "web".to_owned(),
            place: Place::File,
            kernel: None,
            initrd: None,
            has_initrd: false,
            disks: [None, Some(disk)].into(),
            append: Append::default(),
            memory: None,
            vcpus: None,
        };
        let of = |number| RemakeError::Image { number, what: "is empty".to_owned(), expected: "a raw image" };
        let expected = |place, file: &str| Mistake::new(place, format!("web: {file}is empty; expected a raw image"));
        assert_eq!(mistake(&new, &of(1)), expected(Place::Text(7..17), "VMS\\data.img "));
        assert_eq!(mistake(&new, &of(0)), expected(Place::File, ""));
    }
}
