//! Names that lie, and names that attack whoever prints them.

use anyhow::{Context as _, Result};

use crate::stage::Stage;
use crate::truth::{Counts, Holds, Truth, from_hex, to_hex};
use crate::worker::{Order, Worker};

/// Longest comm that the kernel keeps.
const COMM: usize = 15;

/// A1: the name that the worker wears says nothing of the program it is.
pub(super) fn renamed_worker(stage: &mut Stage) -> Result<()> {
    let name = b"VLLM::Worker_TP0";
    let disguised = [(disguise(stage, name)?, name.to_vec())];
    let truth = truth_of(stage, &disguised);
    stage.show_last(truth)
}

/// The given bytes as comm and as the whole command line.
pub(super) fn hostile_name(stage: &mut Stage) -> Result<()> {
    let digits = stage.arguments.first().context("which name? Give it in hexadecimal")?;
    let name = from_hex(digits).with_context(|| format!("{digits:?} is not hexadecimal"))?;
    let disguised = [(disguise(stage, &name)?, name)];
    let truth = truth_of(stage, &disguised);
    stage.show_last(truth)
}

/// As many processes as wanted, each with another name out of [`name`].
pub(super) fn hostile_swarm(stage: &mut Stage) -> Result<()> {
    let count = stage.number(0, 200)?;
    let mut swarm = Vec::new();
    for number in 0..count {
        let name = name(number);
        swarm.push((disguise(stage, &name)?, name));
    }
    let truth = truth_of(stage, &swarm);
    stage.show_last(truth)
}

fn disguise(stage: &Stage, name: &[u8]) -> Result<Worker> {
    let worker = stage.worker()?;
    worker.open(&stage.node().path)?;
    worker.order(Order::Retitle(name.to_vec()))?;
    worker.order(Order::Rename(name.to_vec()))?;
    Ok(worker)
}

fn truth_of(stage: &Stage, workers: &[(Worker, Vec<u8>)]) -> Truth {
    let device = &stage.node().name;
    let truth = Truth::default().files(device, workers.len() as u64, 1);
    workers.iter().fold(truth, |truth, (worker, name)| {
        let mut holds = Holds::live(worker.pid).device(device, Counts::fds(1));
        // The kernel takes a comm up to its first NUL.
        let worn = name.split(|byte| *byte == 0).next().unwrap_or_default();
        holds.comm_hex = Some(to_hex(&worn[..worn.len().min(COMM)]));
        holds.cmdline_hex = Some(to_hex(name));
        truth.holder(holds)
    })
}

/// What has broken parsers, terminals, tables and spreadsheets before.
const ATTACKS: &[&[u8]] = &[
    b"a) Z 1 7",
    b") S 1 1 1 0 -1",
    b"\x1b[31mred",
    b"\x1b]0;title\x07",
    b"\x1b[2J\x1b[H",
    b"two\nlines",
    b"cr\rover",
    b"tab\tbed",
    b"bell\x07\x08\x7f",
    "\u{202e}gnp.exe".as_bytes(),
    "\u{2066}\u{200b}x".as_bytes(),
    "\u{9b}31m".as_bytes(),
    b"\xff\xfe\x80",
    b"\xc3(",
    b"\xe2\x82",
    b"\xf0\x9f\x92",
    "\u{1f4a9}".as_bytes(),
    "e\u{301}\u{301}\u{301}".as_bytes(),
    "\u{6f22}\u{5b57}".as_bytes(),
    b"=1+1",
    b"@SUM(A1)",
    b"+cmd|'/c'!A0",
    b"-2+3",
    b"a,b;c",
    b"\"quoted\"",
    b"'single'",
    b"back\\slash",
    b"{\"pid\":1}",
    b"<script>",
    b"&amp;",
    b"%s%n%x",
    b"$(reboot)",
    b"`id`",
    b"--help",
    b" ",
    b"",
    b"\\x1b",
    b"\xc2\xa0nbsp",
    b"[kworker/0:1]",
    b"a|b",
];

/// The name with this number: first every attack, then bytes at random, the same on every run.
fn name(number: u32) -> Vec<u8> {
    const LONGEST: u64 = 24;
    if let Some(attack) = ATTACKS.get(number as usize) {
        return attack.to_vec();
    }
    // xorshift64*, seeded with the number.
    let mut state = (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move |below: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % below
    };
    let length = 1 + random(LONGEST);
    // A name ends at its first NUL.
    (0..length).map(|_| 1 + random(255) as u8).collect()
}
