//! The figures that `stile top` derives from two samples: shares of time and rates.

use serde::Serialize;

use crate::budget::Usage;
use crate::control::sample::{RowSample, Sample, VcpuSample};

/// A VM, a vCPU or a reason, in the time between two samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Name of the VM.
    pub vm: String,
    /// The vCPU; `None` for the sum of the VM's vCPUs.
    pub vcpu: Option<usize>,
    /// Percentage of a CPU in the guest; of all vCPUs together it may be more than 100.
    pub guest_percent: f64,
    /// Percentage of a CPU in Stile, for exits.
    pub stile_percent: f64,
    /// Percentage of the time ready without a CPU.
    pub waiting_percent: f64,
    /// Exits per second.
    pub exits_per_second: f64,
    /// Exits since the machine was started.
    pub exits_taken: u64,
    /// Exits without a row: 0 unless Stile has a bug.
    pub unaccounted: i64,
    /// The rows, most time first.
    pub rows: Vec<RowFigures>,
    /// Limits of the VM's budget that it exceeds.
    pub over_budget: Vec<Usage>,
}

/// A reason and sub-reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowFigures {
    /// The reason.
    pub reason: String,
    /// The sub-reason.
    pub sub: String,
    /// Exits per second.
    pub per_second: f64,
    /// Percentage of a CPU.
    pub time_percent: f64,
    /// Average time of an exit in the interval, in microseconds.
    pub average_us: f64,
    /// Exits since the machine was started.
    pub count: u64,
    /// Their ticks.
    pub ticks: u64,
}

/// The order of VMs and vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// In the order of the configuration.
    Name,
    /// Most exits first.
    Exits,
    /// Most time in Stile first.
    #[default]
    Time,
    /// Most time in the guest first.
    Guest,
}

impl Order {
    /// The next one, for the key that changes it.
    pub const fn next(self) -> Self {
        match self {
            Self::Name => Self::Exits,
            Self::Exits => Self::Time,
            Self::Time => Self::Guest,
            Self::Guest => Self::Name,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Exits => "exits",
            Self::Time => "time",
            Self::Guest => "guest",
        }
    }
}

/// The figures of all VMs, or of all vCPUs, between two samples. `filter`: only those with this text in their names; of
/// others only the rows with the text in the name of their reason, if there are any.
pub fn figures(earlier: &Sample, later: &Sample, by_vcpu: bool, order: Order, filter: &str) -> Vec<Figures> {
    let between = later.since(earlier);
    let hz = later.counter_hz.max(1) as f64;
    let mut all = Vec::new();
    for (vm, now) in between.vms.iter().zip(&later.vms) {
        if by_vcpu {
            let vcpus = vm.vcpus.iter().zip(&now.vcpus).enumerate();
            all.extend(vcpus.map(|(vcpu, (between, total))| one(&vm.name, Some(vcpu), between, total, hz)));
        } else if !vm.vcpus.is_empty() {
            all.push(one(&vm.name, None, &vm.sum(), &now.sum(), hz));
        }
    }
    for figures in &mut all {
        let exceeded = later.budgets.iter().filter(|usage| usage.vm == figures.vm && usage.exceeded);
        figures.over_budget = exceeded.cloned().collect();
    }
    all.retain_mut(|figures| choose(figures, filter));
    let key = |figures: &Figures| match order {
        Order::Name => 0.0,
        Order::Exits => figures.exits_per_second,
        Order::Time => figures.stile_percent,
        Order::Guest => figures.guest_percent,
    };
    all.sort_by(|a, b| key(b).total_cmp(&key(a)));
    all
}

/// Removes what the filter does not choose. Returns false if nothing is left.
fn choose(figures: &mut Figures, filter: &str) -> bool {
    let filter = filter.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&filter);
    if filter.is_empty() || has(&figures.vm) {
        return true;
    }
    figures.rows.retain(|row| has(&format!("{} {}", row.reason, row.sub)));
    !figures.rows.is_empty()
}

