//! Ends of interrupts by a bit in memory: KVM's interface (Linux, Documentation/virt/kvm/x86/msr.rst, MSR_KVM_PV_EOI_EN), which Stile offers
//! with AMD-V.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count as cpuid;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::firmware::cpus;
use super::test::check;
use super::vector::GENERAL_PROTECTION;
use crate::exception::{self, catch};
use crate::lapic::{self as apic, command, register};
use crate::machine::{cli, rdmsr, sti, wrmsr};
use crate::others::{self, DONE, UP, wait};

const MSR_KVM_PV_EOI_EN: u32 = 0x4b56_4d04;
const ENABLED: u64 = 1;
/// The vectors of the tests.
const LOW: u8 = 0x64;
const HIGH: u8 = 0x75;
/// CPUs that have a word.
const CPUS: usize = 8;

/// The words whose bit 0 it is, by identifier.
static WORDS: [AtomicU32; CPUS] = [const { AtomicU32::new(0) }; CPUS];
/// Handlers leave the end of the interrupt to the test.
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Interrupts that were ended by the bit, and by the register.
static BY_BIT: AtomicU32 = AtomicU32::new(0);
static BY_REGISTER: AtomicU32 = AtomicU32::new(0);
/// Others go on flipping bits, and sending interrupts.
static STORMS: AtomicBool = AtomicBool::new(false);

fn is_offered() -> bool {
    const KVM_FEATURES: u32 = 0x4000_0101;
    cpuid(KVM_FEATURES, 0).eax & 1 << 6 != 0
}

fn faults(value: u64) -> bool {
    let fault = catch!("wrmsr", "ecx" = MSR_KVM_PV_EOI_EN, "eax" = value as u32, "edx" = (value >> 32) as u32);
    fault == Some((GENERAL_PROTECTION, 0))
}

fn set_register(value: u64) {
    // SAFETY: the value is valid: off, or the address of a word that is accessed as an atomic only.
    unsafe { wrmsr(MSR_KVM_PV_EOI_EN, value) };
}

fn address(cpu: usize) -> u64 {
    WORDS[cpu].as_ptr() as u64
}

/// Tests and clears the bit of a CPU, in one instruction.
fn clears(cpu: usize) -> bool {
    let was_set: u8;
    // SAFETY: the word is an atomic; the instruction changes it and RFLAGS only.
    unsafe { asm!("btr dword ptr [{}], 0", "setc {}", in(reg) address(cpu), out(reg_byte) was_set, options(nostack)) };
    was_set != 0
}

/// As a kernel does: by the bit if it is set, otherwise by the register.
fn end(cpu: usize) {
    if clears(cpu) {
        BY_BIT.fetch_add(1, Ordering::SeqCst);
    } else {
        BY_REGISTER.fetch_add(1, Ordering::SeqCst);
        apic::end();
    }
}

fn ends() -> (u32, u32) {
    (BY_BIT.swap(0, Ordering::SeqCst), BY_REGISTER.swap(0, Ordering::SeqCst))
}

fn is_set(cpu: usize) -> bool {
    WORDS[cpu].load(Ordering::SeqCst) & 1 != 0
}

