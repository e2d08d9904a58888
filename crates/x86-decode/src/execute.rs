//! Execution of decoded instructions.

use crate::alu;
use crate::decoded::Decoded;
use crate::names::SelectorName;
use crate::operation::{Alu, Bit, Direction, Operation, Sign, Source};
use crate::rflags::CF;
use crate::{
    Fault, Intent, Outcome, SegmentName, Vcpu, Width, all_registers, branch, far, flags, multiply, selector, shift, stack, state, string,
    system, vector,
};

/// RAX.
const ACCUMULATOR: u8 = 0;
/// RCX.
const COUNT: u8 = 1;
/// RDX.
const DATA: u8 = 2;

/// Emulates an instruction whose access to the guest-physical address `exit` ended in an exit.
///
/// A locked instruction reads and writes the device in two calls. The caller holds the lock of a device that several processors access.
#[inline]
pub fn execute(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    // The frequent operations. The others are in a function of their own, so that its stack frame and registers cost nothing here.
    match decoded.operation {
        Operation::LoadPart => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
            let value = decoded.read(vcpu, place, Intent::Use)?;
            decoded.set_source(vcpu, decoded.register_width, value);
        }
        Operation::Store => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
            decoded.write(vcpu, place, decoded.source(vcpu))?;
        }
        _ => return execute_other(decoded, vcpu, exit),
    }
    Ok(Outcome::Complete)
}

#[inline(never)]
fn execute_other(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let width = decoded.width;
    match decoded.operation {
        // Handled by `execute`.
        Operation::LoadPart | Operation::Store => {}
        Operation::LoadSwapped => {
            let value = operand(decoded, vcpu, exit)?;
            decoded.set_source(vcpu, width, swapped(value, width));
        }
        Operation::StoreSwapped => {
            store_operand(decoded, vcpu, exit, swapped(decoded.source(vcpu), width))?;
        }
        Operation::LoadIf(condition) => {
            let value = operand(decoded, vcpu, exit)?;
            let value = if condition.holds(vcpu.flags()) { value } else { decoded.source(vcpu) };
            // A 32-bit destination's upper half is cleared even if the condition is false.
            decoded.set_source(vcpu, width, value);
        }
        Operation::StoreCondition(condition) => {
            store_operand(decoded, vcpu, exit, condition.holds(vcpu.flags()).into())?;
        }
        Operation::LoadSigned => {
            let value = operand(decoded, vcpu, exit)?;
            decoded.set_source(vcpu, decoded.register_width, width.sign_extend(value));
        }
        Operation::ToRegister(alu) => {
            let right = operand(decoded, vcpu, exit)?;
            let (result, flags) = alu::binary(alu, decoded.source(vcpu), right, width, vcpu.flags());
            if alu != Alu::Cmp {
                decoded.set_source(vcpu, width, result);
            }
            vcpu.set_flags(flags);
        }
        Operation::ToMemory(alu) if matches!(alu, Alu::Cmp | Alu::Test) => {
            let left = operand(decoded, vcpu, exit)?;
            let (_, flags) = alu::binary(alu, left, decoded.source(vcpu), width, vcpu.flags());
            vcpu.set_flags(flags);
        }
        Operation::ToMemory(alu) => modify(decoded, vcpu, exit, |vcpu, value| {
            let (result, flags) = alu::binary(alu, value, decoded.source(vcpu), width, vcpu.flags());
            (result, Effect::Flags(flags))
        })?,
        Operation::Unary(unary) => modify(decoded, vcpu, exit, |vcpu, value| {
            let (result, flags) = alu::unary(unary, value, width, vcpu.flags());
            (result, Effect::Flags(flags))
        })?,
        Operation::Shift(shift) => modify(decoded, vcpu, exit, |vcpu, value| {
            let (result, flags) = shift::shift(shift, value, decoded.source(vcpu), width, vcpu.flags());
            (result, Effect::Flags(flags))
        })?,
        Operation::DoubleShift(direction) => {
            let Source::Both(_, count) = decoded.source else { return Err(Fault::InvalidOpcode) };
            double_shift(decoded, vcpu, exit, direction, count as u64)?;
        }
        Operation::DoubleShiftByCl(direction) => double_shift(decoded, vcpu, exit, direction, vcpu.register(COUNT))?,
        Operation::Multiply(sign) => {
            let right = operand(decoded, vcpu, exit)?;
            let (low, high, flags) = multiply::multiply(sign, vcpu.register(ACCUMULATOR) & width.mask(), right, width, vcpu.flags());
            set_pair(vcpu, width, low, high);
            vcpu.set_flags(flags);
        }
        Operation::MultiplyTo => {
            let right = operand(decoded, vcpu, exit)?;
            let left = if let Source::Both(_, value) = decoded.source { value as u64 & width.mask() } else { decoded.source(vcpu) };
            let (low, _, flags) = multiply::multiply(Sign::Signed, left, right, width, vcpu.flags());
            decoded.set_source(vcpu, width, low);
            vcpu.set_flags(flags);
        }
        Operation::Divide(sign) => {
            let divisor = operand(decoded, vcpu, exit)?;
            let (low, high) = pair(vcpu, width);
            let (quotient, remainder) = multiply::divide(sign, high, low, divisor, width).ok_or(Fault::Divide)?;
            set_pair(vcpu, width, quotient, remainder);
        }
        Operation::Scan(scan) => {
            let value = operand(decoded, vcpu, exit)?;
            let (found, flags) = multiply::scan(scan, value, width, vcpu.flags());
            if let Some(found) = found {
                decoded.set_source(vcpu, width, found);
            }
            vcpu.set_flags(flags);
        }
        Operation::Bit(bit) => execute_bit(decoded, vcpu, exit, bit)?,
        Operation::Exchange => modify(decoded, vcpu, exit, |vcpu, value| (decoded.source(vcpu), Effect::Source(value)))?,
        Operation::ExchangeAdd => modify(decoded, vcpu, exit, |vcpu, value| {
            let (sum, flags) = alu::binary(Alu::Add, value, decoded.source(vcpu), width, vcpu.flags());
            (sum, Effect::SourceAndFlags(value, flags))
        })?,
        Operation::CompareExchange => modify(decoded, vcpu, exit, |vcpu, value| {
            let accumulator = vcpu.register(ACCUMULATOR) & width.mask();
            let (_, flags) = alu::binary(Alu::Cmp, accumulator, value, width, vcpu.flags());
            if accumulator == value {
                (decoded.source(vcpu), Effect::Flags(flags))
            } else {
                // On a mismatch the processor writes back the value read.
                (value, Effect::AccumulatorAndFlags(value, flags))
            }
        })?,
        Operation::CompareExchangePair => vector::compare_exchange(decoded, vcpu, exit)?,
        Operation::LoadString => return string::load(decoded, vcpu),
        Operation::ScanString => return string::scan(decoded, vcpu),
        Operation::CompareString => return string::compare(decoded, vcpu),
        Operation::StoreString => return string::store(decoded, vcpu),
        Operation::MoveString => return string::copy(decoded, vcpu),
        Operation::InString => return string::input(decoded, vcpu),
        Operation::OutString => return string::output(decoded, vcpu),
        Operation::PushMemory => {
            let value = operand(decoded, vcpu, exit)?;
            stack::push(decoded, vcpu, value)?;
        }
        Operation::PushSource => stack::push(decoded, vcpu, decoded.source(vcpu))?,
        Operation::PopMemory => stack::pop_to_memory(decoded, vcpu, exit)?,
        Operation::PopRegister => stack::pop_to_register(decoded, vcpu)?,
        Operation::Enter => stack::enter(decoded, vcpu)?,
        Operation::Leave => stack::leave(decoded, vcpu)?,
        Operation::Jump => return branch::jump(decoded, vcpu, exit),
        Operation::JumpFar => return far::jump(decoded, vcpu, exit),
        Operation::CallFar => return far::call_memory(decoded, vcpu, exit),
        Operation::CallFarPointer => return far::call_pointer(decoded, vcpu),
        Operation::ReturnFar => return far::ret(decoded, vcpu),
        Operation::CallMemory => return branch::call_memory(decoded, vcpu, exit),
        Operation::CallSource => return branch::call(decoded, vcpu),
        Operation::Return => return branch::ret(decoded, vcpu),
        Operation::PushFlags => flags::push(decoded, vcpu)?,
        Operation::PopFlags => return flags::pop(decoded, vcpu),
        Operation::PushAll => all_registers::push(decoded, vcpu)?,
        Operation::PopAll => all_registers::pop(decoded, vcpu)?,
        Operation::Translate => {
            let offset = decoded.offset(vcpu).wrapping_add(vcpu.register(ACCUMULATOR) & Width::Byte.mask());
            let place = decoded.place(vcpu, offset & decoded.address_width.mask(), exit, false)?;
            let value = decoded.read(vcpu, place, Intent::Use)?;
            decoded.set_source(vcpu, Width::Byte, value);
        }
        Operation::StoreState(word) => state::store(decoded, word, vcpu, exit)?,
        Operation::LoadState(word) => state::load(decoded, word, vcpu, exit)?,
        // Devices are not cached, and memory is kept coherent by the machine.
        Operation::Touch => decoded.place(vcpu, decoded.offset(vcpu), exit, false).map(drop)?,
        Operation::VectorLoad | Operation::VectorStore | Operation::MmxLoad | Operation::MmxStore | Operation::Combine(_) => {
            vector::execute(decoded, vcpu, exit)?;
        }
        Operation::StoreMachineStatus => system::store_status(decoded, vcpu, exit)?,
        Operation::LoadMachineStatus => system::load_status(decoded, vcpu, exit)?,
        Operation::StoreTable(name) => system::store_table(decoded, name, vcpu, exit)?,
        Operation::LoadTable(name) => system::load_table(decoded, name, vcpu, exit)?,
        Operation::StoreSelector(name) => {
            let selector = selector::selector(vcpu, name)?;
            store_operand(decoded, vcpu, exit, selector.into())?;
        }
        Operation::PushSelector(name) => {
            let selector = vcpu.selector(SelectorName::Segment(name));
            stack::push(decoded, vcpu, selector.into())?;
        }
        Operation::LoadSegment(name) => {
            let selector = operand(decoded, vcpu, exit)?;
            selector::load(vcpu, name, selector as u16, decoded.is_long())?;
            return Ok(shadowed_by(name));
        }
        Operation::PopSegment(name) => {
            let (selector, pointer) = stack::top(decoded, vcpu)?;
            selector::load(vcpu, name, selector as u16, decoded.is_long())?;
            vcpu.set_register(stack::RSP, pointer);
            return Ok(shadowed_by(name));
        }
        Operation::LoadFar(name) => selector::load_far(decoded, name, vcpu, exit)?,
        Operation::LoadSystem(name) => {
            let selector = operand(decoded, vcpu, exit)?;
            selector::load_system(vcpu, name, selector as u16)?;
        }
    }
    Ok(Outcome::Complete)
}

