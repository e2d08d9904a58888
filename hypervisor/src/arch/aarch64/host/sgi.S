// Accesses to the interrupt controller on a machine whose firmware has SGIs 8 to 15: the kick's number is exchanged. The entries of
// gicv2.S with these names branch here: x0 has the value; only x0 and x30 change, and no flag.

.section .text.gicv2, "ax"

// Replaces number `from` in x0.
.macro exchange from, to
    str     x1, [sp, #-16]!
    eor     x1, x0, #\from
    cbnz    x1, 1f
    mov     x0, #\to
1:  ldr     x1, [sp], #16
.endm

// A GICv3.
.global sgi_read_iar
sgi_read_iar:
    mrs     x0, S3_0_C12_C12_0      // ICC_IAR1_EL1
    exchange {BESIDE_EL3}, {KICK}
    ret

.global sgi_write_eoir
sgi_write_eoir:
    exchange {KICK}, {BESIDE_EL3}
    msr     S3_0_C12_C12_1, x0      // ICC_EOIR1_EL1
    ret

.global sgi_write_dir
sgi_write_dir:
    exchange {KICK}, {BESIDE_EL3}
    msr     S3_0_C12_C11_1, x0      // ICC_DIR_EL1
    ret

// A GICv2, where GICC_EOIR and GICC_DIR take an SGI's number from the CPU's block.
.global sgi_read_iar_v2
sgi_read_iar_v2:
    str     x30, [sp, #-16]!
    str     x1, [sp, #-16]!
    bl      gicv2_acknowledge
    ldr     x30, [sp], #16
    exchange {BESIDE_EL3}, {KICK}
    ret
