//! `cargo xtask build-ebpf`: compiles the BPF programs into the object that gpu-tracer embeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::bpf_toolchain::Toolchain;
use crate::child;
use crate::fingerprint::Fingerprint;
use crate::setup;
use crate::workspace::Workspace;

/// Arguments of `build-ebpf`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Compile even if nothing changed since the last time.
    #[arg(long)]
    force: bool,
    /// Where to put a copy of the object, for packaging.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const TARGET: &str = "bpfel-unknown-none";

/// Runs `build-ebpf`.
pub(crate) fn task(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let toolchain = setup::for_build()?;
    let object = workspace.bpf_object();
    match build(workspace, &toolchain, arguments.force)? {
        true => println!("build-ebpf: {}", object.display()),
        false => println!("build-ebpf: {} is up to date", object.display()),
    }
    if let Some(out) = &arguments.out {
        fs::copy(&object, out).with_context(|| format!("cannot copy the object to {}", out.display()))?;
    }
    Ok(())
}

/// Brings the object up to date; says whether it had to compile.
pub(crate) fn build(workspace: &Workspace, toolchain: &Toolchain, force: bool) -> Result<bool> {
    let (object, record) = (workspace.bpf_object(), workspace.bpf_target().join("inputs"));
    let inputs = inputs(workspace, toolchain)?;
    if !force && object.is_file() && fs::read_to_string(&record).is_ok_and(|before| before == inputs) {
        return Ok(false);
    }
    println!("build-ebpf: compiling");
    child::run(&mut compile(workspace, toolchain))?;
    let compiled = workspace.bpf_target().join(TARGET).join("release/gpu-tracer-bpf");
    let bytes = fs::read(&compiled).with_context(|| format!("cannot read {}", compiled.display()))?;
    check_object(&bytes).with_context(|| format!("{} is not what it should be", compiled.display()))?;
    let bytes = without_dwarf(&bytes).context("the object's debug information cannot be taken out")?;
    replace_if_different(&object, &bytes)?;
    fs::write(&record, inputs).with_context(|| format!("cannot write {}", record.display()))?;
    Ok(true)
}

/// What `bpf_target_arch` stands for: whose registers a kprobe's context holds.
fn target_arch() -> &'static str {
    match std::env::consts::ARCH {
        "powerpc64" | "powerpc" => "powerpc",
        "riscv64" => "riscv64",
        "arm" => "arm",
        other => other,
    }
}

fn rustflags() -> String {
    // Cargo separates encoded flags with the unit separator. `--btf` keeps the type information that kernels want.
    [&format!("--cfg=bpf_target_arch=\"{}\"", target_arch()), "-Cdebuginfo=2", "-Clink-arg=--btf"]
        .join("\x1f")
}

fn compile(workspace: &Workspace, toolchain: &Toolchain) -> Command {
    let mut cargo = toolchain.compiler.cargo.as_ref().map_or_else(child::cargo, Command::new);
    cargo
        .current_dir(workspace.root())
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--package",
            "gpu-tracer-ebpf",
            "--bin",
            "gpu-tracer-bpf",
        ])
        .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(workspace.bpf_target())
        .env("RUSTC", &toolchain.compiler.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags())
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker.program);
    // Meant for the host's programs, by whoever set them.
    for name in ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}

fn inputs(workspace: &Workspace, toolchain: &Toolchain) -> Result<String> {
    let root = workspace.root();
    let mut inputs = Fingerprint::default();
    for folder in ["gpu-tracer-ebpf", "gpu-tracer-common"] {
        inputs.folder(root, &root.join(folder))?;
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        inputs.file(root, &root.join(file))?;
    }
    inputs.text("compiler", &toolchain.compiler.version.text);
    inputs.text("linker", &identity(&toolchain.linker.program)?);
    inputs.text("flags", &rustflags());
    Ok(inputs.finish())
}

