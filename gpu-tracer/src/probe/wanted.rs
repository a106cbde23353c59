//! The `WANTED` map: which device numbers the programs report.

use std::collections::HashSet;

use aya::maps::{HashMap, MapData};
use gpu_tracer_common::snapshot::{EVERY_MINOR, MAX_MINORS};

use super::ProbeError;
use crate::model::DeviceTable;

/// Makes the map name at least what counts as a GPU handle: long ranges are asked for by their whole major.
pub(super) fn set(wanted: &mut HashMap<MapData, u32, u8>, devices: &DeviceTable) -> Result<(), ProbeError> {
    let keys = keys(devices);
    let refused = |source| ProbeError::Map { map: "WANTED", source };
    let stale: Vec<u32> = wanted.keys().filter_map(Result::ok).filter(|key| !keys.contains(key)).collect();
    for key in stale {
        wanted.remove(&key).map_err(refused)?;
    }
    keys.iter().try_for_each(|key| wanted.insert(key, 1, 0)).map_err(refused)
}

fn keys(devices: &DeviceTable) -> HashSet<u32> {
    devices
        .ranges
        .iter()
        .flat_map(|range| {
            let major = range.major << 20;
            if range.last - range.first < MAX_MINORS {
                (major | range.first)..=(major | range.last)
            } else {
                (major | EVERY_MINOR)..=(major | EVERY_MINOR)
            }
        })
        .collect()
}
