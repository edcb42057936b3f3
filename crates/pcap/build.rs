//! Names the library as programs ask for it, so that the dynamic linker takes it for theirs; and
//! the folder of the system's.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // Debian's name of the architecture's folder.
    println!("cargo:rustc-env=WEIR_TRIPLET={arch}-linux-gnu");
}
