//! Where things lie in the source tree and in its build folders.

use std::env;
use std::path::{Path, PathBuf};

/// The source tree and its build folders.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The workspace that this program was built from. Honours `CARGO_TARGET_DIR`, relative to the current folder
    /// as cargo takes it.
    pub(crate) fn locate() -> Self {
        // Set by `cargo run`; the path at compile time serves a binary started by hand.
        let manifest = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest.parent().map_or_else(|| manifest.clone(), Path::to_path_buf);
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| PathBuf::from(folder)),
            None => root.join("target"),
        };
        Self { root, target }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder that holds the finished BPF object and nothing that cargo writes: `gpu-tracer/build.rs` watches it,
    /// so it does not follow `CARGO_TARGET_DIR`.
    pub(crate) fn bpf_folder(&self) -> PathBuf {
        self.root.join("target/bpf")
    }

    /// The BPF object that `gpu-tracer/build.rs` embeds.
    pub(crate) fn bpf_object(&self) -> PathBuf {
        self.bpf_folder().join("gpu-tracer.bpf.o")
    }

    /// Cargo's build folder for the BPF target, apart from the host's so that neither waits for the other's lock.
    pub(crate) fn bpf_target(&self) -> PathBuf {
        self.target.join("bpf-build")
    }

    /// Cargo's build folder for a statically linked program, whose flags would otherwise make the host's build anew.
    pub(crate) fn static_target(&self) -> PathBuf {
        self.target.join("static")
    }

    /// A program of the host's release build.
    pub(crate) fn release_program(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }
}
