// Exit path of a CPU that needs mitigations of speculative-execution attacks at each exit or entry (speculation.rs). All exits
// use their handlers: there are no leaves. Assembled behind exit.S, whose macros it uses.

.set IA32_FLUSH_CMD, {IA32_FLUSH_CMD}

.section .rodata
.balign 8
// As ENTRIES of exit.S.
.Lmitigated_entries:
    .quad   .Lmitigated_launch, .Lmitigated_resume, .Lmitigated_l2

.section .text.exit, "ax"
// Saves the guest's registers and ends what speculation may have of it. Changes all but RSP.
.macro begin_mitigated
    begin_full
    end_speculation
.endm

.balign 64
.global vm_exit_mitigated
vm_exit_mitigated:
    begin_mitigated
    mov     ecx, EXIT_REASON
    vmread  rax, rcx
    mov     esi, eax
    mov     rdi, rsp
    cmp     eax, {STUBS}
    jae     .Lmitigated_unknown
    call    qword ptr [8 * rax + MITIGATED_HANDLERS]
    jmp     .Lmitigated_handled
.Lmitigated_unknown:
    call    handle_other
.Lmitigated_handled:
    test    rax, rax
    js      .Lmitigated_leave
    account
enter_mitigated:
    test    byte ptr [rip + {FLAGS}], {FLUSH_L1D}
    jz      .Lmitigated_enter
    mov     ecx, IA32_FLUSH_CMD
    mov     eax, 1                  // L1D_FLUSH
    xor     edx, edx
    wrmsr
.Lmitigated_enter:
    mov     rax, [rsp + {LAUNCHED}]
    jmp     qword ptr [8 * rax + .Lmitigated_entries]
.Lmitigated_resume:
    restore_callee_saved
    restore_caller_saved
    verw    word ptr [rip + verw_operand]
    vmresume
    jmp     .Lmitigated_failed
.Lmitigated_launch:
    mov     qword ptr [rsp + {LAUNCHED}], 1
.Lmitigated_launch_l2:
    restore_callee_saved
    restore_caller_saved
    verw    word ptr [rip + verw_operand]
    vmlaunch
// As entry_failed of exit.S.
.Lmitigated_failed:
    setc    sil
    movzx   esi, sil
    mov     rdi, rsp
    call    vm_entry_failed
    jmp     .Lmitigated_handled
.Lmitigated_l2:
    mov     rdi, rsp
    call    resume_l2
    cmp     eax, 1
    jb      .Lmitigated_resume
    je      .Lmitigated_launch_l2
    jmp     .Lmitigated_enter
.Lmitigated_leave:
//@traced    mov     rsi, rax
//@traced    mov     rdi, rsp
//@traced    call    trace_leave
    mov     rsi, rax
    mov     rdi, rsp
    call    leave_vcpu
//@traced    mov     rdi, rsp
//@traced    call    trace_enter
    jmp     enter_mitigated

// As vm_exit_l2 of exit.S.
.balign 64
.global vm_exit_l2_mitigated
vm_exit_l2_mitigated:
    begin_mitigated
    mov     rdi, rsp
    call    handle_l2
    jmp     .Lmitigated_handled

// The first entry on this CPU: RDI = the CPU's block.
.global enter_guest_mitigated
enter_guest_mitigated:
    mov     rsp, rdi
    jmp     enter_mitigated
.text
