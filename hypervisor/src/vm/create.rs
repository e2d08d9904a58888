//! Creation of VMs: those of the configuration, and others on request.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stile_blob::{Blob, Files, Interrupts, Nested, Share, Techniques};
use stile_ledger::Ledger;
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_sched::{CpuSet, VcpuId};

use super::power_state::Power;
use super::ram::Ram;
use super::{Start, Turns, Vcpu, Vm, publish, retire};
use crate::arch::contract::{Counter, Platform, VcpuPart, VmPart};
use crate::arch::{self, Arch};
use crate::arena::{self, Arena};
use crate::console::log;
use crate::cpu::{self, SCHEDULE};
use crate::device::{Devices, Optional};
use crate::{image, memory, nodes};

/// Whether VMs of this machine may have direct interrupts.
static MAY_BE_DIRECT: AtomicBool = AtomicBool::new(false);

/// Creates every VM of the blob without starting it.
///
/// # Errors
/// A description of what this board cannot provide.
pub fn create_all(blob: Blob<'static>) -> Result<(), &'static str> {
    let (vms, files) = (blob.vms.clone(), blob.files());
    image::set(blob);
    retire::setup();
    // LPIs of any VM's functions may arrive on any CPU, and the ablated vectors use list registers differently.
    // Neither can be created later.
    let may_be_direct = vms.clone().all(|vm| vm.functions.is_empty() && vm.techniques.ablate.is_none());
    MAY_BE_DIRECT.store(may_be_direct, Ordering::Relaxed);
    for (number, config) in vms.enumerate() {
        if !retire::claim(number) {
            return Err("the configuration has more VMs than Stile supports");
        }
        create_at(number, &config, files, false)?;
    }
    Ok(())
}

/// Creates a VM, off, while the machine runs, under a number that was [claimed](retire::claim). The configuration's
/// name, and `files`, live as long as the VM.
///
/// # Errors
/// A description of what this board cannot provide. Of the VM only its number remains claimed, and what its
/// [arena](arena) had allocated before.
pub fn create(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>) -> Result<&'static Vm, &'static str> {
    create_at(number, config, files, true)
}

/// Creates a VM as [`create`] does. `late`: the machine runs.
fn create_at(number: usize, config: &stile_blob::Vm<'static>, files: Files<'static>, late: bool) -> Result<&'static Vm, &'static str> {
    if !Arch::can_start(config.mode) {
        return Err("a VM's first vCPU would start in a state that this architecture does not have");
    }
    let cpus = cpus(config);
    let pieces = allocate_ram(config, &nodes::near(cpus))?;
    arena::of_vm(number).prefer(cpus);
    let techniques = techniques(number, config, late.then_some(cpus));
    let vm = build(number, config, techniques, files, pieces.clone());
    if vm.is_err() {
        memory::free_guest(&pieces);
        cpu::remove_vm(number as u8);
    }
    vm
}

/// The CPUs on which a VM may run.
fn cpus(config: &stile_blob::Vm<'_>) -> CpuSet {
    let online = SCHEDULE.online().bits();
    CpuSet::from_bits((0..usize::from(config.vcpus)).fold(0, |cpus, vcpu| cpus | config.cpus_of(vcpu, online)))
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
        && let Some(why) = late.and_then(|cpus| arch::Vm::obstacle_to_direct(number, cpus))
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

/// Creates a VM around its RAM. Not inlined, as [`vcpu`] is not: one frame for all values would fill most of the stack.
#[inline(never)]
fn build(
    number: usize,
    config: &stile_blob::Vm<'static>,
    techniques: Techniques,
    files: Files<'static>,
    pieces: heapless::Vec<Piece, MAX_PIECES>,
) -> Result<&'static Vm, &'static str> {
    let arena = arena::of_vm(number);
    let place = arena.allocate::<Vm>()?;
    let arch = arch::Vm::new(number, config, &pieces, techniques, arena)?;
    let mut vcpus = heapless::Vec::new();
    share(number as u8, config.share);
    for index in 0..config.vcpus {
        let _ = vcpus.push(vcpu(number, index, config, techniques, arena)?);
    }
    let has_functions = !config.functions.is_empty();
    let ram = Ram::new(pieces, files, config.loads.clone(), arena)?;
    let optional =
        Optional { pci: has_functions, flash: config.firmware != 0, served: !config.served.is_empty(), serves: config.serves != 0 };
    let devices = Devices::new(number, usize::from(config.vcpus), optional)?;
    let place = ptr::from_mut(place.write(Vm {
        number,
        name: config.name,
        start: Start { pc: config.entry, info: config.info, mode: config.mode },
        ram,
        on_reset: config.on_reset,
        techniques,
        vcpus,
        power: Power::new(has_functions),
        has_functions,
        has_links: config.has_links(),
        turns: Turns::new(cpu::slice()),
        devices,
        memory: AtomicU64::new(0),
        arch,
    }));
    // SAFETY: it was just written, and lives until the VM is retired.
    let vm = unsafe { &*place };
    for vcpu in &vm.vcpus {
        vcpu.belongs_to(vm);
    }
    vm.memory.store(vm.ram.size() + arena.size(), Ordering::Relaxed);
    publish(number, place);
    Ok(vm)
}

/// Creates a vCPU and registers it with the scheduler.
#[inline(never)]
fn vcpu(
    number: usize,
    index: u16,
    config: &stile_blob::Vm<'_>,
    techniques: Techniques,
    arena: &'static Arena,
) -> Result<&'static Vcpu, &'static str> {
    let id = u8::try_from(index).ok().and_then(|index| VcpuId::new(number as u8, index)).ok_or("more VMs or vCPUs than Stile supports")?;
    // SAFETY: all-zero is a valid ledger, which `Vcpu::new` resets.
    let ledger = unsafe { arena.allocate::<Ledger>()?.assume_init_mut() };
    let place = arena.allocate()?;
    let arch = arch::Vcpu::new(id, usize::from(config.vcpus), techniques, arena)?;
    let cpus = CpuSet::from_bits(config.cpus_of(usize::from(index), SCHEDULE.online().bits()));
    let configured = SCHEDULE.configure(id, cpus);
    configured.map_err(|_| "a VM may use only CPUs that this board does not have")?;
    Ok(place.write(Vcpu::new(id, arch, ledger, cpus.len() == 1)))
}

/// Sets a VM's weight and cap in the scheduler.
fn share(vm: u8, share: Share) {
    let hz = Arch::frequency();
    let period = hz * u64::from(Share::PERIOD_US) / 1_000_000;
    let cap = share.cap.map(|percent| (period * u64::from(percent) / 100, period));
    SCHEDULE.set_share(vm, share.weight, cap);
}
