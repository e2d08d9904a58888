// The other vCPUs of many.rs, with the MMU off and without a stack: x0 is the function.
.global many_other
many_other:
    mov     x1, #1
    msr     S3_0_C12_C12_5, x1          // ICC_SRE_EL1.SRE
    isb
    mov     x2, #0xff
    msr     S3_0_C4_C6_0, x2            // ICC_PMR_EL1
    msr     S3_0_C12_C12_7, x1          // ICC_IGRPEN1_EL1
    isb
    and     x1, x0, #0xff
    cmp     x1, #4
    b.eq    5f
    cmp     x0, #1
    b.eq    2f
    cmp     x0, #2
    b.eq    3f
    b.hi    4f
1:  wfi
    b       1b
4:  wfi
    mrs     x1, S3_0_C12_C12_0          // ICC_IAR1_EL1
    msr     S3_0_C12_C12_1, x1          // ICC_EOIR1_EL1
    b       4b
2:  mov     x2, #(1 << 40)              // ICC_SGI1R_EL1.IRM: all but itself
    orr     x2, x2, #(1 << 24)          // SGI 1
    msr     S3_0_C12_C11_5, x2
    b       2b
3:  mov     w0, #0x84000000             // PSCI CPU_OFF
    orr     w0, w0, #2
    hvc     #0
    b       3b
5:  ubfx    x2, x0, #8, #24             // period
    lsr     x3, x0, #32                 // offset
    mov     x1, #1
    msr     CNTV_CTL_EL0, x1
6:  isb
    mrs     x4, CNTVCT_EL0
    udiv    x5, x4, x2
    madd    x5, x5, x2, x2
    add     x5, x5, x3
    msr     CNTV_CVAL_EL0, x5
    isb
    msr     S3_0_C12_C12_1, x1          // ICC_EOIR1_EL1
    wfi
    mrs     x1, S3_0_C12_C12_0          // ICC_IAR1_EL1
    b       6b
