//! MSR areas of the greatest size.

use pc::lapic;
use pc::machine::{rdmsr, ticks, wrmsr};

use crate::exits::{VMCALL, area};
use crate::field::{self, primary};
use crate::instructions::SCRATCH_MSR;
use crate::memory::ADDRESS;
use crate::test::{Outcome, Test, check, is_guest, same};
use crate::vmcs::{AREA, BITMAP, clear, code, enable, fresh, get, misc, page, poke, run, set};

pub const ALL: &[Test] = &[
    ("efer_in_msr_area", efer_in_area),
    ("time_stamp_that_vmresume_loads", time_at_resume),
    ("apic_base_in_msr_area", apic_base),
    ("msr_areas_of_512_entries", longest),
    ("msr_areas_that_take_longest", costliest),
];

/// The maximum that IA32_VMX_MISC recommends if its bits 27:25 are 0.
const LIMIT: usize = 512;
/// The first of three adjacent pages.
const PLACE: usize = 12;
const TSC: u64 = 0x10;

fn entry(number: usize, msr: u64, value: u64) {
    let word = 2 * number;
    poke(PLACE + word / 512, word, msr);
    poke(PLACE + word / 512, word + 1, value);
}

fn value(number: usize) -> u64 {
    // SAFETY: the entry is in the area's pages.
    unsafe { (page(PLACE) as *const u64).add(2 * number + 1).read_volatile() }
}

/// An entry that enables L1's local APIC, which an L2 without EPT then accesses.
fn apic_base() -> Outcome {
    const APIC_BASE: u64 = 0x1b;
    const VERSION: u64 = 0xfee0_0030;
    if !is_guest() {
        return Outcome::Skip("Bochs 3.0 keeps the APIC's page");
    }
    let base = lapic::base();
    let version = lapic::read(lapic::register::VERSION);
    lapic::set_base(base & !lapic::ENABLED);
    // The first entry composes VMCS02 without an APIC.
    fresh(code!("nop"));
    let before = run(&mut [0; 8], false);
    set(field::GUEST_RIP, code!("mov eax, [rsi]"));
    area(0, APIC_BASE, base);
    set(field::ENTRY_MSR_LOADS, 1);
    set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
    let mut registers = [0, 0, 0, 0, 0, VERSION, 0, 0];
    let exit = run(&mut registers, true);
    lapic::set_base(base);
    same!((before, exit), (VMCALL, VMCALL), "the exits");
    same!(registers[0] as u32, version, "the APIC's version");
    Outcome::Pass
}

/// One area that is loaded at the entry, stored, and loaded at the exit. The time that it loads has just passed.
fn longest() -> Outcome {
    const VALUE: u64 = 0x5555;
    if misc() >> 25 & 7 != 0 {
        return Outcome::Skip("areas may be larger");
    }
    fresh(code!("nop"));
    let before = ticks();
    (0..LIMIT).for_each(|number| entry(number, TSC, before));
    entry(LIMIT - 1, SCRATCH_MSR.into(), VALUE);
    entry(LIMIT, TSC, before);
    let lists = [
        (field::ENTRY_MSR_LOADS, field::ENTRY_MSR_LOAD_AREA),
        (field::EXIT_MSR_STORES, field::EXIT_MSR_STORE_AREA),
        (field::EXIT_MSR_LOADS, field::EXIT_MSR_LOAD_AREA),
    ];
    for (count, area) in lists {
        set(count, LIMIT as u64);
        set(area, page(PLACE));
    }
    same!(run(&mut [0; 8], false), VMCALL, "the exit");
    same!(value(LIMIT - 1), VALUE, "the last value");
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    same!(unsafe { rdmsr(SCRATCH_MSR) }, VALUE, "the register");
    check!((before..ticks()).contains(&value(LIMIT - 2)), "the stored time");
    if is_guest() {
        // The SDM leaves it to the processor what happens to longer ones.
        set(field::ENTRY_MSR_LOADS, LIMIT as u64 + 1);
        same!(run(&mut [0; 8], true), Ok(0x8000_0022), "the exit of a longer area");
        same!(get(field::EXIT_QUALIFICATION), LIMIT as u64 + 1, "the number of the entry");
    }
    Outcome::Pass
}

/// An entry that fails after the last MSR of its area, and so loads both areas in one exit of Stile's, with MSRs whose
/// writes take longest: IA32_APIC_BASE turns the local APIC off and on, which resets it.
fn costliest() -> Outcome {
    const APIC_BASE: u64 = 0x1b;
    /// Stile's limit of this MSR in an area.
    const RESETS: usize = 4;
    if !is_guest() {
        return Outcome::Skip("a processor may take fewer");
    }
    fresh(code!("nop"));
    let base = lapic::base();
    let put = |area: u64, number: usize, resets: usize| {
        let (msr, value) = if number < resets {
            (APIC_BASE, if number.is_multiple_of(2) { base & !lapic::ENABLED } else { base })
        } else {
            (SCRATCH_MSR.into(), 0)
        };
        // SAFETY: the area is in pages of the tests'.
        unsafe {
            let entry = (area as *mut u64).add(2 * number);
            entry.write_volatile(msr);
            entry.add(1).write_volatile(value);
        }
    };
    for (count, area, at) in
        [(field::ENTRY_MSR_LOADS, field::ENTRY_MSR_LOAD_AREA, page(PLACE)), (field::EXIT_MSR_LOADS, field::EXIT_MSR_LOAD_AREA, ADDRESS)]
    {
        (0..LIMIT).for_each(|number| put(at, number, RESETS));
        set(count, LIMIT as u64);
        set(area, at);
    }
    // Reserved bits are set.
    poke(PLACE + 1, 2 * (LIMIT - 1), 1 << 32);
    let exit = run(&mut [0; 8], false);
    let number = get(field::EXIT_QUALIFICATION);
    put(page(PLACE), RESETS, RESETS + 1);
    let more = run(&mut [0; 8], false);
    lapic::set_base(base);
    lapic::enable();
    same!((exit, number), (Ok(0x8000_0022), LIMIT as u64), "the exit, and the number of the entry");
    same!((more, get(field::EXIT_QUALIFICATION)), (Ok(0x8000_0022), RESETS as u64 + 1), "with one more");
    Outcome::Pass
}

/// VMRESUME loads the time-stamp counter: L2 reads it, and after the exit L1.
fn time_at_resume() -> Outcome {
    const AHEAD: u64 = 1 << 40;
    let start = code!("rdtsc", "shl rdx, 32", "or rax, rdx");
    fresh(start);
    let mut registers = [0; 8];
    same!(run(&mut registers, false), VMCALL, "the exit");
    for _ in 0..2 {
        let value = ticks() + AHEAD;
        entry(0, TSC, value);
        set(field::ENTRY_MSR_LOADS, 1);
        set(field::ENTRY_MSR_LOAD_AREA, page(PLACE));
        set(field::GUEST_RIP, start);
        same!(run(&mut registers, true), VMCALL, "the exit after VMRESUME");
        check!((value..value + AHEAD).contains(&registers[0]), "L2's time");
        check!((registers[0]..value + AHEAD).contains(&ticks()), "L1's time");
    }
    Outcome::Pass
}

/// Lists load EFER as WRMSR does: the value of LMA is ignored, and LME must not change.
fn efer_in_area() -> Outcome {
    const EFER: u64 = 0xc000_0080;
    const SCE: u64 = 1 << 0;
    const LME: u64 = 1 << 8;
    const LMA: u64 = 1 << 10;
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    let own = unsafe { rdmsr(EFER as u32) };
    fresh(code!("mov ecx, 0xc0000080", "rdmsr"));
    if !enable(field::PRIMARY_CONTROLS, primary::MSR_BITMAPS) {
        return Outcome::Skip("there is no MSR bitmap");
    }
    clear(BITMAP);
    set(field::MSR_BITMAP, page(BITMAP));
    set(field::ENTRY_MSR_LOADS, 1);
    set(field::ENTRY_MSR_LOAD_AREA, page(AREA));
    area(0, EFER, own & !(LMA | LME));
    same!(run(&mut [0; 8], false), Ok(0x8000_0022), "an entry that clears LME");
    area(0, EFER, (own ^ SCE) & !LMA);
    let mut registers = [0; 8];
    same!((run(&mut registers, false), registers[0]), (VMCALL, own ^ SCE), "the exit, and L2's EFER");
    set(field::ENTRY_MSR_LOADS, 0);
    // An exit loads EFER in the same way.
    set(field::GUEST_RIP, code!("nop"));
    set(field::EXIT_MSR_LOADS, 1);
    set(field::EXIT_MSR_LOAD_AREA, page(AREA));
    same!(run(&mut registers, true), VMCALL, "the exit that loads EFER");
    // SAFETY: all x86-64 CPUs have this MSR, and reading it has no side effect.
    let found = unsafe { rdmsr(EFER as u32) };
    // SAFETY: the value was in EFER before, under which this program runs.
    unsafe { wrmsr(EFER as u32, own) };
    same!(found, own ^ SCE, "L1's EFER");
    Outcome::Pass
}
