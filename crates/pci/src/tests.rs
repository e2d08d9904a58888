//! A model of a physical function, examples of real layouts, and properties of the virtual one.

use std::cell::Cell;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use crate::bar::register;
use crate::register::*;
use crate::*;

/// Physical configuration space: values, and which bits can be written.
#[derive(Clone)]
struct Physical {
    registers: [u32; 64],
    writable: [u32; 64],
    reads: Cell<usize>,
}

impl ConfigSpace for Physical {
    fn read(&self, register: u8) -> u32 {
        assert_eq!(register % 4, 0);
        self.reads.set(self.reads.get() + 1);
        self.registers[usize::from(register) / 4]
    }

    fn write(&mut self, register: u8, value: u32) {
        assert_eq!(register % 4, 0);
        let index = usize::from(register) / 4;
        let writable = self.writable[index];
        self.registers[index] = self.registers[index] & !writable | value & writable;
    }
}

impl Physical {
    fn set(&mut self, register: u8, value: u32, writable: u32) {
        let index = usize::from(register) / 4;
        (self.registers[index], self.writable[index]) = (value, writable);
    }

    /// As QEMU's virtio-blk-pci: BAR 1 with the MSI-X table (4 KiB), a 64-bit BAR 4 (16 KiB), I/O BAR 0.
    fn virtio() -> Physical {
        let mut space = Physical { registers: [0; 64], writable: [0; 64], reads: Cell::new(0) };
        space.set(ID, 0x1042_1af4, 0);
        space.set(COMMAND, HAS_CAPABILITIES, 0x547);
        space.set(CLASS, 0x0100_0001, 0);
        space.set(HEADER, 0x0080_0000, 0xff);
        space.set(register(0), 1, !0x7f);
        space.set(register(1), 0, !0xfff);
        space.set(register(4), 0xc, !0x3fff);
        space.set(register(5), 0, u32::MAX);
        space.set(SUBSYSTEM, 0x1100_1af4, 0);
        space.set(CAPABILITIES, 0x98, 0);
        space.set(INTERRUPT, 0x1ff, 0xff);
        // MSI-X with 2 vectors in BAR 1; then virtio's window; then its common configuration; then MSI.
        space.set(0x98, 0x0001_8411, 0xc000_0000);
        space.set(0x9c, 1, 0);
        space.set(0xa0, 0x801, 0);
        space.set(0x84, 0x0514_7009, 0);
        space.set(0x70, 0x0110_5009, 0);
        space.set(0x74, 4, 0);
        space.set(0x78, 0, 0);
        space.set(0x7c, 0x1000, 0);
        space.set(0x50, 0x0000_0005, u32::MAX);
        space
    }

    /// As firmware leaves a root port with a function behind it.
    fn bridge() -> Physical {
        let mut space = Physical { registers: [0; 64], writable: [u32::MAX; 64], reads: Cell::new(0) };
        space.set(ID, 0x000c_1b36, 0);
        space.set(COMMAND, HAS_CAPABILITIES | 7, 0x547);
        space.set(CLASS, 0x0604_0000, 0);
        space.set(HEADER, 0x0001_0000, 0xff);
        // Its I/O window, and its ROM.
        space.set(ROM, 0x1234_5678, u32::MAX);
        space.set(BRIDGE_ROM, 0x1000_0001, 0xffff_f801);
        space
    }

    fn model(&mut self) -> Result<VirtualFunction, Refusal> {
        let bars = probe_bars(self);
        VirtualFunction::new(self, bars)
    }
}