/// What changes when a program is replaced, without reading all of it.
fn identity(program: &Path) -> Result<String> {
    let found = fs::metadata(program).with_context(|| format!("cannot look at {}", program.display()))?;
    Ok(format!("{} {} {:?}", program.display(), found.len(), found.modified()?))
}

/// Refuses what is no BPF object: an ELF file, 64 bits, little-endian, machine 247 (`EM_BPF`).
fn check_object(bytes: &[u8]) -> Result<()> {
    const EM_BPF: u16 = 247;
    match bytes {
        [0x7f, b'E', b'L', b'F', 2, 1, ..] if bytes.get(18..20) == Some(&EM_BPF.to_le_bytes()) => Ok(()),
        _ => bail!("not a little-endian 64-bit ELF file for BPF"),
    }
}

/// Takes out what only a debugger reads: four fifths of the object, which every gpu-tracer would carry and go through
/// whenever it loads programs. What kernels read (`.BTF`, `.BTF.ext`) stays.
fn without_dwarf(bytes: &[u8]) -> Result<Vec<u8>> {
    use object::build::elf::{Builder, SectionData};
    let mut builder = Builder::read(bytes)?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete |= name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections among those of symbols, which the writer does not.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = object::elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// Writes the object, unless it already says the same: its time stamp makes cargo compile gpu-tracer again.
fn replace_if_different(object: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(object).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let folder = object.parent().context("the object has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // A half-written object must never be found under its name.
    let partial = object.with_extension("partial");
    fs::write(&partial, bytes).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, object).with_context(|| format!("cannot replace {}", object.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, order: u8, machine: u16) -> Vec<u8> {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', class, order];
        bytes.resize(18, 0);
        bytes.extend(machine.to_le_bytes());
        bytes
    }

    #[test]
    fn only_a_bpf_object_is_accepted() {
        check_object(&header(2, 1, 247)).unwrap();
        for wrong in
            [header(2, 1, 62), header(1, 1, 247), header(2, 2, 247), Vec::new(), b"\x7fELF\x02\x01".to_vec()]
        {
            assert!(check_object(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_only_a_debugger_reads_is_taken_out_and_types_stay() {
        use object::build::elf::{Builder, SectionData};
        let mut builder = Builder::new(object::Endianness::Little, true);
        for (name, data) in [
            (".shstrtab", None),
            ("iter/task", Some("code")),
            (".debug_info", Some("long")),
            (".BTF", Some("types")),
        ] {
            let section = builder.sections.add();
            section.name = name.as_bytes().to_vec().into();
            section.sh_addralign = 1;
            (section.sh_type, section.data) = match data {
                Some(data) => (object::elf::SHT_PROGBITS, SectionData::Data(data.as_bytes().to_vec().into())),
                None => (object::elf::SHT_STRTAB, SectionData::SectionString),
            };
        }
        let mut whole = Vec::new();
        builder.write(&mut whole).unwrap();
        let stripped = without_dwarf(&whole).unwrap();
        let has =
            |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has(&whole, "long") && !has(&stripped, "long") && !has(&stripped, ".debug_info"));
        assert!(has(&stripped, "code") && has(&stripped, "types") && has(&stripped, ".BTF"));
    }

    #[test]
    fn an_unchanged_object_keeps_its_time_stamp() {
        let folder = std::env::temp_dir().join(format!("xtask-object-{}", std::process::id()));
        let object = folder.join("deep/object.o");
        replace_if_different(&object, b"one").unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options().write(true).open(&object).unwrap().set_modified(old).unwrap();
        replace_if_different(&object, b"one").unwrap();
        assert_eq!(fs::metadata(&object).unwrap().modified().unwrap(), old);
        replace_if_different(&object, b"two").unwrap();
        assert_eq!(fs::read(&object).unwrap(), b"two");
        assert_ne!(fs::metadata(&object).unwrap().modified().unwrap(), old);
        fs::remove_dir_all(&folder).unwrap();
    }
}
