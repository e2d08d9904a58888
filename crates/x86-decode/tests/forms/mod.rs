//! The instructions that are emulated, by opcode, as they are encoded in 64-bit mode.

#[derive(Clone, Copy)]
pub enum Operand {
    /// ModRM with a register.
    Register,
    /// ModRM with more of the opcode.
    Digit(u8),
    /// A register in the opcode's low bits.
    OpcodeRegister,
    /// An address after the opcode.
    Moffs,
    /// None that is encoded.
    Implied,
}

#[derive(Clone, Copy)]
pub enum Imm {
    None,
    Byte,
    /// 16 or 32 bits, by the operand size.
    Full,
    /// ENTER's room and level, both small.
    Frame,
}

/// Contents of a VEX prefix beside registers.
#[derive(Clone, Copy, Default)]
pub struct Vex {
    pub w: bool,
    /// 256 bits.
    pub wide: bool,
    /// The prefix that it stands for, by its number.
    pub pp: u8,
    /// The map of opcodes.
    pub map: u8,
    /// It names a second register.
    pub two: bool,
}

/// Special properties of an instruction's operands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// Shifts and rotates, of which the count decides what flags are undefined.
    Shift,
    /// Double shifts, of 16 bits by at most 16.
    DoubleShift,
    Divide,
    /// It compares with RDX and RAX.
    Pair,
    /// The address is that of the operand with AL added.
    Translate,
}

#[derive(Clone, Copy)]
pub struct Form {
    pub name: &'static str,
    pub opcode: &'static [u8],
    pub operand: Operand,
    pub imm: Imm,
    /// Flags that it leaves undefined.
    pub undefined: u64,
    /// 66 and REX.W have a meaning.
    pub operand_size: bool,
    pub lock: bool,
    /// A string instruction.
    pub string: bool,
    pub stack: bool,
    pub bit_string: bool,
    pub compares: bool,
    pub kind: Kind,
    /// A prefix that is part of the opcode.
    pub prefix: Option<u8>,
    /// REX.W is part of the opcode.
    pub rex_w: bool,
    pub vex: Option<Vex>,
    /// Alignment of the operand's address.
    pub aligned: u64,
}

const AF: u64 = 1 << 4;
/// All that BT leaves undefined.
const BT: u64 = 1 << 2 | AF | 1 << 7 | 1 << 11;

const PLAIN: Form = Form {
    name: "",
    opcode: &[],
    operand: Operand::Register,
    imm: Imm::None,
    undefined: 0,
    operand_size: true,
    lock: false,
    string: false,
    stack: false,
    bit_string: false,
    compares: false,
    kind: Kind::Plain,
    prefix: None,
    rex_w: false,
    vex: None,
    aligned: 1,
};

/// Each with its opcodes for m8,r8; m,r; r8,m8; r,m, in the order of the digits of 80, 81 and 83.
const ALU: [(&str, [&[u8]; 4]); 8] = [
    ("add", [&[0x00], &[0x01], &[0x02], &[0x03]]),
    ("or", [&[0x08], &[0x09], &[0x0a], &[0x0b]]),
    ("adc", [&[0x10], &[0x11], &[0x12], &[0x13]]),
    ("sbb", [&[0x18], &[0x19], &[0x1a], &[0x1b]]),
    ("and", [&[0x20], &[0x21], &[0x22], &[0x23]]),
    ("sub", [&[0x28], &[0x29], &[0x2a], &[0x2b]]),
    ("xor", [&[0x30], &[0x31], &[0x32], &[0x33]]),
    ("cmp", [&[0x38], &[0x39], &[0x3a], &[0x3b]]),
];

