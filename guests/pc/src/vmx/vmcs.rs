//! VMX instructions, and a VMCS that enters an L2 which shares L1's address space.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use pc::machine::rdmsr;

use crate::field::{self, entry, exit, pin, primary, secondary};

/// VMXON's region, VMCSs, bitmaps: pages of zeros.
#[repr(C, align(4096))]
pub struct Page([u64; 512]);

/// Pages by use.
pub static mut PAGES: [Page; 16] = [const { Page([0; 512]) }; 16];

/// The address of a page.
pub fn page(number: usize) -> u64 {
    // SAFETY: callers pass indices of `PAGES`, so that the address is within the static; nothing is read or written.
    unsafe { (&raw const PAGES).cast::<Page>().add(number) as u64 }
}

/// Writes a word of a page.
pub fn poke(page_number: usize, word: usize, value: u64) {
    // SAFETY: the pages are used by these tests alone, which are one thread.
    unsafe { ((page(page_number) as *mut u64).add(word % 512)).write_volatile(value) };
}

/// Fills a page with zeros.
pub fn clear(page_number: usize) {
    (0..512).for_each(|word| poke(page_number, word, 0));
}

pub const VMXON: usize = 0;
pub const FIRST: usize = 1;
pub const SECOND: usize = 2;
pub const BITMAP: usize = 3;
pub const BITMAP_B: usize = 4;
pub const AREA: usize = 5;
pub const STACK: usize = 6;
pub const EPT: usize = 8;

/// The outcome of a VMX instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    Succeed,
    FailInvalid,
    /// With the VM-instruction error.
    Fail(u64),
}

impl Done {
    pub fn from_flags(flags: u64) -> Self {
        const CF: u64 = 1;
        const ZF: u64 = 1 << 6;
        // The others of the six flags are cleared.
        match flags & 0x8d5 {
            0 => Self::Succeed,
            CF => Self::FailInvalid,
            ZF => Self::Fail(vmread(field::INSTRUCTION_ERROR).unwrap_or(u64::MAX)),
            _ => Self::Fail(u64::MAX),
        }
    }
}

macro_rules! instruction {
    ($($text:literal)+, $($operand:tt)*) => {{
        let flags: u64;
        // SAFETY: the tests own VMX operation, and pass addresses of pages of their own or ones that are refused.
        unsafe { asm!("stc", $($text,)+ "pushfq", "pop {flags}", flags = out(reg) flags, $($operand)*) };
        Done::from_flags(flags)
    }};
}

pub fn vmxon(region: u64) -> Done {
    instruction!("vmxon [{region}]", region = in(reg) &region)
}

pub fn vmxoff() -> Done {
    instruction!("vmxoff",)
}

pub fn vmclear(region: u64) -> Done {
    instruction!("vmclear [{region}]", region = in(reg) &region)
}

pub fn vmptrld(region: u64) -> Done {
    instruction!("vmptrld [{region}]", region = in(reg) &region)
}

pub fn vmptrst() -> u64 {
    let mut region = 0u64;
    // SAFETY: VMPTRST stores eight bytes into `region`, and this CPU is in VMX operation.
    unsafe { asm!("vmptrst [{}]", in(reg) &mut region) };
    region
}

pub fn vmwrite(field: u64, value: u64) -> Done {
    instruction!("vmwrite {field}, {value}", field = in(reg) field, value = in(reg) value)
}

pub fn vmread(field: u64) -> Result<u64, Done> {
    let (value, flags): (u64, u64);
    // SAFETY: VMREAD accesses no memory with a register operand; the CPU is in VMX operation, and flags report failure.
    unsafe { asm!("stc", "vmread {}, {}", "pushfq", "pop {}", out(reg) value, in(reg) field, out(reg) flags) };
    const CF_ZF: u64 = 0x41;
    match flags & CF_ZF {
        0 => Ok(value),
        1 => Err(Done::FailInvalid),
        _ if field == field::INSTRUCTION_ERROR => Err(Done::Fail(u64::MAX)),
        _ => Err(Done::from_flags(flags)),
    }
}

/// Reads a field that exists.
pub fn get(field: u64) -> u64 {
    vmread(field).unwrap_or(u64::MAX)
}

/// Writes a field that exists.
pub fn set(field: u64, value: u64) {
    vmwrite(field, value);
}

pub fn invept(kind: u64, descriptor: [u64; 2]) -> Done {
    instruction!("invept {kind}, [{descriptor}]", kind = in(reg) kind, descriptor = in(reg) &descriptor)
}

pub fn invvpid(kind: u64, descriptor: [u64; 2]) -> Done {
    instruction!("invvpid {kind}, [{descriptor}]", kind = in(reg) kind, descriptor = in(reg) &descriptor)
}

