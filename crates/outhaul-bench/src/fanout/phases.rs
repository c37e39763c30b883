//! One run of one design: rows at a steady rate through the three phases, and what is seen meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outhaul_core::act::{Selector, Verb};
use outhaul_store::{InitPlan, NewAct, ShardStatus, Store, StoreOptions};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::destinations::{Destinations, Part};
use super::troubled::{Trouble, noted};
use super::{Arguments, Design, child, verdict};
use crate::Db;
use crate::drain::article_table;
use crate::footprint::kept;
use crate::latency::key;
use crate::measure::{now_us, used};
use crate::raw::{self, Place, Raw};

const WRITERS: u64 = 8;
/// Before the first phase, and never longer than it.
const WARM_S: u64 = 5;
/// What is committed so long before the trouble may not be delivered when it begins.
const UNDER_WAY_S: u64 = 5;
const SAMPLE: Duration = Duration::from_millis(250);
/// Between two looks at what is still open.
const LOOK: Duration = Duration::from_millis(500);
/// How long all may take in the end, beside the length of a phase.
const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds of the last phase.
pub const fn recovery_s(seconds: u64) -> u64 {
    seconds.div_ceil(2)
}

/// Which rows are written in which phase.
#[derive(Clone, Copy)]
pub struct Timeline {
    rate: u64,
    seconds: u64,
}

impl Timeline {
    /// Seconds from the first row to the begin of each phase, and to the end of the last.
    const fn borders(self) -> [u64; 4] {
        let a = if self.seconds < WARM_S { self.seconds } else { WARM_S };
        let (b, c) = (a + self.seconds, a + 2 * self.seconds);
        [a, b, c, c + recovery_s(self.seconds)]
    }

    pub const fn rows(self) -> usize {
        (self.rate * self.borders()[3]) as usize
    }

    /// The rows of a phase, from 0.
    pub const fn phase(self, n: usize) -> Range<usize> {
        let borders = self.borders();
        (self.rate * borders[n]) as usize..(self.rate * borders[n + 1]) as usize
    }

    /// Those of a phase whose waits count: of the first not the newest, which are under way when the trouble begins.
    pub fn measured(self, n: usize) -> Range<usize> {
        let Range { start, end } = self.phase(n);
        let newest = if n == 0 { self.rate * (self.seconds / 4).min(UNDER_WAY_S) } else { 0 };
        start..end - newest as usize
    }
}

/// What a moment looked like.
#[derive(Clone, Copy)]
pub struct Sample {
    pub at_us: u64,
    pub hot_rows: u64,
    pub rss_kib: u64,
}

/// What the database keeps.
#[derive(Clone, Copy, Default)]
pub struct Kept {
    pub messages: u64,
    pub bytes: u64,
}

/// All that was seen of one run.
pub struct Seen {
    pub design: Design,
    pub timeline: Timeline,
    /// Names and troubles of the destinations.
    pub parts: Vec<Part>,
    /// When each row's COMMIT returned, microseconds since 1970.
    pub committed: Vec<u64>,
    /// Of each destination: rows and when they were acknowledged.
    pub acks: Vec<Vec<(usize, u64)>>,
    /// Of each destination: how often it holds each row.
    pub held: Vec<Vec<u32>>,
    pub samples: Vec<Sample>,
    /// When each phase began, and when the last one was over.
    pub borders_us: [u64; 4],
    /// What the database kept then. Only of Outhaul.
    pub kept: [Kept; 4],
    /// When it was not looked at any more.
    pub ended_us: u64,
}

/// The database of a run, with the tables of its design.
struct Stage {
    db: Db,
    design: Design,
    place: Place,
    /// Only of Outhaul.
    store: Option<Arc<dyn Store>>,
}

impl Stage {
    async fn set(db: Db, design: Design) -> Self {
        let mut place = raw::place(db).await;
        let store = match design {
            Design::Outhaul => {
                let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
                store.init(&InitPlan::default()).await.expect("tables");
                Some(store)
            }
            Design::InTurn | Design::Joined => {
                place.raw.execute(article_table(db)).await;
                None
            }
        };
        Self { db, design, place, store }
    }

    async fn kept(&mut self) -> Kept {
        let Some(store) = &self.store else { return Kept::default() };
        let messages = store.status().await.expect("a status").iter().map(|s| s.log_end.0).sum();
        let (_, _, bytes) = kept(self.place.raw.as_mut()).await;
        Kept { messages, bytes }
    }

    /// Whether all is delivered. What was rejected meanwhile is tried again, as an operator would order it.
    async fn is_done(&mut self, rejecting: &str) -> bool {
        let Some(store) = &self.store else { return hot_rows(self.place.raw.as_mut(), self.design).await == 0 };
        let status = store.status().await.expect("a status");
        let dead = |s: &ShardStatus| s.parked.iter().any(|(to, _, _, dead)| to == rejecting && *dead > 0);
        if status.iter().any(dead) {
            let act = NewAct {
                verb: Verb::Redrive,
                destination: Some(rejecting.to_owned()),
                shards: status.iter().map(|s| s.shard).collect(),
                ranges: Default::default(),
                selector: Selector::default(),
                message_id: None,
                edit: None,
                actor: "bench".into(),
                why: "it rejects no more".into(),
            };
            store.order(&act).await.expect("an act is ordered");
        }
        status.iter().all(|s| {
            let settled = s.lanes.lanes.iter().all(|(lane, _)| lane.cursor == s.log_end);
            s.hot_rows == 0
                && settled
                && s.parked.iter().all(|(_, retrying, waiting, dead)| retrying + waiting + dead == 0)
        })
    }
}

