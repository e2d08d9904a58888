//! The serial port of a board, by its device tree (bindings `arm,pl011`, `8250`, `brcm,bcm2835-aux-uart`, `cdns,uart`, `fsl-imx-uart`).

use dtoolkit::fdt::{Fdt, FdtNode};

use heapless::Vec;

use crate::nodes::{Span, cells, find_each_and, intid, is_compatible, is_enabled, registers, text};

/// A kind of UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An Arm PL011.
    Pl011,
    /// A relative of the 16550, with eight registers.
    Compatible {
        /// Log2 of the registers' distance in bytes, at most 4.
        shift: u8,
        /// Accesses have 32 bits, not 8.
        wide: bool,
        /// Number of bytes that it takes when it says that its transmitter is empty.
        fifo: u8,
    },
    /// Cadence's, as in Xilinx's SoCs.
    Cadence,
    /// NXP's, of the i.MX 6 and 8M.
    Imx,
}

/// A serial port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerialPort {
    /// The UART.
    pub kind: Kind,
    /// Its registers, in physical memory.
    pub registers: Span,
    /// Physical INTID, if any.
    pub intid: Option<u32>,
}

const PL011: &str = "arm,pl011";
/// Values of `compatible` for Cadence's UART.
const CADENCE: [&str; 3] = ["cdns,uart-r1p12", "cdns,uart-r1p8", "xlnx,xuartps"];
/// Value of `compatible` for NXP's UART.
const IMX: &str = "fsl,imx6q-uart";
/// Bytes in the FIFO of a 16550A and of Synopsys' UART.
pub(crate) const FIFO: u8 = 16;
/// Relatives of the 16550, and their FIFO's size. The transmitter of Broadcom's says that it is empty when there is room for one
/// byte, and a 16450 has no FIFO.
const COMPATIBLE: [(&str, u8); 5] =
    [("ns16550a", FIFO), ("snps,dw-apb-uart", FIFO), ("brcm,bcm2835-aux-uart", 1), ("ns16550", 1), ("ns16450", 1)];
/// The one whose registers are words, which its node does not say.
const BROADCOM: &str = "brcm,bcm2835-aux-uart";

/// Maximum number of ports among which Stile chooses its console.
pub const MOST_PORTS: usize = 8;

impl SerialPort {
    /// Returns the ports of a tree, in the order of [`Ports::in_order`].
    pub fn find_all(tree: &Fdt<'_>) -> Vec<SerialPort, MOST_PORTS> {
        let mut ports = Ports::new(tree);
        let [] = find_each_and(tree, [], |node, name| ports.add(tree, node, name));
        ports.in_order()
    }

    fn read<'a>(tree: &Fdt<'a>, node: FdtNode<'a>) -> Option<SerialPort> {
        let cell = |name| cells(&node, name).first().copied();
        let kind = if is_compatible(&node, PL011) {
            Kind::Pl011
        } else if CADENCE.iter().any(|name| is_compatible(&node, name)) {
            Kind::Cadence
        } else if is_compatible(&node, IMX) {
            Kind::Imx
        } else {
            let &(name, fifo) = COMPATIBLE.iter().find(|&&(name, _)| is_compatible(&node, name))?;
            let words = if name == BROADCOM { (2, 4) } else { (0, 1) };
            let shift = u8::try_from(cell("reg-shift").unwrap_or(words.0)).ok().filter(|&shift| shift <= 4)?;
            let wide = match cell("reg-io-width").unwrap_or(words.1) {
                1 => false,
                // Words at other distances would overlap.
                4 if shift >= 2 => true,
                _ => return None,
            };
            Kind::Compatible { shift, wide, fifo }
        };
        let registers = registers::<1>(tree, node).into_iter().next()?;
        let size = match kind {
            // Up to the last register in use.
            Kind::Pl011 => 0x48,
            Kind::Cadence => 0x34,
            Kind::Imx => 0xb8,
            Kind::Compatible { shift, .. } => 8 << shift,
        };
        (registers.end - registers.start >= size).then(|| SerialPort { kind, registers, intid: intid(&cells(&node, "interrupts")) })
    }
}

/// Serial ports that Stile has drivers for, collected during a walk.
#[derive(Default)]
pub struct Ports {
    /// Firmware's choice of console, and PL011s.
    first: Vec<SerialPort, MOST_PORTS>,
    others: Vec<SerialPort, MOST_PORTS>,
}

impl Ports {
    /// Begins with firmware's choice of console.
    pub fn new(tree: &Fdt<'_>) -> Self {
        let chosen = chosen(tree).filter(is_enabled).and_then(|node| SerialPort::read(tree, node));
        Self { first: chosen.into_iter().collect(), others: Vec::new() }
    }

    /// Adds the port of a node that has a name in its `compatible`, if Stile has a driver for that.
    pub fn add<'a>(&mut self, tree: &Fdt<'a>, node: FdtNode<'a>, name: &str) {
        if !is_driven(name) || !is_enabled(&node) {
            return;
        }
        let Some(port) = SerialPort::read(tree, node) else { return };
        if !self.first.iter().chain(&self.others).any(|other| other.registers == port.registers) {
            let list = if port.kind == Kind::Pl011 { &mut self.first } else { &mut self.others };
            let _ = list.push(port);
        }
    }

    /// Returns the ports in the order in which they are tried: firmware's choice of console, PL011s, others.
    pub fn in_order(self) -> Vec<SerialPort, MOST_PORTS> {
        self.first.into_iter().chain(self.others).take(MOST_PORTS).collect()
    }
}

/// Whether Stile has a driver for a port with this name in `compatible`.
fn is_driven(name: &str) -> bool {
    name == PL011 || name == IMX || CADENCE.contains(&name) || COMPATIBLE.iter().any(|&(other, _)| other == name)
}

