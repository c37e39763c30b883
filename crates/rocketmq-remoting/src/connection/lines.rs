//! What waits on a connection: frames to be written and requests to be answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::command::Command;

/// One frame to be written: header and body are separate, so that a body is never copied into it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) sequence: u64,
    pub(super) head: Bytes,
    pub(super) body: Bytes,
}

impl Frame {
    pub(super) const fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The connection ended; `sent` tells whether the whole frame had been handed to the socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) sent: bool,
}

#[derive(Debug)]
struct Waiting {
    sequence: u64,
    answer: oneshot::Sender<Result<Command, Lost>>,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    /// The peer said GO_AWAY: what is in flight may end, nothing new begins.
    Leaving,
    Closed(Arc<str>),
}

/// Guarded by one lock that is never held across a wait.
#[derive(Debug)]
pub(super) struct Lines {
    state: State,
    waiting: HashMap<i32, Waiting>,
    queue: VecDeque<Frame>,
    next_sequence: u64,
    /// Every frame before this one has been handed to the socket as a whole.
    written: u64,
    /// Limit of frames that nobody waits for (answers to the peer, one-way requests).
    max_unasked: usize,
}

impl Lines {
    pub(super) fn new(max_unasked: usize) -> Self {
        Self {
            state: State::Open,
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            next_sequence: 0,
            written: 0,
            max_unasked,
        }
    }

    /// Queues a request. Fails, not sent, if the connection takes no more.
    pub(super) fn ask(
        &mut self,
        opaque: i32,
        head: Bytes,
        body: Bytes,
    ) -> Result<(u64, oneshot::Receiver<Result<Command, Lost>>), Lost> {
        if !matches!(self.state, State::Open) {
            return Err(Lost { sent: false });
        }
        let (answer, receiver) = oneshot::channel();
        let sequence = self.push(head, body);
        self.waiting.insert(opaque, Waiting { sequence, answer });
        Ok((sequence, receiver))
    }

    /// Queues a frame that nobody waits for. False if it was dropped: too many of them, or closed.
    pub(super) fn tell(&mut self, head: Bytes, body: Bytes) -> bool {
        if matches!(self.state, State::Closed(_)) || self.queue.len() >= self.waiting.len() + self.max_unasked {
            return false;
        }
        self.push(head, body);
        true
    }

    fn push(&mut self, head: Bytes, body: Bytes) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.queue.push_back(Frame { sequence, head, body });
        sequence
    }

    /// Takes frames to write, in order, up to these limits (one frame at least).
    pub(super) fn take(&mut self, frames: usize, bytes: usize, into: &mut VecDeque<Frame>) {
        let mut taken_bytes = 0;
        while into.len() < frames
            && let Some(next) = self.queue.front()
            && (into.is_empty() || taken_bytes + next.bytes() <= bytes)
        {
            taken_bytes += next.bytes();
            into.extend(self.queue.pop_front());
        }
    }

    /// All frames up to and with this one are in the socket.
    pub(super) const fn wrote(&mut self, sequence: u64) {
        self.written = sequence + 1;
    }

    /// Gives the answer to who waits for it. False if nobody does.
    pub(super) fn answer(&mut self, command: Command) -> bool {
        match self.waiting.remove(&command.opaque) {
            Some(waiting) => waiting.answer.send(Ok(command)).is_ok(),
            None => false,
        }
    }

    /// Nobody waits for this request any more. A frame that is still queued is taken out. Returns whether the request
    /// may have reached the peer.
    pub(super) fn forget(&mut self, opaque: i32, sequence: u64) -> bool {
        self.waiting.remove(&opaque);
        if let Ok(at) = self.queue.binary_search_by_key(&sequence, |frame| frame.sequence) {
            self.queue.remove(at);
            return false;
        }
        // Taken by the writer: parts of it may be in the socket, the rest follows if the connection lives on.
        true
    }

    pub(super) fn leave(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Leaving;
        }
    }

    /// True when the peer said GO_AWAY and nothing is in flight any more.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.state, State::Leaving) && self.waiting.is_empty()
    }

    pub(super) const fn takes_requests(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(super) fn closed(&self) -> Option<Arc<str>> {
        match &self.state {
            State::Closed(why) => Some(why.clone()),
            State::Open | State::Leaving => None,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Ends everything: each request is told whether its frame was handed to the socket as a whole. Only the first
    /// reason is kept.
    pub(super) fn close(&mut self, why: &str) -> bool {
        if matches!(self.state, State::Closed(_)) {
            return false;
        }
        self.state = State::Closed(why.into());
        self.queue.clear();
        for (_, waiting) in self.waiting.drain() {
            let sent = waiting.sequence < self.written;
            let _nobody_waits = waiting.answer.send(Err(Lost { sent }));
        }
        true
    }
}
