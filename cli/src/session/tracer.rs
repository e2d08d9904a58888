//! Fetches a trace from the machine's own Stile in pieces, and the meaning of their rows at the end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stile_board::CpuSet;
use stile_ledger::DYNAMIC_BASE;
use stile_trace::{Kind, Record, id_of, vcpu_of};
use stile_wire::{Command, Event};

use super::exits::{Exits, key};
use crate::control::protocol::{Bytes, CpuCounts, Reply, RowName};
use crate::control::server::ClientId;

/// Time without an answer after which a command is repeated: a frame was lost.
const LIMIT: Duration = Duration::from_secs(1);

/// Maximum time of fetching records after the end: full rings take minutes on a slow line.
const REST: Duration = Duration::from_secs(10);

/// Time after a piece with which all rings were empty.
const PAUSE: Duration = Duration::from_millis(10);

/// The trace, if there is one.
#[derive(Debug, Default)]
pub struct Tracer(Option<Trace>);

#[derive(Debug)]
struct Trace {
    /// `None` after the client has disconnected: the remaining records are discarded.
    client: Option<ClientId>,
    tag: u32,
    phase: Phase,
    /// Time of the last request of a piece.
    asked: Instant,
    /// Time of the next command.
    due: Instant,
    /// Time at which remaining records are dropped, after the request to stop.
    discard_at: Option<Instant>,
    /// Records that were sent by each CPU so far.
    sent: [u32; stile_board::MAX_CPUS],
    /// Records lost on the line.
    lost: u64,
    cpus: Vec<CpuCounts>,
    /// Dynamic rows that the records have: vCPU and number.
    rows: BTreeSet<(u16, u16)>,
    names: Vec<RowName>,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// The first command is on its way; `again`: an earlier trace was ended for it.
    Starting { again: bool },
    /// An earlier trace, of an ended process, is being stopped.
    Clearing,
    /// Records are arriving, perhaps after the request to stop.
    Fetching,
    /// The names of rows are arriving.
    Naming,
}

/// Actions to take: commands for Stile, and replies to the client.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// In this order.
    pub commands: Vec<Command>,
    /// Likewise.
    pub replies: Vec<(ClientId, Reply)>,
}

impl Tracer {
    /// A client wants a trace. False if another one has one.
    pub fn start(&mut self, client: ClientId, tag: u32, now: Instant) -> Option<Steps> {
        if self.0.is_some() {
            return None;
        }
        self.0 = Some(Trace {
            client: Some(client),
            tag,
            phase: Phase::Starting { again: false },
            asked: now,
            due: now + LIMIT,
            discard_at: None,
            sent: [0; stile_board::MAX_CPUS],
            lost: 0,
            cpus: Vec::new(),
            rows: BTreeSet::new(),
            names: Vec::new(),
        });
        Some(Steps { commands: vec![Command::TraceStart { tag }], replies: Vec::new() })
    }

    /// Ends the client's trace. False if it has none.
    pub fn stop(&mut self, client: ClientId, now: Instant) -> Option<Steps> {
        let trace = self.0.as_mut().filter(|trace| trace.client == Some(client))?;
        trace.discard_at.get_or_insert(now + REST);
        Some(Steps { commands: vec![Command::TraceStop], replies: Vec::new() })
    }

    /// Handles a disconnected client: its trace is stopped.
    pub fn forget(&mut self, client: ClientId, now: Instant) -> Steps {
        match &mut self.0 {
            Some(trace) if trace.client == Some(client) => {
                trace.client = None;
                trace.discard_at = Some(now);
                Steps { commands: vec![Command::TraceStop], replies: Vec::new() }
            }
            _ => Steps::default(),
        }
    }

    /// Time at which [`Tracer::look`] is due.
    pub fn due(&self) -> Option<Instant> {
        self.0.as_ref().map(|trace| trace.due)
    }

