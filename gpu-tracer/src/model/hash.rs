//! Hash maps for keys that the kernel chose: addresses, ids and start times.
//!
//! Nobody outside can choose them well enough to make maps slow, so the standard library's defence, which costs more than
//! everything else in a snapshot of 100,000 references, is not needed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by kernel address or id.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;
/// A set of kernel addresses or ids.
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<KeyHasher>>;

/// Multiplies by a large odd number and brings the well mixed high bits down to where maps look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
