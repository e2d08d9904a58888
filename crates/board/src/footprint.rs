//! Memory that Stile takes beside the guests' RAM. The hypervisor does not compile if its own sizes differ.

/// Bytes for each CPU and vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Each CPU but the first, whose stack is in the image: its stack; on x86-64 also its VMXON region,
    /// or with AMD-V two pages of host state.
    pub cpu: u64,
    /// Each vCPU, with its ledger and the default techniques, without virtual EL2 or VMX.
    pub vcpu: u64,
}

/// Bytes of the schedule's tables, which are part of Stile's image: 4.4 KiB for each of [`MAX_CPUS`](crate::MAX_CPUS),
/// 98 bytes for each vCPU that there may be, and what VMs take.
pub const SCHEDULE: u64 = 5480 << 10;

/// On AArch64.
pub const AARCH64: Footprint = Footprint { cpu: 64 << 10, vcpu: 52 << 10 };

/// On x86-64.
pub const X86_64: Footprint = Footprint { cpu: 68 << 10, vcpu: 116 << 10 };

/// On x86-64 with AMD-V.
pub const X86_64_SVM: Footprint = Footprint { cpu: 72 << 10, vcpu: 116 << 10 };