#[test]
fn what_firmware_left_is_turned_off() {
    let mut function = Physical::virtio();
    function.write(COMMAND, 7);
    function.set(ROM, 0xfe00_0001, 0xffff_f801);
    silence(&mut function, &(0..0));
    assert_eq!((function.read(COMMAND) & 0x547, function.read(ROM)), (0, 0));

    let mut bridge = Physical::bridge();
    silence(&mut bridge, &(0..0));
    assert_eq!((bridge.read(COMMAND) & 0x547, bridge.read(BRIDGE_ROM)), (0, 0));
    assert_eq!(bridge.read(ROM), 0x1234_5678, "windows stay: nothing goes through them");

    let mut host = Physical::bridge();
    host.set(CLASS, 0x0600_0000, 0);
    silence(&mut host, &(0..0));
    assert_eq!(host.read(COMMAND) & 7, 7, "the bus itself stays");

    let mut absent = Physical { registers: [u32::MAX; 64], ..Physical::bridge() };
    silence(&mut absent, &(0..0));
    assert_eq!(absent.read(COMMAND), u32::MAX);
}

/// A function that is not turned off keeps its registers from guests whose functions have BARs in the same pages.
#[test]
fn pages_with_decoded_bars_are_refused() {
    let taken = |space: &Physical, address: u64| {
        let mut kept = Kept::<4>::new();
        kept.reserve_decoded(space, |address, _| (address >= 0x1000).then(|| address + 0x10_0000_0000)).unwrap();
        let bar = Bar { size: 0x100, wide: false, prefetchable: false };
        kept.take(address, bar, |address, _| Some(address + 0x10_0000_0000)) == Err(Immovable::Taken)
    };
    let mut host = Physical::virtio();
    host.set(CLASS, 0x0600_0000, 0);
    host.set(register(0), 0x5101, !0x7f);
    host.set(register(1), 0x1000_0800, !0xff);
    host.set(register(2), 0x100, !0xff);
    host.set(register(4), 0xc000_020c, !0x1ff);
    host.set(register(5), 0x12, u32::MAX);
    host.set(ROM, 0x2000_0801, 0xffff_f801);
    let pages = [0x1000_0000, 0x12_c000_0000, 0x2000_0000, 0x1000_1000, 0xc000_0000, 0x5000];
    let all = |space: &Physical| pages.map(|page| taken(space, page));
    assert_eq!(all(&host), [false; 6], "it decodes nothing");
    host.write(COMMAND, MEMORY);
    silence(&mut host, &(0..0));
    assert_eq!(all(&host), [true, true, true, false, false, false]);
    host.set(ROM, 0x2000_0800, 0xffff_f801);
    assert!(!taken(&host, 0x2000_0000), "the ROM is off");
    host.set(ID, u32::MAX, 0);
    assert!(!taken(&host, 0x1000_0000), "no function");

    // Windows of a bridge are no BARs.
    let mut bridge = Physical::bridge();
    bridge.set(register(1), 0x1000_0800, !0xff);
    bridge.set(register(2), 0x3000_0000, 0);
    assert_eq!([0x1000_0000, 0x3000_0000].map(|page| taken(&bridge, page)), [true, false]);
}

#[test]
fn many_decoded_bars() {
    let mut host = Physical::virtio();
    host.write(COMMAND, MEMORY);
    (0..BARS).for_each(|index| host.set(register(index), 0x1000_0100 * (index as u32 % 2 + 1), 0));
    let mut kept = Kept::<1>::new();
    assert_eq!(kept.reserve_decoded(&host, |address, _| Some(address)), Err(Immovable::Full));
    let mut kept = Kept::<2>::new();
    assert_eq!(kept.reserve_decoded(&host, |address, _| Some(address)), Ok(()), "pages count once");
}

