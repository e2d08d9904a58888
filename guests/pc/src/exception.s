// The exceptions of the tests: each skips to RESUME, if the tests have set it, and is noted.

.text
exception_common:
    push    rax
    mov     rax, [rsp + 8]
    mov     [LAST_VECTOR], rax
    mov     rax, [rsp + 16]
    mov     [LAST_CODE], rax
    mov     rax, [RESUME]
    test    rax, rax
    jz      1f
    mov     [rsp + 24], rax
    mov     qword ptr [RESUME], 0
    pop     rax
    add     rsp, 16
    iretq
1:  pop     rax
    mov     rdi, [rsp]
    mov     rsi, [rsp + 16]
    call    unexpected
    ud2
