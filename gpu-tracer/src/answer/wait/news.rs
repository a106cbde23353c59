//! News for somebody who waits: a daemon tells what happens, so that it need be asked again only when the answer may be
//! another.

use std::collections::BTreeSet;
use std::io::{BufRead, Read as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::answer::ask;
use crate::model::happening::Happening;

/// Between two attempts to listen to a daemon that is not there.
const AGAIN: Duration = Duration::from_secs(1);
/// Longer than any line.
const LONGEST_LINE: u64 = 1 << 20;
/// What a handle goes through without being let go of. Whatever is not here may end a wait, words of a later daemon too.
const HOLDS_ON: [&str; 17] = [
    "listening",
    "opening",
    "opened",
    "found",
    "inherited",
    "handed-over",
    "queued",
    "registered",
    "pinned",
    "mapped",
    "renamed",
    "execed",
    "reparented",
    "signalled",
    "killed",
    "exiting",
    "module-loaded",
];

/// A daemon that is listened to, if there is one.
#[derive(Debug, Default)]
pub(super) struct News {
    rings: Option<Receiver<()>>,
    tried: Option<Instant>,
}

impl News {
    /// Begins to listen, unless that is so already. To be called before asking: what happens after the answer is then heard.
    /// `gpus`: news of others is of no interest; `None` for all.
    pub(super) fn listen(&mut self, socket: Option<&Path>, gpus: Option<&BTreeSet<u32>>) {
        if self.rings.is_some() || self.tried.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        self.tried = Some(Instant::now());
        let Ok(lines) = ask::stream(socket) else { return };
        let (ring, rings) = sync_channel(1);
        let gpus = gpus.cloned();
        let listener = thread::Builder::new().name("news".to_owned());
        let started = listener.spawn(move || pass_on(lines, gpus.as_ref(), &ring));
        self.rings = started.is_ok().then_some(rings);
    }

    /// Is there anybody to listen to?
    pub(super) fn are_heard(&self) -> bool {
        self.rings.is_some()
    }

    /// Waits for news, but no longer than this.
    pub(super) fn wait(&mut self, within: Duration) {
        let begun = Instant::now();
        let Some(rings) = &self.rings else { return thread::sleep(within) };
        match rings.recv_timeout(within) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // The daemon has ended. What is waited for may happen all the same.
                self.rings = None;
                thread::sleep(AGAIN.min(within.saturating_sub(begun.elapsed())));
            }
        }
    }
}

/// Rings for every line that may be about a release, once for all that come before anybody hears it.
fn pass_on(mut lines: impl BufRead, gpus: Option<&BTreeSet<u32>>, ring: &SyncSender<()>) {
    loop {
        let mut line = Vec::new();
        match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if !matters(&line, gpus) => {}
            // Full: it has been rung already.
            Ok(_) => match ring.try_send(()) {
                Err(std::sync::mpsc::TrySendError::Disconnected(())) => return,
                Ok(()) | Err(std::sync::mpsc::TrySendError::Full(())) => {}
            },
        }
    }
}

/// May the answer be another after this? A line that cannot be read may say anything.
fn matters(line: &[u8], gpus: Option<&BTreeSet<u32>>) -> bool {
    let Ok(happening) = serde_json::from_slice::<Happening>(line) else { return true };
    let of_others = match (happening.gpu, gpus) {
        (Some(gpu), Some(gpus)) => !gpus.contains(&gpu),
        _ => false,
    };
    !of_others && !HOLDS_ON.contains(&happening.what.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(what: &str, gpu: Option<u32>) -> Vec<u8> {
        serde_json::to_vec(&Happening { what: what.to_owned(), gpu, ..Happening::default() }).unwrap()
    }

    #[test]
    fn only_what_may_be_a_release_of_these_gpus_matters() {
        let asked = BTreeSet::from([2, 3]);
        let matters = |what, gpu| matters(&line(what, gpu), Some(&asked));
        assert!(matters("released", Some(2)) && matters("closed", None) && matters("exited", None));
        assert!(matters("missed", None) && matters("gap", None) && matters("a-word-of-tomorrow", None));
        assert!(!matters("released", Some(4)), "another GPU");
        assert!(!matters("opened", Some(2)) && !matters("listening", None));
        assert!(super::matters(b"{cut", Some(&asked)), "who knows");
        assert!(super::matters(&line("released", Some(4)), None), "all GPUs");
    }

    #[test]
    fn many_lines_ring_once_and_the_end_of_the_stream_ends_the_listening() {
        let (ring, rings) = sync_channel(1);
        let lines =
            [line("released", Some(0)), line("opened", Some(0)), line("released", Some(0))].join(&b'\n');
        pass_on(&lines[..], None, &ring);
        drop(ring);
        let mut news = News { rings: Some(rings), tried: None };
        news.wait(Duration::from_secs(60));
        assert!(news.are_heard(), "the ring");
        news.wait(Duration::ZERO);
        assert!(!news.are_heard(), "the end");
    }
}
