//! Replays: what is sent when, and what is stored.

use std::sync::Arc;

use outhaul_core::act::PositionRange;
use outhaul_core::config::{DestinationConfig, LaneLimits, Now};
use outhaul_core::destination::DestinationSet;
use outhaul_core::instance::Ready;
use outhaul_core::lane::{SendBatch, Slotting};
use outhaul_core::message::{Message, Position, Row, Seq, ShardId};
use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};
use outhaul_core::replay::{Command, Config, Ending, Input, Page, ReplayShard, Replaying, StoreFailure};

/// A replay of shard 0 with its clock.
struct Bench {
    replay: Replaying,
    now_us: u64,
}

fn message(position: u64, key: &str) -> Arc<Message> {
    let row = Row {
        seq: Seq(position),
        shard: ShardId(0),
        id: format!("m{position}"),
        topic: "t".into(),
        key: Some(key.into()),
        headers: None,
        payload: vec![0; 10].into(),
        created_at_us: 0,
        defect: None,
    };
    Arc::new(Message::from_row(row, Position(position), DestinationSet::EMPTY))
}

fn page(keys: &[&str]) -> Input {
    let messages = keys.iter().enumerate().map(|(n, key)| message(n as u64, key)).collect();
    Input::Page(Ok(Page { messages, next: Position(keys.len() as u64), ..Page::default() }))
}

fn delivered() -> Outcome {
    Outcome::Delivered(Receipt { level: AckLevel::Received, ..Receipt::default() })
}

fn retry() -> Outcome {
    Outcome::Retry { reason: Reason::new("OUT-9001", "not now"), after_ms: None }
}

fn gone() -> Input {
    Input::Proven(Err(Reason::new("OUT-9001", "gone")))
}

fn ready(proves_later: bool, unchanged: bool) -> Input {
    Input::Started(Ok(Ready { proves_later: proves_later.then_some(AckLevel::Flushed), unchanged }))
}

fn answer(batch: &SendBatch, outcomes: Vec<Outcome>) -> Input {
    Input::Answer { slot: batch.slot, batch: batch.batch, outcomes }
}

fn positions(batch: &SendBatch) -> Vec<u64> {
    batch.messages.iter().map(|m| m.position.0).collect()
}

impl Bench {
    fn new(to: u64, change: impl FnOnce(&mut Config)) -> Self {
        let limits = LaneLimits { max_batch: 4, ..LaneLimits::default() };
        let destination = DestinationConfig { name: "d0".into(), slotting: Slotting::Single, limits };
        let range = PositionRange { from: Position(0), to: Position(to) };
        let shard = ReplayShard { shard: ShardId(0), range, next: Position(0), done: 0, left: 0 };
        let mut config = Config::new(destination, 0, vec![shard], 1);
        change(&mut config);
        let replay = Replaying::new(config, Now { mono_us: 1_000, wall_us: 0 });
        Self { replay, now_us: 1_000 }
    }

    fn give(&mut self, input: Input) -> Vec<Command> {
        self.replay.handle(Now { mono_us: self.now_us, wall_us: 0 }, input);
        std::iter::from_fn(|| self.replay.next_command()).collect()
    }

    /// Waits until it wants to be woken: every time that must bring something.
    fn wait(&mut self) -> Vec<Command> {
        let at = self.replay.deadline_us().expect("it waits for the time");
        assert!(at > self.now_us, "it spins");
        self.now_us = at;
        self.give(Input::Tick)
    }

    /// Started, with the log read: the first batch.
    fn begun(&mut self, keys: &[&str], proves_later: bool) -> SendBatch {
        let began = self.give(Input::Tick);
        assert!(matches!(began[..], [Command::Start { start: 1, .. }, Command::Read { .. }]), "{began:?}");
        assert!(self.give(ready(proves_later, false)).is_empty());
        sent(&self.give(page(keys)))
    }

