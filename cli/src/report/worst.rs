//! The longest exits, with the events around them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::html::{escape, time};
use super::input::{Event, Input, Kind};

/// Exits that are listed.
const WORST: usize = 20;
/// Number of events shown before and after an exit, of its CPU and of its vCPU.
const AROUND: usize = 20;

/// Writes the list.
pub fn write(page: &mut String, input: &Input) {
    let index = Index::new(input);
    let _ = writeln!(
        page,
        "<h2>Longest exits</h2>\n<p>Each with up to {AROUND} events before and after it of its CPU, and of its vCPU wherever that was, \
         with interrupts that others sent to it. Times are relative to the exit.</p>"
    );
    for (number, place) in longest(input).into_iter().enumerate() {
        let Some((event, exit)) = input.events.get(place).and_then(|event| event.exit().map(|exit| (event, exit))) else { continue };
        let _ = writeln!(
            page,
            "<details{}><summary><b>{}</b><span>{} {}</span><span class=soft>{} on CPU {} at {:.3} ms</span></summary>",
            if number == 0 { " open" } else { "" },
            time(input.nanoseconds(exit.took_ticks)),
            escape(&exit.reason),
            escape(&exit.sub),
            vcpu(event),
            event.cpu,
            event.ns as f64 / 1e6,
        );
        *page += "<div class=scroll><table><tr><th>At<th class=name>Event<th>Took<th class=name>vCPU<th>CPU\n";
        for around in index.around(input, place) {
            let Some(other) = input.events.get(around) else { continue };
            row(page, input, other, event, around == place);
        }
        *page += "</table></div></details>\n";
    }
}

/// The places of the longest exits, the longest first.
fn longest(input: &Input) -> Vec<usize> {
    let mut exits: Vec<(u64, usize)> =
        input.events.iter().enumerate().filter_map(|(place, event)| Some((event.exit()?.took_ticks, place))).collect();
    exits.sort_unstable_by_key(|(ticks, place)| (std::cmp::Reverse(*ticks), *place));
    exits.into_iter().take(WORST).map(|(_, place)| place).collect()
}

/// The places of events in the trace.
#[derive(Default)]
struct Index<'i> {
    of_cpu: BTreeMap<u16, Vec<usize>>,
    /// Of a vCPU: its own, and interrupts that others sent to it.
    of_vcpu: BTreeMap<(&'i str, u8), Vec<usize>>,
}

impl<'i> Index<'i> {
    fn new(input: &'i Input) -> Self {
        let mut index = Self::default();
        for (place, event) in input.events.iter().enumerate() {
            index.of_cpu.entry(event.cpu).or_default().push(place);
            let Some((vm, vcpu)) = event.loaded() else { continue };
            let targets = if let Kind::Ipi { targets, .. } = &event.kind { targets.as_slice() } else { &[] };
            let concerned: BTreeSet<u8> = targets.iter().copied().chain([vcpu]).collect();
            concerned.into_iter().for_each(|vcpu| index.of_vcpu.entry((vm, vcpu)).or_default().push(place));
        }
        index
    }

    /// The places of events around the one at `place`, and its own.
    fn around(&self, input: &Input, place: usize) -> BTreeSet<usize> {
        let Some(event) = input.events.get(place) else { return BTreeSet::new() };
        let lists = [self.of_cpu.get(&event.cpu), event.loaded().and_then(|vcpu| self.of_vcpu.get(&vcpu))];
        let near = |list: &Vec<usize>| {
            let at = list.partition_point(|other| *other < place);
            let range = at.saturating_sub(AROUND)..list.len().min(at + AROUND + 1);
            list.get(range).unwrap_or_default().to_vec()
        };
        lists.into_iter().flatten().flat_map(near).collect()
    }
}

/// Writes an event near the exit `of`.
fn row(page: &mut String, input: &Input, event: &Event, of: &Event, is_it: bool) {
    let class = match (is_it, event.cpu == of.cpu) {
        (true, _) => " class=it",
        (false, true) => "",
        (false, false) => " class=soft",
    };
    let sign = if event.ticks < of.ticks { "-" } else { "+" };
    let at = time(input.nanoseconds(event.ticks.abs_diff(of.ticks)));
    let took = event.exit().map_or_else(String::new, |exit| time(input.nanoseconds(exit.took_ticks)));
    let (vcpu, text) = (vcpu(event), escape(&text(&event.kind)));
    let _ = writeln!(page, "<tr{class}><td>{sign}{at}<td class=name>{text}<td>{took}<td class=name>{vcpu}<td>{}", event.cpu);
}

/// The vCPU that was loaded, as HTML.
fn vcpu(event: &Event) -> String {
    event.loaded().map_or_else(String::new, |(vm, vcpu)| format!("{} vCPU {vcpu}", escape(vm)))
}

