//! A client's connection with a peer: its packets that wait.

use std::collections::VecDeque;

use super::packet::{CREDIT_REQUEST, CREDIT_UPDATE, Header, REQUEST, RESPONSE, RST, RW, SHUTDOWN, STREAM};

/// Largest payload of a packet between two processes, in bytes.
pub const LARGEST: usize = 16 << 10;

/// Ports of a connection: the client's, and the peer's.
pub type Ports = (u32, u32);

/// Packets of a connection that wait until the peer's process takes them, without duplicates: a client can't make them more than this.
#[derive(Default)]
pub struct Connection {
    data: VecDeque<u8>,
    /// [`REQUEST`] or [`RESPONSE`], before all others.
    first: Option<u16>,
    credit_update: bool,
    credit_request: bool,
    /// Flags of a [`SHUTDOWN`], behind the data.
    shutdown: Option<u32>,
    /// An [`RST`], behind all others. The connection ends with it.
    reset: bool,
    /// The client's credit, as it last said.
    buf_alloc: u32,
    fwd_cnt: u32,
    /// The peer has sent a packet.
    pub answered: bool,
}

impl Connection {
    /// Adds a packet of the client's.
    pub fn add(&mut self, header: &Header, payload: &[u8]) {
        (self.buf_alloc, self.fwd_cnt) = (header.buf_alloc, header.fwd_cnt);
        match header.op {
            REQUEST | RESPONSE => self.first = Some(header.op),
            RW => self.data.extend(payload),
            CREDIT_UPDATE => self.credit_update = true,
            CREDIT_REQUEST => self.credit_request = true,
            SHUTDOWN => self.shutdown = Some(self.shutdown.unwrap_or(0) | header.flags),
            _ => self.reset = true,
        }
    }

    /// Whether its end waits: nothing is added behind that.
    pub const fn is_ending(&self) -> bool {
        self.reset
    }

    /// Drops the data, and ends the connection.
    pub fn reset(&mut self) {
        (self.data, self.reset) = (VecDeque::new(), true);
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.data.len()
    }

    /// Operation and flags of the next packet; `None` if there is none.
    fn next(&self) -> Option<(u16, u32)> {
        if let Some(op) = self.first {
            Some((op, 0))
        } else if !self.data.is_empty() {
            Some((RW, 0))
        } else if self.credit_update {
            Some((CREDIT_UPDATE, 0))
        } else if self.credit_request {
            Some((CREDIT_REQUEST, 0))
        } else if let Some(flags) = self.shutdown {
            Some((SHUTDOWN, flags))
        } else {
            self.reset.then_some((RST, 0))
        }
    }

    /// Whether a packet waits.
    pub fn has_packets(&self) -> bool {
        self.next().is_some()
    }

    /// Sends the next packet, from `cid` to the CID `peer`, by `send`, which returns whether it did. `None` if there is no packet.
    pub fn send(
        &mut self,
        (cid, peer): (u32, u32),
        (src_port, dst_port): Ports,
        send: impl FnOnce(&Header, &[u8]) -> bool,
    ) -> Option<Sent> {
        let (op, flags) = self.next()?;
        let payload: &[u8] = if op == RW {
            let data = self.data.make_contiguous();
            &data[..data.len().min(LARGEST)]
        } else {
            &[]
        };
        let header = Header {
            src_cid: cid.into(),
            dst_cid: peer.into(),
            src_port,
            dst_port,
            len: payload.len() as u32,
            kind: STREAM,
            op,
            flags,
            buf_alloc: self.buf_alloc,
            fwd_cnt: self.fwd_cnt,
        };
        if !send(&header, payload) {
            return Some(Sent::Nothing);
        }
        let length = payload.len();
        match op {
            REQUEST | RESPONSE => self.first = None,
            RW => {
                drop(self.data.drain(..length));
                // Capacity that a peer grew on many connections must not stay: the process has memory only for waiting bytes. Each byte is
                // moved once at most, on average.
                if self.data.capacity() > 2 * self.data.len() {
                    self.data.shrink_to_fit();
                }
            }
            CREDIT_REQUEST => self.credit_request = false,
            SHUTDOWN => self.shutdown = None,
            RST => return Some(Sent::Last),
            _ => {}
        }
        // Each packet has the credit.
        self.credit_update = false;
        Some(Sent::Data(length))
    }
}

/// Result of [`Connection::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The peer's process takes nothing at present.
    Nothing,
    /// A packet, with so many bytes of the stream.
    Data(usize),
    /// The end of the connection.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_takes_twice_its_size_at_most() {
        let header = Header { kind: STREAM, op: RW, ..Header::default() };
        let mut connection = Connection::default();
        for packets in [1, 3, 40, 2] {
            for _ in 0..packets {
                connection.add(&header, &[7; 50_000]);
            }
            while connection.waiting() > 100 {
                let sent = connection.send((3, 4), (1, 2), |header, payload| header.len as usize == payload.len());
                assert!(matches!(sent, Some(Sent::Data(length)) if length != 0));
                let (capacity, waiting) = (connection.data.capacity(), connection.waiting());
                assert!(capacity <= 2 * waiting, "{capacity} bytes for {waiting}");
            }
        }
    }
}
