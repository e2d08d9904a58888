//! Budgets of VMs, held against samples of the live ledger.

use std::collections::BTreeMap;

use crate::budget::{Budget, CPU, Growth, Kind, Usage};
use crate::control::sample::{RowSample, Sample, VcpuSample, VmSample};

/// Intervals in a row whose usage is at most [`within`] the limit, after which an exceeded limit is kept again: a VM at the
/// edge of its budget causes no news in each interval.
const QUIET: u32 = 3;

/// Rows, and their shares of the limited quantity.
type Parts = BTreeMap<(String, String), u64>;

#[derive(Debug)]
struct Watched {
    usage: Usage,
    /// The rows when the limit was last kept.
    kept: Parts,
    /// Intervals in a row that were well within an exceeded limit.
    quiet: u32,
}

/// Holds samples against budgets.
#[derive(Debug, Default)]
pub struct Watch {
    last: Sample,
    watched: BTreeMap<(String, Kind), Watched>,
}

impl Watch {
    /// Processes the next sample. Returns the limits that began to be exceeded, or are kept again.
    pub fn take(&mut self, sample: &Sample, budgets: &[(String, Budget)]) -> Vec<Usage> {
        let mut news = Vec::new();
        let budget_of = |name: &str| budgets.iter().find(|(vm, _)| vm == name).map(|(_, budget)| *budget);
        for vm in &sample.vms {
            let earlier = self.last.vms.iter().find(|earlier| earlier.name == vm.name);
            let interval = earlier.and_then(|earlier| interval(earlier, vm));
            let Some((budget, interval)) = budget_of(&vm.name).zip(interval) else { continue };
            for (kind, limit) in budget.limits() {
                news.extend(self.hold(&vm.name, kind, limit, &interval, sample.counter_hz));
            }
        }
        // Drops the state of destroyed VMs.
        self.watched.retain(|(vm, _), _| budget_of(vm).is_some());
        self.last = sample.clone();
        news
    }

    /// Returns each VM's usage of its budget in the last interval.
    pub fn usage(&self) -> Vec<Usage> {
        self.watched.values().map(|watched| watched.usage.clone()).collect()
    }

    fn hold(&mut self, vm: &str, kind: Kind, limit: u64, interval: &VcpuSample, hz: u64) -> Option<Usage> {
        let parts = parts(kind, interval, hz);
        let fresh = || {
            let usage = Usage { vm: vm.to_owned(), budget: kind, limit, used: 0, exceeded: false, violations: 0, cause: None };
            Watched { usage, kept: Parts::new(), quiet: 0 }
        };
        let watched = self.watched.entry((vm.to_owned(), kind)).or_insert_with(fresh);
        let usage = &mut watched.usage;
        let before = usage.exceeded;
        usage.limit = limit;
        usage.used = match kind {
            Kind::ExitsPerSecond => rate(interval.exits_taken, hz, interval.now),
            Kind::ExitTime => rate(interval.in_stile(), CPU, interval.now),
        };
        watched.quiet = if usage.used <= within(limit) { watched.quiet.saturating_add(1) } else { 0 };
        usage.exceeded = usage.used > limit || before && watched.quiet < QUIET;
        let exceeded = usage.exceeded;
        if exceeded {
            usage.violations += u64::from(!before);
            usage.cause = cause(&watched.kept, &parts);
        } else {
            usage.cause = None;
            watched.kept = parts;
        }
        (exceeded != before).then(|| usage.clone())
    }
}

/// The most that is well within a limit: 90 % of it.
const fn within(limit: u64) -> u64 {
    limit - limit.div_ceil(10)
}

/// Returns the difference between two samples of a VM; none if it is another VM with the name, or no time has passed.
fn interval(earlier: &VmSample, later: &VmSample) -> Option<VcpuSample> {
    let is_older = |(before, now): (&VcpuSample, &VcpuSample)| before.now < now.now && before.exits_taken <= now.exits_taken;
    let same = earlier.vcpus.len() == later.vcpus.len() && earlier.vcpus.iter().zip(&later.vcpus).all(is_older);
    (same && !later.vcpus.is_empty()).then(|| later.since(Some(earlier)).sum())
}

