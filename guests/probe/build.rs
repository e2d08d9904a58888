//! Passes the guest's layout to the linker, and on Arm the size for the arm64 Image header.

fn main() {
    let guests = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let arm = std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("aarch64");
    let layout = format!("{guests}/{}", if arm { "payload/layout.ld" } else { "pc/layout.ld" });
    println!("cargo::rerun-if-changed={layout}");
    println!("cargo::rustc-link-arg-bins=-T{layout}");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
    if arm {
        println!("cargo::rustc-link-arg-bins=--defsym=__image_size=__image_end-0x40080000");
    } else {
        println!("cargo::rustc-link-arg-bins=--no-dynamic-linker");
    }
}
