//! Gathers a sample of the live ledger from the machine's own Stile, vCPU by vCPU in bounded pieces.

use std::time::{Duration, Instant};

use stile_board::MAX_VMS;
use stile_ledger::Row;
use stile_ledger::report::{Account, Report};
use stile_wire::{Command, Event, Sample as Taken};

use super::exits::{Exits, exists, key};
use crate::control::sample::{RowSample, Sample, VcpuSample, VmSample};
use crate::control::server::ClientId;

/// Time without an answer after which a vCPU is requested again: a frame was lost, or the vCPU was descheduled as it was kicked.
const LIMIT: Duration = Duration::from_secs(1);

/// The next step.
#[allow(clippy::large_enum_variant, reason = "a step is taken where it is decided")]
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this.
    Send(Command),
    /// The sample is complete: it is for these clients.
    Done(Sample, Vec<ClientId>),
    /// Wait.
    Nothing,
}

/// The sample being gathered, and who waits for it.
#[derive(Debug, Default)]
pub struct Sampler {
    waiting: Vec<ClientId>,
    /// When it is asked for again; `None` if none is being gathered.
    retry: Option<Instant>,
    /// The vCPU that was asked for: VM and number.
    at: (u8, u8),
    /// First row of the next requested piece of the ledger.
    from: u16,
    sample: Sample,
    /// The samples as accounts of exits.
    report: Report,
}

impl Sampler {
    /// The accounts of the last sample that is complete.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// A client wants a sample. It shares the one that is being gathered.
    pub fn ask(&mut self, client: ClientId, now: Instant, names: &[String]) -> Step {
        self.waiting.push(client);
        if self.retry.is_some() {
            return Step::Nothing;
        }
        self.retry = Some(now + LIMIT);
        let vms = names.iter().map(|name| VmSample { name: name.clone(), vcpus: Vec::new() }).collect();
        self.sample = Sample { vms, ..Sample::default() };
        self.report = Report::default();
        self.at = (0, 0);
        self.next()
    }

    /// Asks for the vCPU at [`Sampler::at`].
    fn next(&mut self) -> Step {
        if usize::from(self.at.0) >= self.sample.vms.len().min(MAX_VMS) {
            self.retry = None;
            return Step::Done(std::mem::take(&mut self.sample), std::mem::take(&mut self.waiting));
        }
        self.from = 0;
        Step::Send(Command::Sample { vm: self.at.0, vcpu: self.at.1 })
    }

