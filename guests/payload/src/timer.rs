//! The generic timer's EL1 timers; at EL2 with VHE, the same names access EL2's.

use crate::{board, machine, mrs, msr, wait};

/// One of the two timers accessible at EL1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// CNTV_*.
    Virtual,
    /// CNTP_*.
    Physical,
}

/// CTL.ENABLE.
pub const ENABLE: u64 = 1;
/// CTL.IMASK.
pub const IMASK: u64 = 1 << 1;
/// CTL.ISTATUS.
pub const ISTATUS: u64 = 1 << 2;

impl Timer {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Virtual, Self::Physical];

    /// Its interrupt.
    pub fn intid(self) -> u32 {
        match (self, machine::at_el2()) {
            (Self::Virtual, false) => board::VIRTUAL_TIMER_INTID,
            (Self::Physical, false) => board::PHYSICAL_TIMER_INTID,
            (Self::Virtual, true) => board::EL2_VIRTUAL_TIMER_INTID,
            (Self::Physical, true) => board::EL2_PHYSICAL_TIMER_INTID,
        }
    }

    /// The timer of an interrupt.
    pub fn of(intid: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|timer| timer.intid() == intid)
    }

    /// Reads its counter.
    pub fn count(self) -> u64 {
        crate::instruction!("isb");
        match self {
            Self::Virtual => mrs!("CNTVCT_EL0"),
            Self::Physical => mrs!("CNTPCT_EL0"),
        }
    }

    /// Reads CTL.
    pub fn control(self) -> u64 {
        crate::instruction!("isb");
        match self {
            Self::Virtual => mrs!("CNTV_CTL_EL0"),
            Self::Physical => mrs!("CNTP_CTL_EL0"),
        }
    }

    /// Writes CTL.
    pub fn set_control(self, value: u64) {
        match self {
            Self::Virtual => msr!("CNTV_CTL_EL0", value),
            Self::Physical => msr!("CNTP_CTL_EL0", value),
        }
    }

    /// Reads CVAL.
    pub fn deadline(self) -> u64 {
        match self {
            Self::Virtual => mrs!("CNTV_CVAL_EL0"),
            Self::Physical => mrs!("CNTP_CVAL_EL0"),
        }
    }

    /// Writes CVAL.
    pub fn set_deadline(self, value: u64) {
        match self {
            Self::Virtual => msr!("CNTV_CVAL_EL0", value),
            Self::Physical => msr!("CNTP_CVAL_EL0", value),
        }
    }

    /// Reads TVAL.
    pub fn left(self) -> i32 {
        crate::instruction!("isb");
        (match self {
            Self::Virtual => mrs!("CNTV_TVAL_EL0"),
            Self::Physical => mrs!("CNTP_TVAL_EL0"),
        }) as i32
    }

    /// Writes TVAL.
    pub fn set_left(self, ticks: i32) {
        match self {
            Self::Virtual => msr!("CNTV_TVAL_EL0", ticks as u32 as u64),
            Self::Physical => msr!("CNTP_TVAL_EL0", ticks as u32 as u64),
        }
    }

    /// Arms the timer for a number of microseconds from now.
    pub fn start(self, microseconds: u64) {
        self.set_deadline(self.count() + wait::ticks(microseconds));
        self.set_control(ENABLE);
    }

    /// Disables the timer.
    pub fn stop(self) {
        self.set_control(0);
    }
}
