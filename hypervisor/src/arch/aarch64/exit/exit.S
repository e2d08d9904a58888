// The way of an exit: vector, handler, entry. Read from top to bottom.
//
// Lines that begin with //@traced are those of a trace (docs/trace.md), and those with //@cleared of CPUs on which a guest's branch history
// reaches Stile (docs/speculation.md): build.rs makes further exit paths out of this file, nested/exit.S and direct.S, with traced_, cleared_
// or cleared_traced_ before each name, which have them. Here they are comments.
//
// While a guest runs, SP_EL2 points to this CPU's block (cpu.rs), which begins with a place for the guest's general registers and
// has the CPU's stack below it. Nothing else of the guest is saved here: what is not a general register stays where it is until
// the vCPU is put (context.rs).

// An exception return, and a barrier behind it: what a CPU executes speculatively past ERET stops there (Arm, Straight-line speculation).
// It is never executed.
.macro return_to_guest
    eret
    dsb     nsh
    isb
.endm

// Frees x0 to x3 to determine the cause; counts the exit as taken, separately from the ledger's rows, whose sum must equal this count.
.macro open_frame
    stp     x0, x1, [sp, #{X} + 8 * 0]
    stp     x2, x3, [sp, #{X} + 8 * 2]
    ldr     x3, [sp, #{TAKEN}]
    mrs     x2, cntpct_el0
    add     x3, x3, #1
    str     x3, [sp, #{TAKEN}]
//@traced    mrs     x0, ich_elrsr_el2       // the list registers without an interrupt
//@traced    stp     x2, x0, [sp, #{SINCE}]  // and Recorder::before
.endm

// \base: the CPU's block, or a vCPU's registers in memory. Caller-saved registers (AAPCS64, General-purpose registers), and x19, which is stored in the same pair as x18.
.macro save_caller_saved base=sp
    stp     x4, x5, [\base, #{X} + 8 * 4]
    stp     x6, x7, [\base, #{X} + 8 * 6]
    stp     x8, x9, [\base, #{X} + 8 * 8]
    stp     x10, x11, [\base, #{X} + 8 * 10]
    stp     x12, x13, [\base, #{X} + 8 * 12]
    stp     x14, x15, [\base, #{X} + 8 * 14]
    stp     x16, x17, [\base, #{X} + 8 * 16]
    stp     x18, x19, [\base, #{X} + 8 * 18]
    str     x30, [\base, #{X} + 8 * 30]
.endm
.macro save_callee_saved base=sp
    stp     x20, x21, [\base, #{X} + 8 * 20]
    stp     x22, x23, [\base, #{X} + 8 * 22]
    stp     x24, x25, [\base, #{X} + 8 * 24]
    stp     x26, x27, [\base, #{X} + 8 * 26]
    stp     x28, x29, [\base, #{X} + 8 * 28]
.endm
.macro restore_caller_saved base=sp
    ldr     x30, [\base, #{X} + 8 * 30]
    ldp     x18, x19, [\base, #{X} + 8 * 18]
    ldp     x16, x17, [\base, #{X} + 8 * 16]
    ldp     x14, x15, [\base, #{X} + 8 * 14]
    ldp     x12, x13, [\base, #{X} + 8 * 12]
    ldp     x10, x11, [\base, #{X} + 8 * 10]
    ldp     x8, x9, [\base, #{X} + 8 * 8]
    ldp     x6, x7, [\base, #{X} + 8 * 6]
    ldp     x4, x5, [\base, #{X} + 8 * 4]
    ldp     x2, x3, [\base, #{X} + 8 * 2]
    ldp     x0, x1, [\base, #{X} + 8 * 0]
.endm
.macro restore_callee_saved base=sp
    ldp     x28, x29, [\base, #{X} + 8 * 28]
    ldp     x26, x27, [\base, #{X} + 8 * 26]
    ldp     x24, x25, [\base, #{X} + 8 * 24]
    ldp     x22, x23, [\base, #{X} + 8 * 22]
    ldp     x20, x21, [\base, #{X} + 8 * 20]
.endm

//@cleared // The guest's values, which are saved, must not be operands of what Stile executes speculatively: x2 to x29; x0 and x1 are
//@cleared // arguments, and x30 is the handler's return address.
//@cleared .macro clear_guest_registers
//@cleared .irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
//@cleared    mov     x\n, xzr
//@cleared .endr
//@cleared .endm

// Adds this exit to a row of the ledger: \row = its address, \ticks = how long it took.
.macro add_to_row row, ticks, a, b
    ldp     \a, \b, [\row, #{COUNT}] // and ticks
    add     \a, \a, #1
    add     \b, \b, \ticks
    stp     \a, \b, [\row, #{COUNT}]
    ldp     \a, \b, [\row, #16]     // min, max
    cmp     \ticks, \a
    csel    \a, \ticks, \a, lo
    cmp     \ticks, \b
    csel    \b, \ticks, \b, hi
    stp     \a, \b, [\row, #16]
//@traced    record_exit \row, \ticks, \a, \b
.endm

//@traced // Writes the record of this exit (crate stile-trace, Kind::Exit): as add_to_row. Changes all four.
//@traced .macro record_exit row, ticks, a, b
//@traced    ldr     \a, [sp, #{ROWS}]
//@traced    sub     \row, \row, \a
//@traced    bfi     \ticks, \row, #32, #16
//@traced    ldr     \a, [sp, #{VCPU}]
//@traced    ldrsh   \a, [\a, #{VCPU_ID}]
//@traced    ldr     \b, [sp, #{SINCE}]
//@traced    bfi     \b, \a, #48, #16
//@traced    ldr     \row, [sp, #{RECORD_SLOT}]
//@traced    ldr     \a, [\row]
//@traced    cbnz    \a, 7f                  // full, also after the trace; else the stores below depend on this load
//@traced    str     \ticks, [\row, #8]
//@traced    stlr    \b, [\row]
//@traced    add     \a, \row, #16
//@traced    bfi     \row, \a, #0, #{RING_SHIFT}
//@traced    str     \row, [sp, #{RECORD_SLOT}]
//@traced 8:
//@traced .subsection 1
//@traced 7: ldr     \a, [sp, #{RECORDS_DROPPED}]
//@traced    ldr     \b, [\a]
//@traced    add     \b, \b, #1
//@traced    str     \b, [\a]
//@traced    b       8b
//@traced .previous
//@traced .endm

//@traced // Records interrupts that this exit made pending, and those that it sent: x0 = row. Changes x1 and x2, and others if there were any.
//@traced .macro record_interrupts
//@traced    mrs     x1, ich_elrsr_el2
//@traced    ldr     x2, [sp, #({SINCE} + 8)]
//@traced    bics    x1, x2, x1
//@traced    b.ne    7f
//@traced 6: cmp     x0, #{ROW_OF_SGI}
//@traced    b.eq    8f
//@traced 5:
//@traced .subsection 1
//@traced 7: str     x0, [sp, #-16]!
//@traced    add     x0, sp, #16
//@traced    bl      trace_injections
//@traced    ldr     x0, [sp], #16
//@traced    b       6b
//@traced 8: str     x0, [sp, #-16]!
//@traced    mov     x1, x0
//@traced    add     x0, sp, #16
//@traced    bl      trace_ipi
//@traced    ldr     x0, [sp], #16
//@traced    b       5b
//@traced .previous
//@traced .endm

// Adds this exit to the ledger: x0 = row. Ticks run from open_frame to here. Changes x1 to x4.
.macro account
//@traced    record_interrupts
    mrs     x2, cntpct_el0
    ldr     x3, [sp, #{SINCE}]
    ldr     x1, [sp, #{ROWS}]
    sub     x2, x2, x3
    add     x1, x1, x0, lsl #{ROW_SHIFT}
    add_to_row x1, x2, x3, x4
.endm

// If the outcome in x0 requests it, skips the instruction, of four bytes except AArch32's. Changes x1 and x2.
.macro step
    tbz     x0, #{DONE_BIT}, 1f
    mrs     x2, spsr_el2
    mrs     x1, elr_el2
    tbnz    w2, #4, 2f              // SPSR_EL2.M[4]: AArch32
    tbnz    w2, #21, 2f             // SPSR_EL2.SS: the step is done, too
    add     x1, x1, #4
    msr     elr_el2, x1
3:  and     x0, x0, #0xffff         // the row
.subsection 1
2:  str     x0, [sp, #-16]!
    bl      skip_rare
    ldr     x0, [sp], #16
    b       3b
.previous
1:
.endm

// Calls `handler(cpu, syndrome) -> Outcome` with the caller-saved registers in the frame.
.macro call_stub name, handler
.global \name
\name:
    save_caller_saved
//@cleared    save_callee_saved
    str     x2, [sp, #{SINCE}]
//@cleared    clear_guest_registers
    mov     x0, sp
    bl      \handler
    tbnz    x0, #{LEAVE_BIT}, leave_this_vcpu
    step
    account
//@cleared    restore_callee_saved
    restore_caller_saved
    return_to_guest
.endm

// Calls a handler with all of the general registers in the frame.
.macro call_stub_full name, handler
.global \name
\name:
    save_caller_saved
    save_callee_saved
    str     x2, [sp, #{SINCE}]
//@cleared    clear_guest_registers
    mov     x0, sp
    bl      \handler
    tbnz    x0, #{LEAVE_BIT}, leave_this_vcpu_saved
    step
    account
    b       enter_full
.endm

.section .text.vectors, "ax"
.macro fatal_vector kind
.balign 0x80
    msr     tpidr_el0, x0           // the guest's; it is not going back
    mov     x0, #\kind
    b       fatal_exit
.endm
// A vector table. \synchronous: a macro that finds the stub of a synchronous exit, with its syndrome in x1; \irq: the stub of an IRQ.
.macro vector_table name, synchronous, irq
.global \name
.balign 0x800
\name:
    fatal_vector 0                  // from EL2 with SP_EL0
    fatal_vector 1
    fatal_vector 2
    fatal_vector 3
    fatal_vector 4                  // from EL2: a mistake of ours, always
    fatal_vector 5
    fatal_vector 6
    fatal_vector 7
.rept 2                             // from AArch64; from AArch32 (EL0 only)
.balign 0x80
    open_frame
    mrs     x1, esr_el2
    \synchronous
.balign 0x80
    open_frame
    b       \irq
.balign 0x80
    open_frame
    b       exit_fiq
.balign 0x80
    open_frame
    mrs     x1, esr_el2
    b       exit_serror
.endr
.endm

.macro by_table
    adrp    x3, SYNCHRONOUS_STUBS   // a page of its own, so no low bits to add
    ubfx    x0, x1, #26, #6         // ESR_EL2.EC
    ldr     x3, [x3, x0, lsl #3]
    br      x3
.endm
vector_table vectors, by_table, exit_irq

.section .text.exit, "ax"
call_stub exit_irq, handle_irq
call_stub exit_fiq, handle_fiq
call_stub exit_serror, handle_serror
call_stub exit_smc, handle_smc

// WFI and WFE, which always leave the vCPU: its registers go straight to memory, where another CPU may load them.
.global exit_wfx
exit_wfx:
    ldr     x0, [sp, #{GENERAL}]
    str     x2, [sp, #{SINCE}]
    ldp     x2, x3, [sp, #{X} + 8 * 0]
    save_caller_saved x0
    stp     x2, x3, [x0, #{X} + 8 * 0]
    ldp     x2, x3, [sp, #{X} + 8 * 2]
    save_callee_saved x0
    stp     x2, x3, [x0, #{X} + 8 * 2]
    str     x0, [sp, #{REGISTERS}]
//@cleared    clear_guest_registers
    mov     x0, sp
    bl      handle_wfx
    b       leave_this_vcpu_stored

call_stub_full exit_other, handle_other
call_stub_full exit_sysreg_full, handle_sysreg
call_stub_full exit_data_abort_full, handle_data_abort

// Leaves: exits so frequent and so simple that they are answered in the registers that are saved already.

// HVC from AArch64. A call that no service has: x0 becomes NOT_SUPPORTED, and nothing else changes (SMC Calling Convention,
// Function Identifier Ranges: fast calls have bit 31; owners 0 to 6 are those that handle_hvc knows).
.global exit_hvc
exit_hvc:
    tst     x1, #0xffff             // ISS.imm16
    b.ne    exit_hvc_call
    ldr     x0, [sp, #{X} + 8 * 0]
    tbz     w0, #31, 1f
    ubfx    w0, w0, #24, #6         // owner
    cmp     w0, #6
    b.ls    exit_hvc_call
1:  mrs     x1, cntpct_el0
    ldr     x3, [sp, #{ROWS}]
    sub     x1, x1, x2
    add     x3, x3, #({HVC_UNKNOWN} << {ROW_SHIFT})
    add_to_row x3, x1, x0, x2
    mov     x0, #-1
    ldr     x1, [sp, #{X} + 8 * 1]
    ldp     x2, x3, [sp, #{X} + 8 * 2]
    return_to_guest
call_stub exit_hvc_call, handle_hvc

// MSR, MRS or System instruction from AArch64. A read of an identification register: op0 = 3, op1 = 0, CRn = 0, CRm = 1 to 7.
.global exit_sysreg
exit_sysreg:
    mrs     x0, spsr_el2
    tbnz    x0, #21, exit_sysreg_call // being stepped: SPSR_EL2.SS must change
    and     w0, w1, #0x1fc00        // op1, CRn
    cbnz    w0, exit_sysreg_call
    tbz     w1, #0, exit_sysreg_call // a write
    tbz     w1, #20, exit_sysreg_call // op0 = 2
    tbnz    w1, #4, exit_sysreg_call // CRm above 7
exit_identification:
    ubfx    w0, w1, #1, #3          // CRm
    ubfx    w3, w1, #17, #3         // op2
    bfi     w3, w0, #3, #3
    ldr     x0, [sp, #{ID_VIEW}]
    ubfx    w1, w1, #5, #5          // Rt
    ldr     x0, [x0, x3, lsl #3]
    cmp     w1, #4
    b.hs    2f
    str     x0, [sp, x1, lsl #3]    // saved: what is restored below
1:  mrs     x0, elr_el2
    add     x0, x0, #4
    msr     elr_el2, x0
    mrs     x1, cntpct_el0
    ldr     x0, [sp, #{ROWS}]
    add     x3, x3, #{ID_ROWS}
    sub     x1, x1, x2
    add     x3, x0, x3, lsl #{ROW_SHIFT}
    add_to_row x3, x1, x0, x2
    ldp     x0, x1, [sp, #{X} + 8 * 0]
    ldp     x2, x3, [sp, #{X} + 8 * 2]
    return_to_guest
// Rt is live: x4 to x30, or the zero register.
2:  stp     x2, x3, [sp, #{X} + 8 * 4] // no more registers: these are free until exit_sysreg_call saves x4 and x5 there
    adr     x2, 3f
    add     x2, x2, x1, lsl #3
    ldp     x1, x3, [sp, #{X} + 8 * 4]
    br      x2
3:
.irp n, 0, 1, 2, 3
    udf     #0                      // saved: never branched to
    udf     #0
.endr
.irp n, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    mov     x\n, x0
    b       4f
.endr
    nop                             // the zero register
4:  mov     x2, x1
    b       1b

exit_sysreg_call:
    tbnz    x1, #9, exit_sysreg_full // ISS.Rt is x16 or above: it may be in no frame
call_stub exit_sysreg_low, handle_sysreg

.global exit_data_abort
exit_data_abort:
    tbnz    x1, #20, exit_data_abort_full // ISS.SRT is x16 or above
call_stub exit_data_abort_low, handle_data_abort

// Another vCPU may be next: everything goes into the frame, from which `put` moves it.
leave_this_vcpu:
//@cleared    b       leave_this_vcpu_saved   // by the stub, which then cleared them
    save_callee_saved
leave_this_vcpu_saved:
leave_this_vcpu_stored:
//@traced    mov     x1, x0
//@traced    mov     x0, sp
//@traced    bl      trace_leave             // returns the outcome
    mov     x1, x0
    mov     x0, sp
    bl      leave_vcpu
//@traced    mov     x0, sp
//@traced    bl      trace_enter
// Enters the loaded vCPU, whose registers are in the frame or in its context.
enter_loaded:
    ldr     x0, [sp, #{REGISTERS}]
    mov     x1, sp
    str     x1, [sp, #{REGISTERS}]  // the next exit that leaves stores them in the frame, unless it is by WFI
    restore_callee_saved x0
    restore_caller_saved x0
    return_to_guest

enter_full:
    restore_callee_saved
    restore_caller_saved
    return_to_guest

// The first entry on this CPU: x0 = the CPU's block.
.global enter_guest
enter_guest:
    mov     sp, x0
    b       enter_loaded

// An exception at EL2. The stack may be what is wrong, so the registers go to this CPU's emergency area.
fatal_exit:
    msr     tpidrro_el0, x1
    mrs     x1, tpidr_el2
    add     x1, x1, #{EMERGENCY}    // below 4096: cpu.rs
    stp     x2, x3, [x1, #16]
    stp     x4, x5, [x1, #32]
    stp     x6, x7, [x1, #48]
    stp     x8, x9, [x1, #64]
    stp     x10, x11, [x1, #80]
    stp     x12, x13, [x1, #96]
    stp     x14, x15, [x1, #112]
    stp     x16, x17, [x1, #128]
    stp     x18, x19, [x1, #144]
    stp     x20, x21, [x1, #160]
    stp     x22, x23, [x1, #176]
    stp     x24, x25, [x1, #192]
    stp     x26, x27, [x1, #208]
    stp     x28, x29, [x1, #224]
    mrs     x2, tpidr_el0
    mrs     x3, tpidrro_el0
    stp     x2, x3, [x1, #0]
    mov     x2, sp
    stp     x30, x2, [x1, #240]
    mov     x2, #{EMERGENCY_SIZE}
    add     x2, x1, x2
    mov     sp, x2
    bl      fatal
    b       .
