//! Physical interrupts, and what guests do with their virtual interrupt controller.

use core::sync::atomic::Ordering;

use stile_board::intid;
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_sysreg::syndrome::DataAbort;
use stile_vgic::{Delivery, Kick, Read, Sgi, SgiRegister, Size};

use crate::arch::aarch64::cpu::Cpu;
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::interface::Interface;
use crate::arch::aarch64::{gic, interrupts};
use crate::cpu::{self, Leave};
use crate::vm::{Vcpu, Vm};

/// A physical IRQ came while a guest ran.
#[unsafe(no_mangle)]
extern "C" fn handle_irq(cpu: &mut Cpu, _esr: u64) -> Outcome {
    let intid = gic::acknowledge();
    // The guest's timers first: their deactivation is the guest's.
    if intid == intid::TIMER_EL1_VIRTUAL || intid == intid::TIMER_EL1_PHYSICAL {
        gic::drop_priority(intid);
        let vcpu = cpu.vcpu();
        let delivery = vcpu.arch.redistributor.lock().inject_hw_ppi(&mut Interface::new(cpu.index), intid);
        finish(cpu, vcpu, delivery);
        return Outcome::again(if intid == intid::TIMER_EL1_VIRTUAL { rows::IRQ_VIRTUAL_TIMER } else { rows::IRQ_PHYSICAL_TIMER });
    }
    if gic::is_special(intid) {
        return Outcome::again(rows::IRQ_SPURIOUS);
    }
    gic::drop_priority(intid);
    gic::deactivate(intid);
    if intid == gic::KICK {
        if cpu::was_called(cpu) {
            cpu.leave = Leave::Attention;
            return Outcome::leave(rows::IRQ_KICK);
        }
        pull(cpu);
        return Outcome::again(rows::IRQ_KICK);
    }
    let (row, timer) = own(cpu, intid);
    if timer {
        cpu.leave = Leave::Timer;
        return Outcome::leave(row);
    }
    Outcome::again(row)
}

/// Interrupts that are Stile's own, other than kicks. Returns the ledger's row, and whether it was the timer.
fn own(cpu: &mut Cpu, intid: u32) -> (RowId, bool) {
    if intid == interrupts::timer() {
        (rows::IRQ_SLICE, true)
    } else if intid == interrupts::maintenance() {
        // The list registers have news: the engine looks at all of them.
        if let Some(vcpu) = cpu.vcpu {
            maintain(vcpu, cpu.index);
        }
        (rows::IRQ_MAINTENANCE, false)
    } else if Some(intid) == interrupts::uart() {
        crate::console_interrupt();
        (rows::IRQ_UART, false)
    } else {
        (rows::IRQ_DEVICE, false)
    }
}

/// A physical interrupt may have come while this CPU had nothing to run. What is loaded, if anything, sleeps.
pub fn idle(cpu: &mut Cpu) {
    let intid = gic::acknowledge();
    if gic::is_special(intid) {
        return;
    }
    gic::drop_priority(intid);
    if intid == intid::TIMER_EL1_VIRTUAL || intid == intid::TIMER_EL1_PHYSICAL {
        let Some(vcpu) = cpu.vcpu else {
            // Of a vCPU that is off: its timers were stopped while this was on its way.
            gic::deactivate(intid);
            return;
        };
        let delivery = vcpu.arch.redistributor.lock().inject_hw_ppi(&mut Interface::new(cpu.index), intid);
        finish(cpu, vcpu, delivery);
        if interrupts::is_pending(cpu, vcpu) {
            cpu::wake(vcpu);
        }
        return;
    }
    gic::deactivate(intid);
    if intid == gic::KICK {
        cpu::was_called(cpu);
    } else {
        // The timer's own work is done by whoever idles.
        let _ = own(cpu, intid);
        if intid == interrupts::maintenance()
            && let Some(vcpu) = cpu.vcpu
            && interrupts::is_pending(cpu, vcpu)
        {
            cpu::wake(vcpu);
        }
    }
}

