//! Delivery of virtual interrupts: into list registers of the vCPU loaded here, by request and kick to others. A [`Kick`]
//! is the set of vCPUs that must synchronize their interrupts with the distributor after it changed (crate `stile-vgic`).

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use stile_vgic::{Delivery, Kick, PendingRequests, Requests};

use super::interface::Interface;
use crate::arch::aarch64::host::cpu::{Cpu, this_index};
use crate::cpu;
use crate::once::Once;
use crate::vm::{Vcpu, Vm};

/// Routes held LPIs of a VM, by its number, to this CPU, by its own. Set before the first VM has PCI functions.
pub static RELEASE: Once<fn(usize, usize)> = Once::new();

/// Handles an acknowledged physical interrupt of a timer of a vCPU that is loaded here. Returns false if it needs
/// [`inject_timer`].
#[inline(always)]
pub fn raise_timer(cpu: &Cpu, vcpu: &Vcpu, intid: u32) -> bool {
    vcpu.arch.shortcuts.raise_hw_ppi(&mut Interface::new(cpu.index, vcpu), intid)
}

/// Injects a timer interrupt of a vCPU that is loaded here, without the fast path.
pub fn inject_timer(vcpu: &Vcpu, cpu: usize, intid: u32) {
    let delivery = vcpu.arch.redistributor.lock().inject_hw_ppi(&mut Interface::new(cpu, vcpu), intid);
    finish(vcpu, cpu, delivery);
}

/// Takes the requests of the loaded vCPU: moves interrupts that others made pending into its list registers.
#[inline(always)]
pub fn pull(cpu: &Cpu) {
    if !cpu.vcpu().arch.requests.is_empty() {
        pull_some(cpu);
    }
}

#[inline(never)]
fn pull_some(cpu: &Cpu) {
    let requests = take_requests(cpu);
    if !requests.is_empty() {
        accept(cpu.vcpu(), cpu.index, requests);
    }
}

/// First half of [`pull`]. Returns the requests left for [`accept`].
#[inline(always)]
pub fn take_requests(cpu: &Cpu) -> Requests {
    let vcpu = cpu.vcpu();
    vcpu.arch.shortcuts.take_requests(&vcpu.arch.requests, &mut Interface::new(cpu.index, vcpu))
}

/// Handles requests taken for a vCPU that is loaded here.
#[inline]
pub fn accept(vcpu: &Vcpu, cpu: usize, requests: Requests) {
    let requests = vcpu.arch.shortcuts.raise_posted(requests, &mut Interface::new(cpu, vcpu));
    if !requests.is_empty() {
        accept_slowly(vcpu, cpu, requests);
    }
}

#[cold]
#[inline(never)]
fn accept_slowly(vcpu: &Vcpu, cpu: usize, requests: Requests) {
    let mut redistributor = vcpu.arch.redistributor.lock();
    redistributor.accept(requests);
    let delivery = redistributor.sync_private(&mut Interface::new(cpu, vcpu));
    drop(redistributor);
    if requests.spis() {
        synchronize_posted(vcpu, cpu, requests);
    } else {
        finish(vcpu, cpu, delivery);
    }
}

/// Moves all pending interrupts of a vCPU that is loaded here, including the SPIs of requests that were taken for it,
/// into list registers.
#[cold]
pub fn synchronize_posted(vcpu: &Vcpu, cpu: usize, requests: Requests) {
    let mut others = Kick::NONE;
    for spi in requests.posted() {
        let mut distributor = vcpu.vm().arch.distributor.lock();
        let is_done = vcpu.arch.redistributor.lock().pulse_posted(&mut distributor, &mut Interface::new(cpu, vcpu), spi);
        drop(distributor);
        if !is_done {
            others |= pulse(vcpu.vm(), spi).without(vcpu.arch.index);
        }
    }
    synchronize(vcpu, cpu);
    deliver(vcpu.vm(), others);
}

/// Makes an edge-triggered SPI pending in the distributor. Returns the vCPUs to synchronize.
fn pulse(vm: &Vm, spi: u32) -> Kick {
    let kick = vm.arch.distributor.lock().pulse(spi);
    if let Some(targets) = vm.arch.targets
        && let Some(target) = kick.first().and_then(|target| vm.vcpus.get(target))
    {
        targets.set(spi, target);
    }
    kick
}

/// The last target vCPU of each SPI that can be posted: a hint, as the distributor has the route. Null before the first one.
/// For VMs that are never destroyed.
pub struct Targets([AtomicPtr<Vcpu>; Targets::COUNT]);

impl Targets {
    const COUNT: usize = (PendingRequests::POSTED.end - PendingRequests::POSTED.start) as usize;

    /// No targets.
    pub const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; Targets::COUNT])
    }

    fn place(&self, spi: u32) -> Option<&AtomicPtr<Vcpu>> {
        self.0.get(spi.wrapping_sub(PendingRequests::POSTED.start) as usize)
    }

    #[inline]
    fn of(&self, spi: u32) -> Option<&'static Vcpu> {
        // SAFETY: the pointer is null, or `set` has stored it: from a `&'static Vcpu` of a VM that is never destroyed, with
        // release ordering, so that the vCPU's contents are visible.
        unsafe { self.place(spi)?.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the target of an SPI: a vCPU of a VM that is never destroyed.
    fn set(&self, spi: u32, vcpu: &'static Vcpu) {
        if let Some(place) = self.place(spi) {
            place.store(ptr::from_ref(vcpu).cast_mut(), Ordering::Release);
        }
    }
}