fn in_service(vector: u8) -> bool {
    apic::read(register::ISR + u32::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
}

fn send_to_self(vector: u8) {
    apic::send(0, command::SELF | command::ASSERT | u32::from(vector));
}

/// Interrupts are taken.
fn window() {
    sti();
    // SAFETY: does nothing: interrupts that came with the first one are taken.
    unsafe { asm!("nop", options(nostack)) };
    cli();
}

fn prepare() {
    apic::enable();
    WORDS.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    HOLDS.store(false, Ordering::SeqCst);
    ends();
    for vector in [LOW, HIGH] {
        exception::handle(
            vector,
            Some(|_| {
                if !HOLDS.load(Ordering::SeqCst) {
                    end(apic::id() as usize % CPUS);
                }
            }),
        );
    }
}

/// Values of the register: addresses of words in RAM are taken, others fault and change nothing.
pub fn values(_: u64) -> Result<(), &'static str> {
    if !is_offered() {
        check!(faults(0), "a register that is not offered exists");
        return Ok(());
    }
    const ROM: u64 = 0xf_0000;
    let word = address(0);
    // The local APIC, the I/O APIC, and addresses beyond those that exist.
    let outside = [0xfee0_0000, 0xfec0_0000, 1 << 38, 1 << 46, 0xffff_ffff_ffff_fffc];
    check!(outside.iter().all(|address| faults(address | ENABLED)), "it takes an address outside of RAM");
    check!([2, 3].iter().all(|low| faults(word | low)), "it takes a reserved bit");
    // SAFETY: Stile has the register.
    let value = || unsafe { rdmsr(MSR_KVM_PV_EOI_EN) };
    check!(value() == 0, "a refused value is kept");
    set_register(word | ENABLED);
    let kept = value() == word | ENABLED && faults(word | 3) && value() == word | ENABLED;
    // Either it takes that memory, or it refuses it. The word is harmless in any case.
    let _ = catch!("wrmsr", "ecx" = MSR_KVM_PV_EOI_EN, "eax" = (ROM | ENABLED) as u32, "edx" = 0u32);
    send_to_self(LOW);
    window();
    set_register(0);
    check!(kept && value() == 0, "it does not keep its value");
    Ok(())
}

/// The bit is set for an interrupt behind which no other one waits, and clearing it ends the interrupt.
pub fn ends_interrupts(_: u64) -> Result<(), &'static str> {
    if !is_offered() {
        return Ok(());
    }
    /// A CPU that is shared may be taken away at any time, and with it the bit.
    const TRIES: u32 = 20;
    let cpu = apic::id() as usize % CPUS;
    let mut result = Err("it was not tried");
    for _ in 0..TRIES {
        prepare();
        set_register(address(cpu) | ENABLED);
        result = try_ends(cpu);
        HOLDS.store(false, Ordering::SeqCst);
        set_register(0);
        for _ in 0..4 {
            apic::end_all(4);
            window();
        }
        if result.is_ok() {
            break;
        }
    }
    exception::handle(LOW, None);
    exception::handle(HIGH, None);
    result
}

fn try_ends(cpu: usize) -> Result<(), &'static str> {
    for _ in 0..3 {
        send_to_self(LOW);
        window();
    }
    check!(exception::take(LOW) == 3, "an interrupt that was ended by the bit blocks the next one");
    check!(ends() == (3, 0), "the bit is not set");
    send_to_self(LOW);
    send_to_self(HIGH);
    window();
    window();
    check!((exception::take(HIGH), exception::take(LOW)) == (1, 1), "two do not come");
    check!(ends() == (1, 1), "the bit is set while another one waits, or not for the last one");
    HOLDS.store(true, Ordering::SeqCst);
    send_to_self(HIGH);
    window();
    check!(is_set(cpu), "the bit is not set during the handler");
    // A lower one has to wait, and needs the end.
    send_to_self(LOW);
    window();
    check!(exception::take(LOW) == 0 && !is_set(cpu), "a lower one does not wait, or the bit stays");
    check!(in_service(HIGH), "it is not in service");
    HOLDS.store(false, Ordering::SeqCst);
    end(cpu);
    window();
    check!(exception::take(LOW) == 1 && ends() == (1, 1), "the one that waited does not come");
    // The register ends it as well, and takes the bit back.
    HOLDS.store(true, Ordering::SeqCst);
    send_to_self(HIGH);
    window();
    apic::end();
    check!(!is_set(cpu) && !in_service(HIGH), "the register does not end it");
    send_to_self(HIGH);
    window();
    check!(in_service(HIGH) && !is_set(cpu), "ISR does not have it, or the bit is still set");
    apic::end();
    // An interrupt within the handler of a lower one.
    send_to_self(LOW);
    window();
    HOLDS.store(false, Ordering::SeqCst);
    send_to_self(HIGH);
    window();
    check!(ends() == (1, 0) && in_service(LOW) && !in_service(HIGH), "the lower one's end is lost");
    end(cpu);
    check!(!in_service(LOW), "its end has no effect");
    check!(exception::take(HIGH) == 4 && exception::take(LOW) == 1, "another number of interrupts");
    Ok(())
}

