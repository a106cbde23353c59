//! Looking, and looking again where the first look leaves a doubt.
//!
//! A snapshot is not atomic. A descriptor closed between two passes, or a task on its way out, looks for an instant like
//! a reference that nobody has. Only what two looks agree on is reported as unexplained or half gone.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::opening::{opening_task, opening_tasks};
use crate::kernel::{Btf, boot_now};
use crate::ledger::{Ledger, View};
use crate::model::snapshot::MODULE_REFERENCES;
use crate::model::{DeviceTable, Missing, ProcessId, Snapshot, Task, counted};
use crate::probe::{Iterators, ProbeError, procwalk, waiting};
use crate::process::namespaces;

/// A pass that has not come back by then is given up.
const PASS_DEADLINE: Duration = Duration::from_millis(1500);
/// Long enough for an ordinary exit or close to finish.
const BETWEEN_LOOKS: Duration = Duration::from_millis(30);

/// What was seen.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    pub(crate) view: View,
    /// `snapshot` or `proc`.
    pub(crate) plan: &'static str,
    pub(crate) missing: Vec<Missing>,
    /// Snapshots taken.
    pub(crate) looks: u32,
    /// Tasks half-way through exit, in both looks, of which nobody can say what they have; each is in `missing` too.
    pub(crate) half_gone: Vec<Task>,
    /// Openers whose end was seen: a process with the PID of one of them is another, however soon it came.
    pub(crate) ended: HashSet<ProcessId>,
}

/// A way to look at this host.
pub(crate) enum Looker {
    /// BPF iterators.
    Iterators(Box<Iterators>),
    /// `/proc` only, and why.
    ProcWalk(ProbeError),
}

impl Looker {
    /// The best way that this kernel and our privileges allow.
    pub(crate) fn new() -> Self {
        let btf = Btf::read(Btf::VMLINUX).map_err(ProbeError::from);
        let loaded = btf.and_then(|btf| Iterators::load_the_least(&btf));
        match loaded {
            Ok(iterators) => Self::Iterators(Box::new(iterators)),
            Err(error) => {
                tracing::debug!(?error, "BPF iterators are not to be had");
                Self::ProcWalk(error)
            }
        }
    }

    /// Looks at everything, leaving out process `ours` (the NVML helper).
    pub(crate) fn look(&mut self, devices: &DeviceTable, ours: Option<u32>) -> Result<Looked, ProbeError> {
        match self {
            Self::Iterators(iterators) => {
                let mut take = || -> Result<Snapshot, ProbeError> {
                    let mut snapshot = iterators.snapshot(devices, PASS_DEADLINE)?;
                    ours.into_iter().for_each(|pid| snapshot.forget_process(pid));
                    Ok(snapshot)
                };
                let mut ledger = Ledger::new();
                let first = take()?;
                let half_gone = half_gone(&first);
                ledger.reconcile(&first);
                let uncounted = first.modules.unaccounted(&[]);
                let explained = ledger.view().files.iter().all(|file| file.unexplained == 0);
                if (half_gone.is_empty() || first.modules.add_up(&[])) && uncounted.is_empty() && explained {
                    let opening = opening_tasks(&first);
                    return Ok(Looked::by_iterators(ledger.view(), first.missing, &[], &opening, 1));
                }
                thread::sleep(BETWEEN_LOOKS);
                let mut second = take()?;
                waiting::explain(Path::new("/proc"), &mut second);
                let before: HashSet<(u32, u64)> =
                    half_gone.iter().map(|task| (task.tid, task.start_ns)).collect();
                let still: Vec<Task> = if second.modules.add_up(&[]) {
                    Vec::new()
                } else {
                    let now = self::half_gone(&second).into_iter();
                    now.filter(|task| before.contains(&(task.tid, task.start_ns))).collect()
                };
                second.missing.extend(module_references(&uncounted, &second.modules.unaccounted(&[])));
                let doubtful = ledger.view();
                ledger.reconcile(&second);
                let mut view = ledger.view();
                settle(&mut view, &doubtful);
                let opening = opening_tasks(&second);
                Ok(Looked::by_iterators(view, second.missing, &still, &opening, 2))
            }
            Self::ProcWalk(why) => {
                let mut snapshot = procwalk::walk(Path::new("/proc"), devices, boot_now());
                ours.into_iter().for_each(|pid| snapshot.forget_process(pid));
                snapshot.missing.insert(0, Missing { what: "iterators", why: why.to_string() });
                let mut ledger = Ledger::new();
                ledger.reconcile(&snapshot);
                Ok(Looked {
                    view: ledger.view(),
                    plan: "proc",
                    missing: snapshot.missing,
                    looks: 1,
                    half_gone: Vec::new(),
                    ended: HashSet::new(),
                })
            }
        }
    }
}

