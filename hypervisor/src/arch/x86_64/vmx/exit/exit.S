// The way of an exit: from the processor to the handler, and entry. Read from top to bottom.
//
// While a guest runs, HOST_RSP is the address of this CPU's block (cpu.rs), which begins with a place for the guest's general registers
// and has the CPU's stack below it. What is not a general register stays where it is (in the VMCS, or in the CPU) until the vCPU is put.
//
// Lines that begin with //@traced are those of a trace (docs/trace.md): build.rs makes a second exit path out of this file and mitigated.S,
// with traced_ before each name, which has them. Here they are comments.

.set EXIT_REASON, {EXIT_REASON}
.set EPT_POINTER, {EPT_POINTER}
.set EXIT_INTERRUPTION, {EXIT_INTERRUPTION}
.set EXIT_LENGTH, {EXIT_LENGTH}
.set GUEST_INTERRUPT_STATUS, {GUEST_INTERRUPT_STATUS}
.set GUEST_RIP, {GUEST_RIP}
.set GUEST_RFLAGS, {GUEST_RFLAGS}

// Restores the registers of save_caller_saved (frame.S), and RAX, RCX and RDX.
.macro restore_caller_saved
    mov     rax, [rsp + AT_RAX]
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    restore_rsi_to_r11
.endm

// Begins an exit whose handler needs all registers in the frame: saves them, counts the exit as taken, and notes its time. Changes RAX and RDX.
.macro begin_full
    mov     [rsp + AT_RAX], rax
    mov     [rsp + AT_RCX], rcx
    mov     [rsp + AT_RDX], rdx
    save_caller_saved
    save_callee_saved
    inc     qword ptr [rsp + {TAKEN}]
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    mov     [rsp + {SINCE}], rax
//@traced    mov     ecx, [rsp + {RECORDS_SOURCE}]
//@traced    vmread  [rsp + {RECORDS_BEFORE}], rcx
.endm

// Adds this exit to the ledger's row at RCX + \at. Ticks run from the exit to here. Changes RAX and RDX.
.macro count_in_row at
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    sub     rax, [rsp + {SINCE}]    // ticks
    count_ticks rcx, \at
.endm

// count_in_row, and a record of the exit. Changes RAX and RDX.
.macro add_to_row at
    count_in_row \at
//@traced    record_exit \at
.endm

// Adds this exit to the ledger: EAX = row. Changes RAX, RCX and RDX.
.macro account
//@traced    mov     ecx, [rsp + {RECORDS_SOURCE}]
//@traced    vmread  rdx, rcx
//@traced    cmp     rdx, [rsp + {RECORDS_BEFORE}]
//@traced    record_interrupts new_if=ne
    mov     ecx, eax
    shl     ecx, {ROW_SHIFT}
    add     rcx, [rsp + {ROWS}]
    add_to_row 0
.endm

// At the end of a leaf: accounts to a row that is a constant. Changes RAX, RCX and RDX.
.macro account_leaf row
    mov     rcx, [rsp + {ROWS}]
    add_to_row (\row << {ROW_SHIFT})
.endm

// The instruction is complete: skips it. Changes RAX, RCX and RDX. A guest that single-steps, or in which an interrupt is pending that
// the previous instruction may have blocked, takes the slow path: nothing has changed yet.
.macro skip_instruction or_else
    mov     ecx, GUEST_RFLAGS
    vmread  rax, rcx
    test    ah, TRAP_FLAG >> 8
    jnz     \or_else
    cmp     byte ptr [rsp + {WINDOW}], 0
    jne     \or_else
    mov     ecx, EXIT_LENGTH
    vmread  rax, rcx
    mov     ecx, GUEST_RIP
    vmread  rdx, rcx
    add     rdx, rax
    vmwrite rcx, rdx
.endm

