//! Firmware's tables.

use std::ops::Range;

use dtoolkit::Node;
use stile_firmware::acpi::Tables;
use stile_firmware::e820::CHIPSET;
use stile_firmware::multiboot2::Information;
use stile_firmware::serial::SerialPort;
use stile_firmware::serial_tables::{Interrupt, Space};
use stile_firmware::{MAX_CPUS, Memory, device_tree, e820, multiboot, nodes, ram, salvage};
use vm_fdt::{FdtReserveEntry, FdtWriter};

use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// ACPI tables.
pub const ACPI: Target = Target {
    name: "acpi",
    run: acpi,
    seeds: tables,
    mutations: 3000,
    marks: &[
        "no tables",
        "tables",
        "named",
        "cpu",
        "i/o apic",
        "override",
        "power-off",
        "configuration space",
        "iommu",
        "assignable",
        "node",
        "console",
        "debug port",
    ],
};

/// A board's device tree.
pub const DEVICE_TREE: Target = Target {
    name: "device-tree",
    run: device_tree,
    seeds: trees_and_malformed,
    mutations: 4000,
    marks: &["malformed", "salvaged", "tree", "ram", "reserved", "uart", "gic", "timers", "psci"],
};

/// Multiboot information.
pub const MULTIBOOT: Target =
    Target { name: "multiboot", run: multiboot, seeds: maps, mutations: 8000, marks: &["no map", "map", "ram", "map 2", "screen", "root"] };

/// A place of [`pages`]'s input: a table, of which `length` is right.
pub fn place(at: u8, signature: &[u8], body: &[u8]) -> Vec<u8> {
    const HEADER: usize = 36;
    let length = HEADER + body.len();
    let mut table = signature.to_vec();
    table.extend((length as u32).to_le_bytes());
    table.resize(HEADER, 0);
    table.extend(body);
    [&[at, length as u8], &table[..]].concat()
}

/// The address of a place.
pub fn address(at: u8) -> [u8; 4] {
    (ROOT as u32 + u32::from(at) * 16).to_le_bytes()
}

fn tables() -> Vec<Vec<u8>> {
    const CONTROLLERS: [u8; 62] = [
        0, 0, 0xe0, 0xfe, 1, 0, 0, 0, // address and flags
        0, 8, 0, 0, 1, 0, 0, 0, // CPU 0
        0, 8, 1, 4, 1, 0, 0, 0, // CPU 4
        1, 12, 1, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0, // I/O APIC
        2, 10, 0, 0, 2, 0, 0, 0, 0, 0, // the timer is at input 2
        9, 16, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // CPU 9
    ];
    let mut fixed = [0; 80];
    fixed[4..8].copy_from_slice(&address(80));
    fixed[28..32].copy_from_slice(&0xb004u32.to_le_bytes());
    let mut spaces = [0; 24];
    (spaces[11], spaces[19]) = (0xb0, 255);
    let mut iommu = [0; 72];
    // An IOMMU at fed80000h: all functions, an I/O APIC, a range, an alias, and memory of firmware's.
    iommu[12..24].copy_from_slice(&[0x10, 0, 60, 0, 8, 0, 0x40, 0, 0, 0, 0xd8, 0xfe]);
    iommu[36..72].copy_from_slice(&[
        1, 0, 0, 0, 72, 0, 0, 0, 0, 0xa0, 0, 1, 3, 0x10, 0, 0, 4, 0x1f, 0, 0, 66, 0x20, 0, 0, 0, 0x28, 0, 0, 2, 0x30, 0, 0, 0, 0, 0, 0,
    ]);
    let mut affinities = [0; 68];
    // CPU 4 and 1 MiB of memory are in node 1.
    affinities[12..20].copy_from_slice(&[0, 16, 1, 4, 1, 0, 0, 0]);
    affinities[28..32].copy_from_slice(&[1, 40, 1, 0]);
    (affinities[46], affinities[56]) = (0x10, 1);
    // Bytes at I/O ports from 2f8h on: interrupt 3, 115,200 baud.
    const PORT: [u8; 12] = [1, 8, 0, 1, 0xf8, 2, 0, 0, 0, 0, 0, 0];
    let mut console = [0; 44];
    console[4..16].copy_from_slice(&PORT);
    (console[16], console[17], console[22]) = (1, 3, 7);
    let mut debug = [0; 42];
    // One device, with one range of registers that is described 22 bytes after its start.
    (debug[0], debug[4], debug[9], debug[11], debug[21], debug[26]) = (44, 1, 34, 1, 0x80, 22);
    debug[30..42].copy_from_slice(&PORT);
    let common = [
        place(16, b"APIC", &CONTROLLERS),
        place(48, b"FACP", &fixed),
        place(80, b"DSDT", b"\x08_S5_\x12\x08\x04\x0a\x05\x01\0\0"),
        place(128, b"MCFG", &spaces),
        place(144, b"IVRS", &iommu),
        place(160, b"SRAT", &affinities),
        place(176, b"SPCR", &console),
        place(192, b"DBG2", &debug),
    ];
    const NAMED: [u8; 7] = [16, 48, 128, 144, 160, 176, 192];
    let rsdp = |revision: u8, rsdt: [u8; 4], xsdt: [u8; 4]| {
        [&[0, 36][..], b"RSD PTR \0STILE ", &[revision], &rsdt, &36u32.to_le_bytes(), &xsdt, &[0; 8]].concat()
    };
    let narrow = [&common.concat()[..], &place(112, b"RSDT", NAMED.map(address).as_flattened()), &rsdp(0, address(112), [0; 4])].concat();
    let wide: Vec<u8> = NAMED.iter().flat_map(|&at| [address(at), [0; 4]].concat()).collect();
    let wide = [&common.concat()[..], &place(112, b"XSDT", &wide), &rsdp(2, [0; 4], address(112))].concat();
    vec![narrow, wide]
}

