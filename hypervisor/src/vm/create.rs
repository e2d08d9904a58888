//! Creation of VMs: those of the configuration, and others on request.

use core::sync::atomic::{AtomicBool, Ordering};

use stile_blob::{Blob, Files, Interrupts, Nested, Techniques};
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_sched::CpuSet;

use super::creation::Creation;
use super::{Vm, retire};
use crate::arch::contract::{Platform, VmPart};
use crate::arch::{self, Arch};
use crate::console::log;
use crate::cpu::classes;
use crate::{arena, image, memory, nodes};

/// Whether VMs of this machine may have direct interrupts.
static MAY_BE_DIRECT: AtomicBool = AtomicBool::new(false);

/// A change of a VM of the blob.
#[derive(Clone, Copy, Default)]
pub enum Change {
    /// It is created as in the blob.
    #[default]
    None,
    /// It is not created.
    Removed,
    /// It is created with this configuration, and these files.
    Made(&'static (stile_blob::Vm<'static>, Files<'static>)),
}

/// Creates, off, the VMs of the blob except those that `changes` remove, and then the VMs that `changes` add. `changes` are in the order of
/// the VMs' numbers, and may be fewer.
///
/// # Errors
/// A description of what this board cannot provide.
pub fn create_all(blob: Blob<'static>, changes: &[Change]) -> Result<(), &'static str> {
    let (vms, files) = (blob.vms.clone(), blob.files());
    image::set(blob);
    retire::setup();
    // LPIs of any VM's functions may arrive on any CPU, and the ablated vectors use list registers differently.
    // Neither can be created later.
    let may_be_direct = vms.clone().all(|vm| vm.functions.is_empty() && vm.techniques.ablate.is_none());
    MAY_BE_DIRECT.store(may_be_direct, Ordering::Relaxed);
    let in_image = vms.len();
    for (number, configured) in vms.enumerate() {
        let (config, files) = match changes.get(number) {
            Some(Change::Removed) => continue,
            Some(Change::Made((config, files))) => (config, *files),
            Some(Change::None) | None => (&configured, files),
        };
        create_at(number, config, files)?;
    }
    for (number, change) in changes.iter().enumerate().skip(in_image) {
        if let Change::Made((config, files)) = change {
            create_at(number, config, *files)?;
        }
    }
    Ok(())
}

/// Creates a VM of the machine's configuration, off.
///
/// # Errors
/// As for [`create_all`].
fn create_at(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>) -> Result<(), &'static str> {
    if !retire::claim(number) {
        return Err("the configuration has more VMs than Stile supports");
    }
    complete(begin_at(number, config, files, false)?)?;
    Ok(())
}

/// Creates a VM, off, at once. See [`begin`].
///
/// # Errors
/// As [`begin`], and no memory is left.
#[cfg(test)]
pub fn create(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>) -> Result<&'static Vm, &'static str> {
    complete(begin(number, config, files, false)?)
}

/// Begins to create a VM, off, while the machine runs, under a number that was [claimed](retire::claim). The
/// configuration's name, and `files`, live as long as the VM. `for_snapshot`: its vCPUs, but for the first one, are reset.
///
/// # Errors
/// A description of what this board cannot provide. Of the VM only its number remains claimed, and what its
/// [arena](arena) had allocated before.
pub fn begin(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>, for_snapshot: bool) -> Result<Creation, &'static str> {
    let mut creation = begin_at(number, config, files, true)?;
    creation.for_snapshot = for_snapshot;
    Ok(creation)
}

/// Creates the rest of a VM at once.
fn complete(mut creation: Creation) -> Result<&'static Vm, &'static str> {
    loop {
        match creation.advance() {
            Ok(None) => {}
            Ok(Some(vm)) => return Ok(vm),
            Err(why) => {
                creation.abandon();
                return Err(why);
            }
        }
    }
}

/// Begins to create a VM as [`begin`] does. `late`: the machine runs.
#[inline(never)]
fn begin_at(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>, late: bool) -> Result<Creation, &'static str> {
    if !Arch::can_start(config.mode) {
        return Err("a VM's first vCPU would start in a state that this architecture does not have");
    }
    classes::log_restriction(config);
    let usable = classes::usable_by(config);
    let cpus = config.cpus_of_all(&usable);
    let pieces = allocate_ram(config, &nodes::near(&cpus))?;
    arena::of_vm(number).prefer(&cpus);
    let techniques = techniques(number, config, late.then_some(cpus));
    Ok(Creation::new(number, config.clone(), techniques, files, usable, pieces))
}

/// Techniques of a VM that are in force. `late`: its CPUs, if the machine runs.
fn techniques(number: usize, config: &stile_blob::Vm<'_>, late: Option<CpuSet>) -> Techniques {
    let mut techniques = config.techniques;
    // A vCPU that sleeps in an untrapped WFI would use up the cap.
    techniques.wfi_passthrough &= config.share.cap.is_none();
    // Signals between VMs are not routed to direct interrupts.
    if !MAY_BE_DIRECT.load(Ordering::Relaxed)
        || config.has_links()
        || techniques.nested != Nested::Off
        || !config.pinned
        || !techniques.wfi_passthrough
    {
        techniques.interrupts = Interrupts::Virtual;
    }
    // An untrusted snapshot must not disturb other VMs, and a VM that could run with virtual interrupts must not fail.
    if techniques.interrupts == Interrupts::Direct
        && let Some(why) = late.and_then(|cpus| arch::Vm::obstacle_to_direct(number, &cpus))
    {
        log!("{}: interrupts are virtual, although interrupts = \"direct\" is asked for: {why}", config.name);
        techniques.interrupts = Interrupts::Virtual;
    }
    techniques
}

/// Allocates the RAM of a VM, if possible near to its CPUs.
fn allocate_ram(config: &stile_blob::Vm<'_>, near: &nodes::Near) -> Result<heapless::Vec<Piece, MAX_PIECES>, &'static str> {
    let mut pieces = heapless::Vec::<Piece, MAX_PIECES>::new();
    for range in Arch::ram(config).into_iter().filter(|range| !range.is_empty()) {
        let size = range.end - range.start;
        let more = memory::allocate_guest(range.start, size, near).map_err(|error| {
            log!("{} needs {} MiB of memory, of which {} MiB are free ({error:?})", config.name, size >> 20, memory::available() >> 20);
            "a VM's memory does not fit into this board's"
        });
        let is_whole = more.and_then(|more| {
            let fits = pieces.extend_from_slice(&more);
            fits.map_err(|()| {
                memory::free_guest(&more);
                "a VM's memory is in too many pieces"
            })
        });
        if let Err(why) = is_whole {
            memory::free_guest(&pieces);
            return Err(why);
        }
    }
    nodes::log_placement(config.name, near, &pieces);
    Ok(pieces)
}
