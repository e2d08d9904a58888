// From a loader's protected mode to 64-bit mode: main(EAX, EBX), with the first 4 GiB mapped where they are, and the last of these,
// where the APICs are, not cached. By Multiboot that is main(magic, information), by PVH main(anything, start information).

.section .text.head, "ax"
.code32
.global _start
_start:
    cli
    mov     esp, offset stack_top
    mov     edi, eax
    mov     esi, ebx
    // Pages of 2 MiB.
    mov     eax, offset level_3
    or      eax, 3
    mov     [level_4], eax
    xor     ecx, ecx
1:  mov     eax, ecx
    shl     eax, 12
    add     eax, offset level_2
    or      eax, 3
    mov     [level_3 + 8 * ecx], eax
    inc     ecx
    cmp     ecx, 4
    jb      1b
    xor     ecx, ecx
2:  mov     eax, ecx
    shl     eax, 21
    or      eax, 0x83
    cmp     ecx, 3 * 512
    jb      3f
    or      eax, 0x18               // PWT, PCD
3:  mov     [level_2 + 8 * ecx], eax
    inc     ecx
    cmp     ecx, 4 * 512
    jb      2b
    call    to_long_mode
    push    0x08
    mov     eax, offset start_long
    push    eax
    retf

// Turns long mode on, with these tables, and loads the GDT. Clobbers eax, ecx and edx.
.global to_long_mode
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
    and     eax, ~(3 << 29)         // CD and NW, which a BIOS may have left set
    or      eax, 1 << 31
    mov     cr0, eax
    lgdt    [gdtr]
    ret

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
.global gdt
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 64-bit code
    .quad 0x00cf93000000ffff        // data
    .quad 0x00cf9b000000ffff        // 32-bit code
gdtr:
    .word 4 * 8 - 1
    .quad gdt

.section .bss
.balign 4096
.global level_4
level_4: .skip 4096
level_3: .skip 4096
.global level_2
level_2: .skip 4 * 4096
    .skip 65536
stack_top:
