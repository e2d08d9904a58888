//! Serial ports in ACPI tables: "Serial Port Console Redirection Table" (SPCR) and "Debug Port Table 2" (DBG2), Microsoft.

use crate::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::serial::{FIFO, Kind};

/// A serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The UART.
    pub kind: Kind,
    /// Address space of its registers.
    pub space: Space,
    /// Address of its registers: not 0; of eight ports, at most 0xfff8.
    pub address: u64,
    /// Its interrupt, if any.
    pub interrupt: Option<Interrupt>,
    /// Divisor of its clock for the table's baud rate, if the table has a rate and the clock is known: not 0.
    pub divisor: Option<u16>,
}

/// An address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Physical memory.
    Memory,
    /// A PC's I/O ports.
    Ports,
}

/// An interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// A global system interrupt.
    Global(u32),
    /// An interrupt of a PC's ISA bus.
    Isa(u8),
}

impl Interrupt {
    /// The global system interrupt, if it is one.
    pub fn global(self) -> Option<u32> {
        match self {
            Self::Global(gsi) => Some(gsi),
            Self::Isa(_) => None,
        }
    }
}

/// The console of an SPCR, if it is of a kind that is known, and `accepts` it.
pub fn of_spcr(spcr: &[u8], accepts: impl Fn(&Port) -> bool) -> Option<Port> {
    const BY_8259: u8 = 1 << 0;
    // An I/O APIC, an I/O SAPIC, a GIC.
    const GLOBAL: u8 = 1 << 1 | 1 << 2 | 1 << 3;
    let port = uart(u8_at(spcr, 36)?.into(), spcr.get(40..52)?)?;
    let kinds = u8_at(spcr, 52).unwrap_or(0);
    let interrupt = if kinds & GLOBAL != 0 {
        u32_at(spcr, 54).map(Interrupt::Global)
    } else if kinds & BY_8259 != 0 {
        u8_at(spcr, 53).map(Interrupt::Isa)
    } else {
        None
    };
    Some(Port { interrupt, divisor: divisor(spcr, port.space), ..port }).filter(accepts)
}

/// The divisor for an SPCR's baud rate.
fn divisor(spcr: &[u8], space: Space) -> Option<u16> {
    /// Frequency of the UARTs in a PC's ports, in Hz.
    const CLOCK: u32 = 1_843_200;
    // "UART Clock Frequency" came with revision 3, "Precise Baud Rate" with revision 4.
    let since = |revision: u8, at: usize| u32_at(spcr, at).filter(|&value| value != 0 && spcr.get(8).is_some_and(|is| *is >= revision));
    let rate = since(4, 80).or(match u8_at(spcr, 58)? {
        3 => Some(9_600),
        4 => Some(19_200),
        6 => Some(57_600),
        7 => Some(115_200),
        // 0: as firmware has set it.
        _ => None,
    })?;
    // "PCI Device ID": all ones unless it is a PCI function, whose clock may be another in ports, too. 0 counts as none: firmware may leave
    // unused fields clear.
    let is_pci = u16_at(spcr, 64).is_some_and(|id| !matches!(id, 0 | u16::MAX));
    let clock = since(3, 76).or((space == Space::Ports && !is_pci).then_some(CLOCK))?;
    let rate = u64::from(rate) * 16;
    u16::try_from((u64::from(clock) + rate / 2) / rate).ok().filter(|&divisor| divisor != 0)
}

/// The first serial port of a DBG2 that is of a kind that is known, and that `accepts` takes. The table names neither interrupts nor
/// speeds.
pub fn of_dbg2(dbg2: &[u8], accepts: impl Fn(&Port) -> bool) -> Option<Port> {
    const SERIAL: u16 = 0x8000;
    /// Lengths of the fixed parts of the table and of a device.
    const TABLE: usize = 44;
    const DEVICE: usize = 22;
    let mut rest = dbg2.get((u32_at(dbg2, 36)? as usize).max(TABLE)..)?;
    for _ in 0..u32_at(dbg2, 40)? {
        let (device, after) = rest.split_at_checked(usize::from(u16_at(rest, 1)?).max(DEVICE))?;
        let port = || {
            // "Number of Generic Address Registers".
            let has_registers = u8_at(device, 3)? != 0;
            let offset = usize::from(u16_at(device, 18)?);
            let registers = device.get(offset..)?.get(..12).filter(|_| has_registers && offset >= DEVICE)?;
            let port = uart(u16_at(device, 14)?, registers)?;
            (u16_at(device, 12)? == SERIAL).then_some(port)
        };
        if let Some(port) = port().filter(&accepts) {
            return Some(port);
        }
        rest = after;
    }
    None
}

