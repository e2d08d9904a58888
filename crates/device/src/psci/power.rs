//! Power states of a VM's vCPUs.

use super::{Entry, Error};
use core::ops::Range;

use stile_board::{CLUSTER, vcpu_of_mpidr};

/// A vCPU's power state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// Off, until it is turned on.
    Off,
    /// Turned on, but not yet started by a physical CPU.
    OnPending(Entry),
    /// Started: it runs, or waits for an interrupt or for a physical CPU.
    On,
}

/// The power states of one VM's vCPUs. vCPU *n* has the MPIDR affinity [`stile_board::mpidr`]`(n)`.
///
/// Calls for one VM must not overlap: the table is kept behind the VM's lock.
#[derive(Clone, Debug)]
pub struct PowerTable {
    states: [PowerState; Self::MAX_VCPUS],
    /// At most [`Self::MAX_VCPUS`]: [`Self::new`] clamps it, and nothing changes it.
    vcpus: usize,
}

impl PowerTable {
    /// Maximum number of vCPUs of a VM.
    pub const MAX_VCPUS: usize = stile_board::MAX_VCPUS;

    /// Returns the state of a VM with `vcpus` vCPUs before its first instruction: vCPU 0 is on. A
    /// number above [`PowerTable::MAX_VCPUS`] is clamped.
    pub const fn new(vcpus: usize) -> Self {
        let mut states = [PowerState::Off; Self::MAX_VCPUS];
        states[0] = PowerState::On;
        Self { states, vcpus: if vcpus < Self::MAX_VCPUS { vcpus } else { Self::MAX_VCPUS } }
    }

    /// Restores the state of [`PowerTable::new`], for a reset of the VM.
    pub fn reset(&mut self) {
        *self = Self::new(self.vcpus);
    }

    /// The vCPU's power state; [`PowerState::Off`] for one that the VM doesn't have.
    #[inline]
    pub fn state(&self, vcpu: usize) -> PowerState {
        self.present().get(vcpu).copied().unwrap_or(PowerState::Off)
    }

    /// `CPU_ON`: turns on the vCPU with MPIDR affinity `target`, and returns its number. It is
    /// [`PowerState::OnPending`] until [`PowerTable::start`]. `ram` holds the guest-physical
    /// addresses that a vCPU can run from.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameters`] if no vCPU has this MPIDR, [`Error::InvalidAddress`] if the
    /// entry point is outside `ram` or not aligned for an instruction, [`Error::AlreadyOn`],
    /// [`Error::OnPending`]. The table is unchanged then.
    pub fn cpu_on(&mut self, target: u64, entry: Entry, ram: &Range<u64>) -> Result<usize, Error> {
        let vcpu = vcpu_of_mpidr(target, self.vcpus).ok_or(Error::InvalidParameters)?;
        let state = self.present_mut().get_mut(vcpu).ok_or(Error::InvalidParameters)?;
        if !ram.contains(&entry.address) || entry.address & 3 != 0 {
            return Err(Error::InvalidAddress);
        }
        match state {
            PowerState::On => Err(Error::AlreadyOn),
            PowerState::OnPending(_) => Err(Error::OnPending),
            PowerState::Off => {
                *state = PowerState::OnPending(entry);
                Ok(vcpu)
            }
        }
    }

    /// Marks a vCPU as started by the calling physical CPU, and returns its entry state. `None`,
    /// without a change, unless the vCPU is [`PowerState::OnPending`].
    pub fn start(&mut self, vcpu: usize) -> Option<Entry> {
        let state = self.present_mut().get_mut(vcpu)?;
        let PowerState::OnPending(entry) = *state else {
            return None;
        };
        *state = PowerState::On;
        Some(entry)
    }

    /// `CPU_OFF` by vCPU `vcpu`. Returns how many of the VM's vCPUs are on or pending. At 0 no vCPU
    /// is left that could turn another on.
    pub fn cpu_off(&mut self, vcpu: usize) -> usize {
        if let Some(state) = self.present_mut().get_mut(vcpu) {
            *state = PowerState::Off;
        }
        self.present().iter().filter(|&&state| state != PowerState::Off).count()
    }

    /// Sets whether a vCPU is on, for a VM that does not run.
    pub fn set_on(&mut self, vcpu: usize, on: bool) {
        if let Some(state) = self.present_mut().get_mut(vcpu) {
            *state = if on { PowerState::On } else { PowerState::Off };
        }
    }

    /// Whether a vCPU that has called `CPU_OFF` is still off. Its state in other components, such as the distributor, is
    /// removed only in this case and under the table's lock: a `CPU_ON` may have intervened, whose caller updates those components
    /// after releasing the lock and before the vCPU can run.
    #[inline]
    pub fn is_off(&self, vcpu: usize) -> bool {
        self.state(vcpu) == PowerState::Off
    }

    /// `AFFINITY_INFO`: returns `x0` for the affinity instance that the fields of `target` from `level`
    /// (0 to 3) upwards select; lower fields are ignored. 0 if any vCPU in it is on, otherwise 2 if
    /// any is pending, otherwise 1.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameters`] if no vCPU is in that affinity instance, or `level` is above 3.
    pub fn affinity_info(&self, target: u64, level: u32) -> Result<u64, Error> {
        const ON: u64 = 0;
        const OFF: u64 = 1;
        const ON_PENDING: u64 = 2;

        let instance = match level {
            0 => vcpu_of_mpidr(target, self.vcpus).and_then(|vcpu| self.present().get(vcpu)).map(core::slice::from_ref),
            1 if target >> 16 == 0 => self.present().chunks(CLUSTER).nth((target >> 8) as usize),
            // Above level 1, all vCPUs are in instance 0 of each level.
            2 | 3 if target >> (8 * level) == 0 => Some(self.present()),
            _ => None,
        }
        .ok_or(Error::InvalidParameters)?;

        Ok(if instance.contains(&PowerState::On) {
            ON
        } else if instance.iter().any(|&state| state != PowerState::Off) {
            ON_PENDING
        } else {
            OFF
        })
    }

    #[inline]
    fn present(&self) -> &[PowerState] {
        &self.states[..self.vcpus]
    }

    fn present_mut(&mut self) -> &mut [PowerState] {
        &mut self.states[..self.vcpus]
    }
}
