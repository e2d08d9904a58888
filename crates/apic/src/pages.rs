//! The storage of a local APIC's registers, in the layout of the virtual-APIC page: enabling or disabling
//! APIC virtualization needs no conversion.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::address::{Address, Logical};
use crate::lvt::{self, MASKED};
use crate::posted::{Descriptor, Requests};
use crate::{Delivery, Destination, Message, Mode, Received, offset};

pub(crate) const BASE_BSP: u64 = 1 << 8;
pub(crate) const BASE_X2: u64 = 1 << 10;
pub(crate) const BASE_ENABLE: u64 = 1 << 11;

pub(crate) const SVR_ENABLE: u32 = 1 << 8;
pub(crate) const SVR_SUPPRESS: u32 = 1 << 12;

/// An integrated APIC with seven local vectors that can suppress EOI broadcasts.
const VERSION: u32 = 0x14 | 6 << 16 | 1 << 24;

/// Bits of the error status register.
pub(crate) mod error {
    pub const SEND_ILLEGAL: u32 = 1 << 5;
    pub const RECEIVE_ILLEGAL: u32 = 1 << 6;
    pub const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// The part of a local APIC that other processors and APIC virtualization access while it is in use.
///
/// Three pages: the virtual-APIC page ("Virtual-APIC Page"), one with the posted-interrupt descriptor and
/// nothing else, and the rest. The descriptor may be shared with a guest, which may write anything to its
/// likes; Bochs 3.0 requires the alignment, too. All zero is a valid value, but needs a [`reset`](Self::reset)
/// before use.
///
/// IRR, ISR and PPR are changed only by the APIC's owner: [`crate::LocalApic`], or the processor while the
/// guest runs. Other processors post ([`receive`](Self::receive)).
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Pages {
    /// The virtual-APIC page.
    registers: [AtomicU32; 1024],
    posted: DescriptorPage,
    /// Posted level-triggered interrupts, kept from the descriptor: their EOI-exit bits must be set before
    /// the processor delivers them.
    levels: Requests,
    /// IA32_APIC_BASE.
    base: AtomicU64,
    id: AtomicU32,
    /// Errors since the guest last latched ESR.
    errors: AtomicU32,
}

/// A page for the descriptor alone.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
struct DescriptorPage(Descriptor);

const _: () = assert!(Pages::DESCRIPTOR == 4096 && offset_of!(Pages, levels) == 8192);

impl Default for Pages {
    fn default() -> Self {
        Self {
            registers: [const { AtomicU32::new(0) }; 1024],
            posted: DescriptorPage::default(),
            levels: Requests::default(),
            base: AtomicU64::new(0),
            id: AtomicU32::new(0),
            errors: AtomicU32::new(0),
        }
    }
}

impl Pages {
    /// Offset of the posted-interrupt descriptor; the virtual-APIC page is at the start.
    pub const DESCRIPTOR: usize = offset_of!(Self, posted);

    /// Resets to xAPIC mode: "Local APIC State After Power-Up or Reset". In xAPIC mode the ID has eight bits.
    /// Only for the owner.
    pub fn reset(&self, id: u32, bootstrap: bool) {
        self.id.store(id, Ordering::Relaxed);
        self.base.store(0xfee0_0000 | BASE_ENABLE | if bootstrap { BASE_BSP } else { 0 }, Ordering::Relaxed);
        self.init();
    }

    /// Sets the mode in which firmware leaves the APICs of a machine that has an identifier beyond 254 ("x2APIC State
    /// Transitions"). After a reset, and only for the owner.
    pub fn set_x2apic_mode(&self) {
        self.set_base(self.base() | BASE_X2);
    }