pub fn vmlaunch_only() -> Done {
    instruction!("vmlaunch",)
}

pub fn vmresume_only() -> Done {
    instruction!("vmresume",)
}

unsafe extern "C" {
    fn vmx_run(registers: *mut [u64; 8], launched: u64) -> u64;
    fn vmx_launch_in_shadow() -> u64;
    static vmx_exit: u8;
}

/// VMLAUNCH after MOV SS.
pub fn launch_in_shadow() -> Done {
    // SAFETY: it fails, or the test does.
    Done::from_flags(unsafe { vmx_launch_in_shadow() })
}

/// L2's RAX, RCX, RDX, RBX, RBP, RSI, RDI, R8.
pub type Registers = [u64; 8];

/// Enters L2. After a VM exit, returns the exit reason.
pub fn run(registers: &mut Registers, is_launched: bool) -> Result<u64, Done> {
    // SAFETY: L2 is code of this program.
    match unsafe { vmx_run(registers, is_launched.into()) } {
        0 => Ok(get(field::EXIT_REASON)),
        flags => Err(Done::from_flags(flags)),
    }
}

const BASIC: u32 = 0x480;
const MISC: u32 = 0x485;

/// A capability MSR.
pub fn capability(number: u32) -> u64 {
    // SAFETY: the tests look for VMX first.
    unsafe { rdmsr(number) }
}

pub fn revision() -> u64 {
    capability(BASIC) & 0x7fff_ffff
}

pub fn misc() -> u64 {
    capability(MISC)
}

fn has_true_controls() -> bool {
    capability(BASIC) & 1 << 55 != 0
}

/// The control fields, with the numbers of their capability MSRs.
const CONTROLS: [(u64, u32, u32); 5] = [
    (field::PIN_CONTROLS, 0x481, 0x48d),
    (field::PRIMARY_CONTROLS, 0x482, 0x48e),
    (field::EXIT_CONTROLS, 0x483, 0x48f),
    (field::ENTRY_CONTROLS, 0x484, 0x490),
    (field::SECONDARY_CONTROLS, 0x48b, 0x48b),
];

/// The bits of a control field that must be 1, and those that may be.
pub fn allowed(control: u64) -> (u32, u32) {
    let (_, plain, exact) = CONTROLS.into_iter().find(|&(field, ..)| field == control).unwrap_or(CONTROLS[0]);
    if control == field::SECONDARY_CONTROLS && allowed(field::PRIMARY_CONTROLS).1 & primary::SECONDARY == 0 {
        return (0, 0);
    }
    let value = capability(if has_true_controls() { exact } else { plain });
    (value as u32, (value >> 32) as u32)
}

/// Whether these controls may be 1.
pub fn may(control: u64, bits: u32) -> bool {
    bits & !allowed(control).1 == 0
}

/// The wanted controls that may be 1, and those that must.
fn choose(control: u64, wanted: u32) -> u64 {
    let (must, may) = allowed(control);
    u64::from(must | wanted & may)
}

/// The address that [`code!`] put aside.
pub static CODE: AtomicU64 = AtomicU64::new(0);

/// The address of code for L2. It ends with VMCALL.
macro_rules! code {
    ($($line:literal),+ $(,)?) => {{
        let address: u64;
        // SAFETY: only takes the code's address: the jump skips the code itself.
        unsafe {
            core::arch::asm!("lea {0}, [rip + 27f]", "jmp 28f", "27:", $($line,)+ "vmcall", "ud2", "28:", out(reg) address);
        }
        address
    }};
}
pub(crate) use code;