/// The node of `stdout-path`: a path or an alias, and options after a colon.
fn chosen<'a>(tree: &Fdt<'a>) -> Option<FdtNode<'a>> {
    let name = text(&tree.find_node("/chosen")?, "stdout-path")?.split(':').next()?;
    let path = if name.starts_with('/') { name } else { text(&tree.find_node("/aliases")?, name)? };
    tree.find_node(path)
}

#[cfg(test)]
mod tests {
    use vm_fdt::FdtWriter;

    use super::*;

    /// A tree with ports at 0x1000, 0x2000, ...: their names in `compatible`, and further properties.
    fn ports(chosen: Option<&str>, ports: &[(&str, &[(&str, u32)])]) -> Option<SerialPort> {
        all(chosen, ports).into_iter().next()
    }

    fn all(chosen: Option<&str>, ports: &[(&str, &[(&str, u32)])]) -> Vec<SerialPort, MOST_PORTS> {
        let mut fdt = FdtWriter::new().unwrap();
        let root = fdt.begin_node("").unwrap();
        fdt.property_u32("#address-cells", 1).unwrap();
        fdt.property_u32("#size-cells", 1).unwrap();
        if let Some(chosen) = chosen {
            let aliases = fdt.begin_node("aliases").unwrap();
            fdt.property_string("serial1", "/port@2000").unwrap();
            fdt.end_node(aliases).unwrap();
            let node = fdt.begin_node("chosen").unwrap();
            fdt.property_string("stdout-path", chosen).unwrap();
            fdt.end_node(node).unwrap();
        }
        for (number, (name, properties)) in (1..).zip(ports) {
            let node = fdt.begin_node(&std::format!("port@{number}000")).unwrap();
            fdt.property_string("compatible", name).unwrap();
            fdt.property_array_u32("reg", &[number << 12, if *name == IMX { 0xb8 } else { 0x48 }]).unwrap();
            fdt.property_array_u32("interrupts", &[0, number, 4]).unwrap();
            for &(name, value) in *properties {
                fdt.property_u32(name, value).unwrap();
            }
            fdt.end_node(node).unwrap();
        }
        fdt.end_node(root).unwrap();
        let bytes = fdt.finish().unwrap();
        SerialPort::find_all(&Fdt::new(&bytes).unwrap())
    }

    fn at(port: Option<SerialPort>) -> Option<(u64, Kind)> {
        port.map(|port| (port.registers.start, port.kind))
    }

    #[test]
    fn firmwares_choice_comes_first() {
        let both: [(&str, &[(&str, u32)]); 2] = [(PL011, &[]), (BROADCOM, &[])];
        let broadcom = Kind::Compatible { shift: 2, wide: true, fifo: 1 };
        assert_eq!(at(ports(Some("serial1:115200n8"), &both)), Some((0x2000, broadcom)));
        assert_eq!(at(ports(Some("/port@2000"), &both)), Some((0x2000, broadcom)));
        assert_eq!(at(ports(Some("serial7"), &both)), Some((0x1000, Kind::Pl011)));
        assert_eq!(at(ports(None, &both)), Some((0x1000, Kind::Pl011)));
        assert_eq!(ports(None, &both).unwrap().intid, Some(33));
        // Each name of Cadence's alone.
        for name in CADENCE {
            assert_eq!(at(ports(None, &[("vendor,uart", &[]), (name, &[])])), Some((0x2000, Kind::Cadence)));
        }
        assert_eq!(at(ports(None, &[(IMX, &[])])), Some((0x1000, Kind::Imx)));
        // One that Stile has no driver for.
        assert_eq!(at(ports(Some("serial1"), &[(PL011, &[]), ("vendor,uart", &[])])), Some((0x1000, Kind::Pl011)));
        assert_eq!(ports(None, &[("vendor,uart", &[])]), None);
    }

    #[test]
    fn other_ports_follow_each_once() {
        let names: [(&str, &[(&str, u32)]); 4] = [("ns16550a", &[]), (PL011, &[]), ("vendor,uart", &[]), (PL011, &[])];
        let starts = |chosen| all(chosen, &names).iter().map(|port| port.registers.start).collect::<std::vec::Vec<_>>();
        assert_eq!(starts(None), [0x2000, 0x4000, 0x1000]);
        assert_eq!(starts(Some("/port@4000")), [0x4000, 0x2000, 0x1000]);
        assert_eq!(starts(Some("/port@3000")), [0x2000, 0x4000, 0x1000]);
        let many: [(&str, &[(&str, u32)]); MOST_PORTS + 1] = [(PL011, &[]); MOST_PORTS + 1];
        assert_eq!(all(None, &many).len(), MOST_PORTS);
    }

    #[test]
    fn registers_have_distances_and_widths() {
        let read = |properties| at(ports(None, &[("snps,dw-apb-uart", properties)])).map(|(_, kind)| kind);
        assert_eq!(read(&[]), Some(Kind::Compatible { shift: 0, wide: false, fifo: 16 }));
        assert_eq!(read(&[("reg-shift", 2), ("reg-io-width", 4)]), Some(Kind::Compatible { shift: 2, wide: true, fifo: 16 }));
        assert_eq!(read(&[("reg-shift", 2)]), Some(Kind::Compatible { shift: 2, wide: false, fifo: 16 }));
        // Overlapping words, other widths, and registers beyond the node's.
        for wrong in [&[("reg-io-width", 4)][..], &[("reg-io-width", 2)], &[("reg-shift", 4)], &[("reg-shift", 5)], &[("reg-shift", 256)]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
