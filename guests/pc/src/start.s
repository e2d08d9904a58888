// From Multiboot's protected mode to 64-bit mode, and the exceptions of the tests.

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
    push    0x08
    mov     eax, offset start_long
    push    eax
    retf

.code64
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
gdtr:
    .word 3 * 8 - 1
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
.irp vector, 15, 16
    exception \vector, 0
.endr
    exception 17, 1
.irp vector, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    exception \vector, 0
.endr
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
    .skip 65536
stack_top:
