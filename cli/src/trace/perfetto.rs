//! A trace for Perfetto's viewer: a track for each CPU and each vCPU, and an arrow from each interrupt between vCPUs to its arrival.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use stile_trace::Kind;

use super::model::{Event, Trace, why};
use super::proto::{self, DebugAnnotation, TracePacket, TrackDescriptor, TrackEvent, kind};

/// The tracks: their numbers in the file.
const CPUS: u64 = 1;
const VMS: u64 = 1 << 16;
const VCPUS: u64 = 2 << 16;

/// The one sequence of packets.
const SEQUENCE: u32 = 1;

fn cpu_track(cpu: u16) -> u64 {
    CPUS + 1 + u64::from(cpu)
}

fn vcpu_track((vm, vcpu): (u8, u8)) -> u64 {
    VCPUS + u64::from(vm) * 256 + u64::from(vcpu)
}

/// Encodes it.
pub fn encode(trace: &Trace) -> Vec<u8> {
    message(trace).encode_to_vec()
}

fn message(trace: &Trace) -> proto::Trace {
    let mut packets = tracks(trace);
    let mut writer = Writer { trace, packets: Vec::new(), running: BTreeMap::new() };
    let mut arrows = Arrows::default();
    for (number, arrow) in (1..).zip(&trace.arrows) {
        arrows.from.entry(arrow.from).or_default().push(number);
        arrows.to.entry(arrow.to).or_default().push(number);
    }
    for (index, event) in trace.events.iter().enumerate() {
        writer.event(event, arrows.of(index));
    }
    writer.close();
    let mut events = writer.packets;
    events.sort_by_key(|packet| packet.timestamp);
    packets.append(&mut events);
    proto::Trace { packet: packets }
}

/// The numbers of arrows, by the index of the event that they begin or end at.
#[derive(Default)]
struct Arrows {
    from: BTreeMap<usize, Vec<u64>>,
    to: BTreeMap<usize, Vec<u64>>,
}

impl Arrows {
    fn of(&self, index: usize) -> (Vec<u64>, Vec<u64>) {
        let get = |of: &BTreeMap<usize, Vec<u64>>| of.get(&index).cloned().unwrap_or_default();
        (get(&self.from), get(&self.to))
    }
}

fn tracks(trace: &Trace) -> Vec<TracePacket> {
    let track = |uuid, name: String, parent_uuid| TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        track_descriptor: Some(TrackDescriptor { uuid: Some(uuid), name: Some(name), parent_uuid }),
        ..TracePacket::default()
    };
    let mut packets = vec![track(CPUS, "CPUs".into(), None)];
    packets.extend(trace.cpus.iter().map(|&cpu| track(cpu_track(cpu), format!("CPU {cpu}"), Some(CPUS))));
    let vcpus: BTreeSet<(u8, u8)> = trace.events.iter().filter_map(|event| event.vcpu).collect();
    let vms: BTreeSet<u8> = vcpus.iter().map(|(vm, _)| *vm).collect();
    packets.extend(vms.iter().map(|&vm| track(VMS + u64::from(vm), trace.vm(vm), None)));
    let of_vm = |id: &(u8, u8)| track(vcpu_track(*id), format!("{} vCPU {}", trace.vm(id.0), id.1), Some(VMS + u64::from(id.0)));
    packets.extend(vcpus.iter().map(of_vm));
    packets
}

struct Writer<'t> {
    trace: &'t Trace,
    packets: Vec<TracePacket>,
    /// By CPU: the vCPU whose slice is open, and the end of the last written event.
    running: BTreeMap<u16, (Option<(u8, u8)>, i64)>,
}

