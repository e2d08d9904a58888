//! The serial line, taken apart: whose bytes, and which messages.

use stile_wire::{Channel, Decoder, Event, FrameError};

/// A demultiplexed piece of the line's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of Stile's log or a console.
    Text(Channel, Vec<u8>),
    /// A message of Stile.
    Event(Box<Event>),
    /// A message that can't be read.
    Bad(FrameError),
}

/// Takes a line apart.
#[derive(Debug, Default)]
pub struct Demux {
    decoder: Decoder,
}

impl Demux {
    /// Parses the next bytes of the line; consecutive bytes of one channel form one piece.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &byte in bytes {
            let Some(item) = self.decoder.push(byte) else { continue };
            match item.event() {
                Some(Ok(event)) => pieces.push(Piece::Event(Box::new(event))),
                Some(Err(error)) => pieces.push(Piece::Bad(error)),
                None => {
                    let stile_wire::Item::Byte(channel, byte) = item else { continue };
                    match pieces.last_mut() {
                        Some(Piece::Text(last, text)) if *last == channel => text.push(byte),
                        _ => pieces.push(Piece::Text(channel, vec![byte])),
                    }
                }
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use stile_wire::{Encoder, VmState};

    use super::*;

    #[test]
    fn a_line_is_demultiplexed_whatever_the_fragmentation() {
        let mut line = Vec::new();
        let mut sink = |byte| line.push(byte);
        let mut encoder = Encoder::new();
        let event = Event::Vm { vm: 1, state: VmState::PoweredOff };
        encoder.bytes(Channel::LOG, b"starting\n", &mut sink);
        encoder.bytes(Channel::console(0), b"a\x10b", &mut sink);
        encoder.bytes(Channel::console(1), b"c", &mut sink);
        encoder.event(&event, &mut sink);
        let whole = [
            Piece::Text(Channel::LOG, b"starting\n".to_vec()),
            Piece::Text(Channel::console(0), b"a\x10b".to_vec()),
            Piece::Text(Channel::console(1), b"c".to_vec()),
            Piece::Event(Box::new(event)),
        ];
        assert_eq!(Demux::default().feed(&line), whole);
        for cut in 0..line.len() {
            let mut demux = Demux::default();
            let mut pieces = demux.feed(&line[..cut]);
            for piece in demux.feed(&line[cut..]) {
                match (pieces.last_mut(), piece) {
                    (Some(Piece::Text(last, text)), Piece::Text(channel, more)) if *last == channel => text.extend(more),
                    (_, piece) => pieces.push(piece),
                }
            }
            assert_eq!(pieces, whole, "cut at {cut}");
        }
    }
}
