//! Events of a vCPU other than APIC interrupts: NMI, the 8259s' interrupt, INIT and SIPI (the manual, "MP
//! Initialization Protocol", "Nonmaskable Interrupt (NMI)").

use core::sync::atomic::{AtomicU32, Ordering};

use stile_ledger::RowId;

use super::deadline;
use super::deadlock::DeadlockCheck;
use super::window;
use crate::arch::x86_64::host::apic;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::inject::{NMI_BLOCKED, VALID};
use crate::arch::x86_64::virt::paravirtual_eoi::LocalApic;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::{self, Leave, Outcome};
use crate::once::Once;
use crate::vm::power::End;
use crate::vm::{Vcpu, Vm};

/// Releases the held messages of a VM's PCI functions, on the CPU of this number; set if there are any functions.
pub static RELEASE: Once<fn(&'static Vm, usize)> = Once::new();

/// Counter of pending NMIs: one that can be taken, and one latched behind it.
const NMIS: u32 = 0b11;
const MOST_NMIS: u32 = 2;
/// Pending interrupt of the 8259s.
const EXTERNAL: u32 = 1 << 2;
/// A device's deadline has changed.
const WATCH: u32 = 1 << 4;
/// An interrupt that the 8259s have supplied is not delivered yet. Its vector is in bits 15:8.
const ACKNOWLEDGED: u32 = 1 << 5;
const VECTOR: u32 = 0xff << VECTOR_SHIFT;
const VECTOR_SHIFT: u32 = 8;
/// The vCPU's VMX operation keeps an event of an L2 that an exception has replaced.
const REPLACED: u32 = 1 << 6;
/// Messages of the VM's PCI functions are held until it runs.
const HELD: u32 = 1 << 7;
/// INIT: powers off the vCPU, or resets the machine if it is the first one.
const INIT: u32 = 1 << 3;

/// Blocking by STI, by MOV SS and by an NMI ("Guest Non-Register State").
pub const BLOCKS_NMI: u64 = 0b1011;
/// In [`Field::ENTRY_INTERRUPTION`]: the vector and the type of an NMI.
const NMI: u64 = 2 << 8 | 2;

/// [`Events::phase`]: wait-for-SIPI.
const OFF: u32 = 0;
/// [`Events::phase`]: on.
const ON: u32 = 1 << 9;
/// [`Events::phase`]: INIT was received while on; being powered off.
const ENDING: u32 = 1 << 10;
/// Flag of [`ENDING`]: a SIPI was received as well, with the page in bits 7:0.
const STARTS: u32 = 1 << 8;
/// Flag of [`ON`]: INIT is blocked, and SIPI is ignored: the vCPU is in VMX operation ("Event Blocking").
const BLOCKS: u32 = 1 << 11;
/// Flag of [`BLOCKS`]: INIT was received.
const RECEIVED: u32 = 1 << 12;

/// Pending events of one vCPU.
pub struct Events {
    waiting: AtomicU32,
    phase: AtomicU32,
    /// Whether only these events end its wait.
    pub deadlock: DeadlockCheck,
}

impl Events {
    /// Events of a vCPU that is off.
    pub const fn new() -> Events {
        Events { waiting: AtomicU32::new(0), phase: AtomicU32::new(OFF), deadlock: DeadlockCheck::new() }
    }

    /// Resets to no pending events, with the vCPU on or off.
    pub fn reset(&self, on: bool) {
        self.waiting.store(0, Ordering::Relaxed);
        self.phase.store(if on { ON } else { OFF }, Ordering::Relaxed);
        self.deadlock.end();
    }

    /// Exports pending events and the power state.
    pub fn save(&self) -> (u32, u32) {
        (self.waiting.load(Ordering::Acquire), self.phase.load(Ordering::Acquire))
    }

    /// Imports events of a vCPU without VMX operation, reduced to those that a guest could have produced. `first`: the
    /// VM's first vCPU, which only a restart turns off. The PIT's deadline is checked again.
    pub fn restore(&self, (waiting, phase): (u32, u32), first: bool) {
        let ending = phase & (ON | ENDING) == ENDING && (!first || phase & STARTS != 0);
        let phase = match phase {
            _ if ending && phase & STARTS != 0 => phase & (ENDING | STARTS | 0xff),
            _ if ending => ENDING,
            OFF if !first => OFF,
            _ => ON,
        };
        let acknowledged = if first && waiting & ACKNOWLEDGED != 0 { waiting & (ACKNOWLEDGED | VECTOR) } else { 0 };
        let waiting = waiting & (NMIS | EXTERNAL) | acknowledged | WATCH | if ending { INIT } else { 0 };
        let nmis = (waiting & NMIS).min(MOST_NMIS);
        self.waiting.store(if phase == OFF { waiting & EXTERNAL } else { waiting & !NMIS | nmis }, Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    /// Whether the vCPU is on, or being powered off.
    pub fn is_scheduled(&self) -> bool {
        self.phase.load(Ordering::Acquire) != OFF
    }

    /// Blocks INIT, which stays pending, or unblocks it. One that was received before is not blocked. Called by the
    /// vCPU's own CPU.
    pub fn block_init(&self, on: bool) {
        let _ = self.change(|phase| match phase {
            ON if on => Some(ON | BLOCKS),
            _ if on || phase & BLOCKS == 0 => None,
            // Its sender has made it pending, or is about to.
            _ if phase & RECEIVED != 0 => Some(ENDING),
            _ => Some(ON),
        });
    }

    /// Whether INIT is blocked.
    fn blocks_init(&self) -> bool {
        self.phase.load(Ordering::Acquire) & BLOCKS != 0
    }

    /// Whether a blocked INIT is pending. It exits from a guest of the vCPU.
    #[inline]
    pub fn has_blocked_init(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & INIT != 0 && self.blocks_init()
    }

    /// Drops a blocked INIT, which has caused an exit.
    pub fn drop_init(&self) {
        self.clear(INIT);
        // An INIT of now is one with that, as its sender has seen the phase.
        let _ = self.change(|phase| (phase & RECEIVED != 0).then_some(phase & !RECEIVED));
    }

    /// Whether any event is pending.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Whether INIT is pending and not blocked: the vCPU must be left ([`leave`]).
    #[inline]
    pub fn init(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) & INIT != 0 && !self.blocks_init()
    }

    /// Whether an event is pending that does not depend on RFLAGS.IF.
    pub fn wakes(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) & NMIS != 0 || self.init()
    }

    /// Whether the vCPU is on, or about to be.
    pub fn is_on(&self) -> bool {
        !matches!(self.phase.load(Ordering::Acquire), OFF | ENDING)
    }

    /// Whether the vCPU is on, and not being powered off.
    fn is_running(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ON
    }

    /// Makes an interrupt of the 8259s pending again, whose vector they have supplied. Called by the vCPU's own CPU.
    pub fn put_back_external(&self, vector: u8) {
        // One that was put back before was delivered since: no other is acknowledged until then.
        self.clear(VECTOR);
        self.raise(ACKNOWLEDGED | u32::from(vector) << VECTOR_SHIFT);
    }

    /// Whether an interrupt is pending whose vector the 8259s have supplied.
    pub fn has_acknowledged(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & ACKNOWLEDGED != 0
    }

    /// Takes the pending interrupt whose vector the 8259s have supplied.
    fn take_acknowledged(&self) -> Option<u8> {
        let waiting = self.waiting.fetch_and(!(ACKNOWLEDGED | VECTOR), Ordering::AcqRel);
        (waiting & ACKNOWLEDGED != 0).then_some((waiting >> VECTOR_SHIFT) as u8)
    }

    /// Records whether the vCPU's VMX operation keeps an event of an L2 that an exception has replaced.
    pub fn note_replaced(&self, is_kept: bool) {
        if is_kept { self.raise(REPLACED) } else { self.clear(REPLACED) }
    }

    /// Whether the vCPU's VMX operation keeps an event of an L2 that an exception has replaced.
    pub fn has_replaced(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & REPLACED != 0
    }

    fn raise(&self, event: u32) {
        self.waiting.fetch_or(event, Ordering::AcqRel);
    }

    fn clear(&self, event: u32) {
        self.waiting.fetch_and(!event, Ordering::AcqRel);
    }

    /// Changes the phase to `next`'s result, if any, and returns the previous one.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }
}

/// Sends an NMI to a vCPU. Behind a pending one it needs no notification: the sender of that notifies, and a vCPU that
/// takes one, or is blocked, exits when it can take the next.
pub fn nmi(vcpu: &'static Vcpu) {
    let add = |waiting: u32| (waiting & NMIS < MOST_NMIS).then_some(waiting + 1);
    let before = vcpu.arch.events.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    if before.is_ok_and(|before| before & NMIS == 0) {
        cpu::notify(vcpu);
    }
}

/// Has a vCPU release held messages of its VM's functions when it is next entered.
pub fn hold(vcpu: &'static Vcpu) {
    vcpu.arch.events.raise(HELD);
}

/// Signals the 8259s' interrupt to a vCPU.
pub fn external(vcpu: &'static Vcpu) {
    vcpu.arch.events.raise(EXTERNAL);
    cpu::notify(vcpu);
}

/// Notifies a vCPU that a device's deadline has changed. If loaded here, it checks at its next pull.
pub fn watch(vcpu: &'static Vcpu) {
    vcpu.arch.events.raise(WATCH);
    if !cpu::runs_here(vcpu) {
        cpu::notify(vcpu);
    }
}

/// Sends INIT to a vCPU, which handles it later: the sender may hold the lock of the device that raised it.
pub fn init(vcpu: &'static Vcpu) {
    let before = vcpu.arch.events.change(|phase| match phase {
        _ if vcpu.arch.index == 0 => Some(phase),
        OFF => Some(OFF),
        _ if phase & BLOCKS != 0 => Some(phase | RECEIVED),
        _ => Some(ENDING),
    });
    if before.is_some_and(|phase| phase & !BLOCKS == ON) {
        vcpu.arch.events.raise(INIT);
        cpu::notify(vcpu);
    }
}

/// Leaves the loaded vCPU after INIT. On the first vCPU INIT resets the machine, as no firmware would handle it
/// otherwise, unless the VM enters S3.
pub fn leave(cpu: &mut Cpu, row: RowId) -> Outcome {
    let arch = &cpu.vcpu().arch;
    if arch.index == 0 && arch.events.is_running() {
        return cpu.end_vm(row, End::Reset);
    }
    cpu.leave = Leave::Off;
    Outcome::leave(row)
}

/// Restarts the first vCPU, which runs here, in real mode at a page: INIT followed by SIPI.
pub fn restart(vcpu: &'static Vcpu, page: u8) {
    let before = vcpu.arch.events.change(|phase| (phase & ON != 0).then_some(ENDING | STARTS | u32::from(page)));
    if before.is_some() {
        vcpu.arch.events.raise(INIT);
        cpu::notify(vcpu);
    }
}

/// SIPI starts a vCPU in wait-for-SIPI in real mode at the page; one still handling INIT starts once it is off; otherwise ignored.
pub fn start_up(vcpu: &'static Vcpu, page: u8) {
    let before = vcpu.arch.events.change(|phase| match phase {
        OFF => Some(ON),
        ENDING => Some(ENDING | STARTS | u32::from(page)),
        _ => None,
    });
    if before == Some(OFF) {
        start(vcpu, page);
    }
}

/// Called when INIT has powered off a vCPU. It starts if a SIPI was received.
pub fn turned_off(vcpu: &'static Vcpu) {
    // While the VM is on, nothing else changes the power state of its vCPUs in these phases.
    vcpu.vm().power.if_on(|| {
        // The VM may have been reset since this vCPU was left: then its errand resets the vCPU, perhaps right now.
        if vcpu.vm().power.has_errand() || vcpu.arch.events.phase.load(Ordering::Acquire) & ENDING == 0 {
            return;
        }
        // Before INIT is cleared: others may check whether a pending event wakes this vCPU.
        vcpu.arch.events.deadlock.end();
        // Before a SIPI can start it.
        // SAFETY: the vCPU is off, its VM is not being reset, and nothing starts it before the phase changes below.
        unsafe { vcpu.arch.init() };
        // INIT is complete. Further ones are ignored until the vCPU is on again.
        vcpu.arch.events.clear(INIT);
        let before = vcpu.arch.events.change(|phase| match phase {
            ENDING => Some(OFF),
            phase if phase & ENDING != 0 => Some(ON),
            _ => None,
        });
        match before {
            Some(phase) if phase & STARTS != 0 => start(vcpu, phase as u8),
            _ => {}
        }
    });
}

fn start(vcpu: &'static Vcpu, page: u8) {
    // An INIT since the phase change applies to the new start. The 8259s' state is kept.
    vcpu.arch.events.waiting.fetch_and(INIT | EXTERNAL, Ordering::AcqRel);
    // SAFETY: the vCPU was off, and its phase makes this the only code to start it.
    let context = unsafe { vcpu.arch.context() };
    context.reset_to_page(page);
    // INIT does not change the TSC.
    context.tsc_offset = vcpu.arch.msrs.tsc_offset();
    // VMX state is reset when the vCPU is loaded (`Vcpu::begin`), because one SIPI may start all others of a VM.
    context.begins = true;
    cpu::start(vcpu);
}

/// Delivers pending events to the loaded vCPU.
#[cold]
pub fn pull(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let events = &vcpu.arch.events;
    check_watch(cpu);
    let waiting = events.waiting.load(Ordering::Acquire);
    if waiting & HELD != 0 {
        events.clear(HELD);
        if let Some(release) = RELEASE.try_get() {
            release(vcpu.vm(), cpu.index);
        }
    }
    if events.init() {
        // It is entered, and exits immediately: only an exit leads to the common way of leaving.
        apic::kick(cpu.index);
        return;
    }
    if waiting & NMIS != 0 {
        // Before the NMI is cleared.
        events.deadlock.end();
        pull_nmi(events);
    }
    if waiting & (EXTERNAL | ACKNOWLEDGED) != 0 {
        pull_external(cpu);
    }
}

/// Updates this CPU's timer if a device's deadline has changed.
fn check_watch(cpu: &mut Cpu) {
    let events = &cpu.vcpu().arch.events;
    if events.waiting.load(Ordering::Acquire) & WATCH != 0 {
        events.clear(WATCH);
        deadline::update(cpu);
    }
}

fn pull_nmi(events: &Events) {
    let blocked = state::read(Field::GUEST_INTERRUPTIBILITY);
    let injects = state::read(Field::ENTRY_INTERRUPTION) & VALID != 0;
    let free = blocked & BLOCKS_NMI == 0 && !injects;
    let left = events.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
        let nmis = waiting & NMIS;
        // While an NMI is handled, the processor latches at most one more.
        let nmis = if free {
            nmis - u32::from(nmis != 0)
        } else if blocked & NMI_BLOCKED != 0 {
            nmis.min(1)
        } else {
            nmis
        };
        Some(waiting & !NMIS | nmis)
    });
    if free {
        state::inject(VALID | NMI);
    }
    let some_wait = left.is_ok_and(|before| !free || before & NMIS > 1);
    if some_wait && !state::exit_when_nmis_can(blocked, free || injects) {
        window::exit_when_it_can(true);
    }
}

