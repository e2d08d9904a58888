//! Attacks outside of long mode: in real mode, virtual-8086 mode, and protected mode with each kind of paging, at both privilege levels,
//! in code of 16 and of 32 bits.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::random::Random;
use pc::gate::VMFUNC;

use crate::layout::{CODE_16, CODE_32, DATA, LOW, NMIS, Pointer, TABLES, USER_16, USER_32, USER_DATA, middle};

pc::assembly!("intruder/legacy.s");

unsafe extern "C" {
    fn attack_legacy();
    fn legacy_caught();
    fn legacy_caught_nmi();
    static real: u8;
    static real_caught: u8;
    static real_caught_nmi: u8;
    static real_end: u8;
    static SENDING: AtomicU32;
    static mut BLOCK: [u32; 17];
}

#[unsafe(no_mangle)]
static LEGACY_STACK: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static LEGACY_CR0: AtomicU32 = AtomicU32::new(0);
#[unsafe(no_mangle)]
static LEGACY_CR3: AtomicU32 = AtomicU32::new(0);
#[unsafe(no_mangle)]
static LEGACY_CR4: AtomicU32 = AtomicU32::new(0);
/// Whether the next attack is in real mode.
#[unsafe(no_mangle)]
static LEGACY_REAL: AtomicU32 = AtomicU32::new(0);
#[unsafe(no_mangle)]
static mut IDT_32_POINTER: Pointer = Pointer { limit: 0, base: 0 };
#[unsafe(no_mangle)]
static mut IDT_16_POINTER: Pointer = Pointer { limit: 0, base: 0 };

static mut IDT_32: [u64; 256] = [0; 256];
static mut IDT_16: [u32; 256] = [0; 256];

/// The page with the code and the registers of real mode: REAL and REAL_BLOCK of `legacy.s`.
const REAL: u64 = 0x1_2000;
const REAL_BLOCK: u64 = 0x800;

const CR0_PG: u32 = 1 << 31;
const CR4_PSE: u32 = 1 << 4;
const CR4_PAE: u32 = 1 << 5;

/// Start of the last GiB of 32-bit addresses, all of which is the page of code, if there is paging.
const LAST: u32 = 0xc000_0000;
/// The APIC's page of the gate, in 32 bits.
const APIC: u32 = 0xcccc_f000;

/// EFLAGS: virtual-8086 mode.
const VM: u32 = 1 << 17;

/// Tables of [`TABLES`].
const PAGES: usize = 3;
const DIRECTORY: usize = 4;
const PAE_POINTERS: usize = 5;
const PAE_FIRST: usize = 6;
const PAE_LAST: usize = 7;
const PAE_PAGES: usize = 8;

/// Makes tables, gates and real mode's page ready.
pub fn setup() {
    const ALL: u32 = 7;
    const LARGE: u32 = 1 << 7;
    // SAFETY: nothing uses these tables yet, and the page is otherwise unused RAM.
    unsafe {
        let tables = (&raw mut TABLES).cast::<[u64; 512]>();
        let address = |table: usize| tables.add(table) as u32;
        let entries = |table: usize| tables.add(table).cast::<[u32; 1024]>();
        // RAM is 64 MiB.
        let (pages, directory) = (entries(PAGES), entries(DIRECTORY));
        (*pages).fill(middle() as u32 | ALL);
        (0..16).for_each(|index| (*directory)[index] = (index as u32) << 22 | LARGE | ALL);
        ((LAST >> 22) as usize..1024).for_each(|index| (*directory)[index] = address(PAGES) | ALL);
        (*tables.add(PAE_POINTERS))[0] = u64::from(address(PAE_FIRST) | 1);
        (*tables.add(PAE_POINTERS))[3] = u64::from(address(PAE_LAST) | 1);
        (0..32).for_each(|index| (*tables.add(PAE_FIRST))[index] = (index as u64) << 21 | u64::from(LARGE | ALL));
        (*tables.add(PAE_LAST)).fill(u64::from(address(PAE_PAGES) | ALL));
        (*tables.add(PAE_PAGES)).fill(middle() | u64::from(ALL));

        let code = &raw const real;
        (REAL as *mut u8).copy_from_nonoverlapping(code, &raw const real_end as usize - code as usize);
        let (caught, caught_nmi) = (&raw const real_caught as usize - code as usize, &raw const real_caught_nmi as usize - code as usize);
        let (gates, vectors) = ((&raw mut IDT_32).cast::<u64>(), (&raw mut IDT_16).cast::<u32>());
        for vector in 0..256 {
            let (handler, offset) =
                if vector == 2 { (legacy_caught_nmi as *const () as u64, caught_nmi) } else { (legacy_caught as *const () as u64, caught) };
            gates.add(vector).write(handler & 0xffff | CODE_32 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48);
            vectors.add(vector).write((REAL as u32 >> 4) << 16 | offset as u32);
        }
        IDT_32_POINTER = Pointer { limit: 256 * 8 - 1, base: gates as u64 };
        IDT_16_POINTER = Pointer { limit: 256 * 4 - 1, base: vectors as u64 };
    }
}