    /// Gives the commands that are due.
    pub fn look(&mut self, now: Instant) -> Steps {
        let Some(trace) = self.0.as_mut().filter(|trace| now >= trace.due) else { return Steps::default() };
        let mut steps = Steps::default();
        if let Phase::Starting { .. } = trace.phase {
            steps.commands.push(Command::TraceStart { tag: trace.tag });
        }
        trace.ask(&mut steps, now);
        steps
    }

    /// Processes a message; `exits` has the names of rows.
    pub fn take(&mut self, event: &Event, exits: &Exits, now: Instant) -> Steps {
        let mut steps = Steps::default();
        if let Some(trace) = &mut self.0
            && trace.take(event, exits, now, &mut steps)
        {
            self.0 = None;
        }
        steps
    }
}

impl Trace {
    /// Asks for the next piece.
    fn ask(&mut self, steps: &mut Steps, now: Instant) {
        self.due = now + LIMIT;
        match self.phase {
            Phase::Fetching | Phase::Clearing => {
                let discard = self.phase == Phase::Clearing || self.discard_at.is_some_and(|at| now >= at);
                if discard || self.discard_at.is_some() {
                    // An earlier stop command may have been lost, and records would arrive forever.
                    steps.commands.push(Command::TraceStop);
                }
                steps.commands.push(Command::TraceFetch { discard });
                self.asked = now;
            }
            Phase::Naming => {
                let next = self.rows.first();
                steps.commands.extend(next.and_then(|&(id, number)| vcpu_of(id).map(|(vm, vcpu)| Command::TraceRow { vm, vcpu, number })));
            }
            Phase::Starting { .. } => {}
        }
    }

    fn reply(&self, steps: &mut Steps, reply: Reply) {
        steps.replies.extend(self.client.map(|client| (client, reply)));
    }

    /// True at the end.
    fn take(&mut self, event: &Event, exits: &Exits, now: Instant, steps: &mut Steps) -> bool {
        match *event {
            Event::TraceStarted { tag, hz, now: at, cpus } if tag == self.tag && matches!(self.phase, Phase::Starting { .. }) => {
                self.phase = Phase::Fetching;
                let cpus = CpuSet::from_words(cpus).iter().map(|cpu| cpu.index() as u16).collect();
                self.reply(steps, Reply::TraceStarted { hz, now: at, cpus, vms: Vec::new() });
                self.ask(steps, now);
            }
            Event::Refused { tag, why } if tag == self.tag => match self.phase {
                // The trace may be an earlier one, whose client is unknown.
                Phase::Starting { again: false } => {
                    self.phase = Phase::Clearing;
                    self.ask(steps, now);
                }
                Phase::Starting { again: true } => {
                    self.reply(steps, Reply::Refused { message: String::from_utf8_lossy(why.bytes()).into_owned() });
                    return true;
                }
                _ => {}
            },
            Event::TraceRecords { cpu, first, records } if self.phase == Phase::Fetching => {
                self.due = now + LIMIT;
                let Some(sent) = self.sent.get_mut(usize::from(cpu)) else { return false };
                let bytes = records.bytes();
                self.lost += u64::from(first.wrapping_sub(*sent));
                *sent = first.wrapping_add((bytes.len() / 16) as u32);
                for record in self::records(bytes) {
                    if let Kind::Exit { row, .. } | Kind::Leave { row, .. } = record.kind
                        && usize::from(row) >= DYNAMIC_BASE
                    {
                        self.rows.insert((record.vcpu, row));
                    }
                }
                self.reply(steps, Reply::TraceRecords { cpu, records: Bytes(bytes.to_vec()) });
            }
            Event::TraceCpu { cpu, taken, exits, others } => self.cpus.push(CpuCounts { cpu, taken, exits, others }),
            Event::TraceFetched { more, ended } if matches!(self.phase, Phase::Fetching | Phase::Clearing) => {
                if ended {
                    self.phase = match self.phase {
                        Phase::Clearing => Phase::Starting { again: true },
                        _ => Phase::Naming,
                    };
                    if self.phase == Phase::Naming {
                        return self.name_next(steps, now);
                    }
                    self.cpus.clear();
                    steps.commands.push(Command::TraceStart { tag: self.tag });
                    self.due = now + LIMIT;
                } else if !more {
                    self.due = now + PAUSE;
                } else if self.discard_at.is_some() || self.phase == Phase::Clearing {
                    self.ask(steps, now);
                } else {
                    // Half of the time of the CPU that sends is its guest's.
                    self.due = now + now.duration_since(self.asked);
                }
            }
            Event::TraceRow { vm, vcpu, number, row } if self.phase == Phase::Naming => {
                let id = id_of(vm, vcpu);
                if self.rows.remove(&(id, number)) {
                    if let Some((reason, sub)) = row.and_then(key).and_then(|key| exits.name(key)) {
                        self.names.push(RowName { vcpu: id, row: number, reason, sub });
                    }
                    return self.name_next(steps, now);
                }
            }
            _ => {}
        }
        false
    }

