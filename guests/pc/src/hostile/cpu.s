// Code whatever it does, entered with a whole set of registers, and left by whatever exception. See cpu.rs for a CPU's block.

.text
// probe_enter(block, frame): returns when an exception or the watchdog has ended it.
.global probe_enter
probe_enter:
    push_preserved
    mov     [rdi + {LANDING}], rsp
    mov     qword ptr [rdi + {VECTOR}], -1
    push    [rsi + 160]             // SS, RSP, RFLAGS, CS, RIP
    push    [rsi + 152]
    push    [rsi + 144]
    push    [rsi + 136]
    push    [rsi + 128]
    mov     rax, [rsi]
    mov     rcx, [rsi + 8]
    mov     rdx, [rsi + 16]
    mov     rbx, [rsi + 24]
    mov     rbp, [rsi + 40]
    mov     rdi, [rsi + 56]
    mov     r8, [rsi + 64]
    mov     r9, [rsi + 72]
    mov     r10, [rsi + 80]
    mov     r11, [rsi + 88]
    mov     r12, [rsi + 96]
    mov     r13, [rsi + 104]
    mov     r14, [rsi + 112]
    mov     r15, [rsi + 120]
    mov     rsi, [rsi + 48]
    iretq

// Calls function(argument) on another stack: RDI = its upper end, RSI = function.
.global call_on
call_on:
    push    rbp
    mov     rbp, rsp
    mov     rsp, rdi
    call    rsi
    mov     rsp, rbp
    pop     rbp
    ret

// All vectors, each on a stack of the CPU's block.
.balign 16
.global stubs
stubs:
.set number, 0
.rept 256
.balign 16
    .if (number == 8) || ((number >= 10) && (number <= 14)) || (number == 17) || (number == 21)
    .else
    push    0
    .endif
    push    offset number
    jmp     entry
.set number, number + 1
.endr
entry:
    push    rax
    mov     rax, rsp
    and     rax, -{BLOCK}
    push    rcx
    mov     rcx, [rsp + 16]
    cmp     ecx, 2
    je      nmi
    cmp     ecx, 32
    jae     interrupt_entry
land:
    mov     [rax + {VECTOR}], rcx
    mov     rcx, [rsp + 24]
    mov     [rax + {CODE}], rcx
    mov     rcx, [rsp + 32]
    mov     [rax + {RIP}], rcx
    mov     rcx, [rax + {LANDING}]
    test    rcx, rcx
    jz      nowhere
    mov     qword ptr [rax + {LANDING}], 0
    push    0x10
    push    rcx
    push    2
    push    0x08
    push    offset landed
    iretq                           // and so NMIs can come again
landed:
    mov     eax, 0x10
    mov     ds, eax
    mov     es, eax
    cld
    pop_preserved
    ret
nowhere:
    mov     rcx, [rsp + 16]
    cmp     ecx, 16
    jae     stray_entry
    // A debug exception where nothing is tried: a phase has left a breakpoint or DR7.GD. Its delivery has cleared GD ("Debug Control
    // Register (DR7)"), so the rest can be turned off.
    cmp     ecx, 1
    jne     2f
    mov     eax, 0x400
    mov     dr7, rax
    pop     rcx
    pop     rax
    add     rsp, 16
    iretq
2:  mov     rdi, [rax + {VECTOR}]
    mov     rsi, [rax + {RIP}]
    and     rsp, -16
    call    unexpected
    ud2
stray_entry:
    push_scratch
    mov     rdi, rcx
    call_aligned stray
    mov     ecx, eax
    pop_scratch
    mov     rax, rsp
    and     rax, -{BLOCK}
    test    ecx, ecx
    jz      2b
    mov     rcx, [rsp + 16]
    // An interrupt has no error code, and the stubs of these vectors have not pushed one.
    cmp     ecx, 17
    je      3f
    cmp     ecx, 21
    je      3f
    pop     rcx
    pop     rax
    add     rsp, 16
    iretq
3:  pop     rcx
    pop     rax
    add     rsp, 8
    iretq
nmi:
    cmp     qword ptr [rax + {LANDING}], 0
    jne     land
    pop     rcx
    pop     rax
    add     rsp, 16
    iretq
interrupt_entry:
    cmp     ecx, {WATCHDOG}
    jne     1f
    cmp     qword ptr [rax + {LANDING}], 0
    jne     land
1:  push_scratch
    mov     rdi, rcx
    call_aligned interrupted
    pop_scratch
    pop     rcx
    pop     rax
    add     rsp, 16
    iretq
