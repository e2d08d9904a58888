//! Instructions without a Rust equivalent.

use core::arch::asm;

/// Reads a model-specific register.
///
/// # Safety
/// This CPU has the register.
#[inline(always)]
pub unsafe fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller guarantees that the register exists; reading has no side effect.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The register exists, the value is valid, and its effect does not violate Stile's memory safety.
#[inline(always)]
pub unsafe fn wrmsr(register: u32, value: u64) {
    // SAFETY: the caller guarantees the register and value. Not `nomem`: some registers order memory accesses.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags)) };
}

/// Reads a byte from a port.
///
/// # Safety
/// The device's reaction to the access is harmless.
#[inline(always)]
pub unsafe fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller guarantees that the access is harmless.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Reads four bytes from a port.
///
/// # Safety
/// As [`in8`].
#[inline(always)]
pub unsafe fn in32(port: u16) -> u32 {
    let value: u32;
    // SAFETY: the caller guarantees that the access is harmless.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
///
/// # Safety
/// As [`in8`].
#[inline(always)]
pub unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller guarantees that the access is harmless.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes two bytes to a port.
///
/// # Safety
/// As [`in8`].
#[inline(always)]
pub unsafe fn out16(port: u16, value: u16) {
    // SAFETY: the caller guarantees that the access is harmless.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Executes CPUID.
pub use core::arch::x86_64::{__cpuid_count as cpuid, CpuidResult};

/// Reads the time-stamp counter.
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: reading the counter has no side effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads a control register.
macro_rules! read_cr {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading a control register has no side effect.
        unsafe { core::arch::asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}
pub(crate) use read_cr;

/// Numbers of model-specific registers (the manual, "Model-Specific Registers").
pub mod msr {
    pub const IA32_APIC_BASE: u32 = 0x1b;
    pub const IA32_FEATURE_CONTROL: u32 = 0x3a;
    pub const IA32_SPEC_CTRL: u32 = 0x48;
    pub const IA32_PRED_CMD: u32 = 0x49;
    pub const IA32_XAPIC_DISABLE_STATUS: u32 = 0xbd;
    pub const IA32_ARCH_CAPABILITIES: u32 = 0x10a;
    pub const IA32_FLUSH_CMD: u32 = 0x10b;
    pub const IA32_VMX_BASIC: u32 = 0x480;
    pub const IA32_VMX_CR0_FIXED0: u32 = 0x486;
    pub const IA32_VMX_CR0_FIXED1: u32 = 0x487;
    pub const IA32_VMX_CR4_FIXED0: u32 = 0x488;
    pub const IA32_VMX_CR4_FIXED1: u32 = 0x489;
    pub const IA32_VMX_EPT_VPID_CAP: u32 = 0x48c;
    pub const IA32_PAT: u32 = 0x277;
    pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
    pub const X2APIC: u32 = 0x800;
    pub const IA32_EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const CSTAR: u32 = 0xc000_0083;
    pub const FMASK: u32 = 0xc000_0084;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub const TSC_AUX: u32 = 0xc000_0103;
    pub const SYSENTER_CS: u32 = 0x174;
    pub const SYSENTER_ESP: u32 = 0x175;
    pub const SYSENTER_EIP: u32 = 0x176;
    pub const TSC: u32 = 0x10;
    pub const TSC_ADJUST: u32 = 0x3b;
    pub const MISC_ENABLE: u32 = 0x1a0;
    pub const DEBUGCTL: u32 = 0x1d9;
    /// MSR_KVM_STEAL_TIME of KVM's interface.
    pub const KVM_STEAL_TIME: u32 = 0x4b56_4d03;
    pub const PLATFORM_INFO: u32 = 0xce;
    pub const MTRR_CAP: u32 = 0xfe;
    pub const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub const MCG_CAP: u32 = 0x179;
    pub const MCG_STATUS: u32 = 0x17a;
}
