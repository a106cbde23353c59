//! What `gpu-tracer doctor` reports (JSON schema 1): fields may be added, never renamed.

use serde::{Deserialize, Serialize};

use super::ExitStatus;

/// What works on this host, and what to do about the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// [`super::report::SCHEMA`].
    pub schema: u32,
    /// Version of this program.
    pub version: String,
    /// Release of the running kernel, as `uname -r` prints it.
    pub kernel: String,
    /// The plan that would be used now: `snapshot`, `proc`, `lean`, `full`, ...
    pub plan: String,
    /// The outcome; follows from the checks.
    pub ability: Ability,
    /// One by one, in the order in which to read them.
    pub checks: Vec<Check>,
    /// Devices that count as GPU handles here.
    pub devices: Vec<FoundDevice>,
}

impl DoctorReport {
    /// With the outcome that follows from the checks, see [`Ability::of`].
    #[must_use]
    pub fn new(kernel: String, plan: String, checks: Vec<Check>, devices: Vec<FoundDevice>) -> Self {
        Self {
            schema: super::report::SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel,
            plan,
            ability: Ability::of(&checks),
            checks,
            devices,
        }
    }

    /// What the program tells its caller.
    #[must_use]
    pub fn exit_status(&self) -> ExitStatus {
        match self.ability {
            Ability::Full => ExitStatus::Free,
            Ability::Degraded => ExitStatus::Held,
            Ability::Unable => ExitStatus::Error,
        }
    }
}

/// How much of the job can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    /// All of it.
    Full,
    /// Answers are given, but some of them will be "unknown" where they could be certain.
    Degraded,
    /// Nothing of use.
    Unable,
}

impl Ability {
    /// An essential check that is not [`Answer::Yes`] or [`Answer::Degraded`] makes it [`Ability::Unable`]; otherwise any essential or
    /// wanted check that is not [`Answer::Yes`] makes it [`Ability::Degraded`].
    #[must_use]
    pub fn of(checks: &[Check]) -> Self {
        let failed = |check: &&Check| matches!(check.answer, Answer::No | Answer::Denied);
        let short = |check: &&Check| check.answer != Answer::Yes;
        if checks.iter().filter(|check| check.need == Need::Essential).any(|check| failed(&check)) {
            Self::Unable
        } else if checks.iter().filter(|check| check.need != Need::Optional).any(|check| short(&check)) {
            Self::Degraded
        } else {
            Self::Full
        }
    }
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A stable word for scripts: `btf`, `iter/task`, `kprobe`, `privilege`, ...
    pub name: String,
    /// Does it work?
    pub answer: Answer,
    /// How much depends on it?
    pub need: Need,
    /// What was found, for a person.
    pub detail: String,
    /// What to do about it; `null` where nothing is to be done.
    pub remedy: Option<String>,
}

/// Does it work?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It does.
    Yes,
    /// This kernel or host does not have it.
    No,
    /// It is there and may not be used: privilege or policy.
    Denied,
    /// It works in part.
    Degraded,
}

/// How much depends on a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// Without it nothing can be answered.
    Essential,
    /// Without it some answers are "unknown".
    Wanted,
    /// Something else does the same job.
    Optional,
}

/// A device, or a range of devices, that counts as a GPU handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundDevice {
    /// Name without `/dev/`: `nvidia0`.
    pub name: String,
    /// `MAJOR:MINOR`, or `MAJOR:FIRST-LAST`.
    pub number: String,
    /// GPU index; `null` for shared devices.
    pub gpu: Option<u32>,
    /// How it is known: `driver` (`/proc/driver/nvidia`), `/proc/devices`, `--device`.
    pub source: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: Answer, need: Need) -> Check {
        Check { name: "x".to_owned(), answer, need, detail: String::new(), remedy: None }
    }

    #[test]
    fn the_outcome_is_that_of_the_worst_check_that_matters() {
        let outcome = |checks: &[Check]| {
            let report = DoctorReport::new("6.1".to_owned(), "proc".to_owned(), checks.to_vec(), Vec::new());
            report.exit_status()
        };
        let fine = check(Answer::Yes, Need::Essential);
        assert_eq!(outcome(&[fine.clone(), check(Answer::No, Need::Optional)]), ExitStatus::Free);
        assert_eq!(outcome(&[fine.clone(), check(Answer::Denied, Need::Wanted)]), ExitStatus::Held);
        assert_eq!(outcome(&[fine.clone(), check(Answer::Degraded, Need::Essential)]), ExitStatus::Held);
        assert_eq!(
            outcome(&[fine, check(Answer::No, Need::Wanted), check(Answer::Denied, Need::Essential)]),
            ExitStatus::Error
        );
        assert_eq!(outcome(&[]), ExitStatus::Free);
    }
}
