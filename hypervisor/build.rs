//! Gives the linker the image's layout, for bare-metal targets only.

fn main() {
    println!("cargo:rerun-if-changed=image.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("none") {
        let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
        println!("cargo:rustc-link-arg-bins=-T{dir}/image.ld");
        println!("cargo:rustc-link-arg-bins=--no-dynamic-linker");
        println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
        println!("cargo:rustc-link-arg-bins=--orphan-handling=warn");
    }
}