fn moves() -> Vec<Form> {
    let byte = Form { operand_size: false, ..PLAIN };
    vec![
        Form { name: "mov m8, r8", opcode: &[0x88], ..byte },
        Form { name: "mov m, r", opcode: &[0x89], ..PLAIN },
        Form { name: "mov r8, m8", opcode: &[0x8a], ..byte },
        Form { name: "mov r, m", opcode: &[0x8b], ..PLAIN },
        Form { name: "mov m8, i", opcode: &[0xc6], operand: Operand::Digit(0), imm: Imm::Byte, ..byte },
        Form { name: "mov m, i", opcode: &[0xc7], operand: Operand::Digit(0), imm: Imm::Full, ..PLAIN },
        Form { name: "mov al, moffs", opcode: &[0xa0], operand: Operand::Moffs, ..byte },
        Form { name: "mov rax, moffs", opcode: &[0xa1], operand: Operand::Moffs, ..PLAIN },
        Form { name: "mov moffs, al", opcode: &[0xa2], operand: Operand::Moffs, ..byte },
        Form { name: "mov moffs, rax", opcode: &[0xa3], operand: Operand::Moffs, ..PLAIN },
        Form { name: "movzx r, m8", opcode: &[0x0f, 0xb6], ..PLAIN },
        Form { name: "movzx r, m16", opcode: &[0x0f, 0xb7], ..PLAIN },
        Form { name: "movsx r, m8", opcode: &[0x0f, 0xbe], ..PLAIN },
        Form { name: "movsx r, m16", opcode: &[0x0f, 0xbf], ..PLAIN },
        Form { name: "movsxd r, m32", opcode: &[0x63], ..PLAIN },
        Form { name: "xchg m8, r8", opcode: &[0x86], lock: true, ..byte },
        Form { name: "xchg m, r", opcode: &[0x87], lock: true, ..PLAIN },
        Form { name: "xadd m8, r8", opcode: &[0x0f, 0xc0], lock: true, ..byte },
        Form { name: "xadd m, r", opcode: &[0x0f, 0xc1], lock: true, ..PLAIN },
        Form { name: "cmpxchg m8, r8", opcode: &[0x0f, 0xb0], lock: true, compares: true, ..byte },
        Form { name: "cmpxchg m, r", opcode: &[0x0f, 0xb1], lock: true, compares: true, ..PLAIN },
        Form { name: "test m8, r8", opcode: &[0x84], undefined: AF, ..byte },
        Form { name: "test m, r", opcode: &[0x85], undefined: AF, ..PLAIN },
        Form { name: "test m8, i", opcode: &[0xf6], operand: Operand::Digit(0), imm: Imm::Byte, undefined: AF, ..byte },
        Form { name: "test m, i", opcode: &[0xf7], operand: Operand::Digit(0), imm: Imm::Full, undefined: AF, ..PLAIN },
    ]
}

fn arithmetic() -> Vec<Form> {
    let mut forms = Vec::new();
    for (digit, (name, opcodes)) in ALU.into_iter().enumerate() {
        let undefined = if matches!(name, "or" | "and" | "xor") { AF } else { 0 };
        let common = Form { name, undefined, ..PLAIN };
        for (i, opcode) in opcodes.into_iter().enumerate() {
            let lock = i < 2 && name != "cmp";
            forms.push(Form { opcode, operand_size: i % 2 == 1, lock, ..common });
        }
        let operand = Operand::Digit(digit as u8);
        let lock = name != "cmp";
        forms.push(Form { opcode: &[0x80], operand, imm: Imm::Byte, operand_size: false, lock, ..common });
        forms.push(Form { opcode: &[0x81], operand, imm: Imm::Full, lock, ..common });
        forms.push(Form { opcode: &[0x83], operand, imm: Imm::Byte, lock, ..common });
    }
    for (name, byte, full, digit) in
        [("not", &[0xf6], &[0xf7], 2), ("neg", &[0xf6], &[0xf7], 3), ("inc", &[0xfe], &[0xff], 0), ("dec", &[0xfe], &[0xff], 1)]
    {
        let common = Form { name, operand: Operand::Digit(digit), lock: true, ..PLAIN };
        forms.push(Form { opcode: byte, operand_size: false, ..common });
        forms.push(Form { opcode: full, ..common });
    }
    forms
}

