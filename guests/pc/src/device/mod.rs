//! Instructions on device memory must have the same effects as on RAM: emulation must equal the processor.

mod agrees;
mod code;
mod end;
mod faults;
mod flags;
pub mod memory;
mod run;
mod stack;
mod system;

use crate::emulator::tables::{PAGE, Place, Root, WINDOW, map_to, write};
use crate::tests::test::{On, Test, check};
use agrees::agrees;
use code::put;
use flags::{ALL_FLAGS, CF, DF, NO_AF, OF, ZF};
use memory::{DEVICE, fill, ram, same};
use run::Block;

/// All of them, in order.
pub const ALL: &[Test] = &[
    ("device_instructions", On::Stile, instructions),
    ("device_vectors", On::Stile, vectors),
    ("device_strings", On::Stile, strings),
    ("device_next_to_memory", On::Stile, next_to_memory),
    ("device_end_of_memory", On::Stile, end::of_memory),
    ("device_steps", On::Stile, steps),
    ("device_stack", On::Stile, stack::all),
    ("device_stack_of_flags", On::Stile, stack::steps),
    ("device_selectors", On::Stile, system::selectors),
    ("device_tables", On::Stile, system::tables),
    ("device_machine_status", On::Stile, system::machine_status),
    ("device_far_jump", On::Stile, system::far_jump),
    ("device_faults", On::Stile, faults::all),
];

/// All with [RDI]: and the status flags that are defined.
const INSTRUCTIONS: &[(&[u8], u64)] = &[
    // SHL, SHR, SAR, ROL, RCR by 3, by CL and by 1, of each width.
    (&[0xc1, 0x27, 3], NO_AF & !OF),
    (&[0x48, 0xd3, 0x2f], NO_AF & !OF),
    (&[0x66, 0xd1, 0x3f], NO_AF),
    (&[0xd2, 0x07], CF),
    (&[0xd1, 0x1f], CF | OF),
    // SHLD by 3, SHRD by CL.
    (&[0x0f, 0xa4, 0x07, 3], NO_AF & !OF),
    (&[0x48, 0x0f, 0xad, 0x07], NO_AF & !OF),
    // MUL, IMUL of one, two and three operands, DIV, IDIV.
    (&[0xf6, 0x27], CF | OF),
    (&[0x48, 0xf7, 0x27], CF | OF),
    (&[0xf7, 0x2f], CF | OF),
    (&[0x0f, 0xaf, 0x07], CF | OF),
    (&[0x48, 0x69, 0x07, 0x78, 0x56, 0x34, 0x12], CF | OF),
    (&[0x66, 0x6b, 0x07, 0xfd], CF | OF),
    (&[0x48, 0xf7, 0x37], 0),
    (&[0x48, 0xf7, 0x3f], 0),
    // CMPXCHG8B, CMPXCHG16B, with LOCK; BSF, BSR; SETNE, SETB; CMOVE, CMOVNE; MOVBE.
    (&[0xf0, 0x0f, 0xc7, 0x0f], ALL_FLAGS),
    (&[0xf0, 0x48, 0x0f, 0xc7, 0x0f], ALL_FLAGS),
    (&[0x0f, 0xbc, 0x07], ZF),
    (&[0x48, 0x0f, 0xbd, 0x07], ZF),
    (&[0x0f, 0x95, 0x07], ALL_FLAGS),
    (&[0x0f, 0x92, 0x07], ALL_FLAGS),
    (&[0x0f, 0x44, 0x07], ALL_FLAGS),
    (&[0x48, 0x0f, 0x45, 0x07], ALL_FLAGS),
    (&[0x0f, 0x38, 0xf0, 0x07], ALL_FLAGS),
    (&[0x66, 0x0f, 0x38, 0xf1, 0x07], ALL_FLAGS),
    // ADD, XADD, NEG, ADC.
    (&[0x48, 0x01, 0x07], ALL_FLAGS),
    (&[0x0f, 0xc1, 0x07], ALL_FLAGS),
    (&[0xf6, 0x1f], ALL_FLAGS),
    (&[0x11, 0x07], ALL_FLAGS),
    // PUSH and POP of memory: the stack is RAM.
    (&[0xff, 0x37, 0x8f, 0x47, 0x20], ALL_FLAGS),
    // PUSH RBX; MOV RBX, RDI; XLAT; POP RBX. CLFLUSH.
    (&[0x53, 0x48, 0x89, 0xfb, 0xd7, 0x5b], ALL_FLAGS),
    (&[0x0f, 0xae, 0x3f], ALL_FLAGS),
    // FNINIT; FNSTCW [RDI]; FNSTSW [RDI + 2]; STMXCSR [RDI + 4]; XOR byte [RDI + 1], 3; FLDCW [RDI]; FNSTCW [RDI + 8];
    // LDMXCSR [RDI + 4]; FNINIT.
    (
        &[
            0xdb, 0xe3, 0xd9, 0x3f, 0xdd, 0x7f, 2, 0x0f, 0xae, 0x5f, 4, 0x80, 0x77, 1, 3, 0xd9, 0x2f, 0xd9, 0x7f, 8, 0x0f, 0xae, 0x57, 4,
            0xdb, 0xe3,
        ],
        NO_AF,
    ),
];

