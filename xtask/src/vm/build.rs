//! Building the programs that go into a guest.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::contents::{self, Programs};
use crate::workspace::Workspace;
use crate::{build_ebpf, child, host_build, setup};

/// Builds `gpu-tracer` as users get it, the scenario program, the tests and the stand-in NVML. `work` is a folder for
/// what cargo does not build.
pub(crate) fn all(workspace: &Workspace, work: &Path) -> Result<Programs> {
    build_ebpf::build(workspace, &setup::for_build()?, false)?;
    let built = host_build::release(workspace)?;
    let mut programs = driver_programs(workspace, work)?;
    programs.programs.push(("gpu-tracer".to_owned(), built.gpu_tracer));
    programs.programs.push(("scenario".to_owned(), built.scenario));
    let tests = ["test", "--package", "gpu-tracer-tests", "--tests", "--no-run"];
    programs.tests = artifacts(workspace, &tests)?.iter().filter_map(test_program).collect();
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

/// The name and file of an integration test.
fn test_program(artifact: &serde_json::Value) -> Option<(String, PathBuf)> {
    let is_test = artifact["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    let file = artifact["executable"].as_str()?;
    is_test.then_some((artifact["target"]["name"].as_str()?.to_owned(), file.into()))
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
    fn only_integration_tests_are_taken_from_what_cargo_built() {
        let test = json!({"target": {"kind": ["test"], "name": "holders"}, "executable": "/t/holders-1"});
        assert_eq!(test_program(&test), Some(("holders".into(), "/t/holders-1".into())));
        let unit = json!({"target": {"kind": ["lib"], "name": "x"}, "executable": "/t/x-1"});
        assert_eq!(test_program(&unit), None);
        let program = json!({"target": {"kind": ["bin"], "name": "x"}, "executable": "/t/x"});
        assert_eq!(test_program(&program), None);
        assert_eq!(test_program(&json!({"reason": "build-finished"})), None);
    }

    #[test]
    fn the_library_is_found_among_the_files_of_its_target() {
        let built = json!({"target": {"name": "nvidia_ml"}, "filenames": ["/t/libnvidia_ml.d", "/t/libnvidia_ml.so"]});
        assert_eq!(nvml(&built), Some("/t/libnvidia_ml.so".into()));
        assert_eq!(nvml(&json!({"target": {"name": "other"}, "filenames": ["/t/x.so"]})), None);
    }
}
