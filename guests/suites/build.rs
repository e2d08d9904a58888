//! Gives the linker the layout of a guest. Here and not in `.cargo/config.toml`, because a `RUSTFLAGS` in the
//! environment would replace flags that stand there.

fn main() {
    let layout = concat!(env!("CARGO_MANIFEST_DIR"), "/../payload/layout.ld");
    println!("cargo::rerun-if-changed={layout}");
    println!("cargo::rustc-link-arg-bins=-T{layout}");
    println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
}