/// Makes a fresh VMCS current that would run `code` in 64-bit mode at privilege level 0, and exits only where it has to.
pub fn fresh(code: u64) {
    CODE.store(code, Ordering::Relaxed);
    vmclear(page(FIRST));
    // In every format of a VMCS, no field keeps its former value.
    clear(FIRST);
    poke(FIRST, 0, revision());
    vmclear(page(FIRST));
    vmptrld(page(FIRST));
    let (cr0, cr3, cr4): (u64, u64, u64);
    // SAFETY: reads a control register, which has no side effect at privilege level 0.
    unsafe { asm!("mov {}, cr0", "mov {}, cr3", "mov {}, cr4", out(reg) cr0, out(reg) cr3, out(reg) cr4) };
    let (mut gdt, mut idt) = ([0u16; 5], [0u16; 5]);
    // SAFETY: SGDT and SIDT store ten bytes each, as many as the arrays have.
    unsafe { asm!("sgdt [{}]", "sidt [{}]", in(reg) &mut gdt, in(reg) &mut idt) };
    let base = |table: [u16; 5]| table[1..].iter().rev().fold(0, |base, &part| base << 16 | u64::from(part));
    // SAFETY: all x86-64 CPUs have these MSRs, and reading them has no side effect.
    let (efer, pat) = unsafe { (rdmsr(0xc000_0080), rdmsr(0x277)) };
    let fields = [
        (field::PIN_CONTROLS, choose(field::PIN_CONTROLS, 0)),
        (field::PRIMARY_CONTROLS, choose(field::PRIMARY_CONTROLS, primary::SECONDARY)),
        (field::EXIT_CONTROLS, choose(field::EXIT_CONTROLS, exit::HOST_64 | exit::SAVE_EFER | exit::LOAD_EFER | exit::LOAD_PAT)),
        (field::ENTRY_CONTROLS, choose(field::ENTRY_CONTROLS, entry::IA32E_GUEST | entry::LOAD_EFER | entry::LOAD_PAT | entry::LOAD_DEBUG)),
        (field::VMCS_LINK, u64::MAX),
        (field::HOST_CR0, cr0),
        (field::HOST_CR3, cr3),
        (field::HOST_CR4, cr4),
        (field::HOST_CS, 0x08),
        (field::HOST_SS, 0x10),
        (field::HOST_DS, 0x10),
        (field::HOST_ES, 0x10),
        (field::HOST_TR, 0x18),
        (field::HOST_GDTR_BASE, base(gdt)),
        (field::HOST_IDTR_BASE, base(idt)),
        (field::HOST_EFER, efer),
        (field::HOST_PAT, pat),
        (field::HOST_RIP, &raw const vmx_exit as u64),
        (field::GUEST_CR0, cr0),
        (field::GUEST_CR3, cr3),
        (field::GUEST_CR4, cr4),
        (field::GUEST_EFER, efer),
        (field::GUEST_PAT, pat),
        (field::GUEST_DR7, 0x400),
        (field::GUEST_GDTR_BASE, base(gdt)),
        (field::GUEST_GDTR_LIMIT, gdt[0].into()),
        (field::GUEST_IDTR_BASE, base(idt)),
        (field::GUEST_IDTR_LIMIT, idt[0].into()),
        (field::GUEST_CS, 0x08),
        (field::GUEST_TR, 0x18),
        (field::GUEST_RIP, code),
        (field::GUEST_RSP, page(STACK + 1)),
        (field::GUEST_RFLAGS, 2),
    ];
    for (field, value) in fields {
        set(field, value);
    }
    for number in 0..8 {
        let (rights, limit) = match number {
            1 => (0xa09b, 0xffff_ffff),
            6 => (0x1_0000, 0),
            7 => (0x8b, 0x67),
            _ => (0xc093, 0xffff_ffff),
        };
        set(field::GUEST_ES_RIGHTS + 2 * number, rights);
        set(field::GUEST_ES_LIMIT + 2 * number, limit);
    }
    for selector in [field::GUEST_ES, field::GUEST_SS, field::GUEST_DS] {
        set(selector, 0x10);
    }
}

/// Sets bits of a control field. Returns whether they may be 1.
pub fn enable(control: u64, bits: u32) -> bool {
    if control == field::SECONDARY_CONTROLS {
        if !may(field::PRIMARY_CONTROLS, primary::SECONDARY) {
            return false;
        }
        set(field::PRIMARY_CONTROLS, get(field::PRIMARY_CONTROLS) | u64::from(primary::SECONDARY));
    }
    let can = may(control, bits);
    if can {
        set(control, get(control) | u64::from(bits));
    }
    can
}

/// Turns on extended page tables that map the first GiB where it is, with large pages, and the last of 4 GiB. Returns false if there are
/// none.
pub fn enable_ept() -> bool {
    const READ_WRITE_EXECUTE: u64 = 7;
    const LARGE: u64 = 1 << 7;
    const WRITE_BACK: u64 = 6 << 3;
    if !enable(field::SECONDARY_CONTROLS, secondary::EPT) {
        return false;
    }
    poke(EPT, 0, page(EPT + 1) | READ_WRITE_EXECUTE);
    poke(EPT + 1, 0, page(EPT + 2) | READ_WRITE_EXECUTE);
    for word in 0..512 {
        poke(EPT + 2, word, (word as u64) << 21 | LARGE | WRITE_BACK | READ_WRITE_EXECUTE);
    }
    // Write-back tables, four levels.
    set(field::EPT_POINTER, page(EPT) | 6 | 3 << 3);
    true
}

/// Pin-based controls for virtual NMIs.
pub const VIRTUAL_NMIS: u32 = pin::NMIS | pin::VIRTUAL_NMIS;