#[test]
fn the_screen_stays() {
    let screen = 0x12_c000_0000..0x12_c030_0000;
    let commands = |space: &Physical| {
        [&screen, &(0..0), &(0x12_c400_0000..0x12_c430_0000), &(0xc000_0000..0xc030_0000)].map(|screen| {
            let mut space = space.clone();
            silence(&mut space, screen);
            space.read(COMMAND) & 0x547
        })
    };
    // A graphics card with a 64-bit BAR of 16 MiB.
    let mut card = Physical::virtio();
    card.set(register(4), 0xc000_000c, !0xff_ffff);
    card.set(register(5), 0x12, u32::MAX);
    card.write(COMMAND, 7);
    assert_eq!(commands(&card), [MEMORY, 0, 0, 0]);
    card.write(COMMAND, 5);
    assert_eq!(commands(&card), [0; 4], "it decoded no memory");

    // A bridge to one: 32-bit memory from 0xc1000000, prefetchable memory from 0x12c0000000, each 32 MiB.
    let mut bridge = Physical::bridge();
    bridge.set(0x20, 0xc2f0_c100, 0);
    bridge.set(0x24, 0xc1f1_c001, 0);
    bridge.set(0x28, 0x12, 0);
    bridge.set(0x2c, 0x12, 0);
    assert_eq!(commands(&bridge), [MEMORY, 0, 0, 0]);
    bridge.set(0x20, 0xc0f0_c000, 0);
    assert_eq!(commands(&bridge), [MEMORY, 0, 0, MEMORY]);
    // Both windows are empty: their limits are below their bases.
    bridge.set(0x20, 0x0000_fff0, 0);
    bridge.set(0x2c, 0x11, 0);
    assert_eq!(commands(&bridge), [0; 4]);
}

#[test]
fn a_stopped_master_still_decodes() {
    let mut function = Physical::virtio();
    function.write(COMMAND, 7);
    stop_master(&mut function);
    assert_eq!(function.read(COMMAND) & 7, 3);

    let mut absent = Physical { registers: [u32::MAX; 64], ..Physical::bridge() };
    stop_master(&mut absent);
    assert_eq!(absent.read(COMMAND), u32::MAX);
}

#[test]
fn addresses_are_written_and_read() {
    let address: Address = "0000:00:02.0".parse().unwrap();
    assert_eq!((address.routing_id(), address.ecam_offset()), (0x10, 0x1_0000));
    assert_eq!("1f:03.7".parse::<Address>().unwrap().to_string(), "0000:1f:03.7");
    assert_eq!("0001:00:02.0".parse::<Address>(), Err(ParseError::Segment));
    assert_eq!("00:20.0".parse::<Address>(), Err(ParseError::Range));
    assert_eq!("00:02.8".parse::<Address>(), Err(ParseError::Range));
    for text in ["", "2", "0:2.0", "00:02", "00:02.00", "0000:00:+2.0", "0:0000:00:02.0", "00:02.0 "] {
        assert_eq!(text.parse::<Address>(), Err(ParseError::Form), "{text}");
    }
}

#[test]
fn bars_are_sized_and_restored() {
    let mut space = Physical::virtio();
    space.write(register(1), 0x1234_5000);
    space.write(COMMAND, MEMORY);
    let before = space.registers;
    let bars = probe_bars(&mut space);
    assert_eq!(space.registers, before);
    let narrow = Bar { size: 4096, wide: false, prefetchable: false };
    let wide = Bar { size: 16384, wide: true, prefetchable: true };
    assert_eq!(bars, [None, Some(narrow), None, None, Some(wide), None]);
    // 8 GiB: the lower half is all type bits.
    space.set(register(4), 0xc, 0);
    space.set(register(5), 0, !1);
    assert_eq!(probe_bars(&mut space)[4].map(|bar| bar.size), Some(8 << 30));
}

#[test]
fn the_guest_sees_what_it_may_use() {
    let function = Physical::virtio().model().unwrap();
    assert_eq!(function.read(0, 4), 0x1042_1af4);
    assert_eq!(function.read(0x0e, 1) & 0xff, 0, "one function, type 0");
    assert_eq!(function.read(0x3d, 1) & 0xff, 0, "no INTx");
    assert_eq!(function.read(0x10, 4), 0, "no I/O BAR");
    // MSI-X, then virtio's common configuration, and nothing behind it.
    assert_eq!(function.read(0x34, 1) & 0xff, 0x98);
    assert_eq!(function.read(0x98, 4), 0x0001_7011);
    assert_eq!(function.read(0x70, 4), 0x0110_0009);
    assert_eq!(function.read(0x50, 4), 0);
    assert_eq!(function.read(0x84, 4), 0);
    assert_eq!(function.read(0x100, 4), 0, "no extended capabilities");
}