// Calls `handler(cpu) -> Outcome` with the caller-saved registers in the frame.
.macro call_stub name, handler
.balign 16
.global \name
\name:
    save_caller_saved
    mov     rdi, rsp
    call    \handler
    test    rax, rax
    js      leave_this_vcpu
    account
    restore_caller_saved
    vmresume
    jmp     entry_failed
.endm

// Calls a handler with all of the general registers in the frame. ESI: the exit reason.
.macro call_stub_full name, handler
.balign 16
.global \name
\name:
    save_caller_saved
    save_callee_saved
    mov     esi, eax
    mov     rdi, rsp
    call    \handler
    test    rax, rax
    js      leave_this_vcpu_saved
    account
    restore_callee_saved
    restore_caller_saved
    vmresume
    jmp     entry_failed
.endm

// Calls handlers of an exit of which the frequent kinds are answered by `handler`, with the caller-saved registers in the frame. For the others
// it says so, having done nothing, and `full` is called with all of them there.
.macro call_stub_or_full name, handler, full
.balign 16
.global \name
\name:
    save_caller_saved
    mov     rdi, rsp
    call    \handler
    bt      rax, {WITH_ALL_BIT}
    jc      5f
    account
    restore_caller_saved
    vmresume
    jmp     entry_failed
5:  save_callee_saved
    mov     rdi, rsp
    call    \full
    test    rax, rax
    js      leave_this_vcpu_saved
    account
    restore_callee_saved
    restore_caller_saved
    vmresume
    jmp     entry_failed
.endm

.section .text.exit, "ax"
.balign 64
.global vm_exit
vm_exit:
    mov     [rsp + AT_RAX], rax
    mov     [rsp + AT_RCX], rcx
    mov     [rsp + AT_RDX], rdx
    // The exit is counted as taken, apart from the ledger's rows, which must add up to it.
    inc     qword ptr [rsp + {TAKEN}]
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    mov     [rsp + {SINCE}], rax
//@traced    mov     ecx, [rsp + {RECORDS_SOURCE}]
//@traced    vmread  [rsp + {RECORDS_BEFORE}], rcx
    mov     ecx, EXIT_REASON
    vmread  rax, rcx
    cmp     eax, {STUBS}
    jae     exit_other
    jmp     qword ptr [8 * rax + EXIT_STUBS]

call_stub exit_hlt, handle_hlt
call_stub exit_io, handle_io
call_stub_full exit_cpuid_call, handle_cpuid
call_stub_or_full exit_ept_violation, handle_ept_violation, handle_ept_violation_full
call_stub_full exit_other, handle_other

// Leaves: exits so simple that they are answered in the registers that are saved already.

// An interrupt of this CPU's timer while that is passed through to the loaded vCPU: the processor delivers the guest's vector at entry ("Guest
// Interrupt Status": RVI is the low byte). An interrupt that was level-triggered before is left to the handler. (timer.rs)
.balign 16
.global exit_interrupt
exit_interrupt:
    mov     ecx, EXIT_INTERRUPTION
    vmread  rdx, rcx
    cmp     dl, [rsp + {TIMER_PHYSICAL}]
    jne     exit_interrupt_call
    mov     rcx, [rsp + {TIMER_IRR}]
    mov     eax, [rsp + {TIMER_BIT}]
    test    [rcx - {IRR_TO_TMR}], eax
    jnz     exit_interrupt_call
    or      [rcx], eax
    mov     ecx, GUEST_INTERRUPT_STATUS
    vmread  rax, rcx
    cmp     al, [rsp + {TIMER_VECTOR}]
    jae     1f
    mov     al, [rsp + {TIMER_VECTOR}]
    vmwrite rcx, rax
1:  cmp     byte ptr [rsp + {TIMER_KEEPS}], 0
    jne     3f
2:  mov     ecx, {EOI_MSR}
    xor     eax, eax
    xor     edx, edx
    wrmsr
    account_leaf {GUEST_TIMER_ROW}
    mov     rax, [rsp + AT_RAX]
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    vmresume
    jmp     entry_failed
