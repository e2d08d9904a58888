// The exceptions and interrupts of the tests.

.text
// Each exception skips to RESUME, if the tests have set it, and is noted.
.macro exception vector, code
.balign 16
    .if \code == 0
    push    0
    .endif
    push    \vector
    jmp     exception_common
.endm
.macro interrupt vector
.balign 16
    push    \vector
    jmp     interrupt_common
.endm
.balign 16
.global exceptions
exceptions:
    exception 0, 0
.irp vector, 1, 2, 3                // single steps, NMIs and breakpoints are told like interrupts
    interrupt \vector
.endr
.irp vector, 4, 5, 6, 7
    exception \vector, 0
.endr
    exception 8, 1
    exception 9, 0
.irp vector, 10, 11, 12, 13, 14
    exception \vector, 1
.endr
.irp vector, 15, 16
    exception \vector, 0
.endr
    exception 17, 1
.irp vector, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    exception \vector, 0
.endr
.set number, 32
.rept 224
.balign 16
    push    offset number
    jmp     interrupt_common
.set number, number + 1
.endr
// Calls interrupt(vector, where it came in).
interrupt_common:
    push    rax
    push    rcx
    push_scratch
    mov     rdi, [rsp + 72]
    mov     rsi, [rsp + 80]
    call_aligned interrupt
    pop_scratch
    pop     rcx
    pop     rax
    add     rsp, 8
    iretq
exception_common:
    push    rax
    mov     rax, [rsp + 8]
    mov     [LAST_VECTOR], rax
    mov     rax, [rsp + 16]
    mov     [LAST_CODE], rax
    mov     rax, [rsp + 40]
    mov     [LAST_FLAGS], rax
    mov     rax, [RESUME]
    test    rax, rax
    jz      1f
    mov     [rsp + 24], rax
    mov     qword ptr [RESUME], 0
    pop     rax
    add     rsp, 16
    iretq
1:  pop     rax
    mov     rdi, [rsp]
    mov     rsi, [rsp + 16]
    call    unexpected
    ud2
