// One instruction, or a few, between all registers loaded and all registers stored: probe.rs copies both halves, with the
// instructions in between, to memory and calls that.
//
// extern "C" fn(registers: *mut [u64; 31])

.section .text.probe, "ax"
.global probe_load
probe_load:
    sub     sp, sp, #112
    stp     x19, x20, [sp]
    stp     x21, x22, [sp, #16]
    stp     x23, x24, [sp, #32]
    stp     x25, x26, [sp, #48]
    stp     x27, x28, [sp, #64]
    stp     x29, x30, [sp, #80]
    str     x0, [sp, #96]
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

.global probe_store
probe_store:
    str     x30, [sp, #104]
    ldr     x30, [sp, #96]
    stp     x0, x1, [x30]
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
    ldr     x0, [sp, #104]
    str     x0, [x30, #240]
    ldp     x19, x20, [sp]
    ldp     x21, x22, [sp, #16]
    ldp     x23, x24, [sp, #32]
    ldp     x25, x26, [sp, #48]
    ldp     x27, x28, [sp, #64]
    ldp     x29, x30, [sp, #80]
    add     sp, sp, #112
    ret

.global probe_end
probe_end:
