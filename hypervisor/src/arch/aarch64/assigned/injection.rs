//! Direct injection of functions' messages (GICv4). Each vCPU of a VM has a vPE, which the physical ITS makes LPIs of the VM
//! pending for; they are interrupts of the vCPU without an exit.
//!
//! A vPE is resident on its vCPU's CPU from the vCPU's publication ([`resume`]) until its put, or until the CPU is idle
//! ([`depart`]). Otherwise its LPIs ring its doorbell, a physical LPI, which wakes the vCPU. LPIs that came before that ring
//! it as well, by a command. vCPUs without vPEs do not pay for this: residency begins where [special](crate::arch::aarch64::vm::Vcpu::special)
//! ones are handled, and ends where breakpoints are put.

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use stile_board::intid::{LPI_BASE, LPI_COUNT};
use stile_board::{MAX_CPUS, MAX_VMS};
use stile_its::{Command, DirectLpis};
use stile_lock::TicketLock;
use stile_pci::{Action, Misses};

use super::failure;
use crate::address_space;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::its::{self, Configuration, FIRST_DOORBELL, INTID_BITS};
use crate::arch::aarch64::host::{timer, vpe};
use crate::cpu;
use crate::vm::{self, Vcpu};

/// A vPE.
struct Vpe {
    /// VM and vCPU.
    vm: AtomicU16,
    vcpu: AtomicU16,
    /// The CPU whose redistributor it is on.
    cpu: AtomicU16,
    /// Its doorbell is disabled until it is resident.
    held: AtomicBool,
    /// Doorbells since boot.
    misses: AtomicU32,
    /// GICR_VPROPBASER and GICR_VPENDBASER.
    configuration: AtomicU64,
    pending: AtomicU64,
}

static VPES: [Vpe; its::VPES] = [const {
    Vpe {
        vm: AtomicU16::new(0),
        vcpu: AtomicU16::new(0),
        cpu: AtomicU16::new(0),
        held: AtomicBool::new(false),
        misses: AtomicU32::new(0),
        configuration: AtomicU64::new(0),
        pending: AtomicU64::new(0),
    }
}; its::VPES];
const _: () = assert!(MAX_CPUS <= 1 << 16 && its::VPES <= 1 << 16);

/// Number of vPEs in use.
static USED: AtomicU32 = AtomicU32::new(0);

/// For each CPU: the vPE that is resident there plus 1, or 0.
static RESIDENT: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// Doorbells of each VM that arrived in the current time slice while their vCPUs did not run.
static MISSES_OF_VM: [Misses; MAX_VMS] = [const { Misses::new() }; MAX_VMS];

/// Direct injection into a VM.
pub struct Injection {
    first: u16,
    configuration: &'static Configuration,
    lpis: TicketLock<DirectLpis>,
}

impl Injection {
    /// vPEs for a VM, mapped to CPU `here`. `None` if the machine has no GICv4, or not that many vPEs.
    ///
    /// # Errors
    /// A description: no memory is left, or the ITS fails.
    #[inline(never)]
    pub fn new(vm: usize, vcpus: u16, here: usize) -> Result<Option<Injection>, &'static str> {
        // VMs with functions are created one after the other, while the machine starts.
        let first = USED.load(Ordering::Relaxed);
        let end = first + u32::from(vcpus);
        if end as usize > its::vpes() {
            return Ok(None);
        }
        let configuration = Configuration::allocate()?;
        for (vcpu, number) in (0..vcpus).zip(first..end) {
            let table = address_space::to_physical(its::page()?);
            let vpe = &VPES[number as usize];
            vpe.vm.store(vm as u16, Ordering::Relaxed);
            vpe.vcpu.store(vcpu, Ordering::Relaxed);
            vpe.cpu.store(here as u16, Ordering::Relaxed);
            let properties = stile_its::place_virtual_configuration(address_space::to_physical(configuration), INTID_BITS);
            vpe.configuration.store(properties, Ordering::Relaxed);
            vpe.pending.store(stile_its::place_virtual_pending(table), Ordering::Relaxed);
            its::map_vpe(number as u16, table, here)?;
        }
        USED.store(end, Ordering::Release);
        let lpis = TicketLock::new(DirectLpis::new(first as u16, FIRST_DOORBELL + first, vcpus));
        Ok(Some(Injection { first: first as u16, configuration, lpis }))
    }

    /// Sets the DeviceID of the VM's next function.
    pub fn set_device(&self, function: usize, device: u32) {
        self.lpis.lock().set_device(function, device);
    }

    /// Unmaps all LPIs: none is pending. The VM is off.
    pub fn reset(&self) {
        self.lpis.lock().reset(execute);
        (0..LPI_COUNT as usize).for_each(|lpi| self.configuration.set(lpi, 0));
    }

    /// Routes an LPI to a vCPU, or to none, where it ceases to be pending.
    pub fn route(&self, lpi: u32, vcpu: Option<usize>) {
        self.lpis.lock().route(lpi, vcpu, execute);
    }

    /// Configures an LPI by its byte of the LPI configuration table.
    pub fn configure(&self, lpi: u32, configuration: u8) {
        /// Priority and enable.
        const IMPLEMENTED: u8 = 0xfd;
        self.configuration.set(lpi.wrapping_sub(LPI_BASE) as usize, configuration & IMPLEMENTED);
        self.lpis.lock().invalidate(lpi, execute);
    }

    /// Makes an LPI pending, if it is mapped.
    pub fn set_pending(&self, lpi: u32) {
        self.lpis.lock().set_pending(lpi, execute);
    }

    /// Makes an LPI not pending.
    pub fn clear_pending(&self, lpi: u32) {
        self.lpis.lock().clear_pending(lpi, execute);
    }

    /// Translates an event of a function to an LPI, or to nothing.
    pub fn translate(&self, function: usize, event: usize, lpi: Option<u32>) {
        self.lpis.lock().translate(function, event, lpi, execute);
    }
}

