//! The maps `WANTED` and `WANTED_MAJORS`: which device numbers the programs report.

use std::collections::HashSet;

use aya::maps::{Array, HashMap, Map, MapData};
use gpu_tracer_common::snapshot::{EVERY_MINOR, MAJORS, MAX_MINORS};

use super::ProbeError;
use crate::model::DeviceTable;

/// Their names.
pub(super) const MAPS: [&str; 2] = ["WANTED", "WANTED_MAJORS"];

#[repr(transparent)]
#[derive(Clone, Copy)]
struct Majors([u8; MAJORS]);
// SAFETY: bytes.
unsafe impl aya::Pod for Majors {}

/// Both maps.
pub(super) struct Wanted {
    numbers: HashMap<MapData, u32, u8>,
    majors: Array<MapData, Majors>,
}

impl Wanted {
    /// Takes the maps from where they are.
    pub(super) fn take(
        mut map: impl FnMut(&'static str) -> Result<Map, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let [numbers, majors] = MAPS;
        Ok(Self {
            numbers: HashMap::try_from(map(numbers)?).map_err(refused(numbers))?,
            majors: Array::try_from(map(majors)?).map_err(refused(majors))?,
        })
    }

    /// Makes the maps name at least what counts as a GPU handle: long ranges are asked for by their whole major.
    pub(super) fn set(&mut self, devices: &DeviceTable) -> Result<(), ProbeError> {
        let [numbers, majors] = MAPS;
        let keys = keys(devices);
        let stale: Vec<u32> =
            self.numbers.keys().filter_map(Result::ok).filter(|key| !keys.contains(key)).collect();
        for key in stale {
            self.numbers.remove(&key).map_err(refused(numbers))?;
        }
        keys.iter().try_for_each(|key| self.numbers.insert(key, 1, 0)).map_err(refused(numbers))?;
        let mut wanted = Majors([0; MAJORS]);
        for key in &keys {
            wanted.0[(key >> 20) as usize % MAJORS] = 1;
        }
        self.majors.set(0, wanted, 0).map_err(refused(majors))
    }
}

fn refused(map: &'static str) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map { map, source }
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
