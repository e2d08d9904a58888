//! Virtual CPU interface while L2 runs: L1's ICH_* registers in the VNCR_EL2 page are loaded into the CPU, and L1's
//! own interrupts are kept in software.

use stile_board::intid;
use stile_nested_arm::vgic::{self, Deactivated, OnProcessor, Status};
use stile_nested_arm::vncr;
use stile_vgic::{Delivery, Kick, Redistributor};

use super::state::{Nested, Regime};
use crate::arch::aarch64::host::cpu::{Cpu, this_index};
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::interrupts::interface::{self, Interface};
use crate::arch::aarch64::interrupts::{self, delivery};
use crate::vm::Vcpu;

/// HCR_EL2.IMO.
const IMO: u64 = 1 << 4;

/// ICH_VTR_EL2 as L1 reads it: the CPU's, without GICv4's direct injection.
pub fn vtr() -> u64 {
    /// nV4: no direct injection of virtual interrupts.
    const NO_V4: u64 = 1 << 20;
    read_sysreg!(ICH_VTR_EL2) | NO_V4
}

/// Status of the list registers in the page.
pub fn status(nested: &Nested) -> Status {
    Status::of(&nested.page, interface::shape().list_registers)
}

/// Whether L2, which is not running, has an interrupt in a list register that may wake it.
pub fn guest_has_pending(nested: &Nested) -> bool {
    vgic::has_pending(&nested.page, interface::shape().list_registers)
}

/// Whether L1 routes its guest's interrupts to itself (HCR_EL2.IMO). Otherwise L1's interface is its guest's, too.
#[inline(always)]
pub fn routes_to_el2(nested: &Nested) -> bool {
    nested.page.get(vncr::HCR_EL2) & IMO != 0
}

/// Entry of a guest that has L1's interface: samples the lines that L1 changes in memory without a trap. The timers are just loaded, and
/// their physical interrupts have virtual EL2's active state.
#[cold]
pub fn enter_unrouted(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    resume_unrouted(cpu, vcpu, nested);
    if nested.held != 0 {
        sample_at_entry(cpu, vcpu, nested);
    }
}

/// Resumes a guest that has L1's interface after an exit that L1 does not see. Lines of timers are not sampled: a timer that the guest has
/// stopped stays [held](Nested::held), as its physical interrupt is active until the guest ends the virtual one.
#[cold]
pub fn resume_unrouted(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    if nested.asserts_maintenance {
        // L1 disables its guest's list registers (ICH_HCR_EL2.En in memory).
        sample_maintenance(cpu, vcpu, nested);
    }
}

/// Moves L1's own interrupts to software and loads its list registers for L2, whose interrupts L1 [routes to itself](routes_to_el2). Returns
/// whether L1 has an interrupt that ends L2's run immediately.
pub fn restore_guest(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) -> bool {
    if nested.held != 0 && !nested.active_is_guests {
        sample_at_entry(cpu, vcpu, nested);
    }
    let mut redistributor = vcpu.arch.redistributor.lock();
    let mut interface = Interface::new(cpu.index, vcpu);
    if redistributor.has_deliverable(&interface) {
        return true;
    }
    let active = redistributor.unload(&mut interface);
    interface.put(redistributor.interface());
    drop(redistributor);
    // The active physical interrupts were those of EL2's timers; now they are EL1's.
    nested.el2_active = interrupts::physical(active);
    if !nested.active_is_guests {
        nested.active_is_guests = true;
        move_active(cpu.index, nested.el2_active, nested.held);
    }
    let page = &nested.page;
    let vector = |slot: fn(usize) -> vncr::Slot| core::array::from_fn(|n| page.get(slot(n)) as u32);
    interface.write_state(page.get(vncr::ICH_VMCR_EL2), &vector(vncr::ich_ap0r), &vector(vncr::ich_ap1r));
    let held = nested.held;
    // L1's list registers link physical interrupts only of L2's timers.
    let behind = |intid: u32| (intid < 32 && held >> intid & 1 != 0).then_some(intid);
    nested.lists = Some(OnProcessor::load(page, interface::shape().list_registers, &mut interface, behind));
    write_sysreg!(ICH_HCR_EL2, vgic::control(page));
    false
}