    /// Asks for the name of the next row. True at the end.
    fn name_next(&mut self, steps: &mut Steps, now: Instant) -> bool {
        self.rows.retain(|(id, _)| vcpu_of(*id).is_some());
        let ended = self.rows.is_empty() || self.client.is_none();
        if ended {
            let (cpus, rows) = (std::mem::take(&mut self.cpus), std::mem::take(&mut self.names));
            self.reply(steps, Reply::TraceEnded { cpus, lost: self.lost, rows });
        } else {
            self.ask(steps, now);
        }
        ended
    }
}

/// The records of a piece.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Record> + '_ {
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
    bytes.chunks_exact(16).filter_map(move |record| Record::decode([word(&record[..8]), word(&record[8..])]))
}

#[cfg(test)]
mod tests {
    use stile_board::CpuId;
    use stile_wire::{Records, Row, Text};

    use super::*;
    use crate::config::Arch;

    const FETCH: Command = Command::TraceFetch { discard: false };

    fn cpus(numbers: &[usize]) -> [u64; 8] {
        let set: CpuSet = numbers.iter().filter_map(|&number| CpuId::new(number)).collect();
        *set.words()
    }

    fn piece(first: u32, of: &[Record]) -> Event {
        let bytes: Vec<u8> = of.iter().flat_map(|record| record.encode()).flat_map(u64::to_le_bytes).collect();
        Event::TraceRecords { cpu: 1, first, records: Records::new(&bytes) }
    }

    fn started(now: Instant) -> Tracer {
        let mut tracer = Tracer::default();
        assert_eq!(tracer.start(7, 3, now).unwrap().commands, [Command::TraceStart { tag: 3 }]);
        tracer
    }

