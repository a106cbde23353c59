//! Building the programs that go into a guest.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::contents::{self, Programs};
use crate::workspace::Workspace;
use crate::{build_ebpf, child, setup};

/// Builds `gpu-tracer` and the scenario program, as users get them unless `development`; then the tests and the stand-in
/// NVML. `work` is a folder for what cargo does not build.
pub(crate) fn all(workspace: &Workspace, work: &Path, development: bool) -> Result<Programs> {
    build_ebpf::build(workspace, &setup::for_build()?, false)?;
    let mut programs = driver_programs(workspace, work)?;
    let mut arguments = vec!["build", "--package", "gpu-tracer", "--package", "gpu-tracer-tests", "--bins"];
    if !development {
        arguments.push("--release");
    }
    programs
        .programs
        .extend(artifacts(workspace, &arguments)?.iter().filter_map(|built| executable(built, "bin")));
    let tests = ["test", "--package", "gpu-tracer-tests", "--tests", "--no-run"];
    programs.tests =
        artifacts(workspace, &tests)?.iter().filter_map(|built| executable(built, "test")).collect();
    programs.nvml = artifacts(workspace, &["build", "--package", "standin-nvml"])?.iter().find_map(nvml);
    Ok(programs)
}

/// Builds only what tests the stand-in driver by itself.
pub(crate) fn driver_programs(workspace: &Workspace, work: &Path) -> Result<Programs> {
    std::fs::create_dir_all(work).with_context(|| format!("cannot create {}", work.display()))?;
    let selftest = work.join("standin-selftest");
    contents::compile(&workspace.root().join("tests/standin-driver/selftest.c"), &selftest)?;
    Ok(Programs { programs: vec![("standin-selftest".to_owned(), selftest)], ..Programs::default() })
}

/// What cargo says of each thing that it built.
fn artifacts(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<serde_json::Value>> {
    let mut cargo = child::cargo();
    cargo.current_dir(workspace.root()).args(arguments);
    // Rendered warnings go to the terminal; stdout has one JSON value a line.
    cargo.args(["--locked", "--quiet", "--message-format", "json-render-diagnostics"]);
    cargo.stderr(std::process::Stdio::inherit());
    let output = cargo.output().with_context(|| format!("cannot start `{}`", child::shown(&cargo)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", child::shown(&cargo), output.status);
    }
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The name and file of a program, if it is of this kind: `bin`, or `test` for integration tests.
fn executable(artifact: &serde_json::Value, kind: &str) -> Option<(String, PathBuf)> {
    let is_wanted = artifact["target"]["kind"].as_array()?.iter().any(|of| of == kind);
    let file = artifact["executable"].as_str()?;
    is_wanted.then_some((artifact["target"]["name"].as_str()?.to_owned(), file.into()))
}

/// The file of the stand-in NVML.
fn nvml(artifact: &serde_json::Value) -> Option<PathBuf> {
    if artifact["target"]["name"] != "nvidia_ml" {
        return None;
    }
    let files = artifact["filenames"].as_array()?;
    files.iter().filter_map(|file| file.as_str()).find(|file| file.ends_with(".so")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_and_integration_tests_are_told_apart_in_what_cargo_built() {
        let test = json!({"target": {"kind": ["test"], "name": "holders"}, "executable": "/t/holders-1"});
        assert_eq!(executable(&test, "test"), Some(("holders".into(), "/t/holders-1".into())));
        assert_eq!(executable(&test, "bin"), None);
        let unit = json!({"target": {"kind": ["lib"], "name": "x"}, "executable": "/t/x-1"});
        assert_eq!(executable(&unit, "test"), None);
        let program = json!({"target": {"kind": ["bin"], "name": "x"}, "executable": "/t/x"});
        assert_eq!(executable(&program, "bin"), Some(("x".into(), "/t/x".into())));
        assert_eq!(executable(&json!({"reason": "build-finished"}), "bin"), None);
    }

    #[test]
    fn the_library_is_found_among_the_files_of_its_target() {
        let built = json!({"target": {"name": "nvidia_ml"}, "filenames": ["/t/libnvidia_ml.d", "/t/libnvidia_ml.so"]});
        assert_eq!(nvml(&built), Some("/t/libnvidia_ml.so".into()));
        assert_eq!(nvml(&json!({"target": {"name": "other"}, "filenames": ["/t/x.so"]})), None);
    }
}
