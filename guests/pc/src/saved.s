// Registers on the stack, for the assembly of all programs: see `assembly!` in lib.rs.

// Those that a function must leave as they are (System V ABI for AMD64, "Registers and the Stack Frame").
.macro push_preserved
    push    rbx
    push    rbp
    push    r12
    push    r13
    push    r14
    push    r15
.endm
.macro pop_preserved
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rbp
    pop     rbx
.endm

// Those that it may change, but for RAX and RCX.
.macro push_scratch
    push    rdx
    push    rsi
    push    rdi
    push    r8
    push    r9
    push    r10
    push    r11
.endm
.macro pop_scratch
    pop     r11
    pop     r10
    pop     r9
    pop     r8
    pop     rdi
    pop     rsi
    pop     rdx
.endm

// Calls a function from an interrupt's handler, on a stack that is aligned as it expects.
.macro call_aligned function
    push    rbp
    mov     rbp, rsp
    and     rsp, -16
    cld
    call    \function
    mov     rsp, rbp
    pop     rbp
.endm
