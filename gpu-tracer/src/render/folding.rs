//! What a history does not list one by one: programs that keep GPUs open on purpose, and this program's own helper. How many of
//! them there are is said.

use std::collections::BTreeMap;

use super::ranges::ranges;
use super::text::escape;
use crate::diagnose::is_infrastructure;
use crate::model::counted;
use crate::model::happening::Party;
use crate::model::history::History;

/// Those that are named.
const NAMED: usize = 4;

/// What is not listed.
#[derive(Debug, Default)]
pub(super) struct Folded {
    infrastructure: Vec<Party>,
    helpers: usize,
    /// GPUs that infrastructure held.
    gpus: Vec<u64>,
}

/// A history to be listed, and what of it is not.
pub(super) fn fold(history: &History) -> (History, Folded) {
    let mut shown = history.clone();
    let helpers = shown.leave_out_own_helper();
    let mut infrastructure: BTreeMap<(String, u32, u64), Party> = BTreeMap::new();
    let mut gpus = Vec::new();
    shown.holdings.retain(|held| {
        let folded = is_infrastructure(&held.role);
        if folded {
            let key = (held.boot_id.clone(), held.process.pid, held.process.start_ns);
            infrastructure.insert(key, held.process.clone());
            gpus.extend(held.gpu.map(u64::from));
        }
        !folded
    });
    gpus.sort_unstable();
    gpus.dedup();
    (shown, Folded { infrastructure: infrastructure.into_values().collect(), helpers, gpus })
}

impl Folded {
    /// Who held something where nobody is listed.
    pub(super) fn nobody_but(&self) -> Option<&'static str> {
        if !self.infrastructure.is_empty() {
            Some("Nobody but infrastructure")
        } else if self.helpers > 0 {
            Some("Nobody but this program, to ask NVML,")
        } else {
            None
        }
    }

    /// The GPUs that they held, in words.
    pub(super) fn gpus(&self) -> Option<String> {
        (!self.gpus.is_empty()).then(|| ranges(self.gpus.iter().copied()))
    }

    /// What is not listed, and how to see it.
    pub(super) fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        if !self.infrastructure.is_empty() {
            let mut names: Vec<String> = self
                .infrastructure
                .iter()
                .take(NAMED)
                .map(|process| format!("{}[{}]", escape(&process.comm.0), process.pid))
                .collect();
            if self.infrastructure.len() > NAMED {
                names.push("...".to_owned());
            }
            let many = counted(self.infrastructure.len(), "process", "processes");
            parts.push(format!("{many} of infrastructure ({})", names.join(", ")));
        }
        if self.helpers > 0 {
            let many = counted(self.helpers, "short-lived process", "short-lived processes");
            parts.push(format!("{many} in which this program asked NVML"));
        }
        (!parts.is_empty())
            .then(|| format!("Not listed: {}. --all lists everything.\n", parts.join(", and ")))
    }
}
