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

/// The side that writes. Dropped before it has [ended](Self::end) the body, by a panic for one, it breaks it off in a way that
/// nobody takes for its end.
pub(super) struct PieceWriter {
    pieces: UnboundedSender<io::Result<Bytes>>,
    ended: bool,
}

/// Both sides.
pub(super) fn pair() -> (PieceWriter, Pieces) {
    let (sender, receiver) = unbounded_channel();
    (PieceWriter { pieces: sender, ended: false }, Pieces(receiver))
}

impl PieceWriter {
    pub(super) fn give(&self, piece: Vec<u8>) {
        // Nobody reads any more: no harm done.
        let _ = self.pieces.send(Ok(piece.into()));
    }

    /// All has been given.
    pub(super) fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for PieceWriter {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.pieces.send(Err(io::ErrorKind::UnexpectedEof.into()));
        }
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// What a reader gets: pieces, `None` where the body breaks off, and no more after its end.
    fn read(mut pieces: Pieces) -> Vec<Option<Vec<u8>>> {
        let mut context = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Some(frame)) = Pin::new(&mut pieces).poll_frame(&mut context) {
            all.push(frame.ok().and_then(|frame| frame.into_data().ok()).map(|data| data.to_vec()));
        }
        all
    }

    #[test]
    fn an_answer_that_was_ended_is_whole() {
        let (writer, pieces) = pair();
        writer.give(b"{".to_vec());
        writer.give(b"}".to_vec());
        writer.end();
        assert_eq!(read(pieces), [Some(b"{".to_vec()), Some(b"}".to_vec())]);
    }

    #[test]
    fn an_answer_whose_writer_panics_is_not_taken_for_a_whole_one() {
        let (writer, pieces) = pair();
        let thread = std::thread::spawn(move || {
            writer.give(b"{".to_vec());
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(thread.join().is_err());
        assert_eq!(read(pieces), [Some(b"{".to_vec()), None]);
    }

    #[test]
    fn nobody_who_reads_is_no_reason_to_fail() {
        let (writer, pieces) = pair();
        drop(pieces);
        writer.give(b"{}".to_vec());
        writer.end();
    }
}
