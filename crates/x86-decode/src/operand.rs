//! Location of and access to operands.

use crate::decoded::{Base, Decoded};
use crate::operation::Source;
use crate::{CodeSize, Control, Fault, Intent, SegmentName, Vcpu, Width};

/// The location of the memory operand.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// A device at the guest-physical address of the exit.
    Device(u64),
    /// Memory or a device at this linear address.
    Linear(u64),
}

impl Decoded {
    /// The offset of the operand in its segment.
    #[inline(always)]
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

    /// Returns the location of the operand at `offset`, for an exit at the guest-physical address `exit`.
    #[inline(always)]
    pub(crate) fn place(&self, vcpu: &impl Vcpu, offset: u64, exit: u64, write: bool) -> Result<Place, Fault> {
        let base = if self.has_base(self.segment) { vcpu.segment_base(self.segment) } else { 0 };
        let linear = base.wrapping_add(offset);
        if self.is_at(linear, exit) {
            self.check_alignment(vcpu, linear)?;
            return Ok(Place::Device(exit));
        }
        self.linear(vcpu, self.segment, offset, self.bytes(), write).map(Place::Linear)
    }

    /// Returns the location of an operand. If `aligned`, a misaligned operand raises #GP(0) instead of the alignment check.
    pub(crate) fn place_aligned(&self, vcpu: &impl Vcpu, exit: u64, aligned: bool, write: bool) -> Result<Place, Fault> {
        let offset = self.offset(vcpu);
        if aligned {
            let base = if self.has_base(self.segment) { vcpu.segment_base(self.segment) } else { 0 };
            if base.wrapping_add(offset) & (self.bytes() - 1) != 0 {
                return Err(Fault::Protection);
            }
        }
        self.place(vcpu, offset, exit, write)
    }

    /// Whether the operand at the linear address `linear` is the one whose access exited at `exit`.
    ///
    /// The exit's address is used only if the page offsets agree and the operand ends in that page. Otherwise the operand crosses pages, or
    /// the code is not what the processor executed.
    #[inline]
    pub(crate) const fn is_at(&self, linear: u64, exit: u64) -> bool {
        const OFFSET: u64 = 0xfff;
        (linear ^ exit) & OFFSET == 0 && exit & OFFSET <= self.last_offset as u64
    }

    /// Returns the segment's base. In 64-bit mode only FS and GS have one.
    #[inline]
    pub(crate) fn has_base(&self, segment: SegmentName) -> bool {
        self.code_size != CodeSize::Bits64 || segment >= SegmentName::Fs
    }

    /// Returns the linear address of an offset, after the segmentation checks.
    pub(crate) fn linear(&self, vcpu: &impl Vcpu, segment: SegmentName, offset: u64, bytes: u64, write: bool) -> Result<u64, Fault> {
        if self.code_size == CodeSize::Bits64 {
            let base = if self.has_base(segment) { vcpu.segment_base(segment) } else { 0 };
            let linear = base.wrapping_add(offset);
            let last = linear.wrapping_add(bytes - 1);
            let fits = vcpu.canonical(linear) && vcpu.canonical(last);
            if !fits {
                return Err(segment.fault());
            }
            return self.check_alignment(vcpu, linear).map(|()| linear);
        }
        let descriptor = vcpu.segment(segment);
        if !descriptor.admits(offset, bytes, write) {
            return Err(segment.fault());
        }
        let linear = descriptor.base.wrapping_add(offset) & Width::Dword.mask();
        self.check_alignment(vcpu, linear).map(|()| linear)
    }

    /// Raises #AC for a misaligned operand if user mode has enabled alignment checks.
    #[inline(always)]
    fn check_alignment(&self, vcpu: &impl Vcpu, linear: u64) -> Result<(), Fault> {
        if linear & (self.width.bytes() - 1) == 0 { Ok(()) } else { alignment_fault(vcpu) }
    }

