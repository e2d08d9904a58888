//! Model-specific registers, and the transitions of IA32_APIC_BASE.

use core::arch::x86_64::__cpuid_count as cpuid;

use super::test::{check, is_guest};
use super::vector::GENERAL_PROTECTION;
use crate::exception::catch;
use crate::lapic::{self as apic, ENABLED, X2, register};
use crate::machine::{rdmsr, ticks, wrmsr};

const FAULT: Option<(u64, u64)> = Some((GENERAL_PROTECTION, 0));

fn write_faults(register: u32, value: u64) -> bool {
    catch!("wrmsr", "ecx" = register, "eax" = value as u32, "edx" = (value >> 32) as u32) == FAULT
}

/// Stolen time is written where the guest has touched its memory, at once, and nowhere else.
pub fn stolen_time(_: u64) -> Result<(), &'static str> {
    const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
    /// RAM of which no test uses anything.
    const UNTOUCHED: u64 = 60 << 20;
    /// Index of the version.
    const VERSION: usize = 2;
    // SAFETY: an aligned word of RAM that no test uses; the hypervisor may write it, hence the volatile access.
    let version = || unsafe { (UNTOUCHED as *const u32).add(VERSION).read_volatile() };
    // SAFETY: the register names that RAM. It is off before the RAM is touched, which the end of a slice may follow at once.
    unsafe {
        wrmsr(MSR_KVM_STEAL_TIME, UNTOUCHED | 1);
        wrmsr(MSR_KVM_STEAL_TIME, 0);
    }
    let untouched = version();
    // SAFETY: as above; then it is off.
    unsafe { wrmsr(MSR_KVM_STEAL_TIME, UNTOUCHED | 1) };
    let touched = version();
    // SAFETY: turns the recording of stolen time off: the hypervisor writes to memory no longer.
    unsafe { wrmsr(MSR_KVM_STEAL_TIME, 0) };
    check!(untouched == 0, "memory that nobody has touched is written");
    check!(touched != 0 && touched.is_multiple_of(2), "memory is not written");
    Ok(())
}

fn read_msr(register: u32) -> u64 {
    // SAFETY: the caller names a register that Stile has.
    unsafe { rdmsr(register) }
}

/// Registers that store each valid value, and fault for others.
pub fn kept(_: u64) -> Result<(), &'static str> {
    // IA32_MISC_ENABLE, IA32_PAT, FS_BASE, LSTAR, SYSENTER_EIP.
    let values = [(0x277u32, 0x0007_0406_0001_0506), (0xc000_0100, 0x1234_5678_9abc), (0xc000_0082, 0x1234_5678_9abc), (0x176, 0x12_3456)];
    for (register, value) in values {
        // SAFETY: this program uses none of these MSRs: any value may be in them.
        let kept = unsafe {
            let before = rdmsr(register);
            wrmsr(register, value);
            let kept = rdmsr(register);
            wrmsr(register, before);
            kept
        };
        check!(kept == value, "it does not keep its value");
    }
    // No memory type 2; no canonical address.
    check!(write_faults(0x277, 2) && write_faults(0xc000_0100, 1 << 63) && write_faults(0xc000_0082, 1 << 63), "a wrong value is taken");
    if is_guest() {
        // SAFETY: these bits have no effect here.
        let kept = unsafe {
            let before = rdmsr(0x1a0);
            wrmsr(0x1a0, 0x4_00c5_0809 & !0x1880 | before & 0x1880);
            let kept = rdmsr(0x1a0);
            wrmsr(0x1a0, before);
            kept == 0x4_00c5_0809 & !0x1880 | before & 0x1880
        };
        check!(kept, "IA32_MISC_ENABLE does not keep its value");
        // SAFETY: the number of banks is 0.
        check!(unsafe { rdmsr(0x179) } & 0xff == 0 && catch!("rdmsr", "ecx" = 0x400u32) == FAULT, "banks of errors");
        check!(read_msr(0xfe) & 0xff == 0 && write_faults(0x2ff, 2) && write_faults(0xfe, 0), "memory type ranges");
        for register in [0x250, 0x258, 0x259].into_iter().chain(0x268..0x270) {
            check!(read_msr(register) == 0x0606_0606_0606_0606 && write_faults(register, 2 << 8), "a fixed memory type range");
        }
        check!(catch!("rdmsr", "ecx" = 0x251u32) == FAULT && read_msr(0xce) >> 8 & 0xff != 0, "another one, or no speed");
        // Bochs takes it.
        check!(write_faults(0x1a0, 1 << 63), "IA32_MISC_ENABLE takes a reserved bit");
    }
    Ok(())
}

/// A write of the counter changes IA32_TSC_ADJUST; a write of IA32_TSC_ADJUST changes the counter.
pub fn time_stamp_counter(_: u64) -> Result<(), &'static str> {
    const COUNTER: u32 = 0x10;
    const ADJUST: u32 = 0x3b;
    check!(cpuid(7, 0).ebx & 1 << 1 != 0, "no IA32_TSC_ADJUST");
    const STEP: u64 = 1 << 40;
    /// An emulator whose time is real may stop in between.
    const ATTEMPTS: u32 = 16;
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        // SAFETY: the counter is used for measuring only, and is restored.
        let (moved, follows, back) = unsafe {
            let (start, adjust) = (ticks(), rdmsr(ADJUST));
            wrmsr(COUNTER, start + STEP);
            let moved = ticks().wrapping_sub(start);
            let follows = rdmsr(ADJUST).wrapping_sub(adjust);
            wrmsr(ADJUST, adjust);
            (moved, follows, ticks().wrapping_sub(start))
        };
        result = if !(STEP..STEP + 1_000_000).contains(&moved) {
            Err("the counter does not take a value")
        } else if !(STEP - 1_000_000..=STEP).contains(&follows) {
            Err("IA32_TSC_ADJUST does not follow")
        } else if back >= 10_000_000 {
            Err("the counter does not follow IA32_TSC_ADJUST")
        } else {
            return Ok(());
        };
    }
    result
}

