//! The physical CPU's timer in TSC-deadline mode, which the hypervisor shares with the loaded vCPU, and the passthrough of
//! IA32_TSC_DEADLINE to a vCPU that has the timer to itself ("TSC-Deadline Mode").
//!
//! The physical local vector is always the hypervisor's own, so that an expiry exits and never reaches the guest directly. For
//! a guest that asks for it ([`Demand::notifies`]) that vector is the notification of posted interrupts: an expiry does not
//! exit, and delivers the interrupt that the guest has set in its descriptor before ([`crate::Pages::preset`]).

use crate::{EoiBit, LocalApic};

/// Lower vectors are illegal.
const LEAST_VECTOR: u8 = 16;

/// The hardware of the timer on this CPU.
pub trait Hardware {
    /// The time-stamp counter.
    fn now(&mut self) -> u64;
    /// Reads IA32_TSC_DEADLINE.
    fn deadline(&mut self) -> u64;
    /// Writes IA32_TSC_DEADLINE; 0 disarms the timer.
    fn set_deadline(&mut self, deadline: u64);
    /// Whether the timer's interrupt is requested and not taken yet: its vector's bit in the physical IRR.
    fn is_pending(&mut self) -> bool;
    /// Chooses whether the loaded vCPU reads and writes IA32_TSC_DEADLINE without an exit.
    fn pass_through(&mut self, on: bool);
    /// Chooses the interrupt of an expiry: the notification of posted interrupts, or the hypervisor's own. The timer is not armed.
    fn set_notifies(&mut self, on: bool);
    /// Whether a notification is requested and not taken yet, as [`is_pending`](Self::is_pending).
    fn is_notified(&mut self) -> bool;
}

/// The programmer of the timer for the loaded vCPU. In each case the guest's IA32_TSC_DEADLINE has one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The hypervisor, to the earliest deadline of all; the guest's register is in [`LocalApic`].
    #[default]
    Merged,
    /// The hypervisor, with the guest's unmodified value: no other deadline is set. The register is in [`LocalApic`].
    Relayed,
    /// The guest itself: the register is the physical one.
    PassedThrough,
}

/// Demands of the loaded vCPU on the timer.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Its configuration has passthrough.
    pub passthrough: bool,
    /// While it has the timer, expiries are notifications: it has its timer's vector in its descriptor whenever the timer is armed, and
    /// tolerates interrupts of the timer before the deadline, which other notifications deliver.
    pub notifies: bool,
    /// Its counter is the physical one: no offset, no scaling.
    pub same_tsc: bool,
    /// Time at which another device of the VM must be sampled.
    pub watch: Option<u64>,
}

impl Demand {
    /// Whether nothing but IA32_TSC_DEADLINE needs the timer, in the units of the physical counter.
    fn is_simple(&self) -> bool {
        self.same_tsc && self.watch.is_none()
    }
}

/// The state of one CPU's timer. All zero is valid: disarmed.
#[derive(Debug, Default)]
pub struct HostTimer {
    /// The hypervisor's own deadline: the end of a slice, a sleeper, an alarm.
    own: Option<u64>,
    /// The loaded vCPU's, while the form is [`Form::Merged`].
    guest: Option<u64>,
    form: Form,
    /// The form is [`Form::PassedThrough`], and expiries are notifications.
    notifies: bool,
}

impl HostTimer {
    /// Returns the present programmer of the timer.
    #[inline(always)]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Whether expiries are notifications of posted interrupts.
    pub fn notifies(&self) -> bool {
        self.notifies
    }

