//! The gate: Stile's code behind VMFUNC, which notifies the CPU of a vCPU.

use core::arch::asm;

/// CPUID leaf of features.
pub const FEATURES: u32 = 0x4000_0001;
/// EAX of [`FEATURES`]: the VM has a gate.
pub const FEATURE: u32 = 1 << 1;
/// MSR that says where the descriptors are, and whether this CPU sends IPIs itself ([`SENDS`]).
pub const CONTROL: u32 = 0x4000_00f0;
/// MSR that sends NMI, INIT and startup messages.
pub const COMMAND: u32 = 0x4000_00f1;
/// Bit of [`CONTROL`].
pub const SENDS: u64 = 1;

/// Bytes of the gate's code for each vCPU.
const SLOT: usize = 64;
/// Offset in them at which the gate is entered.
const ENTRY: usize = 32;
/// Offset in them at which the code of the guest's own view continues.
const RETURN: usize = 16;
/// VMFUNC.
pub const VMFUNC: [u8; 3] = [0x0f, 0x01, 0xd4];
const RET: u8 = 0xc3;
const INT3: u8 = 0xcc;

/// The last GiB of linear addresses, where the gate is; here the first GiB of memory is there, too.
pub const LAST: u64 = 0xffff_ffff_c000_0000;

#[repr(C, align(4096))]
struct Page([u8; 4096]);
#[repr(C, align(4096))]
struct Table([u64; 512]);

static mut CODE: Page = Page([INT3; 4096]);
static mut LEVEL_3: Table = Table([0; 512]);

unsafe extern "C" {
    static mut level_4: [u64; 512];
}

/// Maps the last GiB, and makes the page from which the gate is entered, and to which it returns at the same offsets.
pub fn setup() {
    const PRESENT: u64 = 3;
    const LARGE: u64 = 1 << 7;
    // SAFETY: one CPU runs; the entry was empty, and the first GiB is memory.
    unsafe {
        LEVEL_3.0[511] = LARGE | PRESENT;
        level_4[511] = &raw const LEVEL_3 as u64 | PRESENT;
    }
    fill(|page| {
        for slot in page.chunks_exact_mut(SLOT) {
            slot[ENTRY - VMFUNC.len()..ENTRY].copy_from_slice(&VMFUNC);
            slot[RETURN] = RET;
        }
    });
}

/// Writes the page from which the gate is entered, which was all INT3.
pub fn fill(write: impl FnOnce(&mut [u8; 4096])) {
    // SAFETY: one CPU runs, or the others do not use the page.
    let page = unsafe { &mut *(&raw mut CODE).cast::<[u8; 4096]>() };
    page.fill(INT3);
    write(page);
}

/// Linear address of that page in the last GiB.
pub fn page() -> u64 {
    LAST + &raw const CODE as u64
}

/// Entry of the gate that notifies the CPU of a vCPU: a function that takes EAX = 0 and ECX = 1, and changes ECX and
/// flags.
pub fn entry(vcpu: u32) -> u64 {
    page() + (vcpu as usize * SLOT + ENTRY - VMFUNC.len()) as u64
}

/// Notifies the CPU of a vCPU.
pub fn notify(vcpu: u32) {
    let entry = entry(vcpu);
    // SAFETY: the code at the entry changes ECX and flags, and returns.
    unsafe {
        asm!(
            "pushfq",
            "cli",
            "call {entry}",
            "popfq",
            entry = in(reg) entry,
            inout("eax") 0 => _,
            inout("ecx") 1 => _,
        );
    }
}
