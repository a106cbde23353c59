//! Holders that are alike, together: fifty forked children are one line to read, not fifty.

use std::collections::{HashMap, HashSet};

use super::super::ranges::{name_ranges, ranges};
use super::super::text::columns;
use super::cells;
use crate::model::report::Holder;

/// Fewer than this stay apart: two rows are read as fast as one that explains itself.
const LEAST: usize = 3;

/// PIDs of this width still fit into the column.
const PIDS_WIDTH: usize = 24;

/// Holders of the same executable, user, place, devices, state and reason, in the order in which the first of each came.
///
/// Holders whose leader is not the live task are never joined: each needs its own line on where it waits.
pub(super) fn group<'a>(holders: &[&'a Holder], expand: bool) -> Vec<Vec<&'a Holder>> {
    if expand {
        return holders.iter().map(|holder| vec![*holder]).collect();
    }
    let mut places: HashMap<Key<'_>, usize> = HashMap::new();
    let mut groups: Vec<Vec<&Holder>> = Vec::new();
    for holder in holders {
        match places.get(&Key::of(holder)) {
            Some(at) if holder.tid == holder.pid => groups[*at].push(holder),
            _ => {
                if holder.tid == holder.pid {
                    places.insert(Key::of(holder), groups.len());
                }
                groups.push(vec![holder]);
            }
        }
    }
    let apart = |group: Vec<&'a Holder>| {
        if group.len() < LEAST { group.into_iter().map(|holder| vec![holder]).collect() } else { vec![group] }
    };
    groups.into_iter().flat_map(apart).collect()
}

/// What has to be equal.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    exe: Option<&'a [u8]>,
    /// Only where the executable is unknown: names are what processes change.
    comm: &'a [u8],
    uid: u32,
    gpus: String,
    held: String,
    state: String,
    why: String,
    place: String,
    sigkill_pending: bool,
    wchan: Option<&'a str>,
    stack: &'a [String],
}

impl<'a> Key<'a> {
    fn of(holder: &'a Holder) -> Self {
        let exe = holder.exe.as_ref().map(|exe| &exe.0[..]);
        let stuck = super::is_stuck(holder);
        Self {
            exe,
            comm: if exe.is_none() { &holder.comm.0 } else { &[] },
            uid: holder.uid,
            gpus: cells::gpus(holder),
            held: cells::held(holder),
            // A worker that sleeps now may run in a millisecond: the same worker.
            state: cells::state(holder).replacen('R', "S", usize::from(holder.state == "R")),
            why: cells::why(holder),
            place: cells::place(holder),
            sigkill_pending: holder.sigkill_pending,
            wchan: holder.wchan.as_deref().filter(|_| stuck),
            stack: if stuck { &holder.stack } else { &[] },
        }
    }
}

/// `50 x 481-530`, and the PIDs by themselves where they are too long for a cell.
pub(super) fn pids(group: &[&Holder]) -> (String, Option<String>) {
    let pids = ranges(group.iter().map(|holder| u64::from(holder.pid)));
    match group.len() {
        1 => (pids, None),
        many if columns(&pids) <= PIDS_WIDTH => (format!("{many} x {pids}"), None),
        many => (format!("{many} x (below)"), Some(pids)),
    }
}

/// What all say, or what each says: names that differ only in a number together, the first few of the others.
pub(super) fn each(group: &[&Holder], say: impl Fn(&Holder) -> String) -> String {
    const SHOWN: usize = 3;
    let mut seen = HashSet::new();
    let said: Vec<String> =
        group.iter().map(|holder| say(holder)).filter(|text| seen.insert(text.clone())).collect();
    let mut said = name_ranges(&said);
    let more = said.len().saturating_sub(SHOWN);
    said.truncate(SHOWN);
    let end = if more > 0 { format!(" and {more} other names") } else { String::new() };
    format!("{}{end}", said.join(", "))
}

/// The smallest and the largest figure of a group, as one where they look the same: `96610 each`, `4 to 96610`.
pub(super) fn span(figures: &[u64], show: impl Fn(u64) -> String, each: &str) -> String {
    let (Some(least), Some(most)) = (figures.iter().min(), figures.iter().max()) else {
        return String::new();
    };
    let (least, most) = (show(*least), show(*most));
    match figures.len() {
        1 => least,
        _ if least == most => format!("{least}{each}"),
        _ => format!("{least} to {most}"),
    }
}
