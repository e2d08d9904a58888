//! A sample of the live ledger in the format of the control socket, and the difference of two samples.

use serde::{Deserialize, Serialize};

use crate::budget::Usage;

/// The ledgers of all vCPUs of a machine. Each vCPU's ledger is a snapshot; those of different vCPUs are some milliseconds apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Ticks per second.
    pub counter_hz: u64,
    /// The VMs, in the order of the configuration.
    pub vms: Vec<VmSample>,
    /// Recent usage of budgets, by VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Usage>,
}

/// A VM's ledgers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSample {
    /// Its name.
    pub name: String,
    /// Its vCPUs, by number.
    pub vcpus: Vec<VcpuSample>,
}

/// A vCPU's ledger. Times are ticks, since the machine was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuSample {
    /// Time of the sample.
    pub now: u64,
    /// Exits that the vector counted.
    pub exits_taken: u64,
    /// Time on a CPU, in the guest or in Stile.
    pub ran: u64,
    /// Time ready, but without a CPU.
    pub waited: u64,
    /// The rows that have exits.
    pub rows: Vec<RowSample>,
}

/// A row of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSample {
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
    /// Exits.
    pub count: u64,
    /// Their ticks.
    pub ticks: u64,
    /// The fewest ticks of an exit.
    pub min: u64,
    /// The most ticks of an exit.
    pub max: u64,
}

impl VcpuSample {
    /// Exits in the rows. Sums saturate: a garbled line may carry any numbers.
    pub fn exits_counted(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.count))
    }

    /// Exits that are in no row: 0 unless Stile has a bug.
    pub fn unaccounted(&self) -> i64 {
        self.exits_taken.wrapping_sub(self.exits_counted()) as i64
    }

    /// Ticks in Stile, for exits.
    pub fn in_stile(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.ticks))
    }

    /// Difference to an earlier sample. Rows without an exit are left out; `min` and `max` stay those since the start.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |row: &RowSample| earlier.rows.iter().find(|other| other.reason == row.reason && other.sub == row.sub);
        let rows = self.rows.iter().map(|row| {
            let (count, ticks) = before(row).map_or((0, 0), |before| (before.count, before.ticks));
            RowSample { count: row.count.saturating_sub(count), ticks: row.ticks.saturating_sub(ticks), ..row.clone() }
        });
        Self {
            now: self.now.saturating_sub(earlier.now),
            exits_taken: self.exits_taken.saturating_sub(earlier.exits_taken),
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
            rows: rows.filter(|row| row.count != 0).collect(),
        }
    }

    /// Adds the ledger of another vCPU.
    pub fn add(&mut self, other: &Self) {
        self.now = self.now.max(other.now);
        self.exits_taken = self.exits_taken.saturating_add(other.exits_taken);
        self.ran = self.ran.saturating_add(other.ran);
        self.waited = self.waited.saturating_add(other.waited);
        for row in &other.rows {
            match self.rows.iter_mut().find(|own| own.reason == row.reason && own.sub == row.sub) {
                Some(own) => {
                    own.count = own.count.saturating_add(row.count);
                    own.ticks = own.ticks.saturating_add(row.ticks);
                    own.min = own.min.min(row.min);
                    own.max = own.max.max(row.max);
                }
                None => self.rows.push(row.clone()),
            }
        }
    }
}

impl VmSample {
    /// Returns the sum over the VM's vCPUs.
    pub fn sum(&self) -> VcpuSample {
        self.vcpus.iter().fold(VcpuSample::default(), |mut sum, vcpu| {
            sum.add(vcpu);
            sum
        })
    }

    /// Difference to an earlier sample, by vCPU.
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let none = VcpuSample::default();
        let before = |index: usize| earlier.and_then(|earlier| earlier.vcpus.get(index)).unwrap_or(&none);
        Self { name: self.name.clone(), vcpus: self.vcpus.iter().enumerate().map(|(index, vcpu)| vcpu.since(before(index))).collect() }
    }
}

impl Sample {
    /// Difference to an earlier sample of the same machine.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |name: &str| earlier.vms.iter().find(|vm| vm.name == name);
        let vms = self.vms.iter().map(|vm| vm.since(before(&vm.name))).collect();
        Self { vms, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reason: &str, count: u64, ticks: u64) -> RowSample {
        RowSample { reason: reason.into(), sub: "other".into(), count, ticks, min: 1, max: ticks }
    }

    #[test]
    fn the_difference_of_two_samples_has_what_happened_between_them() {
        let first = VcpuSample { now: 100, exits_taken: 5, ran: 60, waited: 10, rows: vec![row("IRQ", 3, 30), row("HVC", 2, 5)] };
        let rows = vec![row("IRQ", 7, 50), row("HVC", 2, 5), row("WFX", 1, 2)];
        let second = VcpuSample { now: 300, exits_taken: 10, ran: 160, waited: 10, rows };
        let between = second.since(&first);
        assert_eq!((between.now, between.exits_taken, between.ran, between.waited), (200, 5, 100, 0));
        let counts: Vec<_> = between.rows.iter().map(|row| (row.reason.as_str(), row.count, row.ticks)).collect();
        assert_eq!(counts, [("IRQ", 4, 20), ("WFX", 1, 2)]);
        assert_eq!((between.unaccounted(), between.in_stile()), (0, 22));
        let lost = VcpuSample { exits_taken: 11, ..second };
        assert_eq!(lost.unaccounted(), 1);
    }

    #[test]
    fn vcpus_are_added_up() {
        let vcpu = |count| VcpuSample { now: count, exits_taken: count, ran: 1, waited: 2, rows: vec![row("IRQ", count, 10 * count)] };
        let sum = VmSample { name: "a".into(), vcpus: vec![vcpu(2), vcpu(3)] }.sum();
        assert_eq!((sum.now, sum.exits_taken, sum.ran, sum.waited), (3, 5, 2, 4));
        assert_eq!(sum.rows, [RowSample { max: 30, ..row("IRQ", 5, 50) }]);
    }
}
