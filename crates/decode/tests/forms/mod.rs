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
        Form { name: "push m", opcode: &[0xff], operand: Operand::Digit(6), ..stack },
        Form { name: "pop m", opcode: &[0x8f], operand: Operand::Digit(0), ..stack },
        Form { name: "push r", opcode: &[0x50], operand: Operand::OpcodeRegister, ..stack },
        Form { name: "pop r", opcode: &[0x58], operand: Operand::OpcodeRegister, ..stack },
        Form { name: "push i", opcode: &[0x68], imm: Imm::Full, operand: Operand::Implied, ..stack },
        Form { name: "push i8", opcode: &[0x6a], imm: Imm::Byte, operand: Operand::Implied, ..stack },
    ]
}

pub fn forms() -> Vec<Form> {
    [moves(), arithmetic(), bits(), strings_and_stack()].concat()
}
