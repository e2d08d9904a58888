//! MSIs of assigned PCI functions ("messages"): each vector has a host vector, which the IOMMU's remapping table names, and whose
//! interrupt sends the guest's message to the APICs of its VM.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stile_amd_iommu::RemappingEntry;
use stile_apic::Message;
use stile_board::{CpuId, CpuSet, MAX_VMS};
use stile_pci::{Action, Misses, Vector};

use super::failure;
use super::remapping::Messages;
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::cpu::{Cpu, MESSAGE_WORDS, this_index};
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::{delivery, events, window};
use crate::arch::x86_64::virt::state;
use crate::cpu;
use crate::once::Once;
use crate::vm::{self, Vcpu, Vm};

/// Number of host vectors for messages.
pub const VECTORS: usize = vector::MESSAGES_OF_FUNCTIONS as usize;

/// Destination of the messages of a host vector: the VM, and the address and data of the guest's message.
#[derive(Clone, Copy)]
struct Route(u64);

impl Route {
    /// The guest's entry is a message.
    const LEADS: u64 = 1 << 63;

    fn new(vm: usize, message: Option<Vector>) -> Route {
        let leads = message.map_or(0, |vector| Self::LEADS | u64::from(vector.data & 0xffff) << 32 | vector.address & 0xffff_ffff);
        Route((vm as u64) << 48 | leads)
    }

    /// Whether the guest's message, with any vector, is a fixed interrupt in physical destination mode for APIC `id` of VM `vm`.
    #[inline(always)]
    fn is_fixed_to(self, vm: usize, id: u32) -> bool {
        /// Bits to ignore. Data: the vector, level and trigger mode (all messages are edge-triggered), and reserved bits. Address: the
        /// redirection hint, and reserved bits.
        const ANY: u64 = 0xf8ff << 32 | 0xffb;
        const ADDRESS: u64 = 0xfee0_0000;
        // 0xff addresses all APICs.
        id < 0xff && self.0 & !ANY == Self::LEADS | (vm as u64) << 48 | ADDRESS | u64::from(id) << 12
    }

    fn vm(self) -> usize {
        (self.0 >> 48 & 0x7fff) as usize
    }

    fn message(self) -> Option<Message> {
        let (address, data) = (self.0 & 0xffff_ffff, (self.0 >> 32 & 0xffff) as u32);
        // Edge-triggered: nothing would signal the end of a level.
        Message::from_msi(address, data).filter(|_| self.0 & Self::LEADS != 0).map(|message| Message { level: false, ..message })
    }
}

/// A host vector.
struct HostVector {
    route: AtomicU64,
    /// Number of arrivals on CPUs where its vCPU did not run.
    misses: AtomicU32,
    /// Its remapping entry is off until a vCPU of its VM runs.
    held: AtomicBool,
    /// The function's remapping table, and the number of the vector in it.
    entry: Once<(&'static Messages, usize)>,
}

static HOST_VECTORS: [HostVector; VECTORS] =
    [const { HostVector { route: AtomicU64::new(0), misses: AtomicU32::new(0), held: AtomicBool::new(false), entry: Once::new() } };
        VECTORS];

/// Misses of all vectors of each VM in the current time slice.
static MISSES_OF_VM: [Misses; MAX_VMS] = [const { Misses::new() }; MAX_VMS];

/// Gives `count` host vectors from number `first` on to a function of VM `vm`. They arrive on this CPU, and their messages are dropped
/// until [`route`].
///
/// # Errors
/// A description: there are not as many.
pub fn assign(vm: usize, messages: &'static Messages, first: usize, count: usize) -> Result<(), &'static str> {
    let all = HOST_VECTORS.get(first..first + count).ok_or("there are no interrupt vectors left for its messages")?;
    for (index, host) in all.iter().enumerate() {
        host.route.store(Route::new(vm, None).0, Ordering::Relaxed);
        host.entry.set((messages, index));
        aim(first + index, Some(this_index()))?;
    }
    Ok(())
}

/// Checks that the IOMMU can interrupt these CPUs, on which a VM may run. Otherwise its messages would interrupt other VMs
/// without a bound: none of them can be moved to where it runs.
///
/// # Errors
/// A description: a CPU's APIC ID is too large.
pub fn check(cpus: &CpuSet) -> Result<(), &'static str> {
    let is_reached = |cpu: CpuId| RemappingEntry::fixed(0, apic::id_of(cpu.index())).is_some();
    let refusal = "a VM with PCI functions can run only on CPUs with APIC IDs up to 254: name some of them as its `cpus`";
    cpus.iter().all(is_reached).then_some(()).ok_or(refusal)
}

/// Directs a host vector to a CPU, or blocks it (`None`).
fn aim(number: usize, cpu: Option<usize>) -> Result<(), &'static str> {
    let Some((messages, index)) = HOST_VECTORS[number % VECTORS].entry.try_get() else { return Ok(()) };
    // The 32-bit format can't name APIC IDs from 255 on: the first CPU takes the interrupts of those.
    let apic = |cpu: usize| Some(apic::id_of(cpu)).filter(|&id| id < 0xff).unwrap_or(apic::id_of(0));
    messages.set(*index, cpu.map(|cpu| (vector::FIRST_MESSAGE + number as u8, apic(cpu))))
}

/// Sets the guest's message of host vector `number`, or drops its messages (`None`). Returns whether the message leads to an APIC. The
/// caller has the function's lock, and is thus the only writer of its routes.
pub fn route(number: usize, message: Option<Vector>) -> bool {
    let Some(host) = HOST_VECTORS.get(number) else { return false };
    let message = message.filter(|message| Message::from_msi(message.address, message.data).is_some());
    let vm = Route(host.route.load(Ordering::Relaxed)).vm();
    host.route.store(Route::new(vm, message).0, Ordering::Relaxed);
    message.is_some()
}