impl Looked {
    /// What a daemon has seen under this plan.
    pub(crate) fn by_daemon(
        view: View,
        plan: &'static str,
        missing: Vec<Missing>,
        looks: u32,
        ended: HashSet<ProcessId>,
    ) -> Self {
        Self { view, plan, missing, looks, half_gone: Vec::new(), ended }
    }

    fn by_iterators(
        view: View,
        mut missing: Vec<Missing>,
        half_gone: &[Task],
        opening: &[Task],
        looks: u32,
    ) -> Self {
        missing.extend(pid_namespace());
        missing.extend(half_gone.iter().map(half_gone_task));
        missing.extend(opening.iter().map(opening_task));
        Self { view, plan: "snapshot", missing, looks, half_gone: half_gone.to_vec(), ended: HashSet::new() }
    }
}

/// References to the driver's modules that were unaccounted for in two looks.
pub(crate) fn module_references(
    before: &BTreeMap<&'static str, u64>,
    now: &BTreeMap<&'static str, u64>,
) -> Vec<Missing> {
    let lasting = now.iter().filter_map(|(module, left)| Some((module, *before.get(module)?.min(left))));
    let missing = lasting.map(|(module, left)| Missing {
        what: MODULE_REFERENCES,
        why: format!(
            "module {module} has {} without an open file: a handle where no scan can see it (a task half-way through \
             its exit, an open in progress), or a kernel client of the driver, such as an I2C bus of the GPU that somebody \
             has open (cat /sys/module/{module}/refcnt counts them, with one for each module that uses it)",
            counted(left, "reference", "references")
        ),
    });
    missing.collect()
}

pub(crate) fn half_gone(snapshot: &Snapshot) -> Vec<Task> {
    snapshot.tasks.iter().filter(|task| task.is_half_gone()).cloned().collect()
}

/// A reference is unexplained only if it was so in both looks.
fn settle(view: &mut View, before: &View) {
    for file in &mut view.files {
        let earlier = before.files.iter().find(|old| old.id == file.id).map_or(0, |old| old.unexplained);
        file.unexplained = file.unexplained.min(earlier);
    }
}

pub(crate) fn half_gone_task(task: &Task) -> Missing {
    let process = if task.is_leader() {
        format!("PID {}", task.tgid)
    } else {
        format!("thread {} of PID {}", task.tid, task.tgid)
    };
    Missing {
        what: "half-exited-task",
        why: format!(
            "{process} (state {}) is half-way through its exit: what it has not released yet is in no table and no \
             scan can see it; only a daemon that was running when it opened its files can name them \
             (cat /proc/{}/stack shows where it waits)",
            task.state.letter(),
            task.tid
        ),
    }
}

/// Iterators show the tasks of the reader's PID namespace and those below, no others.
pub(crate) fn pid_namespace() -> Option<Missing> {
    (!namespaces::is_initial_pid()).then(|| Missing {
        what: "pid-namespace",
        why: "processes outside this PID namespace cannot be seen; ask on the host, or where the host's PID 1 can be \
              seen (docker run --pid=host, hostPID: true): nsenter --target 1 --pid --mount -- gpu-tracer holders"
            .to_owned(),
    })
}
