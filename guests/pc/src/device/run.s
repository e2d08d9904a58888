// Loads registers from a block, calls its code, and stores the registers back: RDI = the block, which device/run.rs describes. The code
// ends with RET, and preserves R15 and RSP.

.text
.global run_with_registers
run_with_registers:
    push_preserved
    mov     r15, rdi
    movups  xmm1, [r15 + 80]
    movq    mm1, [r15 + 112]
    cmp     byte ptr [r15 + 72], 0
    je      1f
    vmovdqu ymm1, [r15 + 80]
1:  push    qword ptr [r15 + 56]
    popfq
    mov     rax, [r15]
    mov     rbx, [r15 + 8]
    mov     rcx, [r15 + 16]
    mov     rdx, [r15 + 24]
    mov     rsi, [r15 + 32]
    mov     rdi, [r15 + 40]
    mov     r8, [r15 + 48]
    call    [r15 + 64]
    pushfq
    pop     qword ptr [r15 + 56]
    cld
    mov     [r15], rax
    mov     [r15 + 8], rbx
    mov     [r15 + 16], rcx
    mov     [r15 + 24], rdx
    mov     [r15 + 32], rsi
    mov     [r15 + 40], rdi
    mov     [r15 + 48], r8
    movups  [r15 + 80], xmm1
    movq    [r15 + 112], mm1
    cmp     byte ptr [r15 + 72], 0
    je      2f
    vmovdqu [r15 + 80], ymm1
2:  emms
    pop_preserved
    ret

// Runs code on another stack: RDI = the code, RSI = the end of the stack. The code preserves R14 and R15, and ends with a jump to R14, with
// any RSP. Returns the code's RAX.
.global run_on_stack
run_on_stack:
    push_preserved
    mov     r15, rsp
    lea     r14, [rip + 1f]
    mov     rsp, rsi
    jmp     rdi
1:  mov     rsp, r15
    pop_preserved
    ret
