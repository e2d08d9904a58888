//! Registers of the ITS ("The ITS register map") and of redistributors.
//!
//! An access has 32 or 64 bits and is aligned. Others, and those to unimplemented registers, are RAZ/WI, as is
//! GITS_TRANSLATER: a CPU's write has no DeviceID.

use stile_board::intid::{LPI_BASE, LPI_COUNT};

use super::{Backing, DEVICE_BITS, EVENT_BITS, GuestIts, TABLE_ATTRIBUTES};
use crate::VALID;

const CTLR: u64 = 0x00;
const IIDR: u64 = 0x04;
const TYPER: u64 = 0x08;
const CBASER: u64 = 0x80;
const CWRITER: u64 = 0x88;
const CREADR: u64 = 0x90;
const PIDR2: u64 = 0xffe8;

/// GITS_CTLR.Enabled, and Quiescent.
const ENABLED: u64 = 1;
const QUIESCENT: u64 = 1 << 31;
/// Arm (JEP106 0x43b), as the distributor's.
const IIDR_ARM: u64 = 0x43b;
/// GICv3.
const PIDR2_GICV3: u64 = 0x3b;

/// GITS_CWRITER, GITS_CREADR: the offset in the queue; the former's Retry and the latter's Stalled.
const OFFSET: u64 = 0xf_ffe0;
const FLAG: u64 = 1;

/// GITS_CBASER: Size and address. Attributes are fixed: Stile accesses the queue as cacheable memory.
const SIZE: u64 = 0xff;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// InnerCache write-back, Inner Shareable.
const QUEUE_ATTRIBUTES: u64 = 0b111 << 59 | 0b01 << 10;
const PAGE: u64 = 4096;

/// Registers of a redistributor.
const GICR_CTLR: u64 = 0x00;
const GICR_TYPER: u64 = 0x08;
const GICR_PROPBASER: u64 = 0x70;
const GICR_PENDBASER: u64 = 0x78;
/// GICR_CTLR.EnableLPIs, and CES: it can be cleared.
const ENABLE_LPIS: u64 = 1;
const CLEAR_ENABLE_SUPPORTED: u64 = 1 << 1;
/// GICR_TYPER.PLPIS.
const PHYSICAL_LPIS: u64 = 1;
/// GICR_PROPBASER: address and IDbits.
const CONFIGURATION: u64 = ADDRESS | 0x1f;
/// GICR_PENDBASER: the address. PTZ reads as zero.
const PENDING: u64 = 0x000f_ffff_ffff_0000;

/// The effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Complete.
    Done,
    /// Commands, or a change of GITS_CTLR.Enabled, wait for [`GuestIts::run`].
    Commands,
}

/// The 64-bit register of an access and the shift of the accessed part; `None` for an access without a register.
const fn split(offset: u64, bytes: u64) -> Option<(u64, u32)> {
    match bytes {
        4 if offset.is_multiple_of(4) => Some((offset & !7, (offset & 4) as u32 * 8)),
        8 if offset.is_multiple_of(8) => Some((offset, 0)),
        _ => None,
    }
}

/// Replaces the accessed part of a register.
const fn merge(before: u64, shift: u32, bytes: u64, value: u64) -> u64 {
    let mask = if bytes == 8 { u64::MAX } else { 0xffff_ffff << shift };
    before & !mask | value << shift & mask
}

impl GuestIts {
    /// Reads `bytes` bytes at an offset in the ITS's frames.
    pub fn read(&self, offset: u64, bytes: u64) -> u64 {
        let Some((register, shift)) = split(offset, bytes) else { return 0 };
        let value = self.register(register) >> shift;
        if bytes == 4 { value & 0xffff_ffff } else { value }
    }

    fn register(&self, register: u64) -> u64 {
        const { assert!(IIDR == CTLR + 4 && PIDR2.is_multiple_of(8)) };
        match register {
            CTLR if self.enabled => IIDR_ARM << 32 | ENABLED,
            CTLR => IIDR_ARM << 32 | if self.untranslated == 0 { QUIESCENT } else { 0 },
            TYPER => self.typer(),
            CBASER => self.base,
            CWRITER => self.writer,
            CREADR => self.reader | if self.stalled { FLAG } else { 0 },
            PIDR2 => PIDR2_GICV3,
            _ => 0,
        }
    }

    /// Physical, ITT_entry_size of one byte, ID_bits, Devbits, PTA of 0, HCC, CIDbits and CIL.
    fn typer(&self) -> u64 {
        let collections = (self.vcpus as u64 + 1).min(0xff);
        1 | (u64::from(EVENT_BITS) - 1) << 8 | (u64::from(DEVICE_BITS) - 1) << 13 | collections << 24 | 8 << 32 | 1 << 36
    }

    /// Writes `bytes` bytes at an offset in the ITS's frames.
    pub fn write(&mut self, offset: u64, bytes: u64, value: u64) -> Written {
        let Some((register, shift)) = split(offset, bytes) else { return Written::Done };
        match register {
            CTLR if shift == 0 => self.enable(value & ENABLED != 0),
            CBASER if !self.enabled => {
                let value = merge(self.base, shift, bytes, value);
                self.base = value & (VALID | ADDRESS | SIZE) | QUEUE_ATTRIBUTES;
                (self.reader, self.stalled, self.next) = (0, false, 0);
                // An offset in a queue that was larger.
                self.writer %= self.queue_size();
            }
            CWRITER if shift == 0 => {
                if value & OFFSET < self.queue_size() {
                    self.writer = value & OFFSET;
                }
                if value & FLAG != 0 {
                    self.stalled = false;
                }
            }
            _ => {}
        }
        if self.is_busy() || self.untranslated != 0 { Written::Commands } else { Written::Done }
    }

