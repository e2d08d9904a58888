// Code in another mode than 64-bit.

.section .text

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
