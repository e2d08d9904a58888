// From 64-bit mode to paging of 32-bit addresses by PAE, and back.

.text
// through_pae(pointers, flip): with 32-bit code, turns paging off, and on again with the table of four pointers, the bits of CR0 that `flip`
// has flipped at the same time. Reads the word at 1 GiB; turns paging off, flipping the bits back; moves pointer 2 to pointer 1; and does it
// again. Returns what was read first, and in the upper half what was read then. Interrupts are off.
.global through_pae
through_pae:
    push_preserved
    mov     rbp, cr3
    mov     rbx, cr0
    push    0x18
    lea     rax, [rip + 1f]
    push    rax
    .byte   0x48, 0xcb                          // RET far, 64 bits
.code32
1:  call    paging_off
    mov     ecx, 0xc0000080                     // EFER.LME
    rdmsr
    and     eax, ~(1 << 8)
    wrmsr
    mov     cr3, edi
    call    paging_on
    mov     ecx, [0x40000000]
    call    paging_off
    mov     eax, [edi + 16]
    mov     [edi + 8], eax
    call    paging_on
    mov     edx, [0x40000000]
    call    paging_off
    push    ecx
    push    edx
    mov     ecx, 0xc0000080
    rdmsr
    or      eax, 1 << 8
    wrmsr
    mov     cr3, ebp
    mov     cr0, ebx
    pop     edx
    pop     ecx
    push    0x08
    mov     eax, offset through_pae_end
    push    eax
    retf
paging_off:
    mov     eax, ebx
    and     eax, 0x7fffffff
    mov     cr0, eax
    ret
paging_on:
    mov     eax, ebx
    xor     eax, esi
    mov     cr0, eax
    ret
.code64
through_pae_end:
    mov     esp, esp
    mov     eax, ecx
    shl     rdx, 32
    or      rax, rdx
    pop_preserved
    ret

// activate_by_64_bit_code(gates): with the L bit of CS set, tries to activate IA-32e mode by enabling paging, with CR0.NE flipped at the same time.
// `gates`: limit and base of an IDT, whose #GP leads to `activation_fails`. Returns whether it was raised. Interrupts are off.
.global activate_by_64_bit_code, activation_fails
activate_by_64_bit_code:
    push_preserved
    sub     rsp, 16
    sidt    [rsp]
    mov     rbx, cr0
    push    0x18
    lea     rax, [rip + 1f]
    push    rax
    .byte   0x48, 0xcb                          // RET far, 64 bits
.code32
1:  mov     eax, ebx
    and     eax, 0x7fffffff
    mov     cr0, eax
    lidt    [edi]
    mov     esi, esp
    mov     ecx, ebx
    xor     ecx, 1 << 5
    .byte   0xea                                // JMP far, to the segment of 64-bit code: of 16 bits in protected mode
    .long   2f
    .word   0x08
2:  .byte   0x0f, 0x22, 0xc1                    // MOV CR0, ECX, in each mode
.code64
    xor     eax, eax
    jmp     activation_end
.code32
activation_fails:
    mov     esp, esi
    mov     cr0, ebx
    push    0x08
    mov     eax, offset activation_end
    push    eax
    mov     eax, 1
    retf
.code64
activation_end:
    mov     esp, esp
    mov     cr0, rbx
    lidt    [rsp]
    add     rsp, 16
    pop_preserved
    ret
