//! Device registers and firmware calls.

use stile_device::fw_cfg::{self, FwCfg};
use stile_device::keyboard::Keyboard;
use stile_device::pic::Pic;
use stile_device::pit::Pit;
use stile_device::pl011::Pl011;
use stile_device::pl031::Pl031;
use stile_device::power::Power;
use stile_device::psci;
use stile_device::rtc::Rtc;
use stile_device::screen::Screen;
use stile_device::smccc::{self, Workarounds};
use stile_device::uart16550::Uart16550;

use crate::input::Input;
use crate::marks::reach;
use crate::target::{Target, none};

/// An Arm machine's devices, and PSCI and SMCCC calls.
pub const AARCH64: Target = Target {
    name: "devices-aarch64",
    run: aarch64,
    seeds: none,
    mutations: 8000,
    marks: &["sent", "interrupt", "alarm", "call", "wrong call"],
};

/// A PC's devices.
pub const X86_64: Target =
    Target { name: "devices-x86_64", run: x86_64, seeds: none, mutations: 6000, marks: &["sent", "expired", "acknowledged", "turned off"] };

/// Advances a model's clock by up to 2^60 ticks, more than any time that a guest can wait for.
fn step(now: &mut u64, input: &mut Input<'_>) {
    *now = now.saturating_add(input.value() >> 4);
}

fn aarch64(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut uart, mut rtc, mut now) = (Pl011::new(), Pl031::new(1, 0), 0);
    while !input.is_empty() {
        match input.byte() % 6 {
            0 => {
                let write = uart.write(u32::from(input.half() & 0xfff), input.value() as u32);
                if write.tx.is_some() {
                    reach("sent");
                }
            }
            1 => drop(uart.read(u32::from(input.half() & 0xfff))),
            2 => {
                let room = uart.rx_room();
                uart.receive(input.byte());
                assert!(uart.rx_room() + 1 >= room);
                let _ = uart.set_tx_full(input.bit());
            }
            3 => {
                step(&mut now, &mut input);
                if rtc.expire(now).is_some() {
                    reach("alarm");
                }
                assert!(rtc.deadline().is_none_or(|deadline| deadline > now), "an alarm that never ends");
            }
            4 => {
                let _ = rtc.write(u32::from(input.half() & 0xfff), input.value() as u32, now);
                let _ = rtc.read(u32::from(input.half() & 0xfff), now);
            }
            _ => {
                let id = 0x8400_0000 | u32::from(input.byte()) << 24 & 0x4f00_0000 | u32::from(input.half());
                match psci::decode(id.into(), input.value(), input.value(), input.value()) {
                    Ok(_) => reach("call"),
                    Err(error) => {
                        reach("wrong call");
                        assert!((error.x0() as i64) < 0);
                    }
                }
                let _ = (psci::features(id), smccc::service(id), smccc::vendor_hyp(id), smccc::arch(id, input.value(), &Workarounds::NONE));
            }
        }
        if uart.irq() || rtc.irq() {
            reach("interrupt");
        }
    }
}

fn x86_64(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut uart, mut pit, mut pic, mut now) = (Uart16550::new(), Pit::new(), Pic::new(), 0);
    let (mut keyboard, mut rtc, mut screen, mut power) = (Keyboard::new(), Rtc::new(), Screen::new(), Power::new());
    let mut fw_cfg = FwCfg::new(fw_cfg::Machine { ram: 64 << 20, cpus: 2 });
    while !input.is_empty() {
        let kind = input.byte();
        let (at, value) = (u16::from(kind >> 4), input.byte());
        match kind % 16 {
            0 | 1 => {
                if uart.write((at & 7).into(), value.into()).tx.is_some() {
                    reach("sent");
                }
            }
            2 => drop((uart.read((at & 7).into()), uart.receive(value), uart.set_tx_full(value & 1 != 0))),
            3 | 4 => pit.write(at & 3, value, now),
            5 => drop((pit.read(at & 3, now), pit.read_speaker(now))),
            6 => pit.write_speaker(value, now),
            7 => {
                step(&mut now, &mut input);
                if pit.deadline().is_some_and(|deadline| deadline <= now) {
                    reach("expired");
                    pit.expire(now);
                    assert!(pit.deadline().is_none_or(|deadline| deadline > now), "a timer that never ends");
                }
            }
            8 | 9 => pic.write([0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1][usize::from(at) % 6], value),
            10 => {
                let _ = pic.read([0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1][usize::from(at) % 6]);
                pic.set_line(at as u8, value & 1 != 0);
                if pic.output() {
                    reach("acknowledged");
                    let _ = pic.acknowledge();
                }
            }
            11 => {
                keyboard.write([0x60, 0x64][usize::from(at & 1)], value);
                let _ = keyboard.read([0x60, 0x64][usize::from(value & 1)]);
            }
            12 => {
                rtc.write(at & 1, value, now);
                let _ = rtc.read(at & 1, now, value & 1 != 0);
            }
            13 => {
                screen.write(0x3d4 + (at & 7), value);
                let _ = screen.read(0x3d4 + (at & 7));
            }
            14 => {
                fw_cfg.select(u16::from(value) | at << 12);
                let _ = (0..input.byte()).map(|_| fw_cfg.read()).count();
            }
            _ => {
                if power.write(at, input.word(), [1, 2, 4][usize::from(value) % 3]).request.is_some() || Power::write_reset(value).is_some()
                {
                    reach("turned off");
                }
                let _ = (power.read(at, now), power.press_button());
            }
        }
    }
}