/// INIT turns the bits of other CPUs off, and each uses its own again.
pub fn after_init(_: u64) -> Result<(), &'static str> {
    let others = cpus() - 1;
    if !is_offered() || others == 0 || cpus() as usize > CPUS {
        return Ok(());
    }
    prepare();
    static LEFT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..2 {
        others::forget();
        others::start();
        check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up");
        LEFT.store(0, Ordering::SeqCst);
        others::give(|| {
            // SAFETY: Stile has the register.
            LEFT.fetch_add(u32::from(unsafe { rdmsr(MSR_KVM_PV_EOI_EN) } != 0), Ordering::SeqCst);
            set_register(address(apic::id() as usize % CPUS) | ENABLED);
            for _ in 0..4 {
                send_to_self(LOW);
                window();
            }
        });
        check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
        check!(LEFT.load(Ordering::SeqCst) == 0, "a bit is in use after INIT");
        let (by_bit, by_register) = ends();
        check!(by_bit + by_register == 4 * others, "interrupts are lost");
        check!(by_bit > 0, "no bit is set");
    }
    check!(WORDS.iter().all(|word| word.load(Ordering::SeqCst) & 1 == 0), "a bit that is not in use is set");
    others::give(|| set_register(0));
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "they do not end");
    exception::handle(LOW, None);
    Ok(())
}

/// A guest that lies: others flip the bit at any time, all CPUs share a word and send interrupts to each other, and handlers end too many
/// interrupts or none. The APICs are right again once the bits are off.
pub fn lies(_: u64) -> Result<(), &'static str> {
    const ROUNDS: u32 = 2000;
    let others = cpus() - 1;
    if !is_offered() || others == 0 {
        return Ok(());
    }
    prepare();
    others::forget();
    others::start();
    check!(wait(|| UP.load(Ordering::SeqCst) == others), "they do not come up");
    STORMS.store(true, Ordering::SeqCst);
    others::give(|| {
        let mut round = 0_u32;
        set_register(address(0) | ENABLED);
        while STORMS.load(Ordering::SeqCst) {
            round = round.wrapping_add(1);
            WORDS[0].store(round.wrapping_mul(0x9e37_79b9) >> 7, Ordering::SeqCst);
            if round.is_multiple_of(16) {
                apic::send(0, command::ASSERT | u32::from(if round.is_multiple_of(32) { LOW } else { HIGH }));
                send_to_self(LOW);
                window();
            }
        }
        set_register(0);
        apic::end_all(8);
    });
    set_register(address(0) | ENABLED);
    for round in 0..ROUNDS {
        HOLDS.store(round % 5 == 0, Ordering::SeqCst);
        send_to_self(if round % 3 == 0 { HIGH } else { LOW });
        if round % 7 == 0 {
            apic::send(0, command::OTHERS | command::ASSERT | u32::from(LOW));
        }
        window();
        if round % 11 == 0 {
            apic::end();
            apic::end();
        }
        if round % 64 == 0 {
            set_register(0);
            set_register(address(0) | ENABLED);
        }
    }
    HOLDS.store(false, Ordering::SeqCst);
    STORMS.store(false, Ordering::SeqCst);
    check!(wait(|| DONE.load(Ordering::SeqCst) == others), "others do not end");
    set_register(0);
    // All that is requested or in service ends, and then one interrupt is one.
    for _ in 0..4 {
        apic::end_all(8);
        window();
    }
    exception::handle(LOW, None);
    exception::handle(HIGH, None);
    for vector in [LOW, HIGH] {
        send_to_self(vector);
        window();
        check!(exception::take(vector) == 1 && !in_service(vector), "an APIC is wrong afterwards");
    }
    Ok(())
}
