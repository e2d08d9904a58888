//! Instructions of x86-64 guests that touch devices: found, decoded, remembered and emulated.
//!
//! When a guest's access to a device ends in an exit, the processor tells the guest-physical address and
//! little more. The hypervisor must fetch the instruction through the guest's own tables, decode it, and do
//! what the processor would have done. The first two are worth doing once:
//!
//! - [`Code`] is where the instruction stands: linear address, translation, code size;
//! - [`cache`] gives its [`Decoded`] form, from memory if it can, in two schemes that keep that right;
//! - [`Decoded::quick`] says what the instructions do that drivers use most;
//! - [`execute`] does any to a [`Vcpu`], with the flags and the faults of the architecture.
//!
//! What is emulated, with an operand in memory or on a stack, in every width, direction, addressing form and code size:
//!
//! - MOV, also from and to segment registers, MOVZX, MOVSX, MOVSXD, MOVNTI, MOVBE, CMOVcc, SETcc, XCHG, XADD, CMPXCHG, CMPXCHG8B and
//!   CMPXCHG16B, XLAT, PUSH, POP, PUSHF, POPF, PUSHA, POPA, ENTER, LEAVE;
//! - ADD, ADC, SUB, SBB, AND, OR, XOR, CMP, TEST, INC, DEC, NOT, NEG, MUL, IMUL, DIV, IDIV, shifts, rotates, SHLD, SHRD, BT, BTS, BTR, BTC,
//!   BSF, BSR, TZCNT, LZCNT, POPCNT;
//! - MOVS, STOS, LODS, CMPS, SCAS, INS, OUTS, alone and repeated;
//! - JMP, CALL and RET, also to another code segment of the same privilege;
//! - moves of MMX, SSE and AVX registers: MOVD, MOVQ, MOVNTQ, MOVUPS, MOVAPS and their kin, MOVSS, MOVSD, the halves (MOVLPS, MOVHPS, ...), those
//!   of VEX prefixes with 128 and 256 bits; and of such registers PAND, PANDN, POR, PXOR (and as ANDPS, ...), PADD, PSUB, PCMPEQ, PCMPGT of each
//!   width, PMINUB, PMAXUB, PMINSW, PMAXSW;
//! - FNSTCW, FLDCW, FNSTSW, STMXCSR, LDMXCSR;
//! - LDS and its kin, LLDT, LTR, SLDT, STR, LGDT, LIDT, SGDT, SIDT, LMSW, SMSW; CLFLUSH, CLFLUSHOPT and CLWB, which do nothing.
//!
//! All else is [`Refusal::Unsupported`], but what reaches for no memory at all and so is not what the processor ran: [`Refusal::Changed`].
//!
//! [`task`] switches tasks, which a processor in VMX operation leaves to the hypervisor; [`Event`] and [`follow`] say what becomes of faults on
//! an event's way to its handler.
//!
//! # Memory of the decoder
//! Decoding is done by the crate iced-x86, which builds its tables on the heap when it first decodes. So a program
//! without a heap of its own gives it some by an allocator that need not be able to free, of
//! [`DECODER_HEAP`] bytes, and calls [`prepare`] as it boots; from then on nothing here allocates.
//!
//! # What the caller sees to
//! After [`Outcome::Complete`]: RIP goes on by [`Decoded::len`] (cut to the code size); an interrupt shadow
//! ends; with RFLAGS.TF set, a debug exception is pending. Protection keys and data breakpoints are not looked at.
#![no_std]
#![forbid(unsafe_code)]

mod all_registers;
mod alu;
mod branch;
pub mod cache;
mod code;
mod combine;
mod condition;
mod decoded;
mod descriptor;
mod event;
mod execute;
mod far;
mod flags;
mod lower;
mod multiply;
mod operand;
mod quick;
mod registers;
mod segment;
mod shift;
mod stack;
mod state;
mod string;
mod system;
pub mod task;
mod vcpu;
mod vector;
mod width;

pub use code::{Code, Context, Refusal};
pub use decoded::{Decoded, SelectorName, TableName};
pub use descriptor::{Descriptor, SystemSegment};
pub use event::{Event, Exception, follow};
pub use execute::{Outcome, execute};
pub use lower::{MAX_LENGTH, Undecoded, decode, prepare};
pub use operand::device_parts;
pub use quick::Quick;
pub use registers::{Control, Extent, OtherRegisters};
pub use segment::{Segment, SegmentName};
pub use state::StateWord;
pub use vcpu::{Fault, Intent, Vcpu};
pub use width::{CodeSize, Width};

/// The most bytes of heap that the decoder's tables take, without anything being given back.
pub const DECODER_HEAP: usize = 256 << 10;
