//! The gathering of the live ledger from what comes over the line: a guest, or a damaged line, may send anything.

use std::time::{Duration, Instant};

use stile::config::Arch;
use stile::session::{Exits, Sampler, SamplerStep as Step};
use stile_board::{MAX_VCPUS, MAX_VMS};
use stile_wire::{Channel, Command, Decoder, Encoder, Event, LedgerRow, Row, Sample};

use crate::marks::reach;
use crate::target::Target;

/// The sampler, with a line's bytes as the answers to what it asks for.
pub const SAMPLER: Target = Target {
    name: "sampler",
    run: gather,
    seeds: lines,
    mutations: 4000,
    marks: &["a sample", "more rows", "none", "complete", "asked again"],
};

/// A line that answers for machines of up to three VMs, and the same in an order in which nothing was asked for.
fn lines() -> Vec<Vec<u8>> {
    let row = |vm, vcpu, row| Event::SampleRow(LedgerRow { vm, vcpu, row, count: 3, ticks: u64::MAX, min: 1, max: 2 });
    let mut events = Vec::new();
    // The sampler's tags are 1, 2, and so on.
    for vm in 0..3 {
        let tag = 2 * u16::from(vm) + 1;
        events.push(Event::Sample(Sample { tag, vm, vcpu: 0, hz: 1, now: u64::MAX, taken: 3, ran: 1, waited: 0 }));
        events.extend([Row::Static(0), Row::Static(u16::MAX), Row::Dynamic { kind: 1, key: 0x1010 }].map(|named| row(vm, 0, named)));
        events.push(Event::SampleRows { tag, from: 0, next: Some(5), rows: 3 });
        events.push(row(vm, 0, Row::Static(5)));
        events.push(Event::SampleRows { tag, from: 5, next: None, rows: 1 });
        events.push(Event::NoSample { tag: tag + 1, vm, vcpu: 1 });
    }
    let line = |events: &[Event]| {
        // The first byte is the number of VMs.
        let (mut line, mut encoder) = (vec![3], Encoder::new());
        for (vm, event) in (0..).zip(events) {
            encoder.event(event, &mut |byte| line.push(byte));
            encoder.bytes(Channel::console(vm % 3), b"a", &mut |byte| line.push(byte));
        }
        line
    };
    let straight = line(&events);
    events.reverse();
    let mut damaged = straight.clone();
    let middle = damaged.len() / 2;
    damaged[middle..].iter_mut().step_by(9).for_each(|byte| *byte ^= 0x40);
    vec![straight, line(&events), damaged]
}

fn gather(bytes: &[u8]) {
    let Some((&vms, bytes)) = bytes.split_first() else { return };
    let names: Vec<String> = (0..vms % 4).map(|vm| vm.to_string()).collect();
    let exits = Exits::new(Arch::Aarch64);
    let mut now = Instant::now();
    let (mut sampler, mut decoder) = (Sampler::default(), Decoder::new());
    let mut step = sampler.ask(1, now, &names);
    for &byte in bytes {
        check(&step, &names);
        if let Step::Done(..) = step {
            reach("complete");
            step = sampler.ask(1, now, &names);
        }
        match decoder.push(byte).and_then(|item| item.event()) {
            Some(Ok(event)) => {
                match event {
                    Event::Sample(_) => reach("a sample"),
                    Event::SampleRows { next: Some(_), .. } => reach("more rows"),
                    Event::NoSample { .. } => reach("none"),
                    _ => {}
                }
                step = sampler.take(&event, &exits, now);
            }
            // Nothing comes for a while.
            Some(Err(_)) => {
                now += Duration::from_secs(2);
                step = sampler.retry(now);
                reach("asked again");
            }
            None => {}
        }
    }
}

/// Requests name existing things, and a sample has a bounded size.
fn check(step: &Step, names: &[String]) {
    match step {
        Step::Send(Command::Sample { vm, vcpu, .. }) => {
            assert!(usize::from(*vm) < names.len().min(MAX_VMS) && usize::from(*vcpu) < MAX_VCPUS);
        }
        Step::Send(Command::SampleRows { .. }) => {}
        Step::Send(other) => panic!("the sampler sends {other:?}"),
        Step::Done(sample, clients) => {
            assert!(sample.vms.len() == names.len() && clients.iter().all(|&client| client == 1));
            let vcpus = |vm: &stile::control::sample::VmSample| vm.vcpus.len() <= MAX_VCPUS;
            assert!(sample.vms.iter().all(vcpus));
        }
        Step::Nothing => {}
    }
}