#[test]
fn guests_size_and_move_bars() {
    let mut function = Physical::virtio().model().unwrap();
    function.write(0x20, 4, 0xffff_ffff);
    function.write(0x24, 4, 0xffff_ffff);
    assert_eq!((function.read(0x20, 4), function.read(0x24, 4)), (0xffff_c00c, 0xffff_ffff));
    assert_eq!(function.write(0x20, 4, 0x1000_8000), Effect::Decoding);
    function.write(0x24, 4, 0);
    assert_eq!(function.find(0x1000_8010, 4), None, "decoding is off");
    assert_eq!(function.write(4, 2, u64::from(MEMORY | BUS_MASTER)), Effect::Decoding);
    assert_eq!(function.find(0x1000_8010, 4), Some((4, 0x10)));
    assert_eq!(function.find(0x1000_bffc, 4), Some((4, 0x3ffc)));
    assert_eq!(function.find(0x1000_bffe, 4), None);
    assert_eq!(function.size(4), Some(0x4000));
    assert_eq!(function.write(4, 2, u64::from(MEMORY | BUS_MASTER)), Effect::Nothing);
    assert_eq!(function.write(0x98 + 3, 1, 0xff), Effect::Msix);
    assert_eq!(function.msix_control(), MSIX_ENABLE | MSIX_MASK_ALL);
    function.reset();
    assert_eq!((function.read(4, 2) & 0xffff, function.address(4), function.msix_control()), (0, Some(0), 0));
}

#[test]
fn what_can_not_be_assigned_is_refused() {
    let refusal = |change: fn(&mut Physical)| {
        let mut space = Physical::virtio();
        change(&mut space);
        space.model().err()
    };
    assert_eq!(refusal(|space| space.set(ID, u32::MAX, 0)), Some(Refusal::Absent));
    assert_eq!(refusal(|space| space.set(HEADER, 0x0001_0000, 0)), Some(Refusal::Bridge));
    assert_eq!(refusal(|space| space.set(0x9c, 0, 0)), Some(Refusal::Msix));
    assert_eq!(refusal(|space| space.set(0x9c, 0xff1, 0)), Some(Refusal::Msix));
    assert_eq!(refusal(|space| space.set(0x9c, 7, 0)), Some(Refusal::Msix));
}

#[test]
fn resets_are_found() {
    let mut space = Physical::virtio();
    assert_eq!(find_reset(&space), Some(Reset::Virtio { bar: 4, offset: 0x14 }));
    space.set(0x50, 0x0002_0010, 0);
    space.set(0x54, 1 << 28, 0);
    assert_eq!(find_reset(&space), Some(Reset::Function(0x58)));
    space.set(0x54, 0, 0);
    space.set(ID, 0x1042_8086, 0);
    assert_eq!(find_reset(&space), None);
}

/// The PCI Express capability begins in the last two registers, so that device control has no room.
#[test]
fn a_reset_past_the_end_of_configuration_space_is_none() {
    for offset in [0xf8, 0xfc] {
        let mut space = Physical::virtio();
        space.set(ID, 0x1042_8086, 0);
        space.set(CAPABILITIES, offset, 0);
        // In the last register this is the capability itself.
        space.set(0xfc, 1 << 28 | 0x10, 0);
        space.set(offset as u8, 1 << 28 | 0x10, 0);
        assert_eq!(find_reset(&space), None);
        // A well-formed one after it counts.
        space.set(offset as u8, 1 << 28 | 0x5010, 0);
        space.set(0x50, 0x0002_0010, 0);
        space.set(0x54, 1 << 28, 0);
        assert_eq!(find_reset(&space), Some(Reset::Function(0x58)));
        // So does virtio's reset.
        let mut space = Physical::virtio();
        space.set(CAPABILITIES, offset, 0);
        space.set(0xfc, 1 << 28 | 0x10, 0);
        space.set(offset as u8, 1 << 28 | 0x9810, 0);
        assert_eq!(find_reset(&space), Some(Reset::Virtio { bar: 4, offset: 0x14 }));
    }
}

