//! Moves and arithmetic of vector and MMX registers ("Exception Conditions" of their classes; "MMX Instructions").

use crate::combine::combine;
use crate::decoded::Decoded;
use crate::operation::{Combine, Operation, Part, Source, Vector};
use crate::{Control, Extent, Fault, Intent, Vcpu, Width};

/// Bits of CR0.
const PE: u64 = 1;
const EM: u64 = 1 << 2;
const TS: u64 = 1 << 3;
/// Bits of CR4.
const OSFXSR: u64 = 1 << 9;
const OSXSAVE: u64 = 1 << 18;
/// SSE and AVX state in XCR0.
const AVX_STATE: u64 = 0b110;
/// RFLAGS.VM: virtual-8086 mode.
const VM: u64 = 1 << 17;

/// Checks that system software has enabled the instruction.
fn check(vector: &Vector, vcpu: &impl Vcpu) -> Result<(), Fault> {
    if !vector.vex {
        return check_sse(vcpu);
    }
    let (cr0, cr4) = (vcpu.control(Control::Cr0), vcpu.control(Control::Cr4));
    let state = cr4 & OSXSAVE != 0 && vcpu.control(Control::Xcr0) & AVX_STATE == AVX_STATE;
    available(state && cr0 & PE != 0 && vcpu.flags() & VM == 0, cr0)
}

/// Checks that system software has enabled SSE instructions (without VEX prefix).
pub(crate) fn check_sse(vcpu: &impl Vcpu) -> Result<(), Fault> {
    let cr0 = vcpu.control(Control::Cr0);
    available(vcpu.control(Control::Cr4) & OSFXSR != 0 && cr0 & EM == 0, cr0)
}

/// #UD if the instruction is not enabled, #NM if CR0.TS is set.
fn available(allowed: bool, cr0: u64) -> Result<(), Fault> {
    match (allowed, cr0 & TS != 0) {
        (false, _) => Err(Fault::InvalidOpcode),
        (true, true) => Err(Fault::DeviceNotAvailable),
        (true, false) => Ok(()),
    }
}

/// Executes a move or packed arithmetic.
pub(crate) fn execute(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    match (decoded.operation, decoded.source) {
        (Operation::VectorLoad, Source::Vector(vector)) => load(decoded, &vector, vcpu, exit),
        (Operation::VectorStore, Source::Vector(vector)) => store(decoded, &vector, vcpu, exit),
        (Operation::MmxLoad, Source::Mmx(register)) => load_mmx(decoded, register, vcpu, exit),
        (Operation::Combine(how), Source::Vector(vector)) => combine_vector(decoded, how, &vector, vcpu, exit),
        (Operation::Combine(how), Source::Mmx(register)) => combine_mmx(decoded, how, register, vcpu, exit),
        (_, Source::Mmx(register)) => store_mmx(decoded, register, vcpu, exit),
        _ => Err(Fault::InvalidOpcode),
    }
}

/// Reads the memory operand, zero-extended.
fn operand(decoded: &Decoded, vector: &Vector, vcpu: &mut impl Vcpu, exit: u64) -> Result<[u64; 4], Fault> {
    check(vector, vcpu)?;
    let mut bytes = [0; 32];
    let place = decoded.place_aligned(vcpu, exit, vector.aligned, false)?;
    let length = decoded.bytes() as usize;
    decoded.read_bytes(vcpu, place, bytes.get_mut(..length).unwrap_or_default(), Intent::Use)?;
    Ok(words(&bytes))
}

/// Returns the effect of a write on the register's other bits.
const fn extent(vector: &Vector) -> Extent {
    match vector.part {
        Part::Wide => Extent::Wide,
        _ if vector.vex => Extent::LowAlone,
        _ => Extent::Low,
    }
}

