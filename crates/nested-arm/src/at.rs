//! Emulation of L1's address translation instructions for its VM: Arm ARM, "Address translation
//! instructions".
//!
//! L2's registers are in the page while virtual EL2 runs, and the result of both stages is an L1 physical
//! address, which hardware cannot return. So L2's first stage is walked in software, with each table accessed
//! through L1's second stage.

use crate::forward::Level;
use crate::shadow::{GuestMemory, Need, Stage2, WalkFault, WalkFaultKind};
use crate::vncr::{self, Page};
use stile_paging::table::MemoryType;
use stile_sysreg::SysReg;

mod stage1;
#[cfg(test)]
mod tests;

pub use stage1::Stage1;
use stage1::{Attributes, Fault};

/// An `AT` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The translation regime.
    pub regime: Regime,
    /// The exception level of the access.
    pub level: Level,
    /// Whether the access is a write.
    pub write: bool,
    /// Whether PSTATE.PAN applies.
    pub pan: bool,
}

/// The translation regime of an `AT` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// The first stage of EL1&0: `S1E1*`, `S1E0*`.
    Stage1,
    /// Both stages of EL1&0: `S12E1*`, `S12E0*`.
    Stages12,
    /// EL2's own: `S1E2*`.
    El2,
}

/// Decodes the instruction. `None` if it doesn't exist.
pub const fn decode(reg: SysReg) -> Option<At> {
    const AT: (u8, u8) = (1, 7);
    if reg.op0() != AT.0 || reg.crn() != AT.1 {
        return None;
    }
    let write = reg.op2() & 1 != 0;
    let (regime, level, pan) = match (reg.op1(), reg.crm(), reg.op2()) {
        (0, 8, 0 | 1) => (Regime::Stage1, Level::El1, false),
        (0, 8, 2 | 3) => (Regime::Stage1, Level::El0, false),
        (0, 9, 0 | 1) => (Regime::Stage1, Level::El1, true),
        (4, 8, 0 | 1) => (Regime::El2, Level::El1, false),
        (4, 8, 4 | 5) => (Regime::Stages12, Level::El1, false),
        (4, 8, 6 | 7) => (Regime::Stages12, Level::El0, false),
        _ => return None,
    };
    Some(At { regime, level, write, pan })
}

/// PAR_EL1: Arm ARM, "PAR_EL1, Physical Address Register".
mod par {
    pub const F: u64 = 1 << 0;
    pub const FST_SHIFT: u32 = 1;
    /// The second-stage fault occurred on a first-stage walk.
    pub const PTW: u64 = 1 << 8;
    /// The fault is from the second stage.
    pub const S: u64 = 1 << 9;
    pub const RES1: u64 = 1 << 11;
    pub const SH_SHIFT: u32 = 7;
    pub const ATTR_SHIFT: u32 = 56;
    pub const PA: u64 = 0x000f_ffff_ffff_f000;
}

/// L2's memory behind its second stage, for the walk of its first stage.
struct Behind<'a, M> {
    stage2: &'a Stage2,
    memory: &'a M,
}

impl<M: GuestMemory> Behind<'_, M> {
    /// Reads a descriptor at an L2 physical address.
    fn read(&self, ipa: u64, level: u8) -> Result<u64, Fault> {
        let leaf = self.stage2.walk(self.memory, ipa).map_err(Fault::Stage2OfWalk)?;
        if !leaf.access.read {
            return Err(Fault::Stage2OfWalk(WalkFault { kind: WalkFaultKind::Permission, level: leaf.level }));
        }
        self.memory.read(leaf.output).ok_or(Fault::Stage1(WalkFault { kind: WalkFaultKind::External, level }))
    }
}

/// The value of PAR_EL1 for `at` of virtual address `va`, for L2 with first stage `stage1` behind L1's
/// `stage2`. `pan` is PSTATE.PAN. Not for [`Regime::El2`], which the processor translates as its EL1.
pub fn translate(at: At, stage1: &Stage1, stage2: &Stage2, memory: &impl GuestMemory, va: u64, pan: bool) -> u64 {
    let behind = Behind { stage2, memory };
    let access = stage1::Access { level: at.level, write: at.write, pan: at.pan && pan };
    let result = stage1.walk(va, access, |ipa, level| behind.read(ipa, level)).and_then(|(ipa, attributes)| match at.regime {
        Regime::Stages12 => second(stage2, memory, ipa, attributes, at.write),
        Regime::Stage1 | Regime::El2 => Ok((ipa, attributes)),
    });
    match result {
        Ok((address, Attributes { attr, sh })) => {
            (attr as u64) << par::ATTR_SHIFT | address & par::PA | par::RES1 | (sh as u64) << par::SH_SHIFT
        }
        Err(fault) => {
            let (fault, stage) = match fault {
                Fault::Stage1(fault) => (fault, 0),
                Fault::Stage2(fault) => (fault, par::S),
                Fault::Stage2OfWalk(fault) => (fault, par::S | par::PTW),
            };
            (fault.status() as u64) << par::FST_SHIFT | stage | par::RES1 | par::F
        }
    }
}

/// Translates the first stage's result by L1's second stage.
fn second(stage2: &Stage2, memory: &impl GuestMemory, ipa: u64, attributes: Attributes, write: bool) -> Result<(u64, Attributes), Fault> {
    let leaf = stage2.walk(memory, ipa).map_err(Fault::Stage2)?;
    let need = if write { Need::Write } else { Need::Read };
    if !need.is_met(leaf.access) {
        return Err(Fault::Stage2(WalkFault { kind: WalkFaultKind::Permission, level: leaf.level }));
    }
    let attributes = match leaf.memory {
        MemoryType::Normal => attributes,
        MemoryType::NonCacheable if attributes.is_device() => attributes,
        MemoryType::NonCacheable => Attributes::NON_CACHEABLE,
        MemoryType::Device => Attributes::DEVICE,
    };
    Ok((leaf.output, attributes))
}

impl Stage1 {
    /// L2's registers, from the page, while virtual EL2 runs. `hcr` is L1's HCR_EL2.
    pub fn of_guest(page: &Page, hcr: u64) -> Self {
        Self {
            tcr: page.get(vncr::TCR_EL1),
            ttbr: [page.get(vncr::TTBR0_EL1), page.get(vncr::TTBR1_EL1)],
            sctlr: page.get(vncr::SCTLR_EL1),
            mair: page.get(vncr::MAIR_EL1),
            hcr,
        }
    }
}