fn maps() -> Vec<Vec<u8>> {
    let mut map = vec![0; 52];
    map[0] = 1 << 6;
    (map[44], map[48]) = (48, 52);
    for (base, length, kind) in [(0u64, 0x9_fc00u64, 1u32), (0x10_0000, 0x700_0000, 1)] {
        map.extend(20u32.to_le_bytes());
        map.extend(base.to_le_bytes());
        map.extend(length.to_le_bytes());
        map.extend(kind.to_le_bytes());
    }
    vec![map, tags()]
}

/// Information of a Multiboot 2 loader: a memory map, a screen and a root pointer.
fn tags() -> Vec<u8> {
    let tag = |kind: u32, words: &[u32]| {
        let size = 8 + 4 * words.len() as u32;
        let mut bytes: Vec<u8> = [kind, size].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    };
    let map = tag(6, &[24, 0, 0, 0, 0x9_f000, 0, 1, 0, 0x10_0000, 0, 0x700_0000, 0, 1, 0]);
    let screen = tag(8, &[0xfd00_0000, 0, 4096, 1024, 768, 0x120]);
    let tags = [map, screen, tag(15, &[0; 9]), tag(0, &[])].concat();
    [&(8 + tags.len() as u32).to_le_bytes()[..], &[0; 4], &tags].concat()
}

/// A page in which all tables lie, seen at the addresses at which a BIOS leaves them; other memory is absent.
pub struct Pages(Vec<u8>);

/// The address of the first place.
pub const ROOT: u64 = 0xe_0000;
const LEN: u64 = 0x2_0000;

impl Memory for Pages {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        self.0.get(usize::try_from(address.checked_sub(ROOT)?).ok()?..)?.get(..len)
    }
}

/// Memory with tables: the input is a list of places, each with bytes to put there. A table's checksum is corrected, so
/// that mutations reach its contents.
pub fn pages(input: &mut Input<'_>) -> Pages {
    let mut memory = vec![0; LEN as usize];
    while !input.is_empty() {
        let at = usize::from(input.byte()) * 16;
        let len = usize::from(input.byte());
        let part = input.take(len);
        memory[at..at + part.len()].copy_from_slice(part);
        // Ranges with a checksum, and its place: a root pointer has one of its first version, and one of all.
        let sums: &[(usize, usize)] = match part.get(..4) {
            Some(b"RSD ") => &[(20.min(part.len()), 8), (36, 32)],
            Some(_) => &[(part.len(), 9)],
            None => continue,
        };
        for &(len, sum_at) in sums.iter().filter(|(len, sum_at)| sum_at < len && *len <= part.len()) {
            let bytes = &mut memory[at..at + len];
            bytes[sum_at] = 0;
            bytes[sum_at] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
        }
    }
    Pages(memory)
}