    #[inline(always)]
    pub(crate) fn read(&self, vcpu: &mut impl Vcpu, place: Place, intent: Intent) -> Result<u64, Fault> {
        let value = match place {
            Place::Device(address) => vcpu.device_read(address, self.width),
            Place::Linear(linear) => vcpu.load(linear, self.width, intent)?,
        };
        Ok(value & self.width.mask())
    }

    #[inline(always)]
    pub(crate) fn write(&self, vcpu: &mut impl Vcpu, place: Place, value: u64) -> Result<(), Fault> {
        let value = value & self.width.mask();
        match place {
            Place::Device(address) => vcpu.device_write(address, self.width, value),
            Place::Linear(linear) => vcpu.store(linear, self.width, value)?,
        }
        Ok(())
    }

    /// Reads an operand of any size.
    pub(crate) fn read_bytes(&self, vcpu: &mut impl Vcpu, place: Place, bytes: &mut [u8], intent: Intent) -> Result<(), Fault> {
        match place {
            Place::Linear(linear) => vcpu.load_bytes(linear, bytes, intent),
            Place::Device(address) => {
                device_parts(address, bytes.len(), |address, at, width| {
                    let value = vcpu.device_read(address, width).to_le_bytes();
                    for (slot, byte) in bytes.iter_mut().skip(at).zip(value).take(width.bytes() as usize) {
                        *slot = byte;
                    }
                });
                Ok(())
            }
        }
    }

    /// Writes an operand of any size.
    pub(crate) fn write_bytes(&self, vcpu: &mut impl Vcpu, place: Place, bytes: &[u8]) -> Result<(), Fault> {
        match place {
            Place::Linear(linear) => vcpu.store_bytes(linear, bytes),
            Place::Device(address) => {
                device_parts(address, bytes.len(), |address, at, width| {
                    let part = bytes.iter().skip(at).take(width.bytes() as usize);
                    vcpu.device_write(address, width, part.rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
                });
                Ok(())
            }
        }
    }

    /// Returns the source's value, zero above the operand's width.
    #[inline(always)]
    pub(crate) fn source(&self, vcpu: &impl Vcpu) -> u64 {
        let value = match self.source {
            Source::Register(register) => vcpu.register(register),
            Source::High(register) => vcpu.register(register) >> 8,
            Source::Immediate(value) => value as i64 as u64,
            Source::Both(register, _) => vcpu.register(register),
            Source::Vector(_) | Source::Mmx(_) => 0,
        };
        value & self.width.mask()
    }

    /// Writes the source register; no effect for an immediate.
    #[inline(always)]
    pub(crate) fn set_source(&self, vcpu: &mut impl Vcpu, width: Width, value: u64) {
        match self.source {
            Source::Register(register) | Source::Both(register, _) => {
                let value = width.merge(vcpu.register(register), value);
                vcpu.set_register(register, value);
            }
            Source::High(register) => {
                let old = vcpu.register(register);
                vcpu.set_register(register, old & !0xff00 | (value & 0xff) << 8);
            }
            Source::Immediate(_) | Source::Vector(_) | Source::Mmx(_) => {}
        }
    }
}

/// Raises #AC if user mode has enabled alignment checks (SDM, "Alignment Check Exception (#AC)").
///
/// # Errors
/// #AC.
#[cold]
pub fn alignment_fault(vcpu: &impl Vcpu) -> Result<(), Fault> {
    /// CR0.AM and RFLAGS.AC, which have the same position.
    const ON: u64 = 1 << 18;
    let checked = vcpu.flags() & ON != 0 && vcpu.privilege() == 3 && vcpu.control(Control::Cr0) & ON != 0;
    if checked { Err(Fault::Alignment) } else { Ok(()) }
}

/// Splits a device access into accesses of supported widths, the largest first. Calls `each` with the address, the offset in the operand
/// and the width.
pub fn device_parts(address: u64, length: usize, mut each: impl FnMut(u64, usize, Width)) {
    let mut done = 0;
    while done < length {
        let width = match length - done {
            8.. => Width::Qword,
            4.. => Width::Dword,
            2.. => Width::Word,
            _ => Width::Byte,
        };
        each(address.wrapping_add(done as u64), done, width);
        done += width.bytes() as usize;
    }
}
