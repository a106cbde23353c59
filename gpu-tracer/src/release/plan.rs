//! Who is to be ended, in which order, and who is not. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnose::is_infrastructure;
use crate::model::RawText;
use crate::model::diagnosis::{Diagnosis, Finding};

/// Processes that are never ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protected {
    /// This process.
    pub own: u32,
    /// Its parents up to PID 1: the shell that it was started from.
    pub ancestors: BTreeSet<u32>,
}

/// One process to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host PID.
    pub pid: u32,
    /// Start, ns of boot time: a later process with this PID is not the one.
    pub start_ns: u64,
    /// Name.
    pub comm: RawText,
    /// What kind of holder it is.
    pub role: String,
    /// GPUs asked about that it holds.
    pub gpus: BTreeSet<u32>,
    /// Other GPUs that it holds: ending it affects those too.
    pub beyond: BTreeSet<u32>,
    /// It is stopped: SIGTERM alone would never reach it.
    pub stopped: bool,
    /// It is on its way out already: it is waited for and needs no signal.
    pub ending: bool,
    /// SIGKILL does not end it, and why.
    pub stuck: Option<String>,
}

/// One process that is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spared {
    /// Host PID.
    pub pid: u32,
    /// Name.
    pub comm: RawText,
    /// Why.
    pub because: String,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are ended.
    pub targets: Vec<Target>,
    /// Who is not.
    pub spared: Vec<Spared>,
}

/// Makes the plan.
///
/// Those who start others come before those whom they would start again: older before younger, MPS clients before their
/// server and the server before its control daemon, infrastructure last.
#[must_use]
pub fn plan(diagnosis: &Diagnosis, protected: &Protected, include_infrastructure: bool) -> Plan {
    let asked: BTreeSet<u32> = diagnosis.gpus.iter().filter_map(|gpu| gpu.gpu).collect();
    let mut targets: BTreeMap<(u32, u64), Target> = BTreeMap::new();
    let mut spared: BTreeMap<u32, Spared> = BTreeMap::new();
    for gpu in &diagnosis.gpus {
        for finding in &gpu.holders {
            if let Some(because) = spare(finding, protected, include_infrastructure) {
                spared.insert(finding.pid, Spared { pid: finding.pid, comm: finding.comm.clone(), because });
                continue;
            }
            let target = targets.entry((finding.pid, finding.start_ns)).or_insert_with(|| target(finding));
            target.gpus.extend(gpu.gpu.filter(|_| finding.direct));
            target.beyond.extend(finding.other_gpus.iter().filter(|other| !asked.contains(other)));
            if !finding.killable {
                target.stuck = Some(stuck(finding));
            }
        }
    }
    let mut targets: Vec<Target> = targets.into_values().collect();
    targets.sort_by_key(|target| (rank(&target.role), target.start_ns, target.pid));
    Plan { targets, spared: spared.into_values().collect() }
}

fn target(finding: &Finding) -> Target {
    Target {
        pid: finding.pid,
        start_ns: finding.start_ns,
        comm: finding.comm.clone(),
        role: finding.role.clone(),
        gpus: BTreeSet::new(),
        beyond: BTreeSet::new(),
        stopped: finding.why.iter().any(|why| why == "stopped"),
        ending: finding.ending,
        stuck: None,
    }
}

fn stuck(finding: &Finding) -> String {
    finding.waits.as_ref().map_or_else(
        || finding.killable_because.clone(),
        |waits| format!("{waits} {}", finding.killable_because),
    )
}

fn rank(role: &str) -> u8 {
    match role {
        "mps-server" => 1,
        "mps-control" => 2,
        role if is_infrastructure(role) => 3,
        _ => 0,
    }
}

fn spare(finding: &Finding, protected: &Protected, include_infrastructure: bool) -> Option<String> {
    match finding.pid {
        1 => Some("it is PID 1".to_owned()),
        pid if pid == protected.own => Some("it is this program".to_owned()),
        pid if protected.ancestors.contains(&pid) => Some("this program was started from it".to_owned()),
        _ if is_infrastructure(&finding.role) && !include_infrastructure => {
            Some(format!("it is {}: --include-infrastructure ends it too", finding.role))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::{Input, diagnose};
    use crate::model::report::{Coverage, GpuReport, HeldDevice, Holder, Report, SCHEMA};

    fn holder(pid: u32, start_ns: u64, role: &str, gpus: &[u32]) -> Holder {
        let devices = gpus.iter().map(|gpu| HeldDevice {
            device: format!("nvidia{gpu}"),
            gpu: Some(*gpu),
            fds: 1,
            files: vec![u64::from(*gpu)],
            ..HeldDevice::default()
        });
        Holder {
            pid,
            tid: pid,
            tids: vec![pid],
            start_ns,
            state: "S".to_owned(),
            role: role.to_owned(),
            why: vec!["live".to_owned()],
            devices: devices.collect(),
            ..Holder::default()
        }
    }

    fn planned(holders: Vec<Holder>, protected: &Protected, include_infrastructure: bool) -> Plan {
        let gpu = |index| GpuReport { index, ..GpuReport::default() };
        let report = Report {
            schema: SCHEMA,
            taken_at: String::new(),
            boot_id: String::new(),
            plan: "snapshot".to_owned(),
            coverage: Coverage { complete: true, missing: Vec::new() },
            cost: crate::model::report::Cost::default(),
            gpus: vec![gpu(0), gpu(1)],
            files: Vec::new(),
            holders,
        };
        let input = Input { gpus: Some([0].into()), ..Input::of(report) };
        plan(&diagnose(&input), protected, include_infrastructure)
    }

    fn pids(plan: &Plan) -> Vec<u32> {
        plan.targets.iter().map(|target| target.pid).collect()
    }

    #[test]
    fn launchers_come_first_and_infrastructure_only_when_it_is_wanted() {
        let all = || {
            vec![
                holder(30, 5, "infrastructure", &[0]),
                holder(40, 9, "compute", &[0]),
                holder(50, 8, "compute", &[0]),
                holder(60, 1, "mps-server", &[0]),
            ]
        };
        let some = planned(all(), &Protected::default(), false);
        assert_eq!(pids(&some), [50, 40, 60]);
        assert_eq!(some.spared.iter().map(|spared| spared.pid).collect::<Vec<_>>(), [30]);
        assert_eq!(pids(&planned(all(), &Protected::default(), true)), [50, 40, 60, 30]);
    }

    #[test]
    fn pid_1_this_program_and_its_shell_are_never_ended() {
        let protected = Protected { own: 900, ancestors: [800].into() };
        let all = vec![
            holder(1, 0, "compute", &[0]),
            holder(900, 3, "compute", &[0]),
            holder(800, 2, "compute", &[0]),
            holder(7, 4, "compute", &[0]),
        ];
        let plan = planned(all, &protected, true);
        assert_eq!(pids(&plan), [7]);
        assert_eq!(plan.spared.len(), 3, "{:?}", plan.spared);
    }

    #[test]
    fn what_else_a_holder_holds_is_known_before_it_is_ended() {
        let plan = planned(vec![holder(7, 4, "compute", &[0, 1])], &Protected::default(), false);
        assert_eq!((&plan.targets[0].gpus, &plan.targets[0].beyond), (&[0].into(), &[1].into()));
    }

    #[test]
    fn holders_of_other_gpus_only_are_not_touched() {
        let plan = planned(vec![holder(7, 4, "compute", &[1])], &Protected::default(), true);
        assert_eq!(plan, Plan::default());
    }
}
