// The header of an arm64 Image (Linux, "Booting AArch64 Linux"): every loader takes it, also as a flat binary at its link address.
.section .text.boot, "ax"
.global _start
_start:
    b       first_start
    .word   0
    .quad   0x80000                 // text_offset: RAM starts at 0x4000_0000
    .quad   __image_size
    .quad   2                       // little endian, pages of 4 KiB, as near to the start of RAM as text_offset says
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .word   0

first_start:
    mov     x19, x0                 // the device tree
    mov     x20, #0
    bl      prepare
    mov     x0, x19
    bl      {main}

.global other_start
other_start:
    mov     x20, x0                 // its number
    bl      prepare
    mov     x0, x20
    bl      {other}

// Stack, vectors and slot of CPU x20.
prepare:
    msr     DAIFSet, #15
    msr     SPSel, #1
    add     x0, x20, #1
    mov     x1, #{stack_size}
    adrp    x2, {stacks}
    add     x2, x2, :lo12:{stacks}
    madd    x2, x0, x1, x2
    mov     sp, x2
    adrp    x0, {slots}
    add     x0, x0, :lo12:{slots}
    add     x0, x0, x20, lsl #{slot_shift}
    msr     TPIDR_EL0, x0
    adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     VBAR_EL1, x0
    isb
    mov     x29, xzr
    ret

.macro vector target
    .balign 128
    b       \target
.endm

.macro vectors name, interrupt
    .balign 2048
\name:
    vector  hang
    vector  hang
    vector  hang
    vector  hang
    vector  synchronous
    vector  \interrupt
    vector  hang
    vector  hang
.rept 8
    vector  hang
.endr
.endm

vectors vectors, interrupt
.global vectors_gicv2
vectors vectors_gicv2, interrupt_gicv2

// The first instruction but one reads the counter: for the latency of timers.
interrupt:
    msr     TPIDR_EL1, x0
    mrs     x0, CNTVCT_EL0
    stp     x1, x2, [sp, #-16]!
    mrs     x1, TPIDR_EL0
    str     x0, [x1, #{stamp}]
    mrs     x0, S3_0_C12_C12_0      // ICC_IAR1_EL1
    cmp     w0, #27
    b.eq    virtual_timer
acknowledged:
    cmp     w0, #1020
    b.hs    nothing
    msr     S3_0_C12_C12_1, x0      // ICC_EOIR1_EL1
ended:
    ldr     x2, [x1, #{taken}]
    add     x2, x2, #1
    str     x2, [x1, #{taken}]
nothing:
    ldp     x1, x2, [sp], #16
    mrs     x0, TPIDR_EL1
    eret

// Its line must be low before the interrupt ends, or it is taken again.
virtual_timer:
    msr     CNTV_CTL_EL0, xzr
    isb
    b       acknowledged

// Interrupts of a GICv2, whose interface TPIDRRO_EL0 points to.
interrupt_gicv2:
    msr     TPIDR_EL1, x0
    mrs     x0, CNTVCT_EL0
    stp     x1, x2, [sp, #-16]!
    mrs     x1, TPIDR_EL0
    str     x0, [x1, #{stamp}]
    mrs     x2, TPIDRRO_EL0
    ldr     w0, [x2, #0xc]          // GICC_IAR
    cmp     w0, #27
    b.eq    virtual_timer_gicv2
acknowledged_gicv2:
    cmp     w0, #1020
    b.hs    nothing
    str     w0, [x2, #0x10]         // GICC_EOIR
    b       ended
virtual_timer_gicv2:
    msr     CNTV_CTL_EL0, xzr
    isb
    b       acknowledged_gicv2

// What is not there is skipped, and counted.
synchronous:
    stp     x0, x1, [sp, #-16]!
    mrs     x1, TPIDR_EL0
    ldr     x0, [x1, #{faults}]
    add     x0, x0, #1
    str     x0, [x1, #{faults}]
    mrs     x0, ELR_EL1
    add     x0, x0, #4
    msr     ELR_EL1, x0
    ldp     x0, x1, [sp], #16
    eret

hang:
    wfi
    b       hang
