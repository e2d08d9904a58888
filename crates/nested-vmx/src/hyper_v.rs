//! Hyper-V's interface (TLFS, "Feature and Interface Discovery", "Virtual Processors"), as far as Linux needs it to use the enlightened
//! VMCS: CPUID leaves and synthetic MSRs. Nothing else is announced: no hypercalls, no synthetic interrupts or timers, no reference time.

/// Highest leaf.
const HIGHEST: u32 = 0x4000_000a;

/// Numbers of the synthetic MSRs.
pub mod msr {
    /// Identity of the guest's system: 0 before it has written one.
    pub const GUEST_OS_ID: u32 = 0x4000_0000;
    /// Address of the hypercall page, with its enable and lock bits.
    pub const HYPERCALL: u32 = 0x4000_0001;
    /// Index of the virtual processor. Read-only.
    pub const VP_INDEX: u32 = 0x4000_0002;
    /// Address of the VP assist page, with its enable bit.
    pub const VP_ASSIST_PAGE: u32 = 0x4000_0073;
    /// Whether CPUID reports that the TSC is invariant.
    pub const TSC_INVARIANT_CONTROL: u32 = 0x4000_0118;
}

/// Bit of the hypercall page's and the VP assist page's MSR: enabled.
pub const ENABLED: u64 = 1 << 0;
/// Bit of the hypercall page's MSR: it keeps its value until the VM is reset.
pub const LOCKED: u64 = 1 << 1;

/// Privileges and features (leaf 4000_0003H, EAX).
mod features {
    pub const HYPERCALL_MSRS: u32 = 1 << 5;
    pub const VP_INDEX: u32 = 1 << 6;
    pub const TSC_INVARIANT: u32 = 1 << 15;
}

/// Recommendation to use enlightened VMCSs (leaf 4000_0004H, EAX).
const ENLIGHTENED_VMCS: u32 = 1 << 14;
/// Never to notify the hypervisor of spinning (leaf 4000_0004H, EBX).
const NEVER: u32 = u32::MAX;
/// Features for nested hypervisors (leaf 4000_000AH, EAX): lowest and highest version of the enlightened VMCS, enlightened MSR bitmaps.
const NESTED: u32 = super::enlightened::VERSION | super::enlightened::VERSION << 8 | 1 << 19;

/// Answer of CPUID: EAX, EBX, ECX, EDX. `vcpus`: of the VM. Leaves from 4000_0000H are answered, those above the highest with zeros.
pub fn leaf(number: u32, vcpus: u32) -> [u32; 4] {
    let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
    match number {
        0x4000_0000 => [HIGHEST, word(b"Micr"), word(b"osof"), word(b"t Hv")],
        0x4000_0001 => [word(b"Hv#1"), 0, 0, 0],
        0x4000_0003 => [features::HYPERCALL_MSRS | features::VP_INDEX | features::TSC_INVARIANT, 0, 0, 0],
        0x4000_0004 => [ENLIGHTENED_VMCS, NEVER, 0, 0],
        0x4000_0005 => [vcpus, 0, 0, 0],
        HIGHEST => [NESTED, 0, 0, 0],
        _ => [0; 4],
    }
}

/// Code of the hypercall page, for all modes: `MOV EAX, 2` (invalid hypercall code, in bits 15:0 of the result); `RET`. There are no
/// hypercalls, so that none needs an exit.
pub const HYPERCALL_PAGE: u64 = u64::from_le_bytes([0xb8, 2, 0, 0, 0, 0xc3, 0xcc, 0xcc]);

/// A write of the hypercall page's MSR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hypercall {
    /// Locked, or the guest's system has no identity: without effect.
    Ignored,
    /// The MSR has this value.
    Set(u64),
    /// The page at this address gets its code, and then the MSR this value. #GP if it is not in RAM.
    Enabled(u64, u64),
}

/// Writes the hypercall page's MSR (TLFS, "Establishing the Hypercall Interface").
pub const fn write_hypercall(old: u64, value: u64, guest_os: u64) -> Hypercall {
    if old & LOCKED != 0 {
        return Hypercall::Ignored;
    }
    if value & ENABLED == 0 {
        return Hypercall::Set(value);
    }
    if guest_os == 0 { Hypercall::Ignored } else { Hypercall::Enabled(value & !0xfff, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_finds_what_it_asks_for() {
        let [highest, ebx, ecx, edx] = leaf(0x4000_0000, 1);
        let name: std::vec::Vec<u8> = [ebx, ecx, edx].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!((highest, &name[..]), (0x4000_000a, &b"Microsoft Hv"[..]));
        assert_eq!(leaf(0x4000_0001, 1)[0], 0x3123_7648, "interface signature");
        // The hypercall and VP-index MSRs make it a Hyper-V; without the invariant TSC Linux would not use its clock.
        assert_eq!(leaf(0x4000_0003, 1), [0x8060, 0, 0, 0]);
        assert_eq!(leaf(0x4000_0004, 1), [0x4000, u32::MAX, 0, 0]);
        assert_eq!(leaf(0x4000_0005, 7)[0], 7);
        assert_eq!(leaf(0x4000_000a, 1), [0x8_0101, 0, 0, 0]);
        for absent in [0x4000_0002, 0x4000_0006, 0x4000_0009, 0x4000_000b, 0x4000_0010, 0x4000_0100, 0x4000_0101] {
            assert_eq!(leaf(absent, 1), [0; 4], "{absent:#x}");
        }
    }

    #[test]
    fn the_hypercall_page_needs_an_identity_and_can_be_locked() {
        assert_eq!(write_hypercall(0, 0x5001, 0), Hypercall::Ignored);
        assert_eq!(write_hypercall(0, 0x5000, 0), Hypercall::Set(0x5000));
        assert_eq!(write_hypercall(0, 0x5001, 1), Hypercall::Enabled(0x5000, 0x5001));
        assert_eq!(write_hypercall(0x5001, 0, 1), Hypercall::Set(0));
        assert_eq!(write_hypercall(0x5003, 0, 1), Hypercall::Ignored);
    }
}
