//! The virtual CPU interface of the loaded vCPU: ICH_*_EL2 as crate `stile-vgic` uses it.
//! Arm GIC Architecture Specification, AArch64 virtualization control System registers.

use core::mem::MaybeUninit;

use stile_board::intid;
use stile_vgic::{CpuInterface, ListRegister, ListRegisters, Maintenance, Shortcuts, Vmcr, running_priority};

use super::behind;
use crate::arch::aarch64::host::board::Board;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};
use crate::arch::aarch64::nested::regime::at_virtual_el2;
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

/// Contents of ICH_VTR_EL2.
#[derive(Clone, Copy)]
pub struct Shape {
    /// List registers.
    pub list_registers: usize,
    /// These list registers as bits of ICH_ELRSR_EL2.
    all: u64,
    /// Bits of a priority that preempt.
    pub preemption_bits: u8,
    /// Bits of a priority.
    pub priority_bits: u8,
    /// ICH_HCR_EL2.TDIR is there.
    trap_dir: bool,
    /// ICC_BPR1_EL1 written with 8 and an interrupt after that end the machine: QEMU (10.0, `write_vbpr`) keeps the value's low three bits.
    pub is_ended_by_bpr1: bool,
}

static SHAPE: Once<Shape> = Once::new();

/// Reads the shape of the virtual CPU interface on the first CPU.
pub fn setup(board: &Board) {
    let vtr = read_sysreg!(ICH_VTR_EL2);
    let list_registers = ((vtr & 0x1f) as usize + 1).min(stile_vgic::MAX_LIST_REGISTERS);
    SHAPE.set(Shape {
        list_registers,
        all: (1 << list_registers) - 1,
        preemption_bits: (vtr >> 26 & 7) as u8 + 1,
        priority_bits: (vtr >> 29 & 7) as u8 + 1,
        trap_dir: vtr >> 19 & 1 != 0,
        is_ended_by_bpr1: board.model == "linux,dummy-virt",
    });
}

/// The shape of the virtual CPU interface.
pub fn shape() -> &'static Shape {
    // SAFETY: boot sets it before there is a guest or another CPU.
    unsafe { SHAPE.assume_set() }
}

/// How a vCPU's interface differs from that of others, in bits of registers.
#[derive(Clone, Copy)]
pub struct Kind {
    /// ICH_HCR_EL2 without maintenance enables: En, and what always traps.
    control: u64,
    /// ICH_VMCR_EL2: what is always set.
    fixed: u64,
}

impl Kind {
    /// Everything is as the guest has it.
    pub const PLAIN: Kind = Kind { control: ENABLE, fixed: 0 };
    /// ICC_CTLR_EL1.CBPR is one for good: ICC_BPR1_EL1 can't be written.
    pub const COMMON_BINARY_POINT: Kind = Kind { control: ENABLE | TC, fixed: Vmcr::VCBPR };
}

/// The virtual CPU interface of this CPU, with a vCPU loaded.
pub struct Interface<'vcpu> {
    cpu: usize,
    shortcuts: &'vcpu Shortcuts,
    kind: &'vcpu Kind,
}

