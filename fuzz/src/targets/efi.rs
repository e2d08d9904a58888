//! Reports of UEFI firmware on Arm about the machine: its memory map, ACPI tables and a host bridge's memory, or a device tree.

use std::ops::Range;

use stile_firmware::arm_tables::ArmTables;
use stile_firmware::boot_files::Block;
use stile_firmware::configuration::{self, BootMedium};
use stile_firmware::described::describe;
use stile_firmware::frame_buffer::FrameBuffer;
use stile_firmware::ram::ram;
use stile_firmware::{device_tree, efi, nodes, root_bridge};

use super::firmware::{ROOT, address, pages, place, trees};
use crate::input::Input;
use crate::marks::reach;
use crate::target::Target;

/// A memory map and tables become a device tree.
pub const EFI: Target = Target {
    name: "efi",
    run: efi,
    seeds,
    mutations: 3000,
    marks: &[
        "no tables",
        "tables",
        "cpu",
        "gic",
        "its",
        "timers",
        "uart",
        "psci",
        "bridge",
        "smmu",
        "device",
        "window",
        "memory",
        "reserved",
        "free",
        "tree",
    ],
};

/// The frame buffer that firmware reports.
const SCREEN: FrameBuffer = FrameBuffer { address: 0x8000_0000, width: 800, height: 600, stride: 3200 };

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 48;

/// The place of the host bridge's resources.
const RESOURCES: u8 = 224;

/// The input: how many descriptors, these, and then places of [`pages`]; or, after 255, a device tree.
fn seeds() -> Vec<Vec<u8>> {
    let descriptor = |kind: u32, start: u64, pages: u64| -> Vec<u8> {
        [kind.into(), start, 0, pages, 0xf, 0].into_iter().flat_map(u64::to_le_bytes).collect()
    };
    let map = [descriptor(7, 0x4000_0000, 0x100), descriptor(6, 0x4010_0000, 2), descriptor(4, 0x4010_2000, 8)].concat();
    let fields = |length: usize, fields: &[(usize, u8)]| {
        let mut bytes = vec![0; length];
        fields.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes
    };
    let distributor = fields(24, &[(0, 0x0c), (1, 24), (11, 8), (20, 3)]);
    let cpu = fields(80, &[(0, 0x0b), (1, 80), (12, 1), (56, 25), (62, 0x0a), (63, 8), (68, 1)]);
    let its = fields(20, &[(0, 0x0f), (1, 20), (10, 8), (11, 8)]);
    let spaces = fields(24, &[(12, 0x40), (19, 255)]);
    // An ITS group, an SMMU with a mapping to it, and a root complex with a mapping to the SMMU.
    let group = fields(24, &[(1, 24), (16, 1)]);
    let smmu = fields(88, &[(0, 4), (1, 88), (8, 1), (12, 68), (18, 5), (19, 9), (24, 1), (44, 106), (73, 1), (80, 48)]);
    let complex = fields(56, &[(0, 2), (1, 56), (8, 1), (12, 36), (16, 1), (41, 1), (48, 72)]);
    let remapping = [&fields(12, &[(0, 3), (4, 48)]), &group, &smmu, &complex].map(Vec::as_slice).concat();
    let window = |wide: u8| fields(46, &[(0, 0x8a), (1, 0x2b), (17, 0x10), (19, wide), (40, 1)]);
    let resources = [&window(0)[..], &window(1), &fields(46, &[(0, 0x8a), (1, 0x2b), (3, 2)]), &[0x79, 0]].concat();
    let root: Vec<u8> = [16, 48, 64, 80, 144, 192].iter().flat_map(|&at| [address(at), [0; 4]].concat()).collect();
    let tables = [
        place(16, b"APIC", &[vec![0; 8], distributor, cpu, its].concat()),
        place(48, b"GTDT", &fields(68, &[(12, 29), (20, 30), (28, 27), (36, 26)])),
        place(64, b"FACP", &fields(100, &[(93, 3)])),
        place(80, b"SPCR", &fields(44, &[(0, 3), (11, 9), (16, 8), (18, 33)])),
        place(144, b"MCFG", &spaces),
        place(192, b"IORT", &remapping),
        [&[RESOURCES, resources.len() as u8], &resources[..]].concat(),
        place(112, b"XSDT", &root),
        [&[0, 36][..], b"RSD PTR \0STILE \x02", &[0; 4], &36_u32.to_le_bytes(), &address(112), &[0; 8]].concat(),
    ];
    let with_tables = [&[3], &map[..], &tables.concat()].concat();
    let with_tree = trees().into_iter().map(|tree| [&[255, 3], &map[..], &tree].concat());
    [with_tables, vec![0]].into_iter().chain(with_tree).collect()
}