// Clears a deadline that was before this exit. One that is after it was armed again.
3:  mov     ecx, {TSC_DEADLINE_MSR}
    rdmsr
    shl     rdx, 32
    or      rax, rdx
    cmp     rax, [rsp + {SINCE}]
    ja      2b
    xor     eax, eax
    xor     edx, edx
    wrmsr
    jmp     2b

// Others. RDX: the vector.
.balign 16
exit_interrupt_call:
    save_caller_saved
    mov     esi, edx
    mov     rdi, rsp
    call    handle_interrupt
    test    rax, rax
    js      leave_this_vcpu
    account
    restore_caller_saved
    vmresume
    jmp     entry_failed

// CPUID of a leaf whose answer is the same each time: it is in the VM's table (cpuid.rs).
.balign 16
.global exit_cpuid
exit_cpuid:
    mov     eax, [rsp + AT_RAX]
    mov     rdx, [rsp + {CPUID}]
    cmp     eax, {CPUID_LEAVES}
    jae     exit_cpuid_call
    bt      dword ptr [rdx], eax
    jnc     exit_cpuid_call
    skip_instruction or_else=exit_cpuid_call
    account_leaf {CPUID_ROW}
    mov     eax, [rsp + AT_RAX]
    shl     eax, 4
    add     rax, [rsp + {CPUID}]
    mov     ebx, [rax + {CPUID_ANSWERS} + 4]
    mov     ecx, [rax + {CPUID_ANSWERS} + 8]
    mov     edx, [rax + {CPUID_ANSWERS} + 12]
    mov     eax, [rax + {CPUID_ANSWERS}]
    vmresume
    jmp     entry_failed

// RDMSR of IA32_APIC_BASE, which is in the CPU's block while its vCPU is loaded. (In user mode the fault precedes the exit.)
.balign 16
.global exit_rdmsr
exit_rdmsr:
    mov     ecx, [rsp + AT_RCX]
    cmp     ecx, {APIC_BASE_MSR}
    jne     exit_rdmsr_call
    skip_instruction or_else=exit_rdmsr_call
    account_leaf {APIC_BASE_ROW}
    mov     rdx, [rsp + {APIC_BASE}]
    mov     eax, edx
    shr     rdx, 32
    mov     rcx, [rsp + AT_RCX]
    vmresume
    jmp     entry_failed
call_stub exit_rdmsr_call, handle_rdmsr

// WRMSR of IA32_TSC_DEADLINE, while this CPU has no other deadlines: the timer gets the unmodified value. (timer.rs)
.balign 16
.global exit_wrmsr
exit_wrmsr:
    mov     ecx, [rsp + AT_RCX]
    cmp     ecx, {TSC_DEADLINE_MSR}
    jne     exit_wrmsr_call
    cmp     qword ptr [rsp + {DIRECT_DEADLINE}], 0
    je      exit_wrmsr_call
    skip_instruction or_else=exit_wrmsr_call
    mov     rcx, [rsp + {DIRECT_DEADLINE}]
    mov     eax, [rsp + AT_RAX]
    mov     edx, [rsp + AT_RDX]
    mov     [rcx], eax
    mov     [rcx + 4], edx
    mov     ecx, {TSC_DEADLINE_MSR}
    wrmsr
    account_leaf {TSC_DEADLINE_ROW}
    mov     rax, [rsp + AT_RAX]
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    vmresume
    jmp     entry_failed
call_stub exit_wrmsr_call, handle_wrmsr

// VMCALL. The only call is that of test programs; all others return "not implemented", in user mode as well.
.balign 16
.global exit_vmcall
exit_vmcall:
    cmp     dword ptr [rsp + AT_RAX], {SEND_IPI}
    je      exit_vmcall_call
    skip_instruction or_else=exit_vmcall_call
    account_leaf {VMCALL_ROW}
    mov     rax, {NO_SUCH_CALL}
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    vmresume
    jmp     entry_failed
