//! Classification of instructions that access memory.

use super::kind::segment;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Whether the instruction may access memory other than its own bytes: an operand, a stack, a system table.
pub(super) fn reaches(instruction: &Instruction) -> bool {
    let apart = |kind| {
        use OpKind::{
            Immediate8, Immediate8_2nd, Immediate8to16, Immediate8to32, Immediate8to64, Immediate16, Immediate32, Immediate32to64,
            Immediate64, NearBranch16, NearBranch32, NearBranch64,
        };
        let branch = matches!(kind, NearBranch16 | NearBranch32 | NearBranch64);
        let extended = matches!(kind, Immediate8to16 | Immediate8to32 | Immediate8to64 | Immediate32to64);
        branch || extended || matches!(kind, OpKind::Register | Immediate8 | Immediate8_2nd | Immediate16 | Immediate32 | Immediate64)
    };
    if (0..instruction.op_count()).all(|operand| apart(instruction.op_kind(operand))) {
        return by_implication(instruction);
    }
    // These only compute an address or give a hint.
    !matches!(
        instruction.mnemonic(),
        Mnemonic::Lea
            | Mnemonic::Nop
            | Mnemonic::Invlpg
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchw
    )
}

/// Whether the instruction accesses memory without an explicit operand.
fn by_implication(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Call, Enter, Iret, Iretd, Iretq, Leave, Pop, Popa, Popad, Popf, Popfd, Popfq, Push, Pusha, Pushad, Pushf, Pushfd, Pushfq,
    };
    use Mnemonic::{In, Int, Int1, Int3, Into, Lar, Lldt, Lsl, Ltr, Mov, Out, Ret, Retf, Verr, Verw};
    match instruction.mnemonic() {
        Push | Pop | Pusha | Pushad | Popa | Popad | Pushf | Pushfd | Pushfq | Popf | Popfd | Popfq => true,
        Call | Ret | Retf | Enter | Leave | Int | Int1 | Int3 | Into | Iret | Iretd | Iretq => true,
        Lar | Lsl | Verr | Verw | Lldt | Ltr => true,
        // The I/O permission bitmap in the TSS.
        In | Out => true,
        // Loads of a descriptor, or of the PDPTEs of PAE paging.
        Mov => {
            let register = instruction.op0_register();
            segment(register).is_some() || (Register::CR0 as usize..=Register::CR15 as usize).contains(&(register as usize))
        }
        _ => false,
    }
}