    /// Sets GITS_CTLR.Enabled: messages are translated only while it is set. [`GuestIts::run`] applies it, to one function at a time.
    fn enable(&mut self, enabled: bool) {
        if self.enabled != enabled {
            self.enabled = enabled;
            self.untranslated = self.functions as u8;
        }
    }

    /// Applies a change of GITS_CTLR.Enabled to the next function, if there is one left. Returns whether there was.
    pub(super) fn translate_next(&mut self, backing: &mut impl Backing) -> bool {
        let Some(function) = self.untranslated.checked_sub(1) else { return false };
        self.untranslated = function;
        for (number, event) in self.events[usize::from(function)].iter().enumerate().filter(|(_, event)| event.lpi != 0) {
            backing.translate(function.into(), number, self.enabled.then_some(event.lpi.into()));
        }
        true
    }

    /// Whether commands can be executed.
    pub(super) fn is_busy(&self) -> bool {
        self.enabled && self.base & VALID != 0 && !self.stalled && self.reader != self.writer
    }

    /// Address of the queue.
    pub(super) fn queue(&self) -> u64 {
        self.base & ADDRESS
    }

    /// Bytes of the queue.
    pub(super) fn queue_size(&self) -> u64 {
        ((self.base & SIZE) + 1) * PAGE
    }

    /// Whether a redistributor takes LPIs.
    pub(super) fn takes_lpis(&self, vcpu: usize) -> bool {
        self.pending.get(vcpu).is_some_and(|register| register & ENABLE_LPIS != 0)
    }

    /// Address of an LPI's byte in the configuration table, if the table is long enough (IDbits).
    pub(super) fn configuration_address(&self, lpi: u32) -> Option<u64> {
        const { assert!((LPI_BASE + LPI_COUNT) < 1 << 16) };
        let bits = (self.configuration & 0x1f) + 1;
        (u64::from(lpi) < 1 << bits).then_some((self.configuration & ADDRESS) + u64::from(lpi - LPI_BASE))
    }

    /// Returns the bits that LPIs add to a read of `bytes` bytes at an offset in a redistributor's first frame.
    pub fn read_redistributor(&self, vcpu: usize, offset: u64, bytes: u64) -> u64 {
        let (Some((register, shift)), Some(pending)) = (split(offset, bytes), self.pending.get(vcpu)) else { return 0 };
        let value = match register {
            GICR_CTLR => CLEAR_ENABLE_SUPPORTED | pending & ENABLE_LPIS,
            GICR_TYPER => PHYSICAL_LPIS,
            GICR_PROPBASER => self.configuration,
            GICR_PENDBASER => pending & !ENABLE_LPIS,
            _ => 0,
        } >> shift;
        if bytes == 4 { value & 0xffff_ffff } else { value }
    }

    /// Writes `bytes` bytes at an offset in a redistributor's first frame, as far as they concern LPIs. Returns whether the caller shall
    /// write them again: a write that enables or disables LPIs reroutes those of one function at a time.
    #[must_use]
    pub fn write_redistributor(&mut self, vcpu: usize, offset: u64, bytes: u64, value: u64, backing: &mut impl Backing) -> bool {
        let Some((register, shift)) = split(offset, bytes).filter(|_| vcpu < self.vcpus) else { return false };
        let enabled = self.pending[vcpu] & ENABLE_LPIS;
        match register {
            GICR_CTLR if shift == 0 => {
                if value & ENABLE_LPIS != enabled {
                    self.pending[vcpu] ^= ENABLE_LPIS;
                    self.unrouted[vcpu] = self.functions as u8;
                }
                return self.reroute(vcpu, backing);
            }
            // Writes while LPIs are enabled are UNPREDICTABLE. That of another redistributor is the same table
            // (GICR_TYPER.CommonLPIAff).
            GICR_PROPBASER if enabled == 0 => {
                let value = merge(self.configuration, shift, bytes, value);
                self.configuration = value & CONFIGURATION | TABLE_ATTRIBUTES;
            }
            GICR_PENDBASER if enabled == 0 => {
                let value = merge(self.pending[vcpu], shift, bytes, value);
                self.pending[vcpu] = value & PENDING | TABLE_ATTRIBUTES;
            }
            _ => {}
        }
        false
    }

    /// Routes the LPIs of the next function to a vCPU that has enabled or disabled them. Their configuration may have changed before that.
    /// Returns whether there are more functions.
    fn reroute(&mut self, vcpu: usize, backing: &mut impl Backing) -> bool {
        let Some(function) = self.unrouted[vcpu].checked_sub(1) else { return false };
        self.unrouted[vcpu] = function;
        let takes = self.takes_lpis(vcpu);
        for event in self.events_of(function.into(), |collection| self.vcpu_of(collection) == Some(vcpu)) {
            if takes {
                self.configure(event.lpi, backing);
            }
            backing.route(event.lpi.into(), takes.then_some(vcpu));
        }
        function != 0
    }
}
