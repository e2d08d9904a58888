//! Direct interrupts (`interrupts = "direct"`): while a vCPU has its CPU for itself, HCR_EL2.IMO is clear, and EL1 takes
//! its timers and SGIs as the physical interrupts that they are. docs/direct-interrupts.md has the registers' table and the
//! bound on regaining the CPU.
//!
//! A vCPU whose interrupts are direct is not published as running ([`cpu::notify`]): a sender finds its [`Place`], and
//! moves SGIs to the physical redistributor ([`Place::forward`]). Any other request to it ends direct interrupts
//! ([`Place::revoke`]): its second stage becomes empty, so that its next fetch exits. It becomes direct again at the next
//! decision of the scheduler at which the conditions hold; [`retry_later`] schedules one.
//!
//! The architecture does not bound how long an SGI takes from one CPU to another. A *late SGI* is pending at the physical
//! redistributor after its target has left the CPU, or ceased to be direct ([`stile_vgic::LateSgis`]).

use core::sync::atomic::{Ordering, fence};

use stile_ledger::RowId;
use stile_sched::CpuId;
use stile_vgic::{HostPriorities, ListRegisters, Owner};

use super::interface::Interface;
use super::place::{Place, all, find, owner};
use super::trusted::{self, Trust};
use super::{claims, delivery, physical_interface};
use crate::arch::aarch64::assigned::injection;
use crate::arch::aarch64::exit::vectors::{self, Vectors};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{features, gic, redistributor, sgi, timer};
use crate::arch::aarch64::vcpu::traps::{self, CpuInterface};
use crate::cpu::{self, Leave, Outcome, SCHEDULE};
use crate::vm::{Vcpu, Vm};

/// The first wait before another attempt to become direct, in microseconds; it doubles with each attempt that fails.
const RETRY_US: u64 = 100;
/// Maximum number of doublings: the longest wait is 12.8 ms.
const DOUBLINGS: u32 = 7;

/// Wait before another vCPU becomes direct on a CPU, in microseconds: longer than an SGI takes from one CPU to another.
const SETTLE_US: u64 = 100;

/// Whether the vCPU that is loaded on this CPU is direct.
#[inline]
pub fn is_here(vcpu: &Vcpu) -> bool {
    vcpu.arch.direct.is_some_and(Place::is_direct)
}

/// Makes the loaded vCPU direct if the conditions hold, or, if it is not configured for that, its vPE resident. It was
/// published, and has no pending requests.
#[cold]
#[inline(never)]
pub fn resume(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(place) = vcpu.arch.direct else { return injection::resume(cpu) };
    // The scheduler needs the CPU again: at the end of a slice, at a deadline, or as soon as the guest waits.
    let shared = cpu.slice_end.is_some() || cpu.deadline.is_some() || cpu.waiting_trapped;
    collect_here(cpu, vcpu);
    let Some(priorities) = gic::priorities().filter(|_| !shared && claims::has_housekeeper()) else { return };
    let settled = claims::late(cpu.index).may_become(owner(vcpu), timer::now(), ticks(SETTLE_US));
    // A trusted VM may own the SGIs that arrive at this CPU.
    let mine = trusted::owner_at(cpu.index).is_none_or(|other| other == owner(vcpu));
    let direct = settled && mine && try_enter(cpu, vcpu, place, priorities);
    let failures = place.attempted(direct);
    if !direct {
        retry_later(cpu, failures.min(DOUBLINGS));
    }
}

/// Makes the scheduler decide again on this CPU in 100 microseconds, doubled `doublings` times.
fn retry_later(cpu: &mut Cpu, doublings: u32) {
    let at = timer::now() + (ticks(RETRY_US) << doublings);
    // Another deadline of this CPU may be earlier.
    cpu.deadline = Some(cpu.deadline.map_or(at, |set| set.min(at)));
    timer::set_deadline(cpu.deadline);
}

/// Converts microseconds to ticks of the counter.
fn ticks(microseconds: u64) -> u64 {
    timer::frequency() * microseconds / 1_000_000
}

/// Requests this CPU's late SGIs for the vCPU that was direct here, and takes the requests of `vcpu`, which is loaded here.
/// No vCPU is direct here.
fn collect_here(cpu: &Cpu, vcpu: &Vcpu) {
    let late = redistributor::take_late_sgis(cpu.index);
    if late != 0
        && let Some(of) = trusted::owner_at(cpu.index).or_else(|| claims::late(cpu.index).owner()).and_then(find)
    {
        (0..16).filter(|intid| late >> intid & 1 != 0).for_each(|intid| of.arch.requests.post_sgi(intid));
        if of.id != vcpu.id {
            cpu::notify(of);
        }
    }
    delivery::pull(cpu);
}

