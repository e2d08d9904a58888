//! Delivery of virtual interrupts: into list registers of the vCPU loaded here, by request and kick to others.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use stile_vgic::{Delivery, Kick, PendingRequests, Requests};

use super::interface::Interface;
use crate::arch::aarch64::host::cpu::{Cpu, this_index};
use crate::cpu;
use crate::once::Once;
use crate::vm::{Vcpu, Vm};

/// Routes held LPIs of a VM to this CPU. Set before the first VM has functions.
pub static RELEASE: Once<fn(usize, usize)> = Once::new();

/// Handles an acknowledged physical interrupt of a timer of a vCPU that is loaded here. Returns false if it needs
/// [`inject_timer`].
#[inline(always)]
pub fn raise_timer(cpu: &Cpu, vcpu: &Vcpu, intid: u32) -> bool {
    vcpu.arch.shortcuts.raise_hw_ppi(&mut Interface::new(cpu.index, vcpu), intid)
}

/// Injects a timer interrupt without the fast path.
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
        // SAFETY: the pointer is null, or of a complete vCPU of a VM that is never destroyed (`set`).
        unsafe { self.place(spi)?.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the target of an SPI: a vCPU of a VM that is never destroyed.
    fn set(&self, spi: u32, vcpu: &'static Vcpu) {
        if let Some(place) = self.place(spi) {
            place.store(ptr::from_ref(vcpu).cast_mut(), Ordering::Release);
        }
    }
}

/// Posts an edge of an SPI to another VM than the running one. Takes no lock; in the common case its vCPU runs, and makes
/// it pending in a list register. Returns false if it needs [`send_spis`].
#[inline]
pub fn post_spi(vm: &Vm, spi: u32) -> bool {
    let Some(vcpu) = vm.arch.targets.and_then(|targets| targets.of(spi)) else { return false };
    vcpu.arch.requests.post_spi(spi) && (cpu::kick_if_running(vcpu) || !vcpu.arch.requests.withdraw_spi(spi))
}

/// Sends edges of SPIs to a VM by its distributor. Synchronizes the vCPUs that they concern once, so that the exit is
/// bounded.
#[cold]
#[inline(never)]
pub fn send_spis(vm: &Vm, spis: impl Iterator<Item = u32>) {
    let kick = spis.fold(Kick::NONE, |kick, spi| kick | pulse(vm, spi));
    deliver(vm, kick);
}

/// Moves SPIs that were posted to a vCPU that is off now to the distributor, which may have them routed to another one.
/// Senders no longer find that it runs.
pub fn release_posted(vcpu: &Vcpu) {
    send_spis(vcpu.vm(), vcpu.arch.requests.take_posted().posted());
}

/// Slow path: needs the distributor.
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

/// vCPUs whose interrupts one exit synchronizes, each of which takes up to 8,000 instructions: the others do so
/// themselves. So an exit is bounded, however many vCPUs its VM has.
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

/// Offers pending SPIs to one vCPU. Returns the vCPUs to synchronize next.
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
        // It may run after all, with its own guest's interrupts loaded instead.
        cpu::notify(vcpu);
    }
    kick
}

/// Offers another vCPU's SGIs and PPIs to it after this vCPU changed them.
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
