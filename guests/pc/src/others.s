// Start-up of the other processors, from SIPI to other_main, each with its own stack.

.set STACK, 16384

.text
// SIPI's target: copied to a page of its own below 1 MiB.
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

.data
.balign 8
.global next_stack
next_stack:
    .quad first_stack_top

.section .bss
.balign 16
.global first_stack_top
    .skip STACK
first_stack_top:
    .skip 15 * STACK