/// Requests the late SGIs of a VM, none of whose vCPUs is loaded, for its vCPUs.
pub fn collect_late(vm: &Vm) {
    if vm.vcpus.iter().all(|vcpu| vcpu.arch.direct.is_none()) {
        return;
    }
    for cpu in SCHEDULE.online().iter().map(CpuId::index) {
        match trusted::owner_at(cpu) {
            Some(owner) => {
                // No other VM's vCPU is direct there.
                if usize::from(owner.vm) == vm.number {
                    post_late(cpu, owner);
                }
            }
            None => claims::late(cpu).collect(vm.number as u8, |owner| post_late(cpu, owner)),
        }
    }
}

/// Requests a CPU's late SGIs, which are `owner`'s.
fn post_late(cpu: usize, owner: Owner) {
    let late = redistributor::take_late_sgis(cpu);
    if let Some(of) = find(owner) {
        (0..16).filter(|intid| late >> intid & 1 != 0).for_each(|intid| of.arch.requests.post_sgi(intid));
    }
}

/// Discards late SGIs of VM `number`, which is being reset. They stay pending, without an owner, until their CPU takes
/// them. [`Trust::reset`] discards those of a trusted VM.
pub fn discard_late(number: usize) {
    SCHEDULE.online().iter().for_each(|cpu| claims::late(cpu.index()).forget(number as u8));
}

/// Makes the loaded vCPU direct. Returns false if a condition does not hold: its interrupts stay virtual.
fn try_enter(cpu: &Cpu, vcpu: &'static Vcpu, place: &Place, priorities: HostPriorities) -> bool {
    let interface = Interface::new(cpu.index, vcpu);
    let vmcr = interface.vmcr();
    // With group 1 disabled, no kick would end a WFI. A common binary point that only the guest has set can't be handed
    // over: ICC_CTLR_EL1.CBPR may be read-only.
    if !vmcr.group_enabled(true) || vmcr.common_binary_point() != interface.has_common_binary_point() {
        return false;
    }
    if !claims::late(cpu.index).enter(owner(vcpu)) {
        return false;
    }
    let own_root = read_sysreg!(VTTBR_EL2);
    place.fill_root(own_root);
    // Before the vCPU is published, and so before another CPU revokes it: this CPU must not cache translations of the VM's
    // own root after that CPU's TLBI.
    place.load_root();
    place.publish(cpu, vcpu);
    let requested = cpu::needs_resched(cpu) || !vcpu.arch.requests.is_empty();
    let direct = match requested {
        true => None,
        false => {
            let mut interface = Interface::new(cpu.index, vcpu);
            let mut distributor = vcpu.vm().arch.distributor.lock();
            let (direct, kick) = vcpu.arch.redistributor.lock().enter_direct(&mut distributor, &mut interface, sgi::reserved());
            drop(distributor);
            delivery::deliver(vcpu.vm(), kick);
            direct
        }
    };
    let Some(direct) = direct else {
        place.unpublish(cpu);
        write_sysreg!(VTTBR_EL2, own_root);
        vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
        // Pairs with a sender's (`cpu::running_on`): it finds that the vCPU runs here, or its request is found below.
        fence(Ordering::SeqCst);
        collect_here(cpu, vcpu);
        return false;
    };
    redistributor::hand_over(cpu.index, &direct, priorities);
    // Read after `publish`: see `Trust::redistributor_written`.
    let sends = vcpu.vm().arch.trust.as_ref().is_some_and(Trust::is_in_force);
    place.set_sends(sends);
    if sends {
        physical_interface::hand_over_all(vmcr);
        reach(cpu, vcpu, CpuInterface::Physical);
    } else {
        physical_interface::hand_over(vmcr, priorities);
        reach(cpu, vcpu, CpuInterface::Group1);
    }
    write_sysreg!(VBAR_EL2, Vectors::Direct.base());
    true
}

/// Selects the CPU interface that the loaded vCPU's accesses to ICC_* reach.
fn reach(cpu: &Cpu, vcpu: &Vcpu, interface: CpuInterface) {
    traps::set_cpu_interface(interface);
    Interface::new(cpu.index, vcpu).set_traps(interface);
}

