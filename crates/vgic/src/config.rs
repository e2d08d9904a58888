//! Configuration of a vCPU's interrupt controller.

/// Configuration of a vCPU's interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The vCPU's number (below [`MAX_VCPUS`](crate::MAX_VCPUS)); its affinity is [`stile_board::mpidr`] of that.
    pub vcpu: u8,
    /// Whether it is the VM's last (GICR_TYPER.Last).
    pub last: bool,
    /// Number of list registers to use, 1 to 16: the minimum of the physical CPUs it may run on
    /// (ICH_VTR_EL2.ListRegs + 1).
    pub list_registers: u8,
    /// Bits of priority, 4 to 8 (ICH_VTR_EL2.PRIbits + 1).
    pub priority_bits: u8,
    /// Bits of preemption, 5 to 7 (ICH_VTR_EL2.PREbits + 1).
    pub preemption_bits: u8,
    /// PPIs backed by a physical interrupt, bit `n` for INTID `n`.
    pub hw_ppis: u32,
    /// The physical INTIDs of [`Config::hw_ppis`], by virtual INTID from 16 on: [`SAME_PPIS`] if they are
    /// equal.
    pub behind: [u8; 16],
    /// ICC_CTLR_EL1.CBPR is fixed to one: group 1 uses group 0's binary point. The hypervisor enforces it.
    pub common_binary_point: bool,
    /// It is a GICv2's: group 0 at reset, and signalled as IRQ then.
    pub gicv2: bool,
}

/// [`Config::behind`] with equal virtual and physical INTIDs.
pub const SAME_PPIS: [u8; 16] = [16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31];
