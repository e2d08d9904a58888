//! Sets of local APICs by their addresses. Messages that an I/O APIC sends together, with destinations of eight bits or
//! extended physical ones, reach all local APICs in a time that does not depend on the number of messages.

use crate::Destination;

/// Bound of the identifiers that an I/O APIC's message may address: all of a topology's are below.
const IDS: usize = 1024;

/// Number of clusters of the cluster model; the last one is all of them.
const CLUSTERS: usize = 16;
const ALL_CLUSTERS: usize = CLUSTERS - 1;

/// Address of an enabled local APIC, for an I/O APIC's destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub(crate) id: u32,
    pub(crate) logical: Logical,
}

/// Logical address ("Logical Destination Mode").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logical {
    /// Flat model, and cluster 0 of an x2APIC: a bit of eight for each APIC.
    Flat(u8),
    /// Cluster model.
    Cluster { cluster: u8, members: u8 },
}

/// The set of local APICs that any of several messages addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    all: bool,
    ids: [u64; IDS / 64],
    flat: u8,
    clusters: [u8; CLUSTERS],
}

impl Destinations {
    /// Adds an I/O APIC's destination; others have no effect.
    pub(crate) fn add(&mut self, destination: Destination) {
        match destination {
            Destination::All => self.all = true,
            Destination::Physical(id) => insert(&mut self.ids, id),
            Destination::Logical { mask, wide: false } => {
                self.flat |= mask as u8;
                self.clusters[mask as usize >> 4 & 0xf] |= mask as u8 & 0xf;
            }
            Destination::Own | Destination::Others | Destination::Logical { .. } => {}
        }
    }

    /// Whether a message addresses this APIC.
    #[inline]
    pub(crate) fn contain(&self, address: Address) -> bool {
        let by_logical = match address.logical {
            Logical::Flat(own) => self.flat & own,
            Logical::Cluster { cluster, members } => (self.clusters[usize::from(cluster & 0xf)] | self.clusters[ALL_CLUSTERS]) & members,
        };
        self.all || by_logical != 0 || contains(&self.ids, address.id)
    }
}

/// The set of local APICs that accepted messages.
#[derive(Clone, Debug, Default)]
pub struct Acceptors {
    any: bool,
    ids: [u64; IDS / 64],
    flat: u8,
    clusters: [u8; CLUSTERS],
    members: u8,
}

impl Acceptors {
    /// Adds an APIC.
    pub fn add(&mut self, address: Address) {
        self.any = true;
        insert(&mut self.ids, address.id);
        match address.logical {
            Logical::Flat(own) => self.flat |= own,
            Logical::Cluster { cluster, members } => {
                self.clusters[usize::from(cluster & 0xf)] |= members;
                self.members |= members;
            }
        }
    }

    /// Whether an I/O APIC's destination addresses one of them.
    pub(crate) fn include(&self, destination: Destination) -> bool {
        match destination {
            Destination::All => self.any,
            Destination::Physical(id) => contains(&self.ids, id),
            Destination::Logical { mask, wide: false } => {
                let cluster = mask as usize >> 4 & 0xf;
                let members = if cluster == ALL_CLUSTERS { self.members } else { self.clusters[cluster] };
                mask as u8 & self.flat != 0 || mask as u8 & 0xf & members != 0
            }
            Destination::Own | Destination::Others | Destination::Logical { .. } => false,
        }
    }
}

/// Priority and index of the best candidate; lower is better.
type Candidate = u32;
const NONE: Candidate = Candidate::MAX;

/// Lowest-priority arbitration for several messages ("Lowest Priority Delivery Mode"): among APICs of equal priority, the
/// first one that was added is chosen.
#[derive(Clone, Debug)]
pub struct Arbitration {
    all: Candidate,
    flat: [Candidate; 8],
    clusters: [[Candidate; 4]; CLUSTERS],
}

impl Default for Arbitration {
    fn default() -> Self {
        Self { all: NONE, flat: [NONE; 8], clusters: [[NONE; 4]; CLUSTERS] }
    }
}

impl Arbitration {
    /// Adds an APIC that takes part, under a number that is greater than those of the earlier ones.
    pub fn add(&mut self, address: Address, priority: u8, index: u16) {
        let candidate = Candidate::from(priority) << 16 | Candidate::from(index);
        let improve = |best: &mut Candidate| *best = candidate.min(*best);
        improve(&mut self.all);
        match address.logical {
            Logical::Flat(own) => each_bit(own, |bit| self.flat.get_mut(bit).map_or((), improve)),
            Logical::Cluster { cluster, members } => {
                let cluster = usize::from(cluster & 0xf);
                each_bit(members & 0xf, |bit| {
                    improve(&mut self.clusters[cluster][bit & 3]);
                    if cluster != ALL_CLUSTERS {
                        improve(&mut self.clusters[ALL_CLUSTERS][bit & 3]);
                    }
                });
            }
        }
    }

    /// The number of the APIC that a message to a broadcast or logical destination of eight bits reaches. A physical one
    /// names its APIC, without arbitration: `None`.
    pub fn lowest(&self, destination: Destination) -> Option<u16> {
        let mut best = NONE;
        match destination {
            Destination::All => best = self.all,
            Destination::Logical { mask, wide: false } => {
                each_bit(mask as u8, |bit| best = best.min(self.flat[bit & 7]));
                let cluster = mask as usize >> 4 & 0xf;
                each_bit(mask as u8 & 0xf, |bit| best = best.min(self.clusters[cluster][bit & 3]));
            }
            _ => {}
        }
        (best != NONE).then_some(best as u16)
    }
}

fn each_bit(mut mask: u8, mut each: impl FnMut(usize)) {
    while mask != 0 {
        each(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}

/// Adds an identifier to a set. No APIC has one of [`IDS`] or more.
fn insert(set: &mut [u64; IDS / 64], id: u32) {
    if let Some(word) = set.get_mut(id as usize / 64) {
        *word |= 1 << (id % 64);
    }
}

fn contains(set: &[u64; IDS / 64], id: u32) -> bool {
    set.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 != 0)
}
