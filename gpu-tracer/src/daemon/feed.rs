//! Who is told what happens. Each has a queue of its own, of limited length: one who does not read loses what does not
//! fit and is told how much that was, and nobody else is kept waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use super::peer::Viewer;
use crate::model::happening::Happening;

/// Lines that wait for one reader.
const QUEUE: usize = 4096;

/// What a reader was not told.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// Lines that did not fit its queue.
    pub(super) missed: AtomicU64,
    /// Lines about other users' processes.
    pub(super) withheld: AtomicU64,
}

/// One reader, as the core sees it.
pub(super) struct Subscriber {
    viewer: Viewer,
    lines: Sender<Bytes>,
    untold: Arc<Untold>,
}

/// One reader, as its connection sees it.
pub(super) struct Subscription {
    pub(super) lines: Receiver<Bytes>,
    pub(super) untold: Arc<Untold>,
}

/// A new reader.
pub(super) fn subscribe(viewer: Viewer) -> (Subscriber, Subscription) {
    let (sender, receiver) = channel(QUEUE);
    let untold = Arc::new(Untold::default());
    let subscriber = Subscriber { viewer, lines: sender, untold: Arc::clone(&untold) };
    (subscriber, Subscription { lines: receiver, untold })
}

/// All readers.
#[derive(Default)]
pub(super) struct Feed {
    subscribers: Vec<Subscriber>,
}

impl Feed {
    pub(super) fn add(&mut self, subscriber: Subscriber) {
        self.subscribers.push(subscriber);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Nobody reads?
    pub(super) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// Tells everybody who may know. Never waits.
    pub(super) fn tell(&mut self, happening: &Happening) {
        let Some(line) = line(happening) else { return };
        let whose = happening.process.as_ref().map(|process| process.uid);
        self.subscribers.retain(|subscriber| {
            if whose.is_some_and(|uid| !subscriber.viewer.may_see(uid)) {
                subscriber.untold.withheld.fetch_add(1, Ordering::Relaxed);
                return !subscriber.lines.is_closed();
            }
            match subscriber.lines.try_send(line.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    subscriber.untold.missed.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(TrySendError::Closed(_)) => false,
            }
        });
    }
}

/// One JSON document and a line feed.
pub(super) fn line(happening: &Happening) -> Option<Bytes> {
    let mut text = serde_json::to_vec(happening).ok()?;
    text.push(b'\n');
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::happening::Party;

    fn of(uid: Option<u32>) -> Happening {
        let process = Some(Party { uid, ..Party::default() });
        Happening { what: "opened".to_owned(), process, ..Happening::default() }
    }

    #[test]
    fn a_reader_that_does_not_read_loses_what_does_not_fit_and_it_is_counted() {
        let mut feed = Feed::default();
        let (slow, mut subscription) = subscribe(Viewer::everything());
        feed.add(slow);
        for _ in 0..QUEUE + 7 {
            feed.tell(&of(Some(0)));
        }
        let mut read = 0;
        while subscription.lines.try_recv().is_ok() {
            read += 1;
        }
        assert_eq!((read, subscription.untold.missed.load(Ordering::Relaxed)), (QUEUE, 7));
    }

    #[test]
    fn other_users_processes_are_withheld_and_counted_and_what_concerns_all_is_told() {
        let mut feed = Feed::default();
        let (user, mut subscription) = subscribe(Viewer::user(1000));
        feed.add(user);
        for happening in [of(Some(1000)), of(Some(0)), of(None)] {
            feed.tell(&happening);
        }
        feed.tell(&Happening { what: "gap".to_owned(), ..Happening::default() });
        let mut told = Vec::new();
        while let Ok(line) = subscription.lines.try_recv() {
            told.push(serde_json::from_slice::<Happening>(&line).unwrap().what);
        }
        assert_eq!(told, ["opened", "gap"]);
        assert_eq!(subscription.untold.withheld.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_reader_who_has_gone_is_forgotten() {
        let mut feed = Feed::default();
        let (gone, subscription) = subscribe(Viewer::everything());
        feed.add(gone);
        drop(subscription);
        feed.tell(&of(None));
        assert!(feed.is_empty());
    }
}
