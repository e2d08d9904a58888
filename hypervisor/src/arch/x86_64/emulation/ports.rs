//! The devices at ports that kernels look for which know nothing newer, and test programs: 8254, 8259s, keyboard and screen controllers, ACPI's
//! fixed registers, fw_cfg (models: crate `stile-device`), and a word and interrupt lines to test with.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stile_board::pc::{self, port};
use stile_device::fw_cfg::{FwCfg, Machine};
use stile_device::keyboard::{self, Keyboard};
use stile_device::pic::Pic;
use stile_device::pit::{self, Pit};
use stile_device::power::{self, Power};
use stile_device::screen::{self, Screen};
use stile_sched::lock::TicketLock;

use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::interrupts::{delivery, events};
use crate::vm::Vm;

/// A VM's.
pub struct Ports {
    pit: TicketLock<Pit>,
    pic: TicketLock<Pic>,
    /// The 8259s' output was high when it was last looked at.
    was_high: AtomicBool,
    keyboard: TicketLock<Keyboard>,
    screen: TicketLock<Screen>,
    power: TicketLock<Power>,
    fw_cfg: TicketLock<FwCfg>,
    test_word: AtomicU32,
    machine: Machine,
}

/// The processor's counter in ticks of a device's clock.
fn ticks(now: u64, device_hz: u64) -> u64 {
    (u128::from(now) * u128::from(device_hz) / u128::from(timer::frequency().max(1))) as u64
}

