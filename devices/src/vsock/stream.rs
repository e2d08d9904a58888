//! The host's end of a connection with a client: its state, without sockets.

use std::collections::VecDeque;

use super::packet::{CREDIT_REQUEST, CREDIT_UPDATE, Header, RESPONSE, RST, RW, SHUTDOWN};

/// Bytes of a client that wait for the other end, at most: the client's credit.
pub const BUFFER: usize = 64 << 10;

/// Flag of [`SHUTDOWN`] (Virtio 1.2, section 5.10.6.6.1): its sender receives no more.
const RECEIVES_NO_MORE: u32 = 1;
/// Flag of [`SHUTDOWN`]: its sender sends no more.
pub const SENDS_NO_MORE: u32 = 2;

/// A connection. The host has asked for it.
#[derive(Debug, Default)]
pub struct Stream {
    /// The client has accepted it.
    pub is_accepted: bool,
    /// The client's bytes that wait.
    pub waiting: VecDeque<u8>,
    /// Bytes that were taken from [`Self::waiting`], modulo 2^32.
    taken: u32,
    /// Value of `taken` in the last packet to the client.
    announced: u32,
    /// Bytes that were sent, modulo 2^32.
    sent: u32,
    /// Size of the client's buffer in bytes, by its last packet.
    buf_alloc: u32,
    /// Bytes that the client has taken, modulo 2^32, by its last packet.
    fwd_cnt: u32,
    /// The client sends no more.
    pub input_ends: bool,
    /// The TCP peer has been told that the client sends no more.
    pub is_shut: bool,
    /// The client receives no more.
    pub output_is_refused: bool,
    /// The TCP peer sends no more, and the client has been told.
    pub output_has_ended: bool,
    /// The client has reset the connection.
    pub is_reset: bool,
}

impl Stream {
    /// Handles a packet of the client's. Returns false if it makes no sense: the connection is to end.
    #[must_use]
    pub fn receive(&mut self, header: &Header, payload: &[u8]) -> bool {
        (self.buf_alloc, self.fwd_cnt) = (header.buf_alloc, header.fwd_cnt);
        match header.op {
            RESPONSE if !self.is_accepted => self.is_accepted = true,
            RST => self.is_reset = true,
            _ if !self.is_accepted => return false,
            RW => {
                if self.input_ends || self.waiting.len() + payload.len() > BUFFER {
                    return false;
                }
                self.waiting.extend(payload);
            }
            CREDIT_UPDATE => {}
            // The client is told of the present credit, as if that were new.
            CREDIT_REQUEST => self.announced = self.taken.wrapping_sub(BUFFER as u32),
            SHUTDOWN => {
                self.input_ends |= header.flags & SENDS_NO_MORE != 0;
                self.output_is_refused |= header.flags & RECEIVES_NO_MORE != 0;
            }
            _ => return false,
        }
        true
    }

    /// Notes that the other end took bytes.
    pub fn take(&mut self, length: usize) {
        drop(self.waiting.drain(..length));
        self.taken = self.taken.wrapping_add(length as u32);
    }

    /// Whether the client is to be told of its credit.
    pub const fn has_credit(&self) -> bool {
        self.is_accepted && self.taken.wrapping_sub(self.announced) >= BUFFER as u32 / 2
    }

    /// The client's credit for a packet: each has it.
    pub const fn credit(&mut self) -> (u32, u32) {
        self.announced = self.taken;
        (BUFFER as u32, self.taken)
    }

    /// Bytes that may be sent now.
    pub fn room(&self) -> usize {
        if !self.is_accepted || self.output_is_refused || self.output_has_ended || self.is_reset {
            return 0;
        }
        // A client that claims to have taken more than was sent gets nothing.
        let under_way = self.sent.wrapping_sub(self.fwd_cnt);
        self.buf_alloc.saturating_sub(under_way) as usize
    }

    /// Notes that bytes were sent.
    pub const fn send(&mut self, length: usize) {
        self.sent = self.sent.wrapping_add(length as u32);
    }

    /// Whether the connection has ended: no byte can pass in either direction any more.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && (self.is_reset || self.input_ends && self.output_is_refused)
    }
}
