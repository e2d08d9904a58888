//! Headers of packets (Virtio 1.2, section 5.10.6).

/// Size of a header, in bytes.
pub const HEADER: usize = 44;

/// Type of a stream's packets, the only one.
pub const STREAM: u16 = 1;

/// Operations (section 5.10.6.6).
pub const REQUEST: u16 = 1;
/// A connection is accepted.
pub const RESPONSE: u16 = 2;
/// There is no such connection, or there is none any more.
pub const RST: u16 = 3;
/// One side sends, or receives, no more.
pub const SHUTDOWN: u16 = 4;
/// Bytes of a stream.
pub const RW: u16 = 5;
/// The sender's credit.
pub const CREDIT_UPDATE: u16 = 6;
/// Asks for the receiver's credit.
pub const CREDIT_REQUEST: u16 = 7;

/// A packet's header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// Address of the sender: a VM's.
    pub src_cid: u64,
    /// Address of the receiver.
    pub dst_cid: u64,
    /// The sender's port.
    pub src_port: u32,
    /// The receiver's port.
    pub dst_port: u32,
    /// Size of the payload behind the header, in bytes.
    pub len: u32,
    /// Type of the socket.
    pub kind: u16,
    /// Operation.
    pub op: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// Size of the sender's buffer for this connection, in bytes.
    pub buf_alloc: u32,
    /// Bytes that were taken from that buffer so far, modulo 2^32.
    pub fwd_cnt: u32,
}

impl Header {
    /// Reads a header: all of its fields are little-endian.
    pub fn parse(bytes: &[u8; HEADER]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Self {
            src_cid: double(0),
            dst_cid: double(8),
            src_port: word(16),
            dst_port: word(20),
            len: word(24),
            kind: half(28),
            op: half(30),
            flags: word(32),
            buf_alloc: word(36),
            fwd_cnt: word(40),
        }
    }

    /// The header's bytes.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let fields = [
            &self.src_cid.to_le_bytes()[..],
            &self.dst_cid.to_le_bytes(),
            &self.src_port.to_le_bytes(),
            &self.dst_port.to_le_bytes(),
            &self.len.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &self.op.to_le_bytes(),
            &self.flags.to_le_bytes(),
            &self.buf_alloc.to_le_bytes(),
            &self.fwd_cnt.to_le_bytes(),
        ];
        let mut rest = &mut bytes[..];
        for field in fields {
            let (here, behind) = rest.split_at_mut(field.len());
            here.copy_from_slice(field);
            rest = behind;
        }
        bytes
    }

    /// The refusal of this packet, for its sender.
    pub const fn refusal(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            len: 0,
            kind: self.kind,
            op: RST,
            flags: 0,
            buf_alloc: 0,
            fwd_cnt: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_is_written() {
        let bytes: [u8; HEADER] = std::array::from_fn(|index| index as u8);
        let header = Header::parse(&bytes);
        assert_eq!((header.src_cid, header.dst_port), (0x0706_0504_0302_0100, 0x1716_1514));
        assert_eq!((header.kind, header.op, header.fwd_cnt), (0x1d1c, 0x1f1e, 0x2b2a_2928));
        assert_eq!(header.bytes(), bytes);
    }
}
