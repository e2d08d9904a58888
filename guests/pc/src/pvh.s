// The note of a program that is started by PVH (Xen, "x86/HVM direct boot ABI"): the entry point's physical address, XEN_ELFNOTE_PHYS32_ENTRY.

.section .note.Xen, "a", @note
.balign 4
    .long 4                         // length of the name, and of the value
    .long 4
    .long 18
    .asciz "Xen"
    .long _start
