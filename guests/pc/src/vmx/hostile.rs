//! A hostile L1: values that make no sense, in the fields and at the addresses of everything. Whatever comes of it, L1 goes on. L2 can write
//! only to [`ADDRESS`], so that these tests do not destroy themselves.

use core::sync::atomic::{AtomicU64, Ordering};

use pc::console::println;
use pc::{lapic, others};

use crate::exits::VMCALL;
use crate::field::{self, exit, pin, primary, secondary};
use crate::memory::{ADDRESS, INDEX, LARGE, WRITE_BACK};
use crate::test::{Outcome, Test, check, same};
use crate::vmcs::{
    BITMAP, EPT, FIRST, SECOND, code, enable, enable_ept, fresh, get, invept, invvpid, page, poke, revision, run, set, vmclear, vmptrld,
    vmptrst, vmread, vmxoff, vmxon,
};

/// Run with `only=hostile`, on two CPUs.
pub const ALL: &[Test] = &[
    ("hostile_fields", fields),
    ("hostile_tables", tables),
    ("hostile_pointers", pointers),
    ("hostile_region", region),
    ("hostile_sharing", sharing),
    ("hostile_virtual_apic", virtual_apic),
];

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 32) as usize % limit
    }

    fn bit(&mut self) -> u64 {
        1 << self.below(64)
    }

    /// A physical address: of a page of the tests', of none, of a device, or one beyond the processor's width.
    fn address(&mut self) -> u64 {
        let places = [page(BITMAP), ADDRESS, ADDRESS + 8, 0xfee0_0000, 0xfec0_0000, 0xffff_f000, 1 << 36, 1 << 39, 1 << 51, u64::MAX << 12];
        places[self.below(places.len())]
    }
}

/// Ranges of fields: 16-bit, 64-bit, 32-bit and natural guest state; addresses and 32-bit controls; masks, shadows and targets.
const RANGES: [(u64, u64); 12] = [
    (field::GUEST_ES, 0x810),
    (field::GUEST_DEBUGCTL, 0x2810),
    (field::GUEST_ES_LIMIT, 0x482a),
    (field::GUEST_CR0, 0x681a),
    (field::GUEST_RFLAGS, 0x6826),
    (field::IO_BITMAP_A, 0x2004),
    (field::TSC_OFFSET, field::TSC_OFFSET),
    (field::VIRTUAL_APIC, field::POSTED_INTERRUPTS),
    (field::PRIMARY_CONTROLS, field::CR3_TARGETS),
    (field::ENTRY_CONTROLS, field::SECONDARY_CONTROLS),
    (field::CR0_MASK, 0x600e),
    (field::VPID, field::VPID),
];

/// Lets L2 read and execute all memory, and write one large page. It runs for a short time, and does not reach ports.
fn confine() {
    for word in 0..512 {
        poke(EPT + 2, word, (word as u64) << 21 | LARGE | WRITE_BACK | 5);
    }
    poke(EPT + 2, INDEX, ADDRESS | LARGE | WRITE_BACK | 7);
    invept(2, [0, 0]);
    set(field::GUEST_RSP, ADDRESS + 0x1000);
    enable(field::PIN_CONTROLS, pin::PREEMPTION_TIMER);
    set(field::PREEMPTION_TIMER, 100);
}

/// Invariants that hold for any fields.
fn keep_control() {
    set(field::EPT_POINTER, page(EPT) | 6 | 3 << 3);
    let primary = get(field::PRIMARY_CONTROLS) & !u64::from(primary::IO_BITMAPS | primary::MSR_BITMAPS);
    set(field::PRIMARY_CONTROLS, primary | u64::from(primary::UNCONDITIONAL_IO | primary::SECONDARY));
    set(field::SECONDARY_CONTROLS, get(field::SECONDARY_CONTROLS) | u64::from(secondary::EPT));
}

/// A loop that does not end by itself.
fn forever() -> u64 {
    code!("2: inc rax", "jmp 2b")
}

/// Sorts outcomes: VM exits, entries that fail late, and instructions that fail.
fn count(counts: &mut [u32; 3], mut registers: [u64; 8], is_launched: bool) {
    let at = match run(&mut registers, is_launched) {
        Ok(reason) if reason >> 31 == 0 => 0,
        Ok(_) => 1,
        Err(_) => 2,
    };
    counts[at] += 1;
}

fn fields() -> Outcome {
    let mut random = Random(0x5eed);
    let mut counts = [0; 3];
    for _ in 0..200 {
        fresh(forever());
        check!(enable_ept(), "EPT");
        confine();
        for _ in 0..=random.below(3) {
            let (first, last) = RANGES[random.below(RANGES.len())];
            let field = first + 2 * random.below(((last - first) / 2 + 1) as usize) as u64;
            let value = match random.below(4) {
                0 => random.next(),
                1 => random.address(),
                _ => vmread(field).unwrap_or(0) ^ random.bit(),
            };
            set(field, value);
        }
        if random.below(8) == 0 {
            set(field::ENTRY_MSR_LOADS, random.below(600) as u64);
            set(field::ENTRY_MSR_LOAD_AREA, random.address());
        }
        keep_control();
        count(&mut counts, [random.next(); 8], false);
    }
    println!("exits, late failures, failures: {counts:?}");
    check!(counts.into_iter().all(|count| count >= 10), "few outcomes of a kind");
    works()
}

/// Whether an ordinary L2 runs.
fn works() -> Outcome {
    fresh(code!("inc rax"));
    let mut registers = [1; 8];
    same!((run(&mut registers, false), registers[0]), (VMCALL, 2), "an ordinary L2");
    Outcome::Pass
}

/// Tables that refer to themselves, and to everything else.
fn tables() -> Outcome {
    let mut random = Random(0x7ab1e);
    let mut counts = [0; 3];
    for round in 0..60 {
        fresh(forever());
        check!(enable_ept(), "EPT");
        confine();
        let pages = [page(EPT), page(EPT + 1), page(EPT + 2)];
        for _ in 0..if round == 0 { 0 } else { 8 } {
            let table = random.below(pages.len());
            // Not writable.
            let flags = [5, 1, 5 | LARGE, 2, 6, 5 | WRITE_BACK, 5 | LARGE | WRITE_BACK, 0][random.below(8)];
            let address = if random.below(2) == 0 { pages[random.below(pages.len())] } else { random.address() & !0xfff };
            poke(EPT + table, random.below(4), address | flags);
        }
        if round == 0 {
            (0..512).for_each(|word| poke(EPT, word, page(EPT) | 5));
        }
        if random.below(2) == 0 {
            set(field::EPT_POINTER, get(field::EPT_POINTER) | 1 << 6);
        }
        count(&mut counts, [0; 8], false);
        // Behind the shadow's back.
        poke(EPT + random.below(3), random.below(4), page(EPT) | 5);
        count(&mut counts, [0; 8], true);
    }
    println!("exits, late failures, failures: {counts:?}");
    (0..3).for_each(|table| (0..512).for_each(|word| poke(EPT + table, word, 0)));
    invept(2, [0, 0]);
    works()
}

/// Operands of the VMX instructions.
fn pointers() -> Outcome {
    let mut random = Random(0x90147e5);
    fresh(code!("nop"));
    for _ in 0..300 {
        let address = random.address();
        match random.below(6) {
            0 => vmclear(address),
            1 => vmptrld(address),
            2 => vmxon(address),
            3 => invept(random.next() & 3, [address, random.next()]),
            4 => invvpid(random.next() & 7, [random.next() & 3, address]),
            _ => vmptrld(page(FIRST)),
        };
    }
    same!(vmptrld(page(FIRST)), crate::vmcs::Done::Succeed, "VMPTRLD");
    same!(vmptrst(), page(FIRST), "the current VMCS");
    works()
}

