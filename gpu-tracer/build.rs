//! Puts the BPF object where `include_bytes!(concat!(env!("OUT_DIR"), "/gpu-tracer.bpf.o"))` finds it.
//!
//! `cargo xtask build-ebpf` makes the object, as `target/bpf/gpu-tracer.bpf.o` in the workspace. Packagers who make it
//! elsewhere name it in `GPU_TRACER_BPF_OBJECT`. Where there is none an empty file takes its place: the crate then
//! builds, and the program says that it was built without its BPF object.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const CHOSEN: &str = "GPU_TRACER_BPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={CHOSEN}");
    let object = match env::var_os(CHOSEN).filter(|path| !path.is_empty()) {
        Some(path) => read_chosen(Path::new(&path)),
        None => read_built(),
    };
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("gpu-tracer.bpf.o");
    if let Err(error) = fs::write(&copy, object) {
        fail(&format!("cannot write {}: {error}", copy.display()));
    }
}

/// The object that somebody named: it must be there.
fn read_chosen(path: &Path) -> Vec<u8> {
    println!("cargo::rerun-if-changed={}", path.display());
    fs::read(path).unwrap_or_else(|error| fail(&format!("{CHOSEN}: cannot read {}: {error}", path.display())))
}

/// The object that `cargo xtask build-ebpf` made, or nothing.
fn read_built() -> Vec<u8> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let folder = manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf).join("target/bpf");
    // The folder is watched, not the file: a watched path that does not exist makes cargo build the crate again every
    // time. Nothing but the object lies in it.
    if fs::create_dir_all(&folder).is_ok() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let object = folder.join("gpu-tracer.bpf.o");
    match fs::read(&object) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
                println!(
                    "cargo::warning=there is no BPF object ({}): gpu-tracer will see only what /proc shows. \
                     `cargo xtask build-ebpf` makes it.",
                    object.display()
                );
            }
            Vec::new()
        }
        Err(error) => fail(&format!("cannot read {}: {error}", object.display())),
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    std::process::exit(1);
}
