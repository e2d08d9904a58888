// The path of an exit with AMD-V, from the processor to the handler and back to the guest, from top to bottom.
//
// While a guest runs, the RSP that VMRUN has saved is the address of this CPU's block (cpu.rs), as with VMX. RAX, RSP, RIP and RFLAGS of
// the guest are in its VMCB. VMLOAD and VMSAVE move FS, GS, TR, LDTR and the MSRs of system calls, which Stile has of its own.
//
// Lines that begin with //@traced are those of a trace (docs/trace.md): build.rs makes a second exit path out of this file, with traced_
// before each name, which has them. Lines that begin with //@cleared are those of CPUs that need mitigations of speculative-execution attacks at
// exits and entries (docs/speculation.md), in two more, with cleared_ and cleared_traced_. Here they are comments.

.set CS_LONG, 1 << 9
.set INTERRUPT_FLAG, 1 << 9

// Before a call: Stile's own GS and TR, and the guest's RAX in the frame. RCX: the VMCB. Changes RAX.
.macro begin_call
    mov     rax, [rcx + {GUEST_RAX}]
    mov     [rsp + AT_RAX], rax
    // All of the VMCB is clean until a handler changes it, and no invalidation is requested.
    mov     dword ptr [rcx + {CLEAN}], {CLEAN_ALL}
    mov     byte ptr [rcx + {TLB_CONTROL}], 0
    mov     rax, [rsp + {LOADED}]
    vmsave  rax
    mov     rax, [rsp + {OWN}]
    vmload  rax
    save_caller_saved
.endm

// RAX = ticks since the exit, modulo 2^32: an exit that returns to its vCPU takes fewer. Changes RDX.
.macro ticks_since_exit
    rdtsc
    sub     eax, [rsp + {SINCE}]
.endm

// The ledger's row for this exit: EAX = row. Changes RAX, RCX and RDX.
.macro account
//@traced    mov     rcx, [rsp + {VMCB}]
//@traced    cmp     dword ptr [rcx + {ENTRY_INTERRUPTION}], 0 // bit 31: it is valid
//@traced    record_interrupts new_if=l
    mov     ecx, eax
    shl     ecx, {ROW_SHIFT}
    add     rcx, [rsp + {ROWS}]
    ticks_since_exit
    count_ticks rcx, 0
//@traced    record_exit 0
.endm

// At the end of a leaf: accounts to a row that is a constant. Changes RAX and RDX.
.macro account_leaf row
    ticks_since_exit
    mov     rdx, [rsp + {ROWS}]
    count_ticks rdx, (\row << {ROW_SHIFT})
//@traced    record_exit (\row << {ROW_SHIFT})
//@traced    mov     rcx, [rsp + {VMCB}]
.endm

// Jumps unless a word of the guest's tables still has the value that it had when the instruction was found.
.macro compare_table site, number, or_else
    mov     rdx, [rsp + \site + {SITE_TABLES} + 16 * \number]
    mov     rax, [rsp + \site + {SITE_TABLES} + 16 * \number + 8]
    cmp     [rdx], rax
    jne     \or_else
.endm

// The instruction is complete: skips it, and ends blocking of interrupts by the previous one. RCX: the VMCB. Changes RAX and RDX. A
// guest that single-steps takes the slow path: nothing has changed yet.
//
// Without next-RIP saving the length is that of an instruction without prefixes if the code is what it was when the slow path found it
// at this RIP: the same tables lead to it, and its bytes are compared (length.rs).
.macro skip_instruction site, length, opcode, or_else
    test    byte ptr [rcx + {GUEST_RFLAGS} + 1], TRAP_FLAG >> 8
    jnz     \or_else
    mov     rax, [rcx + {GUEST_RIP}]
    cmp     rax, [rsp + \site + {SITE_RIP}]
    jne     .Lnext_rip\@
    mov     rax, [rcx + {GUEST_CR3}]
    cmp     rax, [rsp + \site + {SITE_CR3}]
    jne     \or_else
    test    byte ptr [rcx + {GUEST_CS_RIGHTS} + 1], CS_LONG >> 8
    jz      \or_else
    compare_table \site, 0, \or_else
    compare_table \site, 1, \or_else
    compare_table \site, 2, \or_else
    compare_table \site, 3, \or_else
    mov     rax, [rsp + \site + {SITE_CODE}]
    cmp     word ptr [rax], \opcode & 0xffff
    jne     \or_else
.if \length == 3
    cmp     byte ptr [rax + 2], \opcode >> 16
    jne     \or_else
.endif
    add     qword ptr [rcx + {GUEST_RIP}], \length
.Lskipped\@:
    mov     byte ptr [rcx + {GUEST_INTERRUPTIBILITY}], 0
.subsection 1
.Lnext_rip\@:
    cmp     byte ptr [rsp + {HAS_NEXT_RIP}], 0
    je      \or_else
    mov     rax, [rcx + {NEXT_RIP}]
    mov     [rcx + {GUEST_RIP}], rax
    jmp     .Lskipped\@
