// Common part of the exit paths of VMX and AMD-V: places of the guest's registers in the CPU's block, to which RSP points, and their
// saving and restoring; the ledger's row. frame.rs has the operands.

.set TRAP_FLAG, 1 << 8
.set AT_RAX, {REGISTERS} + 8 * 0
.set AT_RCX, {REGISTERS} + 8 * 1
.set AT_RDX, {REGISTERS} + 8 * 2
.set AT_RBX, {REGISTERS} + 8 * 3
.set AT_RBP, {REGISTERS} + 8 * 5
.set AT_RSI, {REGISTERS} + 8 * 6
.set AT_RDI, {REGISTERS} + 8 * 7
.set AT_R8, {REGISTERS} + 8 * 8
.set AT_R9, {REGISTERS} + 8 * 9
.set AT_R10, {REGISTERS} + 8 * 10
.set AT_R11, {REGISTERS} + 8 * 11
.set AT_R12, {REGISTERS} + 8 * 12
.set AT_R13, {REGISTERS} + 8 * 13
.set AT_R14, {REGISTERS} + 8 * 14
.set AT_R15, {REGISTERS} + 8 * 15

// Caller-saved registers (System V ABI for AMD64, "Registers and the Stack Frame"), but for RAX, RCX and RDX, which come first.
.macro save_caller_saved
    mov     [rsp + AT_RSI], rsi
    mov     [rsp + AT_RDI], rdi
    mov     [rsp + AT_R8], r8
    mov     [rsp + AT_R9], r9
    mov     [rsp + AT_R10], r10
    mov     [rsp + AT_R11], r11
.endm
.macro restore_rsi_to_r11
    mov     rsi, [rsp + AT_RSI]
    mov     rdi, [rsp + AT_RDI]
    mov     r8, [rsp + AT_R8]
    mov     r9, [rsp + AT_R9]
    mov     r10, [rsp + AT_R10]
    mov     r11, [rsp + AT_R11]
.endm
.macro save_callee_saved
    mov     [rsp + AT_RBX], rbx
    mov     [rsp + AT_RBP], rbp
    mov     [rsp + AT_R12], r12
    mov     [rsp + AT_R13], r13
    mov     [rsp + AT_R14], r14
    mov     [rsp + AT_R15], r15
.endm
.macro restore_callee_saved
    mov     rbx, [rsp + AT_RBX]
    mov     rbp, [rsp + AT_RBP]
    mov     r12, [rsp + AT_R12]
    mov     r13, [rsp + AT_R13]
    mov     r14, [rsp + AT_R14]
    mov     r15, [rsp + AT_R15]
.endm

// Adds an exit that took RAX ticks to the ledger's row at \row + \at.
.macro count_ticks row, at
    inc     qword ptr [\row + \at + {COUNT}]
    add     [\row + \at + {TICKS}], rax
    cmp     rax, [\row + \at + {MIN}]
    jb      8f
7:  cmp     rax, [\row + \at + {MAX}]
    ja      9f
.subsection 1
8:  mov     [\row + \at + {MIN}], rax
    jmp     7b
9:  mov     [\row + \at + {MAX}], rax
    jmp     6f
.previous
6:
.endm
