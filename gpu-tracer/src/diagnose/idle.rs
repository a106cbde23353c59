//! Which GPUs are idle, so that what they show then can be remembered.

use crate::model::report::{Holder, Report};

/// More than an idle driver takes for itself on any GPU; MiB. More is not believed to be idle.
pub const MOST_IDLE_MIB: u64 = 1024;

/// GPUs that nobody holds but infrastructure (a persistence daemon, DCGM), where everything was seen.
///
/// A display or a monitor may have memory of its own: a GPU that it holds is not idle.
#[must_use]
pub fn idle_gpus(report: &Report) -> Vec<u32> {
    if !report.coverage.complete {
        return Vec::new();
    }
    let of = |holder: &Holder, gpu: u32| {
        holder.devices.iter().any(|held| held.gpu == Some(gpu))
            || holder.devices.iter().all(|held| held.gpu.is_none())
    };
    let tolerated = |holder: &Holder| holder.role == "infrastructure";
    let held = |id: u64| {
        let infrastructure = report.holders.iter().filter(|holder| tolerated(holder));
        infrastructure.flat_map(|holder| &holder.devices).any(|held| held.files.contains(&id))
    };
    let idle = |gpu: u32| {
        report.holders.iter().all(|holder| tolerated(holder) || !of(holder, gpu))
            && report.files.iter().all(|file| file.gpu.is_some_and(|other| other != gpu) || held(file.id))
    };
    report.gpus.iter().map(|gpu| gpu.index).filter(|gpu| idle(*gpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::tests::{holder, report};
    use crate::model::report::FileReport;

    #[test]
    fn idle_is_what_nobody_holds_but_infrastructure_and_only_where_everything_was_seen() {
        assert_eq!(idle_gpus(&report(2)), [0, 1]);
        let mut one = Report { holders: vec![holder(7, 1)], ..report(2) };
        assert_eq!(idle_gpus(&one), [0]);
        one.holders[0].role = "monitor".to_owned();
        assert_eq!(idle_gpus(&one), [0]);
        one.holders[0].role = "infrastructure".to_owned();
        assert_eq!(idle_gpus(&one), [0, 1]);
        one.coverage.complete = false;
        assert_eq!(idle_gpus(&one), [0u32; 0]);
        // One that holds only shared devices may keep the memory of any.
        let mut shared = Report { holders: vec![holder(7, 1)], ..report(2) };
        shared.holders[0].devices.remove(0);
        assert_eq!(idle_gpus(&shared), [0u32; 0]);
    }

    #[test]
    fn a_gpu_whose_files_are_not_released_is_not_idle() {
        let mut one = report(2);
        one.files = vec![FileReport {
            id: 9,
            device: "nvidia1".into(),
            gpu: Some(1),
            state: "releasing".into(),
            since: None,
            for_ms: None,
            task: None,
            references: Some(0),
            unexplained: 0,
            driver_pins: 0,
            opened_at: None,
            opened_exact: false,
            opener: None,
        }];
        assert_eq!(idle_gpus(&one), [0]);
    }
}