/// Restores L1's interface, if [`restore_guest`] has replaced it.
pub fn restore_el2(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    let Some(lists) = nested.lists.take() else { return };
    let mut interface = Interface::new(cpu.index, vcpu);
    let page = &nested.page;
    let may_ask = lists.may_ask(page);
    let ended = lists.unload(page, &mut interface, read_sysreg!(ICH_HCR_EL2));
    let (vmcr, ap0r, ap1r) = interface.read_state();
    page.set(vncr::ICH_VMCR_EL2, vmcr);
    for n in 0..4 {
        page.set(vncr::ich_ap0r(n), ap0r[n].into());
        page.set(vncr::ich_ap1r(n), ap1r[n].into());
    }
    let asserts = may_ask && status(nested).asserts_maintenance(&nested.page);

    let requests = vcpu.arch.requests.take();
    let mut redistributor = vcpu.arch.redistributor.lock();
    // L1's own interrupts that it leaves to L2 to deactivate.
    for ended in ended.iter().filter(|ended| ended.intid < 32) {
        redistributor.deactivate_saved(1 << ended.intid);
        if ended.by_processor {
            nested.held &= !(1 << ended.intid);
        }
    }
    redistributor.accept(requests);
    if asserts != nested.asserts_maintenance {
        nested.asserts_maintenance = asserts;
        redistributor.set_ppi_level(intid::GIC_MAINTENANCE, asserts);
    }
    if nested.timers_raised {
        sample_saved(cpu.index, nested, &mut redistributor);
    }
    interface.load(redistributor.interface());
    let loaded = redistributor.load(&mut interface);
    drop(redistributor);
    if loaded.delivery != Delivery::Done || requests.spis() {
        delivery::synchronize(vcpu, cpu.index);
    }
    if ended.has_spis() {
        end_spis(vcpu, &ended);
    }
}

/// Samples the guest's timers, which are in the CPU, while L1's own interrupts are in software.
#[cold]
fn sample_saved(cpu: usize, nested: &mut Nested, redistributor: &mut Redistributor) {
    let active = redistributor.active_saved();
    nested.timers_raised = false;
    for (physical, rings) in TIMERS {
        let rings = nested.held >> physical & 1 != 0 && rings();
        redistributor.set_ppi_level(physical, rings);
        nested.timers_raised |= rings;
        if !rings && active >> physical & 1 == 0 {
            // Nothing deactivates it any more.
            drop_held(cpu, nested, physical);
        }
    }
    nested.timers_raised |= nested.held != 0;
}

/// L1's SPIs that it leaves to L2 to deactivate. Its own interface is loaded.
#[cold]
fn end_spis(vcpu: &Vcpu, ended: &Deactivated) {
    let vm = vcpu.vm();
    let mut distributor = vm.arch.distributor.lock();
    let spis = ended.iter().filter(|ended| ended.intid >= 32);
    let kick = spis.fold(Kick::NONE, |kick, ended| kick | distributor.clear_active(ended.intid));
    drop(distributor);
    delivery::deliver(vm, kick);
}

/// Samples lines that L1 changes in memory without a trap: its maintenance interrupt and its guest's timers. At
/// virtual EL2. The caller then synchronizes L1's list registers.
#[inline(always)]
pub fn sample_at_el2(vcpu: &Vcpu, nested: &mut Nested) {
    nested.asserts_maintenance = status(nested).asserts_maintenance(&nested.page);
    let mut redistributor = vcpu.arch.redistributor.lock();
    redistributor.set_ppi_level(intid::GIC_MAINTENANCE, nested.asserts_maintenance);
    // Its physical interrupt has the state that virtual EL2's timer needs, not this one.
    nested.held &= !lower_lines(&mut redistributor, nested.held, |physical, _| nested.waiting_timer_rings(physical));
}

/// Samples the guest's timers, just loaded: L1 may have stopped one in memory. L1's own interface is still loaded.
#[cold]
fn sample_at_entry(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    let mut redistributor = vcpu.arch.redistributor.lock();
    let over = lower_lines(&mut redistributor, nested.held, |_, rings| rings());
    let delivery = if over == 0 { Delivery::Done } else { redistributor.sync_private(&mut Interface::new(cpu.index, vcpu)) };
    drop(redistributor);
    nested.held &= !over;
    delivery::finish(vcpu, cpu.index, delivery);
}

/// Lowers the lines of a vCPU whose nested state is reset: those of the guest's timers, and the maintenance interrupt's.
pub fn lower_all_lines(redistributor: &mut Redistributor) {
    for intid in [intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL1_PHYSICAL, intid::GIC_MAINTENANCE] {
        redistributor.set_ppi_level(intid, false);
    }
}

