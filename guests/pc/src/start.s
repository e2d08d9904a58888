// From Multiboot's protected mode to 64-bit mode, and the exceptions of the tests.

.set STACK, 16384

.section .text.head, "ax"
.balign 4
    .long 0x1badb002                // Multiboot Specification 0.6.96: magic, flags (memory map), checksum
    .long 2
    .long -(0x1badb002 + 2)

.code32
.global _start
_start:
    cli
    mov     esp, offset stack_top
    mov     edi, eax
    mov     esi, ebx
    // The first GiB, in pages of 2 MiB.
    mov     eax, offset level_3
    or      eax, 3
    mov     [level_4], eax
    mov     eax, offset level_2
    or      eax, 3
    mov     [level_3], eax
    xor     ecx, ecx
1:  mov     eax, ecx
    shl     eax, 21
    or      eax, 0x83
    mov     [level_2 + 8 * ecx], eax
    inc     ecx
    cmp     ecx, 512
    jb      1b
    // The fourth GiB, where the APICs are, not cached.
    mov     eax, offset level_2_devices
    or      eax, 3
    mov     [level_3 + 8 * 3], eax
    xor     ecx, ecx
1:  mov     eax, ecx
    shl     eax, 21
    add     eax, 0xc0000000 + 0x9b
    mov     [level_2_devices + 8 * ecx], eax
    inc     ecx
    cmp     ecx, 512
    jb      1b
    call    to_long_mode
    push    0x08
    mov     eax, offset start_long
    push    eax
    retf

to_long_mode:
    mov     eax, cr4
    or      eax, 1 << 5             // PAE
    mov     cr4, eax
    mov     eax, offset level_4
    mov     cr3, eax
    mov     ecx, 0xc0000080         // EFER.LME
    rdmsr
    or      eax, 1 << 8
    wrmsr
    mov     eax, cr0
    or      eax, 1 << 31
    mov     cr0, eax
    lgdt    [gdtr]
    ret

// Where a startup message leads: copied to a page of its own below 1 MiB.
.balign 16
.global trampoline, trampoline_end
.code16
trampoline:
    cli
    mov     ax, cs
    mov     ds, ax
    .byte   0x66, 0x0f, 0x01, 0x16              // LGDT with a base of 32 bits
    .word   gdtr_low - trampoline
    mov     eax, cr0
    or      al, 1
    mov     cr0, eax
    .byte   0x66, 0xea                          // JMP far, 32 bits
    .long   start_other
    .word   0x18
.balign 4
gdtr_low:
    .word 4 * 8 - 1
    .long gdt
trampoline_end:

.code32
start_other:
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     eax, STACK
    lock xadd [next_stack], eax
    mov     esp, eax
    call    to_long_mode
    push    0x08
    mov     eax, offset start_other_long
    push    eax
    retf

.code64
start_other_long:
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    call    other_main
    ud2
start_long:
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     edi, edi
    mov     esi, esi
    call    main
    ud2

.balign 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 64-bit code
    .quad 0x00cf93000000ffff        // data
    .quad 0x00cf9b000000ffff        // 32-bit code
.global next_stack
next_stack:
    .quad other_stacks + STACK
gdtr:
    .word 4 * 8 - 1
    .quad gdt

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
    push    rdx
    push    rsi
    push    rdi
    push    r8
    push    r9
    push    r10
    push    r11
    mov     rdi, [rsp + 72]
    mov     rsi, [rsp + 80]
    push    rbp
    mov     rbp, rsp
    and     rsp, -16
    call    interrupt
    mov     rsp, rbp
    pop     rbp
    pop     r11
    pop     r10
    pop     r9
    pop     r8
    pop     rdi
    pop     rsi
    pop     rdx
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

.section .bss
.balign 4096
level_4: .skip 4096
level_3: .skip 4096
level_2: .skip 4096
level_2_devices: .skip 4096
other_stacks: .skip 8 * STACK
    .skip 65536
stack_top:
