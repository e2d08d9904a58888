//! Loads of segment registers, and the checks before a load ("MOV—Move", "LDS/LES/LFS/LGS/LSS", "LLDT", "LTR").

use crate::decoded::Decoded;
use crate::descriptor::{
    ACCESSED, BIG, BUSY, CODE, CONFORMING, Descriptor, LDT, LONG, PRESENT, READABLE_OR_WRITABLE, SEGMENT, TASK, TASK_16,
};
use crate::{Control, Fault, Intent, SegmentName, SelectorName, SystemSegment, TableName, Vcpu};

/// Whether the processor is in protected mode, but not in virtual-8086 mode.
pub(crate) fn is_protected(vcpu: &impl Vcpu) -> bool {
    const PE: u64 = 1;
    const VM: u64 = 1 << 17;
    vcpu.control(Control::Cr0) & PE != 0 && vcpu.flags() & VM == 0
}

/// Whether EFER.LMA is set.
fn is_long_mode(vcpu: &impl Vcpu) -> bool {
    vcpu.control(Control::Efer) & 1 << 10 != 0
}

pub(crate) fn is_null(selector: u16) -> bool {
    selector & !3 == 0
}

/// Returns the error code's selector: without RPL.
pub(crate) fn code_of(selector: u16) -> u16 {
    selector & !3
}

/// TI of a selector: the descriptor is in the LDT.
const LOCAL: u16 = 1 << 2;

/// Sets the accessed flag of the descriptor in its table.
pub(crate) fn mark_used(found: &Descriptor, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    // From the memory image: `rights` of CS may already include the bit.
    let marked = found.entry | u64::from(ACCESSED) << 40;
    if marked == found.entry { Ok(()) } else { vcpu.store_descriptor(found.at, marked) }
}

/// Reads the descriptor of a selector, or none if it is beyond its table's limit.
fn look_up(vcpu: &mut impl Vcpu, selector: u16) -> Result<Option<Descriptor>, Fault> {
    let table = if selector & LOCAL == 0 {
        let (base, limit) = vcpu.table(TableName::Gdt);
        Some((base, limit.into()))
    } else {
        vcpu.local_table()
    };
    let offset = selector & !7;
    let Some((base, _)) = table.filter(|&(_, limit)| u32::from(offset) + 7 <= limit) else { return Ok(None) };
    let at = base.wrapping_add(offset.into());
    Ok(Some(Descriptor::new(vcpu.load_descriptor(at)?, at)))
}

/// Reads the descriptor of a selector; #GP(selector) if it is beyond its table's limit.
fn find(vcpu: &mut impl Vcpu, selector: u16) -> Result<Descriptor, Fault> {
    look_up(vcpu, selector)?.ok_or(Fault::Selector(code_of(selector)))
}

/// Reads the descriptor of a selector from the GDT.
pub(crate) fn global(vcpu: &mut impl Vcpu, selector: u16) -> Result<Option<Descriptor>, Fault> {
    if selector & LOCAL != 0 { Ok(None) } else { look_up(vcpu, selector) }
}

/// Loads a segment register other than CS.
pub(crate) fn load(vcpu: &mut impl Vcpu, name: SegmentName, selector: u16, long: bool) -> Result<(), Fault> {
    if !is_protected(vcpu) {
        vcpu.set_segment(name, selector, None);
        return Ok(());
    }
    let (privilege, requested) = (vcpu.privilege(), (selector & 3) as u8);
    let stack = name == SegmentName::Ss;
    if is_null(selector) {
        if stack && (!long || privilege == 3 || requested != privilege) {
            return Err(Fault::Protection);
        }
        vcpu.set_segment(name, selector, Some(&Descriptor::null(if stack { privilege } else { 0 })));
        return Ok(());
    }
    load_checked(vcpu, name, selector, privilege, Fault::Selector)
}

/// Loads a segment register other than CS at a privilege level. The selector is not null; `wrong` is the fault for a descriptor that may
/// not be loaded.
pub(crate) fn load_checked(
    vcpu: &mut impl Vcpu,
    name: SegmentName,
    selector: u16,
    privilege: u8,
    wrong: fn(u16) -> Fault,
) -> Result<(), Fault> {
    let (code, requested) = (code_of(selector), (selector & 3) as u8);
    let found = look_up(vcpu, selector)?.filter(|found| found.is(SEGMENT)).ok_or(wrong(code))?;
    if name == SegmentName::Ss {
        let writable = !found.is(CODE) && found.is(READABLE_OR_WRITABLE);
        if requested != privilege || found.level() != privilege || !writable {
            return Err(wrong(code));
        }
        if !found.is_present() {
            return Err(Fault::StackSegment(code));
        }
    } else {
        let checked = !found.is(CODE | CONFORMING);
        if found.is(CODE) && !found.is(READABLE_OR_WRITABLE) || checked && found.level() < requested.max(privilege) {
            return Err(wrong(code));
        }
        if !found.is_present() {
            return Err(Fault::NotPresent(code));
        }
    }
    mark_used(&found, vcpu)?;
    vcpu.set_segment(name, selector, Some(&Descriptor { rights: found.rights | ACCESSED, ..found }));
    Ok(())
}

