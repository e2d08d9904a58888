//! Gives the linker the image's layout, for bare-metal targets only.

fn main() {
    println!("cargo:rerun-if-changed=image-aarch64.ld");
    println!("cargo:rerun-if-changed=image-x86_64.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
        let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
        println!("cargo:rustc-link-arg-bins=-T{dir}/image-{arch}.ld");
        println!("cargo:rustc-link-arg-bins=--no-dynamic-linker");
        println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
        println!("cargo:rustc-link-arg-bins=--orphan-handling=warn");
    }
}
