// Exit path of a vCPU with direct interrupts: separate vectors, so that an SGI that it sends is detected early, and other vCPUs pay
// nothing for it. VBAR_EL2 selects them while it is direct. Assembled behind exit.S, whose macros it uses.

.section .text.vectors, "ax"
.macro by_direct_table
    adrp    x3, DIRECT_STUBS        // a page of its own, so no low bits to add
    ubfx    x0, x1, #26, #6         // ESR_EL2.EC
    ldr     x3, [x3, x0, lsl #3]
    br      x3
.endm
vector_table direct_vectors, by_direct_table, exit_irq

.section .text.exit, "ax"
// MSR, MRS or System instruction: a write of ICC_SGI1R_EL1, or what any vCPU does.
.global direct_exit_sysreg
direct_exit_sysreg:
    bic     w0, w1, #0x3e0          // ISS.Rt
    mov     w3, #(({WRITE_OF_SGI1R}) & 0xffff)
    movk    w3, #(({WRITE_OF_SGI1R}) >> 16), lsl #16
    cmp     w0, w3
    b.ne    exit_sysreg
    tbnz    x1, #9, direct_exit_sgi_full // ISS.Rt is x16 or above: it may be in no frame
call_stub direct_exit_sgi, handle_direct_sgi
call_stub_full direct_exit_sgi_full, handle_direct_sgi