/// Returns the outcome of a segment-register load.
fn shadowed_by(name: SegmentName) -> Outcome {
    if name == SegmentName::Ss { Outcome::Shadowed } else { Outcome::Complete }
}

/// Writes the memory operand.
#[inline(never)]
fn store_operand(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64, value: u64) -> Result<(), Fault> {
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    decoded.write(vcpu, place, value)
}

/// Reads the memory operand.
#[inline(never)]
fn operand(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<u64, Fault> {
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    decoded.read(vcpu, place, Intent::Use)
}

/// Reverses the byte order of a value.
const fn swapped(value: u64, width: Width) -> u64 {
    value.swap_bytes() >> (64 - width.bits())
}

fn double_shift<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, exit: u64, direction: Direction, count: u64) -> Result<(), Fault> {
    modify(decoded, vcpu, exit, |vcpu, value| {
        let (result, flags) = shift::double(direction, value, decoded.source(vcpu), count, decoded.width, vcpu.flags());
        (result, Effect::Flags(flags))
    })
}

/// Returns the low and the high half of a dividend: of AX, or the accumulator and RDX.
fn pair(vcpu: &impl Vcpu, width: Width) -> (u64, u64) {
    let low = vcpu.register(ACCUMULATOR);
    let high = if width == Width::Byte { low >> 8 } else { vcpu.register(DATA) };
    (low & width.mask(), high & width.mask())
}

