//! A device tree of a machine that has ACPI tables: the rest of Stile reads device trees only.

use core::ops::Range;

use crate::arm_tables::ArmTables;
use crate::configuration::{self, BootMedium};
use crate::frame_buffer::FrameBuffer;
use crate::serial::Kind;
use crate::serial_tables::{Interrupt, Port};
use crate::tree_writer::TreeWriter;
use crate::{arm_pci, nodes, numa};

/// The GIC's phandle.
const GIC: u32 = 1;
/// Sizes of the distributor's, an ITS's and a UART's registers, in bytes.
const DISTRIBUTOR_SIZE: u64 = 0x1_0000;
const ITS_SIZE: u64 = 0x2_0000;
const UART_SIZE: u64 = 0x1000;
/// Sizes of the registers of a GICv2: distributor, CPU interface, virtual interface control, virtual CPU interface.
const GICV2_SIZES: [u64; 4] = [0x1000, 0x2000, 0x1000, 0x2000];
/// The maintenance interrupt's INTID in Arm's Base System Architecture 1.0, section 3.8 ("PPI assignments"), for a MADT that names none, or
/// a shared interrupt, as U-Boot's does for QEMU's `sbsa-ref`.
const MAINTENANCE: u32 = 25;
/// Level-sensitive, active high.
const LEVEL: u32 = 4;

/// The property of an interrupt controller without a value: its interrupt is not in the tables, but that of the architecture.
pub const ASSUMED: &str = "stile,assumed-interrupt";

/// The property of `/chosen` with the time at which Stile was started, in seconds since 1970: two cells.
pub const TIME: &str = "stile,time";

/// Writes the tree of a machine with this memory, parts of which are reserved, to `to`. `time`: now, in seconds since
/// 1970, if firmware knows it. `medium`: files of the boot medium. Returns the tree's length; `None` without room.
pub fn describe(
    tables: &ArmTables,
    time: Option<u64>,
    frame_buffer: Option<&FrameBuffer>,
    medium: Option<&BootMedium<'_>>,
    memory: impl Iterator<Item = Range<u64>> + Clone,
    reserved: impl Iterator<Item = Range<u64>>,
    to: &mut [u8],
) -> Option<usize> {
    let mut tree = TreeWriter::new(reserved, to);
    tree.begin("");
    tree.text("model", "machine with ACPI tables");
    tree.cells("#address-cells", &[2]);
    tree.cells("#size-cells", &[2]);
    tree.cells("interrupt-parent", &[GIC]);
    tree.begin("chosen");
    if tables.uart.is_some() {
        tree.text("stdout-path", "/serial");
    }
    if let Some(time) = time {
        tree.cells(TIME, &[(time >> 32) as u32, time as u32]);
    }
    if tables.pci.is_some() {
        tree.cells(arm_pci::PROBE_ONLY, &[1]);
    }
    tree.end();
    for (bank, node) in memory.flat_map(|bank| tables.numa.split(bank)) {
        tree.begin_at("memory", Some(bank.start));
        tree.text("device_type", "memory");
        tree.reg(core::iter::once(bank));
        if let Some(node) = node {
            tree.cells(numa::PROPERTY, &[node]);
        }
        tree.end();
    }
    tree.begin("cpus");
    tree.cells("#address-cells", &[2]);
    tree.cells("#size-cells", &[0]);
    for (&cpu, &efficiency) in tables.cpus.iter().zip(&tables.efficiency) {
        tree.begin_at("cpu", Some(cpu));
        tree.text("device_type", "cpu");
        tree.cells("reg", &[(cpu >> 32) as u32, cpu as u32]);
        tree.text("enable-method", "psci");
        tree.cells(nodes::CAPACITY, &[u32::from(efficiency) + 1]);
        if let Some(node) = tables.numa.of_cpu(cpu) {
            tree.cells(numa::PROPERTY, &[node]);
        }
        tree.end();
    }
    tree.end();
    if let Some(hvc) = tables.psci_by_hvc {
        tree.begin("psci");
        tree.text("compatible", "arm,psci-1.0");
        tree.text("method", if hvc { "hvc" } else { "smc" });
        tree.end();
    }
    if let Some(distributor) = tables.distributor {
        interrupt_controller(&mut tree, tables, distributor);
    }
    if let Some([secure, physical, virt, hypervisor]) = tables.timers {
        let [a, b, c] = interrupt(secure);
        let [d, e, f] = interrupt(physical);
        let [g, h, i] = interrupt(virt);
        let [j, k, l] = interrupt(hypervisor);
        tree.begin("timer");
        tree.text("compatible", "arm,armv8-timer");
        tree.cells("interrupts", &[a, b, c, d, e, f, g, h, i, j, k, l]);
        tree.end();
    }
    if let Some(port) = tables.uart {
        serial_port(&mut tree, "serial", &port);
    }
    if let Some(port) = tables.debug_port {
        serial_port(&mut tree, "debug-port", &port);
    }
    if let Some(pci) = &tables.pci {
        pci.write(&mut tree);
    }
    if let Some(frame_buffer) = frame_buffer {
        frame_buffer.write(&mut tree);
    }
    if let Some(medium) = medium {
        configuration::write(medium, &mut tree);
    }
    tree.end();
    tree.finish()
}