/// Reserved bits and registers fault in x2APIC mode ("x2APIC Register Address Space"). Bochs itself checks
/// only some of them.
pub fn x2apic_reserved(_: u64) -> Result<(), &'static str> {
    let before = apic::base();
    apic::set_base(before | ENABLED | X2);
    apic::enable();
    // ID, version, a reserved one, EOI of another value, SVR, timer, self IPI of a wide vector, ICR.
    let wrong = [(0x802, 1), (0x803, 1), (0x80e, 0), (0x80b, 1), (0x80f, 1 << 20), (0x832, 1 << 31), (0x83f, 1 << 8), (0x830, 1 << 20)];
    let wrong = wrong.iter().find(|(register, value)| !write_faults(*register, *value));
    let unreadable = [0x80b, 0x80e, 0x831, 0x83f].iter().all(|register: &u32| catch!("rdmsr", "ecx" = *register) == FAULT);
    let version = apic::read(register::VERSION);
    check!(wrong.is_none(), "a reserved bit is taken");
    check!(unreadable, "what is write-only, or not there, is read");
    check!((0x10..=0x15).contains(&(version & 0xff)), "another version");
    // The remaining registers, with an ICR that has sent no message.
    apic::set_base(before & !(ENABLED | X2));
    apic::set_base(before);
    apic::set_base(before | X2);
    let odd = (0..0x100).find(|&index| !is_as_told(index));
    check!(odd.is_none(), "a register is there and should not be, or the other way round");
    // To xAPIC mode only by way of "disabled".
    apic::set_base(before & !(ENABLED | X2));
    apic::set_base(before);
    apic::enable();
    Ok(())
}

/// Whether an x2APIC register is readable and writable as specified, stores a written value, and has no
/// reserved bits set.
fn is_as_told(index: u32) -> bool {
    const ICR: u32 = 0x30;
    let register = 0x800 + index;
    let both = matches!(index, 0x08 | 0x0f | 0x28 | 0x2f | ICR | 0x32..=0x38 | 0x3e);
    let read = both || matches!(index, 0x02 | 0x03 | 0x0a | 0x0d | 0x10..=0x27 | 0x39);
    let written = both || matches!(index, 0x0b | 0x3f);
    let faults = catch!("rdmsr", "ecx" = register) == FAULT;
    let keeps = || {
        let value = read_msr(register);
        !write_faults(register, value) && read_msr(register) == value && (value >> 32 == 0 || index == ICR)
    };
    let reserved = index == ICR || write_faults(register, u64::MAX);
    read != faults
        && (written || write_faults(register, 0))
        && reserved
        && (!both || keeps())
        && (both || !written || !write_faults(register, 0))
}

pub fn apic_base(_: u64) -> Result<(), &'static str> {
    const BASE: u32 = 0x1b;
    let start = apic::base();
    let rest = start & !(ENABLED | X2);
    let has_apic = || cpuid(1, 0).edx & 1 << 9 != 0;
    let page = |page: u64, at: u32| {
        // SAFETY: the fourth GiB is mapped; reads have no side effects.
        unsafe { ((page + u64::from(at)) as *const u32).read_volatile() }
    };
    const PAGE: u64 = 0xfee0_0000;
    let version = page(PAGE, register::VERSION);
    check!(start & (ENABLED | X2) == ENABLED && has_apic(), "it does not begin in xAPIC mode");
    check!(write_faults(BASE, rest | X2), "xAPIC to nothing that there is");
    check!(write_faults(BASE, start | 1) && write_faults(BASE, start | 1 << 52), "reserved bits");
    apic::set_base(rest);
    let off = (has_apic(), page(PAGE, register::VERSION), write_faults(BASE, rest | X2), write_faults(BASE, rest | X2 | ENABLED));
    apic::set_base(rest & 0xfff | 0xfed4_0000 | ENABLED);
    let moved = (page(0xfed4_0000, register::VERSION), page(PAGE, register::VERSION));
    apic::set_base(start);
    apic::set_base(start | X2);
    let by_page = page(PAGE, register::VERSION);
    let (to_x, to_nothing) = (write_faults(BASE, start), write_faults(BASE, rest | X2));
    apic::set_base(rest);
    apic::set_base(start);
    apic::enable();
    check!(off == (false, u32::MAX, true, true), "disabled: it is there, or takes a wrong way out");
    check!(moved == (version, u32::MAX), "it can't be moved");
    check!(by_page == u32::MAX && to_x && to_nothing, "x2APIC: its page is there, or it takes a wrong way out");
    check!(has_apic() && page(PAGE, register::VERSION) == version, "it does not come back");
    Ok(())
}