.previous
.endm

// Calls `handler(cpu) -> Outcome` with the caller-saved registers in the frame.
.macro call_stub name, handler
.balign 16
\name:
    begin_call
    mov     rdi, rsp
    call    \handler
    test    rax, rax
    js      leave_this_vcpu
    account
    jmp     enter
.endm

.section .text.exit, "ax"
.balign 64
// The first entry on this CPU: RDI = the CPU's block.
.global enter_guest
enter_guest:
    mov     rsp, rdi
    jmp     qword ptr [rsp + {ENTRY}]
.global enter_full
enter_full:
    restore_callee_saved
enter:
    mov     rcx, [rsp + {VMCB}]
    mov     rax, [rsp + AT_RAX]
    mov     [rcx + {GUEST_RAX}], rax
    mov     rax, [rsp + {LOADED}]
    vmload  rax
    mov     rdx, [rsp + AT_RDX]
    restore_rsi_to_r11
    mov     rcx, [rsp + AT_RCX]
//@cleared    verw    word ptr [rip + verw_operand]
// Leaves enter here. RAX: the VMCB's physical address. Everything else is the guest's already.
enter_from_leaf:
    vmrun   rax
    mov     [rsp + AT_RCX], rcx
    mov     [rsp + AT_RDX], rdx
    // The exit is counted as taken, apart from the ledger's rows, which must add up to it.
    inc     qword ptr [rsp + {TAKEN}]
    rdtsc
    mov     [rsp + {SINCE}], eax
    mov     [rsp + {SINCE} + 4], edx
    mov     rcx, [rsp + {VMCB}]
//@cleared    jmp     exit_mitigated
    // No two codes that have stubs have the same lowest byte, and handle_svm reads the whole code. A nested page fault's byte is that of
    // reads of CR0, which are not intercepted (exit.rs).
    movzx   eax, byte ptr [rcx + {EXIT_CODE}]
    jmp     qword ptr [8 * rax + EXIT_STUBS]

exit_other:
    begin_call
    save_callee_saved
    mov     rdi, rsp
    call    handle_svm
    test    rax, rax
    js      leave_this_vcpu_saved
    account
    jmp     enter_full

//@cleared // All exits: there are no stubs and leaves.
//@cleared .balign 16
//@cleared exit_mitigated:
//@cleared    begin_call
//@cleared    save_callee_saved
//@cleared    test    byte ptr [rip + {FLAGS}], {BARRIER_AT_EXITS}
//@cleared    jz      1f
//@cleared    mov     ecx, {IA32_PRED_CMD}
//@cleared    mov     eax, {IBPB}
//@cleared    xor     edx, edx
//@cleared    wrmsr
//@cleared 1:
//@cleared    end_speculation
//@cleared    mov     rdi, rsp
//@cleared    call    handle_svm_mitigated
//@cleared    test    rax, rax
//@cleared    js      leave_this_vcpu_saved
//@cleared    account
//@cleared    jmp     enter_full

call_stub exit_io, handle_svm_io
call_stub exit_msr_call, handle_svm_msr
call_stub exit_wake, handle_svm_wake
call_stub exit_hlt, handle_svm_hlt
call_stub exit_intr, handle_svm_intr

// Frequent accesses are answered with the caller-saved registers in the frame. For the others the handler says so, having done nothing,
// and is called with all of them there.
.balign 16
exit_npf:
    begin_call
    mov     rdi, rsp
    call    handle_ept_violation
    bt      rax, {WITH_ALL_BIT}
    jc      5f
    account
    jmp     enter
5:  save_callee_saved
    mov     rdi, rsp
    call    handle_svm_npf_full
    test    rax, rax
    js      leave_this_vcpu_saved
    account
    jmp     enter_full

// Leaves: exits so simple that they are answered in the registers that are saved already. FS, GS, TR, LDTR and the MSRs of system calls
// stay the guest's: leaves use none of them, and the global interrupt flag holds NMIs off.

// CPUID of a leaf whose answer is the same each time: it is in the VM's table (cpuid.rs). The last one is in the block.
.balign 16
exit_cpuid:
    mov     eax, [rcx + {GUEST_RAX}]
    cmp     eax, [rsp + {LAST_LEAF}]
    jne     2f
1:  skip_instruction {SITE_CPUID}, 2, 0xa20f, exit_other
    account_leaf {CPUID_ROW}
    mov     eax, [rsp + {LAST_ANSWER}]
    mov     [rcx + {GUEST_RAX}], rax
    mov     ebx, [rsp + {LAST_ANSWER} + 4]
    mov     ecx, [rsp + {LAST_ANSWER} + 8]
    mov     edx, [rsp + {LAST_ANSWER} + 12]
    mov     rax, [rsp + {LOADED}]
    jmp     enter_from_leaf
