//! Arrows from interrupts between vCPUs, and from kicks between CPUs, to their arrival.
//!
//! An interrupt arrives with the target's first entry, after it was sent, that can let interrupts in: the end of a kick's exit, or an entry
//! that the scheduler chose.

use std::collections::BTreeMap;

use stile_trace::Kind;

use super::model::{Arrow, Event, Trace, Via};

/// A target's events, by time.
#[derive(Default)]
struct Target {
    /// Entries that can let interrupts in: their time, and the index of the event.
    entries: Vec<(i64, usize)>,
    /// The beginnings of all other exits.
    others: Vec<i64>,
}

/// Finds the arrows. `posts`: the processor may deliver an interrupt to a vCPU that runs without an exit. If such a
/// target exits for another reason next, the arrival is not in the trace.
pub fn find(trace: &Trace, posts: bool) -> Vec<Arrow> {
    let mut targets: BTreeMap<(u8, u8), Target> = BTreeMap::new();
    for (index, event) in trace.events.iter().enumerate() {
        let Some(vcpu) = event.vcpu else { continue };
        let lets_in = match event.kind {
            Kind::Enter => true,
            Kind::Exit { row, .. } => is_notification(trace, event, row),
            Kind::Leave { .. } => false,
            _ => continue,
        };
        let target = targets.entry(vcpu).or_default();
        if lets_in {
            target.entries.push((event.end(), index));
        } else {
            target.others.push(event.at);
        }
    }
    for target in targets.values_mut() {
        target.entries.sort_unstable();
        target.others.sort_unstable();
    }
    let mut arrows = Vec::new();
    for (from, event) in trace.events.iter().enumerate() {
        let (Kind::Ipi { first, targets: set, .. }, Some((vm, sender))) = (event.kind, event.vcpu) else { continue };
        let sent = sent_by(&trace.events, from);
        for vcpu in members(first, set).filter(|vcpu| *vcpu != sender) {
            let Some(target) = targets.get(&(vm, vcpu)) else { continue };
            let next = target.entries.partition_point(|(end, _)| *end < event.at);
            let Some(&(end, to)) = target.entries.get(next) else { continue };
            let other = target.others.get(target.others.partition_point(|at| *at <= sent));
            if posts && other.is_some_and(|other| *other < trace.events.get(to).map_or(end, |event| event.at)) {
                continue;
            }
            let via = if trace.events.get(to).is_some_and(|event| event.kind == Kind::Enter) { Via::Scheduler } else { Via::Kick };
            arrows.push(Arrow { from, to, vcpu, after: end.saturating_sub(event.at), via });
        }
    }
    arrows
}

/// Finds the arrows of kicks: each leads to the next entry on the CPU that it made reschedule, whose vCPU it becomes an
/// event of.
pub fn find_kicks(trace: &mut Trace) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    let mut entry: Option<(usize, Event)> = None;
    // Events are by CPU, in the order of their records.
    for (from, event) in trace.events.iter_mut().enumerate().rev() {
        match event.kind {
            Kind::Enter => entry = Some((from, *event)),
            Kind::Kick { .. } => {
                if let Some((to, Event { at, vcpu: Some(vcpu), .. })) = entry.filter(|(_, entry)| entry.cpu == event.cpu) {
                    event.vcpu = Some(vcpu);
                    arrows.push(Arrow { from, to, vcpu: vcpu.1, after: at.saturating_sub(event.at), via: Via::Scheduler });
                }
            }
            _ => {}
        }
    }
    arrows.reverse();
    arrows
}

/// The vCPUs of a set that begins with `first`.
pub fn members(first: u8, set: u32) -> impl Iterator<Item = u8> {
    (0..32).filter(move |bit| set >> bit & 1 != 0).map(move |bit| first.saturating_add(bit))
}

/// End of the exit that sent an interrupt: its record follows on the same CPU.
fn sent_by(events: &[Event], from: usize) -> i64 {
    let Some((ipi, rest)) = events.get(from..).and_then(|events| events.split_first()) else { return i64::MIN };
    let exit = rest.iter().take_while(|event| event.cpu == ipi.cpu).find(|event| event.exit().is_some());
    exit.filter(|exit| exit.at == ipi.at).map_or(ipi.at, Event::end)
}

