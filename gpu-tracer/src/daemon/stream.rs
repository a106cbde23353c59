//! The body of `/v1/events`: lines as they come, and now and then how much was not told.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::feed::{self, Subscription};
use super::tell::wall;
use crate::kernel::{Clock, boot_now};
use crate::model::happening::Happening;

/// How often a reader is told what it was not told, if nothing else happens.
const SUMMARY: Duration = Duration::from_secs(1);
/// Lines in one piece.
const MOST_AT_ONCE: usize = 256;

/// See above.
pub(super) struct EventStream {
    subscription: Subscription,
    summary: Interval,
    /// Nothing is written yet: so that a client sees at once that it listens.
    greeted: bool,
}

impl EventStream {
    pub(super) fn new(subscription: Subscription) -> Self {
        let mut summary = interval(SUMMARY);
        summary.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { subscription, summary, greeted: false }
    }

    /// What was not told since the last time, in up to two lines.
    fn untold(&self) -> Vec<u8> {
        let untold = &self.subscription.untold;
        let mut lines = Vec::new();
        for (what, counter) in [("missed", &untold.missed), ("withheld", &untold.withheld)] {
            let count = counter.swap(0, Ordering::Relaxed);
            if count > 0 {
                lines.extend(of_the_stream(what, Some(count)));
            }
        }
        lines
    }
}

/// A line about the stream itself.
fn of_the_stream(what: &str, count: Option<u64>) -> Bytes {
    let at_ns = boot_now();
    let happening = Happening {
        at: wall(&Clock::now(), at_ns),
        at_ns,
        what: what.to_owned(),
        count,
        exact: true,
        ..Happening::default()
    };
    feed::line(&happening).unwrap_or_default()
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Poll::Ready(Some(Ok(Frame::data(of_the_stream("listening", None)))));
        }
        let mut lines = Vec::new();
        let polled = self.subscription.lines.poll_recv(context);
        if let Poll::Ready(Some(line)) = &polled {
            lines.extend(self.untold());
            lines.extend_from_slice(line);
            for _ in 1..MOST_AT_ONCE {
                let Ok(line) = self.subscription.lines.try_recv() else { break };
                lines.extend_from_slice(&line);
            }
            return Poll::Ready(Some(Ok(Frame::data(lines.into()))));
        }
        if polled.is_ready() {
            return Poll::Ready(None);
        }
        loop {
            ready!(self.summary.poll_tick(context));
            let lines = self.untold();
            if !lines.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(lines.into()))));
            }
        }
    }
}