/// Handles the messages noted on this CPU. The caller has sent the EOI of one. `is_entered`: in the handler of an exit.
#[cold]
#[inline(never)]
pub fn take(cpu: &mut Cpu, is_entered: bool) {
    let mut ended = true;
    for word in 0..MESSAGE_WORDS {
        let mut noted = cpu.take_messages(word);
        while noted != 0 {
            if !ended {
                apic::end_of_interrupt();
            }
            ended = false;
            let number = word * 64 + noted.trailing_zeros() as usize;
            if !is_entered || !deliver_here(cpu, number) {
                deliver(cpu, number, is_entered);
            }
            noted &= noted - 1;
        }
    }
}

/// Returns the vector of the guest's message of host vector `number` if the loaded vCPU is known to be its only target.
#[inline(always)]
pub fn only_for(here: &Cpu, number: usize) -> Option<u8> {
    let (vcpu, route) = (here.vcpu(), Route(HOST_VECTORS.get(number)?.route.load(Ordering::Relaxed)));
    if route.is_fixed_to(vcpu.vm().number, vcpu.arch.id) && here.has_apic() {
        return Some((route.0 >> 32) as u8);
    }
    only_by_decoding(vcpu, route)
}

/// Slow path of [`only_for`]: decodes the message.
#[cold]
fn only_by_decoding(vcpu: &Vcpu, route: Route) -> Option<u8> {
    let message = route.message().filter(|_| route.vm() == vcpu.vm().number)?;
    delivery::is_only_target(vcpu, message).then_some(message.vector)
}

/// Fast path of [`deliver`] in an exit's handler: injects the guest's message if the loaded vCPU is known to be its only target.
/// Otherwise returns false, without effect.
#[inline(always)]
fn deliver_here(here: &mut Cpu, number: usize) -> bool {
    let Some(vector) = only_for(here, number) else { return false };
    let takes = window::can_interrupt() && !state::injects_at_interrupts();
    delivery::interrupt_self(here, vector, takes.into());
    true
}

/// Sends the guest's message of a host vector that has interrupted this CPU. A message that addresses no vCPU loaded here is a miss;
/// frequent misses move or hold the vector ([`Misses`]).
#[inline(never)]
fn deliver(here: &mut Cpu, number: usize, is_entered: bool) {
    let Some(host) = HOST_VECTORS.get(number) else { return };
    let route = Route(host.route.load(Ordering::Relaxed));
    let Some(vm) = vm::get(route.vm()) else { return };
    let loaded = here.vcpu.filter(|vcpu| vcpu.vm().number == vm.number);
    let message = route.message();
    if let Some(message) = message {
        let is_running = is_entered && loaded.is_some();
        delivery::send_of_device(vm, message, is_running.then_some(&mut *here));
        if is_running {
            delivery::pull(here);
        }
    }
    let addresses = |vcpu: &Vcpu| message.is_some_and(|message| delivery::is_addressed(vcpu, message));
    // No miss: the time was that of the message's own VM.
    if loaded.is_some_and(|vcpu| message.is_none() || addresses(vcpu)) {
        return;
    }
    let runs_on = |vcpu: &&'static Vcpu| cpu::running_on(vcpu);
    let target = vm.vcpus.iter().filter(|vcpu| addresses(vcpu)).find_map(runs_on).or_else(|| vm.vcpus.iter().find_map(runs_on));
    let missed = |runs: bool| {
        let of_vector = host.misses.fetch_add(1, Ordering::Relaxed);
        let vcpus = vm.vcpus.iter().filter(|vcpu| addresses(vcpu)).count();
        MISSES_OF_VM[vm.number % MAX_VMS].add(of_vector, vcpus as u32, runs, timer::now(), cpu::slice())
    };
    match target {
        Some(cpu) if cpu == here.index => {}
        Some(cpu) if missed(true) == Action::Move => failure::check(aim(number, Some(cpu))),
        None if missed(false) == Action::Hold => hold(vm, number, here.index),
        Some(_) | None => {}
    }
}

/// Blocks a vector that arrived while no vCPU of its VM ran, until one does. So a function takes time from other VMs for only a few
/// messages each time that its own VM leaves the CPUs.
fn hold(vm: &'static Vm, number: usize, here: usize) {
    failure::check(aim(number, None));
    HOST_VECTORS[number % VECTORS].held.store(true, Ordering::Release);
    // The next vCPU that is entered finds the event, and calls `release`.
    vm.vcpus.iter().for_each(|vcpu| events::hold(vcpu));
    if vm.vcpus.iter().any(|vcpu| cpu::running_on(vcpu).is_some()) {
        // That vCPU may have checked for events before this one was added.
        release(vm, here);
    }
}

/// Directs the held vectors of a VM, one of whose vCPUs is on this CPU, to this CPU. Messages that came while a vector was held are
/// lost: the guest gets one in their place, whether any came or not.
pub fn release(vm: &'static Vm, here: usize) {
    for (number, host) in HOST_VECTORS.iter().enumerate() {
        let route = Route(host.route.load(Ordering::Relaxed));
        if !host.held.load(Ordering::Relaxed) || route.vm() != vm.number || !host.held.swap(false, Ordering::Acquire) {
            continue;
        }
        failure::check(aim(number, Some(here)));
        if let Some(message) = Route(host.route.load(Ordering::Relaxed)).message() {
            delivery::send_of_device(vm, message, None);
        }
    }
}