#[test]
fn vectors_are_masked_until_they_are_written() {
    let mut table = Table::new(2);
    assert_eq!(table.vector(1), Some(Vector { address: 0, data: 0, masked: true }));
    assert_eq!(table.vector(2), None);
    assert_eq!(table.write(16, 8, 0x0802_0040), Some(1));
    assert_eq!(table.write(24, 4, 64), Some(1));
    assert_eq!(table.write(28, 4, 0xffff_fffe), Some(1));
    assert_eq!(table.vector(1), Some(Vector { address: 0x0802_0040, data: 64, masked: false }));
    assert_eq!((table.read(16, 8), table.read(24, 8), table.read(28, 4)), (0x0802_0040, 64, 0));
    assert_eq!((table.write(32, 4, 1), table.write(17, 4, 1), table.write(16, 2, 1), table.write(20, 8, 1)), (None, None, None, None));
}

#[test]
fn windows_give_aligned_addresses_until_they_are_full() {
    let mut window = Window::new(0x1000_1000..0x1000_8000);
    assert_eq!((window.take(0x1000), window.take(0x4000), window.take(0x4000)), (Some(0x1000_1000), Some(0x1000_4000), None));
    assert_eq!((window.take(0), window.take(3)), (None, None));
    assert_eq!(Window::new(u64::MAX - 1..u64::MAX).take(1 << 63), None);
}

proptest! {
    /// Whatever a guest writes: registers that describe the function stay, and BARs stay aligned to their sizes.
    #[test]
    fn guests_change_nothing_else(writes in prop::collection::vec((0..0x1000u64, 0..3u32, any::<u32>()), 0..200)) {
        let mut function = Physical::virtio().model().unwrap();
        let fresh = function.clone();
        for (offset, size, value) in writes {
            function.write(offset, 1 << size, value.into());
        }
        for offset in [0, 8, 0x2c, 0x34, 0x70, 0x74, 0x78, 0x9c, 0xa0] {
            prop_assert_eq!(function.read(offset, 4), fresh.read(offset, 4));
        }
        prop_assert_eq!(function.address(1).unwrap() % 4096, 0);
        prop_assert_eq!(function.address(4).unwrap() % 16384, 0);
        prop_assert_eq!(function.read(0x98, 4) & 0x3fff_ffff, fresh.read(0x98, 4));
        function.reset();
        prop_assert_eq!(function.registers_for_tests(), fresh.registers_for_tests());
    }

    /// Any configuration space: the walk ends, and the model is made or refused.
    #[test]
    fn hostile_functions_are_modelled_or_refused(registers in prop::collection::vec(any::<u32>(), 64), writable in any::<u32>()) {
        let mut space = Physical { registers: [0; 64], writable: [writable; 64], reads: Cell::new(0) };
        space.registers.copy_from_slice(&registers);
        space.registers[3] = 0;
        space.registers[1] |= HAS_CAPABILITIES;
        let found: Vec<Capability> = capabilities(&space).collect();
        prop_assert!(found.len() <= 48);
        let _ = find_reset(&space);
        let bars = probe_bars(&mut space);
        for bar in bars.iter().flatten() {
            prop_assert!(bar.size.is_power_of_two());
        }
        let _ = VirtualFunction::new(&space, bars);
        prop_assert!(space.reads.get() < 2000);
    }
}
