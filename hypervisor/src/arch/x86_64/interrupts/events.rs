//! Events of a vCPU beside the interrupts of its local APIC: NMIs, the 8259s, INIT and startup messages (the manual, "MP Initialization
//! Protocol", "Nonmaskable Interrupt (NMI)").

use core::sync::atomic::{AtomicU32, Ordering};

use stile_apic::LocalApic;
use stile_ledger::RowId;

use super::deadline;
use super::deadlock::DeadlockCheck;
use super::window::{self, VALID};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::{apic, vmx};
use crate::cpu::{self, Leave};
use crate::vm::Vcpu;
use crate::vm::power::End;

/// NMIs that wait: at most one that can be taken, and one behind it.
const NMIS: u32 = 0b11;
const MOST_NMIS: u32 = 2;
/// The 8259s interrupt.
const EXTERNAL: u32 = 1 << 2;
/// The time has changed at which the vCPU looks at another device.
const WATCH: u32 = 1 << 4;
/// INIT: the vCPU is to be turned off, or of the first one the machine.
const INIT: u32 = 1 << 3;

/// Blocking by STI, by MOV SS and by an NMI ("Guest Non-Register State").
const BLOCKS_NMI: u64 = 0b1011;
/// The last one alone.
const NMI_BLOCKED: u64 = 0b1000;
/// In [`Field::ENTRY_INTERRUPTION`]: the vector and the type of an NMI.
const NMI: u64 = 2 << 8 | 2;

/// [`Events::phase`]: it waits for a startup message.
const OFF: u32 = 0;
/// It runs, or may.
const ON: u32 = 1 << 9;
/// INIT has come, and it was on: it is being turned off.
const ENDING: u32 = 1 << 10;
/// Added to this: a startup message has come meanwhile, with the page in bits 7:0.
const STARTS: u32 = 1 << 8;

/// Pending events of one vCPU.
pub struct Events {
    waiting: AtomicU32,
    phase: AtomicU32,
    /// Whether nothing but these ends its wait.
    pub deadlock: DeadlockCheck,
}

impl Events {
    /// Of a vCPU that is off.
    pub const fn new() -> Events {
        Events { waiting: AtomicU32::new(0), phase: AtomicU32::new(OFF), deadlock: DeadlockCheck::new() }
    }

    /// Nothing waits; the vCPU is on or off.
    pub fn reset(&self, on: bool) {
        self.waiting.store(0, Ordering::Relaxed);
        self.phase.store(if on { ON } else { OFF }, Ordering::Relaxed);
        self.deadlock.end();
    }

    /// Whether anything waits.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Whether INIT waits: the vCPU is to be left ([`leave`]).
    #[inline]
    pub fn init(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) & INIT != 0
    }

    /// Whether something waits that a vCPU takes also while it has interrupts off.
    pub fn wakes(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) & (NMIS | INIT) != 0
    }

    /// Whether the vCPU is on, or will be.
    pub fn is_on(&self) -> bool {
        !matches!(self.phase.load(Ordering::Acquire), OFF | ENDING)
    }

    /// Whether the vCPU is on, and not being turned off.
    fn is_running(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ON
    }

    fn raise(&self, event: u32) {
        self.waiting.fetch_or(event, Ordering::AcqRel);
    }

    fn clear(&self, event: u32) {
        self.waiting.fetch_and(!event, Ordering::AcqRel);
    }

    /// Moves to the phase that `next` says; returns the one before, or nothing if it says nothing.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()
    }
}

/// An NMI for a vCPU.
pub fn nmi(vcpu: &'static Vcpu) {
    let add = |waiting: u32| (waiting & NMIS < MOST_NMIS).then_some(waiting + 1);
    let _ = vcpu.arch.events.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    cpu::notify(vcpu);
}

/// The 8259s have an interrupt for a vCPU.
pub fn external(vcpu: &'static Vcpu) {
    vcpu.arch.events.raise(EXTERNAL);
    cpu::notify(vcpu);
}

/// The time has changed at which a vCPU looks at another device. The one that is loaded here looks when it next pulls.
pub fn watch(vcpu: &'static Vcpu) {
    vcpu.arch.events.raise(WATCH);
    if !cpu::runs_here(vcpu) {
        cpu::notify(vcpu);
    }
}

/// INIT for a vCPU, which takes it by itself: who sends it may hold the lock of the device whose line brings it.
pub fn init(vcpu: &'static Vcpu) {
    let before = vcpu.arch.events.change(|phase| Some(if phase == OFF || vcpu.arch.index == 0 { phase } else { ENDING }));
    if before == Some(ON) {
        vcpu.arch.events.raise(INIT);
        cpu::notify(vcpu);
    }
}

