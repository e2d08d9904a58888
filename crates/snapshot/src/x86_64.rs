//! Records of an x86-64 virtual machine, in this order: [`Machine`], and [`Vcpu`] for each vCPU.

use serde::{Deserialize, Serialize};

use crate::pc::{IoApic, Keyboard, LocalApic, Pic, Pit, Power, Rtc, Screen, Uart16550};

/// Number of [`Machine::features`].
pub const FEATURES: usize = 14;
/// Number of [`State::fields`].
pub const FIELDS: usize = 60;
/// Number of [`Vcpu::msrs`].
pub const MSRS: usize = 6;
/// Fixed-range MTRRs.
pub const FIXED_MTRRS: usize = 11;

/// State of the virtual machine as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine<'a> {
    /// CPUID of the physical CPU, and mitigations that the hypervisor offers.
    pub features: [u32; FEATURES],
    /// Ticks of the time-stamp counter per second.
    pub frequency: u64,
    /// Time of day at the time of the snapshot, in nanoseconds since 1970.
    pub time: u64,
    /// ACPI's timer.
    pub acpi_timer: u32,
    /// Console.
    pub uart: Uart16550,
    /// Input that waits for the UART's FIFO, in two halves.
    #[serde(borrow)]
    pub input: [&'a [u8]; 2],
    /// Real-time clock.
    pub clock: Rtc,
    /// I/O APIC.
    pub io_apic: IoApic,
    /// 8259s.
    pub pics: [Pic; 2],
    /// 8254.
    pub pit: Pit,
    /// Keyboard controller.
    pub keyboard: Keyboard,
    /// CRT controller.
    pub screen: Screen,
    /// ACPI's fixed registers.
    pub power: Power,
    /// fw_cfg's selector, and the number of bytes read.
    pub fw_cfg: (u16, u8),
}

/// State of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu<'a> {
    /// Pending events and power state, in the hypervisor's form. Unchecked.
    pub events: (u32, u32),
    /// It waits in HLT.
    pub halted: bool,
    /// General registers by number.
    pub general: [u64; 16],
    /// Guest-state area. Unchecked.
    pub state: State,
    /// STAR, LSTAR, CSTAR, FMASK, KERNEL_GS_BASE, TSC_AUX. Unchecked.
    pub msrs: [u64; MSRS],
    /// CR2, DR0 to DR3, DR6. Unchecked.
    pub debug: [u64; 6],
    /// XCR0. Unchecked.
    pub xcr0: u64,
    /// XSAVE area in its standard form; trailing zeros are left out. Unchecked.
    pub extended: &'a [u8],
    /// Local APIC.
    pub apic: LocalApic,
    /// Time-stamp counter.
    pub tsc: u64,
    /// Emulated registers. Unchecked.
    pub emulated: EmulatedMsrs,
    /// Stolen time in ticks, if the guest has enabled it.
    pub stolen: Option<u64>,
}

/// Guest-state area of a VMCS, or state-save area of a VMCB.
#[expect(clippy::large_enum_variant, reason = "a record exists once, on the stack, while it is encoded or decoded")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It has not run since its start in real mode at this page.
    Real(u8),
    /// Likewise in protected mode, at this address.
    Protected(u64),
    /// Likewise in 64-bit mode, with these page tables.
    Long(u64, u64),
    /// Fields in the hypervisor's order.
    Fields([[u64; FIELDS / 2]; 2]),
}

/// MSRs that the hypervisor emulates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedMsrs {
    /// IA32_MTRR_DEF_TYPE.
    pub mtrr_def_type: u64,
    /// Fixed-range MTRRs.
    pub mtrr_fixed: [u64; FIXED_MTRRS],
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
    /// IA32_TSC_ADJUST.
    pub tsc_adjust: u64,
    /// IA32_SPEC_CTRL.
    pub spec_ctrl: u64,
    /// MSR_KVM_STEAL_TIME.
    pub steal_time: u64,
    /// MSR_KVM_SYSTEM_TIME_NEW, which only the back end for AMD-V has.
    pub system_time: u64,
    /// MSR_KVM_PV_EOI_EN, likewise.
    pub eoi: u64,
}
