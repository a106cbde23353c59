//! The maps of calls into the driver that have not returned.

use std::collections::HashSet;

use aya::maps::{HashMap, Map, MapData};
use gpu_tracer_common::events::{Call, CallKey, calls};

use super::{Plain, refused};
use crate::{
    model::{
        DeviceNumber, FileKey, ProcessId, RawText,
        event::{Event, EventKind, TaskId},
    },
    probe::ProbeError,
};

/// Their names.
pub(super) const MAPS: [&str; 3] = ["CALLS", "DEFERRED", "UNTOLD"];

/// Calls into the driver, as the programs remember them.
pub(super) struct Calls {
    calls: HashMap<MapData, Plain<CallKey>, Plain<Call>>,
    deferred: HashMap<MapData, u64, Plain<Call>>,
    untold: HashMap<MapData, u64, u8>,
}

impl Calls {
    /// Takes the maps from where they are.
    pub(super) fn take(
        mut map: impl FnMut(&'static str) -> Result<Map, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let [calls, deferred, untold] = MAPS;
        Ok(Self {
            calls: HashMap::try_from(map(calls)?).map_err(refused(calls))?,
            deferred: HashMap::try_from(map(deferred)?).map_err(refused(deferred))?,
            untold: HashMap::try_from(map(untold)?).map_err(refused(untold))?,
        })
    }

    /// No call that was remembered is in progress any more.
    pub(super) fn forget_all(&mut self) {
        // What has gone by itself meanwhile is gone as well.
        let keys: Vec<_> = self.calls.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.calls.remove(key)));
        let keys: Vec<_> = self.deferred.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.deferred.remove(key)));
        let keys: Vec<_> = self.untold.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.untold.remove(key)));
    }

    /// What is in progress, as the events that told of its beginning.
    pub(super) fn in_progress(&self) -> Vec<Event> {
        let untold: HashSet<u64> = self.untold.keys().filter_map(Result::ok).collect();
        let calls = self.calls.iter().filter_map(Result::ok);
        let begun = calls.filter_map(|(Plain(key), Plain(call))| match key.what {
            calls::OPEN => Some(opening(&call)),
            calls::RELEASE => Some(releasing(&call)),
            _ => None,
        });
        let deferred = self.deferred.iter().filter_map(Result::ok);
        let deferred =
            deferred.filter(|(work, _)| !untold.contains(work)).map(|(_, Plain(call))| deferred_by(&call));
        let mut events: Vec<Event> = begun.chain(deferred).collect();
        events.sort_by_key(|event| event.at_ns);
        events
    }
}

fn opening(call: &Call) -> Event {
    let (file, device, task) = parts(call);
    Event { at_ns: call.at_ns, kind: EventKind::Opening { file, device, task, comm: RawText::default() } }
}

fn releasing(call: &Call) -> Event {
    let (file, device, task) = parts(call);
    Event { at_ns: call.at_ns, kind: EventKind::Releasing { file, device, task } }
}

fn deferred_by(call: &Call) -> Event {
    let (_, device, _) = parts(call);
    // Its address may be that of another file by now.
    let work = FileKey(call.work);
    Event { at_ns: call.at_ns, kind: EventKind::ReleaseDeferred { file: work, device, work } }
}

fn parts(call: &Call) -> (FileKey, DeviceNumber, TaskId) {
    let process = ProcessId { tgid: call.tgid, start_ns: call.start_ns };
    (FileKey(call.file), DeviceNumber::from_kernel(call.rdev), TaskId { process, tid: call.tid })
}
