//! Serial lines: that of the emulated machine, and those of Stiles in its VMs, which are the VMs' consoles.

use std::collections::BTreeSet;

use stile_wire::{Channel, Command, Encoder};

use super::Guest;
use super::demux::Demux;
use super::exits::Exits;
use super::outcome::Story;
use super::tail::Tail;
use crate::config::Arch;

/// A serial line.
pub struct Line {
    /// The name of the VM whose Stile writes to it; empty for the machine's own.
    pub name: String,
    /// The containing VM: its line, and its number there.
    parent: Option<(usize, u8)>,
    pub demux: Demux,
    encoder: Encoder,
    /// The state of the VMs.
    pub story: Story,
    pub exits: Exits,
    /// The end of Stile's log.
    pub log: Tail,
    /// The unfinished last line of the log of a Stile that runs in a VM.
    unfinished: Vec<u8>,
    /// Its VMs.
    pub vms: Vec<Vm>,
    /// Numbers of consoles that wrote, whose VMs are not among them.
    pub unknown: BTreeSet<u8>,
}

/// A line of the log of a Stile in a VM is shown in parts of this many bytes.
const LONGEST_LINE: usize = 4096;

/// A VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vm {
    /// Shown on its console, with this index.
    Console(usize),
    /// It runs a Stile, with this line.
    Stile(usize),
}

/// A VM with a console: its line, its number there, and the guest.
pub struct Leaf<'g> {
    /// Index of the console's line.
    pub line: usize,
    /// Its number there.
    pub vm: u8,
    /// Its name, prefixed with the names of the VMs that contain it.
    pub name: String,
    /// Its guest.
    pub guest: &'g Guest,
}

impl Line {
    fn new(name: String, parent: Option<(usize, u8)>, arch: Arch, vms: usize) -> Self {
        Self {
            name,
            parent,
            demux: Demux::default(),
            encoder: Encoder::new(),
            story: Story::of(vms),
            exits: Exits::new(arch),
            log: Tail::default(),
            unfinished: Vec::new(),
            vms: Vec::new(),
            unknown: BTreeSet::new(),
        }
    }

    /// The lines of a machine with these guests, the machine's own first, and the VMs that have a console.
    pub fn all(guests: &[Guest], arch: Arch) -> (Vec<Line>, Vec<Leaf<'_>>) {
        let (mut lines, mut leaves) = (Vec::new(), Vec::new());
        Self::add(guests, arch, String::new(), None, &mut lines, &mut leaves);
        (lines, leaves)
    }

    fn add<'g>(
        guests: &'g [Guest],
        arch: Arch,
        name: String,
        parent: Option<(usize, u8)>,
        lines: &mut Vec<Line>,
        leaves: &mut Vec<Leaf<'g>>,
    ) -> usize {
        let line = lines.len();
        let inside = |guest: &str| if name.is_empty() { guest.to_owned() } else { format!("{name}.{guest}") };
        let names: Vec<String> = guests.iter().map(|guest| inside(&guest.name)).collect();
        lines.push(Self::new(name, parent, arch, guests.len()));
        for (vm, (guest, name)) in (0..).zip(guests.iter().zip(names)) {
            let what = if guest.inner.is_empty() {
                leaves.push(Leaf { line, vm, name, guest });
                Vm::Console(leaves.len() - 1)
            } else {
                Vm::Stile(Self::add(&guest.inner, arch, name, Some((line, vm)), lines, leaves))
            };
            lines[line].vms.push(what);
        }
        line
    }

    /// Resets the state for a restart of the Stile that writes to it.
    pub fn restart(&mut self) {
        self.demux = Demux::default();
        self.encoder.resync();
        self.story = Story::of(self.vms.len());
        self.unknown.clear();
    }

    /// Its log as shown: of a Stile in a VM in whole lines, with that VM's name.
    pub fn shown_log(&mut self, text: &[u8]) -> Vec<u8> {
        if self.parent.is_none() {
            return text.to_vec();
        }
        self.unfinished.extend_from_slice(text);
        let whole = self.unfinished.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        // A guest's line may have no end.
        if self.unfinished.len() - whole > LONGEST_LINE {
            self.unfinished.push(b'\n');
        }
        let mut shown = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|&byte| byte == b'\n') {
            shown.extend_from_slice(format!("{}: ", self.name).as_bytes());
            shown.extend(self.unfinished.drain(..=end));
        }
        shown
    }
}

