//! Where operands are, and reaching them.

use crate::decoded::{Base, Decoded, Source};
use crate::{CodeSize, Fault, Intent, SegmentName, Vcpu, Width};

/// Where the operand in memory is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// At the guest-physical address of the exit.
    Device(u64),
    /// At this linear address, whatever is there.
    Linear(u64),
}

impl Decoded {
    /// The offset of the operand in its segment.
    pub(crate) fn offset(&self, vcpu: &impl Vcpu) -> u64 {
        let mut offset = self.displacement;
        match self.base {
            Base::Register(register) => offset = offset.wrapping_add(vcpu.register(register)),
            Base::Rip => offset = offset.wrapping_add(vcpu.rip()),
            Base::None => {}
        }
        if let Some(index) = self.index {
            offset = offset.wrapping_add(vcpu.register(index) << (self.scale & 3));
        }
        offset & self.address_width.mask()
    }

    /// The place of the operand at `offset`, when an access to the guest-physical address `exit` ended in
    /// an exit.
    pub(crate) fn place(&self, vcpu: &impl Vcpu, offset: u64, exit: u64, write: bool) -> Result<Place, Fault> {
        let base = if self.has_base(self.segment) { vcpu.segment_base(self.segment) } else { 0 };
        if self.is_at(base.wrapping_add(offset), exit) {
            return Ok(Place::Device(exit));
        }
        self.linear(vcpu, self.segment, offset, self.width, write).map(Place::Linear)
    }

    /// Is the operand at the linear address `linear` what the access to `exit` was for?
    ///
    /// The exit's address is believed only where the instruction's own agrees in the page offset and the operand ends
    /// in that page: it is another where the operand crosses pages, or the code is not what the processor ran.
    #[inline]
    pub(crate) const fn is_at(&self, linear: u64, exit: u64) -> bool {
        const OFFSET: u64 = 0xfff;
        (linear ^ exit) & OFFSET == 0 && exit & OFFSET <= self.last_offset as u64
    }

    /// In 64-bit mode only FS and GS have bases.
    #[inline]
    pub(crate) fn has_base(&self, segment: SegmentName) -> bool {
        self.code_size != CodeSize::Bits64 || segment >= SegmentName::Fs
    }

    /// The linear address of an offset, checked as segmentation checks it.
    pub(crate) fn linear(&self, vcpu: &impl Vcpu, segment: SegmentName, offset: u64, width: Width, write: bool) -> Result<u64, Fault> {
        if self.code_size == CodeSize::Bits64 {
            let base = if self.has_base(segment) { vcpu.segment_base(segment) } else { 0 };
            let linear = base.wrapping_add(offset);
            let last = linear.wrapping_add(width.bytes() - 1);
            let fits = vcpu.canonical(linear) && vcpu.canonical(last);
            return if fits { Ok(linear) } else { Err(segment.fault()) };
        }
        let descriptor = vcpu.segment(segment);
        if !descriptor.admits(offset, width, write) {
            return Err(segment.fault());
        }
        Ok(descriptor.base.wrapping_add(offset) & Width::Dword.mask())
    }

    #[inline]
    pub(crate) fn read(&self, vcpu: &mut impl Vcpu, place: Place, intent: Intent) -> Result<u64, Fault> {
        let value = match place {
            Place::Device(address) => vcpu.device_read(address, self.width),
            Place::Linear(linear) => vcpu.load(linear, self.width, intent)?,
        };
        Ok(value & self.width.mask())
    }

    #[inline]
    pub(crate) fn write(&self, vcpu: &mut impl Vcpu, place: Place, value: u64) -> Result<(), Fault> {
        let value = value & self.width.mask();
        match place {
            Place::Device(address) => vcpu.device_write(address, self.width, value),
            Place::Linear(linear) => vcpu.store(linear, self.width, value)?,
        }
        Ok(())
    }

    /// The source's value, zero above the operand's width.
    #[inline]
    pub(crate) fn source(&self, vcpu: &impl Vcpu) -> u64 {
        let value = match self.source {
            Source::Register(register) => vcpu.register(register),
            Source::High(register) => vcpu.register(register) >> 8,
            Source::Immediate(value) => value as i64 as u64,
        };
        value & self.width.mask()
    }

    /// Writes a register, if the source is one.
    #[inline]
    pub(crate) fn set_source(&self, vcpu: &mut impl Vcpu, width: Width, value: u64) {
        match self.source {
            Source::Register(register) => {
                let value = width.merge(vcpu.register(register), value);
                vcpu.set_register(register, value);
            }
            Source::High(register) => {
                let old = vcpu.register(register);
                vcpu.set_register(register, old & !0xff00 | (value & 0xff) << 8);
            }
            Source::Immediate(_) => {}
        }
    }
}
