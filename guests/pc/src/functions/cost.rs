//! Sequential requests to `virtio-rng`, each between two marks: the emulator's plugin counts Stile's instructions and exits between them.
//!
//! The vCPU halts until the message arrives, and ends interrupts by KVM's paravirtual EOI where it is offered, as Linux does.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count as cpuid;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::check;
use common::fail::{Fail, Outcome};
use common::phases::Machine;
use pc::console::println;
use pc::{exception, lapic, machine};

use crate::messages::{DESTINATION, MESSAGES};
use crate::phase_machine::Pc;
use crate::virtio::{Queue, RNG, Virtio};

/// Vector of the messages.
const VECTOR: u8 = 0x40;
/// CPUID leaf of KVM's features, the feature, and its register with the value that enables it (Linux, Documentation/virt/kvm/x86).
const KVM_FEATURES: u32 = 0x4000_0001;
const PARAVIRTUAL_EOI: u32 = 1 << 6;
const MSR_KVM_PV_EOI_EN: u32 = 0x4b56_4d04;
const ENABLED: u64 = 1;

/// The word whose bit 0 ends an interrupt.
static WORD: AtomicU32 = AtomicU32::new(0);
/// Number of interrupts that were ended by the EOI register.
static BY_REGISTER: AtomicU64 = AtomicU64::new(0);

/// Makes `count` requests.
///
/// # Errors
/// There is no virtio-rng, or a request is not answered.
pub fn run(count: u64) -> Outcome {
    Pc::restore()?;
    let rng = Virtio::find(RNG).ok_or(Fail::new(format_args!("no virtio-rng")))?;
    lapic::set_base(lapic::base() | lapic::X2);
    lapic::enable();
    lapic::write(lapic::register::TPR, 0);
    // On Intel's processors KVM's leaves are the second ones of hypervisors, from 0x4000_0100 on.
    let offers = |base: u32| cpuid(base, 0).ebx == u32::from_le_bytes(*b"KVMK") && cpuid(base + 1, 0).eax & PARAVIRTUAL_EOI != 0;
    let is_offered = offers(KVM_FEATURES - 1) || offers(KVM_FEATURES + 0xff);
    if is_offered {
        // SAFETY: the register is offered, and its value the address of a word that is accessed as an atomic only.
        unsafe { machine::wrmsr(MSR_KVM_PV_EOI_EN, WORD.as_ptr() as u64 | ENABLED) };
    }
    let mut queue = rng.start_tiny()?;
    rng.enable_messages(false);
    rng.set_vector(0, MESSAGES | u64::from(lapic::id()) << DESTINATION, VECTOR.into());
    exception::handle(VECTOR, Some(|_| end()));
    for number in 0..count {
        mark();
        request(&mut queue, number + 1);
        mark();
        check!(queue.is_idle(), "request {number} is not answered");
    }
    println!("cost: {count} requests, {} ended by the EOI register", BY_REGISTER.load(Ordering::SeqCst));
    rng.reset()
}

/// Makes a request, and halts until `arrived` messages have arrived in all.
fn request(queue: &mut Queue, arrived: u64) {
    queue.request();
    while exception::COUNTS[usize::from(VECTOR)].load(Ordering::SeqCst) < arrived {
        // SAFETY: there is a handler for each interrupt. STI holds interrupts back until HLT, so that the message ends the wait.
        unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
    }
}

/// Ends an interrupt as Linux does: by the bit if it is set, otherwise by the EOI register.
fn end() {
    let is_ended: u8;
    // SAFETY: the word is an atomic; the instruction changes it and RFLAGS only.
    unsafe { asm!("btr dword ptr [{}], 0", "setc {}", in(reg) WORD.as_ptr(), out(reg_byte) is_ended, options(nostack)) };
    if is_ended == 0 {
        BY_REGISTER.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the APIC is in x2APIC mode.
        unsafe { machine::wrmsr(0x80b, 0) };
    }
}

/// Begins or ends a section of the plugin.
fn mark() {
    // SAFETY: a prefetch has no effect on state.
    unsafe { asm!("prefetchnta [{}]", in(reg) WORD.as_ptr(), options(nostack, readonly, preserves_flags)) };
}
