//! Checks of a VM entry (SDM, "VM Entries"), as tables in the SDM's order.
//!
//! A [`Section`] of rules names the groups of fields that its rules read. If none of these changed since an entry that succeeded, the
//! section is skipped, so that a repeated entry checks only what L1 wrote. The SDM leaves the order of checks within the controls and host
//! state, and within guest state, to the processor.

mod controls;
mod guest;
mod host;
pub mod msr_area;
mod rule;
mod segments;

use crate::controls::entry;
use crate::field::Field;
use crate::group::{Group, Groups};
use crate::vmcs12::Vmcs12;
use rule::State;
pub use rule::{EntryFailure, Memory, Processor, Rule, Section};

/// The rules for a VM entry.
pub const SECTIONS: &[&[Section]] = &[controls::SECTIONS, host::SECTIONS, guest::SECTIONS, segments::SECTIONS, guest::LATER_SECTIONS];
/// Those for guest state.
static OF_GUEST: [Part; 3] = [Part::new(guest::SECTIONS), Part::new(segments::SECTIONS), Part::new(guest::LATER_SECTIONS)];
/// The others.
static OF_CONTROLS_AND_HOST: [Part; 2] = [Part::new(controls::SECTIONS), Part::new(host::SECTIONS)];

/// Sections that are skipped together.
struct Part {
    sections: &'static [Section],
    /// The groups that any of them reads.
    reads: Groups,
}

impl Part {
    const fn new(sections: &'static [Section]) -> Self {
        let mut reads = Groups::NONE;
        let mut at = 0;
        while at < sections.len() {
            reads = reads.union(sections[at].reads);
            at += 1;
        }
        Self { sections, reads }
    }
}

/// Checks a VM entry of `vmcs`, except for the launch state and MSR loading. `changed` has the groups of which a field changed since an
/// entry with this VMCS passed; [`Groups::ALL`] if none did, or if the processor's state or memory that is checked may have changed.
///
/// # Errors
/// The first rule that does not hold, and the result.
pub fn check(vmcs: &Vmcs12, processor: &Processor<'_>, memory: &dyn Memory, changed: Groups) -> Result<(), (&'static Rule, EntryFailure)> {
    let state = State::new(vmcs, processor, memory);
    check_parts(&OF_CONTROLS_AND_HOST, &state, changed)?;
    check_parts(&OF_GUEST, &state, changed)
}

/// Checks a VM entry whose guest state, but for what L1 wrote since the last exit, is in the processor and not in `vmcs`: a change of
/// controls alone causes no check of guest state. The processor makes those itself.
///
/// # Errors
/// As of [`check`].
pub fn check_partly_loaded(
    vmcs: &Vmcs12,
    processor: &Processor<'_>,
    memory: &dyn Memory,
    changed: Groups,
) -> Result<(), (&'static Rule, EntryFailure)> {
    let state = State::new(vmcs, processor, memory);
    check_parts(&OF_CONTROLS_AND_HOST, &state, changed)?;
    check_parts(&OF_GUEST, &state, changed.without(rule::CONTROLS))
}

/// Groups without rules.
const UNCHECKED: Groups = Groups::of(&[Group::Unchecked, Group::Information]);

/// Those of the `changed` groups whose rules are to be checked. The only rule for RIP and RSP alone is that RIP fits the mode, as one that
/// fits each mode and one of 64-bit code do. Most entries change nothing else, and need no check.
#[inline(always)]
pub fn remaining(vmcs: &Vmcs12, changed: Groups) -> Groups {
    const LONG: u64 = 1 << 13;
    let changed = changed.without(UNCHECKED);
    if !changed.intersects(Group::Pointers.alone()) {
        return changed;
    }
    let rip = vmcs.get(Field::GUEST_RIP);
    let is_64 = vmcs.get32(Field::ENTRY_CONTROLS) & entry::IA32E_GUEST != 0 && vmcs.get(Field::GUEST_CS_RIGHTS) & LONG != 0;
    // Linear addresses have 48 bits or more.
    let fits = rip >> 32 == 0 || is_64 && rule::sign_extend(rip, 47) == rip;
    if fits { changed.without(Group::Pointers.alone()) } else { changed }
}

/// Checks only the guest state of `vmcs`, with its controls.
///
/// # Errors
/// As of [`check`].
pub fn check_guest(vmcs: &Vmcs12, processor: &Processor<'_>, memory: &dyn Memory) -> Result<(), (&'static Rule, EntryFailure)> {
    check_parts(&OF_GUEST, &State::new(vmcs, processor, memory), Groups::ALL)
}

fn check_parts(parts: &[Part], state: &State<'_>, changed: Groups) -> Result<(), (&'static Rule, EntryFailure)> {
    for section in parts.iter().filter(|part| part.reads.intersects(changed)).flat_map(|part| part.sections) {
        if !section.reads.intersects(changed) {
            continue;
        }
        for rule in section.rules {
            if !(rule.holds)(state) {
                return Err((rule, section.failure));
            }
        }
    }
    Ok(())
}