fn bits() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, opcode, digit) in [("bt", &[0x0f, 0xa3], 4), ("bts", &[0x0f, 0xab], 5), ("btr", &[0x0f, 0xb3], 6), ("btc", &[0x0f, 0xbb], 7)]
    {
        let common = Form { name, undefined: BT, lock: name != "bt", ..PLAIN };
        forms.push(Form { opcode, bit_string: true, ..common });
        forms.push(Form { opcode: &[0x0f, 0xba], operand: Operand::Digit(digit), imm: Imm::Byte, ..common });
    }
    forms
}

fn strings_and_stack() -> Vec<Form> {
    let string = Form { operand: Operand::Implied, string: true, ..PLAIN };
    let stack = Form { stack: true, ..PLAIN };
    vec![
        Form { name: "stosb", opcode: &[0xaa], operand_size: false, ..string },
        Form { name: "stos", opcode: &[0xab], ..string },
        Form { name: "movsb", opcode: &[0xa4], operand_size: false, ..string },
        Form { name: "movs", opcode: &[0xa5], ..string },
        Form { name: "lodsb", opcode: &[0xac], operand_size: false, ..string },
        Form { name: "lods", opcode: &[0xad], ..string },
        Form { name: "scasb", opcode: &[0xae], operand_size: false, compares: true, ..string },
        Form { name: "scas", opcode: &[0xaf], compares: true, ..string },
        Form { name: "cmpsb", opcode: &[0xa6], operand_size: false, compares: true, ..string },
        Form { name: "cmps", opcode: &[0xa7], compares: true, ..string },
        Form { name: "enter", opcode: &[0xc8], imm: Imm::Frame, operand: Operand::Implied, ..stack },
        Form { name: "leave", opcode: &[0xc9], operand: Operand::Implied, ..stack },
        Form { name: "push m", opcode: &[0xff], operand: Operand::Digit(6), ..stack },
        Form { name: "pop m", opcode: &[0x8f], operand: Operand::Digit(0), ..stack },
        Form { name: "push r", opcode: &[0x50], operand: Operand::OpcodeRegister, ..stack },
        Form { name: "pop r", opcode: &[0x58], operand: Operand::OpcodeRegister, ..stack },
        Form { name: "push i", opcode: &[0x68], imm: Imm::Full, operand: Operand::Implied, ..stack },
        Form { name: "push i8", opcode: &[0x6a], imm: Imm::Byte, operand: Operand::Implied, ..stack },
        Form { name: "xlat", opcode: &[0xd7], operand_size: false, operand: Operand::Implied, kind: Kind::Translate, ..PLAIN },
    ]
}

/// Opcodes 0F 40 to 0F 4F, and 0F 90 to 0F 9F.
const CONDITIONS: [[[u8; 2]; 16]; 2] = {
    let mut opcodes = [[[0x0f, 0]; 16]; 2];
    let mut n = 0;
    while n < 16 {
        opcodes[0][n][1] = 0x40 + n as u8;
        opcodes[1][n][1] = 0x90 + n as u8;
        n += 1;
    }
    opcodes
};

fn conditions() -> Vec<Form> {
    let [moves, sets] = const { &CONDITIONS };
    let moves = moves.iter().map(|opcode| Form { name: "cmovcc r, m", opcode, ..PLAIN });
    let sets = sets.iter().map(|opcode| Form { name: "setcc m8", opcode, operand_size: false, ..PLAIN });
    moves.chain(sets).collect()
}

