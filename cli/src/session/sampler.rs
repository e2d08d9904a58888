//! Gathers a sample of the live ledger from the machine's own Stile, vCPU by vCPU in bounded pieces.

use std::time::{Duration, Instant};

use stile_board::MAX_VMS;
use stile_ledger::Row;
use stile_ledger::report::{Account, Report};
use stile_wire::{Command, Event, LedgerRow, Sample as Taken};

use super::exits::{Exits, exists, key};
use crate::control::sample::{RowSample, Sample, VcpuSample, VmSample};
use crate::control::server::ClientId;

/// Time without an answer after which a vCPU is requested again: a frame was lost, or the vCPU was descheduled as it was kicked.
const LIMIT: Duration = Duration::from_secs(1);

/// Maximum number of repeated requests for pieces of a vCPU's ledger of which rows were lost. What arrived is kept, so that even if a line
/// loses every third row, a piece of 16 is still incomplete after these in one of 10^14 cases.
const ATTEMPTS: u8 = 32;

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
    /// Time of the next request for it; `None` if none is being gathered.
    retry: Option<Instant>,
    /// The vCPU that was asked for: VM and number.
    at: (u8, u8),
    /// Tag of that request. Answers to earlier requests for the vCPU may still arrive.
    tag: u16,
    /// First row of the requested piece of the ledger.
    from: u16,
    /// Number of times that a piece of the vCPU's has arrived incomplete.
    incomplete: u8,
    /// Rows of the piece that is arriving, or of which rows were lost. All are of one copy of the ledger: those of earlier ones are dropped
    /// when the vCPU's totals, or the end of an earlier piece, arrive.
    piece: Vec<LedgerRow>,
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
        self.tag = self.tag.wrapping_add(1);
        (self.from, self.incomplete) = (0, 0);
        Step::Send(Command::Sample { tag: self.tag, vm: self.at.0, vcpu: self.at.1 })
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

    /// Processes a message; `exits` has the names of rows. Answers to earlier requests are ignored.
    pub fn take(&mut self, event: &Event, exits: &Exits, now: Instant) -> Step {
        let is_ours = match *event {
            Event::SampleRow(row) => (row.vm, row.vcpu) == self.at,
            Event::NoSample { tag, .. } | Event::SampleRows { tag, .. } | Event::Sample(Taken { tag, .. }) => {
                let is_ours = tag == self.tag;
                if !is_ours {
                    self.piece.clear();
                }
                is_ours
            }
            _ => return Step::Nothing,
        };
        if self.retry.is_none() || !is_ours {
            return Step::Nothing;
        }
        // An answer that is still arriving is not late.
        self.retry = Some(now + LIMIT);
        match *event {
            Event::NoSample { .. } => {
                self.at = (self.at.0.saturating_add(1), 0);
                self.next()
            }
            Event::Sample(taken) => self.begin(&taken),
            Event::SampleRow(row) => {
                let is_new = self.piece.iter().all(|old| old.row != row.row);
                if is_new && self.piece.len() < stile_ledger::ROWS {
                    self.piece.push(row);
                }
                Step::Nothing
            }
            Event::SampleRows { from, next, rows, .. } => {
                if from != self.from {
                    self.piece.clear();
                    return Step::Nothing;
                }
                if self.piece.len() < usize::from(rows) && self.incomplete < ATTEMPTS {
                    self.incomplete += 1;
                    return Step::Send(Command::SampleRows { tag: self.tag, from });
                }
                std::mem::take(&mut self.piece).iter().for_each(|row| self.add(row, exits));
                match next {
                    // Pieces follow each other: others would never end.
                    Some(next) if next > from => {
                        self.from = next;
                        Step::Send(Command::SampleRows { tag: self.tag, from: next })
                    }
                    _ => {
                        let (vm, vcpu) = self.at;
                        let after = vcpu.checked_add(1).filter(|&vcpu| exists(vm, vcpu));
                        self.at = after.map_or((vm.saturating_add(1), 0), |vcpu| (vm, vcpu));
                        self.next()
                    }
                }
            }
            _ => Step::Nothing,
        }
    }

    /// Begins with the vCPU's totals, and asks for its rows.
    fn begin(&mut self, taken: &Taken) -> Step {
        let (vm, vcpu) = self.at;
        self.sample.counter_hz = taken.hz;
        self.piece.clear();
        let Some(sample) = self.sample.vms.get_mut(usize::from(vm)) else { return Step::Nothing };
        sample.vcpus.truncate(vcpu.into());
        let account = self.report.account_mut(vm, vcpu);
        *account = Account::new();
        account.taken = taken.taken;
        let rows = Vec::new();
        sample.vcpus.push(VcpuSample { now: taken.now, exits_taken: taken.taken, ran: taken.ran, waited: taken.waited, rows });
        Step::Send(Command::SampleRows { tag: self.tag, from: 0 })
    }

    /// Adds a row. One unknown to this program is not in the sum, and so appears as unaccounted.
    fn add(&mut self, row: &LedgerRow, exits: &Exits) {
        let Some(vcpu) = self.sample.vms.get_mut(usize::from(row.vm)).and_then(|vm| vm.vcpus.last_mut()) else { return };
        if vcpu.rows.len() < stile_ledger::ROWS
            && let Some(key) = key(row.row)
            && let Some((reason, sub)) = exits.name(key)
        {
            let counted = Row { count: row.count, ticks: row.ticks, min: row.min, max: row.max };
            self.report.account_mut(row.vm, row.vcpu).add(key, &counted);
            vcpu.rows.push(RowSample { reason, sub, count: row.count, ticks: row.ticks, min: row.min, max: row.max });
        }
    }
}