/// When a device's clock has counted to `ticks`, in ticks of the processor's counter.
fn when(ticks: u64, device_hz: u64) -> u64 {
    let ticks = (u128::from(ticks) * u128::from(timer::frequency())).div_ceil(u128::from(device_hz));
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// The first and the second 8259's ports, and those that say which lines are levels.
const PIC: [u16; 6] = [0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1];
const PIT: u16 = 0x40;
const PIT_END: u16 = PIT + 4;
/// The gate of the 8254's third counter, and what it has come to.
const SPEAKER: u16 = 0x61;

impl Ports {
    /// As they are after reset, in a machine of so much RAM and so many vCPUs.
    pub fn new(ram: u64, vcpus: usize) -> Ports {
        let machine = Machine { ram, cpus: vcpus as u16 };
        Ports {
            pit: TicketLock::new(Pit::new()),
            pic: TicketLock::new(Pic::new()),
            was_high: AtomicBool::new(false),
            keyboard: TicketLock::new(Keyboard::new()),
            screen: TicketLock::new(Screen::new()),
            power: TicketLock::new(Power::new()),
            fw_cfg: TicketLock::new(FwCfg::new(machine)),
            test_word: AtomicU32::new(0),
            machine,
        }
    }

    /// Back to that state.
    pub fn reset(&self) {
        *self.pit.lock() = Pit::new();
        *self.pic.lock() = Pic::new();
        self.was_high.store(false, Ordering::Relaxed);
        *self.keyboard.lock() = Keyboard::new();
        *self.screen.lock() = Screen::new();
        *self.power.lock() = Power::new();
        *self.fw_cfg.lock() = FwCfg::new(self.machine);
    }

    /// The guest reads `size` bytes. Where there is nothing, all ones.
    #[cold]
    pub fn read(&self, _vm: &'static Vm, port: u16, size: u64) -> u64 {
        let now = timer::now();
        match (port, size) {
            (PIT..PIT_END, 1) => self.pit.lock().read(port - PIT, ticks(now, pit::FREQUENCY)).into(),
            (SPEAKER, 1) => self.pit.lock().read_speaker(ticks(now, pit::FREQUENCY)).into(),
            (port, 1) if PIC.contains(&port) => self.pic.lock().read(port).into(),
            (port::PM1A_EVENT..port::PM_END, _) => {
                self.power.lock().read(port - port::PM1A_EVENT, ticks(now, power::TIMER_FREQUENCY)).into()
            }
            (port, 1) if port == port::FW_CFG + 1 => self.fw_cfg.lock().read().into(),
            (port::TEST_WORD..port::TEST_WORD_END, _) => {
                u64::from(self.test_word.load(Ordering::Relaxed)) >> (8 * (port - port::TEST_WORD))
            }
            _ => self.read_rare(port, size),
        }
    }

    /// The same of ports that nobody waits for.
    #[inline(never)]
    fn read_rare(&self, port: u16, size: u64) -> u64 {
        match (port, size) {
            (port, 1) if keyboard::PORTS.contains(&port) => self.keyboard.lock().read(port).into(),
            (port, 1) if screen::PORTS.contains(&port) => self.screen.lock().read(port).into(),
            _ => u64::MAX,
        }
    }

    /// The guest writes `size` bytes.
    #[cold]
    pub fn write(&self, vm: &'static Vm, port: u16, size: u64, value: u64) {
        let byte = value as u8;
        match (port, size) {
            (PIT..PIT_END, 1) => {
                self.pit.lock().write(port - PIT, byte, ticks(timer::now(), pit::FREQUENCY));
                self.watch(vm);
            }
            (SPEAKER, 1) => self.pit.lock().write_speaker(byte, ticks(timer::now(), pit::FREQUENCY)),
            (port, 1) if PIC.contains(&port) => {
                self.pic.lock().write(port, byte);
                events::external(vm);
            }
            (port, 1) if screen::PORTS.contains(&port) => self.screen.lock().write(port, byte),
            (port::PM1A_EVENT..port::PM_END, _) => {
                self.power.lock().write(port - port::PM1A_EVENT, value as u32, size as u16);
            }
            (port::FW_CFG, 2) => self.fw_cfg.lock().select(value as u16),
            (port::TEST_WORD..port::TEST_WORD_END, _) => {
                let shift = 8 * u32::from(port - port::TEST_WORD);
                let mask = (u64::MAX >> (64 - 8 * size.clamp(1, 4))) as u32;
                let change = |word: u32| Some(word & !(mask << shift) | (value as u32 & mask) << shift);
                let _ = self.test_word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
            }
            (port::TEST_LINES..port::TEST_LINES_END, _) => set_line(vm, (port - port::TEST_LINES) as u8, byte != 0),
            _ => {}
        }
    }

    /// The guest writes one of the keyboard controller's ports. True if that resets the machine.
    #[cold]
    pub fn write_keyboard(&self, port: u16, value: u8) -> bool {
        self.keyboard.lock().write(port, value)
    }

    /// The 8254 may have a new time to interrupt at: its keeper, the first vCPU, is told.
    fn watch(&self, vm: &'static Vm) {
        let Some(first) = vm.vcpus.first() else { return };
        let deadline = self.pit.lock().deadline().map(|at| when(at, pit::FREQUENCY));
        if first.arch.set_watch(deadline) {
            events::watch(first);
        }
    }

    /// The time may have come that [`Ports::watch`] told the first vCPU.
    pub fn expire(&self, vm: &'static Vm) {
        let mut pit = self.pit.lock();
        let rose = pit.expire(ticks(timer::now(), pit::FREQUENCY));
        let least = timer::now() + timer::LEAST_PERIOD;
        let deadline = pit.deadline().map(|at| when(at, pit::FREQUENCY).max(least));
        drop(pit);
        if let Some(first) = vm.vcpus.first() {
            first.arch.set_watch(deadline);
        }
        if rose {
            // It was low for a tick, and stays high until it has counted down again.
            set_line(vm, 0, false);
            set_line(vm, 0, true);
        }
    }

    /// Moves a line of the 8259s. [`events::external`] follows.
    fn set_pic_line(&self, line: u8, high: bool) {
        self.pic.lock().set_line(line, high);
    }

    /// Whether the 8259s have an interrupt for the processor, and whether they had none at the last call.
    pub fn interrupt_request(&self) -> (bool, bool) {
        let pic = self.pic.lock();
        let high = pic.output();
        let was_high = self.was_high.swap(high, Ordering::Relaxed);
        (high, high && !was_high)
    }

    /// Whether the 8259s have an interrupt for the processor.
    pub fn interrupts(&self) -> bool {
        self.pic.lock().output()
    }

    /// The processor takes it. Returns its vector.
    pub fn acknowledge(&self) -> u8 {
        let mut pic = self.pic.lock();
        let vector = pic.acknowledge();
        self.was_high.store(pic.output(), Ordering::Relaxed);
        vector
    }
}

/// Moves an interrupt line by its number on the older bus: it leads to the 8259s and to the I/O APIC, where the timer's has another number.
pub fn set_line(vm: &'static Vm, line: u8, high: bool) {
    let input = if line == 0 { pc::TIMER_INPUT } else { line.into() };
    vm.arch.io_apic.lock().set_line(input as usize, high);
    delivery::send_from_io_apic(vm, None);
    vm.arch.ports.set_pic_line(line, high);
    events::external(vm);
}
