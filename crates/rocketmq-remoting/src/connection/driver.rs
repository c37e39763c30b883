//! The one task of a connection: it reads and writes.

use std::collections::VecDeque;
use std::future::pending;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::sleep;

use super::lines::Frame;
use super::push::Delivery;
use super::stream::Stream;
use super::{Connection, Counters, Shared};
use crate::code::ResponseCode;
use crate::codec::{decode, encode_head, split_frame};
use crate::command::Command;

/// Frames of one call that writes: header and body are two slices each, and the system takes up to 1,024.
const MAX_FRAMES_A_WRITE: usize = 64;
/// Bytes of one call that writes, unless a single frame has more.
const MAX_BYTES_A_WRITE: usize = 1024 * 1024;
/// Room that is made for a read. A frame that needs more gets it when its length is known.
const READ_BYTES: usize = 64 * 1024;
/// How long requests in flight may take to end after the peer said GO_AWAY.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// Reads and writes until the connection ends. Both halves are in one task, so that what has been handed to the socket
/// is known exactly when the other half finds that the connection is gone. Dropping it ends the connection.
pub(super) struct Driver {
    shared: Arc<Shared>,
    stream: Option<Stream>,
}

impl Driver {
    pub(super) const fn new(shared: Arc<Shared>, stream: Stream) -> Self {
        Self { shared, stream: Some(stream) }
    }

    pub(super) async fn run(mut self) {
        let Some(stream) = self.stream.take() else { return };
        let (read, write) = tokio::io::split(stream);
        let shared = &*self.shared;
        let why = tokio::select! {
            why = self.read(read) => why,
            why = write_frames(shared, write) => why,
            () = shared.stop.notified() => "closed by this side".into(),
            () = leave(shared) => "the peer asked to go away".into(),
        };
        shared.close(&why);
    }

    async fn read(&self, mut from: ReadHalf<Stream>) -> String {
        let shared = &*self.shared;
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        loop {
            loop {
                match split_frame(&mut buffer, shared.options.max_frame_bytes) {
                    Ok(None) => break,
                    Ok(Some(frame)) => match decode(frame) {
                        Ok((command, _)) => self.dispatch(command),
                        Err(e) => return format!("the peer sent what cannot be read: {e}"),
                    },
                    Err(e) => return format!("the peer sent what cannot be read: {e}"),
                }
            }
            if shared.lines().has_left() {
                return "the peer asked to go away".into();
            }
            if buffer.capacity() - buffer.len() < READ_BYTES / 4 {
                buffer.reserve(READ_BYTES);
            }
            match from.read_buf(&mut buffer).await {
                Ok(0) if buffer.is_empty() => return "the peer closed it".into(),
                Ok(0) => return "the peer closed it in the middle of a frame".into(),
                Ok(n) => {
                    shared.reads.fetch_add(1, Ordering::Relaxed);
                    Counters::add(&shared.options.counters.received_bytes, n as u64);
                }
                Err(e) => return format!("reading failed: {e}"),
            }
        }
    }

    fn dispatch(&self, command: Command) {
        let shared = &*self.shared;
        let counters = &shared.options.counters;
        if command.is_answer() {
            let leaving = command.response_code() == ResponseCode::GoAway;
            let mut lines = shared.lines();
            if leaving {
                lines.leave();
            }
            let awaited = lines.answer(command);
            drop(lines);
            if leaving {
                shared.leaving.notify_one();
            }
            if !awaited {
                Counters::add(&counters.answers_without_request, 1);
            }
            return;
        }
        let (code, one_way) = (command.request_code(), command.is_one_way());
        let refusal = (!one_way).then(|| {
            Command::answer_to(
                &command,
                ResponseCode::RequestCodeNotSupported,
                Some(format!("this client does not serve {code}")),
            )
        });
        let connection = Connection { shared: self.shared.clone(), _task: None };
        match shared.options.pushes.deliver(command, connection) {
            Delivery::Taken => Counters::add(&counters.pushes, 1),
            Delivery::Dropped => Counters::add(&counters.pushes_dropped, 1),
            Delivery::NotServed => {
                Counters::add(&counters.pushes_refused, 1);
                if let Some(refusal) = refusal {
                    tell(shared, &refusal);
                }
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.close("closed by this side");
    }
}

/// Queues an answer to the peer. It is dropped when the peer does not read.
fn tell(shared: &Shared, command: &Command) {
    let mut head = BytesMut::with_capacity(256);
    if encode_head(command, shared.options.serialization, &mut head).is_ok()
        && shared.lines().tell(head.freeze(), command.body.clone())
    {
        shared.to_write.notify_one();
    }
}

/// Ends when the peer said GO_AWAY and what was in flight had its time.
async fn leave(shared: &Shared) {
    shared.leaving.notified().await;
    sleep(LEAVE_LIMIT).await;
}

async fn write_frames(shared: &Shared, mut to: WriteHalf<Stream>) -> String {
    match write_on(shared, &mut to).await {
        Ok(()) => pending().await,
        Err(e) => format!("writing failed: {e}"),
    }
}

/// Writes what is queued, as much as there is in each call, for ever.
async fn write_on(shared: &Shared, to: &mut WriteHalf<Stream>) -> std::io::Result<()> {
    let counters = &shared.options.counters;
    let mut frames = VecDeque::with_capacity(MAX_FRAMES_A_WRITE);
    loop {
        shared.lines().take(MAX_FRAMES_A_WRITE, MAX_BYTES_A_WRITE, &mut frames);
        if frames.is_empty() {
            shared.to_write.notified().await;
            continue;
        }
        while !frames.is_empty() {
            let slices = slices(&frames);
            let written = to.write_vectored(&slices).await?;
            if written == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
            drop(slices);
            Counters::add(&counters.writes, 1);
            Counters::add(&counters.sent_bytes, written as u64);
            if let Some(last) = advance(&mut frames, written) {
                shared.lines().wrote(last);
            }
        }
        // TLS keeps what the socket did not take at once.
        to.flush().await?;
    }
}

fn slices(frames: &VecDeque<Frame>) -> Vec<IoSlice<'_>> {
    let mut slices = Vec::with_capacity(frames.len() * 2);
    for frame in frames {
        slices.extend([&frame.head, &frame.body].into_iter().filter(|b| !b.is_empty()).map(|b| IoSlice::new(b)));
    }
    slices
}

/// Drops what was written. Returns the number of the last frame that was written as a whole.
fn advance(frames: &mut VecDeque<Frame>, mut written: usize) -> Option<u64> {
    let mut last = None;
    while let Some(frame) = frames.front_mut() {
        let of_head = written.min(frame.head.len());
        frame.head.advance(of_head);
        written -= of_head;
        let of_body = written.min(frame.body.len());
        frame.body.advance(of_body);
        written -= of_body;
        if frame.bytes() > 0 {
            break;
        }
        last = Some(frame.sequence);
        frames.pop_front();
    }
    last
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_partly_written_frame_is_not_written() {
        let frame = |sequence| Frame { sequence, head: Bytes::from_static(b"head"), body: Bytes::from_static(b"body") };
        let mut frames: VecDeque<Frame> = [frame(3), frame(4)].into();
        assert_eq!(advance(&mut frames, 6), None);
        assert_eq!(slices(&frames).iter().map(|s| s.len()).sum::<usize>(), 10);
        assert_eq!(advance(&mut frames, 2), Some(3));
        assert_eq!(advance(&mut frames, 7), None);
        assert_eq!(advance(&mut frames, 1), Some(4));
        assert!(frames.is_empty());
    }
}