call_stub_full exit_vmcall_call, handle_vmcall

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
// Enters the vCPU that is loaded, by what is known of the VMCS that is current (cpu.rs, Launch).
enter_full:
    mov     rax, [rsp + {LAUNCHED}]
    jmp     qword ptr [8 * rax + ENTRIES]
enter_resume:
    restore_callee_saved
    restore_caller_saved
    vmresume
    jmp     entry_failed
enter_launch:
    mov     qword ptr [rsp + {LAUNCHED}], 1
enter_launch_l2:
    restore_callee_saved
    restore_caller_saved
    vmlaunch
// VMLAUNCH or VMRESUME failed ("VM-Instruction Error Numbers"): CF means that no VMCS is current. The guest's registers are still
// in the CPU, and are not needed any more: the VM ends, or Stile. An L2's are in the frame, too, where its L1 finds them.
entry_failed:
    setc    sil
    movzx   esi, sil
    mov     rdi, rsp
    call    vm_entry_failed
    test    rax, rax
    js      leave_this_vcpu_saved
    account
    jmp     enter_full
// The vCPU runs an L2, and its own VMCS is current.
enter_l2:
    mov     rdi, rsp
    call    resume_l2
    cmp     eax, 1
    jb      enter_resume
    je      enter_launch_l2
    jmp     enter_full

.section .rodata
.balign 8
ENTRIES:
    .quad   enter_launch, enter_resume, enter_l2
.section .text.exit, "ax"

// An exit of an L2. All registers are saved: its L1 may get them.
.balign 64
.global vm_exit_l2
vm_exit_l2:
    begin_full
    mov     rdi, rsp
    call    handle_l2
handled_nested:
    test    rax, rax
    js      leave_this_vcpu_saved
    bt      rax, {CHOOSES_ENTRY_BIT}
    jc      1f
    account
    restore_callee_saved
    restore_caller_saved
    vmresume
    jmp     entry_failed
1:  account
    jmp     enter_full

// An exit of a vCPU that may enter the gate (vmx/gate.rs). In the guest's own view it is like any other.
.balign 64
.global vm_exit_gate
vm_exit_gate:
    mov     [rsp + AT_RAX], rax
    mov     [rsp + AT_RCX], rcx
    // Set the ICR's destination to this CPU (xapic::park).
    mov     rcx, [rip + {XAPIC}]
1:  test    dword ptr [rcx + 0x300], 1 << 12
    jnz     1b
    mov     eax, [rcx + 0x20]
    mov     [rcx + 0x310], eax
    mov     ecx, EPT_POINTER
    vmread  rax, rcx
    cmp     rax, [rsp + {VIEW}]
    mov     rax, [rsp + AT_RAX]
    mov     rcx, [rsp + AT_RCX]
    je      vm_exit
    mov     [rsp + AT_RDX], rdx
    save_caller_saved
    mov     rdi, rsp
    call    leave_gate
    test    al, al
    jnz     1f
    restore_caller_saved
    jmp     vm_exit
1:  inc     qword ptr [rsp + {TAKEN}]
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    mov     [rsp + {SINCE}], rax
//@traced    mov     ecx, [rsp + {RECORDS_SOURCE}]
//@traced    vmread  [rsp + {RECORDS_BEFORE}], rcx
    mov     rdi, rsp
    call    handle_gate
    account
    restore_caller_saved
    vmresume
    jmp     entry_failed

// A VMX instruction of an L1, or of a guest that has none.
.balign 16
.global exit_vmx
exit_vmx:
    save_caller_saved
    save_callee_saved
    mov     esi, eax
    mov     rdi, rsp
    call    handle_vmx
    jmp     handled_nested

// The first entry on this CPU: RDI = the CPU's block.
.global enter_guest
enter_guest:
    mov     rsp, rdi
    jmp     enter_full