    /// Sets the hypervisor's own deadline, or none. `loaded`: the vCPU on this CPU. Returns whether an interrupt was posted for it.
    pub fn set_own<B: EoiBit>(
        &mut self,
        hardware: &mut impl Hardware,
        own: Option<u64>,
        loaded: Option<(&mut LocalApic<'_, B>, Demand)>,
    ) -> bool {
        self.own = own;
        match loaded {
            Some((apic, demand)) => self.update(hardware, apic, demand),
            None => {
                self.program(hardware);
                false
            }
        }
    }

    /// Applies a changed demand of the loaded vCPU: it was loaded, or its local vector, deadline, counter or devices changed. Passthrough
    /// begins and ends here. Before a change of [`Demand::notifies`], [`reclaim`](Self::reclaim) is called. Returns whether an interrupt
    /// was posted.
    pub fn update<B: EoiBit>(&mut self, hardware: &mut impl Hardware, apic: &mut LocalApic<'_, B>, demand: Demand) -> bool {
        let simple = self.own.is_none() && demand.is_simple();
        if self.form == Form::PassedThrough && simple {
            // A change of the local vector has ended it before (`Effect::Reclaim`).
            return false;
        }
        let posted = self.reclaim(hardware, apic);
        self.guest = apic.timer_deadline().into_iter().chain(demand.watch).min();
        if simple && apic.takes_deadline() {
            if !demand.passthrough {
                self.form = Form::Relayed;
            } else if self.pass_through(hardware, apic, demand.notifies) {
                return posted;
            }
        }
        self.program(hardware);
        posted
    }

    /// Gives the timer to the guest. False if an interrupt of it is still pending, which would pass for the guest's: once that was taken,
    /// [`update`](Self::update) is called again.
    fn pass_through<B: EoiBit>(&mut self, hardware: &mut impl Hardware, apic: &mut LocalApic<'_, B>, notifies: bool) -> bool {
        // A timer that is not armed requests no further interrupt.
        hardware.set_deadline(0);
        if hardware.is_pending() {
            return false;
        }
        hardware.pass_through(true);
        self.form = Form::PassedThrough;
        self.guest = None;
        let deadline = apic.lend_deadline();
        let vector = apic.timer_vector();
        if notifies && vector >= LEAST_VECTOR {
            self.notifies = true;
            hardware.set_notifies(true);
            if deadline != 0 {
                // The guest may have armed it before it asked for notifications.
                apic.pages().preset(vector);
            }
        }
        hardware.set_deadline(deadline);
        true
    }

    /// Takes the guest's deadline back into `apic`: before its local vector, mode or counter changes, or it leaves the
    /// CPU. Returns whether an interrupt was posted: an expiry that the CPU has not taken yet. The caller sees to it
    /// that the guest gets it.
    pub fn reclaim<B: EoiBit>(&mut self, hardware: &mut impl Hardware, apic: &mut LocalApic<'_, B>) -> bool {
        let form = core::mem::take(&mut self.form);
        if form != Form::PassedThrough {
            return false;
        }
        let deadline = hardware.deadline();
        hardware.set_deadline(0);
        hardware.pass_through(false);
        let expired = deadline != 0 && deadline <= hardware.now();
        let fired = if core::mem::take(&mut self.notifies) {
            hardware.set_notifies(false);
            // An expiry clears the deadline, and a notification that the CPU has not taken yet may be another's. If the vector is not in the
            // descriptor, the interrupt was delivered, and the guest has compared the counter since, or will.
            apic.pages().is_preset(apic.timer_vector()) && (expired || deadline == 0 && hardware.is_notified())
        } else {
            // An expiry clears the deadline and requests the interrupt. The guest may have armed it again before the CPU took that.
            expired || hardware.is_pending()
        };
        apic.return_deadline(if expired { 0 } else { deadline }, fired);
        fired
    }

    /// The vCPU leaves this CPU. Returns whether an interrupt was posted.
    pub fn release<B: EoiBit>(&mut self, hardware: &mut impl Hardware, apic: &mut LocalApic<'_, B>) -> bool {
        let posted = self.reclaim(hardware, apic);
        self.guest = None;
        self.program(hardware);
        posted
    }

    /// Whether the hypervisor's own deadline has expired, and the loaded vCPU's. Both false while the timer is passed
    /// through: its interrupts are then the guest's.
    pub fn due<B: EoiBit>(&self, now: u64, apic: Option<&LocalApic<'_, B>>) -> (bool, bool) {
        let guest = match self.form {
            Form::Relayed => apic.and_then(LocalApic::timer_deadline),
            Form::Merged => self.guest,
            Form::PassedThrough => None,
        };
        let has_come = |deadline: Option<u64>| deadline.is_some_and(|at| at <= now);
        (has_come(self.own), has_come(guest))
    }

    fn program(&self, hardware: &mut impl Hardware) {
        // Zero would disarm it.
        let next = self.own.into_iter().chain(self.guest).min().map_or(0, |at| at.max(1));
        hardware.set_deadline(next);
    }
}
