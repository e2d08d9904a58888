// Vectors that clear the branch history before anything else, so that a guest's branches do not steer Stile's indirect ones (Arm,
// Spectre-BHB). Each table stands in front of one of the tables of exit.S and nested/exit.S, of the paths that clear the guest's
// registers, and continues there with all registers as the exception left them. speculation.rs says which CPU needs which.

// As many taken branches as the CPU's history is long.
.macro clear_by_loop
    ldr     x0, [sp, #{HISTORY_BRANCHES}]
1:  b       2f
2:  subs    x0, x0, #1
    b.ne    1b
    dsb     nsh
    isb
.endm
.macro clear_by_instruction
    hint    #22                     // CLRBHB
    isb
.endm
// SMC Calling Convention 1.1: firmware changes x0 to x3 at most.
.macro clear_by_firmware
    stp     x2, x3, [sp, #16]
    mov     w0, #({WORKAROUND_3} & 0xffff)
    movk    w0, #({WORKAROUND_3} >> 16), lsl #16
    smc     #0
    ldp     x2, x3, [sp, #16]
.endm

.macro clearing_vectors table, clear
.balign 0x800
\table\()_\clear:
.irp n, 0, 1, 2, 3, 4, 5, 6, 7      // from EL2
.balign 0x80
    b       cleared_\table + \n * 0x80
.endr
.irp n, 8, 9, 10, 11, 12, 13, 14, 15 // from AArch64, and from AArch32
.balign 0x80
    stp     x0, x1, [sp, #0]
    \clear
    ldp     x0, x1, [sp, #0]
    b       cleared_\table + \n * 0x80
.endr
.endm

.section .text.vectors, "ax"
.irp table, vectors, nested_vectors, trapping_vectors, plain_vectors, direct_vectors, traced_vectors, traced_nested_vectors, traced_trapping_vectors, traced_plain_vectors, traced_direct_vectors
    clearing_vectors \table, clear_by_loop
    clearing_vectors \table, clear_by_instruction
    clearing_vectors \table, clear_by_firmware
.endr

// For speculation.rs: the table in front of each, by how the history is cleared.
.section .rodata
.global CLEARING_VECTORS
.balign 8
CLEARING_VECTORS:
.irp clear, clear_by_loop, clear_by_instruction, clear_by_firmware
    .quad   vectors_\clear, nested_vectors_\clear, trapping_vectors_\clear, plain_vectors_\clear, direct_vectors_\clear
    .quad   traced_vectors_\clear, traced_nested_vectors_\clear, traced_trapping_vectors_\clear, traced_plain_vectors_\clear
    .quad   traced_direct_vectors_\clear
.endr
.text
