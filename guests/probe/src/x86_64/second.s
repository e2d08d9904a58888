// The second CPU, from real mode to 64-bit mode in one step (Intel SDM volume 3, "Initializing IA-32e Mode"): the code is copied to a page of
// the first MiB, where CS and DS point to it.

.text
.code16
.balign 16
.global trampoline, trampoline_end
trampoline:
    cli
    mov     ax, cs
    mov     ds, ax
    .byte   0xbb                    // mov bx, an offset that the assembler can't write
    .word   second_gdtr - trampoline
    lgdt    [bx]
    mov     eax, 1 << 5             // PAE
    mov     cr4, eax
    mov     eax, offset level_4
    mov     cr3, eax
    mov     ecx, 0xc0000080         // EFER.LME
    rdmsr
    or      eax, 1 << 8
    wrmsr
    mov     eax, cr0
    or      eax, 1 << 31 | 1        // PG, PE
    mov     cr0, eax
    .byte   0x66, 0xea              // far jump, with an offset of 32 bits
    .long   second_long
    .word   0x08
second_gdtr:
    .word   3 * 8 - 1
    .long   gdt
trampoline_end:

.code64
second_long:
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    mov     rsp, [rip + {stack}]
    call    [rip + {main}]
    ud2
