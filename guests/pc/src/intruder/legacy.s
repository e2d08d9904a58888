// Enters the gate outside of long mode: attack_legacy leaves it, and whatever exception or interrupt follows comes back to it.

.set CODE_32, 0x18
.set DATA, 0x10
.set TASK_64, 0x38
.set TASK_32, 0x48
.set CODE_16_REAL, 0x60
.set REAL, 0x12000                      // the page of real mode's code and block
.set REAL_BLOCK, 0x800
.set EFER, 0xc0000080
.set X2APIC_EOI, 0x80b
.set PG, 1 << 31

.text
.code64
// attack_legacy(): enters the mode of LEGACY_* with the registers of BLOCK, or of the block in real mode's page. All addresses are below 4 GiB.
.global attack_legacy
attack_legacy:
    push_preserved
    pushfq
    cli
    mov     [LEGACY_STACK], rsp
    // No NMI is under way while the lock is held: none can meet the IDT of another mode.
1:  lock bts dword ptr [SENDING], 0
    jnc     2f
    pause
    jmp     1b
2:  push    CODE_32
    push    offset outside
    retfq
.code32
outside:
    mov     eax, cr0
    and     eax, ~PG
    mov     cr0, eax
    mov     ecx, EFER
    rdmsr
    and     eax, ~(1 << 8)
    wrmsr
    mov     eax, [LEGACY_CR4]
    mov     cr4, eax
    mov     eax, [LEGACY_CR3]
    mov     cr3, eax
    mov     eax, [LEGACY_CR0]
    mov     cr0, eax
    and     byte ptr [GDT + TASK_32 + 5], ~2            // not busy
    mov     eax, TASK_32
    ltr     ax
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    cmp     dword ptr [LEGACY_REAL], 0
    jne     4f
    lidt    [IDT_32_POINTER]
    mov     esp, offset BLOCK
    mov     dword ptr [SENDING], 0
    .byte   0x61, 0xcf                                  // POPAD, IRETD
4:  lidt    [IDT_16_POINTER]
    .byte   0xea                                        // JMP far
    .long   0
    .word   CODE_16_REAL

.balign 16
.global legacy_caught_nmi
legacy_caught_nmi:
    mov     eax, DATA
    mov     ds, eax
    inc     dword ptr [NMIS]
.global legacy_caught
legacy_caught:
    mov     eax, DATA
    mov     ds, eax
    // An NMI that arrives before the lock is taken begins here again.
    mov     esp, offset BLOCK
1:  lock bts dword ptr [SENDING], 0
    jnc     locked
    pause
    jmp     1b
// The lock is held.
locked:
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     esp, offset BLOCK
    // Delivery in real mode leaves NT, with which IRET fails in long mode.
    push    2
    .byte   0x9d                                        // POPFD
    mov     ecx, X2APIC_EOI
    xor     eax, eax
    xor     edx, edx
    wrmsr
    inc     dword ptr [CAUGHT]
    mov     eax, cr0
    and     eax, ~PG
    mov     cr0, eax
    call    to_long_mode
    lgdt    [GDT_POINTER]
    push    0x08
    mov     eax, offset inside
    push    eax
    retf
.code64
inside:
    mov     eax, DATA
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    lidt    [IDT_POINTER]
    and     byte ptr [GDT + TASK_64 + 5], ~2
    mov     eax, TASK_64
    ltr     ax
    mov     rsp, [LEGACY_STACK]
    // IRET admits NMIs, if this was one.
    mov     rax, rsp
    push    DATA
    push    rax
    push    2
    push    0x08
    push    offset unblocked
    iretq
unblocked:
    mov     dword ptr [SENDING], 0
    popfq
    pop_preserved
    ret

// Real mode: copied to a page below 1 MiB. DS keeps the limit of protected mode.
.balign 16
.global real, real_caught, real_caught_nmi, real_end
.code16
real:
    mov     eax, cr0
    and     al, 0xfe
    mov     cr0, eax
    .byte   0xea                                        // JMP far
    .word   real_mode - real
    .word   REAL >> 4
real_mode:
    mov     ax, REAL >> 4
    mov     ss, ax
    mov     esp, REAL_BLOCK
    xor     eax, eax
    mov     ebx, offset SENDING
    mov     [ebx], eax
    .byte   0x66, 0x61, 0xcf                            // POPAD, IRET
real_caught_nmi:
    mov     ebx, offset NMIS
    inc     dword ptr [ebx]
real_caught:
    mov     esp, REAL_BLOCK
    mov     ebx, offset SENDING
1:  lock bts dword ptr [ebx], 0
    jnc     2f
    pause
    jmp     1b
2:  mov     eax, cr0
    or      al, 1
    mov     cr0, eax
    .byte   0x66, 0xea                                  // JMP far, 32 bits
    .long   locked
    .word   CODE_32
real_end:
.code64

.data
.balign 4
// A lock: the other CPU holds it while an NMI is under way.
.global SENDING
SENDING:
    .long 0

// General registers as POPAD takes them, and IRETD's operands, with the stack of handlers below.
.section .bss
.balign 16
    .skip 4096
.global BLOCK
BLOCK:
    .skip 128
