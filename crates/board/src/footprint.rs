//! Memory that Stile takes beside the guests' RAM. The hypervisor does not compile if its own sizes differ.

/// Bytes for each CPU and vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Each CPU: its stack and its queue; on x86-64 also its VMXON region, or with AMD-V two pages of host state.
    pub cpu: u64,
    /// Each vCPU, with its ledger and the default techniques, without virtual EL2 or VMX.
    pub vcpu: u64,
}

/// Bytes of the schedule on all machines: what it has for each VM that there may be.
pub const SCHEDULE: u64 = 42 << 10;
/// Bytes of the schedule for each CPU: a page for its queue, which is part of [`Footprint::cpu`], its load and its lock.
pub const SCHEDULE_CPU: u64 = 4096 + 384 + 64;
/// Bytes of the schedule for each vCPU, in pages of its VM.
pub const SCHEDULE_VCPU: u64 = 98;

/// On AArch64.
pub const AARCH64: Footprint = Footprint { cpu: 68 << 10, vcpu: 52 << 10 };

/// On x86-64.
pub const X86_64: Footprint = Footprint { cpu: 72 << 10, vcpu: 116 << 10 };

/// On x86-64 with AMD-V.
pub const X86_64_SVM: Footprint = Footprint { cpu: 76 << 10, vcpu: 116 << 10 };
