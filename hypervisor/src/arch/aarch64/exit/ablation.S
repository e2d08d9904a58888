// Vectors of a machine in which a VM ablates techniques: `ablate` runs before the ordinary exit path (exit.S) and does at
// once what the ablated designs do at exit and at entry. The code that follows finds the guest's registers as the exception left them.

.set SAVED, 160                     // x0 to x18 and x30, below the CPU's block: on its stack

.macro ablated_vector n
.balign 0x80
    sub     sp, sp, #SAVED
    stp     x0, x1, [sp, #0]
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x30, [sp, #144]
    add     x0, sp, #SAVED
    bl      ablate
    ldp     x18, x30, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp], #SAVED
    b       vectors + \n * 0x80
.endm

.section .text.vectors, "ax"
.global ablated_vectors
.balign 0x800
ablated_vectors:
.irp n, 0, 1, 2, 3, 4, 5, 6, 7      // from EL2
.balign 0x80
    b       vectors + \n * 0x80
.endr
.irp n, 8, 9, 10, 11, 12, 13, 14, 15 // from AArch64, and from AArch32
    ablated_vector \n
.endr
