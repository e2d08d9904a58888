//! The page that VNCR_EL2 names: with FEAT_NV2, accesses of virtual EL2 to registers that only matter while
//! its own VM runs become loads and stores in this page. Arm ARM, "Enhanced support for nested virtualization",
//! which has the offsets; the pseudocode of each register's accessors says under which control.
//!
//! The same page holds these registers where the processor has FEAT_NV only, and each access is trapped and
//! emulated: one home for both ways.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stile_sysreg::SysReg;

mod table;
#[cfg(test)]
mod tests;

pub use table::*;

/// Bytes of the page: what VNCR_EL2.BADDR resolves.
pub const PAGE_SIZE: usize = 4096;
const REGISTERS: usize = PAGE_SIZE / size_of::<u64>();

/// One vCPU's page. Shared with the hardware, which reads and writes it on behalf of the vCPU, and so only on the CPU
/// that has the vCPU loaded.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Page([AtomicU64; REGISTERS]);

const _: () = assert!(size_of::<Page>() == PAGE_SIZE);

impl Page {
    /// All registers zero.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; REGISTERS])
    }

    /// Reads a register.
    #[inline]
    pub fn get(&self, slot: Slot) -> u64 {
        self.0[slot.index()].load(Relaxed)
    }

    /// Writes a register.
    #[inline]
    pub fn set(&self, slot: Slot, value: u64) {
        self.0[slot.index()].store(value, Relaxed);
    }

    /// ICH_LR0_EL2 and those that follow, as many as the processor has.
    #[inline]
    pub fn list_registers(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.iter().skip(ICH_LR0_EL2.index()).take(if count < LIST_REGISTERS { count } else { LIST_REGISTERS }).map(|lr| lr.load(Relaxed))
    }

    /// All registers zero, as [`new`](Self::new) leaves them.
    pub fn clear(&self) {
        for register in &self.0 {
            register.store(0, Relaxed);
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

/// A register's place in the page: a multiple of 8 below [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// At this byte offset. Rounded down to a multiple of 8, and cut to the page.
    const fn at(offset: u16) -> Self {
        Self(offset & (PAGE_SIZE as u16 - 8))
    }

    /// Bytes from the start of the page.
    #[inline]
    pub const fn offset(self) -> u16 {
        self.0
    }

    /// Always below [`REGISTERS`], and the compiler can see it.
    const fn index(self) -> usize {
        self.0 as usize / 8 % REGISTERS
    }

    /// The register `n` places further on, in an array of registers.
    const fn plus(self, n: usize) -> Self {
        Self::at(self.0 + 8 * n as u16)
    }
}

/// List registers in the page: ICH_LR0_EL2 to ICH_LR15_EL2.
pub const LIST_REGISTERS: usize = 16;
/// Active priorities registers of each group in the page.
pub const ACTIVE_PRIORITIES: usize = 4;

/// ICH_LR`n`_EL2, `n` cut to what there is.
#[inline]
pub const fn ich_lr(n: usize) -> Slot {
    ICH_LR0_EL2.plus(n % LIST_REGISTERS)
}

/// ICH_AP0R`n`_EL2, `n` cut to what there is.
#[inline]
pub const fn ich_ap0r(n: usize) -> Slot {
    ICH_AP0R0_EL2.plus(n % ACTIVE_PRIORITIES)
}

/// ICH_AP1R`n`_EL2, `n` cut to what there is.
#[inline]
pub const fn ich_ap1r(n: usize) -> Slot {
    ICH_AP1R0_EL2.plus(n % ACTIVE_PRIORITIES)
}

/// By which of its names, and under which control, a register is redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// By its one name, whenever HCR_EL2.{NV, NV2} are 1.
    Always,
    /// By its EL1 (or EL0) name if HCR_EL2.NV1 is 1: the guest hypervisor has E2H clear. If NV1 is 0, that
    /// name is the register of the running level, and the alias given here (`_EL12` or `_EL02`) is redirected.
    Alias(SysReg),
}

/// A register of the page.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Its encoding.
    pub reg: SysReg,
    /// Its place.
    pub slot: Slot,
    /// What is redirected.
    pub when: When,
}

/// Where an access of virtual EL2 to `reg` goes in the page, HCR_EL2.NV1 being `nv1`. `None` for a register that is not
/// redirected to memory. Not for the exit path under FEAT_NV2, where no such access traps.
pub fn find(reg: SysReg, nv1: bool) -> Option<Slot> {
    let row = |name| ROWS.binary_search_by_key(&name, |row| row.reg).ok().and_then(|at| ROWS.get(at));
    if let Some(row) = row(reg) {
        return (nv1 || row.when == When::Always).then_some(row.slot);
    }
    let row = row(unaliased(reg)?)?;
    (!nv1 && row.when == When::Alias(reg)).then_some(row.slot)
}

/// The EL1 or EL0 register whose alias at EL2 `reg` is, if it has the form of one: the same numbers but for op1.
const fn unaliased(reg: SysReg) -> Option<SysReg> {
    const TIMER: u8 = 14;
    if reg.op0() != 3 || reg.op1() != 5 {
        return None;
    }
    let op1 = if reg.crn() == TIMER { 3 } else { 0 };
    Some(SysReg::new(3, op1, reg.crn(), reg.crm(), reg.op2()))
}