/// Writes the node of a memory-mapped serial port.
fn serial_port(tree: &mut TreeWriter<'_>, name: &str, port: &Port) {
    tree.begin(name);
    match port.kind {
        Kind::Pl011 => tree.text("compatible", "arm,pl011"),
        Kind::Compatible { fifo, shift, wide } => {
            tree.text("compatible", if fifo > 1 { "ns16550a" } else { "ns16450" });
            tree.cells("reg-shift", &[shift.into()]);
            tree.cells("reg-io-width", &[if wide { 4 } else { 1 }]);
        }
        Kind::Cadence => tree.text("compatible", "xlnx,xuartps"),
        Kind::Imx => tree.text("compatible", "fsl,imx6q-uart"),
    }
    tree.reg(core::iter::once(port.address..port.address.saturating_add(UART_SIZE)));
    if let Some(intid) = port.interrupt.and_then(Interrupt::global) {
        tree.cells("interrupts", &interrupt(intid));
    }
    tree.end();
}

fn interrupt_controller(tree: &mut TreeWriter<'_>, tables: &ArmTables, distributor: u64) {
    tree.begin_at("interrupt-controller", Some(distributor));
    tree.text("compatible", if tables.gicv2().is_some() { "arm,gic-400" } else { "arm,gic-v3" });
    tree.empty("interrupt-controller");
    tree.cells("#interrupt-cells", &[3]);
    tree.cells("#address-cells", &[2]);
    tree.cells("#size-cells", &[2]);
    tree.empty("ranges");
    if let Some([gicc, gich, gicv]) = tables.gicv2() {
        let addresses = [distributor, gicc, gich, gicv].into_iter();
        tree.reg(addresses.zip(GICV2_SIZES).map(|(address, size)| address..address.saturating_add(size)));
    } else {
        tree.cells("#redistributor-regions", &[tables.redistributors.len() as u32]);
        let registers = core::iter::once(distributor..distributor.saturating_add(DISTRIBUTOR_SIZE));
        tree.reg(registers.chain(tables.redistributors.iter().cloned()));
    }
    if let Some(intid) = tables.maintenance {
        tree.cells("interrupts", &interrupt(intid));
    } else if tables.timers.is_none_or(|timers| !timers.contains(&MAINTENANCE)) {
        tree.cells("interrupts", &interrupt(MAINTENANCE));
        tree.empty(ASSUMED);
    }
    tree.cells("phandle", &[GIC]);
    if let Some(its) = tables.its {
        tree.begin_at("msi-controller", Some(its));
        tree.text("compatible", "arm,gic-v3-its");
        tree.reg(core::iter::once(its..its.saturating_add(ITS_SIZE)));
        tree.cells("phandle", &[arm_pci::ITS]);
        tree.end();
    }
    tree.end();
}

