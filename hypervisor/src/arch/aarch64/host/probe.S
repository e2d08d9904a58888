// Read of a device that may be absent (probe.rs).

// Vectors of EL2 during the read: an external abort, synchronous or an SError, sets x13. Only `probe_read` runs with these vectors.
.section .text.probe, "ax"
.balign 2048
probe_vectors:
    .balign 0x200
    // Current EL with SP_ELx: synchronous. The read is skipped.
    .space  0x200
    mrs     x14, elr_el2
    add     x14, x14, #4
    msr     elr_el2, x14
    mov     x13, #1
    eret
    // SError.
    .balign 0x80
    .space  0x100
    mov     x13, #1
    eret
    .balign 0x80

// Reads w1 bytes (1 or 4) at x0. Returns the value, or all ones if the read was aborted. Changes ELR_EL2, SPSR_EL2 and syndromes.
.global probe_read
probe_read:
    mrs     x9, vbar_el2
    mrs     x10, hcr_el2
    adrp    x11, probe_vectors
    add     x11, x11, :lo12:probe_vectors
    orr     x12, x10, #(1 << 5)     // AMO: physical SErrors are taken to EL2, also from EL2
    msr     vbar_el2, x11
    msr     hcr_el2, x12
    isb
    msr     daifclr, #4             // take SErrors that were already pending: they are not the read's
    isb
    msr     daifset, #4
    mov     x13, xzr
    cmp     w1, #1
    b.eq    1f
    ldr     w0, [x0]
    b       2f
1:  ldrb    w0, [x0]
2:  dsb     sy
    isb
    msr     daifclr, #4
    isb
    msr     daifset, #4
    msr     vbar_el2, x9
    msr     hcr_el2, x10
    isb
    cbz     x13, 3f
    mov     x0, #-1
3:  ret