fn execute(commands: &[Command]) {
    failure::check(its::execute(commands));
}

/// Makes the vPE of the loaded vCPU, which was published, resident.
#[cold]
#[inline(never)]
pub fn resume(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(injection) = vcpu.vm().arch.functions.and_then(|functions| functions.injection()) else { return };
    let (number, place) = (injection.first + vcpu.arch.index as u16, &RESIDENT[cpu.index]);
    let resident = u32::from(number) + 1;
    if place.load(Ordering::Relaxed) == resident {
        return;
    }
    let vpe = &VPES[usize::from(number)];
    if usize::from(vpe.cpu.load(Ordering::Relaxed)) != cpu.index {
        failure::check(its::move_vpe(number, cpu.index));
        vpe.cpu.store(cpu.index as u16, Ordering::Relaxed);
    }
    vpe::enter(cpu.index, vpe.configuration.load(Ordering::Relaxed), vpe.pending.load(Ordering::Relaxed));
    place.store(resident, Ordering::Relaxed);
    cpu.parts().context.debug.depart_at_put();
    release(vpe, number);
}

/// Makes the vPE that is resident on this CPU, if any, non-resident: its vCPU is put, or sleeps.
#[cold]
#[inline(never)]
pub fn depart(cpu: usize) {
    let Some(number) = RESIDENT[cpu].swap(0, Ordering::Relaxed).checked_sub(1) else { return };
    let rung = match vpe::depart(cpu) {
        // The vCPU may be blocked. LPIs that come from here on ring the doorbell themselves.
        Ok(true) => its::ring(number as u16),
        Ok(false) => Ok(()),
        Err(why) => Err(why),
    };
    failure::check(rung);
}

/// [`depart`] of a CPU that waits for interrupts.
#[inline]
pub fn depart_before_wait(cpu: usize) {
    if RESIDENT[cpu].load(Ordering::Relaxed) != 0 {
        depart(cpu);
    }
}

/// Handles the doorbell of a vPE: wakes its vCPU.
#[cold]
pub fn doorbell(number: u32) {
    let Some(vpe) = VPES.get(number as usize).filter(|_| number < USED.load(Ordering::Acquire)) else { return };
    let (of, index) = (usize::from(vpe.vm.load(Ordering::Relaxed)), usize::from(vpe.vcpu.load(Ordering::Relaxed)));
    let Some(vcpu) = vm::get(of).and_then(|vm| vm.vcpus.get(index)) else { return };
    if cpu::running_on(vcpu).is_some() {
        // It found the LPI in its table when it became resident.
        return;
    }
    cpu::wake(vcpu);
    let earlier = vpe.misses.fetch_add(1, Ordering::Relaxed);
    if MISSES_OF_VM[of % MAX_VMS].add(earlier, 1, false, timer::now(), cpu::slice()) == Action::Hold {
        hold(vpe, number as u16, vcpu);
    }
}

/// Disables the doorbell of a vCPU that was woken, until it runs: so functions take time from other VMs only a limited number
/// of times in a slice.
fn hold(vpe: &Vpe, number: u16, vcpu: &Vcpu) {
    failure::check(its::enable_doorbell(number, false));
    vpe.held.store(true, Ordering::SeqCst);
    if cpu::running_on(vcpu).is_some() {
        // It may have been published before.
        release(vpe, number);
    } else {
        // It may have run and blocked meanwhile. It finds the doorbell held when it is published next.
        cpu::wake(vcpu);
    }
}

fn release(vpe: &Vpe, number: u16) {
    if vpe.held.load(Ordering::SeqCst) && vpe.held.swap(false, Ordering::SeqCst) {
        failure::check(its::enable_doorbell(number, true));
    }
}
