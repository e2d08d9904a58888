//! Random operations, performed on the engine and on the reference GIC alike.

use stile_vgic::SgiRegister;

use super::machine::Machine;

/// The interrupts used: few, so that they interact.
pub const SGIS: [u32; 4] = [0, 1, 7, 15];
pub const PPI: u32 = 20;
pub const SPIS: [u32; 8] = [32, 33, 34, 48, 63, 64, 130, 255];

pub const VCPUS: usize = 3;

/// An operation of a guest, a device or the hypervisor.
#[derive(Clone, Debug)]
pub enum Op {
    Level { intid: u32, v: usize, high: bool },
    Pulse { intid: u32 },
    Post { v: usize, intid: u32 },
    Timer { v: usize, intid: u32, high: bool },
    Sgi { v: usize, register: SgiRegister, targets: u16, intid: u32 },
    Write { v: usize, kind: u32, intid: u32, more: u32 },
    Priority { v: usize, intid: u32, value: u8 },
    Config { v: usize, intid: u32, edge: bool },
    Route { intid: u32, route: u32 },
    Enables { value: u32 },
    PriorityMask { v: usize, value: u64 },
    GroupEnables { v: usize, value: u64 },
    Modes { v: usize, split: bool, common: bool, binary_point: u64 },
    Acknowledge { v: usize },
    End { v: usize },
    Deactivate { v: usize, which: usize },
    Unload { v: usize },
    Load { v: usize },
    Direct { v: usize },
    Regain { v: usize },
    Read { v: usize, kind: u32, n: u32 },
}

/// Bits that may be made inactive by a write: with EOImode 0, ending an interrupt that is no longer
/// active is UNPREDICTABLE.
fn harmless(machine: &mut Machine, v: usize, n: u32, value: u32) -> u32 {
    let mut result = value;
    for i in 0..32 {
        let intid = n * 32 + i;
        if value >> i & 1 == 0 {
            continue;
        }
        if machine.in_hand(v, intid) {
            result &= !(1 << i);
        } else {
            machine.bury(v, intid);
        }
    }
    result
}

fn write(machine: &mut Machine, v: usize, offset: u32, value: u32, intid: u32) {
    if intid < 32 {
        machine.write_redistributor(v, offset, value);
    } else {
        machine.write_distributor(offset, value);
    }
}

/// Performs an operation.
pub fn apply(machine: &mut Machine, op: Op) {
    match op {
        Op::Level { intid, v, high } => machine.set_level(v, intid, high),
        Op::Pulse { intid } => machine.pulse(intid),
        Op::Post { v, intid } => machine.post(v, intid),
        Op::Timer { v, intid, high } => machine.set_timer(v, intid, high),
        Op::Sgi { v, register, targets, intid } => {
            machine.send_sgi(v, register, u64::from(targets) | u64::from(intid) << 24);
        }
        Op::Write { v, kind, intid, more } => {
            let n = intid / 32;
            let mut value = 1 << (intid % 32);
            if matches!(kind, 1 | 2 | 3 | 5 | 7) {
                value |= more;
            }
            if kind == 7 {
                value = harmless(machine, v, n, value);
            }
            write(machine, v, kind << 7 | n << 2, value, intid);
        }
        Op::Priority { v, intid, value } => {
            let offset = 0x400 + (intid & !3);
            let mut bytes = machine.reference.read(v, offset).to_le_bytes();
            bytes[intid as usize % 4] = value;
            write(machine, v, offset, u32::from_le_bytes(bytes), intid);
        }
        Op::Config { v, intid, edge } => {
            let offset = 0xc00 + intid / 16 * 4;
            let bit = 2 << (intid % 16 * 2);
            let value = machine.reference.read(v, offset) & !bit | if edge { bit } else { 0 };
            write(machine, v, offset, value, intid);
        }
        Op::Route { intid, route } => machine.write_distributor(0x6000 + intid * 8, route),
        Op::Enables { value } => machine.write_distributor(0, value),
        Op::PriorityMask { v, value } if machine.place[v].is_some() => {
            machine.set_vmcr(v, value << 24, 0xff << 24);
        }
        Op::GroupEnables { v, value } if machine.place[v].is_some() => {
            machine.set_vmcr(v, value, 3);
        }
        Op::Modes { v, split, common, binary_point } => {
            // UNPREDICTABLE, or makes later ends of interrupt so, while interrupts are in progress.
            let idle = machine.taken[v].is_empty() && machine.dropped[v].is_empty();
            if idle && machine.place[v].is_some() {
                let bits = u64::from(split) << 9 | u64::from(common) << 4 | binary_point << 21 | (binary_point + 1).min(7) << 18;
                machine.set_vmcr(v, bits, 1 << 9 | 1 << 4 | 0x3f << 18);
            }
        }
        Op::Acknowledge { v } => _ = machine.acknowledge(v),
        Op::End { v } => machine.end(v),
        Op::Deactivate { v, which } => machine.deactivate(v, which),
        Op::Unload { v } => _ = machine.unload(v),
        Op::Load { v } => _ = machine.load(v),
        Op::Direct { v } => _ = machine.make_direct(v),
        Op::Regain { v } => machine.regain(v),
        Op::Read { v, kind, n } => machine.check_register(v, kind << 7, n),
        Op::PriorityMask { .. } | Op::GroupEnables { .. } => {}
    }
}

/// All interrupts enabled, in various priorities and both groups, some edge-triggered, spread over the
/// vCPUs.
pub fn set_up(machine: &mut Machine) {
    machine.enable_groups();
    for v in 0..VCPUS {
        machine.write_redistributor(v, 0x100, u32::MAX);
        machine.write_redistributor(v, 0x080, 0xffff_00ff);
    }
    for n in 1..8 {
        machine.write_distributor(0x100 + 4 * n, u32::MAX);
        machine.write_distributor(0x080 + 4 * n, 0xaaaa_5557);
        machine.write_distributor(0xc00 + 8 * n, 0x8888_8888);
    }
    for (k, intid) in (0..).zip(SGIS.into_iter().chain(SPIS)) {
        let levels = [0xa0, 0x80, 0x40, 0x80];
        for v in 0..VCPUS {
            apply(machine, Op::Priority { v, intid, value: levels[k % 4] });
        }
    }
    for (k, intid) in (0..).zip(SPIS) {
        apply(machine, Op::Route { intid, route: k % VCPUS as u32 });
    }
    machine.settle();
    machine.check();
}

/// Applies operations, and checks after each that no guest can tell the engine from the reference.
pub fn apply_all(machine: &mut Machine, ops: impl IntoIterator<Item = Op>) {
    for op in ops {
        apply(machine, op);
        machine.settle();
        machine.check();
    }
}

/// As [`apply_all`]; then checks the registers, too, whose reads change nothing.
pub fn apply_all_and_read(machine: &mut Machine, ops: impl IntoIterator<Item = Op>) {
    apply_all(machine, ops);
    machine.check_registers();
    machine.settle();
    machine.check();
}
