// The exception vectors: every exception saves all general registers as a `Frame` and calls one Rust function.

.macro vector index
    .balign 0x80
    sub     sp, sp, #{frame_size}
    stp     x0, x1, [sp]
    mov     x1, #\index
    b       save
.endm

.section .text.vectors, "ax"
.balign 0x800
.global vectors
vectors:
    vector 0
    vector 1
    vector 2
    vector 3
    vector 4
    vector 5
    vector 6
    vector 7
    vector 8
    vector 9
    vector 10
    vector 11
    vector 12
    vector 13
    vector 14
    vector 15

save:
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x19, [sp, #144]
    stp     x20, x21, [sp, #160]
    stp     x22, x23, [sp, #176]
    stp     x24, x25, [sp, #192]
    stp     x26, x27, [sp, #208]
    stp     x28, x29, [sp, #224]
    mrs     x2, ELR_EL1
    mrs     x3, SPSR_EL1
    stp     x30, x2, [sp, #240]
    str     x3, [sp, #256]
    mov     x0, sp
    bl      {exception}
    ldp     x30, x2, [sp, #240]
    ldr     x3, [sp, #256]
    msr     ELR_EL1, x2
    msr     SPSR_EL1, x3
    ldp     x28, x29, [sp, #224]
    ldp     x26, x27, [sp, #208]
    ldp     x24, x25, [sp, #192]
    ldp     x22, x23, [sp, #176]
    ldp     x20, x21, [sp, #160]
    ldp     x18, x19, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp], #{frame_size}
    eret
