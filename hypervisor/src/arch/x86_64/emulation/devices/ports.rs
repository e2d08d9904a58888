//! PC devices that are a model behind a lock: keyboard and display controllers, ACPI's fixed registers, the reset
//! control register, fw_cfg.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_board::pc::{self, port};
use stile_device::fw_cfg::FwCfg;
use stile_device::keyboard::Keyboard;
use stile_device::power::{self, Power, Request, Write};
use stile_device::screen::Screen;
use stile_lock::TicketLock;

use super::pic::set_line;
use super::ticks;
use crate::arch::x86_64::emulation::sleep;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::timer;
use crate::device::bus::Device;
use crate::vm::Vm;
use crate::vm::power::End;

/// Keyboard controller, which can reset the machine. Offsets are port numbers.
pub struct KeyboardController(pub TicketLock<Keyboard>);

impl Device for KeyboardController {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.0.lock().read(offset as u16).into()
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        self.0.lock().write(offset as u16, value as u8).then_some(End::Reset)
    }
}

/// The CRT controller. Offsets are port numbers.
pub struct ScreenController(pub TicketLock<Screen>);

impl Device for ScreenController {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.0.lock().read(offset as u16).into()
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        self.0.lock().write(offset as u16, value as u8);
        None
    }
}

/// ACPI's fixed registers, and the sleep control register.
pub struct PowerRegisters {
    /// The registers.
    pub model: TicketLock<Power>,
    /// By how much the timer is ahead of the machine's.
    ahead: AtomicU32,
}

impl PowerRegisters {
    /// Returns the registers in their reset state.
    pub fn new() -> PowerRegisters {
        PowerRegisters { model: TicketLock::new(Power::new()), ahead: AtomicU32::new(0) }
    }

    /// Resets the registers. The timer continues.
    pub fn reset(&self) {
        *self.model.lock() = Power::new();
    }

    /// The timer at a time in ticks of the counter.
    pub fn timer(&self, at: u64) -> u32 {
        (ticks::count_at(at, power::TIMER_FREQUENCY) as u32).wrapping_add(self.ahead.load(Ordering::Relaxed))
    }

    /// Advances the timer by ticks of the counter.
    pub fn advance_timer(&self, by: u64) {
        self.ahead.fetch_add(ticks::count_at(by, power::TIMER_FREQUENCY) as u32, Ordering::Relaxed);
    }

    /// Sets the timer at a time in ticks of the counter.
    pub fn set_timer(&self, timer: u32, at: u64) {
        self.ahead.store(timer.wrapping_sub(ticks::count_at(at, power::TIMER_FREQUENCY) as u32), Ordering::Relaxed);
    }
}

impl Device for PowerRegisters {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        self.model.lock().read(offset as u16, self.timer(timer::now()).into()).into()
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        const SLEEP_CONTROL: u64 = (port::SLEEP_CONTROL - port::PM1A_EVENT) as u64;
        const PM1A_CONTROL: u64 = (port::PM1A_CONTROL - port::PM1A_EVENT) as u64;
        const SECOND: u64 = PM1A_CONTROL + 1;
        /// SLP_TYP and SLP_EN of the sleep control register.
        const SLEEP: u64 = 0b11_1100;
        const SLEEP_OFF: u64 = (pc::SLEEP_TYPE_OFF as u64) << 2 | 1 << 5;
        /// Values of PM1a control's SLP_TYP that power the machine off: the one in the tables, and 0, as on QEMU.
        const OFF_TYPES: u8 = 1 << pc::SLEEP_TYPE_OFF | 1 << 0;
        const S3: u64 = port::SLP_EN as u64 | (pc::SLEEP_TYPE_S3 as u64) << 10;
        /// SLP_TYP and SLP_EN of PM1a control.
        const PM1A_SLEEP: u64 = 0xf << 10;
        let pm1a = match (offset, bytes) {
            (PM1A_CONTROL, _) => value,
            // The second byte alone has SLP_TYP and SLP_EN.
            (SECOND, 1) => value << 8,
            _ => 0,
        };
        match offset {
            SLEEP_CONTROL if bytes == 1 && value & SLEEP == SLEEP_OFF => return Some(End::Off),
            _ if pm1a & u64::from(port::SLP_EN) != 0 && OFF_TYPES >> (pm1a >> 10 & 0b111) & 1 != 0 => return Some(End::Off),
            _ if pm1a & PM1A_SLEEP == S3 => sleep::sleep(cpu.vcpu()),
            _ => {
                let mut power = self.model.lock();
                let Write { request, sci } = power.write(offset as u16, value as u32, bytes as u16);
                drive(cpu.vcpu().vm(), sci);
                return request.map(|request| match request {
                    Request::Off => End::Off,
                    Request::Reset => End::Reset,
                });
            }
        }
        None
    }
}

/// Sets the SCI to its new level, if it changed. The registers are locked, so that levels arrive in order.
fn drive(vm: &'static Vm, level: Option<bool>) {
    if let Some(level) = level {
        set_line(vm, pc::ACPI_INPUT as u8, level);
    }
}

/// Presses ACPI's power button. Returns false, without effect, if the guest has not enabled its event.
pub fn press_power_button(vm: &'static Vm) -> bool {
    let mut power = vm.arch.devices.power.model.lock();
    if !power.has_button_enabled() {
        return false;
    }
    let level = power.press_button();
    drive(vm, level);
    true
}

/// The reset control register.
pub struct ResetRegister;

impl Device for ResetRegister {
    fn read(&self, _cpu: &mut Cpu, _offset: u64, _bytes: u64) -> u64 {
        u64::MAX
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        const SYSTEM_RESET: u64 = 1 << 2;
        (offset == 0 && value & SYSTEM_RESET != 0).then_some(End::Reset)
    }
}

/// fw_cfg: a selector of two bytes, and a data port of one byte behind its first.
pub struct FirmwareConfig(pub TicketLock<FwCfg>);

impl Device for FirmwareConfig {
    fn read(&self, _cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        if (offset, bytes) == (1, 1) { self.0.lock().read().into() } else { u64::MAX }
    }

    fn write(&self, _cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        if (offset, bytes) == (0, 2) {
            self.0.lock().select(value as u16);
        }
        None
    }
}
