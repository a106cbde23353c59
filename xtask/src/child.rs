//! Starting other programs.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command with this program's own output, and fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command quietly; when it fails, the error carries all that it printed.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({})\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// What a command prints; fails with its error output when it fails.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})\n{}", shown(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed something that is not UTF-8", shown(command)))
}

/// Runs a command and returns what it writes on either stream, in the order in which it writes, and its status.
pub(crate) fn merged(command: &mut Command) -> Result<(String, ExitStatus)> {
    let (mut read, write) = io::pipe()?;
    command.stdout(write.try_clone()?).stderr(write);
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", shown(command)))?;
    // The command keeps our copies of the writing end; with those the pipe would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    read.read_to_end(&mut output)?;
    Ok((String::from_utf8_lossy(&output).into_owned(), child.wait()?))
}

/// A command as one would type it, without its environment.
pub(crate) fn shown(command: &Command) -> String {
    let mut text = word(command.get_program());
    for argument in command.get_args() {
        let _ = write!(text, " {}", word(argument));
    }
    text
}

fn word(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// The file that a program's name stands for: `PATH`, then the folders of system programs, which an ordinary user's
/// `PATH` may lack.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

/// Whether this is a file that somebody may execute.
pub(crate) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Whether this program runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("echo");
        command.args(["a", "two words", "it's", "", "x=1"]);
        assert_eq!(shown(&command), r"echo a 'two words' 'it'\''s' '' x=1");
    }

    #[test]
    fn a_failure_carries_what_the_program_said() {
        let error =
            run_quietly(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("out\nerr") && text.contains('3'), "{text}");
    }

    #[test]
    fn both_streams_are_read_in_order() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 4"]);
        let (said, status) = merged(&mut command).unwrap();
        assert_eq!((said.as_str(), status.code()), ("one\ntwo\nthree\n", Some(4)));
    }

    #[test]
    fn programs_are_found_by_name_and_folders_are_not_programs() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-here"), None);
        assert!(!is_executable(Path::new("/")));
    }
}
