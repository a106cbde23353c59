//! What a running daemon costs processes that have nothing to do with GPUs, and one that holds a device: pairs of rounds with it
//! and without.

use std::ffi::CStr;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Subject;
use super::daemon::Daemon;
use super::measure::table;
use crate::interrupt;
use crate::stage::Stage;

/// Something that is done again and again: a name, how often in a round, and what.
type Work<'a> = (&'static str, u32, Box<dyn Fn() -> bool + 'a>);

/// How long the daemon is looked at while nothing happens.
const IDLE: Duration = Duration::from_secs(5);

/// Runs the benchmark: in every round the daemon is started and ended anew, and which comes first alternates, so that
/// whatever else happens on the machine meets both alike.
pub(super) fn measure(subject: &Subject) -> Result<()> {
    let (stage, plan) = (Stage::set_up()?, subject.arguments.plan.as_str());
    let file = stage.folder().join("plain-file");
    fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
    let file = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())?;
    let works: [Work; 4] = [
        // SAFETY: getppid takes nothing and cannot fail. By number, lest a library keeps the answer.
        ("getppid", 400_000, Box::new(|| unsafe { libc::syscall(libc::SYS_getppid) } > 0)),
        ("open+close, a plain file", 40_000, Box::new(|| open_and_close(&file))),
        ("open+close, /dev/null", 40_000, Box::new(|| open_and_close(c"/dev/null"))),
        ("fork+exit+wait", 500, Box::new(fork_and_wait)),
    ];
    // The last in each round: from then on this process is one that is followed.
    let of_holder: Work =
        ("open+close, a plain file, by a holder", 40_000, Box::new(|| open_and_close(&file)));
    // For each work, the ns per operation of every round: without the daemon and with it.
    let mut pairs = vec![Vec::new(); works.len() + 1];
    let mut idle = None;
    for round in 0..subject.arguments.rounds {
        let mut figures = [Vec::new(), Vec::new()];
        for with in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let daemon =
                if with { Some(Daemon::start_planned(&subject.gpu_tracer, &stage, plan)?) } else { None };
            for work in &works {
                figures[usize::from(with)].push(ns_per_operation(work)?);
            }
            if let (Some(daemon), None) = (&daemon, &idle) {
                idle = Some(idle_cost(daemon)?);
            }
            let held = fs::File::open(stage.node()).context("the stand-in cannot be opened")?;
            figures[usize::from(with)].push(ns_per_operation(&of_holder)?);
            drop(held);
        }
        let [without, with] = figures;
        pairs.iter_mut().zip(without.into_iter().zip(with)).for_each(|(pairs, pair)| pairs.push(pair));
    }
    println!(
        "overhead: {} pairs of rounds without and with a daemon (plan {plan}); ns of CPU time per operation",
        subject.arguments.rounds
    );
    let rows: Vec<Vec<String>> =
        works.iter().chain([&of_holder]).zip(&pairs).map(|((name, ..), pairs)| row(name, pairs)).collect();
    println!("{}", table(&["", "without", "with", "more", "ratio", "min", "max"], &rows));
    if let Some((cpu, resident)) = idle {
        println!("the daemon with nothing to do: {:.3} % of a core, {resident} KiB resident", cpu * 100.0);
    }
    Ok(())
}

fn ns_per_operation((name, times, work): &Work) -> Result<f64> {
    interrupt::check()?;
    // Once in advance: caches, and pages that the first fork copies.
    let mut worked = work();
    let start = cpu_time()?;
    for _ in 0..*times {
        worked &= work();
    }
    let took = cpu_time()?.saturating_sub(start);
    if !worked {
        bail!("{name} failed: {}", std::io::Error::last_os_error());
    }
    Ok(took.as_secs_f64() * 1e9 / f64::from(*times))
}

/// CPU time of this process and of its children that have ended: hooks run in the context of whoever meets them, and what
/// others do on this machine meanwhile does not count.
fn cpu_time() -> Result<Duration> {
    // SAFETY: all-zero is a valid value of both; each call writes to its own only.
    let (own, children) = unsafe {
        let mut own: libc::timespec = std::mem::zeroed();
        let mut children: libc::rusage = std::mem::zeroed();
        let failed = libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut own) != 0
            || libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut children) != 0;
        if failed {
            return Err(std::io::Error::last_os_error()).context("no CPU time");
        }
        (own, children)
    };
    let of =
        |time: libc::timeval| Duration::from_micros((time.tv_sec * 1_000_000 + time.tv_usec).cast_unsigned());
    let own = Duration::new(own.tv_sec.cast_unsigned(), u32::try_from(own.tv_nsec)?);
    Ok(own + of(children.ru_utime) + of(children.ru_stime))
}

fn open_and_close(path: &CStr) -> bool {
    // SAFETY: a NUL-terminated string; the descriptor is this function's own.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        fd >= 0 && libc::close(fd) == 0
    }
}

fn fork_and_wait() -> bool {
    // SAFETY: the child does nothing but end; the parent waits for it.
    unsafe {
        match libc::fork() {
            -1 => false,
            0 => libc::_exit(0),
            pid => libc::waitpid(pid, std::ptr::null_mut(), 0) == pid,
        }
    }
}

/// Share of a core that the daemon takes while nothing happens, and its resident memory in KiB.
fn idle_cost(daemon: &Daemon) -> Result<(f64, u64)> {
    // What it does after the start is not idling.
    std::thread::sleep(Duration::from_secs(1));
    let (before, start) = (daemon.cpu_time()?, Instant::now());
    std::thread::sleep(IDLE);
    let used = daemon.cpu_time()?.saturating_sub(before);
    Ok((used.as_secs_f64() / start.elapsed().as_secs_f64(), daemon.memory()?.all))
}

/// Medians of both, the median ratio of the pairs, and its spread.
fn row(name: &str, pairs: &[(f64, f64)]) -> Vec<String> {
    let (without, with) = (median(pairs.iter().map(|pair| pair.0)), median(pairs.iter().map(|pair| pair.1)));
    let ratios = || pairs.iter().map(|(without, with)| with / without);
    let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    let more = median(pairs.iter().map(|(without, with)| with - without));
    let figures = [format!("{without:.1}"), format!("{with:.1}"), format!("{more:+.1}")];
    let ratios = [median(ratios()), least, most].map(|ratio| format!("{ratio:.3}"));
    [name.to_owned()].into_iter().chain(figures).chain(ratios).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_pairs() {
        // A machine that was twice as slow in the second round.
        let row = row("x", &[(100.0, 102.0), (200.0, 200.0), (50.0, 50.0)]);
        assert_eq!(row, ["x", "100.0", "102.0", "+0.0", "1.000", "1.000", "1.020"]);
    }
}
