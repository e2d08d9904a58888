// Real mode: what a BIOS has left behind. Ends the machine with 0, or with the number of the step that fails. Copied to a page below 1 MiB.

.set DONE, 0xf4
.set SMAP, 0x534d4150
.set ENTRY, 0x3000                      // an entry of the memory map
.set HOOKED, 0x3100                     // calls of INT 0x1c
.set TEXT, 0x100                        // offsets from the start
.set HOOK, 0x140

.text
.code16
.global bios_test, bios_test_end
.balign 256
bios_test:
    xor     ax, ax
    mov     ds, ax
    mov     es, ax
    mov     ss, ax
    mov     sp, 0x7000
    mov     word ptr [HOOKED], ax
    mov     bp, 1                       // base memory
    int     0x12
    cmp     ax, 639
    jne     bios_failed
    inc     bp                          // equipment
    int     0x11
    cmp     ax, [0x410]
    jne     bios_failed
    inc     bp                          // memory from 1 MiB on
    mov     ah, 0x88
    int     0x15
    jc      bios_failed
    cmp     ax, 63 << 10
    jne     bios_failed
    inc     bp                          // a function that there is not
    mov     ax, 0xee00
    int     0x15
    jnc     bios_failed
    inc     bp                          // memory map
    xor     ebx, ebx
    xor     si, si
1:  mov     eax, 0xe820
    mov     edx, SMAP
    mov     ecx, 20
    mov     di, ENTRY
    int     0x15
    jc      bios_failed
    cmp     eax, SMAP
    jne     bios_failed
    inc     si
    test    ebx, ebx
    jnz     1b
    cmp     si, 3
    jne     bios_failed
    cmp     dword ptr [ENTRY], 1 << 20
    jne     bios_failed
    cmp     dword ptr [ENTRY + 8], 63 << 20
    jne     bios_failed
    inc     bp                          // teletype
    mov     si, TEXT
2:  mov     al, cs:[si]
    inc     si
    test    al, al
    jz      3f
    mov     ah, 0x0e
    int     0x10
    jmp     2b
3:  inc     bp                          // ticks, and their hook
    mov     word ptr [0x1c * 4], HOOK
    mov     [0x1c * 4 + 2], cs
    mov     ah, 0
    int     0x1a
    mov     si, dx
    sti
4:  hlt
    mov     ah, 0
    int     0x1a
    sub     dx, si
    cmp     dx, 3
    jb      4b
    cmp     word ptr [HOOKED], 3
    jb      bios_failed
    cmp     word ptr [0x46c], si
    je      bios_failed
    inc     bp                          // no key
    mov     ah, 1
    int     0x16
    jnz     bios_failed
    xor     bp, bp
bios_failed:
    movzx   eax, bp
    mov     dx, DONE
    out     dx, eax
    hlt
.balign 256
    .asciz  "printed by INT 0x10\r\n"
.balign 64
    push    ds
    push    0
    pop     ds
    inc     word ptr [HOOKED]
    pop     ds
    iret
bios_test_end:
.code64