.subsection 1
2:  mov     rdx, [rsp + {CPUID}]
    cmp     eax, {CPUID_LEAVES}
    jae     exit_other
    bt      dword ptr [rdx], eax
    jnc     exit_other
    mov     [rsp + {LAST_LEAF}], eax
    shl     eax, 4
    add     rdx, rax
    mov     rax, [rdx + {CPUID_ANSWERS}]
    mov     [rsp + {LAST_ANSWER}], rax
    mov     rax, [rdx + {CPUID_ANSWERS} + 8]
    mov     [rsp + {LAST_ANSWER} + 8], rax
    jmp     1b
.previous

// RDMSR of IA32_APIC_BASE, which is in the CPU's block while its vCPU is loaded. (In user mode the fault precedes the exit.)
.balign 16
exit_msr:
    cmp     byte ptr [rcx + {EXIT_INFO_1}], 0
    jne     exit_wrmsr
    cmp     dword ptr [rsp + AT_RCX], {APIC_BASE_MSR}
    jne     exit_msr_call
    skip_instruction {SITE_RDMSR}, 2, 0x320f, exit_msr_call
    account_leaf {APIC_BASE_ROW}
    mov     eax, [rsp + {APIC_BASE}]
    mov     [rcx + {GUEST_RAX}], rax
    mov     edx, [rsp + {APIC_BASE} + 4]
    mov     rcx, [rsp + AT_RCX]
    mov     rax, [rsp + {LOADED}]
    jmp     enter_from_leaf

// WRMSR of the x2APIC's EOI, ICR and SELF IPI, each by a function that needs only the caller-saved registers saved, and no GS.
.macro call_at_once function, row
    save_caller_saved
    mov     rdi, rsp
    mov     rsi, rcx
    call    \function
    restore_rsi_to_r11
    test    eax, eax
    js      not_at_once
    account_leaf \row
    mov     rdx, [rsp + AT_RDX]
    mov     rcx, [rsp + AT_RCX]
    mov     rax, [rsp + {LOADED}]
    jmp     enter_from_leaf
.endm
.balign 16
exit_wrmsr:
//@traced    jmp     exit_msr_call
    mov     eax, [rsp + AT_RCX]
    cmp     eax, {X2APIC_EOI}
    jne     1f
    call_at_once write_eoi_at_once, {EOI_ROW}
1:  cmp     eax, {X2APIC_ICR}
    jne     1f
    call_at_once write_icr_at_once, {ICR_ROW}
1:  cmp     eax, {X2APIC_SELF_IPI}
    jne     exit_msr_call
    // With interrupts off the interrupt stays pending: slow path.
    test    byte ptr [rcx + {GUEST_RFLAGS} + 1], INTERRUPT_FLAG >> 8
    jz      exit_msr_call
    call_at_once write_self_ipi_at_once, {SELF_IPI_ROW}
not_at_once:
    mov     rcx, [rsp + {VMCB}]
    cmp     eax, {WAKE_TARGET}
    je      exit_wake
    jmp     exit_msr_call

// VMMCALL. The only call is that of test programs; all others return "not implemented", in user mode as well.
.balign 16
exit_vmmcall:
    cmp     dword ptr [rcx + {GUEST_RAX}], {SEND_IPI}
    je      exit_other
    skip_instruction {SITE_VMMCALL}, 3, 0xd9010f, exit_other
    account_leaf {VMCALL_ROW}
    mov     qword ptr [rcx + {GUEST_RAX}], {NO_SUCH_CALL}
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    mov     rax, [rsp + {LOADED}]
    jmp     enter_from_leaf

// Another vCPU may be next: everything goes into the frame, from which put moves it.
.balign 16
leave_this_vcpu:
    save_callee_saved
leave_this_vcpu_saved:
//@traced    mov     rsi, rax
//@traced    mov     rdi, rsp
//@traced    call    trace_leave             // returns the outcome
    mov     rsi, rax
    mov     rdi, rsp
    call    leave_vcpu
//@traced    mov     rdi, rsp
//@traced    call    trace_enter
    jmp     qword ptr [rsp + {ENTRY}]

.section .rodata
.balign 8
EXIT_STUBS:
    .set    code, 0
    .rept   256
    .if     code == {NPF} & 0xff
    .quad   exit_npf
    .elseif code == {CPUID_EXIT}
    .quad   exit_cpuid
    .elseif code == {HLT_EXIT}
    .quad   exit_hlt
    .elseif code == {INTR_EXIT}
    .quad   exit_intr
    .elseif code == {IO_EXIT}
    .quad   exit_io
    .elseif code == {MSR_EXIT}
    .quad   exit_msr
    .elseif code == {VMMCALL_EXIT}
    .quad   exit_vmmcall
    .else
    .quad   exit_other
    .endif
    .set    code, code + 1
    .endr
.text
