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
    /// The target of a write of ICC_SGI1R_EL1 that names one vCPU of cluster 0.0.0 and nothing else.
    #[inline(always)]
    pub const fn only_target(value: u64) -> Option<usize> {
        const INTID: u64 = 0xf << 24;
        let targets = value & !INTID;
        // All ones for an empty list.
        let below = targets.wrapping_sub(1);
        if targets & below == 0 && below >> 15 == 0 { Some(targets.trailing_zeros() as usize) } else { None }
    }

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

#[cfg(test)]
mod tests {
    use super::{Sgi, SgiRegister};

    /// [`Sgi::only_target`] is what [`Sgi::decode`] makes of the same value.
    #[test]
    fn only_targets_are_decoded_ones() {
        let lists = (0..=16).map(|bit| (1_u64 << bit) & 0xffff).chain([0, 3, 0x8001, 0xffff]);
        for list in lists {
            for more in (16..64).map(|bit| 1_u64 << bit).chain([0, 0xf << 24]) {
                let value = list | more;
                let Some(index) = Sgi::only_target(value) else { continue };
                let sgi = Sgi::decode(SgiRegister::Sgi1r, value, 255, 256);
                assert!(sgi.targets.into_iter().eq([index]), "{value:#x}");
            }
        }
        assert!((0..16).all(|bit| Sgi::only_target(5 << 24 | 1 << bit) == Some(bit)));
    }
}