    /// Sets the state in which firmware leaves the bootstrap processor's APIC (*MultiProcessor
    /// Specification*, "Virtual Wire Mode"): enabled, with the 8259s on LINT0 and NMIs on LINT1. Kernels
    /// without APIC support rely on it. After a reset or INIT, and only for the owner.
    pub fn set_virtual_wire(&self) {
        self.set(offset::SVR, self.get(offset::SVR) | SVR_ENABLE);
        self.set(offset::LVT_LINT0, Delivery::External.bits());
        self.set(offset::LVT_LINT1, Delivery::Nmi.bits());
    }

    /// INIT: resets everything but the ID and IA32_APIC_BASE. Only for the owner.
    pub(crate) fn init(&self) {
        // Before the rest: from now on nothing is accepted.
        self.set(offset::SVR, 0xff);
        self.drop_posted();
        self.errors.store(0, Ordering::Relaxed);
        for register in &self.registers {
            register.store(0, Ordering::Relaxed);
        }
        self.set(offset::VERSION, VERSION);
        self.set(offset::DFR, u32::MAX);
        self.set(offset::SVR, 0xff);
        for entry in 0..lvt::ENTRIES {
            self.set(lvt::offset_of(entry), MASKED);
        }
        self.show_identity();
    }

    /// Drops posted interrupts. Only for the owner.
    pub fn drop_posted(&self) {
        self.posted.0.acknowledge();
        self.posted.0.requests().take();
        self.levels.take();
    }

    /// Retargets notifications of the posted-interrupt descriptor to `vector` at the physical APIC
    /// `destination`. Returns whether one is outstanding: it may have gone to the old target, so the caller checks for
    /// posted interrupts.
    pub fn redirect(&self, vector: u8, destination: u32) -> bool {
        self.posted.0.redirect(vector, destination)
    }

    /// IA32_APIC_BASE.
    pub fn base(&self) -> u64 {
        self.base.load(Ordering::Relaxed)
    }

    /// Changes IA32_APIC_BASE, and the registers whose layout depends on the mode. Only for the owner.
    pub(crate) fn set_base(&self, base: u64) {
        let old = self.mode();
        self.base.store(base, Ordering::Relaxed);
        if self.mode() == old {
            return;
        }
        if self.mode() == Mode::X2Apic {
            // The ICR is a single 64-bit register ("x2APIC Register Address Space").
            self.set(ICR_UPPER, self.get(offset::ICR_HIGH));
            self.set(offset::ICR_HIGH, 0);
        }
        self.show_identity();
    }

    /// Writes the ID in the current mode's format, and the logical ID that x2APIC mode derives from it
    /// ("Logical Destination Mode in x2APIC Mode").
    pub(crate) fn show_identity(&self) {
        let id = self.id();
        if self.mode() == Mode::X2Apic {
            self.set(offset::ID, id);
            self.set(offset::LDR, id >> 4 << 16 | 1 << (id & 0xf));
        } else {
            self.set(offset::ID, id << 24);
        }
    }

    /// The APIC's ID.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// The APIC's mode.
    #[inline]
    pub fn mode(&self) -> Mode {
        let base = self.base();
        match (base & BASE_ENABLE != 0, base & BASE_X2 != 0) {
            (false, _) => Mode::Disabled,
            (true, false) => Mode::XApic,
            (true, true) => Mode::X2Apic,
        }
    }

    /// Whether its registers are at this guest-physical page.
    #[inline]
    pub fn is_at(&self, page: u64) -> bool {
        self.mode() == Mode::XApic && self.base() & 0x000f_ffff_ffff_f000 == page
    }

    /// Whether it is enabled by IA32_APIC_BASE and by the spurious-interrupt vector register.
    pub fn enabled(&self) -> bool {
        self.mode() != Mode::Disabled && self.get(offset::SVR) & SVR_ENABLE != 0
    }

    /// A register, by its offset in the page.
    #[inline]
    pub(crate) fn get(&self, offset: u32) -> u32 {
        self.registers[offset as usize >> 2 & 0x3ff].load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, offset: u32, value: u32) {
        self.registers[offset as usize >> 2 & 0x3ff].store(value, Ordering::Relaxed);
    }

