// Runs code with registers from a block, to which they go back: RDI = the block, which device/run.rs describes. The code ends with RET,
// and leaves R15 and the stack as they are.

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

// The same of a code that changes to a stack of its own: RDI = the code, RSI = the stack's end. RAX is what the code leaves there; the
// code finds the way back in R14, and ends with a jump there, wherever its stack is.
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
