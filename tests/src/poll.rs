//! Waiting for a fact, never for a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long anything that a scenario orders may take. Generous: it is only ever reached when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is there, at most for `deadline`; `what` names it in the error.
pub fn until<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            bail!("waited {deadline:?} in vain: {what}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
