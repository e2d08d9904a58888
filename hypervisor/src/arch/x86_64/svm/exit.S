// The path of an exit with AMD-V, from the processor to the handler and back to the guest, from top to bottom.
//
// While a guest runs, the RSP that VMRUN has saved is the address of this CPU's block (cpu.rs), as with VMX. RAX, RSP, RIP and RFLAGS of
// the guest are in its VMCB. VMLOAD and VMSAVE move FS, GS, TR, LDTR and the MSRs of system calls, which Stile has of its own.

.set AT_RAX, {REGISTERS} + 8 * 0
.set AT_RCX, {REGISTERS} + 8 * 1
.set AT_RDX, {REGISTERS} + 8 * 2
.set AT_RBX, {REGISTERS} + 8 * 3
.set AT_RBP, {REGISTERS} + 8 * 5
.set AT_RSI, {REGISTERS} + 8 * 6
.set AT_RDI, {REGISTERS} + 8 * 7
.set AT_R8, {REGISTERS} + 8 * 8
.set AT_R9, {REGISTERS} + 8 * 9
.set AT_R10, {REGISTERS} + 8 * 10
.set AT_R11, {REGISTERS} + 8 * 11
.set AT_R12, {REGISTERS} + 8 * 12
.set AT_R13, {REGISTERS} + 8 * 13
.set AT_R14, {REGISTERS} + 8 * 14
.set AT_R15, {REGISTERS} + 8 * 15

.section .text.exit, "ax"
.balign 64
// The first entry on this CPU: RDI = the CPU's block.
.global enter_guest
enter_guest:
    mov     rsp, rdi
enter:
    mov     rcx, [rsp + {VMCB}]
    mov     rax, [rsp + AT_RAX]
    mov     [rcx + {GUEST_RAX}], rax
    mov     rax, [rsp + {LOADED}]
    mov     rcx, [rsp + AT_RCX]
    mov     rdx, [rsp + AT_RDX]
    mov     rbx, [rsp + AT_RBX]
    mov     rbp, [rsp + AT_RBP]
    mov     rsi, [rsp + AT_RSI]
    mov     rdi, [rsp + AT_RDI]
    mov     r8, [rsp + AT_R8]
    mov     r9, [rsp + AT_R9]
    mov     r10, [rsp + AT_R10]
    mov     r11, [rsp + AT_R11]
    mov     r12, [rsp + AT_R12]
    mov     r13, [rsp + AT_R13]
    mov     r14, [rsp + AT_R14]
    mov     r15, [rsp + AT_R15]
    vmload  rax
    vmrun   rax
    vmsave  rax
    mov     rax, [rsp + {OWN}]
    vmload  rax
    mov     [rsp + AT_RCX], rcx
    mov     [rsp + AT_RDX], rdx
    mov     [rsp + AT_RBX], rbx
    mov     [rsp + AT_RBP], rbp
    mov     [rsp + AT_RSI], rsi
    mov     [rsp + AT_RDI], rdi
    mov     [rsp + AT_R8], r8
    mov     [rsp + AT_R9], r9
    mov     [rsp + AT_R10], r10
    mov     [rsp + AT_R11], r11
    mov     [rsp + AT_R12], r12
    mov     [rsp + AT_R13], r13
    mov     [rsp + AT_R14], r14
    mov     [rsp + AT_R15], r15
    // The exit is counted as taken, apart from the ledger's rows, which must add up to it.
    inc     qword ptr [rsp + {TAKEN}]
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    mov     [rsp + {SINCE}], rax
    mov     rcx, [rsp + {VMCB}]
    mov     rax, [rcx + {GUEST_RAX}]
    mov     [rsp + AT_RAX], rax
    // All of the VMCB is clean until a handler changes it, and no invalidation is requested.
    mov     dword ptr [rcx + {CLEAN}], {CLEAN_ALL}
    mov     byte ptr [rcx + {TLB_CONTROL}], 0
    mov     rdi, rsp
    call    handle_svm
    test    rax, rax
    js      leave_this_vcpu
    // Adds this exit to the ledger's row. EAX: the row.
    mov     ecx, eax
    shl     ecx, {ROW_SHIFT}
    add     rcx, [rsp + {ROWS}]
    rdtsc
    shl     rdx, 32
    or      rax, rdx
    sub     rax, [rsp + {SINCE}]
    inc     qword ptr [rcx + {COUNT}]
    add     [rcx + {TICKS}], rax
    cmp     rax, [rcx + {MIN}]
    jb      2f
1:  cmp     rax, [rcx + {MAX}]
    jbe     enter
    mov     [rcx + {MAX}], rax
    jmp     enter
2:  mov     [rcx + {MIN}], rax
    jmp     1b

leave_this_vcpu:
    mov     rsi, rax
    mov     rdi, rsp
    call    leave_vcpu
    jmp     enter
.text