fn shifts() -> Vec<Form> {
    let mut forms = Vec::new();
    for (digit, name) in ["rol", "ror", "rcl", "rcr", "shl", "shr", "sal", "sar"].into_iter().enumerate() {
        let common = Form { name, operand: Operand::Digit(digit as u8), kind: Kind::Shift, ..PLAIN };
        let byte = Form { operand_size: false, ..common };
        forms.extend([
            Form { opcode: &[0xc0], imm: Imm::Byte, ..byte },
            Form { opcode: &[0xc1], imm: Imm::Byte, ..common },
            Form { opcode: &[0xd0], ..byte },
            Form { opcode: &[0xd1], ..common },
            Form { opcode: &[0xd2], ..byte },
            Form { opcode: &[0xd3], ..common },
        ]);
    }
    for (name, by, by_cl) in [("shld", &[0x0f, 0xa4], &[0x0f, 0xa5]), ("shrd", &[0x0f, 0xac], &[0x0f, 0xad])] {
        let common = Form { name, kind: Kind::DoubleShift, ..PLAIN };
        forms.extend([Form { opcode: by, imm: Imm::Byte, ..common }, Form { opcode: by_cl, ..common }]);
    }
    forms
}

const CF: u64 = 1;
const ZF: u64 = 1 << 6;
const OF: u64 = 1 << 11;
const ARITHMETIC: u64 = 0x8d5;

fn multiplications() -> Vec<Form> {
    let product = Form { undefined: ARITHMETIC & !(CF | OF), ..PLAIN };
    let divide = Form { undefined: ARITHMETIC, kind: Kind::Divide, ..PLAIN };
    let byte = Form { operand_size: false, ..product };
    let digit = Operand::Digit;
    vec![
        Form { name: "mul m8", opcode: &[0xf6], operand: digit(4), ..byte },
        Form { name: "mul m", opcode: &[0xf7], operand: digit(4), ..product },
        Form { name: "imul m8", opcode: &[0xf6], operand: digit(5), ..byte },
        Form { name: "imul m", opcode: &[0xf7], operand: digit(5), ..product },
        Form { name: "imul r, m", opcode: &[0x0f, 0xaf], ..product },
        Form { name: "imul r, m, i", opcode: &[0x69], imm: Imm::Full, ..product },
        Form { name: "imul r, m, i8", opcode: &[0x6b], imm: Imm::Byte, ..product },
        Form { name: "div m8", opcode: &[0xf6], operand: digit(6), operand_size: false, ..divide },
        Form { name: "div m", opcode: &[0xf7], operand: digit(6), ..divide },
        Form { name: "idiv m8", opcode: &[0xf6], operand: digit(7), operand_size: false, ..divide },
        Form { name: "idiv m", opcode: &[0xf7], operand: digit(7), ..divide },
    ]
}

fn others() -> Vec<Form> {
    let scan = Form { undefined: ARITHMETIC & !ZF, ..PLAIN };
    let count = Form { prefix: Some(0xf3), undefined: ARITHMETIC & !(ZF | CF), ..PLAIN };
    let digit = Operand::Digit(1);
    vec![
        Form { name: "bsf", opcode: &[0x0f, 0xbc], ..scan },
        Form { name: "bsr", opcode: &[0x0f, 0xbd], ..scan },
        Form { name: "tzcnt", opcode: &[0x0f, 0xbc], ..count },
        Form { name: "lzcnt", opcode: &[0x0f, 0xbd], ..count },
        Form { name: "popcnt", opcode: &[0x0f, 0xb8], undefined: 0, ..count },
        Form { name: "movbe r, m", opcode: &[0x0f, 0x38, 0xf0], ..PLAIN },
        Form { name: "movbe m, r", opcode: &[0x0f, 0x38, 0xf1], ..PLAIN },
        Form { name: "cmpxchg8b", opcode: &[0x0f, 0xc7], operand: digit, operand_size: false, lock: true, kind: Kind::Pair, ..PLAIN },
        Form {
            name: "cmpxchg16b",
            opcode: &[0x0f, 0xc7],
            operand: digit,
            operand_size: false,
            rex_w: true,
            lock: true,
            kind: Kind::Pair,
            aligned: 16,
            ..PLAIN
        },
    ]
}