    /// The commands, ticks included, until a batch is sent.
    fn until_sent(&mut self) -> SendBatch {
        (0..50).find_map(|_| self.wait().iter().find_map(as_batch)).expect("it is sent")
    }

    /// Waits for a start; what is sent until then is to be tried again, and what is stored is stored.
    fn until_start(&mut self) {
        for _ in 0..50 {
            for command in self.wait() {
                match command {
                    Command::Start { .. } => return,
                    Command::Send(batch) => drop(self.give(answer(&batch, vec![retry(); batch.messages.len()]))),
                    Command::Keep(_) => drop(self.give(Input::Kept(Ok(true)))),
                    other => panic!("{other:?}"),
                }
            }
        }
        panic!("it is not started");
    }

    fn next(&self) -> u64 {
        self.replay.stand().positions_done
    }
}

fn as_batch(command: &Command) -> Option<SendBatch> {
    if let Command::Send(batch) = command { Some(batch.clone()) } else { None }
}

#[track_caller]
fn sent(commands: &[Command]) -> SendBatch {
    commands.iter().find_map(as_batch).unwrap_or_else(|| panic!("nothing is sent: {commands:?}"))
}

#[test]
fn a_retry_holds_its_key_and_nothing_else() {
    let mut bench = Bench::new(6, |_| {});
    let batch = bench.begun(&["a", "b", "a", "b", "a", "b"], false);
    assert_eq!(positions(&batch), [0, 1, 2, 3]);
    let next = bench.give(answer(&batch, vec![retry(), delivered(), retry(), delivered()]));
    assert_eq!(positions(&sent(&next)), [5], "key a waits, b goes on");
    assert!(bench.give(answer(&sent(&next), vec![delivered()])).is_empty());
    assert_eq!(bench.next(), 0);
    let again = bench.until_sent();
    assert_eq!(positions(&again), [0, 2, 4], "in order, once its wait is over");
    let end = bench.give(answer(&again, vec![delivered(), delivered(), delivered()]));
    assert!(matches!(&end[..], [Command::Keep(p)] if p.ended && p.done == 6 && p.next == Position(6)), "{end:?}");
    assert!(matches!(bench.give(Input::Kept(Ok(true)))[..], [Command::Ended(Ending::Done)]));
}

#[test]
fn what_is_tried_again_and_again_waits_longer_and_longer() {
    let mut bench = Bench::new(1, |_| {});
    let mut batch = bench.begun(&["a"], false);
    let began = bench.now_us;
    for _ in 0..20 {
        assert!(bench.give(answer(&batch, vec![retry()])).is_empty());
        batch = bench.until_sent();
    }
    assert!(bench.now_us - began > 60_000_000, "{}", bench.now_us - began);
    assert!(bench.replay.stand().waits_for.is_some());
}

#[test]
fn going_back_loses_nothing_that_was_not_delivered_before() {
    let mut bench = Bench::new(4, |_| {});
    let batch = bench.begun(&["a", "b", "b", "b"], true);
    // What is forgotten lies above what is still to be tried again.
    let asked = bench.give(answer(&batch, vec![retry(), delivered(), delivered(), delivered()]));
    assert!(matches!(&asked[..], [Command::Prove { receipts, .. }] if receipts.len() == 3), "{asked:?}");
    bench.give(gone());
    bench.until_start();
    let verify = bench.give(ready(true, false));
    assert!(matches!(&verify[..], [Command::Verify { shown, .. }] if shown.len() == 3), "{verify:?}");
    let back = bench.give(Input::Verified(Ok(vec![Position(2)])));
    let from = back.iter().find_map(|c| if let Command::Read { from, .. } = c { Some(*from) } else { None });
    assert_eq!(from, Some(Position(0)), "from what is not delivered on");
    assert_eq!(positions(&sent(&bench.give(page(&["a", "b", "b", "b"])))), [0, 1, 2, 3]);
    assert_eq!((bench.next(), bench.replay.stand().delivered), (0, 0));
}

