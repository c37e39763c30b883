//! Acknowledgements that reach the demanded level some time after they were given.

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Input;
use outhaul_core::lane::{LaneView, Slotting};
use outhaul_core::message::Position;
use outhaul_core::receipt::{AckLevel, LaneState, Outcome, Proof, Reason, Receipt};

use super::bench::{Bench, retry, row};

fn limits() -> LaneLimits {
    LaneLimits { quick_tries: 2, quick_backoff_ms: (20, 20), max_batch: 100, ..LaneLimits::default() }
}

fn later(limits: LaneLimits, slotting: Slotting) -> Bench {
    let mut bench = Bench::new(limits, slotting);
    bench.proves_later = Some(AckLevel::Flushed);
    bench.give(Input::Tick);
    bench.pass_ms(100);
    bench
}

fn view(bench: &Bench) -> LaneView {
    bench.instance.view()[0].lanes[0].clone()
}

fn state(bench: &Bench) -> LaneState {
    bench.checkpoints.last().unwrap().shards[0].receipts.lanes[0].0.clone()
}

/// Answers everything that is sent as delivered, at a time.
fn deliver(bench: &mut Bench, sent_at_us: i64) {
    bench.pass_ms(30);
    while !bench.sends.is_empty() {
        let receipt = Receipt { sent_at_us, ..Receipt::default() };
        let n = bench.sends[0].1.messages.len();
        bench.answer_send(vec![Outcome::Delivered(receipt); n]);
    }
}