fn instructions(_: u64) -> Result<(), &'static str> {
    run::turn_vectors_on();
    let small = Block { rcx: 45, rax: 0x1234, ..Block::new() };
    for (instruction, flags) in INSTRUCTIONS {
        for before in [Block::new(), Block { flags: 2 | CF | ZF, ..small }] {
            if !agrees(instruction, *flags, &before, false) {
                crate::console::println!("it is {instruction:02x?}");
                return Err("a device's operand makes it another");
            }
        }
    }
    check!(agrees(&[0x0f, 0xbb, 0x0f], CF, &small, false), "BTC of a bit beyond the operand");
    // The comparison value of CMPXCHG8B and CMPXCHG16B.
    let word = |n: u64| (0..8).fold(0, |word, i| word | u64::from(((n + i + 64) * 37 + 11) as u8) << (8 * i));
    let equal = Block { rax: word(0), rdx: word(0) >> 32, ..Block::new() };
    check!(agrees(&[0x0f, 0xc7, 0x0f], ALL_FLAGS, &equal, false), "CMPXCHG8B that finds what it expects");
    let equal = Block { rax: word(0), rdx: word(8), ..Block::new() };
    check!(agrees(&[0x48, 0x0f, 0xc7, 0x0f], ALL_FLAGS, &equal, false), "CMPXCHG16B that finds what it expects");
    Ok(())
}

/// Loads, stores and arithmetic of XMM1 and MM1.
const SSE: &[&[u8]] = &[
    &[0x0f, 0x10, 0x0f],
    &[0x0f, 0x11, 0x4f, 0x03],
    &[0x0f, 0x28, 0x0f],
    &[0x66, 0x0f, 0x29, 0x0f],
    &[0xf3, 0x0f, 0x6f, 0x4f, 0x05],
    &[0x66, 0x0f, 0x7f, 0x0f],
    &[0x66, 0x0f, 0xe7, 0x0f],
    &[0xf3, 0x0f, 0x10, 0x0f],
    &[0xf2, 0x0f, 0x11, 0x0f],
    &[0x0f, 0x12, 0x0f],
    &[0x66, 0x0f, 0x16, 0x0f],
    &[0x0f, 0x17, 0x0f],
    &[0x66, 0x0f, 0x6e, 0x0f],
    &[0x66, 0x48, 0x0f, 0x7e, 0x0f],
    &[0xf3, 0x0f, 0x7e, 0x0f],
    &[0x0f, 0x6f, 0x0f],
    &[0x0f, 0x7f, 0x0f],
    &[0x0f, 0x6e, 0x0f],
    &[0x0f, 0xe7, 0x0f],
    // PAND, PXOR, PADDD, PCMPEQB, PMINUB, ANDNPS; of MMX PADDB and PCMPGTW.
    &[0x66, 0x0f, 0xdb, 0x0f],
    &[0x66, 0x0f, 0xef, 0x0f],
    &[0x66, 0x0f, 0xfe, 0x0f],
    &[0x66, 0x0f, 0x74, 0x0f],
    &[0x66, 0x0f, 0xda, 0x0f],
    &[0x0f, 0x55, 0x0f],
    &[0x0f, 0xfc, 0x0f],
    &[0x0f, 0x65, 0x0f],
];

/// With VEX prefixes, of 128 and 256 bits.
const AVX: &[&[u8]] = &[
    &[0xc5, 0xfa, 0x6f, 0x0f],
    &[0xc5, 0xfe, 0x6f, 0x4f, 0x07],
    &[0xc5, 0xfe, 0x7f, 0x0f],
    &[0xc5, 0xfc, 0x28, 0x0f],
    &[0xc5, 0xf8, 0x11, 0x0f],
    &[0xc5, 0xf9, 0x6e, 0x0f],
    &[0xc4, 0xe1, 0xf9, 0x7e, 0x0f],
    // VMOVHPS XMM1, XMM2, [RDI] would use XMM2's value; this uses XMM1's own.
    &[0xc5, 0xf0, 0x16, 0x0f],
    // VPXOR, VPSUBQ and VANDPS of XMM1 or YMM1 with itself.
    &[0xc5, 0xf1, 0xef, 0x4f, 0x05],
    &[0xc5, 0xf5, 0xfb, 0x4f, 0x05],
    &[0xc5, 0xf4, 0x54, 0x0f],
];

fn vectors(_: u64) -> Result<(), &'static str> {
    let avx = run::turn_vectors_on();
    for instruction in SSE.iter().chain(AVX.iter().filter(|_| avx)) {
        if !agrees(instruction, ALL_FLAGS, &Block::new(), avx) {
            crate::console::println!("it is {instruction:02x?}");
            return Err("a device's operand makes it another");
        }
    }
    Ok(())
}

