//! Decodes writes of the SGI registers: ICC_SGI1R_EL1, ICC_SGI0R_EL1 and ICC_ASGI1R_EL1.

use stile_board::CLUSTER;

use crate::kick::Kick;

/// The register written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgiRegister {
    /// ICC_SGI1R_EL1.
    Sgi1r,
    /// ICC_SGI0R_EL1.
    Sgi0r,
    /// ICC_ASGI1R_EL1: with a single Security state, it generates group 0 SGIs only.
    Asgi1r,
}

/// A decoded SGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgi {
    /// The INTID, 0 to 15.
    pub intid: u32,
    /// The target vCPUs.
    pub targets: Kick,
    /// Whether targets that have configured the INTID in group 1 get it. Targets with the INTID in group 0 always do.
    pub group1: bool,
}

impl Sgi {
    /// Decodes a write of `value` by vCPU `sender` of `vcpus` ("ICC_SGI1R_EL1"). Targets without a vCPU are
    /// dropped.
    #[inline]
    pub fn decode(register: SgiRegister, value: u64, sender: usize, vcpus: usize) -> Self {
        const IRM: u64 = 1 << 40;
        // Aff3, the range selector (RES0, as GICD_TYPER.RSS is zero: no Aff0 is above 15), Aff2.
        const UNSUPPORTED_AFFINITY: u64 = 0xff << 48 | 0xf << 44 | 0xff << 32;
        let all = Kick::below(vcpus);
        let cluster = (value >> 16) as usize & 0xff;
        let targets = if value & IRM != 0 {
            all.without(sender)
        } else if value & UNSUPPORTED_AFFINITY != 0 {
            Kick::NONE
        } else {
            let (word, first) = (cluster * CLUSTER / 64, cluster * CLUSTER % 64);
            Kick::of_word(word, (value & 0xffff) << first).and(all)
        };
        Self { intid: (value >> 24) as u32 & 0xf, targets, group1: matches!(register, SgiRegister::Sgi1r) }
    }
}
