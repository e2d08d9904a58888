//! Gives the linker the layout of a guest, and the size that the header of an arm64 Image states.

fn main() {
    let layout = concat!(env!("CARGO_MANIFEST_DIR"), "/../payload/layout.ld");
    println!("cargo::rerun-if-changed={layout}");
    println!("cargo::rustc-link-arg-bins=-T{layout}");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    println!("cargo::rustc-link-arg-bins=--defsym=__image_size=__image_end-0x40080000");
}
