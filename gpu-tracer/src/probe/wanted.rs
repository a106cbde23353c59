//! The maps `WANTED` and `WANTED_MINORS`: which device numbers the programs report.

use std::collections::HashSet;

use aya::maps::{Array, HashMap, Map, MapData};
use gpu_tracer_common::snapshot::{EVERY_MINOR, MAJORS, MAX_MINORS, MINORS_WITH_BIT};

use super::ProbeError;
use crate::model::DeviceTable;

/// Their names.
pub(super) const MAPS: [&str; 2] = ["WANTED", "WANTED_MINORS"];

#[repr(transparent)]
#[derive(Clone, Copy)]
struct Minors([u64; MAJORS]);
// SAFETY: integers.
unsafe impl aya::Pod for Minors {}

/// Both maps.
pub(super) struct Wanted {
    numbers: HashMap<MapData, u32, u8>,
    minors: Array<MapData, Minors>,
}

impl Wanted {
    /// Takes the maps from where they are.
    pub(super) fn take(
        mut map: impl FnMut(&'static str) -> Result<Map, ProbeError>,
    ) -> Result<Self, ProbeError> {
        let [numbers, minors] = MAPS;
        Ok(Self {
            numbers: HashMap::try_from(map(numbers)?).map_err(refused(numbers))?,
            minors: Array::try_from(map(minors)?).map_err(refused(minors))?,
        })
    }

    /// Makes the maps name at least what counts as a GPU handle: long ranges are asked for by their whole major.
    pub(super) fn set(&mut self, devices: &DeviceTable) -> Result<(), ProbeError> {
        let [numbers, minors] = MAPS;
        let keys = keys(devices);
        let stale: Vec<u32> =
            self.numbers.keys().filter_map(Result::ok).filter(|key| !keys.contains(key)).collect();
        for key in stale {
            self.numbers.remove(&key).map_err(refused(numbers))?;
        }
        keys.iter().try_for_each(|key| self.numbers.insert(key, 1, 0)).map_err(refused(numbers))?;
        self.minors.set(0, Minors(bits(&keys)), 0).map_err(refused(minors))
    }
}

fn refused(map: &'static str) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map { map, source }
}

/// The keys as bits, by major.
fn bits(keys: &HashSet<u32>) -> [u64; MAJORS] {
    let mut bits = [0; MAJORS];
    for key in keys {
        bits[(key >> 20) as usize % MAJORS] |= match key & EVERY_MINOR {
            EVERY_MINOR => u64::MAX,
            minor => 1 << minor.min(MINORS_WITH_BIT),
        };
    }
    bits
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_bit_or_the_one_that_sends_the_program_to_the_hash() {
        let keys = HashSet::from([1 << 20 | 5, 195 << 20, 195 << 20 | 255, 511 << 20 | EVERY_MINOR]);
        let bits = bits(&keys);
        assert_eq!(bits[1], 1 << 5);
        assert_eq!(bits[195], 1 | 1 << 63);
        assert_eq!(bits[511], u64::MAX);
        assert_eq!(bits.iter().filter(|word| **word != 0).count(), 3);
    }
}
