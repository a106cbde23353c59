//! Exit statuses: a contract that scripts rely on.

use std::process::ExitCode;

/// What the process tells its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Nobody holds it (`holders`), free (`why`, `wait`, `release`), fully able (`doctor`).
    Free = 0,
    /// Held; for `why` and its kin: by something that can be killed. `doctor`: degraded.
    Held = 1,
    /// Wrong usage or an internal error; `doctor`: cannot work.
    Error = 2,
    /// Not everything could be seen: the answer is unknown.
    Unknown = 3,
    /// Stuck: SIGKILL will not help.
    Stuck = 4,
    /// Memory is in use and no handle exists.
    NoHandle = 5,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status as u8)
    }
}