    /// The ICR. The position of the destination depends on the mode.
    pub(crate) fn icr(&self) -> u64 {
        u64::from(self.get(self.icr_upper())) << 32 | u64::from(self.get(offset::ICR))
    }

    pub(crate) fn set_icr(&self, icr: u64) {
        self.set(self.icr_upper(), (icr >> 32) as u32);
        self.set(offset::ICR, icr as u32);
    }

    /// The ICR in x2APIC mode.
    #[inline(always)]
    pub(crate) fn set_x2apic_icr(&self, icr: u64) {
        self.set(ICR_UPPER, (icr >> 32) as u32);
        self.set(offset::ICR, icr as u32);
    }

    fn icr_upper(&self) -> u32 {
        if self.mode() == Mode::X2Apic { ICR_UPPER } else { offset::ICR_HIGH }
    }

    /// Whether a vector is in one of the 256-bit sets (ISR, TMR, IRR).
    pub(crate) fn contains(&self, set: u32, vector: u8) -> bool {
        self.get(word_of(set, vector)) >> (vector & 31) & 1 != 0
    }

    /// Adds a vector to a set. Only for the set's owner.
    pub(crate) fn insert(&self, set: u32, vector: u8) {
        let word = word_of(set, vector);
        self.set(word, self.get(word) | 1 << (vector & 31));
    }

    /// Returns the word of IRR that has `vector` at bit `vector % 32`, for an owner whose processor delivers interrupts
    /// and which reports the vector to it itself; `None` if the interrupt can't be delivered this way. The word of TMR
    /// is [`IRR_TO_TMR`](Self::IRR_TO_TMR) bytes before it: if the bit is set there, the interrupt must be posted
    /// instead.
    pub fn requests_word(&self, vector: u8) -> Option<&AtomicU32> {
        self.registers.get(word_of(offset::IRR, vector) as usize >> 2).filter(|_| vector >= 16)
    }

    /// See [`requests_word`](Self::requests_word).
    pub const IRR_TO_TMR: usize = (offset::IRR - offset::TMR) as usize;

    /// Removes a vector from a set. Only for the set's owner. Returns the remaining bits of its word.
    #[inline]
    pub(crate) fn remove(&self, set: u32, vector: u8) -> u32 {
        let word = word_of(set, vector);
        let left = self.get(word) & !(1 << (vector & 31));
        self.set(word, left);
        left
    }

    /// The highest vector of a set.
    #[inline]
    pub(crate) fn highest(&self, set: u32) -> Option<u8> {
        (0..8_u8).rev().find_map(|i| {
            let word = self.get(set + u32::from(i) * 16);
            (word != 0).then(|| i * 32 + 31 - word.leading_zeros() as u8)
        })
    }

    /// PPR.
    #[inline]
    pub fn processor_priority(&self) -> u8 {
        self.priority_over(self.highest(offset::ISR))
    }

    /// PPR with `serving` as the highest interrupt in service.
    #[inline]
    pub(crate) fn priority_over(&self, serving: Option<u8>) -> u8 {
        let (tpr, serving) = (self.get(offset::TPR) as u8, serving.unwrap_or(0));
        if tpr >> 4 >= serving >> 4 { tpr } else { serving & 0xf0 }
    }

    /// Whether a message from the APIC with ID `sender` addresses this one. For lowest-priority delivery, the
    /// caller then selects the addressed APIC with the lowest
    /// [`processor_priority`](Self::processor_priority).
    pub fn is_target(&self, destination: Destination, sender: u32) -> bool {
        let (mode, id) = (self.mode(), self.id());
        let wide = mode == Mode::X2Apic;
        if mode == Mode::Disabled {
            return false;
        }
        let own = self.get(offset::LDR);
        match destination {
            Destination::Own => id == sender,
            Destination::All => true,
            Destination::Others => id != sender,
            Destination::Physical(physical) => physical == if wide { id } else { id & 0xff },
            Destination::Logical { mask, wide: true } if wide => {
                mask >> 16 == 0xffff || mask >> 16 == own >> 16 && mask & own & 0xffff != 0
            }
            // From an xAPIC, MSI or I/O APIC: eight bits, interpreted by the format register, or as cluster 0
            // of an x2APIC.
            Destination::Logical { mask, wide: false } if wide => own >> 16 == 0 && mask & own & 0xff != 0,
            Destination::Logical { mask, .. } => {
                let own = own >> 24;
                match self.get(offset::DFR) >> 28 {
                    0xf => mask & own != 0,
                    0 => (mask >> 4 == own >> 4 || mask >> 4 == 0xf) && mask & own & 0xf != 0,
                    _ => false,
                }
            }
        }
    }

