// Interrupts and exceptions taken by Stile itself. Interrupts are unmasked only while it idles; an exception is always a fault of Stile's.

.section .text.idt, "ax"

// An interrupt of Stile's own: noted in the CPU's block, for the idle loop. If it is taken between STI and HLT, HLT is skipped: it would wait for
// the next interrupt, which is blocked while this one is in service. An NMI ends STI's inhibition early (SDM 2, "STI"), and Bochs can lose it
// (docs/upstream/bochs-smp-icount.md).
.macro note name, bit
.balign 16
.global \name
\name:
    or      byte ptr gs:[{NOTED}], 1 << \bit
    cmp     qword ptr [rsp], offset halt
    je      skip_halt
    iretq
.endm
note note_posted, 0
note note_wake, 1
note note_kick, 2
note note_invalidate, 3
note note_iommu, 4
note note_uart, 5
note note_timer, 6
// Messages of PCI functions: stub n is for vector FIRST_MESSAGE + n, and has 8 bytes.
.balign 8
.global message_stubs
message_stubs:
.rept {MESSAGES_OF_FUNCTIONS}
    call    note_message
    .balign 8
.endr
note_message:
    push    rax
    mov     rax, [rsp + 8]
    sub     rax, offset message_stubs
    shr     eax, 3
    bts     dword ptr gs:[{MESSAGES}], eax
    pop     rax
    add     rsp, 8
    or      byte ptr gs:[{NOTED}], 1 << 7
    cmp     qword ptr [rsp], offset halt
    je      skip_halt
    iretq
.balign 16
// HLT has one byte.
skip_halt:
    inc     qword ptr [rsp]
    iretq

// wait_for_interrupt(): waits for an interrupt, which may be pending already.
.balign 16
.global wait_for_interrupt
wait_for_interrupt:
    .if {HAS_GLOBAL_FLAG}
    cmp     byte ptr [rip + {GLOBAL_FLAG}], 0
    je      1f
    cli
    stgi
1:
    .endif
    sti
halt:
    hlt
    .if {HAS_GLOBAL_FLAG}
    // From the first entry on the global interrupt flag masks interrupts, and RFLAGS.IF is set (svm/state.rs).
    cmp     byte ptr [rip + {GLOBAL_FLAG}], 0
    je      1f
    clgi
    ret
1:
    .endif
    cli
    ret

// Interrupts that Stile never sends: a guest with direct interprocessor interrupts did. The vector of spurious ones is ended only if it was
// one: what the APIC itself delivers as spurious is not in service.
.balign 16
.global note_spurious
note_spurious:
    push    rax
    push    rcx
    push    rdx
    mov     ecx, {ISR} + 7
    rdmsr
    bt      eax, 31
    jc      end_foreign
    jmp     return_foreign
.balign 16
.global note_foreign
note_foreign:
    push    rax
    push    rcx
    push    rdx
end_foreign:
    mov     ecx, {EOI}
    xor     eax, eax
    xor     edx, edx
    wrmsr
return_foreign:
    pop     rdx
    pop     rcx
    pop     rax
    iretq

// An NMI, on a separate stack: a guest's, which is ignored, or else fatal like an exception.
.balign 16
.global nmi
nmi:
    .if {HAS_GLOBAL_FLAG}
    // One that made a guest exit is delivered here, once STGI permits it ("NMI Intercept").
    iretq
    .endif
    cmp     byte ptr [rip + {MAY_BE_FOREIGN}], 0
    je      1f
    iretq
1:  push    0
    push    2
    jmp     fatal_exception

// Vectors 16 to 31: an exception, or a guest's interrupt, which is in service. An interrupt has no error code: `drop` is what the stub has
// pushed, in bytes.
.macro either vector, code, drop
.balign 16
    .if \code == 0
    push    0
    .endif
    push    \vector
    jmp     interrupt_or_exception_\drop
.endm
.macro interrupt_or_exception drop
interrupt_or_exception_\drop:
    cmp     byte ptr [rip + {MAY_BE_FOREIGN}], 0
    je      fatal_exception
    push    rax
    push    rcx
    push    rdx
    mov     ecx, {ISR}
    rdmsr
    mov     ecx, [rsp + 24]
    bt      eax, ecx
    jnc     1f
    mov     ecx, {EOI}
    xor     eax, eax
    xor     edx, edx
    wrmsr
    pop     rdx
    pop     rcx
    pop     rax
    add     rsp, \drop
    iretq
1:  pop     rdx
    pop     rcx
    pop     rax
    jmp     fatal_exception
.endm
.balign 16
.global unsure
unsure:
    either  16, 0, 16
    either  17, 1, 8
.irp vector, 18, 19, 20
    either  \vector, 0, 16
.endr
    either  21, 1, 8
.irp vector, 22, 23, 24, 25, 26, 27, 28
    either  \vector, 0, 16
.endr
    either  29, 1, 8
    either  30, 1, 8
    either  31, 0, 16
interrupt_or_exception 8
interrupt_or_exception 16

// #GP. In xAPIC mode (xapic.rs) RDMSR and WRMSR of an x2APIC register fault, and are performed in memory: register n is at n * 16. An ICR is
// two registers there, of which the low one sends; the high one then names this CPU (xapic.rs, park).
.balign 16
.global general_protection
general_protection:
    cmp     qword ptr [rip + {XAPIC}], 0
    je      1f
    push    rax
    push    rcx
    push    rdx
    mov     rax, [rsp + 32]                 // RIP
    movzx   eax, word ptr [rax]
    sub     ecx, 0x800
    cmp     ecx, 0x40
    jae     2f
    shl     ecx, 4
    add     rcx, [rip + {XAPIC}]
    cmp     ax, 0x300f                      // WRMSR
    je      3f
    cmp     ax, 0x320f                      // RDMSR
    jne     2f
    mov     eax, [rcx]
    mov     [rsp + 16], rax
    mov     qword ptr [rsp], 0
    jmp     6f
2:  pop     rdx
    pop     rcx
    pop     rax
1:  push    13
    jmp     fatal_exception
3:  mov     eax, ecx
    and     eax, 0xff0
    cmp     eax, 0x300
    je      4f
    mov     eax, [rsp + 16]
    mov     [rcx], eax
    jmp     6f
// The message before may be on its way.
4:  test    dword ptr [rcx], 1 << 12
    jnz     4b
    shl     edx, 24
    mov     [rcx + 0x10], edx
    mov     eax, [rsp + 16]
    mov     [rcx], eax
// The destination is read until the message is delivered.
5:  test    dword ptr [rcx], 1 << 12
    jnz     5b
    mov     rdx, [rip + {XAPIC}]
    mov     edx, [rdx + 0x20]
    mov     [rcx + 0x10], edx
6:  add     qword ptr [rsp + 32], 2
    pop     rdx
    pop     rcx
    pop     rax
    add     rsp, 8                          // the error code
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