#[test]
fn the_second_number_follows_when_it_is_proven() {
    let mut bench = later(limits(), Slotting::Single);
    bench.table.extend((1..=4).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.table.extend((5..=8).map(|n| row(n, "k")));
    deliver(&mut bench, 20);
    bench.pass_ms(1_500);
    assert_eq!((view(&bench).cursor, view(&bench).proven, view(&bench).unproven), (Position(8), Position(0), 8));
    let proof = Some(Proof { level: AckLevel::Flushed, from: Position(0) });
    assert_eq!((state(&bench).cursor, state(&bench).proven, state(&bench).proof), (Position(8), Position(0), proof));
    bench.proven_below = Ok(15);
    bench.pass_ms(1_500);
    assert_eq!((view(&bench).proven, state(&bench).proven), (Position(4), Position(4)), "stored without a new message");
    assert_eq!(state(&bench).level(Position(3), AckLevel::Received), AckLevel::Flushed);
    assert_eq!(state(&bench).level(Position(4), AckLevel::Received), AckLevel::Received);
    bench.proven_below = Ok(25);
    bench.pass_ms(1_500);
    assert_eq!((view(&bench).proven, view(&bench).unproven, state(&bench).proven), (Position(8), 0, Position(8)));
    let asked = bench.asked.len();
    bench.pass_ms(30_000);
    assert!(bench.asked.len() - asked <= 6, "with nothing to prove, a look every 5 s");
    assert!(bench.asked[asked..].iter().all(|n| *n == 0));
}

#[test]
fn until_empty_waits_for_the_proof() {
    let mut bench = Bench::new(limits(), Slotting::Single);
    bench.proves_later = Some(AckLevel::Flushed);
    bench.table.extend((1..=4).map(|n| row(n, "k")));
    bench.give(Input::DrainWhenEmpty);
    bench.pass_ms(200);
    deliver(&mut bench, 10);
    bench.pass_ms(30_000);
    assert_eq!(view(&bench).cursor, Position(4));
    assert!(!bench.stopped, "what is not proven is not settled");
    bench.proven_below = Ok(11);
    bench.pass_ms(1_000);
    assert!(bench.stopped);
    assert_eq!(state(&bench).proven, Position(4));
}

/// What is parked is not waited for, but a try of it that is under way is, and its proof.
#[test]
fn until_empty_waits_for_the_proof_of_a_parked_message_that_is_tried() {
    let limits = LaneLimits { retry_backoff_ms: (50, 50), ..limits() };
    let mut bench = later(limits, Slotting::Single);
    bench.table.extend([row(1, "k"), row(2, "k")]);
    bench.pass_ms(100);
    while view(&bench).parked.retrying == 0 {
        let n = bench.sends[0].1.messages.len();
        bench.answer_send(vec![retry(); n]);
        bench.pass_ms(30);
    }
    bench.pass_ms(200);
    assert_eq!(bench.sends.len(), 1, "a try is under way");
    bench.give(Input::DrainWhenEmpty);
    bench.pass_ms(1_000);
    deliver(&mut bench, 10);
    bench.pass_ms(3_000);
    assert!(!bench.stopped, "what is not proven is not settled");
    bench.proven_below = Ok(11);
    bench.pass_ms(1_000);
    assert!(bench.stopped);
    assert!(bench.parked.is_empty());
}

#[test]
fn a_drain_does_not_wait_and_the_next_owner_goes_on() {
    let mut bench = later(limits(), Slotting::Single);
    bench.table.extend((1..=6).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.give(Input::Drain);
    bench.pass_ms(1_000);
    assert!(bench.stopped);
    let left = state(&bench);
    assert_eq!((left.cursor, left.proven), (Position(6), Position(0)));
    let receipts = bench.checkpoints.iter().flat_map(|c| c.shards[0].receipts.lanes[0].1.clone()).collect();

    let mut next = Bench::new(limits(), Slotting::Single);
    next.proves_later = Some(AckLevel::Flushed);
    (next.log_end, next.number) = (bench.log_end, bench.number);
    next.lease = (None, 1, false);
    next.checkpoints = bench.checkpoints;
    next.unproven = receipts;
    next.starts_held = true;
    next.give(Input::Tick);
    next.pass_ms(2_000);
    assert_eq!((view(&next).cursor, view(&next).proven), (Position(6), Position(0)), "not known yet");
    assert_eq!(state(&next).proven, Position(0));
    next.starts_held = false;
    while !next.held.is_empty() {
        next.answer_held();
    }
    assert_eq!((view(&next).unproven, view(&next).proven), (6, Position(0)));
    next.proven_below = Ok(11);
    next.pass_ms(2_000);
    assert_eq!((view(&next).proven, state(&next).proven), (Position(6), Position(6)));
}

#[test]
fn what_was_forgotten_is_not_proven_until_it_was_sent_and_proven_again() {
    let mut bench = later(limits(), Slotting::Single);
    bench.table.extend((1..=4).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    // The question is on its way while the destination crashes and is started anew.
    bench.proofs_held = true;
    bench.pass_ms(300);
    assert_eq!(bench.held.len(), 1);
    bench.table.push(row(5, "k"));
    bench.pass_ms(30);
    bench.restart(&[2, 3]);
    bench.pass_ms(500);
    bench.proven_below = Ok(100);
    bench.proofs_held = false;
    bench.answer_held();
    bench.proven_below = Ok(15);
    bench.pass_ms(300);
    assert_eq!(view(&bench).proven, Position(2), "the answer was about what is gone: {:?}", view(&bench));
    deliver(&mut bench, 20);
    bench.pass_ms(300);
    assert_eq!((view(&bench).cursor, view(&bench).proven, view(&bench).unproven), (Position(5), Position(2), 3));
    bench.proven_below = Ok(25);
    bench.pass_ms(300);
    assert_eq!((view(&bench).proven, view(&bench).unproven), (Position(5), 0));
}

#[test]
fn what_cannot_be_proven_starts_the_destination_anew() {
    let mut bench = later(limits(), Slotting::Single);
    bench.table.extend((1..=4).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.proven_below = Err(Reason::new("OUT-9001", "another connection"));
    bench.forgotten = vec![Position(3)];
    bench.pass_ms(500);
    assert!(bench.starts >= 2);
    bench.proven_below = Ok(15);
    bench.pass_ms(1_000);
    assert_eq!(bench.sent(), [["m4"]], "nothing else was sent: it noticed by the proof alone");
    deliver(&mut bench, 12);
    bench.pass_ms(1_000);
    assert_eq!(view(&bench).proven, Position(4));
    let before = bench.starts;
    bench.pass_ms(60_000);
    assert_eq!(bench.starts, before);
}

#[test]
fn an_idle_destination_is_looked_at() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.extend((1..=2).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.forgotten = vec![Position(1)];
    bench.proven_below = Err(Reason::new("OUT-9001", "another connection"));
    bench.pass_ms(5_100);
    bench.proven_below = Ok(0);
    bench.pass_ms(1_000);
    assert_eq!(bench.sent(), [["m2"]]);
}

#[test]
fn what_is_not_proven_does_not_put_off_the_look() {
    let mut bench = later(limits(), Slotting::Single);
    bench.table.extend((1..=3).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.asked.clear();
    bench.pass_ms(30_000);
    let looks = bench.asked.iter().filter(|n| **n == 0).count();
    assert!((5..=6).contains(&looks), "every 5 s, as when there is nothing to prove: {looks}");
    assert!(bench.asked.len() > 100 && bench.asked.iter().all(|n| [0, 3].contains(n)), "{:?}", bench.asked);
}

#[test]
fn unproven_acknowledgements_have_a_limit() {
    let mut bench = later(LaneLimits { max_unproven: 10, max_batch: 5, max_queued: 10, ..limits() }, Slotting::Single);
    bench.table.extend((1..=100).map(|n| row(n, "k")));
    for _ in 0..10 {
        deliver(&mut bench, 10);
    }
    let stopped = view(&bench);
    assert!((10..=20).contains(&stopped.unproven) && stopped.queued == 0, "{stopped:?}");
    bench.proven_below = Ok(11);
    for _ in 0..30 {
        deliver(&mut bench, 10);
        bench.pass_ms(200);
    }
    assert_eq!((view(&bench).proven, view(&bench).unproven), (Position(100), 0));
}

#[test]
fn a_level_that_is_demanded_from_now_on_says_nothing_of_what_came_before() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.extend((1..=3).map(|n| row(n, "k")));
    deliver(&mut bench, 10);
    bench.pass_ms(1_500);
    assert_eq!((state(&bench).proven, state(&bench).proof), (Position(3), None));
    bench.proves_later = Some(AckLevel::Flushed);
    bench.table.push(row(4, "k"));
    bench.pass_ms(30);
    bench.restart(&[]);
    bench.pass_ms(500);
    bench.proven_below = Ok(100);
    deliver(&mut bench, 20);
    bench.pass_ms(2_000);
    let state = state(&bench);
    assert_eq!((state.proven, state.proof.map(|p| p.from)), (Position(4), Some(Position(3))));
    assert_eq!(state.level(Position(2), AckLevel::Received), AckLevel::Received);
    assert_eq!(state.level(Position(3), AckLevel::Received), AckLevel::Flushed);
    assert_eq!(state.level(Position(3), AckLevel::Quorum), AckLevel::Quorum, "never less than the receipt says");
}
