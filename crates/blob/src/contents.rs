//! Contents of guest RAM when a virtual machine starts.

use crate::{Blob, Load};

/// A run of guest RAM that has one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Bytes; at least one.
    pub len: u64,
    /// Their contents.
    pub source: Source<'a>,
}

/// Where the contents of a run come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// These bytes, as many as the run has.
    File(&'a [u8]),
    /// The part of a load that is behind its file: zeros after each reset.
    Zeros,
    /// No load: zeros when the machine starts, and kept by a reset.
    Nothing,
}

impl<'a> Blob<'a> {
    /// The run that begins at `at`, a guest-physical address below `end`, and ends at `end` at the latest. Where loads overlap, the last one
    /// counts.
    pub fn contents(&self, loads: &[Load], at: u64, end: u64) -> Run<'a> {
        let mut end = end;
        let mut found = None;
        for load in loads {
            let load_end = load.gpa.saturating_add(load.mem_len);
            if (load.gpa..load_end).contains(&at) {
                found = Some(load);
            } else if load.gpa > at && load.mem_len != 0 {
                // It may hide what is found; if not, what is found after it begins a run of its own.
                end = end.min(load.gpa);
            }
        }
        let Some(load) = found else { return Run { len: end - at, source: Source::Nothing } };
        let into = at - load.gpa;
        let len = (end - at).min(load.mem_len - into);
        let file = self.file(load).and_then(|file| file.get(usize::try_from(into).ok()?..)).unwrap_or(&[]);
        match file.len().min(usize::try_from(len).unwrap_or(usize::MAX)) {
            0 => Run { len, source: Source::Zeros },
            bytes => Run { len: bytes as u64, source: Source::File(&file[..bytes]) },
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::{Machine, Mitigations, Symbols};

    const RAM: usize = 64;
    const KEPT: u8 = 0xff;

    /// A blob that is nothing but a file of distinct bytes.
    fn blob(bytes: &[u8]) -> Blob<'_> {
        let (vms, mitigations) = (heapless::Vec::new(), Mitigations::Auto);
        let machine = Machine { vms, report_exits: false, slice_us: 5000, mitigations };
        Blob { bytes, machine, symbols: Symbols::default() }
    }

    /// RAM as copying one load after the other makes it.
    fn copied(bytes: &[u8], loads: &[Load]) -> Vec<u8> {
        let mut ram = vec![KEPT; RAM];
        for load in loads {
            let (gpa, len) = (load.gpa as usize, load.len as usize);
            ram[gpa..gpa + load.mem_len as usize].fill(0);
            ram[gpa..gpa + len].copy_from_slice(&bytes[load.offset as usize..][..len]);
        }
        ram
    }

    fn any_load() -> impl Strategy<Value = Load> {
        let place = (0..RAM as u64).prop_flat_map(|gpa| (Just(gpa), 0..=RAM as u64 - gpa));
        let file = place.prop_flat_map(|(gpa, mem_len)| (Just(gpa), Just(mem_len), 0..=mem_len, 0..100u64));
        file.prop_map(|(gpa, mem_len, len, offset)| Load { offset, len, gpa, mem_len })
    }

    proptest! {
        #[test]
        fn runs_are_what_copying_makes(loads in prop::collection::vec(any_load(), 0..6), cut in 1..RAM as u64) {
            let bytes: Vec<u8> = (0..200).collect();
            let blob = blob(&bytes);
            let (mut at, mut ram) = (0, Vec::new());
            while at < RAM as u64 {
                let end = (at / cut + 1) * cut;
                let run = blob.contents(&loads, at, end.min(RAM as u64));
                prop_assert!(run.len > 0 && at + run.len <= end);
                match run.source {
                    Source::File(part) => {
                        prop_assert_eq!(part.len() as u64, run.len);
                        ram.extend_from_slice(part);
                    }
                    Source::Zeros => ram.resize(ram.len() + run.len as usize, 0),
                    Source::Nothing => ram.resize(ram.len() + run.len as usize, KEPT),
                }
                at += run.len;
            }
            prop_assert_eq!(ram, copied(&bytes, &loads));
        }
    }
}
