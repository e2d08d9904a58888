//! The virtual CPU interface of the loaded vCPU: ICH_*_EL2 as crate `stile-vgic` uses it.
//! Arm GIC Architecture Specification, AArch64 virtualization control System registers.

use core::mem::MaybeUninit;

use stile_board::intid;
use stile_vgic::{CpuInterface, ListRegister, ListRegisters, Maintenance, Shortcuts, Vmcr, running_priority};

use super::behind;
use crate::arch::aarch64::host::gicv2::{read_gic, write_gic};
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::host::{features, gic};
use crate::arch::aarch64::nested::regime::at_virtual_el2;
use crate::arch::aarch64::vcpu::traps;
use crate::once::Once;
use crate::vm::Vcpu;

/// ICH_HCR_EL2.En.
const ENABLE: u64 = 1 << 0;
/// ICH_HCR_EL2.UIE to VGrp1DIE; each bit's cause has the same bit of ICH_MISR_EL2.
const MAINTENANCE_ENABLES: u64 = 0x7f << 1;
/// ICH_HCR_EL2.TC: traps the registers that both groups share, ICC_DIR_EL1 among them.
const TC: u64 = 1 << 10;
/// ICH_HCR_EL2.TALL0: traps group 0's registers.
const TALL0: u64 = 1 << 11;
/// ICH_HCR_EL2.EOIcount.
const EOI_COUNT: u64 = 0x1f << 27;

/// Implementation of the virtual CPU interface: contents of ICH_VTR_EL2.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Number of list registers.
    pub list_registers: usize,
    /// The list registers as bits of ICH_ELRSR_EL2.
    all: u64,
    /// Number of preemption bits.
    pub preemption_bits: u8,
    /// Number of priority bits.
    pub priority_bits: u8,
    /// ICH_HCR_EL2.TDIR is implemented.
    trap_dir: bool,
    /// Writing 8 to ICC_BPR1_EL1 and then taking an interrupt aborts the emulator: QEMU (10.0, `write_vbpr`) keeps
    /// the low three bits of the value.
    pub is_ended_by_bpr1: bool,
}

static SHAPE: Once<Shape> = Once::new();

/// Reads the implementation of the virtual CPU interface, on the boot CPU.
pub fn setup() {
    let vtr = read_gic!(ICH_VTR_EL2);
    let list_registers = ((vtr & 0x1f) as usize + 1).min(stile_vgic::MAX_LIST_REGISTERS);
    SHAPE.set(Shape {
        list_registers,
        all: (1 << list_registers) - 1,
        preemption_bits: (vtr >> 26 & 7) as u8 + 1,
        priority_bits: (vtr >> 29 & 7) as u8 + 1,
        trap_dir: vtr >> 19 & 1 != 0,
        is_ended_by_bpr1: gic::is_of_qemu(),
    });
}

/// Returns the implementation of the virtual CPU interface.
pub fn shape() -> &'static Shape {
    // SAFETY: the boot CPU sets it before any guest or other CPU runs; immutable afterwards.
    unsafe { SHAPE.assume_set() }
}

/// Per-vCPU constants of the interface, as register bits.
#[derive(Clone, Copy)]
pub struct Kind {
    /// ICH_HCR_EL2 without maintenance enables: En, and permanent traps.
    control: u64,
    /// Bits of ICH_VMCR_EL2 that are always set.
    fixed: u64,
}

impl Kind {
    /// No restrictions.
    pub const PLAIN: Kind = Kind { control: ENABLE, fixed: 0 };
    /// ICC_CTLR_EL1.CBPR is fixed at one, so that ICC_BPR1_EL1 is read-only.
    pub const COMMON_BINARY_POINT: Kind = Kind { control: ENABLE | TC, fixed: Vmcr::VCBPR };
}

/// Virtual CPU interface of this CPU, with a vCPU loaded.
pub struct Interface<'vcpu> {
    cpu: usize,
    shortcuts: &'vcpu Shortcuts,
    kind: &'vcpu Kind,
}

impl<'vcpu> Interface<'vcpu> {
    /// Creates the interface of the calling CPU, number `cpu`, which has `vcpu` loaded.
    #[inline(always)]
    pub fn new(cpu: usize, vcpu: &'vcpu Vcpu) -> Interface<'vcpu> {
        Interface { cpu, shortcuts: &vcpu.arch.shortcuts, kind: &vcpu.arch.interface }
    }

    /// Loads the registers that the engine does not handle: enables, priority mask, active priorities.
    pub fn load(&mut self, from: &CpuInterface) {
        // ICC_SRE_EL1: where its bits are writable, the previous vCPU may have cleared them.
        write_gic!(ICC_SRE_EL1, 0x7);
        self.write_state(from.vmcr.0, &from.ap0r, &from.ap1r);
        write_gic!(ICH_HCR_EL2, self.kind.control);
    }

    /// Writes ICH_VMCR_EL2, ICH_AP0Rn_EL2 and ICH_AP1Rn_EL2.
    pub fn write_state(&mut self, vmcr: u64, ap0r: &[u32; 4], ap1r: &[u32; 4]) {
        write_gic!(ICH_VMCR_EL2, vmcr);
        let preemption_bits = shape().preemption_bits;
        write_gic!(ICH_AP0R0_EL2, u64::from(ap0r[0]));
        write_gic!(ICH_AP1R0_EL2, u64::from(ap1r[0]));
        if preemption_bits >= 6 {
            write_sysreg!(ICH_AP0R1_EL2, u64::from(ap0r[1]));
            write_sysreg!(ICH_AP1R1_EL2, u64::from(ap1r[1]));
        }
        if preemption_bits >= 7 {
            write_sysreg!(ICH_AP0R2_EL2, u64::from(ap0r[2]));
            write_sysreg!(ICH_AP1R2_EL2, u64::from(ap1r[2]));
            write_sysreg!(ICH_AP0R3_EL2, u64::from(ap0r[3]));
            write_sysreg!(ICH_AP1R3_EL2, u64::from(ap1r[3]));
        }
    }

    /// Reads the same registers.
    pub fn read_state(&self) -> (u64, [u32; 4], [u32; 4]) {
        let (ap0r, ap1r) = active_priorities();
        (self.vmcr().0, ap0r, ap1r)
    }

    /// Whether all list registers are empty and no interrupt overflowed: then none is pending or active.
    pub fn is_empty() -> bool {
        let all = shape().all;
        // ICH_HCR_EL2, ICH_ELRSR_EL2.
        read_gic!(ICH_HCR_EL2) & !TC == ENABLE && read_gic!(ICH_ELRSR_EL2) & all == all
    }

    /// Disables maintenance causes that the engine has handled and that remain asserted (ICH_MISR_EL2), until the
    /// engine changes them or the vCPU is loaded again. Each maintenance interrupt is thus followed by progress of
    /// the guest for any implementation of the request, since the cause can't change while the vCPU does not run. No
    /// list register is left with a maintenance request of its own.
    pub fn withdraw_asserted(&mut self) {
        let asserted = read_gic!(ICH_MISR_EL2) & MAINTENANCE_ENABLES;
        if asserted != 0 {
            write_gic!(ICH_HCR_EL2, read_gic!(ICH_HCR_EL2) & !asserted);
        }
    }

    /// Reads ICC_PMR_EL1.
    pub fn priority_mask(&self) -> u64 {
        self.vmcr().priority_mask().into()
    }

    /// Writes ICC_PMR_EL1, of which only the upper bits are implemented.
    pub fn set_priority_mask(&mut self, value: u64) {
        let mask = 0xff << (8 - shape().priority_bits) & 0xff;
        write_gic!(ICH_VMCR_EL2, self.vmcr().0 & !(0xff << 24) | (value & mask) << 24);
    }

    /// Reads ICC_CTLR_EL1: fields of ICH_VTR_EL2 in other positions, CBPR and EOImode.
    pub fn control(&self) -> u64 {
        let (vtr, vmcr) = (read_gic!(ICH_VTR_EL2), self.vmcr().0);
        // PRIbits, IDbits, SEIS, A3V.
        let fixed = (vtr >> 29 & 7) << 8 | (vtr >> 23 & 7) << 11 | (vtr >> 22 & 1) << 14 | (vtr >> 21 & 1) << 15;
        fixed | u64::from(vmcr & Vmcr::VCBPR != 0) | u64::from(vmcr & Vmcr::VEOIM != 0) << 1
    }

    /// Writes ICC_CTLR_EL1.
    pub fn set_control(&mut self, value: u64) {
        let bit = |n: u32, field: u64| if value >> n & 1 != 0 { field } else { 0 };
        let chosen = bit(0, Vmcr::VCBPR) | bit(1, Vmcr::VEOIM) | self.kind.fixed;
        write_gic!(ICH_VMCR_EL2, self.vmcr().0 & !(Vmcr::VCBPR | Vmcr::VEOIM) | chosen);
    }

    /// Whether ICC_CTLR_EL1.CBPR is fixed at one.
    pub fn has_common_binary_point(&self) -> bool {
        self.kind.fixed & Vmcr::VCBPR != 0
    }

    /// Selects the CPU interface that EL1 accesses, in ICH_HCR_EL2 ([`traps::set_cpu_interface`](crate::arch::aarch64::vcpu::traps)
    /// does so in HCR_EL2). Enables no maintenance interrupt.
    pub fn set_traps(&mut self, reached: traps::CpuInterface) {
        let traps = match reached {
            traps::CpuInterface::Virtual => 0,
            // With a fixed common binary point ICC_BPR0_EL1 must trap as well.
            traps::CpuInterface::Group1 if self.has_common_binary_point() => TC | TALL0,
            traps::CpuInterface::Group1 => TC,
            traps::CpuInterface::Physical => TALL0,
        };
        write_gic!(ICH_HCR_EL2, self.kind.control | traps);
    }

    /// Writes the enable of group 0.
    pub fn set_group0(&mut self, enabled: bool) {
        let rest = self.vmcr().0 & !Vmcr::VENG0;
        write_gic!(ICH_VMCR_EL2, if enabled { rest | Vmcr::VENG0 } else { rest });
    }

    /// Writes the enable of group 1.
    pub fn set_group1(&mut self, enabled: bool) {
        write_gic!(ICH_VMCR_EL2, self.vmcr().with_group1(enabled).0);
    }

    /// Disables the interface.
    pub fn disable(&mut self) {
        write_gic!(ICH_HCR_EL2, 0);
    }

    /// Undoes [`Interface::load`].
    pub fn put(&mut self, to: &mut CpuInterface) {
        to.vmcr = self.vmcr();
        let preemption_bits = shape().preemption_bits;
        to.ap0r[0] = read_gic!(ICH_AP0R0_EL2) as u32;
        to.ap1r[0] = read_gic!(ICH_AP1R0_EL2) as u32;
        if preemption_bits >= 6 {
            // Those that are not implemented stay zero.
            (to.ap0r, to.ap1r) = active_priorities();
        }
        self.disable();
    }
}

fn active_priorities() -> ([u32; 4], [u32; 4]) {
    let (mut ap0r, mut ap1r) = ([0; 4], [0; 4]);
    let preemption_bits = shape().preemption_bits;
    ap0r[0] = read_gic!(ICH_AP0R0_EL2) as u32;
    ap1r[0] = read_gic!(ICH_AP1R0_EL2) as u32;
    if preemption_bits >= 6 {
        ap0r[1] = read_sysreg!(ICH_AP0R1_EL2) as u32;
        ap1r[1] = read_sysreg!(ICH_AP1R1_EL2) as u32;
    }
    if preemption_bits >= 7 {
        ap0r[2] = read_sysreg!(ICH_AP0R2_EL2) as u32;
        ap1r[2] = read_sysreg!(ICH_AP1R2_EL2) as u32;
        ap0r[3] = read_sysreg!(ICH_AP0R3_EL2) as u32;
        ap1r[3] = read_sysreg!(ICH_AP1R3_EL2) as u32;
    }
    (ap0r, ap1r)
}

/// Maximum number of list registers (ICH_VTR_EL2.ListRegs).
pub type Lists = [MaybeUninit<u64>; 16];

// A list register's number is part of its name, so that each access is a branch on the number.
macro_rules! list_registers {
    ($($n:literal $name:ident)*) => {
        #[inline(always)]
        fn read_list_register(n: usize) -> u64 {
            match n { $($n => read_gic!($name),)* _ => 0 }
        }

        #[inline(always)]
        fn write_list_register(n: usize, value: u64) {
            match n { $($n => write_gic!($name, value),)* _ => {} }
        }

        /// Moves the first `count` list registers to memory, which empties them.
        pub fn take_lists(to: &mut Lists, count: usize) {
            $(
                if $n == count {
                    return;
                }
                to[$n].write(read_gic!($name));
                write_gic!($name, 0);
            )*
        }

        /// Loads the first `count` list registers from memory.
        ///
        /// # Safety
        /// `from` holds at least `count` values that [`take_lists`] stored.
        pub unsafe fn restore_lists(from: &Lists, count: usize) {
            $(
                if $n == count {
                    return;
                }
                // SAFETY: the caller guarantees that the values were stored by `take_lists`.
                write_gic!($name, unsafe { from[$n].assume_init() });
            )*
        }
    };
}
list_registers! {
    0 ICH_LR0_EL2 1 ICH_LR1_EL2 2 ICH_LR2_EL2 3 ICH_LR3_EL2
    4 ICH_LR4_EL2 5 ICH_LR5_EL2 6 ICH_LR6_EL2 7 ICH_LR7_EL2
    8 ICH_LR8_EL2 9 ICH_LR9_EL2 10 ICH_LR10_EL2 11 ICH_LR11_EL2
    12 ICH_LR12_EL2 13 ICH_LR13_EL2 14 ICH_LR14_EL2 15 ICH_LR15_EL2
}

/// Handles the part of a GICv2's maintenance interrupt that concerns ends of linked interrupts (`gicv2.S`): a read of the
/// list register deactivates the physical one. Returns whether another cause is left.
#[cold]
pub fn end_linked() -> bool {
    let ended = read_gic!(ICH_EISR_EL2) & shape().all;
    (0..shape().list_registers).filter(|n| ended >> n & 1 != 0).for_each(|n| _ = read_list_register(n));
    read_gic!(ICH_MISR_EL2) != 0
}

/// Calls `each` for interrupts in list registers that were empty before, by the earlier ICH_ELRSR_EL2 `before`.
pub fn each_new(before: u64, mut each: impl FnMut(u32)) {
    let shape = shape();
    let new = before & shape.all & !read_gic!(ICH_ELRSR_EL2);
    (0..shape.list_registers).filter(|n| new >> n & 1 != 0).for_each(|n| each(ListRegister(read_list_register(n)).intid()));
}

impl ListRegisters for Interface<'_> {
    #[inline(always)]
    fn read(&self, n: usize) -> ListRegister {
        ListRegister(read_list_register(n))
    }

    #[inline(always)]
    fn write(&mut self, n: usize, value: ListRegister) {
        write_list_register(n, value.0);
    }

    #[inline(always)]
    fn shortcuts(&self) -> Option<&Shortcuts> {
        Some(self.shortcuts)
    }

    #[inline(always)]
    fn invalid(&self) -> u16 {
        // ICH_ELRSR_EL2, ICH_EISR_EL2.
        (read_gic!(ICH_ELRSR_EL2) | read_gic!(ICH_EISR_EL2)) as u16
    }

    fn set_maintenance(&mut self, enables: Maintenance) {
        let mut value = u64::from(enables.0) | self.kind.control;
        if enables.0 & Maintenance::TDIR != 0 && !shape().trap_dir {
            value = value & !u64::from(Maintenance::TDIR) | TC;
        }
        let count = read_gic!(ICH_HCR_EL2) & EOI_COUNT;
        write_gic!(ICH_HCR_EL2, value | count);
    }

    fn take_eoi_count(&mut self) -> u32 {
        let value = read_gic!(ICH_HCR_EL2);
        if value & EOI_COUNT != 0 {
            write_gic!(ICH_HCR_EL2, value & !EOI_COUNT);
        }
        (value >> 27) as u32 & 0x1f
    }

    #[inline(always)]
    fn vmcr(&self) -> Vmcr {
        Vmcr(read_gic!(ICH_VMCR_EL2))
    }

    fn running_priority(&self) -> u8 {
        let (ap0r, ap1r) = active_priorities();
        running_priority(&ap0r, &ap1r, shape().preemption_bits)
    }

    fn physical_line(&self, line: u32) -> Option<bool> {
        // ENABLE, IMASK, ISTATUS.
        let control = match (line, features::get().vhe) {
            // While virtual EL2's guest runs, its timers are in memory.
            (intid::TIMER_EL2_VIRTUAL | intid::TIMER_EL2_PHYSICAL, true) if !at_virtual_el2() => return None,
            (intid::TIMER_EL1_VIRTUAL | intid::TIMER_EL2_VIRTUAL, true) => read_sysreg!(CNTV_CTL_EL02),
            (intid::TIMER_EL1_VIRTUAL, false) => read_sysreg!(CNTV_CTL_EL0),
            (intid::TIMER_EL1_PHYSICAL | intid::TIMER_EL2_PHYSICAL, true) => read_sysreg!(CNTP_CTL_EL02),
            (intid::TIMER_EL1_PHYSICAL, false) => read_sysreg!(CNTP_CTL_EL0),
            _ => return None,
        };
        Some(control & 0b111 == 0b101)
    }

    fn deactivate_physical(&mut self, line: u32) {
        behind::deactivate(self.cpu, line);
    }
}
