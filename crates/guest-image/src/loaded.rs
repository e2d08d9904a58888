//! A virtual machine of an image, read back from its files.

use dtoolkit::{Node, Property};
use stile_blob::{Files, Mode, Vm};
use stile_firmware::device_tree;

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;

use super::dtb::SEED_LEN;
use super::plan::{Error, Guest, Plan, plan_with};
use super::{Format, Kernel, Segment, pc};

/// A virtual machine whose kernel can be planned for anew.
#[derive(Clone, Debug)]
pub struct Loaded<'a> {
    /// The kernel's whole command line.
    pub bootargs: &'a str,
    /// The initial RAM file system.
    pub initrd: Option<&'a [u8]>,
    program: Program<'a>,
}

#[derive(Clone, Debug)]
enum Program<'a> {
    Arm(Kernel<'a>),
    /// Linux on a PC: its boot parameters, and what is loaded.
    Linux(&'a [u8], &'a [u8]),
}

/// The boot information of a virtual machine of an image.
fn info<'a>(vm: &Vm<'_>, files: Files<'a>) -> Option<&'a [u8]> {
    files.file(vm.loads.iter().find(|load| load.gpa == vm.info)?)
}

/// A property of the node `chosen` of a device tree.
fn chosen<'a>(tree: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let tree = device_tree::parse(tree).ok()?;
    let chosen = tree.root().children().find(|node| node.name() == "chosen")?;
    chosen.property(name)?.value_as::<&'a [u8]>().ok()
}

/// The seed of an Arm guest's random numbers, if the device tree of a virtual machine of an image has one, whatever else it lacks.
pub fn seed(vm: &Vm<'_>, files: Files<'_>) -> Option<[u8; SEED_LEN]> {
    let tree = info(vm, files)?;
    let mut seed = [0; SEED_LEN];
    let (kaslr, rng) = seed.split_at_mut(8);
    kaslr.copy_from_slice(chosen(tree, "kaslr-seed").filter(|bytes| bytes.len() == 8)?);
    rng.copy_from_slice(chosen(tree, "rng-seed").filter(|bytes| bytes.len() == SEED_LEN - 8)?);
    Some(seed)
}

impl<'a> Loaded<'a> {
    /// Reads a virtual machine of an image. `None` if its boot information does not tell enough: on a PC, any but Linux's.
    pub fn read(vm: &Vm<'_>, files: Files<'a>, is_pc: bool) -> Option<Self> {
        let at = |range: Range<u64>| {
            let load = vm.loads.iter().find(|load| load.gpa == range.start && load.len == range.end - range.start);
            load.and_then(|load| files.file(load))
        };
        let info = info(vm, files)?;
        if is_pc {
            let Mode::Long { .. } = vm.mode else { return None };
            let initrd = match pc::initrd(info) {
                Some(range) => Some(at(range)?),
                None => None,
            };
            let kernel =
                vm.loads.iter().find(|load| load.gpa.checked_add(load.mem_len).is_some_and(|end| (load.gpa..end).contains(&vm.entry)))?;
            let program = Program::Linux(info, files.file(kernel)?);
            return Some(Self { bootargs: pc::command_line(info)?, initrd, program });
        }
        let bytes = |name: &str| chosen(info, name);
        let address = |name: &str| bytes(name).and_then(|bytes| Some(u64::from_be_bytes(bytes.try_into().ok()?)));
        let initrd_at = match (address("linux,initrd-start"), address("linux,initrd-end")) {
            (Some(start), Some(end)) if start <= end => Some(start..end),
            _ => None,
        };
        let initrd = match &initrd_at {
            Some(range) => Some(at(range.clone())?),
            None => None,
        };
        let bootargs = core::str::from_utf8(bytes("bootargs")?.strip_suffix(&[0])?).ok()?;
        let is_disk = |gpa: u64| vm.disk_regions().any(|region| region.start == gpa);
        let is_kernels = |gpa: u64| gpa != vm.info && !is_disk(gpa) && initrd_at.as_ref().is_none_or(|range| gpa != range.start);
        let mut segments = Vec::new();
        for load in vm.loads.iter().filter(|load| is_kernels(load.gpa)) {
            let start = usize::try_from(load.offset).ok()?;
            segments.push(Segment {
                gpa: load.gpa,
                file: start..start.checked_add(usize::try_from(load.len).ok()?)?,
                mem_len: load.mem_len,
            });
        }
        segments.sort_by_key(|segment| segment.gpa);
        // A flat binary takes no more than its file, as far as is known.
        let size_known = segments.iter().any(|segment| segment.mem_len > segment.file.len() as u64);
        let kernel = Kernel {
            format: Format::Image,
            zboot: false,
            compression: None,
            entry: vm.entry,
            segments,
            size_known,
            contents: Cow::Borrowed(files.image()),
        };
        Some(Self { bootargs, initrd, program: Program::Arm(kernel) })
    }

    /// Plans the memory layout of the virtual machine with the same kernel, but `guest` for the rest.
    ///
    /// # Errors
    /// The kernel can't be booted so, or there is too little RAM.
    pub fn plan(&self, guest: &Guest<'a>) -> Result<Option<Plan<'a>>, Error> {
        match &self.program {
            Program::Arm(kernel) => {
                let is_inside = |segment: &Segment| stile_board::map::ram_contains(guest.memory, segment.gpa, segment.mem_len);
                if let Some(outside) = kernel.segments.iter().find(|segment| !is_inside(segment)) {
                    let error = super::KernelError::OutsideRam { needs: outside.memory(), ram: guest.memory };
                    return Err(Error::Kernel(error));
                }
                plan_with(guest, kernel.clone()).map(Some)
            }
            Program::Linux(info, contents) => pc::plan_loaded(guest, info, contents),
        }
    }
}
