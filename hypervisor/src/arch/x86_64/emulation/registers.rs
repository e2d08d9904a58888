//! Registers of the vCPU other than the general ones, as seen by instruction emulation (crate `stile-x86-decode`).

use stile_x86_decode::{
    Control, Descriptor, Extent, Fault, OtherRegisters, SegmentName, SelectorName, StateWord, SystemSegment, TableName,
};

use super::processor::{By, Processor, Space, part};
use crate::arch::x86_64::vcpu::{cr0, simd};
use crate::arch::x86_64::virt::state::{self, Field};

/// Base, limit, access rights and selector of LDTR or TR.
pub fn fields(name: SystemSegment) -> [Field; 4] {
    match name {
        SystemSegment::Ldtr => [Field::GUEST_LDTR_BASE, Field::GUEST_LDTR_LIMIT, Field::GUEST_LDTR_RIGHTS, Field::GUEST_LDTR],
        SystemSegment::Tr => [Field::GUEST_TR_BASE, Field::GUEST_TR_LIMIT, Field::GUEST_TR_RIGHTS, Field::GUEST_TR],
    }
}

fn write_segment([base, limit, rights, selector]: [Field; 4], value: u16, descriptor: &Descriptor) {
    state::write(base, descriptor.base);
    state::write(limit, descriptor.limit.into());
    state::write(rights, descriptor.rights.into());
    state::write(selector, value.into());
}

const fn table(name: TableName) -> (Field, Field) {
    match name {
        TableName::Gdt => (Field::GUEST_GDTR_BASE, Field::GUEST_GDTR_LIMIT),
        TableName::Idt => (Field::GUEST_IDTR_BASE, Field::GUEST_IDTR_LIMIT),
    }
}

impl<S: Space> OtherRegisters for Processor<'_, S> {
    fn privilege(&self) -> u8 {
        (state::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11) as u8
    }

    fn control(&self, register: Control) -> u64 {
        match register {
            Control::Cr0 => cr0::read(),
            Control::Cr4 => state::read(Field::GUEST_CR4),
            Control::Efer => state::read(Field::GUEST_EFER),
            Control::Xcr0 => simd::xcr0(),
        }
    }

    fn set_cr0(&mut self, value: u64) -> Result<(), Fault> {
        if cr0::write(self.cpu.vcpu().vm(), value, self.space.cr0_mask()) { Ok(()) } else { Err(Fault::Protection) }
    }

    fn table(&self, name: TableName) -> (u64, u16) {
        let (base, limit) = table(name);
        (state::read(base), state::read(limit) as u16)
    }

    fn set_table(&mut self, name: TableName, new: u64, bytes: u16) {
        let (base, limit) = table(name);
        state::write(base, new);
        state::write(limit, bytes.into());
    }

    fn local_table(&self) -> Option<(u64, u32)> {
        const UNUSABLE: u64 = 1 << 16;
        let [base, limit, rights, _] = fields(SystemSegment::Ldtr);
        (state::read(rights) & UNUSABLE == 0).then(|| (state::read(base), state::read(limit) as u32))
    }

    fn load_descriptor(&mut self, linear: u64) -> Result<u64, Fault> {
        let pieces = self.pieces(linear, 8, false, By::Processor)?;
        let mut bytes = [0; 8];
        self.move_pieces(pieces, &mut bytes, false);
        Ok(u64::from_le_bytes(bytes))
    }

    fn store_descriptor(&mut self, linear: u64, descriptor: u64) -> Result<(), Fault> {
        let pieces = self.pieces(linear, 8, true, By::Processor)?;
        self.move_pieces(pieces, &mut descriptor.to_le_bytes(), true);
        Ok(())
    }

    fn selector(&self, name: SelectorName) -> u16 {
        state::read(match name {
            SelectorName::Segment(name) => part(Field::GUEST_ES, name),
            SelectorName::Ldtr => Field::GUEST_LDTR,
            SelectorName::Tr => Field::GUEST_TR,
        }) as u16
    }

    fn set_segment(&mut self, name: SegmentName, selector: u16, descriptor: Option<&Descriptor>) {
        let [base, limit, rights] = [Field::GUEST_ES_BASE, Field::GUEST_ES_LIMIT, Field::GUEST_ES_RIGHTS].map(|field| part(field, name));
        let field = part(Field::GUEST_ES, name);
        match descriptor {
            Some(descriptor) => write_segment([base, limit, rights, field], selector, descriptor),
            None => {
                state::write(base, u64::from(selector) << 4);
                state::write(field, selector.into());
            }
        }
    }

    fn set_system_segment(&mut self, name: SystemSegment, selector: u16, descriptor: &Descriptor) {
        write_segment(fields(name), selector, descriptor);
    }

    fn vector(&self, index: u8, wide: bool) -> [u64; 4] {
        simd::read(index, wide)
    }

    fn set_vector(&mut self, index: u8, value: [u64; 4], extent: Extent) {
        simd::write(index, &value, extent);
    }

    fn floating_point_error(&self) -> bool {
        simd::floating_point_error()
    }

    fn state_word(&self, word: StateWord) -> u32 {
        simd::state_word(word)
    }

    fn set_state_word(&mut self, word: StateWord, value: u32) {
        simd::set_state_word(word, value);
    }

    fn mmx(&mut self, index: u8) -> u64 {
        simd::read_mmx(index)
    }

    fn set_mmx(&mut self, index: u8, value: u64) {
        simd::write_mmx(index, value);
    }
}
