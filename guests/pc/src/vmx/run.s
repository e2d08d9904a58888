// vmx_run(registers, launched): enters L2 with these general registers. Returns 0 after a VM exit, with L2's registers stored; otherwise
// RFLAGS.CF and RFLAGS.ZF of VMLAUNCH or VMRESUME.

.set HOST_RSP, 0x6c14

.text
.global vmx_run
vmx_run:
    push_preserved
    push    rdi
    mov     eax, HOST_RSP
    vmwrite rax, rsp
    cmp     esi, 0
    mov     rax, [rdi]
    mov     rcx, [rdi + 8]
    mov     rdx, [rdi + 16]
    mov     rbx, [rdi + 24]
    mov     rbp, [rdi + 32]
    mov     rsi, [rdi + 40]
    mov     r8, [rdi + 56]
    mov     rdi, [rdi + 48]
    jne     1f
    vmlaunch
    jmp     2f
1:  vmresume
2:  pushfq
    pop     rax
    and     eax, 0x41
    pop     rdi
    pop_preserved
    ret

// HOST_RIP.
.global vmx_exit
vmx_exit:
    push    rdi
    mov     rdi, [rsp + 8]
    mov     [rdi], rax
    mov     [rdi + 8], rcx
    mov     [rdi + 16], rdx
    mov     [rdi + 24], rbx
    mov     [rdi + 32], rbp
    mov     [rdi + 40], rsi
    mov     [rdi + 56], r8
    pop     rax
    mov     [rdi + 48], rax
    xor     eax, eax
    pop     rdi
    pop_preserved
    ret

// VMLAUNCH right after MOV SS, while it blocks events. Returns as vmx_run.
.global vmx_launch_in_shadow
vmx_launch_in_shadow:
    mov     ecx, ss
    mov     ss, ecx
    vmlaunch
    pushfq
    pop     rax
    and     eax, 0x41
    ret