/// Rows that are committed and not moved, or not sent.
async fn hot_rows(raw: &mut dyn Raw, design: Design) -> u64 {
    raw.number(match design {
        Design::Outhaul => "SELECT count(*) FROM outbox",
        Design::InTurn | Design::Joined => "SELECT count(*) FROM article_outbox WHERE status = 'PENDING'",
    })
    .await
}

fn insert(design: Design, n: usize) -> String {
    let payload = raw::payload(n, 300);
    match design {
        Design::Outhaul => format!(
            "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('b-{n}', 'order-created', '{}', '{payload}')",
            key(n)
        ),
        Design::InTurn | Design::Joined => {
            format!("INSERT INTO article_outbox (id, topic, payload) VALUES ('b-{n}', 'order-created', '{payload}')")
        }
    }
}

fn writers(url: &str, design: Design, timeline: Timeline, begin: Instant, committed: &Arc<[AtomicU64]>) -> JoinSet<()> {
    let mut writers = JoinSet::new();
    for w in 0..WRITERS {
        let (url, committed) = (url.to_owned(), committed.clone());
        writers.spawn(async move {
            let mut raw = raw::connect(&url).await;
            for n in (w as usize..committed.len()).step_by(WRITERS as usize) {
                let due = begin + Duration::from_micros(n as u64 * 1_000_000 / timeline.rate);
                tokio::time::sleep_until(due.into()).await;
                raw.execute(&insert(design, n)).await;
                committed[n].store(now_us(), Ordering::Relaxed);
            }
        });
    }
    writers
}

/// Samples until it is told to end.
fn sampler(url: &str, design: Design, pid: u32, mut ends: watch::Receiver<bool>) -> JoinHandle<Vec<Sample>> {
    let url = url.to_owned();
    tokio::spawn(async move {
        let mut raw = raw::connect(&url).await;
        let mut samples = Vec::new();
        let mut every = tokio::time::interval(SAMPLE);
        loop {
            tokio::select! {
                _ = ends.wait_for(|ends| *ends) => return samples,
                _ = every.tick() => {}
            }
            let hot_rows = hot_rows(raw.as_mut(), design).await;
            samples.push(Sample { at_us: now_us(), hot_rows, rss_kib: used(pid).rss_kib });
        }
    })
}

/// Runs one design through all phases and prints what was seen.
pub async fn run(arguments: &Arguments, design: Design) {
    let timeline = Timeline { rate: arguments.rate, seconds: arguments.seconds };
    let mut stage = Stage::set(arguments.db, design).await;
    let mut destinations = Destinations::make(arguments.db, timeline.rows()).await;
    let rejecting = destinations.parts.iter().find(|p| p.trouble == Some(Trouble::Rejects));
    let rejecting = rejecting.map(|p| p.name.clone()).unwrap_or_default();
    let acks = destinations.acks();
    let mut relay = child::start(&stage.place.url, design, &destinations.parts, &acks);
    let committed: Arc<[AtomicU64]> = (0..timeline.rows()).map(|_| AtomicU64::new(0)).collect();
    let begin = Instant::now();
    let mut writing = writers(&stage.place.url, design, timeline, begin, &committed);
    let (ending, ends) = watch::channel(false);
    let sampling = sampler(&stage.place.url, design, relay.id().unwrap_or(0), ends);

    let (mut borders_us, mut kept) = ([0; 4], [Kept::default(); 4]);
    for (n, border) in timeline.borders().into_iter().enumerate() {
        let due = begin + Duration::from_secs(border);
        if n == 3 {
            // What is found dead is redriven: messages may be rejected until the relay has heard that it is over.
            while Instant::now() + LOOK < due {
                stage.is_done(&rejecting).await;
                tokio::time::sleep(LOOK).await;
            }
        }
        tokio::time::sleep_until(due.into()).await;
        match n {
            1 => child::tell(&mut relay, true).await,
            2 => child::tell(&mut relay, false).await,
            _ => {}
        }
        (borders_us[n], kept[n]) = (now_us(), stage.kept().await);
    }
    while let Some(writer) = writing.join_next().await {
        writer.expect("a writer");
    }
    let limit = Instant::now() + Duration::from_secs(arguments.seconds) + PATIENCE;
    while !stage.is_done(&rejecting).await && Instant::now() < limit {
        tokio::time::sleep(LOOK).await;
    }
    let ended_us = now_us();
    ending.send_replace(true);
    let samples = sampling.await.expect("samples");
    crate::child::stop(relay).await;

    let parts = std::mem::take(&mut destinations.parts);
    let seen = Seen {
        design,
        timeline,
        committed: committed.iter().map(|at| at.load(Ordering::Relaxed)).collect(),
        acks: (0..parts.len()).map(|n| noted(&child::acks_of(&acks, n))).collect(),
        held: destinations.held(timeline.rows()).await,
        parts,
        samples,
        borders_us,
        kept,
        ended_us,
    };
    verdict::print(&seen);
    destinations.remove().await;
    if let Some(store) = stage.store.take() {
        store.close().await;
    }
    raw::remove(stage.db, stage.place).await;
}
