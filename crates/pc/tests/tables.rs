//! The builders, read back as their readers do.

use stile_pc::acpi::{Machine, Uart, tables};
use stile_pc::linux::{Error, Kernel};
use stile_pc::{Kind, Module, Range, multiboot, pvh};

const AT: u32 = 0xe_0000;
const MEMORY: [Range; 3] = [
    Range { start: 0, size: 0x9_fc00, kind: Kind::Memory },
    Range { start: 0xe_0000, size: 0x2_0000, kind: Kind::Reserved },
    Range { start: 0x10_0000, size: 0x3ff0_0000, kind: Kind::Memory },
];

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The table at a guest-physical address, its length and checksum checked.
fn table<'a>(all: &'a [u8], address: u64, signature: &[u8; 4]) -> &'a [u8] {
    let at = usize::try_from(address - u64::from(AT)).unwrap();
    let table = &all[at..at + u32_at(all, at + 4) as usize];
    assert_eq!(&table[..4], signature);
    if signature != b"FACS" {
        assert_eq!(sum(table), 0, "{}", signature.escape_ascii());
    }
    table
}

fn machine() -> Machine<'static> {
    Machine {
        processors: &[0, 1, 2],
        local_apic: 0xfee0_0000,
        io_apic: (3, 0xfec0_0000),
        timer: 2,
        sci: 9,
        power: 0x600,
        s5: 5,
        reset: (0xcf9, 6),
        century: 0x32,
        uarts: &[Uart { port: 0x3f8, interrupt: 4 }],
    }
}

#[test]
fn acpi_tables_lead_to_each_other() {
    let all = tables(&machine(), AT).unwrap();
    assert_eq!(&all[..8], b"RSD PTR ");
    assert_eq!((sum(&all[..20]), sum(&all[..36]), all[15]), (0, 0, 2));
    let xsdt = table(&all, u64_at(&all, 24), b"XSDT");
    assert_eq!(xsdt.len(), 36 + 16);
    let fadt = table(&all, u64_at(xsdt, 36), b"FACP");
    let madt = table(&all, u64_at(xsdt, 44), b"APIC");
    assert_eq!(u64::from(u32_at(fadt, 40)), u64_at(fadt, 140), "both addresses of the DSDT");
    let dsdt = table(&all, u64_at(fadt, 140), b"DSDT");
    assert_eq!(u32_at(fadt, 36) % 64, 0);
    table(&all, u32_at(fadt, 36).into(), b"FACS");
    // SCI, PM1a event and control, timer; reset; century; no hardware-reduced ACPI.
    assert_eq!((u16_at(fadt, 46), u32_at(fadt, 56), u32_at(fadt, 64), u32_at(fadt, 76)), (9, 0x600, 0x604, 0x608));
    assert_eq!((fadt[88], fadt[89], fadt[91], fadt[108]), (4, 2, 4, 0x32));
    assert_eq!((u64_at(fadt, 120), fadt[128], u32_at(fadt, 112) & (1 << 10 | 1 << 20)), (0xcf9, 6, 1 << 10));
    // \_S5 as AML: Name(_S5, Package(4) {5, 5, 0, 0}).
    let s5 = [0x08, b'_', b'S', b'5', b'_', 0x12, 0x08, 4, 0x0a, 5, 0x0a, 5, 0, 0];
    assert!(dsdt.windows(s5.len()).any(|window| window == s5), "{dsdt:x?}");
    assert!(dsdt.windows(4).any(|window| window == b"COM1"));
    // An I/O port descriptor of 0x3f8, eight ports.
    assert!(dsdt.windows(8).any(|window| window == [0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8]));

    assert_eq!((u32_at(madt, 36), u32_at(madt, 40)), (0xfee0_0000, 1));
    let mut entries = Vec::new();
    let mut at = 44;
    while at < madt.len() {
        let length = usize::from(madt[at + 1]);
        entries.push(&madt[at..at + length]);
        at += length;
    }
    let expected: [&[u8]; 7] = [
        &[0, 8, 0, 0, 1, 0, 0, 0],
        &[0, 8, 1, 1, 1, 0, 0, 0],
        &[0, 8, 2, 2, 1, 0, 0, 0],
        &[1, 12, 3, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0],
        &[2, 10, 0, 0, 2, 0, 0, 0, 5, 0],
        &[2, 10, 0, 9, 9, 0, 0, 0, 0xd, 0],
        &[4, 6, 0xff, 0, 0, 1],
    ];
    assert_eq!(entries, expected);
    assert!(tables(&machine(), u32::MAX - 100).is_none());
}

/// A file with the header of a bzImage of two setup sectors.
fn bz_image() -> Vec<u8> {
    let mut file = vec![0; 3 * 512 + 100];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[2]);
    put(0x200, &[0xeb, 0x6a]);
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x211, &[0x01]);
    put(0x236, &0x3f_u16.to_le_bytes());
    put(0x238, &0x7ff_u32.to_le_bytes());
    put(0x258, &0x100_0000_u64.to_le_bytes());
    put(0x260, &0x280_0000_u32.to_le_bytes());
    put(0x26c, &[0xcc; 8]);
    put(3 * 512, &[0x55; 100]);
    file
}