/// Lowers L1's lines of the guest's timers that were `held` and have not expired; returns these.
fn lower_lines(redistributor: &mut Redistributor, held: u32, rings: impl Fn(u32, fn() -> bool) -> bool) -> u32 {
    let mut over = 0;
    for (physical, on_cpu) in TIMERS {
        if held >> physical & 1 != 0 && !rings(physical, on_cpu) {
            redistributor.set_ppi_level(physical, false);
            over |= 1 << physical;
        }
    }
    over
}

/// Samples the line of L1's maintenance interrupt. L1's own interface is loaded.
pub fn sample_maintenance(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    nested.asserts_maintenance = status(nested).asserts_maintenance(&nested.page);
    set_line(cpu, vcpu, intid::GIC_MAINTENANCE, nested.asserts_maintenance);
}

/// Sets the line of an L1 PPI. L1's own interface is loaded.
fn set_line(cpu: &mut Cpu, vcpu: &Vcpu, intid: u32, high: bool) {
    let mut redistributor = vcpu.arch.redistributor.lock();
    if redistributor.set_ppi_level(intid, high) && redistributor.sync_private(&mut Interface::new(cpu.index, vcpu)) != Delivery::Done {
        drop(redistributor);
        delivery::synchronize(vcpu, cpu.index);
    }
}

/// Changes the active state of EL1's timer interrupts on this CPU from one regime's to the other's.
#[inline(always)]
fn move_active(cpu: usize, from: u32, to: u32) {
    let differ = from ^ to;
    if differ == 0 {
        return;
    }
    for physical in [intid::TIMER_EL1_VIRTUAL, intid::TIMER_EL1_PHYSICAL] {
        if differ >> physical & 1 != 0 {
            gic::set_active(cpu, physical, to >> physical & 1 != 0);
        }
    }
}

/// ENABLE, IMASK, ISTATUS of a timer whose interrupt is asserted.
const RINGS: u64 = 0b101;

fn virtual_timer_rings() -> bool {
    read_sysreg!(CNTV_CTL_EL02) & 0b111 == RINGS
}

fn physical_timer_rings() -> bool {
    read_sysreg!(CNTP_CTL_EL02) & 0b111 == RINGS
}

/// EL1's timers: the physical interrupt, which is also the guest's virtual one, and whether it is asserted.
const TIMERS: [(u32, fn() -> bool); 2] =
    [(intid::TIMER_EL1_VIRTUAL, virtual_timer_rings), (intid::TIMER_EL1_PHYSICAL, physical_timer_rings)];

/// Samples the guest's timers after an end of interrupt, if L1 does not route its guest's interrupts to itself.
pub fn sample_timers(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    for (physical, rings) in TIMERS {
        if nested.held >> physical & 1 != 0 && !rings() {
            vcpu.arch.redistributor.lock().set_ppi_level(physical, false);
            drop_held(cpu.index, nested, physical);
        }
    }
}

/// Handles the end of an interrupt of a guest's timer.
fn drop_held(cpu: usize, nested: &mut Nested, physical: u32) {
    if nested.held >> physical & 1 != 0 {
        nested.held &= !(1 << physical);
        gic::set_active(cpu, physical, false);
    }
}

/// Prepares the active state of EL1's timer interrupts for virtual EL2. L1's own interface is loaded.
pub fn hand_back_timers(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    if nested.active_is_guests {
        nested.active_is_guests = false;
        move_active(cpu.index, nested.held, nested.el2_active);
    } else if nested.held != 0 && !routes_to_el2(nested) {
        release_held(cpu, vcpu, nested);
    }
    // Otherwise the guest has not run, and the state is already right.
}

/// Lowers the lines of the guest's timers, of which nothing is known while virtual EL2 runs. They are raised again when the guest has
/// its timers back, unless those have been stopped by then.
#[cold]
fn release_held(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested) {
    for (physical, _) in TIMERS {
        if nested.held >> physical & 1 != 0 {
            set_line(cpu, vcpu, physical, false);
        }
    }
    move_active(cpu.index, nested.held, 0);
    nested.held = 0;
}

/// Puts the state together with the guest's registers.
pub fn put(nested: &mut Nested) {
    if nested.regime == Regime::Guest {
        move_active(this_index(), nested.held, 0);
        nested.active_is_guests = false;
    }
}

/// Handles an acknowledged physical interrupt of one of L2's timers: it stays active for L2 until L2 or L1
/// deactivates it. L1's own interface is loaded.
pub fn guest_timer_expired(cpu: &mut Cpu, vcpu: &Vcpu, nested: &mut Nested, physical: u32) {
    nested.held |= 1 << physical;
    nested.timers_raised = true;
    set_line(cpu, vcpu, physical, true);
}