/// A VMCS region that is written while it is current, and one of garbage.
fn region() -> Outcome {
    let mut random = Random(0xdead);
    fresh(code!("nop"));
    (1..512).for_each(|word| poke(FIRST, word, random.next()));
    same!(run(&mut [0; 8], false), VMCALL, "the exit while the region is written");
    for _ in 0..4 {
        (1..512).for_each(|word| poke(SECOND, word, random.next()));
        poke(SECOND, 0, revision());
        vmptrld(page(SECOND));
        for field in (0..0x7000).step_by(14) {
            let _ = vmread(field);
        }
        // Its host state would not return here.
        set(field::HOST_CR0, 0);
        check!(run(&mut [0; 8], true).is_err() && run(&mut [0; 8], false).is_err(), "an entry with garbage");
    }
    vmclear(page(SECOND));
    works()
}

/// The VMXON region of the other CPU.
const OTHER_VMXON: usize = 13;
/// L2's code, and what became of the other CPU: bit 63 once it has ended.
static SHARED_CODE: AtomicU64 = AtomicU64::new(0);
static OTHER: AtomicU64 = AtomicU64::new(0);

/// Enters L2 with a VMCS that the other CPU uses as well. Returns the number of VMCALL exits.
fn share() -> u64 {
    let start = SHARED_CODE.load(Ordering::SeqCst);
    let mut calls = 0;
    for n in 0..60 {
        vmptrld(page(FIRST));
        set(field::GUEST_RIP, start);
        calls += u64::from(run(&mut [0; 8], n % 3 != 0) == VMCALL);
        if n % 5 == 0 {
            vmclear(page(FIRST));
        }
    }
    calls
}

fn other() {
    const DONE: u64 = 1 << 63;
    // SAFETY: the CPU has VMX, and its numeric exceptions do not occur.
    unsafe {
        core::arch::asm!("mov rax, cr4", "bts rax, 13", "mov cr4, rax", "mov rax, cr0", "bts rax, 5", "mov cr0, rax", out("rax") _);
    }
    vmxon(page(OTHER_VMXON));
    let calls = share();
    vmxoff();
    OTHER.store(DONE | calls, Ordering::SeqCst);
}

/// One VMCS, current and launched on two CPUs.
fn sharing() -> Outcome {
    fresh(code!("nop"));
    SHARED_CODE.store(get(field::GUEST_RIP), Ordering::SeqCst);
    set(field::EXIT_CONTROLS, get(field::EXIT_CONTROLS) & !u64::from(exit::ACKNOWLEDGE_INTERRUPT));
    vmclear(page(FIRST));
    poke(OTHER_VMXON, 0, revision());
    lapic::enable();
    others::start();
    if !others::wait(|| others::UP.load(Ordering::SeqCst) == 1) {
        return Outcome::Skip("there is one CPU");
    }
    others::give(other);
    let calls = share();
    check!(others::wait(|| OTHER.load(Ordering::SeqCst) != 0), "the other CPU ends");
    println!("exits: {calls}, and {} on the other CPU", OTHER.load(Ordering::SeqCst) & 0xffff);
    check!(calls != 0, "no exit");
    vmclear(page(FIRST));
    works()
}

/// L2's virtual APIC is written by the other CPU all the time: entries fail, or L2 exits.
fn virtual_apic() -> Outcome {
    const PAGE: usize = 14;
    const DONE: u64 = 1 << 63;
    fn write() {
        const TPR: usize = 0x80 / 8;
        for round in 0..100_000 {
            poke(PAGE, TPR, round * 0x11);
        }
        OTHER.store(DONE, Ordering::SeqCst);
    }
    OTHER.store(0, Ordering::SeqCst);
    if !others::wait(|| others::UP.load(Ordering::SeqCst) == 1) {
        return Outcome::Skip("there is one CPU");
    }
    others::give(write);
    let mut counts = [0; 3];
    while OTHER.load(Ordering::SeqCst) == 0 {
        // A hypervisor handles exits by the port, after which it enters L2 again.
        fresh(code!("mov ecx, 8", "2: in al, 0x61", "mov cr8, rcx", "dec ecx", "jnz 2b"));
        set(field::VIRTUAL_APIC, page(PAGE));
        check!(enable(field::PRIMARY_CONTROLS, primary::TPR_SHADOW), "a TPR shadow");
        set(field::TPR_THRESHOLD, 7);
        count(&mut counts, [0; 8], false);
    }
    println!("exits, late failures, failures: {counts:?}");
    check!(counts[0] != 0, "no exit");
    works()
}
