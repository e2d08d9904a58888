//! A sample as OpenMetrics text.
//!
//! Counters are the ledger's, which begins with the VM: they outlive resets, power-offs and pauses, and the command
//! that reads them. A destroyed VM's series end. Those of a VM that is created under its name begin at 0, which
//! `rate()` recognizes.

use std::fmt;

use anyhow::{Context, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use crate::control::protocol::{State, Status};
use crate::control::sample::{RowSample, Sample, VcpuSample};
use crate::control::source::Source;

/// The content type of the metrics.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const STATES: [State; 5] = [State::Waiting, State::Running, State::Paused, State::Off, State::Crashed];

/// Takes a sample of a machine, and returns its metrics.
///
/// # Errors
/// The machine has ended or does not answer; the VM does not exist.
pub fn scrape(source: &mut Source) -> Result<String> {
    let mut status = source.connection.status()?;
    let sample = source.sample()?;
    if let Some(vm) = &source.vm {
        status.vms.retain(|status| status.name == *vm);
    }
    text(&status, &sample).context("writing metrics")
}

/// The metrics of a machine.
fn text(status: &Status, sample: &Sample) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { status: status.clone(), sample: sample.clone() }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics {
    status: Status,
    sample: Sample,
}

/// Labels of a series.
type Labels<'s> = Vec<(&'static str, &'s str)>;

impl Metrics {
    fn vcpus(&self) -> impl Iterator<Item = (&str, String, &VcpuSample)> {
        let numbered = |vm: &'_ [VcpuSample]| (0..vm.len()).map(|vcpu| vcpu.to_string()).collect::<Vec<_>>();
        self.sample.vms.iter().flat_map(move |vm| {
            let names = numbered(&vm.vcpus);
            names.into_iter().zip(&vm.vcpus).map(|(vcpu, sample)| (vm.name.as_str(), vcpu, sample))
        })
    }

    fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.sample.counter_hz.max(1) as f64
    }

    /// A series for each vCPU.
    fn of_vcpus<M: EncodeMetric + TypedMetric>(
        &self,
        family: &Family<'_>,
        encoder: &mut DescriptorEncoder<'_>,
        metric: impl Fn(&VcpuSample) -> M,
    ) -> fmt::Result {
        let mut encoder = encoder.encode_descriptor(family.name, family.help, family.unit, M::TYPE)?;
        for (vm, vcpu, sample) in self.vcpus() {
            let labels: Labels<'_> = vec![("vm", vm), ("vcpu", &vcpu)];
            metric(sample).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A series for each row of each vCPU's ledger.
    fn of_rows<M: EncodeMetric + TypedMetric>(
        &self,
        family: &Family<'_>,
        encoder: &mut DescriptorEncoder<'_>,
        metric: impl Fn(&RowSample) -> M,
    ) -> fmt::Result {
        let mut encoder = encoder.encode_descriptor(family.name, family.help, family.unit, M::TYPE)?;
        for (vm, vcpu, sample) in self.vcpus() {
            for row in &sample.rows {
                let labels: Labels<'_> = vec![("vm", vm), ("vcpu", &vcpu), ("reason", &row.reason), ("sub_reason", &row.sub)];
                metric(row).encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A metric family. The encoder adds the unit to its name.
struct Family<'u> {
    name: &'static str,
    help: &'static str,
    unit: Option<&'u Unit>,
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Status { name, arch, seconds, vms, .. } = &self.status;
        let encoder = &mut encoder;
        let family = |name, help| Family { name, help, unit: None };
        let timed = |name, help| Family { name, help, unit: Some(&Unit::Seconds) };

        let mut info = encoder.encode_descriptor("stile_machine", "The machine", None, MetricType::Info)?;
        info.encode_info(&[("machine", name.as_str()), ("arch", arch.name())])?;
        let uptime = encoder.encode_descriptor(
            "stile_machine_uptime",
            "Time since the machine was started",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        ConstGauge::new(*seconds).encode(uptime)?;
        let mut states = encoder.encode_descriptor("stile_vm_state", "Whether the VM is in the state", None, MetricType::Gauge)?;
        for vm in vms {
            for state in STATES {
                let labels: Labels<'_> = vec![("vm", &vm.name), ("state", state.name())];
                ConstGauge::new(u64::from(vm.state == state)).encode(states.encode_family(&labels)?)?;
            }
        }

        let help = "Time on a CPU, in the guest or in Stile";
        self.of_vcpus(&timed("stile_vcpu_running", help), encoder, |vcpu| ConstCounter::new(self.seconds(vcpu.ran)))?;
        let help = "Time ready, but without a CPU";
        self.of_vcpus(&timed("stile_vcpu_waiting", help), encoder, |vcpu| ConstCounter::new(self.seconds(vcpu.waited)))?;
        let help = "Exits that the vectors counted and the ledger's rows lack: 0 unless Stile has a bug";
        self.of_vcpus(&family("stile_vcpu_unaccounted_exits", help), encoder, |vcpu| ConstGauge::new(vcpu.unaccounted()))?;

        let mut over = encoder.encode_descriptor("stile_vm_over_budget", "Whether the VM exceeds the limit", None, MetricType::Gauge)?;
        for usage in &self.sample.budgets {
            let labels: Labels<'_> = vec![("vm", &usage.vm), ("budget", usage.budget.name())];
            ConstGauge::new(u64::from(usage.exceeded)).encode(over.encode_family(&labels)?)?;
        }
        let help = "How often the VM began to exceed the limit";
        let mut violations = encoder.encode_descriptor("stile_vm_budget_violations", help, None, MetricType::Counter)?;
        for usage in &self.sample.budgets {
            let labels: Labels<'_> = vec![("vm", &usage.vm), ("budget", usage.budget.name())];
            ConstCounter::new(usage.violations).encode(violations.encode_family(&labels)?)?;
        }

        let help = "VM exits";
        self.of_rows(&family("stile_vcpu_exits", help), encoder, |row| ConstCounter::new(row.count))?;
        let help = "Time in Stile for exits";
        self.of_rows(&timed("stile_vcpu_exit_time", help), encoder, |row| ConstCounter::new(self.seconds(row.ticks)))?;
        let help = "The longest exit since the VM was made";
        self.of_rows(&timed("stile_vcpu_longest_exit", help), encoder, |row| ConstGauge::new(self.seconds(row.max)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse::{self, parse};
    use super::*;
    use crate::budget::{Kind, Usage};
    use crate::config::Arch;
    use crate::control::protocol::VmStatus;
    use crate::control::sample::VmSample;

    fn row(reason: &str, count: u64, ticks: u64) -> RowSample {
        RowSample { reason: reason.into(), sub: "other".into(), count, ticks, min: 1, max: ticks }
    }

    fn machine(vms: Vec<VmSample>) -> (Status, Sample) {
        let states = vms.iter().map(|vm| VmStatus { name: vm.name.clone(), state: State::Paused, waits_for: None }).collect();
        let usage = Usage { vm: "web".into(), budget: Kind::ExitTime, limit: 5, used: 6, exceeded: true, violations: 2, cause: None };
        let status = Status { name: "m".into(), pid: 1, arch: Arch::Aarch64, seconds: 9, vms: states };
        (status, Sample { counter_hz: 100, vms, budgets: vec![usage] })
    }

    #[test]
    fn every_figure_of_a_sample_is_a_series() {
        let vcpu = VcpuSample { now: 700, exits_taken: 6, ran: 250, waited: 50, rows: vec![row("IRQ", 3, 30), row("HVC", 2, 5)] };
        let (status, sample) = machine(vec![VmSample { name: "web".into(), vcpus: vec![VcpuSample::default(), vcpu] }]);
        let found = parse(&text(&status, &sample).unwrap()).unwrap();
        let value = |name: &str, labels: &str| {
            let is_it = |series: &&parse::Series| series.name == name && series.labels_text() == labels;
            found.iter().find(is_it).unwrap_or_else(|| panic!("{name}{labels}: {found:#?}"))
        };
        let irq = r#"{vm="web",vcpu="1",reason="IRQ",sub_reason="other"}"#;
        assert_eq!(value("stile_vcpu_exits_total", irq).value, 3.0);
        assert_eq!(value("stile_vcpu_exits_total", irq).kind, parse::Kind::Counter);
        assert_eq!(value("stile_vcpu_exit_time_seconds_total", irq).value, 0.3);
        assert_eq!(value("stile_vcpu_longest_exit_seconds", irq).value, 0.3);
        let second = r#"{vm="web",vcpu="1"}"#;
        assert_eq!(value("stile_vcpu_running_seconds_total", second).value, 2.5);
        assert_eq!(value("stile_vcpu_waiting_seconds_total", second).value, 0.5);
        assert_eq!(value("stile_vcpu_unaccounted_exits", second).value, 1.0);
        let budget = r#"{vm="web",budget="exit_time"}"#;
        assert_eq!((value("stile_vm_over_budget", budget).value, value("stile_vm_budget_violations_total", budget).value), (1.0, 2.0));
        assert_eq!(value("stile_vm_state", r#"{vm="web",state="paused"}"#).value, 1.0);
        assert_eq!(value("stile_vm_state", r#"{vm="web",state="running"}"#).value, 0.0);
        assert_eq!(value("stile_machine_info", r#"{machine="m",arch="aarch64"}"#).value, 1.0);
        assert_eq!(value("stile_machine_uptime_seconds", "").value, 9.0);
    }

    /// Names of metrics in the expressions of Grafana's dashboard.
    #[test]
    fn the_dashboard_shows_metrics_that_exist() {
        let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../../docs/grafana.json")).unwrap();
        let targets = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let expressions: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
        let vcpu = VcpuSample { rows: vec![row("IRQ", 3, 30)], ..VcpuSample::default() };
        let (status, sample) = machine(vec![VmSample { name: "web".into(), vcpus: vec![vcpu] }]);
        let found = parse(&text(&status, &sample).unwrap()).unwrap();
        let shown: Vec<_> =
            expressions.iter().flat_map(|text| text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_')).collect();
        for name in shown.iter().filter(|word| word.starts_with("stile_")) {
            assert!(found.iter().any(|series| series.name == *name), "{name}");
        }
        for series in found.iter().filter(|series| series.kind != parse::Kind::Info) {
            assert!(shown.contains(&series.name.as_str()), "{} is not shown", series.name);
        }
    }

    proptest! {
        /// Values are untrusted: noise on a serial line may forge any.
        #[test]
        fn any_sample_is_valid(figures in proptest::collection::vec(any::<[u64; 5]>(), 0..5), reason in ".{0,8}", name in "[a-z\"\\\\\n]{1,4}") {
            let vcpu = |&[taken, ran, waited, count, ticks]: &[u64; 5]| {
                let rows = vec![row(&reason, count, ticks)];
                VcpuSample { now: 0, exits_taken: taken, ran, waited, rows }
            };
            let vcpus: Vec<_> = figures.iter().map(vcpu).collect();
            let (status, sample) = machine(vec![VmSample { name: name.clone(), vcpus }]);
            let found = parse(&text(&status, &sample).unwrap()).map_err(TestCaseError::fail)?;
            let exits: Vec<_> = found.iter().filter(|series| series.name == "stile_vcpu_exits_total").collect();
            prop_assert_eq!(exits.len(), figures.len());
            for (series, [_, _, _, count, _]) in exits.iter().zip(&figures) {
                prop_assert_eq!(series.value, *count as f64);
                prop_assert_eq!(&series.labels[0], &("vm".to_owned(), name.clone()));
                prop_assert_eq!(&series.labels[2].1, &reason);
            }
        }
    }
}
