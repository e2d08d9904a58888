//! Copies the lock-free parts of Stile's sources for `tests/interleavings.rs`, with loom's atomics instead of `core`'s.

use std::path::Path;
use std::{env, fs};

/// File, and the part of it: from a line that starts with the first text to one that starts with the second.
const PARTS: [(&str, &str, &str, &str); 4] = [
    ("lock.rs", "crates/sched/src/lock.rs", "use core::cell::UnsafeCell;", "#[cfg(test)]"),
    ("posted.rs", "crates/apic/src/posted.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("first_touch.rs", "crates/paging/src/first_touch.rs", "use core::sync::atomic", "#[cfg(test)]"),
    ("pending_requests.rs", "crates/vgic/src/shortcuts.rs", "/// Pending requests to a vCPU", "const _: () ="),
];

/// What is replaced in them.
const CHANGES: [(&str, &str); 5] = [
    ("core::sync::atomic", "loom::sync::atomic"),
    ("core::hint::spin_loop", "loom::hint::spin_loop"),
    ("pub const fn new", "pub fn new"),
    ("[const { AtomicU64::new(0) }; STEPS as usize]", "core::array::from_fn(|_| AtomicU64::new(0))"),
    ("use crate::", "use super::"),
];

fn main() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned();
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (name, file, first, last) in PARTS {
        let path = repository.join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines = text.lines().skip_while(|line| !line.starts_with(first)).take_while(|line| !line.starts_with(last));
        let part: String = lines.map(|line| format!("{line}\n")).collect();
        assert!(!part.is_empty(), "{} has no line \"{first}\"", path.display());
        // loom's constructors are not `const`.
        let part = CHANGES.iter().fold(part, |part, (old, new)| part.replace(old, new));
        fs::write(Path::new(&out).join(name), part).expect("OUT_DIR can be written");
    }
}