fn acpi(bytes: &[u8]) {
    let memory = pages(&mut Input::new(bytes));
    let found = Tables::read(&memory);
    // The search for a root pointer begins here.
    if let Ok(named) = Tables::read_at(&memory, ROOT) {
        reach("named");
        assert_eq!(found.as_ref(), Ok(&named));
    }
    let Ok(tables) = found else { return reach("no tables") };
    reach("tables");
    assert!(tables.cpus.len() <= MAX_CPUS);
    let marks = [
        ("cpu", !tables.cpus.is_empty()),
        ("i/o apic", !tables.io_apics.is_empty()),
        ("override", !tables.overrides.is_empty()),
        ("power-off", tables.power_off.is_some_and(|off| off.writes[0].is_some())),
        ("configuration space", !tables.configuration_spaces.is_empty()),
        ("iommu", !tables.ivrs.iommus.is_empty()),
        ("assignable", (0..=0xff).any(|id| tables.ivrs.check(id).is_ok())),
        ("node", tables.numa.nodes().next().is_some()),
        ("console", tables.console.is_some()),
        ("debug port", tables.debug_port.is_some()),
    ];
    marks.into_iter().filter(|(_, is_reached)| *is_reached).for_each(|(mark, _)| reach(mark));
    for port in [tables.console, tables.debug_port].into_iter().flatten() {
        assert!(port.address != 0 && (port.space == Space::Memory || port.address <= 0xfff8), "{port:x?}");
    }
    for isa in 0..16 {
        let (gsi, flags) = tables.route(Interrupt::Isa(isa));
        assert!(tables.overrides.iter().any(|found| (found.isa, found.gsi, found.flags) == (isa, gsi, flags)) || gsi == u32::from(isa));
    }
}

/// A board with all nodes that Stile reads.
pub fn trees() -> Vec<Vec<u8>> {
    vec![tree().expect("a device tree")]
}

/// Also one with a node's name that is no text.
fn trees_and_malformed() -> Vec<Vec<u8>> {
    let mut trees = trees();
    let mut malformed = trees[0].clone();
    let name = malformed.windows(6).position(|part| part == b"chosen").expect("a node");
    malformed[name] = 0xff;
    trees.push(malformed);
    trees
}

fn tree() -> vm_fdt::FdtWriterResult<Vec<u8>> {
    let mut fdt = FdtWriter::new_with_mem_reserv(&[FdtReserveEntry::new(0x4800_0000, 0x1000)?])?;
    let root = fdt.begin_node("")?;
    fdt.property_string("model", "linux,dummy-virt")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    let chosen = fdt.begin_node("chosen")?;
    fdt.property_string("stdout-path", "serial0:115200")?;
    fdt.end_node(chosen)?;
    let aliases = fdt.begin_node("aliases")?;
    fdt.property_string("serial0", "/uart@9000000")?;
    fdt.end_node(aliases)?;
    let memory = fdt.begin_node("memory@40000000")?;
    fdt.property_string("device_type", "memory")?;
    fdt.property_array_u64("reg", &[0x4000_0000, 0x1000_0000])?;
    fdt.end_node(memory)?;
    let reserved = fdt.begin_node("reserved-memory")?;
    fdt.property_u32("#address-cells", 2)?;
    fdt.property_u32("#size-cells", 2)?;
    let node = fdt.begin_node("r@0")?;
    fdt.property_array_u64("reg", &[0x4700_0000, 0x1000])?;
    fdt.end_node(node)?;
    fdt.end_node(reserved)?;
    let cpus = fdt.begin_node("cpus")?;
    fdt.property_u32("#address-cells", 1)?;
    fdt.property_u32("#size-cells", 0)?;
    let cpu = fdt.begin_node("cpu@0")?;
    fdt.property_string("device_type", "cpu")?;
    fdt.property_u32("reg", 0)?;
    fdt.end_node(cpu)?;
    fdt.end_node(cpus)?;
    let nodes: [(&str, &str, &[u64], &[u32]); 4] = [
        ("intc@8000000", "arm,gic-v3", &[0x800_0000, 0x1_0000, 0x80a_0000, 0xf6_0000], &[1, 9, 4]),
        ("timer", "arm,armv8-timer", &[], &[1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4]),
        ("uart@9000000", "arm,pl011", &[0x900_0000, 0x1000], &[0, 1, 4]),
        ("rtc@9010000", "arm,pl031", &[0x901_0000, 0x1000], &[0, 2, 4]),
    ];
    for (name, compatible, registers, interrupts) in nodes {
        let node = fdt.begin_node(name)?;
        fdt.property_string("compatible", compatible)?;
        fdt.property_array_u64("reg", registers)?;
        fdt.property_u32("#interrupt-cells", 3)?;
        fdt.property_array_u32("interrupts", interrupts)?;
        fdt.property_string("status", "okay")?;
        fdt.end_node(node)?;
    }
    let psci = fdt.begin_node("psci")?;
    fdt.property_string_list("compatible", vec!["arm,psci-1.0".into(), "arm,psci".into()])?;
    fdt.property_string("method", "smc")?;
    fdt.end_node(psci)?;
    fdt.end_node(root)?;
    fdt.finish()
}

