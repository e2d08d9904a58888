// Code in other modes than 64-bit: for a test, and for the start of a second vCPU.

.section .text

.balign 8
modes_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 64-bit code
    .quad 0x00cf93000000ffff        // data
    .quad 0x00cf9b000000ffff        // 32-bit code
.global modes_gdtr
modes_gdtr:
    .word 4 * 8 - 1
    .quad modes_gdt

// Runs the code at RSI as 32-bit code, which comes back by EDX. Changes RAX, RCX and RDX.
.code64
.global run_32
run_32:
    lea     rdx, [rip + 1f]
    push    0x18
    push    rsi
    retfq
.code32
1:  .byte   0xea                    // a far jump, to 64-bit code
    .long   2f
    .word   0x08
.code64
2:  ret

// The second vCPU, from the startup message on: copied to a page below 1 MiB.
.balign 16
.code16
.global second_start
second_start:
    jmp     1f
.balign 8
    .word   4 * 8 - 1               // at 8
    .long   modes_gdt
1:  cli
    mov     ax, cs
    mov     ds, ax
    .byte   0x66                    // LGDT with a base of 32 bits
    lgdt    [8]
    mov     eax, cr0
    or      al, 1
    mov     cr0, eax
    .byte   0x66, 0xea              // a far jump, to 32-bit code
    .long   second_32
    .word   0x18
.global second_end
second_end:

.code32
second_32:
    mov     eax, 0x10
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    mov     esp, offset second_stack
    call    to_long_mode
    .byte   0xea
    .long   1f
    .word   0x08
.code64
1:  mov     rsp, offset second_stack
    call    second_main
    ud2

.section .bss
.balign 16
    .skip 16384
second_stack:
.text