impl<'vcpu> Interface<'vcpu> {
    /// The interface of the CPU that calls, which is number `cpu` and has `vcpu` loaded.
    #[inline(always)]
    pub fn new(cpu: usize, vcpu: &'vcpu Vcpu) -> Interface<'vcpu> {
        Interface { cpu, shortcuts: &vcpu.arch.shortcuts, kind: &vcpu.arch.interface }
    }

    /// Brings the registers that the engine does not move: enables, priority mask, active priorities.
    pub fn load(&mut self, from: &CpuInterface) {
        // ICC_SRE_EL1: where it can be cleared, another vCPU may have cleared it.
        write_sysreg!(ICC_SRE_EL1, 0x7);
        self.write_state(from.vmcr.0, &from.ap0r, &from.ap1r);
        write_sysreg!(ICH_HCR_EL2, self.kind.control);
    }

    /// Writes ICH_VMCR_EL2, ICH_AP0Rn_EL2 and ICH_AP1Rn_EL2.
    pub fn write_state(&mut self, vmcr: u64, ap0r: &[u32; 4], ap1r: &[u32; 4]) {
        write_sysreg!(ICH_VMCR_EL2, vmcr);
        let preemption_bits = shape().preemption_bits;
        write_sysreg!(ICH_AP0R0_EL2, u64::from(ap0r[0]));
        write_sysreg!(ICH_AP1R0_EL2, u64::from(ap1r[0]));
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

    /// Whether all list registers are empty and have been enough for all interrupts: then none is pending, active, or waits for one.
    pub fn is_empty() -> bool {
        let all = shape().all;
        // ICH_HCR_EL2, ICH_ELRSR_EL2.
        read_sysreg!(ICH_HCR_EL2) & !TC == ENABLE && read_sysreg!(ICH_ELRSR_EL2) & all == all
    }

    /// Withdraws the maintenance enables whose cause the engine has answered and that are still asserted (ICH_MISR_EL2), until
    /// the engine changes them or the vCPU is loaded again. So each maintenance interrupt is followed by progress of the guest,
    /// whatever the implementation asserts: its state can't change while its vCPU does not run. No list register is left that
    /// asks for maintenance by itself.
    pub fn withdraw_asserted(&mut self) {
        let asserted = read_sysreg!(ICH_MISR_EL2) & MAINTENANCE_ENABLES;
        if asserted != 0 {
            write_sysreg!(ICH_HCR_EL2, read_sysreg!(ICH_HCR_EL2) & !asserted);
        }
    }

    /// ICC_PMR_EL1.
    pub fn priority_mask(&self) -> u64 {
        self.vmcr().priority_mask().into()
    }

    /// Writes ICC_PMR_EL1, of whose bits the implementation has the upper ones.
    pub fn set_priority_mask(&mut self, value: u64) {
        let mask = 0xff << (8 - shape().priority_bits) & 0xff;
        write_sysreg!(ICH_VMCR_EL2, self.vmcr().0 & !(0xff << 24) | (value & mask) << 24);
    }

    /// ICC_CTLR_EL1: what ICH_VTR_EL2 says in other places, CBPR and EOImode.
    pub fn control(&self) -> u64 {
        let (vtr, vmcr) = (read_sysreg!(ICH_VTR_EL2), self.vmcr().0);
        // PRIbits, IDbits, SEIS, A3V.
        let fixed = (vtr >> 29 & 7) << 8 | (vtr >> 23 & 7) << 11 | (vtr >> 22 & 1) << 14 | (vtr >> 21 & 1) << 15;
        fixed | u64::from(vmcr & Vmcr::VCBPR != 0) | u64::from(vmcr & Vmcr::VEOIM != 0) << 1
    }

    /// Writes ICC_CTLR_EL1.
    pub fn set_control(&mut self, value: u64) {
        let bit = |n: u32, field: u64| if value >> n & 1 != 0 { field } else { 0 };
        let chosen = bit(0, Vmcr::VCBPR) | bit(1, Vmcr::VEOIM) | self.kind.fixed;
        write_sysreg!(ICH_VMCR_EL2, self.vmcr().0 & !(Vmcr::VCBPR | Vmcr::VEOIM) | chosen);
    }

    /// Whether ICC_CTLR_EL1.CBPR is one for good.
    pub fn has_common_binary_point(&self) -> bool {
        self.kind.fixed & Vmcr::VCBPR != 0
    }

    /// Has the registers that both groups share trap, or, if not `on`, only those that always do. With a common binary point so do those of
    /// group 0, of which that is one. No maintenance interrupt is enabled.
    pub fn trap_common(&mut self, on: bool) {
        let traps = TC | if self.has_common_binary_point() { TALL0 } else { 0 };
        write_sysreg!(ICH_HCR_EL2, self.kind.control | if on { traps } else { 0 });
    }

    /// Writes the enable of group 0.
    pub fn set_group0(&mut self, enabled: bool) {
        let rest = self.vmcr().0 & !Vmcr::VENG0;
        write_sysreg!(ICH_VMCR_EL2, if enabled { rest | Vmcr::VENG0 } else { rest });
    }

    /// Writes the enable of group 1.
    pub fn set_group1(&mut self, enabled: bool) {
        write_sysreg!(ICH_VMCR_EL2, self.vmcr().with_group1(enabled).0);
    }

    /// Turns the interface off.
    pub fn disable(&mut self) {
        write_sysreg!(ICH_HCR_EL2, 0);
    }

    /// Undoes [`Interface::load`].
    pub fn put(&mut self, to: &mut CpuInterface) {
        to.vmcr = self.vmcr();
        let (ap0r, ap1r) = active_priorities();
        to.ap0r = ap0r;
        to.ap1r = ap1r;
        self.disable();
    }
}

fn active_priorities() -> ([u32; 4], [u32; 4]) {
    let (mut ap0r, mut ap1r) = ([0; 4], [0; 4]);
    let preemption_bits = shape().preemption_bits;
    ap0r[0] = read_sysreg!(ICH_AP0R0_EL2) as u32;
    ap1r[0] = read_sysreg!(ICH_AP1R0_EL2) as u32;
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

/// Room for all list registers that there can be (ICH_VTR_EL2.ListRegs).
pub type Lists = [MaybeUninit<u64>; 16];

// A list register's number is in its name, so each access is a choice.
macro_rules! list_registers {
    ($($n:literal $name:ident)*) => {
        #[inline(always)]
        fn read_list_register(n: usize) -> u64 {
            match n { $($n => read_sysreg!($name),)* _ => 0 }
        }

        #[inline(always)]
        fn write_list_register(n: usize, value: u64) {
            match n { $($n => write_sysreg!($name, value),)* _ => {} }
        }

        /// Moves the first `count` list registers to memory, which leaves them empty.
        pub fn take_lists(to: &mut Lists, count: usize) {
            $(
                if $n == count {
                    return;
                }
                to[$n].write(read_sysreg!($name));
                write_sysreg!($name, 0);
            )*
        }

        /// Memory to the first `count` list registers.
        ///
        /// # Safety
        /// `from` is what [`take_lists`] took, as many of them.
        pub unsafe fn bring_lists(from: &Lists, count: usize) {
            $(
                if $n == count {
                    return;
                }
                // SAFETY: the caller's promise.
                write_sysreg!($name, unsafe { from[$n].assume_init() });
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

/// Calls `each` for the interrupts in list registers that were empty, as ICH_ELRSR_EL2 was `before`.
pub fn each_new(before: u64, mut each: impl FnMut(u32)) {
    let shape = shape();
    let new = before & shape.all & !read_sysreg!(ICH_ELRSR_EL2);
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
        (read_sysreg!(ICH_ELRSR_EL2) | read_sysreg!(ICH_EISR_EL2)) as u16
    }

    fn set_maintenance(&mut self, enables: Maintenance) {
        let mut value = u64::from(enables.0) | self.kind.control;
        if enables.0 & Maintenance::TDIR != 0 && !shape().trap_dir {
            value = value & !u64::from(Maintenance::TDIR) | TC;
        }
        let count = read_sysreg!(ICH_HCR_EL2) & EOI_COUNT;
        write_sysreg!(ICH_HCR_EL2, value | count);
    }

    fn take_eoi_count(&mut self) -> u32 {
        let value = read_sysreg!(ICH_HCR_EL2);
        if value & EOI_COUNT != 0 {
            write_sysreg!(ICH_HCR_EL2, value & !EOI_COUNT);
        }
        (value >> 27) as u32 & 0x1f
    }

    #[inline(always)]
    fn vmcr(&self) -> Vmcr {
        Vmcr(read_sysreg!(ICH_VMCR_EL2))
    }

    fn running_priority(&self) -> u8 {
        let (ap0r, ap1r) = active_priorities();
        running_priority(&ap0r, &ap1r, shape().preemption_bits)
    }

    fn physical_line(&self, line: u32) -> Option<bool> {
        // ENABLE, IMASK, ISTATUS.
        let control = match (line, features::get().vhe) {
            // While its guest runs, virtual EL2's timers are in memory.
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
