//! Address-space identifiers of one CPU (the manual, "TLB Control"). They are few: when all are used, the CPU
//! invalidates all translations and begins a new generation, so that each vCPU gets another one at its next load.

/// The identifier of a vCPU: valid on one CPU, in one generation. The default is that of no generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    number: u32,
    generation: u64,
}

impl Asid {
    /// The number for the VMCB. 0 is the hypervisor's own.
    pub const fn number(self) -> u32 {
        self.number
    }
}

/// The identifiers of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Asids {
    count: u32,
    next: u32,
    generation: u64,
}

impl Asids {
    /// All identifiers of a CPU that has `count`, including the hypervisor's; at least 2.
    pub const fn new(count: u32) -> Asids {
        Asids { count: if count < 2 { 2 } else { count }, next: 1, generation: 1 }
    }

    /// Whether an identifier that this CPU has given is still that of the same vCPU.
    pub const fn is_valid(&self, asid: Asid) -> bool {
        asid.generation == self.generation
    }

    /// Gives an identifier without translations. Returns whether all translations of the CPU must be invalidated at
    /// the entry that uses it.
    pub const fn give(&mut self) -> (Asid, bool) {
        let flush = self.next == self.count;
        if flush {
            self.generation += 1;
            self.next = 1;
        }
        let asid = Asid { number: self.next, generation: self.generation };
        self.next += 1;
        // The first of the CPU may have translations of an earlier program.
        (asid, flush || self.generation == 1 && asid.number == 1)
    }

    /// Makes all given identifiers invalid.
    pub const fn forget(&mut self) {
        self.next = self.count;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::vec::Vec;

    #[test]
    fn no_generation_has_the_default() {
        let mut asids = Asids::new(3);
        assert!(!asids.is_valid(Asid::default()));
        let (first, flush) = asids.give();
        assert!(flush && asids.is_valid(first) && first.number() == 1);
        let (second, flush) = asids.give();
        assert!(!flush && second.number() == 2);
        let (third, flush) = asids.give();
        assert!(flush && third.number() == 1 && !asids.is_valid(first));
        asids.forget();
        assert!(!asids.is_valid(third));
        assert!(asids.give().1);
    }

    proptest! {
        /// A model of a TLB: translations by identifier, of the vCPU that used it last.
        #[test]
        fn no_vcpu_meets_translations_of_another(count in 2..20_u32, loads in proptest::collection::vec((0..12_usize, 0..10_u8), 1..200)) {
            let mut asids = Asids::new(count);
            let mut vcpus = [Asid::default(); 12];
            // An earlier program's.
            let mut tlb: HashMap<u32, usize> = (1..count).map(|number| (number, 99)).collect();
            let mut loaded = Vec::new();
            for (vcpu, forget) in loads {
                if forget == 0 {
                    asids.forget();
                }
                if !asids.is_valid(vcpus[vcpu]) {
                    let (asid, flush) = asids.give();
                    vcpus[vcpu] = asid;
                    if flush {
                        tlb.clear();
                    }
                }
                let number = vcpus[vcpu].number();
                prop_assert!(number != 0 && number < count);
                prop_assert!(tlb.get(&number).is_none_or(|&of| of == vcpu));
                tlb.insert(number, vcpu);
                loaded.push(vcpu);
            }
        }
    }
}