/// Reads a board as the hypervisor does.
fn device_tree(bytes: &[u8]) {
    if device_tree::parse_start(bytes).is_err() {
        let mut rest = bytes.to_vec();
        salvage::salvage(&mut rest);
        if let Ok(tree) = device_tree::parse_start(&rest) {
            reach("salvaged");
            let _ = SerialPort::find_all(&tree);
        }
    }
    let Ok(tree) = device_tree::parse(bytes) else { return reach("malformed") };
    reach("tree");
    let mut ram: Vec<Range<u64>> = Vec::new();
    nodes::walk(tree.root(), &mut |node| {
        let spans = nodes::spans::<9>(node);
        let registers = nodes::registers::<9>(&tree, node);
        assert!(registers.iter().all(|span| span.end <= 1 << 48), "{registers:x?}");
        let _ = nodes::spin_table(&node).inspect(|&release| assert!(release % 8 == 0 && release < 1 << 48));
        let _ = (nodes::intid(&nodes::cells(&node, "interrupts")), nodes::is_enabled(&node), nodes::text(&node, "method"));
        if nodes::text(&node, "device_type") == Some("memory") {
            ram.extend(spans.iter().fold(Vec::new(), |mut banks, span| {
                let known: Vec<_> = ram.iter().chain(&banks).cloned().collect();
                banks.extend(nodes::bank(&known, span));
                banks
            }));
        }
    });
    for (n, bank) in ram.iter().enumerate() {
        reach("ram");
        assert!(bank.start < bank.end && bank.end <= 1 << 48 && bank.start % 4096 == 0 && bank.end % 4096 == 0, "{bank:x?}");
        assert!(ram[..n].iter().all(|other| other.end <= bank.start || bank.end <= other.start), "{ram:x?}");
    }
    if tree.memory_reservations().count() > 0 {
        reach("reserved");
    }
    let _ = SerialPort::find_all(&tree);
    for path in ["/reserved-memory", "/chosen", "/aliases"] {
        let children = tree.find_node(path).into_iter().flat_map(|node| node.children());
        children.for_each(|node| drop(nodes::spans::<4>(node)));
    }
    for (mark, compatible) in [("uart", "arm,pl011"), ("gic", "arm,gic-v3"), ("timers", "arm,armv8-timer"), ("psci", "arm,psci")] {
        if nodes::find(&tree, compatible).is_some() {
            reach(mark);
        }
    }
}

/// All of memory is the input.
struct Flat<'a>(&'a [u8]);

impl Memory for Flat<'_> {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        self.0.get(usize::try_from(address).ok()?..)?.get(..len)
    }
}

fn multiboot(bytes: &[u8]) {
    let flat = Flat(bytes);
    match multiboot::entries(&flat, 0) {
        Ok(entries) => {
            reach("map");
            check_ram(bytes, entries);
        }
        Err(_) => reach("no map"),
    }
    let Ok(read) = Information::read(&flat, 0) else { return };
    if let Ok(entries) = read.entries() {
        reach("map 2");
        check_ram(bytes, entries);
    }
    if let Some(buffer) = read.frame_buffer() {
        reach("screen");
        assert!(buffer.stride >= 4 * buffer.width && buffer.address.checked_add(buffer.len()).is_some(), "{buffer:x?}");
    }
    if read.rsdp().is_some() {
        reach("root");
    }
}

/// RAM by a map is pages that no other entry has.
fn check_ram(bytes: &[u8], entries: impl Iterator<Item = (Range<u64>, u32)> + Clone) {
    for range in e820::tables(entries.clone()) {
        assert!(range.start < range.end && (range.end <= CHIPSET.start || CHIPSET.end <= range.start), "{range:x?}");
    }
    let entries = e820::free(entries);
    assert!(entries.clone().count() <= bytes.len() / 24 + 1, "an entry has 24 bytes or more");
    let ram: Vec<_> = ram::ram::<8>(entries.clone(), 1 << 52).into_iter().collect();
    assert!(ram.windows(2).all(|two| two[0].end < two[1].start), "{ram:x?}");
    for range in ram {
        reach("ram");
        assert!(range.start < range.end && range.end <= 1 << 52 && (range.start | range.end) & 0xfff == 0, "{range:x?}");
        let mut others = entries.clone().filter(|(other, is_ram)| !is_ram && !other.is_empty());
        assert!(others.all(|(other, _)| other.end <= range.start || range.end <= other.start), "{range:x?}");
    }
}