/// The specifier of an interrupt: a PPI below 32, an SPI from there on.
fn interrupt(intid: u32) -> [u32; 3] {
    match intid {
        0..32 => [1, intid.saturating_sub(16), LEVEL],
        _ => [0, intid - 32, LEVEL],
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
pub(crate) mod tests {
    use std::vec;
    use std::vec::Vec;

    use dtoolkit::Node;
    use proptest::prelude::*;

    use super::*;
    use crate::boot_files::Block;
    use crate::device_tree;
    use crate::flat::Flat;
    use crate::gicv2::Gicv2;
    use crate::iort;
    use crate::nodes::{cells, intid, spans, text};
    use crate::numa::Numa;
    use crate::serial::SerialPort;
    use crate::table::sum;

    /// Bytes of fields at offsets.
    pub fn fields(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, field) in fields {
            bytes[*at..*at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    pub fn put_table(memory: &mut Flat, at: usize, signature: &[u8; 4], body: &[u8]) {
        let mut bytes = fields(36, &[(0, signature), (4, &(36 + body.len() as u32).to_le_bytes())]);
        bytes.extend(body);
        bytes[9] = 0u8.wrapping_sub(bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte)));
        memory.0[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    pub fn cpu(mpidr: u64, enabled: u8) -> Vec<u8> {
        fields(
            80,
            &[(0, &[0x0b, 80]), (8, &[mpidr as u8]), (12, &[enabled]), (56, &[25]), (68, &mpidr.to_le_bytes()), (76, &[mpidr as u8])],
        )
    }

    /// Memory with tables of all kinds that are read. The IORT is at 6900h.
    pub fn machine() -> Flat {
        let mut memory = Flat(vec![0; 0x7000]);
        let distributor = fields(24, &[(0, &[0x0c, 24]), (8, &0x800_0000_u64.to_le_bytes()), (20, &[3])]);
        let redistributors = fields(16, &[(0, &[0x0e, 16]), (4, &0x80a_0000_u64.to_le_bytes()), (12, &0x4_0000_u32.to_le_bytes())]);
        let its = fields(20, &[(0, &[0x0f, 20]), (8, &0x808_0000_u64.to_le_bytes())]);
        let madt = [vec![0; 8], distributor, cpu(0, 1), cpu(0x1_0000_0203, 1), cpu(7, 0), redistributors, its].concat();
        put_table(&mut memory, 0x1000, b"APIC", &madt);
        put_table(&mut memory, 0x2000, b"GTDT", &fields(68, &[(12, &[29]), (20, &[30]), (28, &[27]), (36, &[26])]));
        put_table(&mut memory, 0x3000, b"FACP", &fields(240, &[(129 - 36, &[1])]));
        let spcr = fields(44, &[(0, &[3]), (8, &0x900_0000_u64.to_le_bytes()), (16, &[8]), (18, &[33])]);
        put_table(&mut memory, 0x4000, b"SPCR", &spcr);
        let near = fields(40, &[(0, &[1, 40, 7]), (11, &[0x50]), (20, &[1]), (28, &[1])]);
        let of_cpu = fields(18, &[(0, &[3, 18, 7]), (6, &[3]), (10, &[1])]);
        put_table(&mut memory, 0x6000, b"SRAT", &[vec![0; 12], near, of_cpu].concat());
        put_table(&mut memory, 0x6800, b"MCFG", &fields(24, &[(8, &0x40_1000_0000_u64.to_le_bytes()), (19, &[255])]));
        put_table(&mut memory, 0x6900, b"IORT", &iort::tests::body(&iort::tests::qemu()));
        // The SRAT and the IORT precede the MADT, to whose CPUs and ITSs they refer.
        let root: Vec<u8> = [0x6000_u64, 0x6900, 0x6800, 0x1000, 0x2000, 0x3000, 0x4000, u64::MAX].map(u64::to_le_bytes).concat();
        put_table(&mut memory, 0x5000, b"XSDT", &root);
        let rsdp = [&b"RSD PTR \0STILE \x02"[..], &[0; 8], &0x5000_u64.to_le_bytes(), &[0; 4]].concat();
        memory.0[..36].copy_from_slice(&rsdp);
        (memory.0[8], memory.0[32]) = (0_u8.wrapping_sub(sum(&rsdp[..20])), 0_u8.wrapping_sub(sum(&rsdp[20..])));
        memory
    }

    /// Each flipped bit, with a checksum that hides it, yields no tables, or a tree that can be read.
    #[test]
    fn each_flipped_bit() {
        let mut memory = machine();
        let mut described = 0;
        for start in [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000] {
            let length = usize::from(u16::from_le_bytes([memory.0[start + 4], memory.0[start + 5]]));
            for bit in 0..length * 8 {
                let (at, flipped, checksum) = (start + bit / 8, 1_u8 << (bit % 8), memory.0[start + 9]);
                let change = if (memory.0[at] ^ flipped) > memory.0[at] { flipped } else { flipped.wrapping_neg() };
                memory.0[at] ^= flipped;
                if at != start + 9 {
                    memory.0[start + 9] = checksum.wrapping_sub(change);
                }
                if let Some(tables) = ArmTables::read(&memory, 0) {
                    let mut to = vec![0; 8 << 10];
                    let length =
                        describe(&tables, None, None, None, core::iter::once(0x4000_0000..0x8000_0000), core::iter::empty(), &mut to);
                    let tree = device_tree::parse(&to[..length.unwrap()]).unwrap();
                    let gic = Gicv2::find(&tree).map(|gic| Gicv2::read(&tree, gic));
                    let _ = (SerialPort::find_all(&tree), gic, Numa::read(&tree));
                    described += 1;
                }
                memory.0[at] ^= flipped;
                memory.0[start + 9] = checksum;
            }
        }
        assert!(described > 1000, "{described}");
    }

    #[test]
    fn a_tree_says_what_the_tables_say() {
        let tables = ArmTables::read(&machine(), 0).unwrap();
        let mut to = [0xee; 4096];
        let memory = [0x4000_0000..0x8000_0000, 1 << 40..2 << 40];
        let reserved = [0x4000_0000..0x4000_1000];
        let screen = FrameBuffer { address: 0x10_0000, width: 1024, height: 768, stride: 4096 };
        let length = describe(
            &tables,
            Some(1 << 32 | 5),
            Some(&screen),
            Some(&BootMedium { text: Some(b"# text"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }),
            memory.iter().cloned(),
            reserved.iter().cloned(),
            &mut to,
        )
        .unwrap();
        let tree = device_tree::parse(&to[..length]).unwrap();
        let node = |path: &str| tree.find_node(path).unwrap();
        assert_eq!(tree.memory_reservations().map(|entry| entry.address()..entry.address() + entry.size()).collect::<Vec<_>>(), reserved);
        // The first bank is split where its node changes.
        assert_eq!(spans::<4>(node("/memory@40000000"))[..], [0x4000_0000..0x5000_0000]);
        assert_eq!(spans::<4>(node("/memory@50000000"))[..], [0x5000_0000..0x8000_0000]);
        let numa = Numa::read(&tree);
        assert_eq!(
            (numa.at(0x4fff_ffff), numa.at(0x5000_0000), numa.of_cpu(0), numa.of_cpu(0x1_0000_0203)),
            (None, Some(7), None, Some(7))
        );
        assert_eq!(tables.numa.near([tables.numa.of_cpu(0x1_0000_0203)].into_iter())[..], []);
        assert_eq!(spans::<4>(node("/memory@10000000000"))[..], memory[1..]);
        let cpus: Vec<_> = node("/cpus").children().map(|cpu| cells(&cpu, "reg").to_vec()).collect();
        assert_eq!(cpus, [vec![0, 0], vec![1, 0x203]]);
        let capacities: Vec<_> = node("/cpus").children().map(|cpu| nodes::capacity(&cpu)).collect();
        assert_eq!(capacities, [Some(1), Some(4)]);
        assert_eq!((text(&node("/psci"), "method"), text(&node("/chosen"), "stdout-path")), (Some("smc"), Some("/serial")));
        assert_eq!(cells(&node("/chosen"), TIME)[..], [1, 5]);
        let gic = node("/interrupt-controller@8000000");
        assert_eq!(spans::<4>(gic)[..], [0x800_0000..0x801_0000, 0x80a_0000..0x80e_0000]);
        assert_eq!(intid(&cells(&gic, "interrupts")), Some(25));
        assert_eq!(spans::<4>(node("/interrupt-controller@8000000/msi-controller@8080000"))[..], [0x808_0000..0x80a_0000][..]);
        let timers = cells(&node("/timer"), "interrupts");
        assert_eq!(timers.chunks(3).map(|cells| intid(cells).unwrap()).collect::<Vec<_>>(), [29, 30, 27, 26]);
        assert_eq!(FrameBuffer::read(node("/framebuffer@100000")), Some(screen));
        let uart = node("/serial");
        assert_eq!((spans::<4>(uart)[0].clone(), intid(&cells(&uart, "interrupts"))), (0x900_0000..0x900_1000, Some(33)));
    }

    #[test]
    fn a_maintenance_interrupt_is_private() {
        // A timer may have the one that is assumed.
        let cases = [(0_u32, 26_u8, Some(MAINTENANCE)), (41, 26, Some(MAINTENANCE)), (28, 26, Some(28)), (0, 25, None), (28, 25, Some(28))];
        for (intid, timer, described) in cases {
            let mut memory = machine();
            put_table(&mut memory, 0x2000, b"GTDT", &fields(68, &[(12, &[29]), (20, &[30]), (28, &[27]), (36, &[timer])]));
            let distributor = fields(24, &[(0, &[0x0c, 24]), (8, &0x800_0000_u64.to_le_bytes()), (20, &[3])]);
            let mut cpu = cpu(0, 1);
            cpu[56..60].copy_from_slice(&intid.to_le_bytes());
            put_table(&mut memory, 0x1000, b"APIC", &[&[0; 8], &distributor[..], &cpu].concat());
            let mut to = [0; 4096];
            let tables = ArmTables::read(&memory, 0).unwrap();
            let length = describe(&tables, None, None, None, [].into_iter(), [].into_iter(), &mut to).unwrap();
            let tree = device_tree::parse(&to[..length]).unwrap();
            let gic = tree.find_node("/interrupt-controller@8000000").unwrap();
            assert_eq!(nodes::intid(&cells(&gic, "interrupts")), described);
            assert_eq!(gic.property(ASSUMED).is_some(), described == Some(MAINTENANCE));
        }
    }

    /// The MADT's distributor of a version, and CPUs with a GICv2's interfaces.
    fn with_interfaces(version: u8, redistributors: &[u8]) -> Option<Gicv2> {
        let mut memory = machine();
        let distributor = fields(24, &[(0, &[0x0c, 24]), (8, &0x800_0000_u64.to_le_bytes()), (20, &[version])]);
        let mut interface = cpu(0, 1);
        for (at, address) in [(32, 0x801_0000_u64), (40, 0x804_0000), (48, 0x803_0000)] {
            interface[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        put_table(&mut memory, 0x1000, b"APIC", &[&[0; 8], &distributor[..], &interface, redistributors].concat());
        let mut to = [0; 4096];
        let length = describe(&ArmTables::read(&memory, 0).unwrap(), None, None, None, [].into_iter(), [].into_iter(), &mut to).unwrap();
        let tree = device_tree::parse(&to[..length]).unwrap();
        Gicv2::find(&tree).map(|gic| Gicv2::read(&tree, gic).unwrap())
    }

    #[test]
    fn a_gicv2_is_described() {
        let gic = with_interfaces(2, &[]).unwrap();
        assert_eq!(
            (gic.gicd.start, gic.gicc.start, gic.gich.start, gic.gicv),
            (0x800_0000, 0x801_0000, 0x803_0000, 0x804_0000..0x804_2000)
        );
        // The hardware is to say, and what else the tables have does.
        assert!(with_interfaces(0, &[]).is_some());
        let redistributors = fields(16, &[(0, &[0x0e, 16]), (4, &0x80a_0000_u64.to_le_bytes()), (12, &0x4_0000_u32.to_le_bytes())]);
        assert!(with_interfaces(0, &redistributors).is_none() && with_interfaces(3, &[]).is_none());
    }

    #[test]
    fn a_16550_is_described() {
        let mut memory = machine();
        let spcr = fields(44, &[(0, &[0x12]), (5, &[32, 0, 3]), (8, &0x900_0000_u64.to_le_bytes()), (16, &[8]), (18, &[33])]);
        put_table(&mut memory, 0x4000, b"SPCR", &spcr);
        let mut to = [0; 4096];
        let length = describe(&ArmTables::read(&memory, 0).unwrap(), None, None, None, [].into_iter(), [].into_iter(), &mut to).unwrap();
        let port = SerialPort::find_all(&device_tree::parse(&to[..length]).unwrap()).remove(0);
        let kind = Kind::Compatible { shift: 2, wide: true, fifo: 16 };
        assert_eq!(port, SerialPort { kind, registers: 0x900_0000..0x900_1000, intid: Some(33) });
    }

    #[test]
    fn a_second_port_follows_the_console() {
        let mut tables = ArmTables::read(&machine(), 0).unwrap();
        let console = tables.uart.unwrap();
        tables.debug_port = Some(Port { address: console.address + 0x1_0000, interrupt: None, ..console });
        let mut to = [0; 4096];
        let length = describe(&tables, None, None, None, [].into_iter(), [].into_iter(), &mut to).unwrap();
        let ports = SerialPort::find_all(&device_tree::parse(&to[..length]).unwrap());
        let starts: Vec<_> = ports.iter().map(|port| port.registers.start).collect();
        assert_eq!(starts, [console.address, console.address + 0x1_0000]);
    }

    #[test]
    fn there_may_be_no_room() {
        let tables = ArmTables::read(&machine(), 0).unwrap();
        let length = describe(&tables, None, None, None, [].into_iter(), [].into_iter(), &mut [0; 4096]).unwrap();
        for room in 0..length {
            assert_eq!(describe(&tables, None, None, None, [].into_iter(), [].into_iter(), &mut vec![0; room]), None);
        }
    }

    proptest! {
        /// Corruption anywhere yields no tables, or others, and always a tree that can be read.
        #[test]
        fn corrupt_tables_do_not_panic(at in 0usize..0x7000, length in 0usize..64, value: u8) {
            let mut memory = machine();
            let end = memory.0.len().min(at + length);
            memory.0[at..end].fill(value);
            // The checksum does not save it.
            for table in [0x1000, 0x2000, 0x3000, 0x4000, 0x6800, 0x6900] {
                let length = u32::from_le_bytes(memory.0[table + 4..table + 8].try_into().unwrap()) as usize;
                if let Some(bytes) = memory.0.get_mut(table..).and_then(|bytes| bytes.get_mut(..length.max(36))) {
                    bytes[9] = 0;
                    bytes[9] = 0u8.wrapping_sub(bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte)));
                }
            }
            if let Some(tables) = ArmTables::read(&memory, 0) {
                let mut to = vec![0; 0x1_0000];
                let length = describe(&tables, None, None, None, [0..4096].into_iter(), [].into_iter(), &mut to).unwrap();
                prop_assert!(device_tree::parse(&to[..length]).is_ok());
            }
        }
    }
}