fn pull_external(cpu: &mut Cpu) {
    if has_external(cpu) && window::can_interrupt() && state::read(Field::ENTRY_INTERRUPTION) & VALID == 0 {
        state::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(acknowledge_external(cpu)));
    }
    if still_has_external(cpu) {
        window::exit_when_it_can(true);
    }
}

/// [`has_external`], which also ends the 8259s' signal if its line has fallen. While the local APIC masks it, the signal stays.
fn still_has_external(cpu: &mut Cpu) -> bool {
    if has_external(cpu) {
        return true;
    }
    if !cpu.apic().passes_external() {
        return false;
    }
    cpu.vcpu().arch.events.clear(EXTERNAL);
    // Another CPU may have raised a line, and signalled that, since the check.
    let has_again = has_external(cpu);
    if has_again {
        cpu.vcpu().arch.events.raise(EXTERNAL);
    }
    has_again
}

/// Whether the loaded vCPU, a VM's first one, has an interrupt of the 8259s to take.
pub fn has_external(cpu: &mut Cpu) -> bool {
    let vcpu = cpu.vcpu();
    vcpu.arch.events.has_acknowledged() || cpu.apic().passes_external() && vcpu.vm().arch.devices.pic.interrupts()
}

/// Takes that interrupt. Returns its vector.
pub fn acknowledge_external(cpu: &Cpu) -> u8 {
    let vcpu = cpu.vcpu();
    vcpu.arch.events.take_acknowledged().unwrap_or_else(|| vcpu.vm().arch.devices.pic.acknowledge())
}