#[test]
fn linux_gets_its_zero_page() {
    let file = bz_image();
    let kernel = Kernel::parse(&file).unwrap();
    assert_eq!((kernel.address(), kernel.size(), kernel.entry()), (0x100_0000, 0x280_0000, 0x100_0200));
    assert_eq!((kernel.image, kernel.command_line_size()), (&[0x55; 100][..], 0x7ff));
    let initrd = Module { start: 0x1_2345_6000, size: 0x2_0000_0010, command_line: 0 };
    let page = kernel.zero_page(&MEMORY, 0x2_0000, Some(initrd), 0xe_0000).unwrap();
    assert_eq!(page.len(), 4096);
    assert_eq!((&page[0x202..0x206], page[0x210], page[0x211]), (&b"HdrS"[..], 0xff, 1));
    assert_eq!(page[0x26c..0x274], [0, 0, 0, 0, 0, 0, 0, 0], "nothing from behind the header, which ends at 0x26c");
    assert_eq!((u32_at(&page, 0x228), u32_at(&page, 0xc8)), (0x2_0000, 0));
    assert_eq!((u32_at(&page, 0x218), u32_at(&page, 0xc0)), (0x2345_6000, 1));
    assert_eq!((u32_at(&page, 0x21c), u32_at(&page, 0xc4)), (0x10, 2));
    assert_eq!((u64_at(&page, 0x70), page[0x1e8]), (0xe_0000, 3));
    for (i, range) in MEMORY.iter().enumerate() {
        let at = 0x2d0 + i * 20;
        assert_eq!((u64_at(&page, at), u64_at(&page, at + 8), u32_at(&page, at + 16)), (range.start, range.size, range.kind as u32));
    }
    assert_eq!(kernel.zero_page(&[MEMORY[0]; 129], 0, None, 0), Err(Error::TooManyRanges));
}

#[test]
fn what_is_no_kernel_is_refused() {
    let file = bz_image();
    let changed = |at: usize, byte: u8| {
        let mut file = file.clone();
        file[at] = byte;
        Kernel::parse(&file).map(|_| ())
    };
    assert_eq!(changed(0x202, 0), Err(Error::NotLinux));
    assert_eq!(changed(0x206, 0x0b), Err(Error::TooOld));
    assert_eq!(changed(0x236, 0), Err(Error::TooOld));
    assert_eq!(changed(0x1f1, 200), Err(Error::Truncated));
    for length in 0..file.len() {
        // No length of the file makes it panic.
        if let Ok(kernel) = Kernel::parse(&file[..length]) {
            kernel.zero_page(&MEMORY, 0, None, 0).unwrap();
        }
    }
}

#[test]
fn multiboot_information() {
    let modules = [Module { start: 0x20_0000, size: 0x1000, command_line: 0x3000 }];
    let bytes = multiboot::information(0x5000, &MEMORY, 0x4000, &modules).unwrap();
    assert_eq!(u32_at(&bytes, 0), 0b100_1101);
    assert_eq!((u32_at(&bytes, 4), u32_at(&bytes, 8)), (639, 0x3ff0_0000 / 1024));
    assert_eq!((u32_at(&bytes, 16), u32_at(&bytes, 20)), (0x4000, 1));
    let at = u32_at(&bytes, 24) as usize - 0x5000;
    assert_eq!((u32_at(&bytes, at), u32_at(&bytes, at + 4), u32_at(&bytes, at + 8)), (0x20_0000, 0x20_1000, 0x3000));
    let (length, mut at) = (u32_at(&bytes, 44) as usize, u32_at(&bytes, 48) as usize - 0x5000);
    assert_eq!(at + length, bytes.len());
    for range in MEMORY {
        assert_eq!(
            (u64_at(&bytes, at + 4), u64_at(&bytes, at + 12), u32_at(&bytes, at + 20)),
            (range.start, range.size, range.kind as u32)
        );
        at += u32_at(&bytes, at) as usize + 4;
    }
    assert_eq!(at, bytes.len());
    let high = [Module { start: 1 << 32, size: 1, command_line: 0 }];
    assert_eq!(multiboot::information(0x5000, &MEMORY, 0, &high), None);
    assert_eq!(multiboot::information(u32::MAX - 8, &MEMORY, 0, &[]), None);
}

#[test]
fn pvh_information() {
    let modules = [Module { start: 0x20_0000, size: 0x1000, command_line: 0x3000 }];
    let bytes = pvh::start_info(0x6000, &MEMORY, 0x4000, &modules, 0xe_0000);
    assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4), u32_at(&bytes, 12)), (0x336e_c578, 1, 1));
    assert_eq!((u64_at(&bytes, 24), u64_at(&bytes, 32), u32_at(&bytes, 48)), (0x4000, 0xe_0000, 3));
    let at = u64_at(&bytes, 16) as usize - 0x6000;
    assert_eq!((u64_at(&bytes, at), u64_at(&bytes, at + 8), u64_at(&bytes, at + 16)), (0x20_0000, 0x1000, 0x3000));
    let mut at = u64_at(&bytes, 40) as usize - 0x6000;
    for range in MEMORY {
        assert_eq!((u64_at(&bytes, at), u64_at(&bytes, at + 8), u32_at(&bytes, at + 16)), (range.start, range.size, range.kind as u32));
        at += 24;
    }
    assert_eq!(at, bytes.len());
}
