//! A trace as JSON, an object a line.

use std::io::{self, Write};

use serde_json::{Value, json};
use stile_trace::Kind;

use super::arrows::members;
use super::model::{Arrow, Event, Trace, why};

/// Writes it: the events by time, then a summary.
///
/// # Errors
/// Writing fails.
pub fn write(trace: &Trace, to: &mut impl Write) -> io::Result<()> {
    let mut order: Vec<(usize, &Event)> = trace.events.iter().enumerate().collect();
    order.sort_by_key(|(_, event)| event.at);
    for (index, event) in order {
        // Arrows are in the order of the events that they begin at.
        let first = trace.arrows.partition_point(|arrow| arrow.from < index);
        let arrows = trace.arrows.iter().skip(first).take_while(|arrow| arrow.from == index);
        writeln!(to, "{}", object(trace, event, arrows))?;
    }
    let mut last = summary(trace);
    last["event"] = json!("summary");
    writeln!(to, "{last}")
}

fn object<'t>(trace: &Trace, event: &Event, arrows: impl Iterator<Item = &'t Arrow>) -> Value {
    let mut object = json!({ "ns": trace.nanoseconds(event.at), "ticks": event.at, "cpu": event.cpu });
    if let Some((vm, vcpu)) = event.vcpu {
        object["vm"] = json!(trace.vm(vm));
        object["vcpu"] = json!(vcpu);
    }
    if let Some((row, took, left)) = event.exit() {
        let (reason, sub) = trace.name(event, row);
        object["event"] = json!("exit");
        object["reason"] = json!(reason);
        object["sub"] = json!(sub);
        object["took_ticks"] = json!(took);
        object["left_for"] = json!(left.map(why));
    }
    let arrival = |arrow: &Arrow| json!({ "vcpu": arrow.vcpu, "after_ticks": arrow.after, "via": arrow.via.word() });
    match event.kind {
        Kind::Exit { .. } | Kind::Leave { .. } => {}
        Kind::Enter => object["event"] = json!("enter"),
        Kind::Inject { intid } => {
            object["event"] = json!("inject");
            object["interrupt"] = json!(intid);
        }
        Kind::Ipi { intid, first, targets } => {
            object["event"] = json!("ipi");
            object["interrupt"] = json!(intid);
            object["targets"] = members(first, targets).collect();
            object["arrivals"] = arrows.map(arrival).collect();
        }
        Kind::Timer => {
            object["event"] = json!("timer");
            object["arrivals"] = arrows.map(arrival).collect();
        }
        Kind::Kick { from } => {
            object["event"] = json!("kick");
            object["from_cpu"] = json!(from);
            object["arrivals"] = arrows.map(arrival).collect();
        }
        Kind::Begin => object["event"] = json!("begin"),
        Kind::End => object["event"] = json!("end"),
    }
    object
}

/// Returns the numbers of events recorded, dropped and lost.
pub fn summary(trace: &Trace) -> Value {
    let (taken, exits_dropped, others_dropped) = trace.counted();
    let recorded = trace.exits().saturating_add(trace.removed);
    json!({
        "counter_hz": trace.hz,
        "events": trace.events.len(),
        "exits": trace.exits(),
        "exits_recorded": recorded,
        "exits_taken": taken,
        "exits_dropped": exits_dropped,
        "others_dropped": others_dropped,
        "unaccounted": taken.wrapping_sub(recorded.saturating_add(exits_dropped)).cast_signed(),
        "arrows": trace.arrows.len(),
        "lost": trace.lost,
        "nanoseconds": trace.span(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::example::example;

    #[test]
    fn lines_are_objects_by_time() {
        let mut text = Vec::new();
        super::write(&example(), &mut text).unwrap();
        let lines: Vec<serde_json::Value> =
            String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 14);
        assert!(lines.windows(2).all(|pair| pair[1]["ns"].is_null() || pair[0]["ns"].as_i64() <= pair[1]["ns"].as_i64()));
        assert_eq!((&lines[2]["reason"], &lines[2]["sub"]), (&"IRQ".into(), &"kick".into()));
        let arrivals: Vec<_> = lines.iter().filter(|line| line["event"] == "ipi").map(|line| &line["arrivals"]).collect();
        assert_eq!(arrivals[0], &json!([{ "vcpu": 1, "after_ticks": 15, "via": "kick" }]));
        assert_eq!(arrivals[1], &json!([{ "vcpu": 1, "after_ticks": 50, "via": "scheduler" }]));
        let summary = &lines[13];
        assert_eq!((&summary["exits"], &summary["arrows"], &summary["unaccounted"]), (&5.into(), &2.into(), &0.into()));
    }

    #[test]
    fn exits_that_are_not_wanted_are_accounted_for() {
        let mut trace = example();
        trace.keep(None, Some("kick"));
        let summary = super::summary(&trace);
        let counts =
            ["exits", "exits_recorded", "exits_dropped", "exits_taken", "unaccounted"].map(|count| summary[count].as_i64().unwrap());
        assert_eq!(counts, [2, 5, 4, 9, 0]);
    }
}