/// Whether the guest handles an NMI, which blocks others. Its VMCS is current.
pub fn blocks_nmis() -> bool {
    state::read(Field::GUEST_INTERRUPTIBILITY) & NMI_BLOCKED != 0
}

/// Whether an event may end the HLT of a vCPU with this APIC, whose VMCS is current. An NMI does not while another one
/// blocks it. The 8259s' line may have fallen since its signal: [`end_loaded_wait`] checks it.
pub fn end_wait(events: &Events, apic: &LocalApic<'_>, interrupts_on: bool) -> bool {
    let waiting = events.waiting.load(Ordering::Acquire);
    let has_external = waiting & EXTERNAL != 0 && apic.passes_external() || waiting & ACKNOWLEDGED != 0;
    ends_any_wait(events) || has_external && interrupts_on
}

/// Whether an event ends a HLT with interrupts disabled, too.
fn ends_any_wait(events: &Events) -> bool {
    events.waiting.load(Ordering::Acquire) & NMIS != 0 && !blocks_nmis() || events.init()
}

/// Whether an event ends the HLT of the loaded vCPU. An interrupt of the 8259s that does is acknowledged: its line may fall
/// before the entry. A device's deadline that has changed is this CPU's from now on: it may be the only one.
#[cold]
pub fn end_loaded_wait(cpu: &mut Cpu, interrupts_on: bool) -> bool {
    check_watch(cpu);
    let events = &cpu.vcpu().arch.events;
    ends_any_wait(events) || interrupts_on && (cpu.apic().is_pending() || acknowledge_at_hlt(cpu))
}

/// Whether the loaded vCPU, in HLT with interrupts enabled, has an interrupt of the 8259s, which is acknowledged then.
fn acknowledge_at_hlt(cpu: &mut Cpu) -> bool {
    let events = &cpu.vcpu().arch.events;
    let waiting = events.waiting.load(Ordering::Acquire);
    if waiting & ACKNOWLEDGED == 0 {
        if waiting & EXTERNAL == 0 || !still_has_external(cpu) {
            return false;
        }
        events.put_back_external(acknowledge_external(cpu));
    }
    true
}