    /// The APIC's address for an I/O APIC's destinations; `None` while it is disabled by IA32_APIC_BASE.
    pub fn address(&self) -> Option<Address> {
        let (mode, id) = (self.mode(), self.id());
        let own = self.get(offset::LDR);
        let (id, logical) = match mode {
            Mode::Disabled => return None,
            // Cluster 0.
            Mode::X2Apic => (id, Logical::Flat(if own >> 16 == 0 { own as u8 } else { 0 })),
            Mode::XApic => {
                let logical = match self.get(offset::DFR) >> 28 {
                    0xf => Logical::Flat((own >> 24) as u8),
                    0 => Logical::Cluster { cluster: (own >> 28) as u8, members: (own >> 24) as u8 & 0xf },
                    _ => Logical::Flat(0),
                };
                (id & 0xff, logical)
            }
        };
        Some(Address { id, logical })
    }

    /// The message of the last ICR write; `None` if it sent none.
    pub fn last_sent(&self) -> Option<Message> {
        Message::from_icr(self.icr(), self.mode() == Mode::X2Apic)
    }

    /// Accepts a message, on any processor.
    pub fn receive(&self, message: Message) -> Received {
        match message.delivery {
            Delivery::Fixed | Delivery::LowestPriority => self.accept(message.vector, message.level),
            Delivery::Smi => Received::Smi,
            Delivery::Nmi => Received::Nmi,
            Delivery::Init => Received::Init,
            Delivery::Startup => Received::Startup(message.vector),
            Delivery::External => Received::External,
        }
    }

    /// Accepts a fixed, edge-triggered interrupt, on any processor.
    #[inline]
    pub fn interrupt(&self, vector: u8) -> Received {
        self.accept(vector, false)
    }

    /// Whether LINT0 is configured for more than interrupts: NMI or INIT.
    pub fn has_signal(&self) -> bool {
        let delivery = self.lvt_delivery(lvt::LINT0);
        self.lvt_enabled(lvt::LINT0) && matches!(delivery, Some(Delivery::Nmi | Delivery::Init))
    }

    /// Signals an edge on LINT0 or LINT1 (`pin` 0 or 1), on any processor.
    pub fn pulse(&self, pin: usize) -> Received {
        self.local(if pin == 0 { lvt::LINT0 } else { lvt::LINT1 })
    }

    /// Handles an interrupt from a local vector table source.
    pub(crate) fn local(&self, source: usize) -> Received {
        if !self.lvt_enabled(source) || self.mode() == Mode::Disabled {
            return Received::Nothing;
        }
        match self.lvt_delivery(source) {
            Some(Delivery::Fixed) => self.accept(self.lvt_vector(source), false),
            Some(Delivery::Nmi) => Received::Nmi,
            Some(Delivery::Smi) => Received::Smi,
            Some(Delivery::External) => Received::External,
            Some(Delivery::Init) => Received::Init,
            _ => Received::Nothing,
        }
    }

    /// Accepts a fixed interrupt, local or from a message.
    pub(crate) fn accept(&self, vector: u8, level: bool) -> Received {
        if !self.enabled() {
            return Received::Nothing;
        }
        if vector < 16 {
            return self.fail(error::RECEIVE_ILLEGAL);
        }
        self.post(vector, level)
    }