fn efi(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let first = input.byte();
    let (is_tree, count) = if first == 255 { (true, input.byte()) } else { (false, first) };
    let map = input.take(usize::from(count) * DESCRIPTOR).to_vec();
    let (memory, reserved) = (efi::memory(&map, DESCRIPTOR), efi::reserved(&map, DESCRIPTOR));
    for free in ram::<96>(efi::entries(&map, DESCRIPTOR), u64::MAX) {
        reach("free");
        assert!(reserved.clone().all(|taken| taken.end <= free.start || free.end <= taken.start), "{free:x?}");
    }
    let mut to = vec![0; 1 << 17];
    let length = if is_tree {
        let rest = input.take(usize::MAX);
        if device_tree::parse(rest).is_err() {
            return;
        }
        device_tree::extend(
            rest,
            reserved.clone(),
            Some(&SCREEN),
            Some(&BootMedium { text: Some(b"[[vm]]"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }),
            &mut to,
        )
    } else {
        let memory_of_tables = pages(&mut input);
        let Some(mut tables) = ArmTables::read(&memory_of_tables, ROOT) else { return reach("no tables") };
        reach("tables");
        if let Some(pci) = &mut tables.pci {
            pci.windows = root_bridge::windows(&memory_of_tables, ROOT + u64::from(RESOURCES) * 16).unwrap_or_default();
        }
        let pci = tables.pci.as_ref();
        let marks = [
            ("cpu", !tables.cpus.is_empty()),
            ("gic", tables.distributor.is_some() && !tables.redistributors.is_empty()),
            ("its", tables.its.is_some()),
            ("timers", tables.timers.is_some()),
            ("uart", tables.uart.is_some()),
            ("psci", tables.psci_by_hvc.is_some()),
            ("bridge", pci.is_some()),
            ("smmu", pci.is_some_and(|pci| pci.route.smmu.is_some())),
            ("device", pci.is_some_and(|pci| !pci.route.devices.is_empty())),
            ("window", pci.is_some_and(|pci| !pci.windows.is_empty())),
            ("memory", memory.clone().next().is_some()),
            ("reserved", reserved.clone().next().is_some()),
        ];
        marks.into_iter().filter(|(_, is_reached)| *is_reached).for_each(|(mark, _)| reach(mark));
        describe(
            &tables,
            None,
            Some(&SCREEN),
            Some(&BootMedium { text: Some(b"[[vm]]"), files: Some(Block::At(1 << 32 | 5..1 << 33)) }),
            memory.clone(),
            reserved.clone(),
            &mut to,
        )
    };
    let Some(length) = length else { return };
    let tree = device_tree::parse(&to[..length]).expect("what is written can be read");
    reach("tree");
    let found: Vec<Range<u64>> =
        tree.memory_reservations().map(|entry| entry.address()..entry.address().saturating_add(entry.size())).collect();
    assert_eq!(configuration::read(&tree).and_then(|medium| medium.text), Some(&b"[[vm]]"[..]));
    let wanted: Vec<_> = reserved.collect();
    assert!(found.ends_with(&wanted), "{found:x?} {wanted:x?}");
    if !is_tree {
        let mut banks = Vec::new();
        nodes::walk(tree.root(), &mut |node| {
            if nodes::text(&node, "device_type") == Some("memory") {
                banks.extend(nodes::spans::<1>(node));
            }
        });
        assert_eq!(banks, memory.collect::<Vec<_>>());
    }
}
