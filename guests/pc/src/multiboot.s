// The header of a program that is started by Multiboot (Multiboot Specification 0.6.96, 3.1): magic, flags (memory map), checksum.

.section .multiboot, "a"
.balign 4
    .long 0x1badb002
    .long 2
    .long -(0x1badb002 + 2)