/// Leaves the loaded vCPU, for which INIT has come. The first one starts its machine anew by it, as there is no firmware that would do something
/// else, unless it falls asleep.
pub fn leave(cpu: &mut Cpu, row: RowId) -> Outcome {
    let arch = &cpu.vcpu().arch;
    if arch.index == 0 && arch.events.is_running() {
        return cpu.end_vm(row, End::Reset);
    }
    cpu.leave = Leave::Off;
    Outcome::leave(row)
}

/// The first vCPU, which runs here, is turned off and begins in real mode at a page: INIT, and a startup message right behind it.
pub fn restart(vcpu: &'static Vcpu, page: u8) {
    let before = vcpu.arch.events.change(|phase| (phase == ON).then_some(ENDING | STARTS | u32::from(page)));
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

/// A vCPU has been turned off by INIT. If a startup message has come already, it starts.
pub fn turned_off(vcpu: &'static Vcpu) {
    // While the VM is on, nobody else turns its vCPUs on or off in these phases.
    vcpu.vm().power.if_on(|| {
        // Before INIT waits no more: others may look whether anything wakes this vCPU.
        vcpu.arch.events.deadlock.end();
        // That is done. Another one is none until the phase says that the vCPU is on.
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
    // An INIT that came since the phase was changed is for what begins here. The 8259s stay as they are.
    vcpu.arch.events.waiting.fetch_and(INIT | EXTERNAL, Ordering::AcqRel);
    // SAFETY: the vCPU was off, and its phase makes this the only one to start it.
    let (apic, context, vmx) = unsafe { (vcpu.arch.apic(), vcpu.arch.context(), vcpu.arch.vmx()) };
    apic.init();
    if let Some(vmx) = vmx {
        vmx.begin_anew();
    }
    if vcpu.arch.index == 0 {
        vcpu.arch.pages.set_virtual_wire();
    }
    context.reset_to_page(page);
    vcpu.arch.direct.reset();
    // INIT leaves the counter as it is.
    context.tsc_offset = vcpu.arch.kept.tsc_offset();
    cpu::start(vcpu);
}

/// Gives the loaded vCPU what waits for it, of the events.
#[cold]
pub fn pull(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let events = &vcpu.arch.events;
    let waiting = events.waiting.load(Ordering::Acquire);
    if waiting & WATCH != 0 {
        events.clear(WATCH);
        deadline::update(cpu);
    }
    if waiting & INIT != 0 {
        // It is entered, and exits at once: from an exit the way off is that of every vCPU.
        apic::kick(cpu.index);
        return;
    }
    if waiting & NMIS != 0 {
        // Before the NMI waits no more.
        events.deadlock.end();
        pull_nmi(events);
    }
    if waiting & EXTERNAL != 0 {
        pull_external(cpu);
    }
}

fn pull_nmi(events: &Events) {
    let blocked = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
    let free = blocked & BLOCKS_NMI == 0 && vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0;
    let left = events.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
        let nmis = waiting & NMIS;
        // While one is being handled, a processor remembers one more, however many come.
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
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | NMI);
    }
    if left.is_ok_and(|before| !free || before & NMIS > 1) {
        exit_when_nmis_can(true);
    }
}

fn pull_external(cpu: &mut Cpu) {
    let vcpu = cpu.vcpu();
    let pic = &vcpu.vm().arch.devices.pic;
    if !cpu.apic().passes_external() {
        return;
    }
    if pic.interrupts() && window::can_interrupt() && vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0 {
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | u64::from(pic.acknowledge()));
    }
    if pic.interrupts() {
        window::exit_when_it_can(true);
    } else {
        vcpu.arch.events.clear(EXTERNAL);
    }
}

/// Chooses whether the loaded vCPU exits as soon as it can take an NMI.
pub fn exit_when_nmis_can(on: bool) {
    let controls = vmcs::read(Field::PRIMARY_CONTROLS);
    let window = u64::from(vmx::primary::NMI_WINDOW);
    vmcs::write(Field::PRIMARY_CONTROLS, if on { controls | window } else { controls & !window });
}

/// Whether an event ends the HLT of a vCPU with this APIC.
pub fn end_wait(events: &Events, apic: &LocalApic<'_>, interrupts_on: bool) -> bool {
    let waiting = events.waiting.load(Ordering::Acquire);
    waiting & (NMIS | INIT) != 0 || waiting & EXTERNAL != 0 && interrupts_on && apic.passes_external()
}
