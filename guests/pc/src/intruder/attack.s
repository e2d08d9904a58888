// Enters the gate with chosen registers, and comes back by whatever exception or interrupt follows.

.text
// attack(registers): general registers by number, RFLAGS, CS, RIP, SS.
.global attack
attack:
    push_preserved
    pushfq
    mov     [ATTACK_STACK], rsp
    push    [rdi + 8 * 19]
    push    [rdi + 8 * 4]
    push    [rdi + 8 * 16]
    push    [rdi + 8 * 17]
    push    [rdi + 8 * 18]
    mov     rax, [rdi + 8 * 0]
    mov     rcx, [rdi + 8 * 1]
    mov     rdx, [rdi + 8 * 2]
    mov     rbx, [rdi + 8 * 3]
    mov     rbp, [rdi + 8 * 5]
    mov     rsi, [rdi + 8 * 6]
    mov     r8, [rdi + 8 * 8]
    mov     r9, [rdi + 8 * 9]
    mov     r10, [rdi + 8 * 10]
    mov     r11, [rdi + 8 * 11]
    mov     r12, [rdi + 8 * 12]
    mov     r13, [rdi + 8 * 13]
    mov     r14, [rdi + 8 * 14]
    mov     r15, [rdi + 8 * 15]
    mov     rdi, [rdi + 8 * 7]
    mov     byte ptr [ATTACKING], 1
    iretq
attacked:
    mov     byte ptr [ATTACKING], 0
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    popfq
    pop_preserved
    ret

// Any exception or interrupt during an attack, on a stack of its own.
.balign 16
.global caught
caught:
    mov     ecx, 0x80b              // EOI
    xor     eax, eax
    xor     edx, edx
    wrmsr
return_attacked:
    inc     qword ptr [CAUGHT]
    push    0x10
    push    [ATTACK_STACK]
    push    2
    push    0x08
    push    offset attacked
    iretq

// The interrupt that is counted, in user code, which continues until there were as many as wanted.
.balign 16
.global counted
counted:
    push    rax
    push    rcx
    push    rdx
    mov     ecx, 0x80b              // EOI
    xor     eax, eax
    xor     edx, edx
    wrmsr
    inc     qword ptr [TAKEN]
    mov     rax, [TAKEN]
    cmp     rax, [WANTED]
    pop     rdx
    pop     rcx
    pop     rax
    jae     return_attacked
    iretq

// NMIs come at any time, also here, on another stack.
.balign 16
.global caught_nmi
caught_nmi:
    inc     qword ptr [NMIS]
    cmp     byte ptr [ATTACKING], 0
    jne     return_attacked
    iretq