/// Writes AX, or the accumulator and RDX.
fn set_pair(vcpu: &mut impl Vcpu, width: Width, low: u64, high: u64) {
    let accumulator = vcpu.register(ACCUMULATOR);
    if width == Width::Byte {
        vcpu.set_register(ACCUMULATOR, Width::Word.merge(accumulator, high << 8 | low));
    } else {
        vcpu.set_register(ACCUMULATOR, width.merge(accumulator, low));
        vcpu.set_register(DATA, width.merge(vcpu.register(DATA), high));
    }
}

/// The register effects of a read-modify-write instruction, applied after the memory write.
enum Effect {
    Flags(u64),
    Source(u64),
    SourceAndFlags(u64, u64),
    AccumulatorAndFlags(u64, u64),
}

#[inline]
fn modify<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, exit: u64, with: impl FnOnce(&V, u64) -> (u64, Effect)) -> Result<(), Fault> {
    let offset = decoded.offset(vcpu);
    modify_at(decoded, vcpu, offset, exit, with)
}

#[inline]
fn modify_at<V: Vcpu>(
    decoded: &Decoded,
    vcpu: &mut V,
    offset: u64,
    exit: u64,
    with: impl FnOnce(&V, u64) -> (u64, Effect),
) -> Result<(), Fault> {
    let place = decoded.place(vcpu, offset, exit, true)?;
    let old = decoded.read(vcpu, place, Intent::Modify)?;
    let (new, effect) = with(vcpu, old);
    decoded.write(vcpu, place, new)?;
    match effect {
        Effect::Flags(flags) => vcpu.set_flags(flags),
        Effect::Source(value) => decoded.set_source(vcpu, decoded.width, value),
        Effect::SourceAndFlags(value, flags) => {
            decoded.set_source(vcpu, decoded.width, value);
            vcpu.set_flags(flags);
        }
        Effect::AccumulatorAndFlags(value, flags) => {
            let merged = decoded.width.merge(vcpu.register(ACCUMULATOR), value);
            vcpu.set_register(ACCUMULATOR, merged);
            vcpu.set_flags(flags);
        }
    }
    Ok(())
}

/// BT, BTS, BTR and BTC. A bit number in a register is signed and selects memory beyond the operand; an immediate one is taken modulo the
/// operand's size.
fn execute_bit<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, exit: u64, bit: Bit) -> Result<(), Fault> {
    let width = decoded.width;
    let number = decoded.source(vcpu);
    let mut offset = decoded.offset(vcpu);
    if !matches!(decoded.source, Source::Immediate(_)) {
        let operands = width.sign_extend(number) as i64 >> width.bits().trailing_zeros();
        offset = offset.wrapping_add((operands as u64).wrapping_mul(width.bytes())) & decoded.address_width.mask();
    }
    let one = 1 << (number & u64::from(width.bits() - 1));
    let flags_for = |vcpu: &V, value: u64| vcpu.flags() & !CF | if value & one != 0 { CF } else { 0 };
    let change: fn(u64, u64) -> u64 = match bit {
        Bit::Test => {
            let place = decoded.place(vcpu, offset, exit, false)?;
            let value = decoded.read(vcpu, place, Intent::Use)?;
            let flags = flags_for(vcpu, value);
            vcpu.set_flags(flags);
            return Ok(());
        }
        Bit::Set => |value, one| value | one,
        Bit::Reset => |value, one| value & !one,
        Bit::Complement => |value, one| value ^ one,
    };
    modify_at(decoded, vcpu, offset, exit, |vcpu, value| (change(value, one), Effect::Flags(flags_for(vcpu, value))))
}
