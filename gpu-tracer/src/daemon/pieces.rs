//! The body of a long answer: given away piece by piece while the rest is being written.
//!
//! Whoever writes it is never kept waiting by a reader that is slow. Then there is as much in memory as is not read yet, which is
//! the whole answer at most.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What has been written and not been read.
pub(super) struct Pieces(UnboundedReceiver<io::Result<Bytes>>);

/// The side that writes.
pub(super) struct PieceWriter(UnboundedSender<io::Result<Bytes>>);

/// Both sides. The body ends when the writer is dropped.
pub(super) fn pair() -> (PieceWriter, Pieces) {
    let (sender, receiver) = unbounded_channel();
    (PieceWriter(sender), Pieces(receiver))
}

impl PieceWriter {
    pub(super) fn give(&self, piece: Vec<u8>) {
        // Nobody reads any more: no harm done.
        let _ = self.0.send(Ok(piece.into()));
    }

    /// Ends the body in a way that nobody takes for its end.
    pub(super) fn fail(self, error: io::Error) {
        let _ = self.0.send(Err(error));
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