/// The line of a VM's Stile, and the VM's number there, by the VM's name; a VM that runs a Stile is one of the line around it.
pub fn find(lines: &[Line], names: &[String], name: &str) -> Option<(usize, u8)> {
    // The names of destroyed VMs are empty.
    if name.is_empty() {
        return None;
    }
    lines.iter().enumerate().find_map(|(index, line)| {
        let is_named = |vm: &Vm| match *vm {
            Vm::Console(console) => names.get(console).is_some_and(|console| console == name),
            Vm::Stile(inner) => lines[inner].name == name,
        };
        line.vms.iter().position(is_named).map(|vm| (index, vm as u8))
    })
}

/// Bytes for a VM's console, as the machine's line takes them.
pub fn to_console(lines: &mut [Line], line: usize, vm: u8, bytes: &[u8]) -> Vec<u8> {
    wrap(lines, Some((line, vm)), bytes.to_vec())
}

/// Encodes input of a VM's console, from the inner line to the machine's.
fn wrap(lines: &mut [Line], mut at: Option<(usize, u8)>, mut encoded: Vec<u8>) -> Vec<u8> {
    while let Some((line, vm)) = at {
        let Line { encoder, parent, .. } = &mut lines[line];
        let mut outer = Vec::with_capacity(encoded.len() + 2);
        encoder.bytes(Channel::console(vm), &encoded, &mut |byte| outer.push(byte));
        (at, encoded) = (*parent, outer);
    }
    encoded
}

/// A command for the Stile of a line.
pub fn command(lines: &mut [Line], line: usize, command: &Command) -> Vec<u8> {
    let mut encoded = Vec::new();
    lines[line].encoder.command(command, &mut |byte| encoded.push(byte));
    let parent = lines[line].parent;
    wrap(lines, parent, encoded)
}

#[cfg(test)]
mod tests {
    use super::super::demux::Piece;
    use super::*;
    use crate::budget::Budget;

    fn guest(name: &str, inner: Vec<Guest>) -> Guest {
        Guest { name: name.into(), system: None, budget: Budget::default(), inner }
    }

    #[test]
    fn a_stile_in_a_vm_has_a_line_in_that_vms_console() {
        let guests = [guest("a", vec![]), guest("b", vec![guest("c", vec![]), guest("d", vec![])]), guest("e", vec![])];
        let (mut lines, leaves) = Line::all(&guests, Arch::Aarch64);
        let found: Vec<_> = leaves.iter().map(|leaf| (&leaf.name[..], leaf.line, leaf.vm)).collect();
        assert_eq!(found, [("a", 0, 0), ("b.c", 1, 0), ("b.d", 1, 1), ("e", 0, 2)]);
        assert_eq!(lines[0].vms, [Vm::Console(0), Vm::Stile(1), Vm::Console(3)]);
        assert_eq!(lines[1].name, "b");

        let names: Vec<String> = leaves.iter().map(|leaf| leaf.name.clone()).collect();
        let places = ["a", "b", "b.d", "e", "c"].map(|name| find(&lines, &names, name));
        assert_eq!(places, [Some((0, 0)), Some((0, 1)), Some((1, 1)), Some((0, 2)), None]);
        assert_eq!(find(&lines, &["", "b.c", "b.d", "e"].map(str::to_owned), ""), None, "a VM that was destroyed");

        let bytes = b"to d\x10";
        let sent = to_console(&mut lines, 1, 1, bytes);
        let mut outer = Demux::default();
        let [Piece::Text(channel, inner)] = &outer.feed(&sent)[..] else { panic!("{sent:?}") };
        assert_eq!(channel.vm(), Some(1));
        assert_eq!(Demux::default().feed(inner), [Piece::Text(Channel::console(1), bytes.to_vec())]);

        // Commands are handled in the same way.
        let sent = command(&mut lines, 1, &Command::Ledger);
        let [Piece::Text(channel, inner)] = &outer.feed(&sent)[..] else { panic!("{sent:?}") };
        assert_eq!(channel.vm(), Some(1));
        let mut decoder = stile_wire::Decoder::new();
        let commands: Vec<_> = inner.iter().filter_map(|&byte| decoder.push(byte).and_then(|item| item.command())).collect();
        assert_eq!(commands, [Ok(Command::Ledger)]);
    }

    #[test]
    fn the_log_of_a_stile_in_a_vm_comes_in_whole_lines() {
        let guests = [guest("b", vec![guest("c", vec![])])];
        let (mut lines, _) = Line::all(&guests, Arch::Aarch64);
        assert_eq!(lines[0].shown_log(b"half"), b"half");
        assert_eq!(lines[1].shown_log(b"half"), b"");
        assert_eq!(lines[1].shown_log(b" and half\nmo"), b"b: half and half\n");
    }
}