#[test]
fn a_comparison_that_failed_is_made_after_the_next_start_although_nothing_has_changed_since() {
    let mut bench = Bench::new(2, |_| {});
    let batch = bench.begun(&["a", "a"], true);
    assert!(matches!(bench.give(answer(&batch, vec![delivered(), delivered()]))[..], [Command::Prove { .. }]));
    bench.give(gone());
    bench.until_start();
    assert!(matches!(bench.give(ready(true, false))[..], [Command::Verify { .. }]));
    bench.give(Input::Verified(Err(Reason::new("OUT-4017", "not known"))));
    bench.until_start();
    assert!(matches!(bench.give(ready(true, true))[..], [Command::Verify { .. }]), "it is still not known");
    assert!(matches!(bench.give(Input::Verified(Ok(vec![])))[..], [Command::Prove { .. }]));
    let proven = bench.give(Input::Proven(Ok(vec![true, true])));
    assert!(matches!(&proven[..], [Command::Keep(p)] if p.ended && p.done == 2), "{proven:?}");
}

#[test]
fn one_that_was_taken_over_stores_nothing_more() {
    let mut bench = Bench::new(2, |_| {});
    let batch = bench.begun(&["a", "a"], false);
    let mut kept = Vec::new();
    while !kept.iter().any(|c| matches!(c, Command::Keep(_))) {
        kept = bench.wait();
    }
    assert!(bench.give(Input::Kept(Ok(false))).is_empty(), "what is under way is waited for");
    let end = bench.give(answer(&batch, vec![delivered(), delivered()]));
    assert!(matches!(end[..], [Command::Ended(Ending::Taken)]), "{end:?}");
    assert_eq!(bench.replay.deadline_us(), None);
}

#[test]
fn one_that_is_told_to_stop_stores_what_was_acknowledged() {
    let mut bench = Bench::new(9, |_| {});
    let batch = bench.begun(&["a", "a"], false);
    assert!(bench.give(Input::Stop).is_empty() && bench.give(Input::Stop).is_empty());
    assert_eq!(bench.replay.deadline_us(), None, "only the answer decides");
    let last = bench.give(answer(&batch, vec![delivered(), delivered()]));
    assert!(matches!(&last[..], [Command::Keep(p)] if !p.ended && p.next == Position(2) && p.done == 2), "{last:?}");
    let passes = || Input::Kept(Err(StoreFailure { reason: Reason::new("OUT-1001", "away"), passes: true }));
    for _ in 0..4 {
        assert!(bench.give(passes()).is_empty());
        assert!(matches!(bench.wait()[..], [Command::Keep(_)]));
    }
    assert!(matches!(bench.give(passes())[..], [Command::Ended(Ending::Stopped)]), "it does not try for ever");
}

#[test]
fn the_rate_is_that_of_all_and_nothing_wakes_it_in_vain() {
    let mut bench = Bench::new(40, |c| c.rate_milli = 10_000);
    let keys = vec!["a"; 40];
    let mut batch = bench.begun(&keys, false);
    let began = bench.now_us;
    let (mut count, mut wakes) = (1, 0);
    while count < 40 {
        assert_eq!(positions(&batch).len(), 1, "100 ms apart");
        let next = bench.give(answer(&batch, vec![delivered()]));
        batch = match next.iter().find_map(as_batch) {
            Some(batch) => batch,
            None => loop {
                wakes += 1;
                let commands = bench.wait();
                if commands.iter().any(|c| matches!(c, Command::Keep(_))) {
                    bench.give(Input::Kept(Ok(true)));
                }
                assert!(!commands.is_empty(), "woken for nothing");
                if let Some(batch) = commands.iter().find_map(as_batch) {
                    break batch;
                }
            },
        };
        count += 1;
    }
    assert!((3_800_000..4_000_000).contains(&(bench.now_us - began)), "{}", bench.now_us - began);
    assert!(wakes < 50, "{wakes}");
}