/// Moves of vector and MMX registers: the prefix, the opcode, and whether the operand must be aligned.
fn vectors(avx: bool) -> Vec<Form> {
    const LOADS_AND_STORES: [(Option<u8>, [u8; 2], bool); 17] = [
        (None, [0x0f, 0x10], false),
        (None, [0x0f, 0x11], false),
        (Some(0x66), [0x0f, 0x10], false),
        (Some(0x66), [0x0f, 0x11], false),
        (None, [0x0f, 0x28], true),
        (None, [0x0f, 0x29], true),
        (Some(0x66), [0x0f, 0x28], true),
        (Some(0x66), [0x0f, 0x29], true),
        (Some(0xf3), [0x0f, 0x6f], false),
        (Some(0xf3), [0x0f, 0x7f], false),
        (Some(0x66), [0x0f, 0x6f], true),
        (Some(0x66), [0x0f, 0x7f], true),
        (None, [0x0f, 0x2b], true),
        (Some(0x66), [0x0f, 0x2b], true),
        (Some(0x66), [0x0f, 0xe7], true),
        (Some(0xf2), [0x0f, 0xf0], false),
        // MOVNTDQA stands in another map: see below.
        (Some(0xf3), [0x0f, 0x10], false),
    ];
    const HALVES: [(Option<u8>, [u8; 2]); 17] = [
        (None, [0x0f, 0x12]),
        (None, [0x0f, 0x13]),
        (Some(0x66), [0x0f, 0x12]),
        (Some(0x66), [0x0f, 0x13]),
        (None, [0x0f, 0x16]),
        (None, [0x0f, 0x17]),
        (Some(0x66), [0x0f, 0x16]),
        (Some(0x66), [0x0f, 0x17]),
        (Some(0xf3), [0x0f, 0x10]),
        (Some(0xf3), [0x0f, 0x11]),
        (Some(0xf2), [0x0f, 0x10]),
        (Some(0xf2), [0x0f, 0x11]),
        (Some(0x66), [0x0f, 0x6e]),
        (Some(0x66), [0x0f, 0x7e]),
        (Some(0xf3), [0x0f, 0x7e]),
        (Some(0x66), [0x0f, 0xd6]),
        (Some(0xf3), [0x0f, 0x11]),
    ];
    let pp = |prefix: Option<u8>| prefix.map_or(0, |prefix| [0x66, 0xf3, 0xf2].iter().position(|p| *p == prefix).unwrap() as u8 + 1);
    let plain = Form { name: "vector", operand_size: false, ..PLAIN };
    let mut forms = vec![Form { opcode: &[0x0f, 0x38, 0x2a], prefix: Some(0x66), aligned: 16, ..plain }];
    for (prefix, opcode, aligned) in const { &LOADS_AND_STORES } {
        let (prefix, aligned) = (*prefix, *aligned);
        forms.push(Form { opcode, prefix, aligned: if aligned { 16 } else { 1 }, ..plain });
        for wide in [false, true] {
            let vex = Vex { wide: wide && opcode[1] != 0x10, pp: pp(prefix), map: 1, ..Vex::default() };
            let size = if wide { 32 } else { 16 };
            forms.push(Form { opcode: &opcode[1..], vex: Some(vex), aligned: if aligned { size } else { 1 }, ..plain });
        }
    }
    for (prefix, opcode) in const { &HALVES } {
        let prefix = *prefix;
        forms.push(Form { opcode, prefix, ..plain });
        let vex = Vex { pp: pp(prefix), map: 1, two: matches!(opcode[1], 0x12 | 0x16), ..Vex::default() };
        forms.push(Form { opcode: &opcode[1..], vex: Some(vex), ..plain });
        if matches!(opcode[1], 0x6e | 0x7e) && prefix == Some(0x66) {
            forms.push(Form { opcode, prefix, rex_w: true, ..plain });
            forms.push(Form { opcode: &opcode[1..], vex: Some(Vex { w: true, ..vex }), ..plain });
        }
    }
    for wide in [false, true] {
        let vex = Vex { wide, pp: 1, map: 2, ..Vex::default() };
        // Of 256 bits it is AVX2's.
        forms.push(Form { opcode: &[0x2a], vex: Some(vex), aligned: if wide { 32 } else { 16 }, ..plain });
    }
    // MMX: MOVD, MOVQ by both opcodes, MOVNTQ.
    for (opcode, rex_w) in [(&[0x0f, 0x6e], false), (&[0x0f, 0x7e], false), (&[0x0f, 0x6e], true), (&[0x0f, 0x7e], true)] {
        forms.push(Form { opcode, rex_w, ..plain });
    }
    for opcode in [&[0x0f, 0x6f], &[0x0f, 0x7f], &[0x0f, 0xe7]] {
        forms.push(Form { opcode, ..plain });
    }
    forms.into_iter().filter(|form| avx || form.vex.is_none()).collect()
}