fn load(decoded: &Decoded, vector: &Vector, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let [a, b, c, d] = operand(decoded, vector, vcpu, exit)?;
    let value = match vector.part {
        Part::Whole | Part::Wide | Part::Low => [a, b, c, d],
        Part::LowHalf => [a, vcpu.vector(vector.other, false)[1], 0, 0],
        Part::HighHalf => [vcpu.vector(vector.other, false)[0], a, 0, 0],
    };
    vcpu.set_vector(vector.register, value, extent(vector));
    Ok(())
}

fn combine_vector(decoded: &Decoded, how: Combine, vector: &Vector, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let mut value = operand(decoded, vector, vcpu, exit)?;
    let left = vcpu.vector(vector.other, vector.part == Part::Wide);
    for (right, left) in value.iter_mut().zip(left) {
        *right = combine(how, left, *right);
    }
    vcpu.set_vector(vector.register, value, extent(vector));
    Ok(())
}

fn store(decoded: &Decoded, vector: &Vector, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check(vector, vcpu)?;
    let place = decoded.place_aligned(vcpu, exit, vector.aligned, true)?;
    let mut value = vcpu.vector(vector.register, vector.part == Part::Wide);
    if vector.part == Part::HighHalf {
        value[0] = value[1];
    }
    let mut bytes = [0; 32];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(value) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    decoded.write_bytes(vcpu, place, bytes.get(..decoded.bytes() as usize).unwrap_or_default())
}

fn words(bytes: &[u8; 32]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    }
    words
}

/// Checks that system software has enabled MMX instructions, and that no x87 exception is pending.
pub(crate) fn check_mmx(vcpu: &impl Vcpu) -> Result<(), Fault> {
    let cr0 = vcpu.control(Control::Cr0);
    if cr0 & EM != 0 {
        Err(Fault::InvalidOpcode)
    } else if cr0 & TS != 0 {
        Err(Fault::DeviceNotAvailable)
    } else if vcpu.floating_point_error() {
        Err(Fault::FloatingPoint)
    } else {
        Ok(())
    }
}

fn mmx_operand(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<u64, Fault> {
    check_mmx(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    decoded.read(vcpu, place, Intent::Use)
}

fn load_mmx(decoded: &Decoded, register: u8, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let value = mmx_operand(decoded, vcpu, exit)?;
    vcpu.set_mmx(register, value);
    Ok(())
}

fn combine_mmx(decoded: &Decoded, how: Combine, register: u8, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let right = mmx_operand(decoded, vcpu, exit)?;
    let left = vcpu.mmx(register);
    vcpu.set_mmx(register, combine(how, left, right));
    Ok(())
}

fn store_mmx(decoded: &Decoded, register: u8, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check_mmx(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    if let crate::operand::Place::Linear(linear) = place {
        // Check the store before x87 state changes.
        vcpu.check_store(linear, decoded.bytes())?;
    }
    let value = vcpu.mmx(register);
    decoded.write(vcpu, place, value)
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;

/// CMPXCHG8B and CMPXCHG16B.
pub(crate) fn compare_exchange(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    const ZF: u64 = 1 << 6;
    let width = decoded.width;
    let place = decoded.place_aligned(vcpu, exit, width == Width::Qword, true)?;
    let mut bytes = [0; 32];
    let length = decoded.bytes() as usize;
    let operand = bytes.get_mut(..length).unwrap_or_default();
    decoded.read_bytes(vcpu, place, operand, Intent::Modify)?;
    let whole = |low: u64, high: u64| u128::from(high & width.mask()) << width.bits() | u128::from(low & width.mask());
    let old = operand.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte));
    let equal = old == whole(vcpu.register(RAX), vcpu.register(RDX));
    let new = if equal { whole(vcpu.register(RBX), vcpu.register(RCX)) } else { old };
    decoded.write_bytes(vcpu, place, new.to_le_bytes().get(..length).unwrap_or_default())?;
    let flags = vcpu.flags() & !ZF | if equal { ZF } else { 0 };
    vcpu.set_flags(flags);
    if !equal {
        vcpu.set_register(RAX, old as u64 & width.mask());
        vcpu.set_register(RDX, (old >> width.bits()) as u64 & width.mask());
    }
    Ok(())
}
