// The way of an exit of a vCPU that has an EL2 of its own: vectors and stubs of its own, so that others pay nothing for it.
// VBAR_EL2 names these vectors while such a vCPU is loaded. Assembled behind exit.S, whose macros it uses.

.section .text.vectors, "ax"
.global nested_vectors
.balign 0x800
nested_vectors:
    fatal_vector 0                  // from EL2 with SP_EL0
    fatal_vector 1
    fatal_vector 2
    fatal_vector 3
    fatal_vector 4                  // from EL2: a mistake of ours, always
    fatal_vector 5
    fatal_vector 6
    fatal_vector 7
.macro nested_lower_vectors
.balign 0x80                        // synchronous
    open_frame
    mrs     x1, esr_el2
    lsr     x0, x1, #26             // ESR_EL2.EC
    cmp     x0, #0x1a               // ERET, ERETAA, ERETAB
    b.eq    nested_exit_eret
    b       nested_exit_synchronous
.balign 0x80
    open_frame
    b       nested_exit_irq
.balign 0x80
    open_frame
    b       exit_fiq
.balign 0x80
    open_frame
    mrs     x1, esr_el2
    b       exit_serror
.endm
    nested_lower_vectors            // from AArch64
    nested_lower_vectors            // from AArch32 (EL0 only)

.section .text.exit, "ax"
call_stub_full nested_exit_synchronous, handle_nested
call_stub_full nested_exit_irq, handle_nested_irq

// ERET at virtual EL2 that stays in its translation regime: back into the same kernel, or to its user space (HCR_EL2.TGE of L1 is 1).
// The other regime's registers and tables are another matter: handle_nested.
nested_exit_eret:
    tst     x1, #0b11               // ISS: ERETAA and ERETAB authenticate first
    b.ne    nested_exit_synchronous
    mrs     x0, S3_5_C4_C0_0        // SPSR_EL12: what L1 calls SPSR_EL2
    and     x3, x0, #0x1f           // SPSR.M
    cbz     x3, 1f                  // EL0
    cmp     x3, #0b01001            // EL2h
    b.ne    nested_exit_synchronous
    eor     x0, x0, #0b01100        // EL1h
    mov     x3, #{ERET_KERNEL}
    b       2f
1:  mrs     x3, S3_4_C2_C2_0        // VNCR_EL2: the page of this vCPU
    ldr     x3, [x3, #{HCR_IN_PAGE}]
    tbz     x3, #27, nested_exit_synchronous // HCR_EL2.TGE
    mov     x3, #{ERET_USER}
2:  msr     spsr_el2, x0
    mrs     x0, S3_5_C4_C0_1        // ELR_EL12
    msr     elr_el2, x0
    mrs     x1, cntpct_el0
    ldr     x0, [sp, #{ROWS}]
    sub     x1, x1, x2
    add     x3, x0, x3, lsl #{ROW_SHIFT}
    add_to_row x3, x1, x0, x2
    ldp     x0, x1, [sp, #0]
    ldp     x2, x3, [sp, #16]
    eret
