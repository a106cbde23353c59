//! What the guest reports, between the lines that its programs print.

use anyhow::{Context as _, Result};

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It passed.
    Ok,
    /// It failed, or was killed because it took too long.
    Failed,
    /// It says of itself that it is not to be run.
    Ignored,
}

/// The guest's last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Exit status of the command, or 0 when every test passed.
    pub(crate) status: u8,
    /// How many tests passed.
    pub(crate) passed: u32,
    /// How many did not.
    pub(crate) failed: u32,
    /// How many were not run.
    pub(crate) ignored: u32,
}

impl Verdict {
    /// On tests that ended so.
    pub(crate) fn of(endings: impl IntoIterator<Item = Ending>) -> Self {
        let mut verdict = Self { status: 0, passed: 0, failed: 0, ignored: 0 };
        for ending in endings {
            match ending {
                Ending::Ok => verdict.passed += 1,
                Ending::Failed => (verdict.failed, verdict.status) = (verdict.failed + 1, 1),
                Ending::Ignored => verdict.ignored += 1,
            }
        }
        verdict
    }

    /// Both boots.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            status: self.status.max(other.status),
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

/// One report of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The system is up and begins with what it was started for.
    Up {
        /// The kernel, as `uname -r` says.
        release: String,
    },
    /// A test ended.
    Test {
        /// Its name, with the program that it is in.
        name: String,
        /// How it ended.
        ending: Ending,
        /// How long it took, in ms of the guest's time.
        took_ms: u64,
    },
    /// A test is still there well after it should have been killed.
    Hung {
        /// Its name.
        name: String,
    },
    /// There is more to do after another boot with the same disk.
    Again {
        /// What that boot is told; greater than what this one was.
        stage: u8,
    },
    /// The power is to be cut now: the guest will not end by itself.
    Cut,
    /// Everything is done; the guest powers off now.
    Verdict(Verdict),
}

/// Splits a line into what a program printed and the guest's report, which begins at its marker.
pub(crate) fn split<'a>(line: &'a str, nonce: &str) -> (&'a str, Option<Result<Report>>) {
    let marker = format!("@vm-{nonce} ");
    match line.split_once(&marker) {
        Some((printed, report)) => {
            (printed, Some(parse(report).with_context(|| format!("the guest reports nonsense: {report}"))))
        }
        None => (line, None),
    }
}

fn parse(report: &str) -> Option<Report> {
    let report = report.trim_end();
    let (kind, rest) = report.split_once(' ').unwrap_or((report, ""));
    match kind {
        "up" => Some(Report::Up { release: rest.to_owned() }),
        "hung" => Some(Report::Hung { name: rest.to_owned() }),
        "again" => Some(Report::Again { stage: rest.parse().ok()? }),
        "cut" if rest.is_empty() => Some(Report::Cut),
        "test" => {
            let mut words = rest.splitn(3, ' ');
            let ending = match words.next()? {
                "ok" => Ending::Ok,
                "failed" => Ending::Failed,
                "ignored" => Ending::Ignored,
                _ => return None,
            };
            let took_ms = words.next()?.parse().ok()?;
            Some(Report::Test { name: words.next()?.to_owned(), ending, took_ms })
        }
        "verdict" => {
            let fields: serde_json::Value = serde_json::from_str(rest).ok()?;
            let number = |name: &str| fields[name].as_u64();
            let count = |name: &str| number(name).and_then(|count| u32::try_from(count).ok());
            Some(Report::Verdict(Verdict {
                status: u8::try_from(number("status")?).ok()?,
                passed: count("passed")?,
                failed: count("failed")?,
                ignored: count("ignored")?,
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(line: &str) -> Option<Report> {
        split(line, "n1").1.map(Result::unwrap)
    }

    #[test]
    fn every_report_is_understood() {
        let name = "a::b".to_owned();
        let cases = [
            ("@vm-n1 up 6.1.0-57-amd64", Report::Up { release: "6.1.0-57-amd64".into() }),
            (
                "@vm-n1 test ok 120 a::b",
                Report::Test { name: name.clone(), ending: Ending::Ok, took_ms: 120 },
            ),
            ("@vm-n1 hung a::b", Report::Hung { name }),
            ("@vm-n1 again 2", Report::Again { stage: 2 }),
            ("@vm-n1 cut", Report::Cut),
            (
                r#"@vm-n1 verdict {"status":1,"passed":3,"failed":2,"ignored":0}"#,
                Report::Verdict(Verdict { status: 1, passed: 3, failed: 2, ignored: 0 }),
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(report(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_a_program_prints_is_not_a_report() {
        assert_eq!(report("hello"), None);
        assert_eq!(report(r#"@vm-other verdict {"status":0,"passed":1,"failed":0,"ignored":0}"#), None);
    }

    #[test]
    fn a_report_behind_an_unfinished_line_is_found() {
        let (printed, report) = split("no newline@vm-n1 up 5.10", "n1");
        assert_eq!(printed, "no newline");
        assert!(matches!(report, Some(Ok(Report::Up { .. }))));
    }

    #[test]
    fn a_damaged_report_is_an_error() {
        for line in
            ["@vm-n1 verdict {", "@vm-n1 test maybe 1 a", "@vm-n1 x y", "@vm-n1 again", "@vm-n1 cut 1"]
        {
            assert!(matches!(split(line, "n1").1, Some(Err(_))), "{line}");
        }
    }
}