fn one(vm: &str, vcpu: Option<usize>, between: &VcpuSample, total: &VcpuSample, hz: f64) -> Figures {
    let elapsed = between.now.max(1) as f64;
    let percent = |ticks: u64| 100.0 * ticks as f64 / elapsed;
    let seconds = elapsed / hz;
    let row = |row: &RowSample| {
        let since_start = total.rows.iter().find(|other| other.reason == row.reason && other.sub == row.sub);
        RowFigures {
            reason: row.reason.clone(),
            sub: row.sub.clone(),
            per_second: row.count as f64 / seconds,
            time_percent: percent(row.ticks),
            average_us: 1e6 * row.ticks as f64 / hz / row.count.max(1) as f64,
            count: since_start.map_or(0, |row| row.count),
            ticks: since_start.map_or(0, |row| row.ticks),
        }
    };
    let mut rows: Vec<RowFigures> = between.rows.iter().map(row).collect();
    rows.sort_by(|a, b| b.time_percent.total_cmp(&a.time_percent));
    let in_stile = between.in_stile();
    Figures {
        vm: vm.to_owned(),
        vcpu,
        // An exit that gives up the CPU ends before the scheduler does: see docs/ledger.md.
        guest_percent: percent(between.ran.saturating_sub(in_stile)),
        stile_percent: percent(in_stile),
        waiting_percent: percent(between.waited),
        exits_per_second: between.exits_taken as f64 / seconds,
        exits_taken: total.exits_taken,
        unaccounted: total.unaccounted(),
        over_budget: Vec::new(),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Kind;
    use crate::control::sample::VmSample;

    fn vcpu(now: u64, ran: u64, waited: u64, rows: &[(&str, u64, u64)]) -> VcpuSample {
        let row = |&(reason, count, ticks): &(&str, u64, u64)| RowSample {
            reason: reason.into(),
            sub: "other".into(),
            count,
            ticks,
            min: 1,
            max: 9,
        };
        let exits_taken = rows.iter().map(|row| row.1).sum();
        VcpuSample { now, exits_taken, ran, waited, rows: rows.iter().map(row).collect() }
    }

    fn samples() -> (Sample, Sample) {
        let vm = |name: &str, vcpus: &[VcpuSample]| VmSample { name: name.into(), vcpus: vcpus.to_vec() };
        let first = vec![vm("a", &[vcpu(1000, 500, 0, &[("IRQ", 10, 100)])]), vm("b", &[vcpu(1000, 0, 0, &[]), vcpu(1000, 0, 0, &[])])];
        let second = vec![
            vm("a", &[vcpu(2000, 1500, 0, &[("IRQ", 30, 300)])]),
            vm("b", &[vcpu(2000, 250, 500, &[("HVC", 5, 50)]), vcpu(2000, 250, 0, &[])]),
        ];
        (Sample { counter_hz: 500, vms: first, budgets: Vec::new() }, Sample { counter_hz: 500, vms: second, budgets: Vec::new() })
    }

    #[test]
    fn shares_and_rates_are_those_of_the_interval() {
        let (first, second) = samples();
        let [a, b] = &figures(&first, &second, false, Order::Name, "")[..] else { panic!() };
        // Two seconds.
        assert_eq!((a.guest_percent, a.stile_percent, a.waiting_percent), (80.0, 20.0, 0.0));
        assert_eq!((a.exits_per_second, a.exits_taken, a.unaccounted), (10.0, 30, 0));
        let row = &a.rows[0];
        assert_eq!((row.per_second, row.time_percent, row.count, row.ticks), (10.0, 20.0, 30, 300));
        assert_eq!(row.average_us, 20_000.0);
        assert_eq!((b.guest_percent, b.waiting_percent), (45.0, 50.0));
    }

    #[test]
    fn limits_that_are_exceeded_belong_to_their_vm() {
        let (first, mut second) = samples();
        let usage = |vm: &str, used| Usage {
            vm: vm.into(),
            budget: Kind::ExitsPerSecond,
            limit: 5,
            used,
            exceeded: used > 5,
            violations: 1,
            cause: None,
        };
        second.budgets = vec![usage("a", 6), usage("b", 5)];
        let [a, b] = &figures(&first, &second, false, Order::Name, "")[..] else { panic!() };
        assert_eq!((&a.over_budget[..], &b.over_budget[..]), (&[usage("a", 6)][..], &[][..]));
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let (first, second) = samples();
        let names = |by_vcpu, order, filter: &str| -> Vec<String> {
            let all = figures(&first, &second, by_vcpu, order, filter);
            all.iter().map(|one| one.vcpu.map_or_else(|| one.vm.clone(), |vcpu| format!("{}{vcpu}", one.vm))).collect()
        };
        assert_eq!(names(true, Order::Guest, ""), ["a0", "b1", "b0"]);
        assert_eq!(names(true, Order::Time, ""), ["a0", "b0", "b1"]);
        assert_eq!(names(true, Order::Time, "hvc"), ["b0"]);
        assert_eq!(names(false, Order::Exits, "B"), ["b"]);
        let (first, mut second) = samples();
        second.vms[0].vcpus[0] = vcpu(2000, 1500, 0, &[("IRQ", 30, 300), ("HVC", 1, 9)]);
        let rows = |filter: &str| figures(&first, &second, false, Order::Name, filter).iter().map(|one| one.rows.len()).collect::<Vec<_>>();
        assert_eq!((rows(""), rows("hvc other"), rows("a")), (vec![2, 1], vec![1, 1], vec![2]));
    }
}