fn text(kind: &Kind) -> String {
    match kind {
        Kind::Exit(exit) => {
            let left = exit.left_for.as_ref().map_or_else(String::new, |left| format!(", left for: {left}"));
            format!("{} {}{left}", exit.reason, exit.sub)
        }
        Kind::Enter => "entered".into(),
        Kind::Ipi { interrupt, targets, .. } => {
            let targets: Vec<String> = targets.iter().map(u8::to_string).collect();
            format!("sends interrupt {interrupt} to vCPU {}", targets.join(", "))
        }
        Kind::Inject { interrupt } => format!("interrupt {interrupt} pending"),
        Kind::Timer { .. } => "timer expires".into(),
        Kind::Kick { from_cpu } => format!("kicked by CPU {from_cpu}"),
        Kind::Begin => "recording begins".into(),
        Kind::End => "recording ends".into(),
        Kind::Other => "?".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::input::Exit;
    use super::*;

    fn event(ticks: i64, cpu: u16, vcpu: u8, kind: Kind) -> Event {
        Event { ns: ticks * 1_000, ticks, cpu, vm: "web".into(), vcpu, kind }
    }

    fn exit(took_ticks: u64) -> Kind {
        Kind::Exit(Exit { took_ticks, reason: "HVC".into(), sub: "<x>".into(), left_for: Some("wait".into()) })
    }

    fn ipi(target: u8) -> Kind {
        Kind::Ipi { interrupt: 3, targets: vec![target], arrivals: Vec::new() }
    }

    #[test]
    fn the_longest_exit_comes_first_with_its_cpu_and_vcpu() {
        let events = vec![
            event(0, 1, 1, ipi(0)),
            event(1, 1, 1, ipi(2)),
            event(2, 0, 0, exit(500)),
            event(3, 0, 7, Kind::Enter),
            event(4, 1, 0, Kind::Inject { interrupt: 9 }),
            event(5, 0, 7, exit(700)),
        ];
        let input = Input { events, hz: 1_000_000, ..Input::default() };
        let mut page = String::new();
        write(&mut page, &input);
        let (first, second) = page.split_once("</details>").unwrap();
        assert!(
            first.contains(
                "<details open><summary><b>700.00 us</b><span>HVC &lt;x&gt;</span><span class=soft>web vCPU 7 on CPU 0 at 0.005 ms"
            )
        );
        assert_eq!(first.matches("<tr").count(), 1 + 3, "the header, and events of CPU 0");
        let rows: Vec<&str> = second.lines().filter(|line| line.starts_with("<tr") && line.contains("<td>")).collect();
        let expected = [
            "<tr class=soft><td>-2.00 us<td class=name>sends interrupt 3 to vCPU 0<td><td class=name>web vCPU 1<td>1",
            "<tr class=it><td>+0 ns<td class=name>HVC &lt;x&gt;, left for: wait<td>500.00 us<td class=name>web vCPU 0<td>0",
            "<tr><td>+1.00 us<td class=name>entered<td><td class=name>web vCPU 7<td>0",
            "<tr class=soft><td>+2.00 us<td class=name>interrupt 9 pending<td><td class=name>web vCPU 0<td>1",
            "<tr><td>+3.00 us<td class=name>HVC &lt;x&gt;, left for: wait<td>700.00 us<td class=name>web vCPU 7<td>0",
        ];
        assert_eq!(rows, expected);
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let kind = prop_oneof![(0..50_u64).prop_map(exit), (0..4_u8).prop_map(ipi), Just(Kind::Enter)];
        let place = (0..3_u8, 0..4_u8, kind);
        proptest::collection::vec(place, 0..200)
            .prop_map(|places| (0..).zip(places).map(|(at, (cpu, vcpu, kind))| event(at, u16::from(cpu), vcpu, kind)).collect())
    }

    proptest! {
        /// The plain model walks from the exit in both directions.
        #[test]
        fn events_around_are_the_nearest(events in events()) {
            let input = Input { events, hz: 1, ..Input::default() };
            let index = Index::new(&input);
            let places = longest(&input);
            let took = |place: usize| input.events[place].exit().unwrap().took_ticks;
            prop_assert!(places.windows(2).all(|pair| took(pair[0]) >= took(pair[1])));
            prop_assert_eq!(places.len(), input.exits().count().min(WORST));
            for place in places {
                let of = &input.events[place];
                let on_cpu = |other: &usize| input.events[*other].cpu == of.cpu;
                let of_vcpu = |other: &usize| {
                    let event = &input.events[*other];
                    event.vcpu == of.vcpu || matches!(&event.kind, Kind::Ipi { targets, .. } if targets.contains(&of.vcpu))
                };
                let mut expected = BTreeSet::from([place]);
                expected.extend((0..place).rev().filter(on_cpu).take(AROUND));
                expected.extend((0..place).rev().filter(of_vcpu).take(AROUND));
                expected.extend((place + 1..input.events.len()).filter(on_cpu).take(AROUND));
                expected.extend((place + 1..input.events.len()).filter(of_vcpu).take(AROUND));
                prop_assert_eq!(index.around(&input, place), expected);
            }
        }
    }
}
