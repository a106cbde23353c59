//! Waiting until GPUs are free.
//!
//! What is looked at is the release of files, not the end of processes. NVML is asked only when no handle is left to wait for,
//! or when memory is what is waited for.
//!
//! Where a daemon answers it also tells what happens ([`news`]), and is asked again when that may have been a release. A
//! close is told by nobody under plans `lean` and `full`, so it is asked once a second as well; under `exhaustive` seldom.

mod news;

use std::collections::{BTreeSet, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use self::news::News;

use super::{Ask, Inquiry, Question};
use crate::diagnose::{self, Input, is_infrastructure};
use crate::model::ExitStatus;
use crate::model::diagnosis::{Diagnosis, Verdict};

/// Between two looks, at first and at last: a healthy release takes some hundred ms, waiting for a job hours.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Between two questions to a daemon that tells of everything by itself.
const SELDOM: Duration = Duration::from_secs(10);
/// Between two words on why it is still waiting.
const WORD: Duration = Duration::from_secs(10);

/// What to wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitOptions {
    /// How long; `None` means for ever.
    pub timeout: Option<Duration>,
    /// Less than so much used memory is enough, MiB, whoever holds the GPU.
    pub below_mib: Option<u64>,
    /// Holders of these roles do not matter; `infrastructure` stands for all that hold devices on purpose.
    pub ignore: Vec<String>,
}

/// How the waiting ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// The last look.
    pub diagnosis: Diagnosis,
    /// [`ExitStatus::Free`] if what was waited for came.
    pub status: ExitStatus,
    /// How long it took.
    pub took: Duration,
}

/// Waits; `say` is told every ten seconds why.
///
/// # Errors
/// As for [`why`](super::why()); also memory that is to be waited for where NVML gives no figure.
pub fn wait(question: &Question, options: &WaitOptions, say: &mut dyn FnMut(&str)) -> anyhow::Result<Waited> {
    let mut inquiry = Inquiry::new(question)?;
    let begun = Instant::now();
    let mut interval = INTERVALS.0;
    let mut said: Option<Instant> = None;
    let mut news = News::default();
    loop {
        let over = options.timeout.is_some_and(|timeout| begun.elapsed() >= timeout);
        if !question.standalone {
            news.listen(question.socket.as_deref(), inquiry.gpus());
        }
        let asked_at = Instant::now();
        let (diagnosis, asked_nvml) = look(&mut inquiry, options, over)?;
        let status = status(&diagnosis, options, asked_nvml)?;
        if status == ExitStatus::Free || over {
            return Ok(Waited { diagnosis, status, took: begun.elapsed() });
        }
        if said.is_none_or(|at| at.elapsed() >= WORD) {
            said = Some(Instant::now());
            for line in reasons(&diagnosis, options) {
                say(&line);
            }
        }
        let left = options.timeout.map_or(SELDOM, |timeout| timeout.saturating_sub(begun.elapsed()));
        // Nobody tells of memory.
        let told = news.are_heard() && inquiry.by_daemon() && !asked_nvml;
        let within = match told {
            true if inquiry.hears_closes() => SELDOM,
            true => INTERVALS.1,
            false => interval,
        };
        news.wait(within.min(left));
        // However much happens.
        thread::sleep(INTERVALS.0.saturating_sub(asked_at.elapsed()).min(left));
        interval = (interval * 3 / 2).min(INTERVALS.1);
    }
}

/// One look; with NVML where handles alone do not tell.
fn look(inquiry: &mut Inquiry, options: &WaitOptions, last: bool) -> anyhow::Result<(Diagnosis, bool)> {
    if options.below_mib.is_none() && !last {
        let mut input = inquiry.input(&Ask::default())?;
        ignore(&mut input, &options.ignore);
        let diagnosis = diagnose::diagnose(&input);
        let held = diagnosis.gpus.iter().any(|gpu| gpu.holders.iter().any(|holder| holder.direct));
        if held {
            return Ok((diagnosis, false));
        }
    }
    let mut input = inquiry.input(&Ask { nvml: true, ..Ask::default() })?;
    ignore(&mut input, &options.ignore);
    Ok((diagnose::diagnose(&input), true))
}

fn status(diagnosis: &Diagnosis, options: &WaitOptions, asked_nvml: bool) -> anyhow::Result<ExitStatus> {
    let Some(below) = options.below_mib else {
        let status = diagnosis.exit_status();
        // Without NVML "free" is not the last word.
        return Ok(if asked_nvml || status != ExitStatus::Free { status } else { ExitStatus::Unknown });
    };
    let used: Vec<Option<u64>> = diagnosis.gpus.iter().map(|gpu| gpu.memory.used_mib).collect();
    let never = matches!(diagnosis.nvml.state.as_str(), "absent" | "failed");
    anyhow::ensure!(
        !never || used.iter().all(Option::is_some),
        "--below needs NVML to tell how much memory is used, but {}: wait without --below",
        diagnosis.nvml.text
    );
    Ok(match () {
        () if used.is_empty() || used.contains(&None) => ExitStatus::Unknown,
        () if used.iter().flatten().all(|used| *used < below) => ExitStatus::Free,
        // Handles are gone, memory is not.
        () if diagnosis.exit_status() == ExitStatus::Free => ExitStatus::NoHandle,
        () => diagnosis.exit_status(),
    })
}

fn reasons(diagnosis: &Diagnosis, options: &WaitOptions) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for gpu in &diagnosis.gpus {
        let line = match (options.below_mib, gpu.memory.used_mib) {
            (Some(below), Some(used)) if used >= below => {
                format!("waiting: {used} MiB are used, not less than {below}. {}", gpu.headline)
            }
            (Some(_), Some(_)) => continue,
            _ if gpu.verdict == Verdict::Free => continue,
            _ => format!("waiting: {}", gpu.headline),
        };
        lines.push(line);
    }
    lines
}

/// Takes holders of these roles out of the report, and the files that only they hold.
pub(crate) fn ignore(input: &mut Input, roles: &[String]) {
    if roles.is_empty() {
        return;
    }
    let ignored = |role: &str| {
        roles.iter().any(|word| word == role || word == "infrastructure" && is_infrastructure(role))
    };
    let (gone, kept): (Vec<_>, Vec<_>) =
        input.report.holders.drain(..).partition(|holder| ignored(&holder.role));
    let files = |holders: &[crate::model::report::Holder]| -> HashSet<u64> {
        holders
            .iter()
            .flat_map(|holder| &holder.devices)
            .flat_map(|held| held.files.iter().copied())
            .collect()
    };
    let (theirs, others) = (files(&gone), files(&kept));
    input.report.files.retain(|file| others.contains(&file.id) || !theirs.contains(&file.id));
    let pids: BTreeSet<u32> =
        gone.iter().flat_map(|holder| holder.tids.iter().copied().chain([holder.pid])).collect();
    input.claims.retain(|claim| !pids.contains(&claim.pid));
    input.report.holders = kept;
}
