// Exit path of a vCPU with virtual EL2: separate vectors and stubs, so that other vCPUs pay nothing for it.
// VBAR_EL2 names these vectors while such a vCPU is loaded. Assembled behind exit.S, whose macros it uses.

.section .text.vectors, "ax"
.macro by_nested_class
    lsr     x0, x1, #26             // ESR_EL2.EC
    cmp     x0, #0x1a               // ERET, ERETAA, ERETAB
    b.eq    nested_exit_eret
    cmp     x0, #0x18               // MSR, MRS or System instruction
    b.eq    nested_exit_sysreg
    b       nested_exit_synchronous
.endm
vector_table nested_vectors, by_nested_class, nested_exit_irq

// Vectors while HCR_EL2.E2H of L1 is clear: an ERET never leads to a user space of virtual EL2's.
.macro by_plain_class
    b       plain_exit_synchronous
.endm
vector_table plain_vectors, by_plain_class, nested_exit_irq
// Without FEAT_NV2: registers of virtual EL2 are not in the VNCR page, so every synchronous exit goes to handle_trapping.
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
// A return to the other regime needs its registers and tables: handle_nested.
nested_exit_eret:
    tst     x1, #0b11               // ISS: ERETAA and ERETAB authenticate first
    b.ne    nested_exit_synchronous
    read_spsr_el12 x0               // what L1 calls SPSR_EL2
    mov     w0, w0                  // clears bits 63 to 32, of features that no guest has
    and     x3, x0, #0x1f           // SPSR.M
    cbz     x3, 1f                  // EL0
    cmp     x3, #0b01001            // EL2h
    b.ne    nested_exit_synchronous
    mrs     x3, hcr_el2
    tbz     x3, #42, nested_exit_synchronous // HCR_EL2.NV: an ERET of L2's, by HFGITR_EL2.ERET of L1, comes here, too
    eor     x0, x0, #0b01100        // EL1h
    mov     x3, #{ERET_KERNEL}
    read_vncr_el2 x1                // the page of this vCPU
    b       2f
1:  read_vncr_el2 x1
    ldr     x3, [x1, #{HCR_IN_PAGE}]
    tbz     x3, #27, 3f             // HCR_EL2.TGE: while that is set L2 is never at EL1
    mov     x3, #{ERET_USER}
2:  ldr     x1, [x1, #{MDSCR_IN_PAGE}]
    tbnz    x1, #13, 3f             // KDE: a debugger of L1's kernel, see debug.rs
    msr     mdscr_el1, x1           // L1 wrote it in memory
    msr     spsr_el2, x0
    read_elr_el12 x0
    msr     elr_el2, x0
    mrs     x1, cntpct_el0
    ldr     x0, [sp, #{ROWS}]
    sub     x1, x1, x2
    add     x3, x0, x3, lsl #{ROW_SHIFT}
    add_to_row x3, x1, x0, x2
    ldp     x0, x1, [sp, #{X} + 8 * 0]
    ldp     x2, x3, [sp, #{X} + 8 * 2]
    return_to_guest
3:  mrs     x1, esr_el2
    b       nested_exit_synchronous

// TLBI VAALE1IS of L1's kernel for its own translations (its HCR_EL2 has E2H and TGE), one for each page that it unmaps: they are EL1's on
// this CPU, under the VM's VMID, which is current.
nested_exit_sysreg:
    bic     w0, w1, #0x3e0          // ISS.Rt
    mov     w3, #(({TLBI_VAALE1IS}) & 0xffff)
    movk    w3, #(({TLBI_VAALE1IS}) >> 16), lsl #16
    cmp     w0, w3
    b.ne    nested_exit_identification
    mrs     x0, hcr_el2
    tbz     x0, #42, nested_exit_synchronous // HCR_EL2.NV: L1 and not its guest
    read_vncr_el2 x0
    ldr     x0, [x0, #{HCR_IN_PAGE}]
    tbz     x0, #27, nested_exit_synchronous // HCR_EL2.TGE of L1
    tbz     x0, #34, nested_exit_synchronous // E2H
    mrs     x0, spsr_el2
    tbnz    x0, #21, nested_exit_synchronous // being stepped: SPSR_EL2.SS must change
    ubfx    x1, x1, #5, #5          // Rt
    adr     x3, 1f
    add     x3, x3, x1, lsl #3
    br      x3
1:
.irp n, 0, 1, 2, 3
    ldr     x0, [sp, #(8 * \n)]
    b       2f
.endr
.irp n, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    mov     x0, x\n
    b       2f
.endr
    mov     x0, xzr
2:  tlbi    vaale1is, x0
    mrs     x0, elr_el2
    add     x0, x0, #4
    msr     elr_el2, x0
    dsb     ish                     // L1's own may come on another CPU, to which the TLBI is unknown
    mrs     x1, cntpct_el0
    ldr     x0, [sp, #{ROWS}]
    mov     x3, #{TLBI_ROW}
    sub     x1, x1, x2
    add     x3, x0, x3, lsl #{ROW_SHIFT}
    add_to_row x3, x1, x0, x2
    ldp     x0, x1, [sp, #{X} + 8 * 0]
    ldp     x2, x3, [sp, #{X} + 8 * 2]
    return_to_guest

// A read of an identification register, at virtual EL2 as at EL1: op0 = 3, op1 = 0, CRn = 0, CRm = 1 to 7. KVM makes two each time that it
// puts and loads a vCPU, if it sees FEAT_FGT.
nested_exit_identification:
    tst     w1, #0x1fc00            // op1, CRn
    b.ne    nested_exit_synchronous
    tbz     w1, #0, nested_exit_synchronous // a write
    tbz     w1, #20, nested_exit_synchronous // op0 = 2
    tbnz    w1, #4, nested_exit_synchronous // CRm above 7
    mrs     x0, hcr_el2
    tbz     x0, #42, nested_exit_synchronous // HCR_EL2.NV: L1 may trap those of its guest
    mrs     x0, spsr_el2
    tbnz    x0, #21, nested_exit_synchronous // being stepped
    b       exit_identification