/// A UART, by the number of its kind, the same in both tables, and the Generic Address Structure of its registers.
fn uart(kind: u16, registers: &[u8]) -> Option<Port> {
    const MEMORY: u8 = 0;
    const PORTS: u8 = 1;
    const DOUBLE_WORDS: u8 = 3;
    // "Register Bit Width" and "Access Size": 0 is undefined; values from 5 on are reserved.
    let (space, bits, access, address) = (u8_at(registers, 0)?, u8_at(registers, 1)?, u8_at(registers, 3)?, u64_at(registers, 4)?);
    let space = match space {
        MEMORY => Space::Memory,
        PORTS if address <= 0xfff8 => Space::Ports,
        _ => return None,
    };
    let kind = match kind {
        // 0xd and 0xe: Arm's SBSA generic UART, which has some of a PL011's registers.
        3 | 0xd | 0xe if space == Space::Memory => Kind::Pl011,
        0 | 1 | 0x12 => {
            // 1 is a 16450, which has no FIFO.
            let fifo = if kind == 1 { 1 } else { FIFO };
            match space {
                Space::Memory => {
                    let wide = match access {
                        // Words of 16 and 64 bits.
                        2 | 4 => return None,
                        access => access == DOUBLE_WORDS,
                    };
                    Kind::Compatible { shift: if wide || bits == 32 { 2 } else { 0 }, wide, fifo }
                }
                // Ports are bytes beside each other, whatever the widths: firmware gives those of the address bus, too.
                Space::Ports => Kind::Compatible { shift: 0, wide: false, fifo },
            }
        }
        _ => return None,
    };
    (address != 0).then_some(Port { kind, space, address, interrupt: None, divisor: None })
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

    fn in_memory(port: &Port) -> bool {
        port.space == Space::Memory
    }

    fn table(kind: u8, registers: &[u8], interrupt: u8) -> Vec<u8> {
        let mut bytes = vec![0; 88];
        bytes[8] = 4;
        bytes[36] = kind;
        bytes[40..52].copy_from_slice(registers);
        (bytes[52], bytes[53], bytes[54]) = (interrupt, 3, 33);
        bytes
    }

    fn spcr(kind: u8, registers: &[u8], interrupt: u8) -> Option<Port> {
        let bytes = table(kind, registers, interrupt);
        for length in 0..53 {
            // Cut short, it has no port, or the same without an interrupt.
            assert!(of_spcr(&bytes[..length], in_memory).is_none_or(|port| port.interrupt.is_none()));
        }
        of_spcr(&bytes, in_memory)
    }

    #[test]
    fn consoles() {
        let memory = registers(0, 32, 3);
        let pl011 = |interrupt| Some(Port { kind: Kind::Pl011, space: Space::Memory, address: 0x2_0000_1000, interrupt, divisor: None });
        assert_eq!(spcr(3, &memory, 8), pl011(Some(Interrupt::Global(33))));
        assert_eq!(spcr(3, &memory, 2 | 1), pl011(Some(Interrupt::Global(33))));
        assert_eq!(spcr(0xe, &memory, 1), pl011(Some(Interrupt::Isa(3))));
        assert_eq!(spcr(0xe, &memory, 0), pl011(None));
        let compatible = |fifo, shift, wide| Some(Kind::Compatible { fifo, shift, wide });
        let kind = |kind, registers: Vec<u8>| spcr(kind, &registers, 8).map(|port| port.kind);
        assert_eq!(kind(0x12, memory), compatible(16, 2, true));
        assert_eq!(kind(0, registers(0, 8, 1)), compatible(16, 0, false));
        assert_eq!(kind(1, registers(0, 32, 1)), compatible(1, 2, false));
        assert_eq!(kind(0x12, registers(0, 8, 3)), compatible(16, 2, true));
        assert_eq!(kind(0, registers(0, 8, 0)), compatible(16, 0, false));
        assert_eq!(kind(0, registers(0, 0, 0xff)), compatible(16, 0, false));
        // In ports, of words of 16 and 64 bits, and of other kinds.
        assert_eq!((kind(0, registers(1, 8, 1)), kind(0, registers(0, 16, 2)), kind(0, registers(0, 64, 4))), (None, None, None));
        assert_eq!((kind(2, registers(0, 8, 1)), kind(0x13, registers(0, 8, 1)), kind(0xff, registers(0, 8, 1))), (None, None, None));
    }

    #[test]
    fn consoles_of_all_revisions() {
        for (revision, length) in [(1, 80), (2, 80), (3, 80), (4, 88), (0, 80), (9, 100)] {
            let mut bytes = table(0, &registers(0, 8, 1), 8);
            (bytes[8], bytes[58]) = (revision, 7);
            bytes.resize(length, 0);
            let port = of_spcr(&bytes, in_memory).expect("a console");
            assert_eq!((port.address, port.interrupt, port.divisor), (0x2_0000_1000, Some(Interrupt::Global(33)), None), "{revision}");
            // A clock counts from revision 3 on; a table that is shorter than its revision has none.
            bytes[76..80].copy_from_slice(&1_843_200_u32.to_le_bytes());
            assert_eq!(of_spcr(&bytes, in_memory).unwrap().divisor, (revision >= 3).then_some(1));
            assert_eq!(of_spcr(&bytes[..78], in_memory).unwrap().divisor, None);
        }
    }

    #[test]
    fn consoles_in_ports() {
        let at = |address: u64| [&[1, 32, 0, 3][..], &address.to_le_bytes()].concat();
        let port = |kind, address| of_spcr(&table(kind, &at(address), 1), |_| true);
        let kind = Kind::Compatible { fifo: 16, shift: 0, wide: false };
        let com2 = Port { kind, space: Space::Ports, address: 0x2f8, interrupt: Some(Interrupt::Isa(3)), divisor: None };
        assert_eq!(port(0, 0x2f8), Some(com2));
        // Widths have no meaning there.
        for (bits, access) in [(8, 1), (16, 2), (8, 2), (0, 0), (64, 4), (255, 255)] {
            let registers = [&[1, bits, 0, access][..], &0x2f8_u64.to_le_bytes()].concat();
            assert_eq!(of_spcr(&table(0, &registers, 1), |_| true), Some(com2), "{bits} {access}");
        }
        // A PL011, no console, and registers beyond the last port.
        assert_eq!((port(3, 0x2f8), port(0, 0), port(0, 0xfff9)), (None, None, None));
    }

    #[test]
    fn speeds() {
        let divisor = |space, rate: u8, clock: u32, precise: u32, revision| {
            let mut bytes = table(0, &[&[space, 8, 0, 1][..], &0x2f8_u64.to_le_bytes()].concat(), 1);
            (bytes[8], bytes[58]) = (revision, rate);
            bytes[76..80].copy_from_slice(&clock.to_le_bytes());
            bytes[80..84].copy_from_slice(&precise.to_le_bytes());
            of_spcr(&bytes, |_| true).unwrap().divisor
        };
        let rates = [0, 3, 4, 5, 6, 7].map(|rate| divisor(1, rate, 0, 0, 2));
        assert_eq!(rates, [None, Some(12), Some(6), None, Some(2), Some(1)]);
        // The clock of registers in memory is the table's.
        assert_eq!(divisor(0, 7, 0, 0, 4), None);
        assert_eq!(divisor(0, 7, 48_000_000, 0, 3), Some(26));
        assert_eq!(divisor(0, 7, 48_000_000, 0, 2), None);
        assert_eq!(divisor(0, 0, 48_000_000, 1_500_000, 4), Some(2));
        assert_eq!(divisor(0, 0, 48_000_000, 1_500_000, 3), None);
        // The clock of a PCI function is the table's, too.
        let of_pci = |id: u16, clock: u32| {
            let mut bytes = table(0, &[&[1, 8, 0, 1][..], &0xe060_u64.to_le_bytes()].concat(), 0);
            bytes[58] = 7;
            bytes[64..66].copy_from_slice(&id.to_le_bytes());
            bytes[76..80].copy_from_slice(&clock.to_le_bytes());
            of_spcr(&bytes, |_| true).unwrap().divisor
        };
        assert_eq!([of_pci(0xffff, 0), of_pci(0, 0), of_pci(0xa13d, 0), of_pci(0xa13d, 3_686_400)], [Some(1), Some(1), None, Some(2)]);
        // Speeds that the clock can't have.
        assert_eq!((divisor(1, 0, 0, u32::MAX, 4), divisor(0, 3, u32::MAX, 1, 4)), (None, None));
    }

    #[test]
    fn debug_ports() {
        let device = |port: u16, kind: u16, registers: &[u8]| {
            let mut bytes = vec![0; 22];
            bytes[1..3].copy_from_slice(&(22 + registers.len() as u16).to_le_bytes());
            bytes[3] = 1;
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
        bytes.extend(device(0x8000, 0, &[&[1, 8, 0, 1][..], &0x3e8_u64.to_le_bytes()].concat()));
        bytes.extend(device(0x8000, 3, &memory));
        let pl011 = Port { kind: Kind::Pl011, space: Space::Memory, address: 0x2_0000_1000, interrupt: None, divisor: None };
        assert_eq!(of_dbg2(&bytes, in_memory), Some(pl011));
        assert_eq!(of_dbg2(&bytes, |_| true).map(|port| (port.space, port.address)), Some((Space::Ports, 0x3e8)));
        for length in 0..bytes.len() {
            assert_eq!(of_dbg2(&bytes[..length], in_memory), None);
        }
        // Devices that have no registers by their number or their offset are left out, and others found.
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            of_dbg2(&bytes, |_| true).map(|port| port.address)
        };
        let second = 44 + 34;
        assert_eq!(with(0, 0), Some(0x3e8));
        for (at, value) in [(3, 0), (18, 0), (18, 21), (18, 23), (19, 1), (12, 1), (14, 2)] {
            assert_eq!(with(second + at, value), Some(0x2_0000_1000), "{at} {value}");
        }
        // A device beyond the table, and devices in its header.
        assert_eq!((with(second + 2, 1), with(37, 1), with(36, 0)), (None, None, Some(0x3e8)));
        // More devices than there are, each of no length.
        bytes[40] = 0xff;
        bytes.truncate(44);
        bytes.resize(4096, 0);
        assert_eq!(of_dbg2(&bytes, |_| true), None);
    }
}