/// Brings into list registers what others made pending for the vCPU that is loaded.
#[inline]
pub fn pull(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let delivery = if vcpu.arch.spis_wait.load(Ordering::Acquire) {
        Delivery::NeedsSync
    } else {
        vcpu.arch.redistributor.lock().sync_private(&mut Interface::new(cpu.index))
    };
    finish(cpu, vcpu, delivery);
}

/// If the redistributor alone could not do it: with the distributor.
#[inline(always)]
fn finish(cpu: &Cpu, vcpu: &Vcpu, delivery: Delivery) {
    if delivery != Delivery::Done {
        synchronize(vcpu, cpu.index);
    }
}

/// Brings everything that is pending for a vCPU that is loaded on this CPU, SPIs included, into list registers.
#[cold]
pub fn synchronize(vcpu: &Vcpu, cpu: usize) {
    vcpu.arch.spis_wait.store(false, Ordering::Release);
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let kick = vcpu.arch.redistributor.lock().sync(&mut distributor, &mut Interface::new(cpu));
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

/// The GIC's maintenance interrupt: list registers came free while more was waiting, or a level has to be sampled again.
#[cold]
fn maintain(vcpu: &Vcpu, cpu: usize) {
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let kick = vcpu.arch.redistributor.lock().maintenance(&mut distributor, &mut Interface::new(cpu));
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

/// Makes the vCPUs of a kick look at their interrupts. No lock of the VM's interrupt controller may be held.
pub fn deliver(vm: &Vm, kick: Kick) {
    let mut todo = kick;
    // Each round moves an interrupt on, so this ends; the bound is against a mistake in the engine.
    for _ in 0..64 {
        let Some(index) = todo.into_iter().next() else { return };
        todo = todo.without(index);
        if let Some(vcpu) = vm.vcpus.get(index) {
            todo |= attend(vcpu);
        }
    }
}

/// Makes one vCPU look at SPIs. Returns who must look then.
fn attend(vcpu: &Vcpu) -> Kick {
    let here = Cpu::this_index();
    if vcpu.runs_on.load(Ordering::Relaxed) == here as u32 {
        vcpu.arch.spis_wait.store(false, Ordering::Release);
        let mut distributor = vcpu.vm().arch.distributor.lock();
        return vcpu.arch.redistributor.lock().sync(&mut distributor, &mut Interface::new(here));
    }
    vcpu.arch.spis_wait.store(true, Ordering::Release);
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let mut redistributor = vcpu.arch.redistributor.lock();
    if redistributor.is_loaded() {
        drop(redistributor);
        drop(distributor);
        cpu::notify(vcpu);
        return Kick::NONE;
    }
    let kick = redistributor.sync_saved(&mut distributor);
    let wakes = redistributor.has_deliverable_saved();
    drop(redistributor);
    drop(distributor);
    if wakes {
        cpu::wake(vcpu);
    }
    kick
}

/// Makes a vCPU look at its SGIs and PPIs, after another one changed them.
fn attend_private(vcpu: &Vcpu) {
    let mut redistributor = vcpu.arch.redistributor.lock();
    if redistributor.is_loaded() {
        drop(redistributor);
        cpu::notify(vcpu);
    } else if redistributor.sync_private_saved() == Delivery::Done {
        let wakes = redistributor.has_deliverable_saved();
        drop(redistributor);
        if wakes {
            cpu::wake(vcpu);
        }
    } else {
        drop(redistributor);
        deliver(vcpu.vm(), Kick::one(vcpu.arch.index));
    }
}

/// ICC_SGI1R_EL1, ICC_SGI0R_EL1, ICC_ASGI1R_EL1.
#[inline]
pub fn send_sgi(cpu: &mut Cpu, register: SgiRegister, value: u64) {
    let vcpu = cpu.vcpu();
    let vm = vcpu.vm();
    let me = vcpu.arch.index;
    let sgi = Sgi::decode(register, value, me, vm.vcpus.len());
    for index in sgi.targets {
        let Some(&target) = vm.vcpus.get(index) else { continue };
        if index == me {
            let delivery = target.arch.redistributor.lock().send_sgi_self(&mut Interface::new(cpu.index), sgi.intid, sgi.group1);
            finish(cpu, vcpu, delivery);
        } else {
            let news = target.arch.redistributor.lock().post_sgi(sgi.intid, sgi.group1);
            if news {
                cpu::notify(target);
            }
        }
    }
}

/// ICC_DIR_EL1, trapped while more interrupts are in flight than there are list registers.
pub fn write_dir(cpu: &mut Cpu, intid: u32) {
    let vcpu = cpu.vcpu();
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let kick = vcpu.arch.redistributor.lock().deactivate(&mut distributor, &mut Interface::new(cpu.index), intid);
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

/// An access to GICD. Returns what a load gives.
#[inline]
pub fn distributor_access(cpu: &mut Cpu, offset: u32, access: DataAbort, stored: u64) -> u64 {
    let vm = cpu.vcpu().vm();
    let size = Size::from_sas(access.sas().into());
    if access.wnr() {
        let kick = vm.arch.distributor.lock().write(offset, size, stored);
        deliver(vm, kick);
        return 0;
    }
    let read = vm.arch.distributor.lock().read(offset, size);
    match read {
        Read::Value(value) => value,
        Read::Stale(holders) => {
            deliver(vm, holders);
            wait_for(cpu.vcpu(), cpu.index, || {
                let left = Kick(vm.arch.distributor.lock().unpublished().0 & holders.0);
                // One that was put since it was asked publishes from memory.
                let put = |index: &usize| vm.vcpus.get(*index).is_some_and(|vcpu| !vcpu.arch.redistributor.lock().is_loaded());
                left.into_iter().filter(put).for_each(|index| deliver(vm, Kick::one(index)));
                left.is_empty()
            });
            vm.arch.distributor.lock().read_published(offset, size)
        }
    }
}

/// An access to the redistributor of vCPU `of`. Returns what a load gives.
#[inline]
pub fn redistributor_access(cpu: &mut Cpu, of: usize, offset: u32, access: DataAbort, stored: u64) -> u64 {
    let vcpu = cpu.vcpu();
    let Some(&owner) = vcpu.vm().vcpus.get(of) else { return 0 };
    let size = Size::from_sas(access.sas().into());
    let own = of == vcpu.arch.index;
    if access.wnr() {
        let delivery = owner.arch.redistributor.lock().write(offset, size, stored);
        if delivery != Delivery::Done {
            if own { pull(cpu) } else { attend_private(owner) }
        }
        return 0;
    }
    let read = owner.arch.redistributor.lock().read(offset, size);
    match read {
        Read::Value(value) => value,
        Read::Stale(_) => {
            if own {
                pull(cpu)
            } else {
                attend_private(owner)
            }
            wait_for(vcpu, cpu.index, || {
                let redistributor = owner.arch.redistributor.lock();
                let (done, loaded) = (!redistributor.unpublished(), redistributor.is_loaded());
                drop(redistributor);
                if !done && !loaded {
                    attend_private(owner);
                }
                done
            });
            owner.arch.redistributor.lock().read_published(offset, size)
        }
    }
}

/// Waits until other CPUs have looked at their list registers. They may be waiting for this one in the same way, so it goes on
/// answering; and a VM that is being stopped is not waited for.
fn wait_for(vcpu: &Vcpu, cpu: usize, done: impl Fn() -> bool) {
    while !done() {
        if vcpu.vm().power.is_ending() {
            return;
        }
        if vcpu.arch.spis_wait.load(Ordering::Acquire) || vcpu.arch.redistributor.lock().unpublished() {
            synchronize(vcpu, cpu);
        }
        core::hint::spin_loop();
    }
}