/// `amount` per `ticks`, in units of `unit` ticks.
fn rate(amount: u64, unit: u64, ticks: u64) -> u64 {
    let rate = u128::from(amount) * u128::from(unit) / u128::from(ticks.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn parts(kind: Kind, interval: &VcpuSample, hz: u64) -> Parts {
    let part = |row: &RowSample| match kind {
        Kind::ExitsPerSecond => rate(row.count, hz, interval.now),
        Kind::ExitTime => rate(row.ticks, CPU, interval.now),
    };
    interval.rows.iter().map(|row| ((row.reason.clone(), row.sub.clone()), part(row))).collect()
}

/// The row that grew most.
fn cause(before: &Parts, now: &Parts) -> Option<Growth> {
    let growth = |(key, &now): (&(String, String), &u64)| {
        let before = before.get(key).copied().unwrap_or(0);
        Growth { reason: key.0.clone(), sub: key.1.clone(), before, now }
    };
    now.iter().map(growth).filter(|growth| growth.now > growth.before).max_by_key(|growth| growth.now - growth.before)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HZ: u64 = 1000;

    /// A sample after `seconds` seconds, of a VM with one vCPU.
    fn at(seconds: u64, rows: &[(&str, u64, u64)]) -> Sample {
        let row = |&(reason, count, ticks): &(&str, u64, u64)| RowSample { reason: reason.into(), count, ticks, ..RowSample::default() };
        let vcpu = VcpuSample {
            now: seconds * HZ,
            exits_taken: rows.iter().map(|row| row.1).sum(),
            rows: rows.iter().map(row).collect(),
            ..VcpuSample::default()
        };
        Sample { counter_hz: HZ, vms: vec![VmSample { name: "web".into(), vcpus: vec![vcpu] }], ..Sample::default() }
    }

    fn budgets(exits_per_second: Option<u64>, exit_time: Option<u64>) -> Vec<(String, Budget)> {
        vec![("web".into(), Budget { exits_per_second, exit_time })]
    }

    #[test]
    fn the_reason_that_grew_is_named_once() {
        let (mut watch, budgets) = (Watch::default(), budgets(Some(20), None));
        assert_eq!(watch.take(&at(10, &[("IRQ", 1000, 1), ("HVC", 9, 1)]), &budgets), [], "the first sample is no interval");
        assert_eq!(watch.take(&at(20, &[("IRQ", 1100, 2), ("HVC", 19, 2)]), &budgets), []);
        assert_eq!((watch.usage()[0].used, watch.usage()[0].violations), (11, 0));
        // IRQ has more exits, but HVC grew.
        let exceeded = watch.take(&at(30, &[("IRQ", 1220, 3), ("HVC", 119, 3)]), &budgets);
        let [usage] = &exceeded[..] else { panic!("{exceeded:?}") };
        assert_eq!((usage.used, usage.violations), (22, 1));
        assert_eq!(usage.to_string(), "web exceeds its budget of 20 exits/s: 22 exits/s; HVC  grew from 1 exits/s to 10 exits/s");
        // Still exceeded: no new event, and the comparison is with the time when the budget was kept.
        assert_eq!(watch.take(&at(40, &[("IRQ", 1220, 3), ("HVC", 519, 3)]), &budgets), []);
        assert_eq!(watch.usage()[0].cause.as_ref().map(|growth| (growth.before, growth.now)), Some((1, 40)));
        for seconds in [50, 60] {
            assert_eq!(watch.take(&at(seconds, &[("IRQ", 1220, 3), ("HVC", 519, 3)]), &budgets), [], "perhaps a lull");
        }
        let kept = watch.take(&at(70, &[("IRQ", 1220, 3), ("HVC", 519, 3)]), &budgets);
        assert_eq!(kept[0].to_string(), "web keeps its budget of 20 exits/s: 0 exits/s");
        assert_eq!(watch.take(&at(80, &[("IRQ", 9220, 3), ("HVC", 519, 3)]), &budgets)[0].violations, 2);
    }

    #[test]
    fn a_vm_at_the_edge_of_its_budget_is_reported_once() {
        let (mut watch, budgets) = (Watch::default(), budgets(Some(20), None));
        let (mut exits, mut news) = (0, 0);
        for interval in 0..40 {
            // 19 and 21 exits a second in turns; at the end at most 18 in two intervals of three.
            exits += if interval < 20 { 190 + interval % 2 * 20 } else { [190, 180, 100][interval as usize % 3] };
            news += watch.take(&at(interval * 10, &[("IRQ", exits, 1)]), &budgets).len();
        }
        assert_eq!((news, watch.usage()[0].violations, watch.usage()[0].exceeded), (1, 1, true));
        for interval in 40..43 {
            exits += 180;
            news += watch.take(&at(interval * 10, &[("IRQ", exits, 1)]), &budgets).len();
        }
        assert_eq!((news, watch.usage()[0].exceeded), (2, false));
    }

    #[test]
    fn time_is_a_share_of_one_cpu() {
        let (mut watch, budgets) = (Watch::default(), budgets(None, Some(CPU / 100)));
        watch.take(&at(10, &[("IRQ", 1, 100)]), &budgets);
        assert_eq!(watch.take(&at(20, &[("IRQ", 2, 200)]), &budgets), [], "1 % is no more than 1 %");
        let exceeded = watch.take(&at(30, &[("IRQ", 3, 301)]), &budgets);
        let text = "web exceeds its budget of 1% of a CPU: 1.01% of a CPU; IRQ  grew from 1% of a CPU to 1.01% of a CPU";
        assert_eq!(exceeded[0].to_string(), text);
    }

    #[test]
    fn a_new_vm_of_the_name_starts_anew() {
        let (mut watch, budgets) = (Watch::default(), budgets(Some(1), None));
        watch.take(&at(10, &[("IRQ", 1000, 1)]), &budgets);
        assert_eq!(watch.take(&at(20, &[("IRQ", 500, 1)]), &budgets), []);
        assert_eq!(watch.take(&at(30, &[("IRQ", 900, 1)]), &budgets).len(), 1);
        assert_eq!(watch.take(&at(40, &[("IRQ", 999, 1)]), &[]), []);
        assert_eq!(watch.usage(), [], "the VM is gone");
    }

    proptest! {
        /// Values are untrusted: noise on a serial line may forge any.
        #[test]
        fn news_alternate_and_count(figures in proptest::collection::vec(any::<[u64; 3]>(), 0..20)) {
            let (mut watch, budgets) = (Watch::default(), budgets(Some(1 << 40), Some(1 << 40)));
            let mut exceeded: BTreeMap<Kind, (bool, u64)> = BTreeMap::new();
            for [now, count, ticks] in figures {
                let mut sample = at(0, &[("IRQ", count, ticks)]);
                sample.vms[0].vcpus[0].now = now;
                for usage in watch.take(&sample, &budgets) {
                    let (was, violations) = exceeded.entry(usage.budget).or_default();
                    prop_assert_ne!(usage.exceeded, *was);
                    *was = usage.exceeded;
                    *violations += u64::from(*was);
                    prop_assert_eq!(usage.violations, *violations);
                    prop_assert_eq!(usage.cause.is_some(), *was);
                }
            }
        }
    }
}