/// Arithmetic of vector and MMX registers with memory. Each opcode has a form with 66 and one without, which is MMX's,
/// but for the last ones.
fn combinations(avx: bool) -> Vec<Form> {
    const OPCODES: [[u8; 2]; 26] = [
        [0x0f, 0xdb],
        [0x0f, 0xdf],
        [0x0f, 0xeb],
        [0x0f, 0xef],
        [0x0f, 0xfc],
        [0x0f, 0xfd],
        [0x0f, 0xfe],
        [0x0f, 0xd4],
        [0x0f, 0xf8],
        [0x0f, 0xf9],
        [0x0f, 0xfa],
        [0x0f, 0xfb],
        [0x0f, 0x74],
        [0x0f, 0x75],
        [0x0f, 0x76],
        [0x0f, 0x64],
        [0x0f, 0x65],
        [0x0f, 0x66],
        [0x0f, 0xda],
        [0x0f, 0xde],
        [0x0f, 0xea],
        [0x0f, 0xee],
        [0x0f, 0x54],
        [0x0f, 0x55],
        [0x0f, 0x56],
        [0x0f, 0x57],
    ];
    let plain = Form { name: "vector arithmetic", operand_size: false, ..PLAIN };
    let mut forms = Vec::new();
    for opcode in const { &OPCODES } {
        let of_floats = matches!(opcode[1], 0x54..0x58);
        forms.push(Form { opcode, prefix: Some(0x66), aligned: 16, ..plain });
        forms.push(Form { opcode, aligned: if of_floats { 16 } else { 1 }, ..plain });
        for wide in [false, true] {
            for pp in u8::from(!of_floats)..2 {
                forms.push(Form { opcode: &opcode[1..], vex: Some(Vex { wide, pp, map: 1, two: true, ..Vex::default() }), ..plain });
            }
        }
    }
    // Of 64 bits: PCMPEQQ and PCMPGTQ.
    for opcode in [&[0x0f, 0x38, 0x29], &[0x0f, 0x38, 0x37]] {
        forms.push(Form { opcode, prefix: Some(0x66), aligned: 16, ..plain });
        for wide in [false, true] {
            forms.push(Form { opcode: &opcode[2..], vex: Some(Vex { wide, pp: 1, map: 2, two: true, ..Vex::default() }), ..plain });
        }
    }
    forms.into_iter().filter(|form| avx || form.vex.is_none()).collect()
}

/// All of them, those of AVX only if there is such.
pub fn forms(avx: bool) -> Vec<Form> {
    [
        moves(),
        arithmetic(),
        bits(),
        strings_and_stack(),
        conditions(),
        shifts(),
        multiplications(),
        others(),
        vectors(avx),
        combinations(avx),
    ]
    .concat()
}