    /// Writes IA32_APIC_BASE without an effect on registers. Only for the owner.
    pub(crate) fn restore_base(&self, base: u64) {
        self.base.store(base, Ordering::Relaxed);
    }

    /// The errors that ESR does not show yet.
    pub(crate) fn errors(&self) -> u32 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Restores them.
    pub(crate) fn set_errors(&self, errors: u32) {
        self.errors.store(errors, Ordering::Relaxed);
    }

    /// Records an error, and raises the error interrupt if enabled.
    pub(crate) fn fail(&self, error: u32) -> Received {
        self.errors.fetch_or(error, Ordering::Relaxed);
        let entry = self.get(offset::LVT_ERROR);
        let vector = entry as u8;
        // If the error vector itself is illegal, no interrupt can be raised.
        if entry & MASKED == 0 && vector >= 16 && self.enabled() { self.post(vector, false) } else { Received::Nothing }
    }

    /// The errors since the last call.
    pub(crate) fn take_errors(&self) -> u32 {
        self.errors.swap(0, Ordering::Relaxed)
    }

    fn post(&self, vector: u8, level: bool) -> Received {
        if level {
            self.levels.insert(vector);
            // ON alone would be lost to a late notification of an earlier edge, which leaves `levels` alone.
            self.posted.0.notify_kept();
            return Received::Level;
        }
        if self.contains(offset::TMR, vector) {
            // TMR is maintained by the accepting processor; hardware only reads it.
            self.registers[word_of(offset::TMR, vector) as usize >> 2].fetch_and(!(1 << (vector & 31)), Ordering::Relaxed);
        }
        self.posted.0.requests().insert(vector);
        if self.posted.0.notify() { Received::Interrupt } else { Received::Nothing }
    }

    /// Requests an edge-triggered interrupt without a notification: it is delivered with the next one, whatever that is for.
    pub fn preset(&self, vector: u8) {
        self.posted.0.requests().insert(vector);
    }

    /// Whether the interrupt of a vector is requested in the descriptor, by [`preset`](Self::preset) or a sender.
    pub fn is_preset(&self, vector: u8) -> bool {
        self.posted.0.requests().contains(vector)
    }

    /// Withdraws such a request.
    pub fn withdraw(&self, vector: u8) {
        self.posted.0.requests().remove(vector);
    }

    /// Whether posted interrupts are not in IRR yet.
    #[inline(always)]
    pub fn has_posted(&self) -> bool {
        self.posted.0.is_outstanding()
    }

    /// Takes the only posted interrupt, if it is edge-triggered. `None`, without effect, if there is none, or others are posted. Only for the
    /// owner.
    #[inline(always)]
    pub(crate) fn take_only(&self) -> Option<u8> {
        self.posted.0.take_only()
    }

    /// Merges posted interrupts into IRR. Returns all of them, and the level-triggered ones. Only for the
    /// owner.
    pub(crate) fn merge(&self) -> (crate::Vectors, crate::Vectors) {
        // In this order: a post after the acknowledge sets a new notification.
        self.posted.0.acknowledge();
        let mut requests = self.posted.0.requests().take();
        let levels = self.levels.take();
        requests.extend(levels);
        for i in 0..8 {
            let (new, level) = (requests.word(i), levels.word(i));
            if new != 0 {
                let word = offset::IRR + 16 * i;
                self.set(word, self.get(word) | new);
            }
            if level != 0 {
                self.registers[(offset::TMR + 16 * i) as usize >> 2].fetch_or(level, Ordering::Relaxed);
            }
        }
        (requests, levels)
    }
}

/// In x2APIC mode, the upper half of the ICR.
pub(crate) const ICR_UPPER: u32 = offset::ICR + 4;

/// Offset of the word that holds a vector in a 256-bit set.
const fn word_of(set: u32, vector: u8) -> u32 {
    set + (vector as u32 >> 5) * 16
}
