//! Traces of the running machine.

use stile_sched::CpuSet;
use stile_trace::{Kind, Record};
use stile_wire::Event;

use super::counts::{line_length, messages};
use super::machine::Machine;
use super::{CPUS, TRACE_STEPS, TRACES, operator};
use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::{memory, trace};

/// Bytes of the rings of all CPUs.
const RINGS: usize = CPUS * size_of::<stile_trace::Ring>();
/// Bytes of memory for a trace.
const MEMORY: u64 = trace::size(CPUS);
/// Content of the rings after [`dirty_rings`].
static DIRT: [u8; RINGS] = [0xff; RINGS];

/// Leaves something in the memory from which the next trace takes its rings, and returns its address.
fn dirty_rings() -> *const u8 {
    let block = memory::take_aligned(MEMORY, align_of::<stile_trace::Ring>() as u64).unwrap();
    let rings = Arch::physical(block.start);
    // SAFETY: the block was just allocated: it has `MEMORY` bytes, and nothing else refers to it.
    unsafe { rings.write_bytes(DIRT[0], MEMORY as usize) };
    memory::free(block);
    rings
}

/// The operator traces the machine repeatedly: every exit is in a record or counted as dropped, and other operations continue.
pub fn traces_come_and_go(machine: &mut Machine) {
    for tag in 0..TRACES {
        let from = line_length();
        operator::resume_all();
        let rings = dirty_rings();
        trace::start(tag);
        // SAFETY: `dirty_rings` initialized the bytes; the fake memory is never freed, and CPUs write records only once they are stepped.
        let rings = unsafe { std::slice::from_raw_parts(rings, RINGS) };
        assert!(rings == DIRT, "one exit clears the rings of all CPUs");
        // A request is repeated, as if its answer was lost; one for another trace is refused.
        [tag, tag + 1].into_iter().for_each(trace::start);
        let overflows = tag % 4 == 3;
        let steps = if overflows { 16 * stile_trace::SLOTS } else { TRACE_STEPS };
        for step in 0..steps {
            machine.step();
            if step % 64 == 0 {
                operator::operate();
                if !overflows {
                    trace::fetch(false);
                }
            }
        }
        trace::stop();
        // Records of CPUs that have not ended yet are not dropped.
        trace::fetch(true);
        let mut has_ended = false;
        while !has_ended {
            machine.step();
            let answer = line_length();
            trace::fetch(tag % 2 == 1);
            has_ended = messages(answer).contains(&Event::TraceFetched { more: false, ended: true });
        }
        check_trace(tag, &messages(from));
        assert!(machine.cpus.iter().all(|cpu| !cpu.recorder.is_on() && !cpu.traced.get()), "a CPU records after the end");
    }
}

fn check_trace(tag: u32, messages: &[Event]) {
    let (mut exits, mut taken, mut dropped, mut refused, mut started) = (0, 0, 0, 0, 0);
    let mut sent = [0; CPUS];
    let mut last = [0; CPUS];
    for message in messages {
        match *message {
            Event::TraceStarted { tag: of, cpus, .. } => {
                assert_eq!((of, CpuSet::from_words(cpus)), (tag, CpuSet::first_few(CPUS)));
                started += 1;
            }
            Event::Refused { .. } => refused += 1,
            Event::TraceRecords { cpu, first, records } => {
                let cpu = usize::from(cpu);
                assert_eq!(first, sent[cpu]);
                for record in records.bytes().chunks(16) {
                    let words = [&record[..8], &record[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                    let record = Record::decode(words).expect("a record");
                    assert!(record.ticks >= last[cpu] || matches!(record.kind, Kind::Leave { .. } | Kind::Ipi { .. }), "they are in order");
                    last[cpu] = record.ticks;
                    exits += u64::from(matches!(record.kind, Kind::Leave { row: 0, .. }));
                    sent[cpu] += 1;
                }
            }
            Event::TraceCpu { taken: of, exits: lost, .. } => {
                taken += of;
                dropped += lost;
            }
            _ => {}
        }
    }
    assert_eq!((started, refused), (2, 1));
    assert_eq!(exits + dropped, taken);
    assert!(taken > 20 && (tag % 2 == 1 || dropped == 0) && (tag % 4 != 3 || dropped != 0), "{taken} {dropped} {tag}");
}