    /// Time at which [`Sampler::retry`] is due.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry
    }

    /// Asks again for a vCPU whose answer is late.
    pub fn retry(&mut self, now: Instant) -> Step {
        match self.retry {
            Some(at) if now >= at => {
                self.retry = Some(now + LIMIT);
                self.next()
            }
            _ => Step::Nothing,
        }
    }

    /// Processes a message; `exits` has the names of rows. Those of an earlier sample are ignored.
    pub fn take(&mut self, event: &Event, exits: &Exits, now: Instant) -> Step {
        let about = match *event {
            Event::NoSample { vm, vcpu } | Event::SampleRows { vm, vcpu, .. } => (vm, vcpu),
            Event::Sample(Taken { vm, vcpu, .. }) => (vm, vcpu),
            Event::SampleRow(row) => (row.vm, row.vcpu),
            _ => return Step::Nothing,
        };
        if self.retry.is_none() || about != self.at {
            return Step::Nothing;
        }
        // Not while an answer is still arriving: the answers to both requests would mix.
        self.retry = Some(now + LIMIT);
        match *event {
            Event::NoSample { vm, .. } => {
                self.at = (vm.saturating_add(1), 0);
                self.next()
            }
            Event::Sample(taken) => {
                let Taken { hz, now, taken: exits_taken, ran, waited, .. } = taken;
                self.sample.counter_hz = hz;
                let Some(vm) = self.sample.vms.get_mut(usize::from(taken.vm)) else { return Step::Nothing };
                vm.vcpus.truncate(taken.vcpu.into());
                let account = self.report.account_mut(taken.vm, taken.vcpu);
                *account = Account::new();
                account.taken = exits_taken;
                vm.vcpus.push(VcpuSample { now, exits_taken, ran, waited, rows: Vec::new() });
                Step::Send(Command::SampleRows { vm: taken.vm, vcpu: taken.vcpu, from: 0 })
            }
            Event::SampleRow(row) => {
                let Some(vcpu) = self.sample.vms.get_mut(usize::from(row.vm)).and_then(|vm| vm.vcpus.last_mut()) else {
                    return Step::Nothing;
                };
                // A row unknown to this program is not in the sum, and so appears as unaccounted.
                if vcpu.rows.len() < stile_ledger::ROWS
                    && let Some(key) = key(row.row)
                    && let Some((reason, sub)) = exits.name(key)
                {
                    let counted = Row { count: row.count, ticks: row.ticks, min: row.min, max: row.max };
                    self.report.account_mut(row.vm, row.vcpu).add(key, &counted);
                    vcpu.rows.push(RowSample { reason, sub, count: row.count, ticks: row.ticks, min: row.min, max: row.max });
                }
                Step::Nothing
            }
            Event::SampleRows { vm, vcpu, next } => match next {
                // Pieces follow each other: others would never end.
                Some(from) if from > self.from => {
                    self.from = from;
                    Step::Send(Command::SampleRows { vm, vcpu, from })
                }
                _ => {
                    let after = (vm, vcpu.saturating_add(1));
                    self.at = if exists(after.0, after.1) { after } else { (vm.saturating_add(1), 0) };
                    self.next()
                }
            },
            _ => Step::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use stile_ledger::aarch64::reason;
    use stile_wire::{LedgerRow, Row};

    use super::*;
    use crate::config::Arch;

    fn send(vm: u8, vcpu: u8) -> Step {
        Step::Send(Command::Sample { vm, vcpu })
    }

    #[test]
    fn any_answers_end_a_sample_of_bounded_size() {
        let (mut sampler, exits, now) = (Sampler::default(), Exits::new(Arch::Aarch64), Instant::now());
        let names: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        let mut step = sampler.ask(1, now, &names);
        let mut steps = 0;
        let sample = loop {
            steps += 1;
            assert!(steps < 20 * stile_board::MAX_VMS * stile_board::MAX_VCPUS, "it does not end");
            step = match step {
                Step::Send(Command::Sample { vm, vcpu }) => {
                    sampler.take(&Event::Sample(Taken { vm, vcpu, ..Taken::default() }), &exits, now)
                }
                Step::Send(Command::SampleRows { vm, vcpu, from }) => {
                    let row = Row::Static(reason::IRQ.other().raw());
                    for _ in 0..100 {
                        let row = LedgerRow { vm, vcpu, row, count: u64::MAX, ticks: u64::MAX, min: 1, max: 2 };
                        sampler.take(&Event::SampleRow(row), &exits, now);
                    }
                    // One piece is repeated without end, and points to one behind it.
                    sampler.take(&Event::SampleRows { vm, vcpu, next: Some(from.saturating_add(6000)) }, &exits, now)
                }
                Step::Done(sample, _) => break sample,
                other => panic!("{other:?}"),
            };
        };
        let vcpus = sample.vms.iter().flat_map(|vm| &vm.vcpus);
        assert!(vcpus.clone().all(|vcpu| vcpu.rows.len() <= stile_ledger::ROWS && vcpu.exits_counted() > 0));
    }

    #[test]
    fn a_sample_is_gathered_in_pieces_and_shared() {
        let (mut sampler, exits, now) = (Sampler::default(), Exits::new(Arch::Aarch64), Instant::now());
        let names = ["a".to_owned(), "b".to_owned()];
        let irq = reason::IRQ.other().raw();
        assert_eq!(sampler.ask(7, now, &names), send(0, 0));
        assert_eq!(sampler.ask(8, now, &names), Step::Nothing);
        let taken = stile_wire::Sample { vm: 0, vcpu: 0, hz: 1000, now: 50, taken: 3, ran: 40, waited: 5 };
        let rows = |from| Step::Send(Command::SampleRows { vm: 0, vcpu: 0, from });
        assert_eq!(sampler.take(&Event::Sample(taken), &exits, now), rows(0));
        let row = LedgerRow { vm: 0, vcpu: 0, row: Row::Static(irq), count: 3, ticks: 30, min: 1, max: 20 };
        assert_eq!(sampler.take(&Event::SampleRow(row), &exits, now), Step::Nothing);
        // Of another sample.
        assert_eq!(sampler.take(&Event::SampleRow(LedgerRow { vm: 1, ..row }), &exits, now), Step::Nothing);
        assert_eq!(sampler.take(&Event::SampleRows { vm: 0, vcpu: 0, next: Some(16) }, &exits, now), rows(16));
        assert_eq!(sampler.take(&Event::SampleRows { vm: 0, vcpu: 0, next: None }, &exits, now), send(0, 1));
        assert_eq!(sampler.take(&Event::NoSample { vm: 0, vcpu: 1 }, &exits, now), send(1, 0));
        let Step::Done(sample, clients) = sampler.take(&Event::NoSample { vm: 1, vcpu: 0 }, &exits, now) else { panic!() };
        assert_eq!(clients, [7, 8]);
        assert_eq!((sample.counter_hz, sample.vms[0].vcpus[0].unaccounted(), sample.vms[1].vcpus.len()), (1000, 0, 0));
        assert_eq!(sample.vms[0].vcpus[0].rows[0].reason, "IRQ");
        assert_eq!((sampler.report().vm(0).taken, sampler.report().vm(0).difference()), (3, 0));
        assert_eq!(sampler.take(&Event::NoSample { vm: 1, vcpu: 0 }, &exits, now), Step::Nothing, "none is being gathered");
    }

    #[test]
    fn a_vcpu_whose_answer_is_late_is_asked_for_again() {
        let (mut sampler, now) = (Sampler::default(), Instant::now());
        let (names, exits) = (["a".to_owned()], Exits::new(Arch::Aarch64));
        assert_eq!((sampler.retry_at(), sampler.retry(now)), (None, Step::Nothing));
        assert_eq!(sampler.ask(1, now, &names), send(0, 0));
        let taken = stile_wire::Sample { vm: 0, vcpu: 0, ..Default::default() };
        sampler.take(&Event::Sample(taken), &exits, now);
        assert_eq!((sampler.retry_at(), sampler.retry(now)), (Some(now + LIMIT), Step::Nothing));
        assert_eq!(sampler.retry(now + LIMIT), send(0, 0));
        // The vCPU's earlier rows are replaced.
        sampler.take(&Event::Sample(taken), &exits, now);
        // A slow answer is not lost.
        let later = now + LIMIT * 3 / 2;
        sampler.take(&Event::SampleRows { vm: 0, vcpu: 0, next: Some(16) }, &exits, later);
        assert_eq!((sampler.retry_at(), sampler.retry(now + LIMIT * 2)), (Some(later + LIMIT), Step::Nothing));
        sampler.take(&Event::SampleRows { vm: 0, vcpu: 0, next: None }, &exits, now);
        sampler.take(&Event::NoSample { vm: 0, vcpu: 1 }, &exits, now);
        let Step::Nothing = sampler.take(&Event::NoSample { vm: 0, vcpu: 1 }, &exits, now) else { panic!() };
        assert_eq!(sampler.retry_at(), None);
    }
}
