//! A stand-in for a GPU device, and real processes that hold it in ways that other tools lose.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::child;
use crate::interrupt;

/// The device that stands in for a GPU: `/dev/zero`'s number, which can be mapped and harms nobody.
pub(crate) const STANDIN: (u32, u32) = (1, 5);

/// How the program is told to take it for a GPU.
pub(crate) const STANDIN_ARGUMENT: &str = "1:5=nvidia0";

/// A private folder with a device node in it. Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: PathBuf,
    node: PathBuf,
}

impl Stage {
    /// Makes the folder and the node. Needs the privilege to make device nodes, and a file system that honours them.
    pub(crate) fn set_up() -> Result<Self> {
        let mut failures = Vec::new();
        // A temporary folder may lie on a file system without devices (`nodev`); the others then serve.
        for parent in [std::env::temp_dir(), "/var/tmp".into(), "/run".into(), "/dev".into()] {
            match Self::set_up_in(&parent) {
                Ok(stage) => return Ok(stage),
                Err(error) => failures.push(format!("{}: {error:#}", parent.display())),
            }
        }
        bail!(
            "cannot make a device node (as root, with CAP_MKNOD, on a file system that is not mounted nodev):\n{}",
            failures.join("\n")
        )
    }

    fn set_up_in(parent: &Path) -> Result<Self> {
        let folder = private_folder(parent)?;
        let stage = Self { node: folder.join("nvidia0"), folder };
        let path = CString::new(stage.node.as_os_str().as_bytes())?;
        // SAFETY: the path is a NUL-terminated string that outlives the call.
        let made =
            unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(STANDIN.0, STANDIN.1)) };
        if made != 0 {
            return Err(std::io::Error::last_os_error()).context("mknod failed");
        }
        fs::File::open(&stage.node).context("cannot open the new node")?;
        Ok(stage)
    }

    /// The device node.
    pub(crate) fn node(&self) -> &Path {
        &self.node
    }

    /// The private folder, for files that go with it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn private_folder(parent: &Path) -> Result<PathBuf> {
    let mut template = parent.join("gpu-tracer-XXXXXX").into_os_string().into_encoded_bytes();
    template.push(0);
    // SAFETY: the template is NUL-terminated and writable; mkdtemp changes only its last six characters.
    if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
        return Err(std::io::Error::last_os_error()).context("mkdtemp failed");
    }
    template.pop();
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&template)))
}

/// A running scenario program and what it said it staged. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Scenario {
    child: Child,
    /// The line that it printed when everything was in place.
    pub(crate) staged: serde_json::Value,
}

impl Scenario {
    /// Starts a scenario on a device and waits until it is staged, at most 30 s.
    pub(crate) fn start(program: &Path, name: &str, node: &Path) -> Result<Self> {
        Self::start_command(Command::new(program).args([name, "--device"]).arg(node), name)
    }

    /// Starts any program that behaves as scenarios do: prints one line of JSON when it is ready, and cleans up and ends
    /// at the end of its input.
    pub(crate) fn start_command(command: &mut Command, name: &str) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Its own group: a Ctrl-C at the terminal is for us, and we end it in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{}`", child::shown(command)))?;
        let output = child.stdout.take();
        let mut scenario = Self { child, staged: serde_json::Value::Null };
        let (send, lines) = mpsc::channel();
        // The thread ends with the pipe, that is with the scenario.
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        let line = loop {
            interrupt::check()?;
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("scenario {name} did not say within 30 s that it is staged")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = scenario.child.wait()?;
                    bail!("scenario {name} ended before it was staged ({status})")
                }
            }
        };
        scenario.staged = serde_json::from_str(&line)
            .with_context(|| format!("scenario {name} printed something else than JSON: {line}"))?;
        Ok(scenario)
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        // The end of its input tells it to clean up.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(3);
        if matches!(interrupt::wait_until(&mut self.child, deadline), Ok(Some(_))) {
            return;
        }
        // SAFETY: takes numbers only; the group is that of our own child, which has not been reaped.
        unsafe { libc::killpg(self.child.id().cast_signed(), libc::SIGKILL) };
        let _ = interrupt::wait_until(&mut self.child, Instant::now() + Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scenario program in shell: stages, leaves a marker, waits for the end of its input, removes the marker.
    fn program(folder: &Path, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let file = folder.join("scenario");
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn folder() -> Folder {
        Folder(private_folder(&std::env::temp_dir()).unwrap())
    }

    #[test]
    fn a_scenario_is_there_until_dropped_and_then_cleans_up() {
        let folder = folder();
        let marker = folder.0.join("marker");
        let body = format!("touch {m}; echo '{{\"pids\":['$$']}}'; read line; rm {m}", m = marker.display());
        let scenario = Scenario::start(&program(&folder.0, &body), "any", Path::new("/dev/zero")).unwrap();
        assert!(marker.exists());
        assert!(scenario.staged["pids"][0].is_u64(), "{}", scenario.staged);
        drop(scenario);
        assert!(!marker.exists());
    }

    #[test]
    fn a_scenario_that_fails_is_an_error_with_its_status() {
        let folder = folder();
        let error =
            Scenario::start(&program(&folder.0, "exit 7"), "broken", Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("broken") && error.to_string().contains('7'), "{error}");
    }

    #[test]
    fn a_scenario_that_says_something_else_is_an_error() {
        let folder = folder();
        let error =
            Scenario::start(&program(&folder.0, "echo hello; read line"), "odd", Path::new("/dev/zero"));
        assert!(format!("{:#}", error.unwrap_err()).contains("hello"));
    }
}
