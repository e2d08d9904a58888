//! The tables' format.

use super::policy::Policy;
use crate::encoding::SysReg;

/// An ID register.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Its name.
    pub name: &'static str,
    /// Its encoding.
    pub reg: SysReg,
    /// It describes AArch32 state.
    pub aarch32: bool,
    /// Its fields, from the highest bits down. Each has four bits.
    pub fields: &'static [Field],
}

/// A field of an ID register.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the manual.
    pub name: &'static str,
    /// Its lowest bit.
    pub lsb: u32,
    /// The guest's view of it.
    pub treatment: Treatment,
    /// Reason for the treatment.
    pub reason: &'static str,
}

/// The guest's view of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The processor's value: the field is a number or a description, not a feature's version.
    Keep,
    /// The processor's value, limited to this maximum.
    UpTo(u8),
    /// The processor's value, limited to this maximum, of a signed field in which 0xf means absence.
    SignedUpTo(u8),
    /// [`Treatment::UpTo`] if the condition holds, otherwise 0.
    UpToIf(Given, u8),
    /// Zero.
    Zero,
    /// This value.
    Fixed(u8),
    /// This value if the condition holds, otherwise 0.
    FixedIf(Given, u8),
    /// The processor's range of physical addresses, limited to [`Policy::pa_bits`].
    PaRange,
}

/// A condition on the [`Policy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// [`Policy::sve`].
    Sve,
    /// [`Policy::hcrx`].
    Hcrx,
    /// [`Policy::nested`].
    Nested,
    /// [`Policy::nested`], and not [`Policy::e2h0`].
    VheOnly,
    /// Not [`Policy::nested`].
    Plain,
}

const FIELD_WIDTH: u32 = 4;
const FIELD_MASK: u64 = (1 << FIELD_WIDTH) - 1;

impl Register {
    /// Its [`SysReg::id_index`].
    pub const fn index(&self) -> usize {
        match self.reg.id_index() {
            Some(index) => index,
            // Excluded by the check below.
            None => 0,
        }
    }

    /// Returns the guest's value for the processor's value `host`.
    pub(super) fn guest_value(&self, host: u64, policy: &Policy) -> u64 {
        self.fields.iter().fold(0, |value, field| {
            let of_host = (host >> field.lsb & FIELD_MASK) as u8;
            let seen = field.treatment.apply(of_host, policy);
            value | u64::from(seen) << field.lsb
        })
    }
}

impl Treatment {
    fn apply(self, host: u8, policy: &Policy) -> u8 {
        match self {
            Self::Keep => host,
            Self::UpTo(most) => host.min(most),
            Self::SignedUpTo(most) => signed(host).min(signed(most)) as u8 & FIELD_MASK as u8,
            Self::UpToIf(given, most) if given.holds(policy) => host.min(most),
            Self::Fixed(value) => value,
            Self::FixedIf(given, value) if given.holds(policy) => value,
            Self::PaRange => host.min(pa_range(policy.pa_bits)),
            Self::Zero | Self::UpToIf(..) | Self::FixedIf(..) => 0,
        }
    }
}

impl Given {
    const fn holds(self, policy: &Policy) -> bool {
        match self {
            Self::Sve => policy.sve,
            Self::Hcrx => policy.hcrx,
            Self::Nested => policy.nested,
            Self::VheOnly => policy.nested && !policy.e2h0,
            Self::Plain => !policy.nested,
        }
    }
}

/// Interprets a field as a signed number of four bits.
const fn signed(field: u8) -> i8 {
    ((field << FIELD_WIDTH) as i8) >> FIELD_WIDTH
}

/// Returns the greatest value of `ID_AA64MMFR0_EL1.PARange` for at most `pa_bits` bits.
const fn pa_range(pa_bits: u8) -> u8 {
    match pa_bits {
        0..=35 => 0,
        36..=39 => 1,
        40..=41 => 2,
        42..=43 => 3,
        44..=47 => 4,
        48..=51 => 5,
        52..=55 => 6,
        56.. => 7,
    }
}

/// Fails the build unless fields are ordered from high to low without overlap, and every value fits its field.
pub(super) const fn check_fields(fields: &[Field]) {
    let mut end = u64::BITS;
    let mut at = 0;
    while at < fields.len() {
        let field = &fields[at];
        assert!(field.lsb.is_multiple_of(FIELD_WIDTH), "misaligned field");
        assert!(field.lsb + FIELD_WIDTH <= end, "double or misplaced field");
        let value = match field.treatment {
            Treatment::UpTo(value) | Treatment::UpToIf(_, value) => value,
            Treatment::Fixed(value) | Treatment::FixedIf(_, value) => value,
            Treatment::SignedUpTo(value) => {
                assert!(signed(value) >= 0, "a limit below absence");
                value
            }
            Treatment::Keep | Treatment::Zero | Treatment::PaRange => 0,
        };
        assert!(value as u64 <= FIELD_MASK, "value too great for its field");
        assert!(!field.reason.is_empty(), "no reason given");
        end = field.lsb;
        at += 1;
    }
}

/// Rows of [`Field`]: lowest bit, name, treatment, reason.
macro_rules! fields {
    ($($lsb:literal $name:ident $treatment:expr, $reason:expr;)*) => {
        &[$($crate::id::table::Field {
            name: stringify!($name),
            lsb: $lsb,
            treatment: $treatment,
            reason: $reason,
        }),*]
    };
}
pub(super) use fields;
