//! The maps of calls into the driver that have not returned.

use aya::maps::{Array, HashMap, Map, MapData};
use gpu_tracer_common::events::{Call, CallKey, CallSlot, calls};

use super::{Plain, refused};
use crate::{
    model::{
        DeviceNumber, FileKey, ProcessId, RawText,
        event::{Event, EventKind, TaskId},
    },
    probe::ProbeError,
};

/// Their names.
pub(super) const MAPS: [&str; 5] = ["CALLS", "OPENS", "RELEASES", "DEFERRED", "TOLD"];

/// Calls into the driver, as the programs remember them.
pub(super) struct Calls {
    calls: HashMap<MapData, Plain<CallKey>, Plain<Call>>,
    opens: Array<MapData, Plain<CallSlot>>,
    releases: Array<MapData, Plain<CallSlot>>,
    deferred: HashMap<MapData, u64, Plain<Call>>,
    told: HashMap<MapData, u64, u8>,
}

impl Calls {
    /// Takes the maps from where they are.
    pub(super) fn take(
        mut map: impl FnMut(&'static str) -> Result<Map, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let [calls, opens, releases, deferred, told] = MAPS;
        Ok(Self {
            calls: HashMap::try_from(map(calls)?).map_err(refused(calls))?,
            opens: Array::try_from(map(opens)?).map_err(refused(opens))?,
            releases: Array::try_from(map(releases)?).map_err(refused(releases))?,
            deferred: HashMap::try_from(map(deferred)?).map_err(refused(deferred))?,
            told: HashMap::try_from(map(told)?).map_err(refused(told))?,
        })
    }

    /// No call that was remembered is in progress any more.
    pub(super) fn forget_all(&mut self) {
        // What has gone by itself meanwhile is gone as well.
        let keys: Vec<_> = self.calls.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.calls.remove(key)));
        let keys: Vec<_> = self.deferred.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.deferred.remove(key)));
        let keys: Vec<_> = self.told.keys().filter_map(Result::ok).collect();
        keys.iter().for_each(|key| drop(self.told.remove(key)));
        for slots in [&mut self.opens, &mut self.releases] {
            let is_used = |index: &u32| slots.get(index, 0).is_ok_and(|slot| slot.0 != CallSlot::default());
            let used: Vec<u32> = (0..slots.len()).filter(is_used).collect();
            used.into_iter().for_each(|index| drop(slots.set(index, Plain(CallSlot::default()), 0)));
        }
    }

    /// What is in progress, as the events that told of its beginning.
    pub(super) fn in_progress(&self) -> Vec<Event> {
        let kept = self.calls.iter().filter_map(Result::ok);
        let kept = kept.filter_map(|(Plain(key), Plain(call))| match key.what {
            calls::OPEN => Some(opening(&call)),
            calls::RELEASE => Some(releasing(&call)),
            calls::WORK => Some(deferred_by(&call)),
            _ => None,
        });
        let opens = in_slots(&self.opens).map(|call| opening(&call));
        let releases = in_slots(&self.releases).map(|call| releasing(&call));
        let deferred = self.deferred.iter().filter_map(Result::ok).map(|(_, Plain(call))| deferred_by(&call));
        let mut events: Vec<Event> = kept.chain(opens).chain(releases).chain(deferred).collect();
        events.sort_by_key(|event| event.at_ns);
        events
    }
}

fn in_slots(slots: &Array<MapData, Plain<CallSlot>>) -> impl Iterator<Item = Call> {
    let slots = slots.iter().filter_map(Result::ok);
    slots.filter(|Plain(slot)| slot.tid != 0).map(|Plain(slot)| slot.call)
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
