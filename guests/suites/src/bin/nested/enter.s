// From EL2 to what ELR_EL2 and SPSR_EL2 are to be, with given registers, until the next exception to EL2, from wherever.
//
// extern "C" fn(registers: *mut [u64; 31], pc: u64, pstate: u64, hcr: u64) -> u64: the number of the vector.

.macro exit_vector index
    .balign 0x80
    str     x0, [sp, #112]
    mov     x0, #\index
    b       guest_leave
.endm

.section .text.enter, "ax"
.balign 0x800
exit_vectors:
    exit_vector 0
    exit_vector 1
    exit_vector 2
    exit_vector 3
    exit_vector 4
    exit_vector 5
    exit_vector 6
    exit_vector 7
    exit_vector 8
    exit_vector 9
    exit_vector 10
    exit_vector 11
    exit_vector 12
    exit_vector 13
    exit_vector 14
    exit_vector 15

.global guest_enter
guest_enter:
    sub     sp, sp, #128
    stp     x19, x20, [sp]
    stp     x21, x22, [sp, #16]
    stp     x23, x24, [sp, #32]
    stp     x25, x26, [sp, #48]
    stp     x27, x28, [sp, #64]
    stp     x29, x30, [sp, #80]
    mrs     x4, VBAR_EL1
    stp     x0, x4, [sp, #96]
    adr     x4, exit_vectors
    msr     VBAR_EL1, x4
    isb                             // before anything that may take an exception
    msr     HCR_EL2, x3
    isb
    msr     ELR_EL2, x1
    msr     SPSR_EL2, x2
    mov     x30, x0
    ldp     x0, x1, [x30]
    ldp     x2, x3, [x30, #16]
    ldp     x4, x5, [x30, #32]
    ldp     x6, x7, [x30, #48]
    ldp     x8, x9, [x30, #64]
    ldp     x10, x11, [x30, #80]
    ldp     x12, x13, [x30, #96]
    ldp     x14, x15, [x30, #112]
    ldp     x16, x17, [x30, #128]
    ldp     x18, x19, [x30, #144]
    ldp     x20, x21, [x30, #160]
    ldp     x22, x23, [x30, #176]
    ldp     x24, x25, [x30, #192]
    ldp     x26, x27, [x30, #208]
    ldp     x28, x29, [x30, #224]
    ldr     x30, [x30, #240]
    eret

guest_leave:
    str     x30, [sp, #120]
    ldr     x30, [sp, #96]
    str     x1, [x30, #8]
    stp     x2, x3, [x30, #16]
    stp     x4, x5, [x30, #32]
    stp     x6, x7, [x30, #48]
    stp     x8, x9, [x30, #64]
    stp     x10, x11, [x30, #80]
    stp     x12, x13, [x30, #96]
    stp     x14, x15, [x30, #112]
    stp     x16, x17, [x30, #128]
    stp     x18, x19, [x30, #144]
    stp     x20, x21, [x30, #160]
    stp     x22, x23, [x30, #176]
    stp     x24, x25, [x30, #192]
    stp     x26, x27, [x30, #208]
    stp     x28, x29, [x30, #224]
    ldp     x1, x2, [sp, #112]      // its x0 and x30
    str     x1, [x30]
    str     x2, [x30, #240]
    ldr     x1, ={hcr}
    msr     HCR_EL2, x1
    ldr     x1, [sp, #104]
    msr     VBAR_EL1, x1
    isb
    ldp     x19, x20, [sp]
    ldp     x21, x22, [sp, #16]
    ldp     x23, x24, [sp, #32]
    ldp     x25, x26, [sp, #48]
    ldp     x27, x28, [sp, #64]
    ldp     x29, x30, [sp, #80]
    add     sp, sp, #128
    ret
.ltorg
