//! Hands the linker the order of a start's and a request's functions: `start.ld`, beside this file, says what for.

fn main() {
    println!("cargo::rerun-if-changed=start.ld");
    println!("cargo::rerun-if-changed=build.rs");
    // Other builds start slower for other reasons, and would only wait longer for their linker.
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-T{}/start.ld", env!("CARGO_MANIFEST_DIR"));
    }
}
