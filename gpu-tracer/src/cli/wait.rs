//! `gpu-tracer wait`

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::Answers;
use super::screen::Screen;
use super::why::{Whom, view};
use crate::answer::WaitOptions;
use crate::diagnose::ROLES;
use crate::kernel::devices::ExtraDevice;
use crate::model::ExitStatus;
use crate::render::text::{escape_sentence, escape_str};
use crate::render::{self, Format};

/// Wait until GPUs are free
///
/// Returns 0 when every GPU asked about is free: its files are released, not merely their holders gone, and memory is back where NVML
/// tells. Says on standard error every ten seconds why it still waits. At the timeout it prints what `why` prints.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    whom: Whom,

    /// Give up after this time: 60s, 5m, 500ms; 0 asks once [default: wait for ever]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// Be content with less than so much used memory, whoever holds the GPU: 1GiB, 500MiB
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    below: Option<u64>,

    /// Do not wait for holders of this role (repeatable, or separated by commas)
    ///
    /// infrastructure stands for all that hold devices on purpose: persistence daemon, DCGM, device plugins, displays, monitors. initialised are
    /// processes that have called cuInit and nothing else.
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = PossibleValuesParser::new(ROLES))]
    ignore: Vec<String>,
}

/// `60s`, `1m 30s`, or seconds as a plain number.
pub(super) fn duration(text: &str) -> anyhow::Result<Duration> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let span: jiff::SignedDuration =
        text.parse().with_context(|| format!("`{}` is no time: write 60s, 5m or 500ms", escape_str(text)))?;
    Duration::try_from(span).map_err(|_| anyhow::anyhow!("a time cannot be negative"))
}

/// `1GiB`, `500MiB`, `2GB`, in MiB, rounded up.
fn mebibytes(text: &str) -> anyhow::Result<u64> {
    const UNITS: &[(&str, u64)] = &[
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let upper = text.trim().to_ascii_uppercase();
    let wrong = || format!("`{}` is no size: write 1GiB or 500MiB", escape_str(text));
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((upper.strip_suffix(name)?.trim(), *unit)))
        .with_context(wrong)?;
    let number: u64 = number.parse().ok().with_context(wrong)?;
    Ok(number.checked_mul(unit).with_context(wrong)?.div_ceil(1 << 20))
}

impl Arguments {
    /// The status at the end, and whether it could be written.
    pub(super) fn run(
        &self,
        devices: Vec<ExtraDevice>,
        answers: &dyn Answers,
        screen: &Screen,
        out: &mut dyn io::Write,
    ) -> anyhow::Result<(ExitStatus, io::Result<()>)> {
        let options =
            WaitOptions { timeout: self.timeout, below_mib: self.below, ignore: self.ignore.clone() };
        let mut say = |line: &str| {
            // Nobody may be listening; the waiting goes on.
            let _ = writeln!(io::stderr(), "gpu-tracer: {}", escape_sentence(line));
        };
        let waited = answers.wait(&self.whom.question(devices), &options, &mut say)?;
        let written = if waited.status == ExitStatus::Free {
            Ok(())
        } else {
            render::why::why(&waited.diagnosis, Format::Table, &view(screen, false), out)
        };
        Ok((waited.status, written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read_with_their_units() {
        let time = |text: &str| duration(text).map(|time| time.as_millis()).ok();
        assert_eq!(
            ["60s", "5m", "500ms", "90", "0", "1m 30s"].map(time),
            [60_000, 300_000, 500, 90_000, 0, 90_000].map(Some)
        );
        assert_eq!(["", "-5s", "soon", "5 parsecs"].map(time), [None; 4]);
        let size = |text: &str| mebibytes(text).ok();
        assert_eq!(["1GiB", "500 MiB", "1gib", "2GB", "1B"].map(size), [1024, 500, 1024, 1908, 1].map(Some));
        assert_eq!(["", "5", "GiB", "-1GiB", "99999999999999999GiB"].map(size), [None; 5]);
    }
}
