//! Copies the lock-free parts of Stile's sources for `tests/interleavings/`, with loom's atomics instead of `core`'s.

use std::path::Path;
use std::{env, fs};

/// File, and the part of it: from the line that starts with the first text to the one that starts with the second, without the latter's comment.
const PARTS: [(&str, &str, &str, &str); 28] = [
    ("lock.rs", "crates/lock/src/lib.rs", "use core::cell::UnsafeCell;", "#[cfg(test)]"),
    ("shards.rs", "crates/lock/src/shards.rs", "use core::cell::UnsafeCell;", "#[cfg(test)]"),
    ("posted.rs", "crates/apic/src/posted.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("first_touch.rs", "crates/paging/src/first_touch.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("pending_requests.rs", "crates/vgic/src/shortcuts.rs", "/// Pending requests to a vCPU", "const _: () ="),
    ("invalidations.rs", "hypervisor/src/arch/x86_64/vm/invalidations.rs", "pub struct Invalidations", "#[cfg(test)]"),
    ("events.rs", "hypervisor/src/arch/x86_64/interrupts/events.rs", "const NMIS:", "pub fn nmi("),
    ("init.rs", "hypervisor/src/arch/x86_64/interrupts/events.rs", "pub fn init(", "pub fn leave("),
    ("startup.rs", "hypervisor/src/arch/x86_64/interrupts/events.rs", "pub fn restart(", "fn start("),
    ("trace_ring.rs", "crates/trace/src/ring.rs", "use core::sync::atomic", "pub const fn next("),
    ("resched.rs", "hypervisor/src/cpu/resched.rs", "#[repr(align(64))]", "#[cfg(test)]"),
    ("vmid.rs", "crates/paging/src/vmid.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("sequence.rs", "crates/nested-arm/src/shadow/sequence.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("place.rs", "hypervisor/src/arch/aarch64/interrupts/place.rs", "static HERE:", "/// The private interrupts"),
    ("place_hold.rs", "hypervisor/src/arch/aarch64/interrupts/place.rs", "    fn hold(", "    /// Gives the vCPU"),
    ("place_publish.rs", "hypervisor/src/arch/aarch64/interrupts/place.rs", "    pub fn publish(", "}"),
    ("place_sending.rs", "hypervisor/src/arch/aarch64/interrupts/place.rs", "fn sending<", "/// Makes a CPU on which"),
    ("place_confined.rs", "hypervisor/src/arch/aarch64/interrupts/place.rs", "pub fn is_confined(", "/// Sends an SGI"),
    ("late.rs", "crates/vgic/src/late.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("messages.rs", "hypervisor/src/served/function.rs", "    /// Returns the set of vectors that are not masked", "}"),
    ("held_messages.rs", "hypervisor/src/served/link.rs", "    /// Sends messages that could not be posted", "}"),
    ("events_page.rs", "crates/virtio/src/events.rs", "/// Start of the page.", "const _: () ="),
    ("epoch.rs", "hypervisor/src/vm/epoch.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("trace_stop.rs", "hypervisor/src/trace.rs", "pub fn stop(", "/// Called when this CPU"),
    ("trace_pass.rs", "hypervisor/src/trace.rs", "fn pass(", "/// Creates a record"),
    ("watch.rs", "hypervisor/src/arch/x86_64/vm/watch.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("pit_watch.rs", "hypervisor/src/arch/x86_64/emulation/devices/pit.rs", "    fn watch(", "    /// Checks for an expiry"),
    ("sample.rs", "hypervisor/src/sample.rs", "fn want(", "fn find("),
];

/// Replacements in them.
const CHANGES: [(&str, &str); 24] = [
    ("core::sync::atomic", "loom::sync::atomic"),
    ("core::hint::spin_loop", "loom::hint::spin_loop"),
    ("pub const fn new", "pub fn new"),
    ("pub(crate) const fn full", "pub(crate) fn full"),
    ("[const { AtomicU64::new(0) }; STEPS as usize]", "core::array::from_fn(|_| AtomicU64::new(0))"),
    ("use crate::", "use super::"),
    ("[const { Lock(TicketLock::new(())) }; SHARDS]", "core::array::from_fn(|_| Lock(TicketLock::new(())))"),
    ("[const { AtomicU16::new(0) }; ITEMS]", "core::array::from_fn(|_| AtomicU16::new(0))"),
    ("use stile_board::MAX_CPUS;", "use super::MAX_CPUS;"),
    ("[const { AtomicU64::new(0) }; MAX_CPUS]", "core::array::from_fn(|_| AtomicU64::new(0))"),
    // Few enough to run out of.
    ("Self::Eight => u8::MAX as u16", "Self::Eight => super::LAST_VMID"),
    ("[const { Loaded(AtomicU64::new(Tagged::NONE.0)) }; CPUS]", "core::array::from_fn(|_| Loaded(AtomicU64::new(Tagged::NONE.0)))"),
    (
        "static HERE: [AtomicU16; MAX_CPUS] = [const { AtomicU16::new(NOBODY) }; MAX_CPUS];",
        "loom::lazy_static! { static ref HERE: [AtomicU16; MAX_CPUS] = core::array::from_fn(|_| AtomicU16::new(NOBODY)); }",
    ),
    (
        "static SENDING: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];",
        "loom::lazy_static! { static ref SENDING: [AtomicBool; MAX_CPUS] = core::array::from_fn(|_| AtomicBool::new(false)); }",
    ),
    ("pub const fn new() -> Events", "pub fn new() -> Events"),
    ("&'static Vcpu", "&Vcpu"),
    ("vm: &'static Vm)", "vm: &Vm)"),
    // Loom takes accesses that are sequentially consistent for acquire and release, and knows of fences only.
    ("let on = self.on.each_ref", "fence(Ordering::SeqCst);\n        let on = self.on.each_ref"),
    ("[const { AtomicU64::new(0) }; MAX_CPUS.div_ceil(64)]", "core::array::from_fn(|_| AtomicU64::new(0))"),
    (
        "let wanted = self.wanted.load(Ordering::SeqCst);",
        "fence(Ordering::SeqCst);\n        let wanted = self.wanted.load(Ordering::SeqCst);",
    ),
    ("if !WANTED.load(Ordering::SeqCst) {", "fence(Ordering::SeqCst);\n        if !WANTED.load(Ordering::SeqCst) {"),
    ("request_pass(&RECORDING.load());", "fence(Ordering::SeqCst);\n        request_pass(&RECORDING.load());"),
    (
        "pub static AT_RESCHED: AtomicUsize = AtomicUsize::new(0);",
        "loom::lazy_static! { pub static ref AT_RESCHED: AtomicUsize = AtomicUsize::new(0); }",
    ),
    (
        "static RESCHED: [Request; MAX_CPUS] = [const { Request(AtomicUsize::new(0)) }; MAX_CPUS];",
        "loom::lazy_static! { static ref RESCHED: [Request; MAX_CPUS] = core::array::from_fn(|_| Request(AtomicUsize::new(0))); }",
    ),
];

fn main() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned();
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (name, file, first, last) in PARTS {
        let path = repository.join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = text.lines().skip_while(|line| !line.starts_with(first)).take_while(|line| !line.starts_with(last));
        let mut lines: Vec<_> = lines.collect();
        while lines.last().is_some_and(|line| line.starts_with("///")) {
            lines.pop();
        }
        let mut part: String = lines.iter().map(|line| format!("{line}\n")).collect();
        assert!(!part.is_empty(), "{} has no line \"{first}\"", path.display());
        if first.starts_with(' ') {
            // Methods: `include!` takes whole items.
            let before = text.lines().take_while(|line| !line.starts_with(first));
            let of = before.filter(|line| line.starts_with("impl")).last().expect("methods are in an `impl`");
            part = format!("{of}\n{part}}}\n");
        }
        // loom's constructors are not `const`.
        let part = CHANGES.iter().fold(part, |part, (old, new)| part.replace(old, new));
        fs::write(Path::new(&out).join(name), part).expect("OUT_DIR can be written");
    }
}
