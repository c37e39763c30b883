//! A destination that can turn bad and recover, with notes of when it acknowledged what.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_sink::{Acknowledged, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo, Verified};

use crate::latency::number;
use crate::measure::now_us;

/// Code of what is made up here.
const CODE: &str = "OUT-2000";
/// One message in so many is rejected.
const REJECTED_OF: usize = 100;
/// How many times slower it answers, up to [`SLOWEST`]: below the limit of a send.
const SLOWER: u32 = 100;
const SLOWEST: Duration = Duration::from_millis(2_500);

/// How a destination is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Down,
    Rejects,
    Slower,
}

impl Trouble {
    const ALL: [Self; 3] = [Self::Down, Self::Rejects, Self::Slower];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Rejects => "rejects 1 %",
            Self::Slower => "100 times slower",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }
}

/// Spread over all keys.
const fn is_rejected(n: usize) -> bool {
    (n.wrapping_mul(2_654_435_761) >> 7).is_multiple_of(REJECTED_OF)
}

/// The destination.
pub struct Troubled {
    inner: Arc<dyn Sink>,
    trouble: Option<Trouble>,
    /// Whether there is trouble now.
    now: Arc<AtomicBool>,
    acks: Mutex<BufWriter<File>>,
}

impl Troubled {
    pub fn new(inner: Arc<dyn Sink>, trouble: Option<Trouble>, now: Arc<AtomicBool>, acks: &Path) -> Self {
        let file = File::create(acks).expect("a file for the times");
        Self { inner, trouble, now, acks: Mutex::new(BufWriter::new(file)) }
    }

    fn trouble(&self) -> Option<Trouble> {
        self.trouble.filter(|_| self.now.load(Ordering::Relaxed))
    }

    /// The messages of a batch but those that are rejected and later ones of their keys, which it answers itself.
    async fn send_but_rejected(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let mut held: HashSet<&str> = HashSet::new();
        let (mut outcomes, mut sent): (Vec<Option<Outcome>>, Vec<Arc<Message>>) = (Vec::new(), Vec::new());
        for message in messages {
            let key = message.key.as_deref().unwrap_or_default();
            outcomes.push(if held.contains(key) {
                Some(Outcome::Retry { reason: Reason::new(CODE, "behind a rejected one"), after_ms: None })
            } else if number(&message.id).is_some_and(is_rejected) {
                held.insert(key);
                Some(Outcome::Rejected(Reason::new(CODE, "one in a hundred")))
            } else {
                sent.push(message.clone());
                None
            });
        }
        let mut answers = if sent.is_empty() { vec![] } else { self.inner.send(slot, &sent).await }.into_iter();
        let answered = outcomes.into_iter().map(|own| own.or_else(|| answers.next()));
        answered.map(|outcome| outcome.expect("an answer for each")).collect()
    }

    fn note<'a>(&self, messages: impl Iterator<Item = &'a Arc<Message>>, at: u64) {
        let mut acks = self.acks.lock().expect("the times");
        for n in messages.filter_map(|message| number(&message.id)) {
            acks.write_all(&[(n as u64).to_le_bytes(), at.to_le_bytes()].concat()).expect("a time is noted");
        }
    }
}

/// A send under way. If it is dropped, it was not answered in time.
struct UnderWay<'a> {
    sink: &'a Troubled,
    messages: &'a [Arc<Message>],
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.sink.note(self.messages.iter(), UNANSWERED);
    }
}

/// Noted in the place of a time: nobody knows whether the message is there, and it may be sent again.
pub const UNANSWERED: u64 = 0;

/// Rows and the times of their acknowledgements, microseconds since 1970, or [`UNANSWERED`], as they were noted.
pub fn noted(acks: &Path) -> Vec<(usize, u64)> {
    let bytes = std::fs::read(acks).unwrap_or_default();
    let number = |b: &[u8]| b.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(16).map(|pair| (number(&pair[..8]) as usize, number(&pair[8..]))).collect()
}

#[async_trait]
impl Sink for Troubled {
    fn slotting(&self) -> Slotting {
        self.inner.slotting()
    }

    fn recall(&self, memory: &str) {
        self.inner.recall(memory);
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.inner.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        if self.trouble() == Some(Trouble::Down) {
            return Err(SinkError { code: CODE, message: "down".into(), passes: true });
        }
        self.inner.start().await
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let mut under_way = UnderWay { sink: self, messages };
        let outcomes = match self.trouble() {
            Some(Trouble::Down) => vec![Outcome::DestinationDown(Reason::new(CODE, "down")); messages.len()],
            Some(Trouble::Rejects) => self.send_but_rejected(slot, messages).await,
            Some(Trouble::Slower) => {
                let began = Instant::now();
                let outcomes = self.inner.send(slot, messages).await;
                let took = began.elapsed();
                tokio::time::sleep((took * SLOWER).min(SLOWEST).saturating_sub(took)).await;
                outcomes
            }
            None => self.inner.send(slot, messages).await,
        };
        under_way.messages = &[];
        let answered = |wanted: fn(&Outcome) -> bool| {
            messages.iter().zip(&outcomes).filter(move |(_, outcome)| wanted(outcome)).map(|(message, _)| message)
        };
        self.note(answered(|outcome| matches!(outcome, Outcome::Delivered(_))), now_us());
        self.note(answered(|outcome| matches!(outcome, Outcome::Unknown(_))), UNANSWERED);
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        self.inner.verify(acknowledged).await
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        self.inner.prove(receipts).await
    }

    async fn close(&self) {
        self.inner.close().await;
        self.acks.lock().expect("the times").flush().expect("the times are written");
    }
}