/// With equal RSI and RDI: MOVS, LODS, SCAS, CMPS, STOS, with each repeat prefix and width, up and down.
fn strings(_: u64) -> Result<(), &'static str> {
    for opcode in [0xa4, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf] {
        for flags in [2, 2 | DF] {
            for (rax, rcx) in [(0x4b, 5), (0x4b, 0), (0x4b4b_4b4b_4b4b_4b4b, 7)] {
                let before = Block { rax, rcx, flags, ..Block::new() };
                let right = [&[opcode][..], &[0x48, opcode], &[0xf3, opcode], &[0xf2, 0x66, opcode]]
                    .iter()
                    .all(|instruction| agrees(instruction, ALL_FLAGS, &before, false));
                if !right {
                    crate::console::println!("it is {opcode:02x} with {rcx} and {flags:x}");
                    return Err("a device's operand makes it another");
                }
            }
        }
    }
    // Across pages of the device, more elements than per exit; then a comparison that ends early.
    fill(DEVICE, 3000);
    let mut block = Block { rsi: DEVICE, rdi: DEVICE + 3500, rcx: 3000, ..Block::new() };
    block.run(put(&[0xf3, 0xa4]), false);
    check!((block.rcx, block.rsi, block.rdi) == (0, DEVICE + 3000, DEVICE + 6500), "REP MOVS of many does not end");
    check!(same(DEVICE, DEVICE + 3500, 3000), "REP MOVS of many moves something else");
    write(DEVICE + 3500 + 1234, &[0]);
    let mut block = Block { rsi: DEVICE, rdi: DEVICE + 3500, rcx: 3000, ..Block::new() };
    block.run(put(&[0xf3, 0xa6]), false);
    check!((block.rcx, block.rsi) == (3000 - 1235, DEVICE + 1235), "REPE CMPS does not end where the difference is");
    check!(block.flags & ZF == 0, "REPE CMPS leaves another flag");
    Ok(())
}

/// An operand that begins in RAM and ends in a device, and vice versa.
fn next_to_memory(_: u64) -> Result<(), &'static str> {
    let avx = run::turn_vectors_on();
    for places in [
        [Place::Frame(1), Place::Device(DEVICE)],
        [Place::Device(DEVICE), Place::Frame(1)],
        [Place::Device(DEVICE), Place::Device(DEVICE + PAGE)],
    ] {
        for (page, place) in places.iter().enumerate() {
            map_to(Root::First, 2 + page as u64, Some(*place));
        }
        let wide: &[u8] = if avx { &[0xc5, 0xfe, 0x7f, 0x0f, 0xc5, 0xfe, 0x6f, 0x4f, 0x01] } else { &[0x0f, 0x11, 0x0f] };
        // MOV, ADD, MOVUPS, a store and a load of 32 bytes, CMPXCHG8B, MOVS.
        let all = [
            &[0x48, 0x89, 0x07][..],
            &[0x48, 0x01, 0x07],
            &[0x0f, 0x11, 0x0f, 0x0f, 0x10, 0x4f, 0x03],
            wide,
            &[0x0f, 0xc7, 0x0f],
            &[0x48, 0xa5],
        ];
        for instruction in all {
            let code = put(instruction);
            for offset in 1..8 {
                let at = WINDOW + 3 * PAGE - offset;
                let mut blocks = [Block::new(); 2];
                for (block, base) in blocks.iter_mut().zip([ram() + PAGE - offset, at]) {
                    fill(base - 64, 128);
                    (block.rdi, block.rsi) = (base, base + 8);
                    block.run(code, avx);
                    block.rdi -= base;
                    block.rsi -= base;
                }
                if blocks[0] != blocks[1] || !same(ram() + PAGE - offset - 64, at - 64, 128) {
                    crate::console::println!("it is {instruction:02x?} at {offset}");
                    return Err("an operand in RAM and a device");
                }
            }
        }
    }
    for page in 2..4 {
        map_to(Root::First, page, Some(Place::Frame(page as usize)));
    }
    Ok(())
}

/// Single steps stop after each element of a repetition on a device, as they do on RAM.
fn steps(_: u64) -> Result<(), &'static str> {
    const DEBUG: u8 = 1;
    // PUSHF, OR, POPF enable single steps; REP STOSB; PUSHF, AND, POPF disable them.
    let code = put(&[0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d, 0xf3, 0xaa, 0x9c, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, 0x9d]);
    let mut counts = [0; 2];
    for (count, base) in counts.iter_mut().zip([ram(), DEVICE]) {
        crate::exception::take(DEBUG);
        let mut block = Block { rdi: base, rcx: 9, ..Block::new() };
        block.run(code, false);
        check!(block.rcx == 0 && block.rdi == base + 9, "REP STOS with steps does not end");
        *count = crate::exception::take(DEBUG);
    }
    check!(counts[0] > 9 && counts[0] == counts[1], "another number of steps");
    Ok(())
}