/// Returns the code segment of the same privilege that is a valid target of a far jump; none in real and virtual-8086 mode, where
/// selectors have no descriptors.
pub(crate) fn code(vcpu: &mut impl Vcpu, selector: u16) -> Result<Option<Descriptor>, Fault> {
    if !is_protected(vcpu) {
        return Ok(None);
    }
    if is_null(selector) {
        return Err(Fault::Protection);
    }
    let found = find(vcpu, selector)?;
    if !found.is(SEGMENT) {
        // Gates and tasks are not supported.
        return Err(Fault::InvalidOpcode);
    }
    check_code(vcpu, found, selector, vcpu.privilege(), Fault::Selector).map(Some)
}

/// Loads CS at the privilege level of its selector's RPL; `wrong` is the fault for a descriptor that may not be loaded.
pub(crate) fn load_code(vcpu: &mut impl Vcpu, selector: u16, wrong: fn(u16) -> Fault) -> Result<(), Fault> {
    if is_null(selector) {
        return Err(wrong(0));
    }
    let found = look_up(vcpu, selector)?.ok_or(wrong(code_of(selector)))?;
    let found = check_code(vcpu, found, selector, (selector & 3) as u8, wrong)?;
    mark_used(&found, vcpu)?;
    vcpu.set_segment(SegmentName::Cs, selector, Some(&found));
    Ok(())
}

/// Checks a code descriptor, and returns it in CS's format.
fn check_code(vcpu: &impl Vcpu, found: Descriptor, selector: u16, privilege: u8, wrong: fn(u16) -> Fault) -> Result<Descriptor, Fault> {
    let requested = (selector & 3) as u8;
    let allowed = if found.is(CONFORMING) { found.level() <= privilege } else { requested <= privilege && found.level() == privilege };
    let long = is_long_mode(vcpu);
    if !found.is(SEGMENT | CODE) || !allowed || long && found.is(LONG | BIG) {
        return Err(wrong(code_of(selector)));
    }
    if !found.is_present() {
        return Err(Fault::NotPresent(code_of(selector)));
    }
    // L is reserved outside of long mode.
    let rights = if long { found.rights } else { found.rights & !LONG };
    Ok(Descriptor { rights: rights | ACCESSED, ..found })
}

/// LLDT and LTR.
pub(crate) fn load_system(vcpu: &mut impl Vcpu, name: SystemSegment, selector: u16) -> Result<(), Fault> {
    if !is_protected(vcpu) {
        return Err(Fault::InvalidOpcode);
    }
    if vcpu.privilege() != 0 {
        return Err(Fault::Protection);
    }
    if is_null(selector) {
        if name == SystemSegment::Tr {
            return Err(Fault::Protection);
        }
        vcpu.set_system_segment(name, selector, &Descriptor::null(0));
        return Ok(());
    }
    let wrong = Err(Fault::Selector(code_of(selector)));
    if selector & LOCAL != 0 {
        return wrong;
    }
    let mut found = find(vcpu, selector)?;
    let long = is_long_mode(vcpu);
    let kind = found.rights & 0x1f;
    let right = match name {
        SystemSegment::Ldtr => kind == LDT,
        SystemSegment::Tr => kind == TASK || kind == TASK_16 && !long,
    };
    if !right {
        return wrong;
    }
    if !found.is(PRESENT) {
        return Err(Fault::NotPresent(code_of(selector)));
    }
    if long {
        // System descriptors have 16 bytes in long mode.
        if u32::from(selector & !7) + 15 > vcpu.table(TableName::Gdt).1.into() {
            return wrong;
        }
        found.base |= vcpu.load_descriptor(found.at.wrapping_add(8))? << 32;
        if !vcpu.canonical(found.base) {
            return wrong;
        }
    }
    if name == SystemSegment::Tr {
        vcpu.store_descriptor(found.at, found.entry | u64::from(BUSY) << 40)?;
        found.rights |= BUSY;
    }
    vcpu.set_system_segment(name, selector, &found);
    Ok(())
}

/// Reads a far pointer: an offset of the operand's width, followed by the selector.
pub(crate) fn far_pointer(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(u64, u16), Fault> {
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    let mut bytes = [0; 10];
    let length = (decoded.bytes() as usize).min(bytes.len());
    decoded.read_bytes(vcpu, place, bytes.get_mut(..length).unwrap_or_default(), Intent::Use)?;
    let whole = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte));
    Ok((whole as u64 & decoded.width.mask(), (whole >> decoded.width.bits()) as u16))
}

/// LDS, LES, LFS, LGS and LSS.
pub(crate) fn load_far(decoded: &Decoded, name: SegmentName, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let (offset, selector) = far_pointer(decoded, vcpu, exit)?;
    load(vcpu, name, selector, decoded.is_long())?;
    decoded.set_source(vcpu, decoded.width, offset);
    Ok(())
}

/// Reads a selector register; CR4.UMIP forbids it in user mode for system segments.
pub(crate) fn selector(vcpu: &impl Vcpu, name: SelectorName) -> Result<u16, Fault> {
    if !matches!(name, SelectorName::Segment(_)) {
        if !is_protected(vcpu) {
            return Err(Fault::InvalidOpcode);
        }
        crate::system::check_user(vcpu)?;
    }
    Ok(vcpu.selector(name))
}