#[cfg(test)]
mod tests {
    use stile_ledger::aarch64::reason;
    use stile_wire::Row;

    use super::*;
    use crate::config::Arch;

    fn send(tag: u16, vm: u8, vcpu: u8) -> Step {
        Step::Send(Command::Sample { tag, vm, vcpu })
    }

    fn rows(tag: u16, from: u16) -> Step {
        Step::Send(Command::SampleRows { tag, from })
    }

    fn taken(tag: u16) -> Event {
        Event::Sample(Taken { tag, vm: 0, vcpu: 0, hz: 1000, now: 50, taken: 3, ran: 40, waited: 5 })
    }

    fn row(count: u64) -> LedgerRow {
        LedgerRow { vm: 0, vcpu: 0, row: Row::Static(reason::IRQ.other().raw()), count, ticks: 30, min: 1, max: 20 }
    }

    #[test]
    fn any_answers_end_a_sample_of_bounded_size() {
        let (mut sampler, exits, now) = (Sampler::default(), Exits::new(Arch::Aarch64), Instant::now());
        let names: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        let mut step = sampler.ask(1, now, &names);
        let (mut steps, mut at) = (0, (0, 0));
        let sample = loop {
            steps += 1;
            assert!(steps < 40 * stile_board::MAX_VMS * stile_board::MAX_VCPUS, "it does not end");
            step = match step {
                Step::Send(Command::Sample { tag, vm, vcpu }) => {
                    at = (vm, vcpu);
                    sampler.take(&Event::Sample(Taken { tag, vm, vcpu, ..Taken::default() }), &exits, now)
                }
                Step::Send(Command::SampleRows { tag, from }) => {
                    // More than there may be, for one vCPU.
                    let rows = if at == (0, 0) { 100 } else { 2 };
                    for _ in 0..rows {
                        let row = LedgerRow { vm: at.0, vcpu: at.1, count: u64::MAX, ticks: u64::MAX, ..row(1) };
                        sampler.take(&Event::SampleRow(row), &exits, now);
                    }
                    // One piece is repeated without end, and points to one behind it.
                    sampler.take(&Event::SampleRows { tag, from, next: Some(from.saturating_add(6000)), rows: 0 }, &exits, now)
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
        assert_eq!(sampler.ask(7, now, &names), send(1, 0, 0));
        assert_eq!(sampler.ask(8, now, &names), Step::Nothing);
        assert_eq!(sampler.take(&taken(1), &exits, now), rows(1, 0));
        assert_eq!(sampler.take(&Event::SampleRow(row(3)), &exits, now), Step::Nothing);
        // Of another sample.
        assert_eq!(sampler.take(&Event::SampleRow(LedgerRow { vm: 1, ..row(3) }), &exits, now), Step::Nothing);
        assert_eq!(sampler.take(&Event::SampleRows { tag: 1, from: 0, next: Some(16), rows: 1 }, &exits, now), rows(1, 16));
        assert_eq!(sampler.take(&Event::SampleRows { tag: 1, from: 16, next: None, rows: 0 }, &exits, now), send(2, 0, 1));
        assert_eq!(sampler.take(&Event::NoSample { tag: 2, vm: 0, vcpu: 1 }, &exits, now), send(3, 1, 0));
        let Step::Done(sample, clients) = sampler.take(&Event::NoSample { tag: 3, vm: 1, vcpu: 0 }, &exits, now) else { panic!() };
        assert_eq!(clients, [7, 8]);
        assert_eq!((sample.counter_hz, sample.vms[0].vcpus[0].unaccounted(), sample.vms[1].vcpus.len()), (1000, 0, 0));
        assert_eq!(sample.vms[0].vcpus[0].rows[0].reason, "IRQ");
        assert_eq!((sampler.report().vm(0).taken, sampler.report().vm(0).difference()), (3, 0));
        assert_eq!(sampler.take(&Event::NoSample { tag: 3, vm: 1, vcpu: 0 }, &exits, now), Step::Nothing, "none is being gathered");
    }

    #[test]
    fn a_vcpu_whose_answer_is_late_is_asked_for_again() {
        let (mut sampler, now) = (Sampler::default(), Instant::now());
        let (names, exits) = (["a".to_owned()], Exits::new(Arch::Aarch64));
        assert_eq!((sampler.retry_at(), sampler.retry(now)), (None, Step::Nothing));
        assert_eq!(sampler.ask(1, now, &names), send(1, 0, 0));
        assert_eq!((sampler.retry_at(), sampler.retry(now)), (Some(now + LIMIT), Step::Nothing));
        assert_eq!(sampler.retry(now + LIMIT), send(2, 0, 0));
        sampler.take(&taken(2), &exits, now);
        // A slow answer is not lost.
        let later = now + LIMIT * 3 / 2;
        sampler.take(&Event::SampleRows { tag: 2, from: 0, next: Some(16), rows: 0 }, &exits, later);
        assert_eq!((sampler.retry_at(), sampler.retry(now + LIMIT * 2)), (Some(later + LIMIT), Step::Nothing));
        sampler.take(&Event::SampleRows { tag: 2, from: 16, next: None, rows: 0 }, &exits, now);
        sampler.take(&Event::NoSample { tag: 3, vm: 0, vcpu: 1 }, &exits, now);
        assert_eq!(sampler.retry_at(), None);
    }

    #[test]
    fn a_piece_of_which_rows_were_lost_is_asked_for_again() {
        let (mut sampler, now) = (Sampler::default(), Instant::now());
        let (names, exits) = (["a".to_owned()], Exits::new(Arch::Aarch64));
        sampler.ask(1, now, &names);
        sampler.take(&taken(1), &exits, now);
        let piece = Event::SampleRows { tag: 1, from: 0, next: None, rows: 1 };
        for _ in 0..3 {
            assert_eq!(sampler.take(&piece, &exits, now), rows(1, 0));
        }
        sampler.take(&Event::SampleRow(row(3)), &exits, now);
        assert_eq!(sampler.take(&piece, &exits, now), send(2, 0, 1));
        let Step::Done(sample, _) = sampler.take(&Event::NoSample { tag: 2, vm: 0, vcpu: 1 }, &exits, now) else { panic!() };
        assert_eq!((sample.vms[0].vcpus[0].rows.len(), sample.vms[0].vcpus[0].unaccounted()), (1, 0));
    }

    /// Each answer lacks a row of three.
    #[test]
    fn rows_of_a_piece_that_arrived_are_kept() {
        let (mut sampler, now) = (Sampler::default(), Instant::now());
        let (names, exits) = (["a".to_owned()], Exits::new(Arch::Aarch64));
        sampler.ask(1, now, &names);
        sampler.take(&taken(1), &exits, now);
        let all = [reason::IRQ, reason::HVC, reason::SMC].map(|reason| LedgerRow { row: Row::Static(reason.other().raw()), ..row(1) });
        let piece = Event::SampleRows { tag: 1, from: 0, next: None, rows: 3 };
        let mut answers = Vec::new();
        for lost in 0..2 {
            for (_, row) in all.iter().enumerate().filter(|(number, _)| *number != lost) {
                sampler.take(&Event::SampleRow(*row), &exits, now);
            }
            answers.push(sampler.take(&piece, &exits, now));
        }
        assert_eq!(answers, [rows(1, 0), send(2, 0, 1)]);
        let Step::Done(sample, _) = sampler.take(&Event::NoSample { tag: 2, vm: 0, vcpu: 1 }, &exits, now) else { panic!() };
        assert_eq!((sample.vms[0].vcpus[0].rows.len(), sample.vms[0].vcpus[0].unaccounted()), (3, 0));
    }

    #[test]
    fn answers_to_a_request_that_was_repeated_do_not_mix() {
        let (mut sampler, now) = (Sampler::default(), Instant::now());
        let (names, exits) = (["a".to_owned()], Exits::new(Arch::Aarch64));
        let row = |count| Event::SampleRow(row(count));
        sampler.ask(1, now, &names);
        assert_eq!(sampler.retry(now + LIMIT), send(2, 0, 0), "the machine stalls");
        // It answers the first request, and then finds the second, for which the vCPU must be kicked first.
        assert_eq!(sampler.take(&taken(1), &exits, now), Step::Nothing);
        assert_eq!(sampler.take(&taken(2), &exits, now), rows(2, 0));
        // A piece is late as well, and comes twice.
        assert_eq!(sampler.retry(now + LIMIT * 2), send(3, 0, 0));
        sampler.take(&row(2), &exits, now);
        assert_eq!(sampler.take(&Event::SampleRows { tag: 2, from: 0, next: None, rows: 1 }, &exits, now), Step::Nothing);
        assert_eq!(sampler.take(&taken(3), &exits, now), rows(3, 0));
        sampler.take(&row(3), &exits, now);
        assert_eq!(sampler.take(&Event::SampleRows { tag: 3, from: 0, next: None, rows: 1 }, &exits, now), send(4, 0, 1));
        let Step::Done(sample, _) = sampler.take(&Event::NoSample { tag: 4, vm: 0, vcpu: 1 }, &exits, now) else { panic!() };
        assert_eq!((sample.vms[0].vcpus[0].rows.len(), sample.vms[0].vcpus[0].unaccounted()), (1, 0));
    }
}
