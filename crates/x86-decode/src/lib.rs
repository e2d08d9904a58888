//! The x86 instruction emulator, for instructions that access devices, with a cache of decoded instructions.
//!
//! An exit for a device access reports the guest-physical address and little more. The hypervisor fetches the instruction through the
//! guest's tables, decodes it, and performs its effects. Fetching and decoding are cached:
//!
//! - [`Code`] locates the instruction: linear address, translation, code size.
//! - [`cache`] returns its [`Decoded`] form, from a cache kept coherent by one of two schemes.
//! - [`Decoded::fast_path`] is the fast path for the instructions that drivers use most.
//! - [`execute`] performs any instruction on a [`Vcpu`], with the architecture's flags and faults.
//!
//! Emulated are these instructions, with an operand in memory or on a stack, in every width, direction, addressing form and code size:
//!
//! - MOV, also from and to segment registers, MOVZX, MOVSX, MOVSXD, MOVNTI, MOVBE, CMOVcc, SETcc, XCHG, XADD, CMPXCHG, CMPXCHG8B and
//!   CMPXCHG16B, XLAT, PUSH, POP, PUSHF, POPF, PUSHA, POPA, ENTER, LEAVE;
//! - ADD, ADC, SUB, SBB, AND, OR, XOR, CMP, TEST, INC, DEC, NOT, NEG, MUL, IMUL, DIV, IDIV, shifts, rotates, SHLD, SHRD, BT, BTS, BTR, BTC,
//!   BSF, BSR, TZCNT, LZCNT, POPCNT;
//! - MOVS, STOS, LODS, CMPS, SCAS, INS, OUTS, alone and repeated;
//! - JMP, CALL and RET, also to another code segment of the same privilege;
//! - moves of MMX, SSE and AVX registers: MOVD, MOVQ, MOVNTQ, MOVUPS, MOVAPS and their kin, MOVSS, MOVSD, the halves
//!   (MOVLPS, MOVHPS, ...), those of VEX prefixes with 128 and 256 bits; and of such registers PAND, PANDN, POR, PXOR
//!   (and as ANDPS, ...), PADD, PSUB, PCMPEQ, PCMPGT of each width, PMINUB, PMAXUB, PMINSW, PMAXSW;
//! - FNSTCW, FLDCW, FNSTSW, STMXCSR, LDMXCSR;
//! - LDS, LES, LFS, LGS, LSS, LLDT, LTR, SLDT, STR, LGDT, LIDT, SGDT, SIDT, LMSW, SMSW; CLFLUSH, CLFLUSHOPT and CLWB (without effect).
//!
//! Any other instruction is [`Refusal::Unsupported`]. An instruction that accesses no memory cannot be the one that exited:
//! [`Refusal::Changed`].
//!
//! [`task`] performs hardware task switches, which VMX leaves to the hypervisor. [`Event`] and [`follow`] resolve faults during event
//! delivery.
//!
//! # Heap
//! The decoder, crate iced-x86, builds its tables on the heap at its first use. A program without a heap provides a bump allocator of
//! [`DECODER_HEAP`] bytes, which need not free, and calls [`prepare`] at boot; nothing is allocated afterwards.
//!
//! # The caller's duties
//! After [`Outcome::Complete`] the caller advances RIP by [`Decoded::len`] (truncated to the code size), ends the interrupt shadow, and
//! makes a debug exception pending if RFLAGS.TF is set. Protection keys and data breakpoints are not modelled.
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
mod fast_form;
mod fast_path;
mod fault;
mod flags;
mod lower;
mod multiply;
mod names;
mod operand;
mod operation;
mod outcome;
mod registers;
mod rflags;
mod segment;
mod selector;
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
pub use decoded::Decoded;
pub use descriptor::Descriptor;
pub use event::{Event, Exception, follow};
pub use execute::execute;
pub use fast_path::FastAccess;
pub use fault::Fault;
pub use lower::{Intercepted, Kind, MAX_LENGTH, Undecoded, decode, prepare};
pub use names::{Control, SegmentName, SelectorName, StateWord, SystemSegment, TableName};
pub use operand::{alignment_fault, device_parts};
pub use outcome::Outcome;
pub use registers::{Extent, OtherRegisters};
pub use segment::Segment;
pub use vcpu::{Intent, Vcpu};
pub use width::{CodeSize, Width};

/// Upper bound of the heap that the decoder's tables take, in bytes, if nothing is freed.
pub const DECODER_HEAP: usize = 256 << 10;
