//! MSR areas of VM entries and VM exits (SDM, "Loading MSRs", "Saving MSRs").

/// Maximum number of entries in an area, as IA32_VMX_MISC recommends (bits 27:25 are 0). A VM entry fails at the next one.
pub const LIMIT: u32 = 512;

/// Maximum cost of an area's entries whose MSR takes the handler of an access of L1's ([`Entry::slowness`]): the area is processed without
/// interrupts. KVM and Xen use fewer than ten such entries.
pub const SLOW_LIMIT: u32 = 32;

/// The size of an entry.
pub const ENTRY_SIZE: u64 = 16;

/// An entry of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The MSR's number.
    pub msr: u32,
    /// Bits 63:32 of the entry.
    pub reserved: u32,
    /// The value.
    pub value: u64,
}

const APIC_BASE: u32 = 0x1b;
const FS_BASE: u32 = 0xc000_0100;
const GS_BASE: u32 = 0xc000_0101;
const SMM_MONITOR_CTL: u32 = 0x9b;
const SMBASE: u32 = 0x9e;
const BIOS_UPDT_TRIG: u32 = 0x79;
const BIOS_SIGN_ID: u32 = 0x8b;

impl Entry {
    /// Decodes an entry from its two words.
    pub const fn new(words: [u64; 2]) -> Self {
        Self { msr: words[0] as u32, reserved: (words[0] >> 32) as u32, value: words[1] }
    }

    /// Whether a VM entry or VM exit may load the MSR. WRMSR can still fault, which also fails the load.
    pub const fn may_load(self, is_x2apic: bool) -> bool {
        let is_forbidden = matches!(self.msr, FS_BASE | GS_BASE | SMM_MONITOR_CTL | BIOS_UPDT_TRIG | BIOS_SIGN_ID);
        self.reserved == 0 && !is_forbidden && !(is_x2apic && self.is_x2apic())
    }

    /// Whether a VM exit may store the MSR. RDMSR can still fault, which also fails the store.
    pub const fn may_store(self, is_x2apic: bool) -> bool {
        self.reserved == 0 && self.msr != SMBASE && !(is_x2apic && self.is_x2apic())
    }

    /// Cost of the handler of a write by L1, in thousands of instructions: IA32_APIC_BASE may reset the local APIC, and a hypervisor's
    /// own MSRs may concern all of a VM's processors. A read costs 1.
    pub const fn slowness(self) -> u32 {
        match self.msr {
            APIC_BASE => 8,
            0x4000_0000..0x4000_0100 => SLOW_LIMIT,
            _ => 1,
        }
    }

    const fn is_x2apic(self) -> bool {
        self.msr >> 8 == 8
    }
}