impl Writer<'_> {
    fn event(&mut self, event: &Event, (from, to): (Vec<u64>, Vec<u64>)) {
        let last = self.running.get(&event.cpu).map_or(i64::MIN, |(_, at)| *at);
        // An interrupt is recorded before the exit that sent it or let it in.
        let at = event.at.max(last);
        match event.kind {
            Kind::Begin | Kind::End => self.run(event.cpu, None, at, Vec::new()),
            Kind::Enter => self.run(event.cpu, event.vcpu, at, to),
            Kind::Exit { row, took } | Kind::Leave { row, took, .. } => {
                self.ensure(event, at);
                self.exit(event, at, row, took, to);
                if matches!(event.kind, Kind::Leave { .. }) {
                    self.run(event.cpu, None, at.saturating_add(took.into()), Vec::new());
                }
            }
            Kind::Inject { intid } => self.instant(event, at, format!("interrupt {intid} pending"), Vec::new()),
            // Before other events of its CPU, which may have run another vCPU meanwhile.
            Kind::Timer => self.instant(event, event.at, "timer expires".to_owned(), from),
            // On the track of the CPU that sent it, at its arrival: earlier times are unknown.
            Kind::Kick { from: sender } => self.on_track(event.at, cpu_track(sender), format!("kicks CPU {}", event.cpu), from),
            Kind::Ipi { intid, .. } => self.instant(event, at, format!("sends interrupt {intid}"), from),
        }
    }

    /// The vCPU runs on the CPU, as far as its records tell.
    fn ensure(&mut self, event: &Event, at: i64) {
        if self.running.get(&event.cpu).and_then(|(vcpu, _)| *vcpu) != event.vcpu {
            self.run(event.cpu, event.vcpu, at, Vec::new());
        }
    }

    /// Another vCPU, or none, runs on the CPU from now on.
    fn run(&mut self, cpu: u16, vcpu: Option<(u8, u8)>, at: i64, to: Vec<u64>) {
        let before = self.running.insert(cpu, (vcpu, at)).and_then(|(vcpu, _)| vcpu);
        if let Some(before) = before {
            self.push(at, cpu_track(cpu), kind::SLICE_END, TrackEvent::default());
            self.push(at, vcpu_track(before), kind::SLICE_END, TrackEvent::default());
        }
        if let Some(vcpu) = vcpu {
            let name = |name: String| TrackEvent { name: Some(name), categories: vec!["run".into()], ..TrackEvent::default() };
            let on_cpu = name(format!("{} vCPU {}", self.trace.vm(vcpu.0), vcpu.1));
            self.push(at, cpu_track(cpu), kind::SLICE_BEGIN, on_cpu);
            self.push(at, vcpu_track(vcpu), kind::SLICE_BEGIN, TrackEvent { terminating_flow_ids: to, ..name(format!("on CPU {cpu}")) });
        }
    }

    fn exit(&mut self, event: &Event, at: i64, row: u16, took: u32, to: Vec<u64>) {
        let (reason, sub) = self.trace.name(event, row);
        let text = |name: &str, value: &str| DebugAnnotation {
            name: Some(name.into()),
            string_value: Some(value.into()),
            ..DebugAnnotation::default()
        };
        let mut notes = vec![text("reason", &reason), text("sub-reason", &sub)];
        notes.push(DebugAnnotation { name: Some("ticks".into()), uint_value: Some(took.into()), ..DebugAnnotation::default() });
        notes.extend(event.exit().and_then(|(.., left)| left).map(|left| text("left for", why(left))));
        let slice = TrackEvent {
            name: Some(format!("{reason} {sub}")),
            categories: vec!["exit".into()],
            debug_annotations: notes,
            ..TrackEvent::default()
        };
        let end = at.saturating_add(took.into());
        let tracks = [(cpu_track(event.cpu), Vec::new())].into_iter().chain(event.vcpu.map(|vcpu| (vcpu_track(vcpu), to)));
        for (track, terminating_flow_ids) in tracks {
            self.push(at, track, kind::SLICE_BEGIN, TrackEvent { terminating_flow_ids, ..slice.clone() });
            self.push(end, track, kind::SLICE_END, TrackEvent::default());
        }
        if let Some(running) = self.running.get_mut(&event.cpu) {
            running.1 = end;
        }
    }

    fn instant(&mut self, event: &Event, at: i64, name: String, flow_ids: Vec<u64>) {
        if let Some(vcpu) = event.vcpu {
            self.on_track(at, vcpu_track(vcpu), name, flow_ids);
        }
    }

    /// An instant on a track, where arrows begin.
    fn on_track(&mut self, at: i64, track: u64, name: String, flow_ids: Vec<u64>) {
        let instant = TrackEvent { name: Some(name), categories: vec!["interrupt".into()], flow_ids, ..TrackEvent::default() };
        self.push(at, track, kind::INSTANT, instant);
    }

    /// Ends the slices that are open.
    fn close(&mut self) {
        for (cpu, (_, at)) in self.running.clone() {
            self.run(cpu, None, at, Vec::new());
        }
    }

    fn push(&mut self, at: i64, track: u64, kind: i32, event: TrackEvent) {
        // The first events may precede the answer with the trace's start.
        let timestamp = self.trace.nanoseconds(at).saturating_add(1_000_000_000).max(0).cast_unsigned();
        self.packets.push(TracePacket {
            timestamp: Some(timestamp),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(TrackEvent { r#type: Some(kind), track_uuid: Some(track), ..event }),
            ..TracePacket::default()
        });
    }
}

/// The names of the tracks of an encoded trace, and the number of arrows that arrive.
///
/// # Errors
/// It can't be decoded.
pub fn tracks_and_arrows(bytes: &[u8]) -> Result<(Vec<String>, usize), prost::DecodeError> {
    let trace = proto::Trace::decode(bytes)?;
    let arrows = trace.packet.iter().filter_map(|packet| packet.track_event.as_ref()).map(|event| event.terminating_flow_ids.len()).sum();
    let names = trace.packet.into_iter().filter_map(|packet| packet.track_descriptor?.name);
    Ok((names.collect(), arrows))
}

#[cfg(test)]
mod tests {
    use super::super::example::example;
    use super::*;

    #[test]
    fn slices_are_nested_on_each_track_and_arrows_have_two_ends() {
        let encoded = encode(&example());
        let trace = proto::Trace::decode(&encoded[..]).unwrap();
        let mut depth: BTreeMap<u64, i64> = BTreeMap::new();
        let (mut begun, mut ended, mut last) = (Vec::new(), Vec::new(), 0);
        for packet in &trace.packet {
            let Some(event) = &packet.track_event else { continue };
            assert!(packet.timestamp.unwrap() >= last);
            last = packet.timestamp.unwrap();
            let depth = depth.entry(event.track_uuid.unwrap()).or_default();
            match event.r#type {
                Some(kind::SLICE_BEGIN) => *depth += 1,
                Some(kind::SLICE_END) => *depth -= 1,
                _ => {}
            }
            assert!(*depth >= 0);
            begun.extend(&event.flow_ids);
            ended.extend(&event.terminating_flow_ids);
        }
        assert!(depth.values().all(|depth| *depth == 0), "{depth:?}");
        assert_eq!((&begun[..], &ended[..]), (&[1, 2][..], &[1, 2][..]));
        let names: Vec<_> = trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref()?.name.as_deref()).collect();
        assert_eq!(names, ["CPUs", "CPU 0", "CPU 1", "web", "web vCPU 0", "web vCPU 1"]);
    }
}
