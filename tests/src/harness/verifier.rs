//! What loading the tracer's programs costs the kernel.

use std::collections::BTreeMap;

use aya::programs::loaded_programs;

/// Instructions that the verifier may follow of one program: a fiftieth of where it gives up. Linux 7.2 follows the most, 5,900.
/// What it refuses for their number keeps a processor busy for a second, or in an emulated machine for minutes, before a lesser
/// program is taken.
const MOST_VERIFIED: u32 = 20_000;

/// Checks that no program of the tracer that is loaded now made the verifier follow too many instructions, and that these are among
/// them. `false` where the kernel does not tell (before Linux 5.16).
///
/// # Panics
///
/// If one did, or one of these is not there.
#[track_caller]
pub fn check_verified_quickly(programs: &[&str]) -> bool {
    let mut counts = BTreeMap::new();
    // One that is unloaded meanwhile is not one of those that were asked for.
    for program in loaded_programs().flatten() {
        let name = String::from_utf8_lossy(program.name()).into_owned();
        if !name.starts_with("on_") && !name.starts_with("iter_") {
            continue;
        }
        let Some(count) = program.verified_instruction_count() else {
            return false;
        };
        counts.insert(name, count);
    }
    let refused: Vec<_> = programs.iter().filter(|name| !counts.contains_key(**name)).collect();
    assert!(refused.is_empty(), "{refused:?} not loaded; {counts:#?}");
    assert!(counts.values().all(|count| *count <= MOST_VERIFIED), "{counts:#?}");
    true
}
