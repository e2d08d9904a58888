// The way of an exit of a vCPU that has an EL2 of its own: vectors and stubs of its own, so that others pay nothing for it.
// VBAR_EL2 names these vectors while such a vCPU is loaded. Assembled behind exit.S, whose macros it uses.

.section .text.vectors, "ax"
.macro by_nested_class
    lsr     x0, x1, #26             // ESR_EL2.EC
    cmp     x0, #0x1a               // ERET, ERETAA, ERETAB
    b.eq    nested_exit_eret
    b       nested_exit_synchronous
.endm
vector_table nested_vectors, by_nested_class, nested_exit_irq

// The same while HCR_EL2.E2H of L1 is clear: an ERET never leads to a user space of virtual EL2's.
.macro by_plain_class
    b       plain_exit_synchronous
.endm
vector_table plain_vectors, by_plain_class, nested_exit_irq
// Without FEAT_NV2: where registers of virtual EL2's are is for handle_trapping to know.
.macro by_no_class
    b       trapping_exit_synchronous
.endm
vector_table trapping_vectors, by_no_class, nested_exit_irq

.section .text.exit, "ax"
call_stub_full nested_exit_synchronous, handle_nested
call_stub_full nested_exit_irq, handle_nested_irq
call_stub_full plain_exit_synchronous, handle_plain
call_stub_full trapping_exit_synchronous, handle_trapping

// ERET at virtual EL2 that stays in its translation regime: back into the same kernel, or to its user space (HCR_EL2.TGE of L1 is 1).
// The other regime's registers and tables are another matter: handle_nested.
nested_exit_eret:
    tst     x1, #0b11               // ISS: ERETAA and ERETAB authenticate first
    b.ne    nested_exit_synchronous
    mrs     x0, S3_5_C4_C0_0        // SPSR_EL12: what L1 calls SPSR_EL2
    mov     w0, w0                  // bits 63 to 32 belong to features that no guest has
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
    mrs     x3, S3_4_C2_C2_0
    ldr     x3, [x3, #{MDSCR_IN_PAGE}]
    msr     mdscr_el1, x3           // L1's debugger of its programs wrote it in memory
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
