// Interrupts and exceptions while Stile itself runs. Interrupts come only where it idles; an exception is a mistake of ours, always.

.section .text.idt, "ax"

// An interrupt of Stile's own: noted in the CPU's block, for who idles.
.macro note name, bit
.balign 16
.global \name
\name:
    or      byte ptr gs:[{NOTED}], 1 << \bit
    iretq
.endm
note note_uart, 0
note note_timer, 1
note note_kick, 2
note note_posted, 3
note note_invalidate, 4

.balign 16
.global note_nothing
note_nothing:
    iretq

// Exceptions, by vector. Those without an error code get a zero for one.
.macro exception vector, code
.balign 16
    .if \code == 0
    push    0
    .endif
    push    \vector
    jmp     fatal_exception
.endm
.balign 16
.global exceptions
exceptions:
.irp vector, 0, 1, 2, 3, 4, 5, 6, 7
    exception \vector, 0
.endr
    exception 8, 1
    exception 9, 0
.irp vector, 10, 11, 12, 13, 14
    exception \vector, 1
.endr
    exception 15, 0
    exception 16, 0
    exception 17, 1
.irp vector, 18, 19, 20
    exception \vector, 0
.endr
    exception 21, 1
.irp vector, 22, 23, 24, 25, 26, 27, 28
    exception \vector, 0
.endr
    exception 29, 1
    exception 30, 1
    exception 31, 0

// On the emergency stack: vector, error code, RIP, CS, RFLAGS, RSP, SS.
fatal_exception:
    push    r15
    push    r14
    push    r13
    push    r12
    push    r11
    push    r10
    push    r9
    push    r8
    push    rdi
    push    rsi
    push    rbp
    push    0                       // RSP's place by number
    push    rbx
    push    rdx
    push    rcx
    push    rax
    mov     rdi, rsp
    and     rsp, -16
    call    fatal
    ud2

// load_segments(gdtr, idtr): segments of the new GDT, and the task register.
.global load_segments
load_segments:
    lgdt    [rdi]
    lidt    [rsi]
    mov     eax, {DATA}
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    xor     eax, eax
    mov     fs, eax
    mov     gs, eax
    mov     eax, {TASK}
    ltr     ax
    pop     rax
    push    {CODE}
    push    rax
    retfq