/// Posts an edge of an SPI to another VM than the running one, without a lock. In the common case the target vCPU runs, and
/// makes the SPI pending in a list register. Returns false if the edge must be sent by [`send_spis`].
#[inline]
pub fn post_spi(vm: &Vm, spi: u32) -> bool {
    let Some(vcpu) = vm.arch.targets.and_then(|targets| targets.of(spi)) else { return false };
    vcpu.arch.requests.post_spi(spi) && (cpu::kick_if_running(vcpu) || !vcpu.arch.requests.withdraw_spi(spi))
}

/// Sends edges of SPIs to a VM by its distributor. Synchronizes their target vCPUs once for all edges, so that the exit is
/// bounded.
#[cold]
#[inline(never)]
pub fn send_spis(vm: &Vm, spis: impl Iterator<Item = u32>) {
    let kick = spis.fold(Kick::NONE, |kick, spi| kick | pulse(vm, spi));
    deliver(vm, kick);
}

/// Moves SPIs that were posted to a vCPU that is now off to the distributor, which may route them to another vCPU. The vCPU
/// is no longer published as running.
pub fn release_posted(vcpu: &Vcpu) {
    send_spis(vcpu.vm(), vcpu.arch.requests.take_posted().posted());
}

/// Completes a delivery to a vCPU that is loaded here: if the redistributor alone was not enough, by the slow path, with the
/// distributor's lock.
#[inline(always)]
pub fn finish(vcpu: &Vcpu, cpu: usize, delivery: Delivery) {
    if delivery != Delivery::Done {
        synchronize(vcpu, cpu);
    }
}

/// Moves all pending interrupts of a vCPU that is loaded here, including SPIs, into list registers.
#[cold]
pub fn synchronize(vcpu: &Vcpu, cpu: usize) {
    if vcpu.vm().arch.functions.is_some() {
        RELEASE.get()(vcpu.vm().number, cpu);
    }
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let kick = vcpu.arch.redistributor.lock().sync(&mut distributor, &mut Interface::new(cpu, vcpu));
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

/// Handles the maintenance interrupt: list registers became free while interrupts overflowed, or a level has to be
/// sampled again.
#[cold]
pub fn maintain(vcpu: &Vcpu, cpu: usize) {
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let mut redistributor = vcpu.arch.redistributor.lock();
    let mut interface = Interface::new(cpu, vcpu);
    let kick = redistributor.maintenance(&mut distributor, &mut interface);
    interface.withdraw_asserted();
    drop(redistributor);
    drop(distributor);
    deliver(vcpu.vm(), kick);
}

/// Pulses an SPI in the list register of a vCPU that is loaded here. Returns false if that needs the distributor's
/// pulse and [`deliver`].
#[inline]
pub fn pulse_resident(vcpu: &Vcpu, cpu: usize, spi: u32) -> bool {
    let mut distributor = vcpu.vm().arch.distributor.lock();
    vcpu.arch.redistributor.lock().pulse_resident(&mut distributor, &mut Interface::new(cpu, vcpu), spi)
}

/// Maximum number of vCPUs whose interrupts one exit synchronizes, at up to 8,000 instructions each. The others do so
/// themselves, so that the exit is bounded, however many vCPUs the VM has.
pub const AT_ONCE: usize = 4;

/// Synchronizes the interrupts of the vCPUs of a kick. The caller holds no lock of the VM's interrupt controller.
pub fn deliver(vm: &Vm, kick: Kick) {
    let mut todo = kick;
    for _ in 0..AT_ONCE {
        let Some(index) = todo.into_iter().next() else { return };
        todo = todo.without(index);
        if let Some(vcpu) = vm.vcpus.get(index) {
            todo |= sync_spis(vcpu);
        }
    }
    if !todo.is_empty() {
        announce(vm, todo);
    }
}

/// Makes vCPUs synchronize their interrupts when they run next. Those that are blocked wake: spuriously, if there is
/// nothing for them.
#[cold]
#[inline(never)]
fn announce(vm: &Vm, kick: Kick) {
    for vcpu in kick.into_iter().filter_map(|index| vm.vcpus.get(index)) {
        vcpu.arch.requests.announce_spis();
        cpu::notify(vcpu);
    }
}

/// Synchronizes the interrupts of one vCPU, or makes it do so if it is loaded on another CPU. Returns the vCPUs to
/// synchronize next.
fn sync_spis(vcpu: &Vcpu) -> Kick {
    let mut distributor = vcpu.vm().arch.distributor.lock();
    let mut redistributor = vcpu.arch.redistributor.lock();
    if cpu::runs_here(vcpu) {
        return redistributor.sync(&mut distributor, &mut Interface::new(this_index(), vcpu));
    }
    if redistributor.is_loaded() {
        drop(redistributor);
        drop(distributor);
        vcpu.arch.requests.announce_spis();
        cpu::notify(vcpu);
        return Kick::NONE;
    }
    let kick = redistributor.sync_saved(&mut distributor);
    let wakes = redistributor.has_deliverable_saved();
    drop(redistributor);
    drop(distributor);
    if wakes {
        // A vCPU with an EL2 may be running: while L2 runs, the list registers are L2's, and its own interrupts are saved.
        cpu::notify(vcpu);
    }
    kick
}

/// Makes another vCPU reevaluate its SGIs and PPIs after this vCPU changed them.
pub fn sync_private(vcpu: &Vcpu) {
    let mut redistributor = vcpu.arch.redistributor.lock();
    if redistributor.is_loaded() {
        drop(redistributor);
        vcpu.arch.requests.announce_private();
        cpu::notify(vcpu);
    } else if redistributor.sync_private_saved() == Delivery::Done {
        let wakes = redistributor.has_deliverable_saved();
        drop(redistributor);
        if wakes {
            cpu::notify(vcpu);
        }
    } else {
        drop(redistributor);
        deliver(vcpu.vm(), Kick::one(vcpu.arch.index));
    }
}
