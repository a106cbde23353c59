//! How somebody came to hold what a dead process has left, as far as `/proc` shows it.

use super::finding::{fact, inferred};
use crate::model::diagnosis::Finding;
use crate::model::report::Holder;

/// Adds to a finding how it came by what `dead` has created. `inherited` is said only where its descent is shown.
pub(super) fn explain(finding: &mut Finding, holder: Option<&&Holder>, dead: u32) {
    if finding.why.iter().any(|why| why == "inherited" || why == "passed") {
        return;
    }
    // A session keeps the PID of the process that began it, so that no other can get it; others come to it by fork alone.
    if holder.is_some_and(|holder| holder.session == dead && holder.pid != dead) {
        finding.why.push("inherited".to_owned());
        finding.evidence.push(fact(format!(
            "It is in the session that PID {dead} began, so it descends from it: it has these handles by fork."
        )));
        return;
    }
    let orphan = holder.is_some_and(|holder| holder.ppid == 1);
    let parent = if orphan { "; whoever started it is gone, its parent is PID 1" } else { "" };
    finding.evidence.push(inferred(format!(
        "It did not create that memory{parent}: it has these handles by fork or through a socket."
    )));
}
