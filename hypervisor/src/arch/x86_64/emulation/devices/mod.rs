//! Devices on a VM's buses: a PC's legacy devices, and devices of test programs (models: crate `stile-device`). Local
//! APICs are on none of them: a vCPU can move its own (`handler/mmio.rs`).

mod io_apic;
mod pci;
mod pic;
mod pit;
mod ports;
mod saved;
mod test;
mod test_memory;
mod ticks;

use stile_board::map;
use stile_board::pc::{self, port};
use stile_bus::{Region, Widths};
use stile_device::fw_cfg::{FwCfg, Machine};
use stile_device::keyboard::{self, Keyboard};
use stile_device::screen::{self, Screen};
use stile_lock::TicketLock;

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arena::Arena;
use crate::device::bus::{Optional, devices};
use pci::{HostBridge, ServerPages};
pub use pic::{Pics, set_line};
pub use pit::Timer;
pub use ports::press_power_button;
use ports::{FirmwareConfig, KeyboardController, PowerRegisters, ResetRegister, ScreenController};
pub use saved::restore_lines;
use test::{DebugExit, TestEntry, TestLines, TestWord};
use test_memory::TestMemory;

devices! {
    vm:
    /// 16550.
    Uart => &vm.devices.uart,
    /// MC146818.
    Clock => &vm.devices.clock,
    /// I/O APIC.
    IoApic => &vm.arch.io_apic,
    /// BARs and configuration space of PCI functions.
    HostBridge => &HostBridge,
    /// 8254 and the speaker's port.
    Pit => &vm.arch.devices.pit,
    /// Both 8259s.
    Pic => &vm.arch.devices.pic,
    /// Keyboard controller.
    Keyboard => &vm.arch.devices.keyboard,
    /// CRT controller.
    Screen => &vm.arch.devices.screen,
    /// ACPI's fixed registers.
    Power => &vm.arch.devices.power,
    /// Reset control register.
    Reset => &ResetRegister,
    /// fw_cfg.
    FwCfg => &vm.arch.devices.fw_cfg,
    /// Memory whose accesses exit.
    TestMemory => &vm.arch.devices.test_memory,
    /// A 32-bit register.
    TestWord => &vm.arch.devices.test_word,
    /// Interrupt lines.
    TestLines => &TestLines,
    /// Device that makes VM entries fail.
    TestEntry => &TestEntry,
    /// Device that ends the VM with a status.
    DebugExit => &DebugExit,
    /// Registers of the devices that the VM serves.
    ServerPages => &ServerPages,
}

/// PC-specific devices of a VM.
pub struct Devices {
    /// 8254.
    pub pit: Timer,
    /// 8259s.
    pub pic: Pics,
    keyboard: KeyboardController,
    screen: ScreenController,
    power: PowerRegisters,
    fw_cfg: FirmwareConfig,
    test_word: TestWord,
    test_memory: TestMemory,
    machine: Machine,
}

impl Devices {
    /// Creates the devices, in their reset state, of a machine with this RAM and number of vCPUs.
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(ram: u64, vcpus: usize, arena: &Arena) -> Result<Devices, &'static str> {
        let machine = Machine { ram, cpus: vcpus as u16 };
        Ok(Devices {
            pit: Timer::new(),
            pic: Pics::new(),
            keyboard: KeyboardController(TicketLock::new(Keyboard::new())),
            screen: ScreenController(TicketLock::new(Screen::new())),
            power: PowerRegisters::new(),
            fw_cfg: FirmwareConfig(TicketLock::new(FwCfg::new(machine))),
            test_word: TestWord::new(),
            test_memory: TestMemory::new(arena)?,
            machine,
        })
    }

    /// Resets all devices except the register and memory of test programs.
    pub fn reset(&self) {
        self.pit.reset();
        self.pic.reset();
        *self.keyboard.0.lock() = Keyboard::new();
        *self.screen.0.lock() = Screen::new();
        self.power.reset();
        *self.fw_cfg.0.lock() = FwCfg::new(self.machine);
    }
}

/// The memory bus.
pub fn memory_regions(_vcpus: usize, optional: Optional) -> impl Iterator<Item = Region<Device>> {
    let bridge = Region::new(pc::PCI_WINDOW.start..pc::PCI_ECAM.end, Widths::ALL, Device::HostBridge);
    let pages = Region::new(pc::SERVER_REGISTERS..pc::SERVER_REGISTERS + map::SERVER_SIZE, Widths::WORD, Device::ServerPages);
    [
        Region::new(pc::IO_APIC..pc::IO_APIC + 0x1000, Widths::ALL, Device::IoApic),
        Region::new(pc::TEST_MEMORY, Widths::ALL, Device::TestMemory),
    ]
    .into_iter()
    .chain((optional.pci || optional.served).then_some(bridge))
    .chain(optional.serves.then_some(pages))
}

/// The port bus. Devices with several regions use one base for their offsets.
pub fn port_regions() -> impl Iterator<Item = Region<Device>> {
    const SELECTOR_AND_DATA: Widths = Widths::BYTE.or(Widths::HALF);
    let of = |device, widths, start: u16, end: u16| Region::new(start.into()..end.into(), widths, device);
    let one = [
        of(Device::Uart, Widths::BYTE, port::COM1, port::COM1_END),
        of(Device::Clock, Widths::BYTE, port::CLOCK, port::CLOCK_END),
        of(Device::Power, Widths::ALL, port::PM1A_EVENT, port::PM_END),
        of(Device::Reset, Widths::ALL, port::RESET, port::RESET_END),
        of(Device::FwCfg, SELECTOR_AND_DATA, port::FW_CFG, port::FW_CFG_END),
        of(Device::TestWord, Widths::ALL, port::TEST_WORD, port::TEST_WORD_END),
        of(Device::TestLines, Widths::ALL, port::TEST_LINES, port::TEST_LINES_END),
        of(Device::TestEntry, Widths::BYTE, port::TEST_ENTRY, port::TEST_ENTRY + 1),
        of(Device::DebugExit, Widths::ALL, port::DEBUG_EXIT, port::DEBUG_EXIT_END),
    ];
    let byte_wide = |ports: &'static [u16], device, base: u16| {
        ports.iter().map(move |&port| of(device, Widths::BYTE, port, port + 1).with_base(base.into()))
    };
    one.into_iter()
        .chain(byte_wide(&pit::PORTS, Device::Pit, pit::BASE))
        .chain(byte_wide(&pic::PORTS, Device::Pic, 0))
        .chain(byte_wide(&keyboard::PORTS, Device::Keyboard, 0))
        .chain(byte_wide(&screen::PORTS, Device::Screen, 0))
}