/// The exit handles a kick, or a posted interrupt that the processor did not deliver itself.
fn is_notification(trace: &Trace, event: &Event, row: u16) -> bool {
    matches!(trace.name(event, row).1.as_str(), "kick" | "posted")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::example::example;
    use super::*;

    fn ends(trace: &Trace, posts: bool) -> Vec<(usize, usize)> {
        find(trace, posts).iter().map(|arrow| (arrow.from, arrow.to)).collect()
    }

    #[test]
    fn interrupts_arrive_with_the_next_entry_that_lets_them_in() {
        assert_eq!(ends(&example(), false), [(1, 9), (3, 11)]);
    }

    #[test]
    fn the_processor_delivers_to_a_target_that_exits_for_another_reason_next() {
        let mut trace = example();
        assert_eq!(ends(&trace, true), [(1, 9), (3, 11)]);
        // The target runs when the second interrupt is sent, and waits later.
        trace.events[10].at = 420;
        assert_eq!(ends(&trace, false), [(1, 9), (3, 11)]);
        assert_eq!(ends(&trace, true), [(1, 9)]);
    }

    #[test]
    fn a_kick_leads_to_the_next_entry_of_its_cpu() {
        let mut trace = example();
        let (leave, end) = (10, 12);
        let kick = |at| Event { cpu: 1, at, vcpu: None, kind: Kind::Kick { from: 0 } };
        trace.events.insert(end, kick(460));
        trace.events.insert(leave + 1, kick(440));
        let found = find_kicks(&mut trace);
        let arrow = Arrow { from: leave + 1, to: leave + 2, vcpu: 1, after: 10, via: Via::Scheduler };
        assert_eq!(found, [arrow], "no entry follows the second one");
        assert_eq!((trace.events[leave + 1].vcpu, trace.events[end + 1].vcpu), (Some((0, 1)), None));
    }

    /// Events of three vCPUs, one on each CPU, in the order of a CPU's records: an IPI before the exit that sent it.
    fn traces() -> impl Strategy<Value = Trace> {
        let kick = stile_ledger::aarch64::IRQ_KICK.raw();
        let hvc = stile_ledger::aarch64::reason::HVC.other().raw();
        let step = (0..3_u8, 0..50_i64, 0..4_u8, 0..8_u32, 0..30_u32);
        proptest::collection::vec(step, 0..60).prop_map(move |steps| {
            let mut trace = example();
            trace.events.clear();
            for cpu in 0..3 {
                let mut at = 0;
                for &(_, after, kind, targets, took) in steps.iter().filter(|step| step.0 == cpu) {
                    at += after;
                    let mut push = |kind| trace.events.push(Event { cpu: cpu.into(), at, vcpu: Some((0, cpu)), kind });
                    match kind {
                        0 => push(Kind::Enter),
                        1 => push(Kind::Exit { row: kick, took }),
                        2 => push(Kind::Leave { row: hvc, took, why: 2 }),
                        _ => {
                            push(Kind::Ipi { intid: 1, first: 0, targets });
                            push(Kind::Exit { row: hvc, took });
                        }
                    }
                    at += i64::from(took);
                }
            }
            trace
        })
    }

    proptest! {
        /// A plain model: examines every event for every interrupt.
        #[test]
        fn arrows_are_those_of_a_search_through_all_events(trace in traces()) {
            let name = |event: &Event| event.exit().map(|(row, ..)| trace.name(event, row).1);
            let mut expected = Vec::new();
            for (from, ipi) in trace.events.iter().enumerate() {
                let Kind::Ipi { targets, .. } = ipi.kind else { continue };
                for vcpu in (0..3).filter(|vcpu| targets >> vcpu & 1 != 0 && *vcpu != ipi.cpu) {
                    let entries = trace.events.iter().enumerate().filter(|(_, event)| {
                        event.cpu == vcpu && event.end() >= ipi.at && (event.kind == Kind::Enter || name(event).as_deref() == Some("kick"))
                    });
                    expected.extend(entries.min_by_key(|(index, event)| (event.end(), *index)).map(|(to, event)| (from, to, event.end() - ipi.at)));
                }
            }
            let found = find(&trace, false);
            prop_assert_eq!(found.iter().map(|arrow| (arrow.from, arrow.to, arrow.after)).collect::<Vec<_>>(), expected);
            // Interrupts that the processor may have delivered itself are left out; nothing is added.
            prop_assert!(find(&trace, true).iter().all(|arrow| found.contains(arrow)));
            prop_assert!(found.iter().all(|arrow| arrow.after >= 0));
        }
    }
}
