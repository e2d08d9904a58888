// GICv2 registers under the names of GICv3's: what the sites of host/gicv2.rs branch to. x0 has the value, in the format of the register
// that is named; only x0 and x30 change, and no flag. Arm GIC Architecture Specification (IHI 0048), GICD_*, GICC_*, GICH_*.

.section .text.gicv2, "ax"

.macro base to, which
    adrp    \to, GICV2_BASES
    ldr     \to, [\to, #:lo12:GICV2_BASES + 8 * \which]
.endm
.set GICD, 0
.set GICC, 1
.set GICC_2, 2                      // the page of GICC_DIR
.set GICH, 3
.set ENDS, 4                        // not an address: whether ends of linked interrupts need maintenance

// The register in which the GIC names the sender of an SGI is also that by which it is ended: the CPU keeps it in between.
.global gicv2_read_ICC_IAR1_EL1
gicv2_read_ICC_IAR1_EL1:
    str     x1, [sp, #-16]!         // or a branch to sgi.S, which does this and goes on here
gicv2_acknowledge:
    base    x1, GICC
    ldr     w0, [x1, #0xc]          // GICC_IAR
    mrs     x1, tpidr_el2
    str     w0, [x1, #{ACKNOWLEDGED}]
    and     w0, w0, #0x3ff
    ldr     x1, [sp], #16
    ret

.macro end name, frame, register
.global gicv2_write_\name
gicv2_write_\name:
    str     x1, [sp, #-16]!
    lsr     w1, w0, #4
    cbnz    w1, 1f                  // no SGI
    mrs     x1, tpidr_el2
    ldr     w0, [x1, #{ACKNOWLEDGED}]
1:  base    x1, \frame
    str     w0, [x1, #\register]
    ldr     x1, [sp], #16
    ret
.endm
    end     ICC_EOIR1_EL1, GICC, 0x10
    end     ICC_DIR_EL1, GICC_2, 0

.macro read name, frame, register
gicv2_read_\name:
    base    x0, \frame
    ldr     w0, [x0, #\register]
    ret
.endm

.macro write name, frame, register
gicv2_write_\name:
    str     x1, [sp, #-16]!
    base    x1, \frame
    str     w0, [x1, #\register]
    ldr     x1, [sp], #16
    ret
.endm

    // The value is GICD_SGIR's.
    write   ICC_SGI1R_EL1, GICD, 0xf00

    // These have the same fields as in GICv3.
    read    ICH_HCR_EL2, GICH, 0x0
    read    ICH_VTR_EL2, GICH, 0x4
    read    ICH_VMCR_EL2, GICH, 0x8
    write   ICH_VMCR_EL2, GICH, 0x8
    read    ICH_MISR_EL2, GICH, 0x10
    read    ICH_EISR_EL2, GICH, 0x20
    read    ICH_ELRSR_EL2, GICH, 0x30
    // One register has the active priorities of both groups.
    read    ICH_AP1R0_EL2, GICH, 0xf0
    write   ICH_AP1R0_EL2, GICH, 0xf0

gicv2_read_ICH_AP0R0_EL2:
    mov     x0, xzr
gicv2_write_ICH_AP0R0_EL2:
gicv2_write_ICC_SRE_EL1:            // no CPU has both interfaces
    ret

gicv2_write_ICH_HCR_EL2:            // GICH_HCR has none of the traps
    str     x1, [sp, #-16]!
    base    x1, GICH
    and     w0, w0, #0xf80000ff
    str     w0, [x1]
    ldr     x1, [sp], #16
    ret

// ICH_LRn_EL2: state 63:62, HW 61, group 60, priority 55:48, physical INTID 44:32 (bit 41 for an end with maintenance, as bit 19 of GICH_LRn;
// 34:32 for the sender of an SGI), virtual INTID. GICH_LRn: HW 31, group 30, state 29:28, the upper bits of the priority 27:23, physical
// INTID 19:10, virtual INTID 9:0.
.macro list_register n
gicv2_read_ICH_LR\n\()_EL2:
    stp     x1, x2, [sp, #-32]!
    base    x1, GICH
    add     x1, x1, #0x100 + 4 * \n
    b       read_list_register
gicv2_write_ICH_LR\n\()_EL2:
    stp     x1, x2, [sp, #-32]!
    base    x1, GICH
    add     x1, x1, #0x100 + 4 * \n
    b       write_list_register
.endm
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    list_register \n
.endr

// Linked interrupts where ENDS is set: the list register has HW clear, EOI (19) set, and MARK, which belongs to the sender of an SGI. It
// reads as if HW were set. Once it is invalid, the first read does what the GIC should have done, and clears EOI.
.set EOI, 19
.set MARK, 10

read_list_register:
    str     x3, [sp, #16]
    ldr     w3, [x1]
    and     x0, x3, #0x3ff
    ubfx    x2, x3, #23, #5
    bfi     x0, x2, #51, #5
    ubfx    x2, x3, #28, #2
    bfi     x0, x2, #62, #2
    lsr     w2, w3, #30
    bfi     x0, x2, #60, #2
    base    x2, ENDS
    cbz     x2, 1f
    tbnz    w3, #MARK, 2f
1:  ubfx    x2, x3, #10, #10
    bfi     x0, x2, #32, #10
    b       4f
2:  tbz     w3, #EOI, 3f            // its end was seen before
    lsr     x2, x0, #62
    cbnz    x2, 3f                  // it has not ended
    and     w3, w3, #~(1 << EOI)
    str     w3, [x1]
    base    x1, GICD
    mov     w2, #1
    lsl     w2, w2, w0              // by the INTID, a PPI's
    str     w2, [x1, #0x380]        // GICD_ICACTIVER0
3:  and     x2, x0, #0x3ff
    bfi     x0, x2, #32, #10
    orr     x0, x0, #(1 << 61)      // HW
4:  ldr     x3, [sp, #16]
    ldp     x1, x2, [sp], #32
    ret

write_list_register:
    str     x3, [sp, #16]
    and     w2, w0, #0x3ff
    lsr     x3, x0, #32
    bfi     w2, w3, #10, #10
    lsr     x3, x0, #51
    bfi     w2, w3, #23, #5
    lsr     x3, x0, #62
    bfi     w2, w3, #28, #2
    lsr     x3, x0, #60
    bfi     w2, w3, #30, #2
    tbz     w2, #31, 1f             // not linked
    base    x3, ENDS
    cbz     x3, 1f
    bfi     w2, wzr, #10, #10
    and     w2, w2, #0x7fffffff
    orr     w2, w2, #(1 << EOI)
    orr     w2, w2, #(1 << MARK)
1:  str     w2, [x1]
    ldr     x3, [sp, #16]
    ldp     x1, x2, [sp], #32
    ret
