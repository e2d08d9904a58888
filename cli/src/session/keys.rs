//! The keys that speak to the command and not to a guest.

/// The key that starts a sequence: Ctrl-a.
pub const ESCAPE: u8 = 0x01;

/// The keys, for the user.
pub const HELP: &str = "keys: Ctrl-a, then x leave, n next VM, p previous VM, 1 to 8 that VM,\n      ? list, Ctrl-a a literal Ctrl-a";

/// The keys as `run --help` shows them.
pub const TABLE: &str = "\
Keys on a terminal:
  Ctrl-a x        leave: the machine ends
  Ctrl-a n        the next VM's console
  Ctrl-a p        the previous VM's console
  Ctrl-a 1 to 8   the console of that VM
  Ctrl-a ?        list the VMs and the keys
  Ctrl-a Ctrl-a   Ctrl-a for the guest
Ctrl-c goes to the guest. SIGQUIT makes Stile panic and say where it is.";

/// The keys as `attach --help` shows them.
pub const ATTACH_TABLE: &str = "\
Keys on a terminal:
  Ctrl-a x        leave: the machine goes on
  Ctrl-a n        the next VM's console
  Ctrl-a p        the previous VM's console
  Ctrl-a 1 to 8   the console of that VM
  Ctrl-a ?        list the VMs and the keys
  Ctrl-a Ctrl-a   Ctrl-a for the guest";

/// The action of a key sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Give these bytes to the guest.
    Send(Vec<u8>),
    /// End everything and leave.
    Leave,
    /// Show the next VM's console.
    Next,
    /// Show the previous VM's console.
    Previous,
    /// Show the console of the VM with this index, from 0.
    Show(usize),
    /// List the VMs and the keys.
    List,
}

/// Separates key sequences from input.
#[derive(Debug, Default)]
pub struct Keys {
    escaped: bool,
}

impl Keys {
    /// Takes the next bytes of the keyboard.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Action> {
        let mut actions = Vec::new();
        for &byte in bytes {
            if !std::mem::take(&mut self.escaped) {
                if byte == ESCAPE {
                    self.escaped = true;
                } else {
                    send(&mut actions, byte);
                }
                continue;
            }
            match byte {
                // With or without Ctrl held down.
                b'x' | b'X' | 0x18 => actions.push(Action::Leave),
                b'n' | b'N' | 0x0e => actions.push(Action::Next),
                b'p' | b'P' | 0x10 => actions.push(Action::Previous),
                b'1'..=b'8' => actions.push(Action::Show(usize::from(byte - b'1'))),
                b'?' | b'h' | b'l' => actions.push(Action::List),
                ESCAPE | b'a' => send(&mut actions, ESCAPE),
                // Not ours: the guest gets both.
                other => {
                    send(&mut actions, ESCAPE);
                    send(&mut actions, other);
                }
            }
        }
        actions
    }
}

fn send(actions: &mut Vec<Action>, byte: u8) {
    match actions.last_mut() {
        Some(Action::Send(bytes)) => bytes.push(byte),
        _ => actions.push(Action::Send(vec![byte])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_separated_from_input() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"ls\r"), [Action::Send(b"ls\r".to_vec())]);
        assert_eq!(keys.feed(b"\x01"), []);
        assert_eq!(keys.feed(b"nq"), [Action::Next, Action::Send(b"q".to_vec())]);
        assert_eq!(keys.feed(b"\x01\x01\x01z"), [Action::Send(b"\x01\x01z".to_vec())]);
        assert_eq!(keys.feed(b"\x01?\x013\x01x"), [Action::List, Action::Show(2), Action::Leave]);
    }
}
