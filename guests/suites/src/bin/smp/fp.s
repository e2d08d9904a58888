// All FP and SIMD, or SVE, registers from and to memory. x0: where.

.arch armv8.2-a+fp+simd+sve

.macro each_v op
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \op     q\n, [x0, #16 * \n]
    .endr
.endm

.macro each_z op
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    \op     z\n, [x0, #\n, mul vl]
    .endr
.endm

.macro each_p op
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    \op     p\n, [x1, #\n, mul vl]
    .endr
.endm

.section .text.fp, "ax"
.global fp_load
fp_load:
    each_v  ldr
    ret

.global fp_store
fp_store:
    each_v  str
    ret

// x0: vector registers; x1: predicate registers, then FFR.
.global sve_load
sve_load:
    ldr     p0, [x1, #16, mul vl]
    wrffr   p0.b
    each_z  ldr
    each_p  ldr
    ret

.global sve_store
sve_store:
    each_z  str
    each_p  str
    rdffr   p0.b
    str     p0, [x1, #16, mul vl]
    ret

// Bytes of a vector register.
.global sve_length
sve_length:
    rdvl    x0, #1
    ret