/// Top of the stack for interrupts of user code.
pub fn stack() -> u32 {
    &raw const BLOCK as u32
}

/// One attack, by VMFUNC which ends at an offset of the page of code.
pub fn strike(offset: u64, flags: u32, random: &mut Random) {
    let in_real_mode = random.below(6) == 0;
    let (cr0, cr4): (u64, u64);
    // SAFETY: reads control registers, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr0", "mov {}, cr4", out(reg) cr0, out(reg) cr4, options(nomem, nostack)) };
    let cr4 = cr4 as u32 & !(CR4_PAE | CR4_PSE);
    let table = |index: usize| (&raw const TABLES).cast::<[u64; 512]>().wrapping_add(index) as u32;
    let (paging, cr4, cr3) = match if in_real_mode { 0 } else { random.below(3) } {
        0 => (0, cr4, random.bits() as u32 & !0xfff),
        1 => (CR0_PG, cr4 | CR4_PSE, table(DIRECTORY)),
        _ => (CR0_PG, cr4 | CR4_PAE, table(PAE_POINTERS)),
    };
    LEGACY_CR0.store(cr0 as u32 & !CR0_PG | paging, Ordering::SeqCst);
    LEGACY_CR3.store(cr3, Ordering::SeqCst);
    LEGACY_CR4.store(cr4, Ordering::SeqCst);
    LEGACY_REAL.store(u32::from(in_real_mode), Ordering::SeqCst);

    let mut any = || if random.below(2) == 0 { APIC + random.below(4096) as u32 } else { random.bits() as u32 };
    // EDI, ESI, EBP, ESP, EBX, EDX, ECX, EAX: VMFUNC's operands are the last two.
    let registers = [any(), any(), any(), any(), any(), any(), 1, 0];
    let stack = any();
    // Behind the start of the first page, which the 16-bit segments begin with.
    let short = 4096 + offset as u32 - VMFUNC.len() as u32;
    let low = LOW as u32 + short;
    let page = if random.below(4) == 0 { APIC } else { LAST + random.below(1 << 18) as u32 * 4096 };
    let high = page.wrapping_add(offset as u32).wrapping_sub(VMFUNC.len() as u32).max(LAST);
    let wide = if paging != 0 && random.below(4) != 0 { high } else { low };
    if in_real_mode {
        let place = (REAL + REAL_BLOCK) as *mut [u32; 8];
        // SAFETY: the page is larger, and otherwise unused.
        unsafe {
            place.write(registers);
            place.add(1).cast::<[u16; 3]>().write([short as u16, (LOW >> 4) as u16, flags as u16]);
        }
    } else {
        let (ip, cs, ss, flags) = match random.below(5) {
            0 => (wide, CODE_32, DATA, flags),
            1 => (short, CODE_16, DATA, flags),
            2 => (wide, USER_32, USER_DATA, flags),
            3 => (short, USER_16, USER_DATA, flags),
            _ => (short, LOW >> 4, LOW >> 4, flags | VM),
        };
        let [edi, esi, ebp, esp, ebx, edx, ecx, eax] = registers;
        // SAFETY: nothing else uses the block now.
        unsafe { BLOCK = [edi, esi, ebp, esp, ebx, edx, ecx, eax, ip, cs as u32, flags, stack, ss as u32, 0, 0, 0, 0] };
    }
    // SAFETY: whatever follows is caught, and comes back to long mode.
    unsafe { attack_legacy() };
}

/// Sends an NMI to the CPU that attacks, by `send`, and waits until it was taken: it is never under way while that CPU changes its mode.
pub fn send_nmi(send: impl FnOnce()) {
    // SAFETY: an atomic that is never freed: a shared reference to it is always valid.
    let lock = unsafe { &SENDING };
    while lock.swap(1, Ordering::SeqCst) != 0 {
        core::hint::spin_loop();
    }
    let before = NMIS.load(Ordering::SeqCst);
    send();
    // While that CPU waits for this lock in its handler of an NMI, this one stays pending, and comes when it has left the handler.
    let start = pc::machine::ticks();
    while NMIS.load(Ordering::SeqCst) == before && pc::machine::ticks() - start < PATIENCE {
        core::hint::spin_loop();
    }
    lock.store(0, Ordering::SeqCst);
}

/// Ticks that an NMI takes at most, if it is not blocked.
const PATIENCE: u64 = 1_000_000;
