// Common part of the mitigated exit paths of VMX and AMD-V (host/speculation.rs). RSP points to the CPU's block; frame.rs has the operands.

.section .rodata
.balign 2
// VERW with a memory operand clears the CPU's buffers; any writable data segment does.
verw_operand:
    .word   {DATA_SELECTOR}
.text

// Ends what speculation may have of the guest, whose registers are in the frame. Changes all but RSP.
.macro end_speculation
    // The return stack's 32 entries: none of them the guest's.
    mov     ecx, 16
1:  call    2f
    int3
2:  call    3f
    int3
3:  dec     ecx
    jnz     1b
    add     rsp, 32 * 8
    test    byte ptr [rip + {FLAGS}], {IBRS_AT_EXITS}
    jz      .Lspeculation_ended\@
    mov     ecx, {IA32_SPEC_CTRL}
    mov     eax, [rsp + {SPEC_CTRL}] // with IBRS
    xor     edx, edx
    wrmsr
.Lspeculation_ended\@:
    lfence
    // Clears the guest's values, so that speculation can't use them as operands.
    xor     ebx, ebx
    xor     ebp, ebp
    xor     r8d, r8d
    xor     r9d, r9d
    xor     r10d, r10d
    xor     r11d, r11d
    xor     r12d, r12d
    xor     r13d, r13d
    xor     r14d, r14d
    xor     r15d, r15d
.endm

