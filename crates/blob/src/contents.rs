//! Initial contents of guest RAM.

use crate::Load;
use crate::format::{MEDIUM, OWN};

/// A run of guest RAM with a single source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Bytes; at least one.
    pub len: u64,
    /// Their contents.
    pub source: Source<'a>,
}

/// The source of a run's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// Literal bytes; their number is the run's length.
    File(&'a [u8]),
    /// The part of a load beyond its file: zeroed at each reset.
    Zeros,
    /// Not covered by a load: zeros when the machine starts, preserved by a reset.
    Nothing,
}

/// Sources of a virtual machine's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// The machine's blob.
    pub(crate) image: &'a [u8],
    /// The virtual machine's [`Package`](crate::Package), if it was created at run time, or what was made for it at boot.
    pub(crate) package: &'a [u8],
    /// Files of the boot medium.
    pub(crate) medium: &'a [u8],
}

impl<'a> Files<'a> {
    /// The files of a virtual machine that is made at boot: those of `image`, `medium`, the boot medium's, and `made`.
    pub fn at_boot(image: Self, medium: &'a [u8], made: &'a [u8]) -> Self {
        Self { image: image.image, package: made, medium }
    }

    /// The machine's blob.
    pub fn image(&self) -> &'a [u8] {
        self.image
    }

    /// The [`Load::offset`] of bytes that are a part of the image's or the boot medium's files; `None` for others.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let place = |whole: &[u8]| {
            let (start, at) = (whole.as_ptr().addr(), bytes.as_ptr().addr());
            let offset = at.checked_sub(start)?;
            (offset.checked_add(bytes.len())? <= whole.len()).then_some(offset as u64)
        };
        place(self.image).or_else(|| place(self.medium).map(|offset| MEDIUM + offset))
    }

    /// A file's bytes: [`Load::len`] of them. `None` if `load` is not of these files.
    pub fn file(&self, load: &Load) -> Option<&'a [u8]> {
        let (bytes, offset) = match load.offset {
            OWN.. => (self.package, load.offset - OWN),
            MEDIUM.. => (self.medium, load.offset - MEDIUM),
            offset => (self.image, offset),
        };
        let (start, len) = (usize::try_from(offset).ok()?, usize::try_from(load.len).ok()?);
        bytes.get(start..)?.get(..len)
    }

    /// The run at guest-physical address `at` (below `end`), up to `end` at most. Where loads overlap, the
    /// last one takes precedence.
    pub fn contents(&self, loads: &[Load], at: u64, end: u64) -> Run<'a> {
        let mut end = end;
        let mut found = None;
        for load in loads {
            let load_end = load.gpa.saturating_add(load.mem_len);
            if (load.gpa..load_end).contains(&at) {
                found = Some(load);
            } else if load.gpa > at && load.mem_len != 0 {
                // The run ends where a later load begins: it may override `found`. If it doesn't, the next
                // run has the same source.
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

    const RAM: usize = 64;
    const KEPT: u8 = 0xff;

    /// An image that consists of a file of distinct bytes only.
    fn files(image: &[u8]) -> Files<'_> {
        Files { image, ..Files::default() }
    }

    /// RAM as the result of copying the loads in order.
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
        fn runs_equal_copying_the_loads(loads in prop::collection::vec(any_load(), 0..6), cut in 1..RAM as u64) {
            let bytes: Vec<u8> = (0..200).collect();
            let files = files(&bytes);
            let (mut at, mut ram) = (0, Vec::new());
            while at < RAM as u64 {
                let end = (at / cut + 1) * cut;
                let run = files.contents(&loads, at, end.min(RAM as u64));
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
