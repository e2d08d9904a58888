//! Doing what an instruction does.

use crate::alu::{self, CF};
use crate::decoded::{Alu, Bit, Decoded, Operation, Source};
use crate::{Fault, Intent, Vcpu, stack, string};

/// What became of an instruction that did not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done: the next one follows.
    Complete,
    /// A repeated string instruction has more to do. The registers say how far it is: RIP stays, interrupts can be
    /// taken, and the guest runs it again.
    Partial,
}

/// RAX.
const ACCUMULATOR: u8 = 0;

/// Emulates an instruction whose access to the guest-physical address `exit` ended in an exit.
///
/// Reads and writes of one locked instruction are two calls: a device of which more than one processor does that must
/// be locked around it.
pub fn execute(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let width = decoded.width;
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
        Operation::LoadSigned => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
            let value = decoded.read(vcpu, place, Intent::Use)?;
            decoded.set_source(vcpu, decoded.register_width, width.sign_extend(value));
        }
        Operation::ToRegister(alu) => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
            let right = decoded.read(vcpu, place, Intent::Use)?;
            let (result, flags) = alu::binary(alu, decoded.source(vcpu), right, width, vcpu.flags());
            if alu != Alu::Cmp {
                decoded.set_source(vcpu, width, result);
            }
            vcpu.set_flags(flags);
        }
        Operation::ToMemory(alu) if matches!(alu, Alu::Cmp | Alu::Test) => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
            let left = decoded.read(vcpu, place, Intent::Use)?;
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
                // The processor writes in this case, too: what it read.
                (value, Effect::AccumulatorAndFlags(value, flags))
            }
        })?,
        Operation::StoreString => return string::store(decoded, vcpu),
        Operation::MoveString => return string::copy(decoded, vcpu),
        Operation::InString => return string::input(decoded, vcpu),
        Operation::OutString => return string::output(decoded, vcpu),
        Operation::PushMemory => {
            let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
            let value = decoded.read(vcpu, place, Intent::Use)?;
            stack::push(decoded, vcpu, value)?;
        }
        Operation::PushSource => stack::push(decoded, vcpu, decoded.source(vcpu))?,
        Operation::PopMemory => stack::pop_to_memory(decoded, vcpu, exit)?,
        Operation::PopRegister => stack::pop_to_register(decoded, vcpu)?,
    }
    Ok(Outcome::Complete)
}

/// What a read-modify-write instruction changes beside memory, once memory is written.
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

/// BT, BTS, BTR and BTC. A bit number in a register reaches beyond the operand, to both sides; an immediate one is taken
/// modulo the operand's bits.
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
