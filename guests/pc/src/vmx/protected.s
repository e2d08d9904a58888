// An L1 in protected mode with PAE paging, between two stays in 64-bit mode.

.set HOST_RSP, 0x6c14
.set EXIT_REASON, 0x4402
.set EFER, 0xc0000080
.set LME, 1 << 8

.text
// vmx_in_protected_mode(VMXON region, VMCS, PDPTEs): outside VMX operation. Enters it, and the L2 of the VMCS, whose HOST_RIP is
// vmx_exit_protected. Returns the exit reason, or all ones if an instruction failed; outside VMX operation.
.code64
.global vmx_in_protected_mode
vmx_in_protected_mode:
    push_preserved
    mov     [region_of_vmxon], rdi
    mov     [region_of_vmcs], rsi
    mov     [stack_64], rsp
    mov     ebx, edx
    push    0x18
    lea     rax, [rip + 1f]
    push    rax
    retfq
.code32
1:  mov     eax, cr0
    and     eax, 0x7fffffff
    mov     cr0, eax
    mov     ecx, EFER
    rdmsr
    and     eax, ~LME
    wrmsr
    mov     cr3, ebx
    mov     eax, cr0
    or      eax, 0x80000000
    mov     cr0, eax
    mov     ebx, -1
    vmxon   [region_of_vmxon]
    jbe     3f
    vmptrld [region_of_vmcs]
    jbe     2f
    mov     eax, HOST_RSP
    vmwrite eax, esp
    vmlaunch
    jmp     2f
.global vmx_exit_protected
vmx_exit_protected:
    mov     eax, EXIT_REASON
    vmread  ebx, eax
2:  vmclear [region_of_vmcs]
    vmxoff
3:  mov     eax, cr0
    and     eax, 0x7fffffff
    mov     cr0, eax
    call    to_long_mode
    push    0x08
    mov     eax, offset protected_ended
    push    eax
    retf
.code64
protected_ended:
    mov     rsp, [stack_64]
    mov     eax, ebx
    pop_preserved
    ret

.section .bss
.balign 8
region_of_vmxon:
    .skip   8
region_of_vmcs:
    .skip   8
stack_64:
    .skip   8
