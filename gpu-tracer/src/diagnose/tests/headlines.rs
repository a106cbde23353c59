//! The first line stays one line.

use super::*;

#[test]
fn a_headline_is_one_line_whatever_holds() {
    let names = ["VLLM::Worker_TP", "python3", "data-loader", "cache-server"];
    let words = [
        "live",
        "inherited",
        "thread-of-defunct",
        "stopped",
        "frozen",
        "dumping-core",
        "exiting",
        "live-orphan",
    ];
    let roles = ["compute", "infrastructure", "monitor", "initialised", "mps-server"];
    let mut longest = String::new();
    for (holders, word, role) in combinations(&[1, 2, 5], &words, &roles) {
        for state in ["S", "D"] {
            let one = |number: u32| Holder {
                comm: names[number as usize % names.len()].into(),
                why: vec![word.to_owned()],
                role: role.to_owned(),
                state: state.to_owned(),
                tid: 4_194_000 + number,
                sigkill_pending: state == "D",
                wchan: Some("percpu_rwsem_wait".to_owned()),
                memory: vec![HeldMemory { gpu: 15, mib: 183_359, source: "nvml".to_owned() }],
                ..holder(4_194_100 + number, 15)
            };
            let report = Report { holders: (0..holders).map(one).collect(), ..report(16) };
            let mut input = with_memory(report, &[183_359; 16]);
            input.claims = vec![claim(15, 4_194_303, 183_000, Resolved::Dead)];
            for waits in [false, true] {
                if waits {
                    input.waits = (0..holders).map(|number| (4_194_000 + number, lasting())).collect();
                }
                let found = of(&diagnose(&input), 15).headline.clone();
                if found.len() > longest.len() {
                    longest = found;
                }
            }
        }
    }
    let length = longest.chars().count();
    assert!((80..=120).contains(&length), "{length}: {longest}");
}

/// Every combination.
fn combinations<'a>(
    numbers: &'a [u32],
    words: &'a [&'a str],
    roles: &'a [&'a str],
) -> impl Iterator<Item = (u32, &'a str, &'a str)> {
    let pairs = numbers.iter().flat_map(move |number| words.iter().map(move |word| (*number, *word)));
    pairs.flat_map(move |(number, word)| roles.iter().map(move |role| (number, word, *role)))
}