/// Ends direct interrupts of the vCPU that is loaded here, without publishing that it runs here.
#[cold]
#[inline(never)]
fn leave(cpu: &Cpu, vcpu: &Vcpu, place: &Place) {
    place.unpublish(cpu);
    write_sysreg!(VBAR_EL2, vectors::base());
    reach(cpu, vcpu, CpuInterface::Virtual);
    let mut interface = Interface::new(cpu.index, vcpu);
    let vmcr = match place.sends() {
        true => physical_interface::all_written_to(interface.vmcr()),
        false => physical_interface::written_to(interface.vmcr()),
    };
    let active = redistributor::stop(cpu.index) & all();
    let mut redistributor = vcpu.arch.redistributor.lock();
    let ap1r = match gic::priorities() {
        Some(priorities) => {
            physical_interface::drop_priorities(vmcr, priorities, active, |intid| redistributor.acknowledged_priority(intid))
        }
        None => [0; 4],
    };
    gic::open_interface();
    let (_, ap0r, _) = interface.read_state();
    interface.write_state(vmcr.0, &ap0r, &ap1r);
    let observed = redistributor::take_back(cpu.index, all(), trusted::sgis_at(cpu.index));
    redistributor.leave_direct(observed, &interface);
    redistributor.accept(vcpu.arch.requests.take());
    drop(redistributor);
    vcpu.vm().arch.load_own_root();
    delivery::synchronize(vcpu, cpu.index);
}

/// Ends direct interrupts, if the loaded vCPU has them, because it is about to be left.
pub fn leave_for_scheduler(cpu: &Cpu) {
    let vcpu = cpu.vcpu();
    if let Some(place) = vcpu.arch.direct.filter(|place| place.is_direct()) {
        leave(cpu, vcpu, place);
    }
}

/// Ends direct interrupts of the loaded vCPU, if it has them, because the handler of this exit needs its list registers.
/// The vCPU continues after the exit.
pub fn leave_for_handler(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let Some(place) = vcpu.arch.direct.filter(|place| place.is_direct()) else { return };
    leave(cpu, vcpu, place);
    // `leave` selects ordinary vectors, and no scheduler that would select recording ones runs before the next exit.
    if cpu.recorder.is_on() {
        vectors::trace(true);
    }
    vcpu.runs_on.store(cpu.index as u32, Ordering::Relaxed);
    // As in `try_enter`.
    fence(Ordering::SeqCst);
    collect_here(cpu, vcpu);
    retry_later(cpu, 0);
}

/// The outcome of a second-stage fault by which Stile regains this CPU; `None` if the fault has another cause.
pub fn regained(cpu: &mut Cpu, ipa: u64, row: RowId) -> Option<Outcome> {
    let vcpu = cpu.vcpu();
    let place = vcpu.arch.direct.filter(|place| place.is_direct())?;
    // `Place::revoke` has emptied the whole root, while the VM's own root has a table for the address: it is the guest's RAM,
    // firmware, flash or stolen time.
    if !place.is_empty_at(ipa) || !vcpu.vm().arch.tables.has_table_at(ipa) {
        return None;
    }
    leave(cpu, vcpu, place);
    cpu.leave = Leave::Resched;
    Some(Outcome::leave(row))
}

/// Applies a guest's trapped write of ICC_PMR_EL1 or ICC_CTLR_EL1, which is already in [`Interface`], to the physical CPU
/// interface if the vCPU is direct.
pub fn written(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    if is_here(vcpu) {
        let interface = Interface::new(cpu.index, vcpu);
        let vmcr = interface.vmcr();
        match gic::priorities() {
            Some(priorities) if vmcr.common_binary_point() == interface.has_common_binary_point() => {
                physical_interface::mirror(vmcr, priorities);
            }
            _ => leave_for_handler(cpu),
        }
    }
}

/// Reads ICC_RPR_EL1 of a guest whose interrupts are direct; `None` if they aren't.
pub fn running_priority(vcpu: &Vcpu) -> Option<u64> {
    is_here(vcpu).then(physical_interface::running_priority)
}

/// Handles a write of ICC_DIR_EL1 by a guest whose interrupts are direct. Returns false if they aren't.
pub fn deactivate(vcpu: &Vcpu, intid: u32) -> bool {
    let direct = is_here(vcpu);
    if direct && all().checked_shr(intid).is_some_and(|bits| bits & 1 != 0) {
        gic::deactivate(intid);
    }
    direct
}

/// Handles a trapped write of ICC_IGRPEN1_EL1. Disabling group 1 ends direct interrupts: no kick would end a WFI.
pub fn set_group1(cpu: &mut Cpu, value: u64) {
    if value & 1 == 0 {
        leave_for_handler(cpu);
    }
    Interface::new(cpu.index, cpu.vcpu()).set_group1(value & 1 != 0);
}

/// Whether writes of ICC_IGRPEN1_EL1 can trap (FEAT_FGT).
pub fn traps_group_enables() -> bool {
    features::get().fgt
}
