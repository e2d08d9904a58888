//! The page at VNCR_EL2: with FEAT_NV2, accesses of virtual EL2 to registers that only take effect while its
//! own VM runs become loads and stores in this page. Arm ARM, "Enhanced support for nested virtualization",
//! has the offsets; each register's accessor pseudocode has the condition.
//!
//! With FEAT_NV only, each access traps and is emulated on the same page.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stile_sysreg::SysReg;

mod table;
#[cfg(test)]
mod tests;

pub use table::*;

/// Size of the page: the alignment of VNCR_EL2.BADDR.
pub const PAGE_SIZE: usize = 4096;
const REGISTERS: usize = PAGE_SIZE / size_of::<u64>();

/// One vCPU's page. Shared with the hardware, which accesses it on behalf of the vCPU, and therefore only on
/// the CPU that has the vCPU loaded.
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

    /// ICH_LR0_EL2 and the following ones, `count` of them.
    #[inline]
    pub fn list_registers(&self, count: usize) -> impl Iterator<Item = u64> {
        self.0.iter().skip(ICH_LR0_EL2.index()).take(if count < LIST_REGISTERS { count } else { LIST_REGISTERS }).map(|lr| lr.load(Relaxed))
    }

    /// Zeroes all registers, as in [`new`](Self::new).
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

/// A register's offset in the page: a multiple of 8 below [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// The slot at this byte offset, rounded down to a multiple of 8, modulo the page size.
    const fn at(offset: u16) -> Self {
        Self(offset & (PAGE_SIZE as u16 - 8))
    }

    /// Byte offset from the start of the page.
    #[inline]
    pub const fn offset(self) -> u16 {
        self.0
    }

    /// Always below [`REGISTERS`], visibly to the compiler.
    const fn index(self) -> usize {
        self.0 as usize / 8 % REGISTERS
    }

    /// The slot of register `n` of an array.
    const fn plus(self, n: usize) -> Self {
        Self::at(self.0 + 8 * n as u16)
    }
}

/// Number of list registers in the page: ICH_LR0_EL2 to ICH_LR15_EL2.
pub const LIST_REGISTERS: usize = 16;
/// Number of active priorities registers per group in the page.
pub const ACTIVE_PRIORITIES: usize = 4;

/// ICH_LR`n`_EL2, `n` modulo the number of registers.
#[inline]
pub const fn ich_lr(n: usize) -> Slot {
    ICH_LR0_EL2.plus(n % LIST_REGISTERS)
}

/// ICH_AP0R`n`_EL2, `n` modulo the number of registers.
#[inline]
pub const fn ich_ap0r(n: usize) -> Slot {
    ICH_AP0R0_EL2.plus(n % ACTIVE_PRIORITIES)
}

/// ICH_AP1R`n`_EL2, `n` modulo the number of registers.
#[inline]
pub const fn ich_ap1r(n: usize) -> Slot {
    ICH_AP1R0_EL2.plus(n % ACTIVE_PRIORITIES)
}

/// The name and condition under which a register is redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Its only name, if HCR_EL2.{NV, NV2} are 1.
    Always,
    /// Its EL1 (or EL0) name if HCR_EL2.NV1 is 1: the guest hypervisor has E2H clear. If NV1 is 0, that name
    /// accesses the current level's register, and this alias (`_EL12` or `_EL02`) is redirected.
    Alias(SysReg),
}

/// A register of the page.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Its encoding.
    pub reg: SysReg,
    /// Its offset.
    pub slot: Slot,
    /// The redirected name.
    pub when: When,
}

/// The slot of an access of virtual EL2 to `reg`, with `nv1` as HCR_EL2.NV1. `None` for a register that is
/// not redirected. Off the exit path with FEAT_NV2, where such accesses don't trap.
pub fn find(reg: SysReg, nv1: bool) -> Option<Slot> {
    let row = |name| ROWS.binary_search_by_key(&name, |row| row.reg).ok().and_then(|at| ROWS.get(at));
    if let Some(row) = row(reg) {
        return (nv1 || row.when == When::Always).then_some(row.slot);
    }
    let row = row(unaliased(reg)?)?;
    (!nv1 && row.when == When::Alias(reg)).then_some(row.slot)
}

/// The EL1 or EL0 register of which `reg` is the EL2 alias, if it has an alias's encoding: equal except op1.
const fn unaliased(reg: SysReg) -> Option<SysReg> {
    const TIMER: u8 = 14;
    if reg.op0() != 3 || reg.op1() != 5 {
        return None;
    }
    let op1 = if reg.crn() == TIMER { 3 } else { 0 };
    Some(SysReg::new(3, op1, reg.crn(), reg.crm(), reg.op2()))
}
