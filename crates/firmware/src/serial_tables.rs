//! Serial ports in ACPI tables: "Serial Port Console Redirection Table" (SPCR) and "Debug Port Table 2" (DBG2), Microsoft.

use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::serial::{FIFO, Kind};

/// A serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The UART.
    pub kind: Kind,
    /// Physical address of its registers.
    pub address: u64,
    /// Global system interrupt, if any.
    pub gsi: Option<u32>,
}

/// The console of an SPCR, if it is in memory and of a kind that is known.
pub fn of_spcr(spcr: &[u8]) -> Option<Port> {
    const BY_GIC: u8 = 1 << 3;
    let (kind, address) = uart(u8_at(spcr, 36)?.into(), spcr.get(40..52)?)?;
    let gsi = u32_at(spcr, 54).filter(|_| u8_at(spcr, 52).is_some_and(|kinds| kinds & BY_GIC != 0));
    Some(Port { kind, address, gsi })
}

/// The first serial port of a DBG2 that is in memory and of a kind that is known. The table names no interrupts.
pub fn of_dbg2(dbg2: &[u8]) -> Option<Port> {
    const SERIAL: u16 = 0x8000;
    let mut rest = dbg2.get(u32_at(dbg2, 36)? as usize..)?;
    for _ in 0..u32_at(dbg2, 40)? {
        let (device, after) = rest.split_at_checked(u16_at(rest, 1)?.max(22).into())?;
        let port = || {
            let registers = device.get(u16_at(device, 18)?.into()..)?.get(..12)?;
            let (kind, address) = uart(u16_at(device, 14)?, registers)?;
            (u16_at(device, 12)? == SERIAL).then_some(Port { kind, address, gsi: None })
        };
        if let Some(port) = port() {
            return Some(port);
        }
        rest = after;
    }
    None
}

/// Kind and address of a UART, by the number of its kind, the same in both tables, and the Generic Address Structure of its
/// registers.
fn uart(kind: u16, registers: &[u8]) -> Option<(Kind, u64)> {
    const MEMORY: u8 = 0;
    const BYTES: u8 = 1;
    const DOUBLE_WORDS: u8 = 3;
    // "Register Bit Width" and "Access Size", whose 0 leaves it open.
    let (space, bits, access, address) = (u8_at(registers, 0)?, u8_at(registers, 1)?, u8_at(registers, 3)?, u64_at(registers, 4)?);
    let kind = match kind {
        // 0xd and 0xe: Arm's SBSA generic UART, which has some of a PL011's registers.
        3 | 0xd | 0xe => Kind::Pl011,
        0 | 1 | 0x12 => {
            let wide = match access {
                0 | BYTES => false,
                DOUBLE_WORDS => true,
                _ => return None,
            };
            // 1 is a 16450, which has no FIFO.
            Kind::Compatible { shift: if wide || bits == 32 { 2 } else { 0 }, wide, fifo: if kind == 1 { 1 } else { FIFO } }
        }
        _ => return None,
    };
    (space == MEMORY && address != 0).then_some((kind, address))
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn registers(space: u8, bits: u8, access: u8) -> Vec<u8> {
        let mut bytes = vec![space, bits, 0, access];
        bytes.extend(0x2_0000_1000_u64.to_le_bytes());
        bytes
    }

    fn spcr(kind: u8, registers: &[u8], interrupt: u8) -> Option<Port> {
        let mut bytes = vec![0; 80];
        bytes[36] = kind;
        bytes[40..52].copy_from_slice(registers);
        bytes[52] = interrupt;
        bytes[54] = 33;
        for length in 0..54 {
            // Cut short, it has no port, or the same without an interrupt.
            assert!(of_spcr(&bytes[..length]).is_none_or(|port| port.gsi.is_none()));
        }
        of_spcr(&bytes)
    }

    #[test]
    fn consoles() {
        let memory = registers(0, 32, 3);
        assert_eq!(spcr(3, &memory, 8), Some(Port { kind: Kind::Pl011, address: 0x2_0000_1000, gsi: Some(33) }));
        assert_eq!(spcr(0xe, &memory, 1), Some(Port { kind: Kind::Pl011, address: 0x2_0000_1000, gsi: None }));
        let compatible = |fifo, shift, wide| Some(Kind::Compatible { fifo, shift, wide });
        let kind = |kind, registers: Vec<u8>| spcr(kind, &registers, 8).map(|port| port.kind);
        assert_eq!(kind(0x12, memory), compatible(16, 2, true));
        assert_eq!(kind(0, registers(0, 8, 1)), compatible(16, 0, false));
        assert_eq!(kind(1, registers(0, 32, 1)), compatible(1, 2, false));
        // In ports, of words, and of another kind.
        assert_eq!((kind(0, registers(1, 8, 1)), kind(0, registers(0, 16, 2)), kind(0x13, registers(0, 8, 1))), (None, None, None));
    }

    #[test]
    fn debug_ports() {
        let device = |port: u16, kind: u16, registers: &[u8]| {
            let mut bytes = vec![0; 22];
            bytes[1..3].copy_from_slice(&(22 + registers.len() as u16).to_le_bytes());
            bytes[12..14].copy_from_slice(&port.to_le_bytes());
            bytes[14..16].copy_from_slice(&kind.to_le_bytes());
            bytes[18..20].copy_from_slice(&22_u16.to_le_bytes());
            bytes.extend(registers);
            bytes
        };
        let memory = registers(0, 32, 3);
        let mut bytes = vec![0; 44];
        (bytes[36], bytes[40]) = (44, 3);
        bytes.extend(device(0x8001, 3, &memory));
        bytes.extend(device(0x8000, 3, &registers(1, 32, 3)));
        bytes.extend(device(0x8000, 3, &memory));
        assert_eq!(of_dbg2(&bytes), Some(Port { kind: Kind::Pl011, address: 0x2_0000_1000, gsi: None }));
        for length in 0..bytes.len() {
            assert_eq!(of_dbg2(&bytes[..length]), None);
        }
        // More devices than there are, each of no length.
        bytes[40] = 0xff;
        bytes.truncate(44);
        bytes.resize(4096, 0);
        assert_eq!(of_dbg2(&bytes), None);
    }
}