    #[test]
    fn a_trace_is_fetched_to_its_end_and_what_is_lost_is_counted() {
        let (exits, now) = (Exits::new(Arch::Aarch64), Instant::now());
        let mut tracer = started(now);
        assert_eq!(tracer.start(8, 4, now), None, "one at a time");
        let steps = tracer.take(&Event::TraceStarted { tag: 3, hz: 1000, now: 5, cpus: cpus(&[1, 300]) }, &exits, now);
        let started = Reply::TraceStarted { hz: 1000, now: 5, cpus: vec![1, 300], vms: vec![] };
        assert_eq!((steps.commands.len(), steps.replies), (1, vec![(7, started)]));
        let exit = Record { ticks: 9, vcpu: id_of(1, 0), kind: Kind::Exit { row: 900, took: 1 } };
        assert!(matches!(tracer.take(&piece(0, &[exit; 3]), &exits, now).replies[..], [(7, Reply::TraceRecords { cpu: 1, .. })]));
        let later = now + PAUSE / 2;
        assert_eq!(tracer.take(&Event::TraceFetched { more: true, ended: false }, &exits, later), Steps::default());
        assert_eq!((tracer.due(), tracer.look(later)), (Some(now + PAUSE), Steps::default()));
        assert_eq!(tracer.look(now + PAUSE).commands, [FETCH]);
        // A piece of two records was lost.
        tracer.take(&piece(5, &[exit]), &exits, now);
        assert_eq!(tracer.take(&Event::TraceFetched { more: false, ended: false }, &exits, now).commands, []);
        assert_eq!(tracer.due(), Some(now + PAUSE));
        assert_eq!(tracer.look(now + PAUSE).commands, [FETCH]);
        assert_eq!(tracer.stop(8, now), None);
        assert_eq!(tracer.stop(7, now).unwrap().commands, [Command::TraceStop]);
        let more = Event::TraceFetched { more: true, ended: false };
        assert_eq!(tracer.take(&more, &exits, now).commands, [Command::TraceStop, FETCH], "records come on: was the first lost?");
        assert_eq!(tracer.look(now + REST).commands, [Command::TraceStop, Command::TraceFetch { discard: true }], "a slow line");
        tracer.take(&Event::TraceCpu { cpu: 1, taken: 9, exits: 4, others: 1 }, &exits, now);
        let asked = Command::TraceRow { vm: 1, vcpu: 0, number: 900 };
        assert_eq!(tracer.take(&Event::TraceFetched { more: false, ended: true }, &exits, now).commands, [asked]);
        assert_eq!(tracer.look(now + LIMIT).commands, [asked], "the answer was lost");
        let row = Some(Row::Dynamic { kind: stile_ledger::aarch64::reason::MMIO.raw().into(), key: 4 });
        let steps = tracer.take(&Event::TraceRow { vm: 1, vcpu: 0, number: 900, row }, &exits, now);
        let [(7, Reply::TraceEnded { cpus, lost: 2, rows })] = &steps.replies[..] else { panic!("{steps:?}") };
        assert_eq!(cpus, &[CpuCounts { cpu: 1, taken: 9, exits: 4, others: 1 }]);
        assert_eq!((rows[0].vcpu, rows[0].row), (id_of(1, 0), 900));
        assert_eq!(tracer.due(), None);
    }

    #[test]
    fn an_earlier_trace_is_ended_once() {
        let (exits, now) = (Exits::new(Arch::Aarch64), Instant::now());
        let mut tracer = started(now);
        assert_eq!(tracer.look(now + LIMIT).commands, [Command::TraceStart { tag: 3 }], "the answer was lost");
        let refused = Event::Refused { tag: 3, why: Text::new(b"no memory") };
        assert_eq!(tracer.take(&refused, &exits, now).commands[..2], [Command::TraceStop, Command::TraceFetch { discard: true }]);
        let ended = Event::TraceFetched { more: false, ended: true };
        assert_eq!(tracer.take(&ended, &exits, now).commands, [Command::TraceStart { tag: 3 }]);
        assert_eq!(tracer.take(&ended, &exits, now), Steps::default());
        let message = "no memory".to_owned();
        assert_eq!(tracer.take(&refused, &exits, now).replies, [(7, Reply::Refused { message })]);
        assert_eq!(tracer.due(), None);
    }

    #[test]
    fn a_trace_whose_client_is_gone_is_ended() {
        let (exits, now) = (Exits::new(Arch::Aarch64), Instant::now());
        let mut tracer = started(now);
        tracer.take(&Event::TraceStarted { tag: 3, hz: 1000, now: 5, cpus: cpus(&[0]) }, &exits, now);
        assert_eq!(tracer.forget(6, now), Steps::default());
        assert_eq!(tracer.forget(7, now).commands, [Command::TraceStop]);
        let exit = Record { ticks: 9, vcpu: id_of(1, 0), kind: Kind::Exit { row: 900, took: 1 } };
        assert_eq!(tracer.take(&piece(0, &[exit]), &exits, now), Steps::default());
        assert_eq!(tracer.take(&Event::TraceFetched { more: false, ended: true }, &exits, now), Steps::default());
        assert_eq!(tracer.due(), None);
    }
}
