//! What a destination has forgotten is sent again; what it still has is not.

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::{Event, Input};
use outhaul_core::lane::{LaneView, Slotting};
use outhaul_core::message::{Position, Row};
use outhaul_core::receipt::Outcome;

use super::bench::{Bench, LANE, SHARD, delivered, down, rejected, retry, row};

fn limits() -> LaneLimits {
    LaneLimits { quick_tries: 2, quick_backoff_ms: (20, 20), retry_backoff_ms: (1_000, 1_000), ..LaneLimits::default() }
}

fn view(bench: &Bench) -> LaneView {
    bench.instance.view()[0].lanes[0].clone()
}

fn rows(numbers: std::ops::RangeInclusive<u64>, key: &str) -> Vec<Row> {
    numbers.map(|n| row(n, key)).collect()
}

/// Everything is delivered until nothing is sent any more; the ids in the order in which they were.
fn deliver_all(bench: &mut Bench) -> Vec<String> {
    bench.answer_slots(3_000, &[0, 1, 2, 3], &delivered())
}

fn forgotten(bench: &Bench) -> Vec<(u64, u64, u64)> {
    let told = |e: &Event| match e {
        Event::Forgotten { count, first, last, .. } => Some((*count, first.0, last.0)),
        _ => None,
    };
    bench.events.iter().filter_map(told).collect()
}

#[test]
fn what_was_forgotten_is_sent_again_before_what_comes_after_it() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.extend(rows(1..=8, "k"));
    assert_eq!(deliver_all(&mut bench).len(), 8);
    assert_eq!((view(&bench).cursor, bench.starts), (Position(8), 1));
    bench.table.extend(rows(9..=10, "k"));
    bench.pass_ms(30);
    bench.restart(&[3, 4, 6]);
    let again = deliver_all(&mut bench);
    assert_eq!(again, ["m4", "m5", "m7", "m9", "m10"], "from the log, in order, and nothing else");
    assert_eq!(forgotten(&bench), [(3, 3, 6)]);
    assert_eq!((view(&bench).cursor, bench.starts), (Position(10), 2));
    // The checkpoints say where the lane stood meanwhile, and which receipts are new.
    let of_lane = |c: &std::sync::Arc<outhaul_core::checkpoint::Checkpoint>| c.shards[0].receipts.lanes[0].clone();
    let last: Vec<_> = bench.checkpoints.iter().map(of_lane).collect();
    let positions: Vec<u64> = last.iter().flat_map(|(_, receipts)| receipts.iter().map(|r| r.position.0)).collect();
    assert_eq!(positions.iter().filter(|p| [3, 4, 6].contains(p)).count(), 6, "a second receipt each: {positions:?}");
    assert_eq!(last.last().unwrap().0.cursor, Position(10));
}

#[test]
fn a_checkpoint_between_stores_where_the_lane_went_back_to() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.extend(rows(1..=4, "k"));
    deliver_all(&mut bench);
    bench.table.extend(rows(5..=5, "k"));
    bench.pass_ms(30);
    bench.restart(&[1]);
    bench.pass_ms(1_500);
    let (state, _) = bench.checkpoints.last().unwrap().shards[0].receipts.lanes[0].clone();
    assert_eq!(state.cursor, Position(1));
    assert_eq!(state.ahead.iter().map(|r| (r.first, r.last)).collect::<Vec<_>>(), [(2, 3)]);
    assert_eq!(deliver_all(&mut bench), ["m2", "m5"]);
}

#[test]
fn nothing_is_sent_between_a_start_and_what_is_found_out_after_it() {
    let mut bench = Bench::running(limits(), Slotting::ByKey(2));
    bench.table.extend(rows(1..=2, "a"));
    deliver_all(&mut bench);
    bench.starts_held = true;
    bench.table.extend([row(3, "a"), row(4, "e")]);
    bench.pass_ms(30);
    assert_eq!(bench.sends.len(), 2);
    let (epoch, batch) = bench.sends.remove(1).unwrap();
    bench.restart(&[0, 1]);
    bench.pass_ms(500);
    bench.table.extend([row(5, "a"), row(6, "e")]);
    bench.pass_ms(500);
    assert!(bench.sends.is_empty(), "a start is under way: {:?}", bench.sent());
    // A batch that was too late to be sent comes back as it was.
    bench.give(Input::NotSent { shard: SHARD, epoch, destination: LANE, slot: batch.slot, batch: batch.batch });
    bench.answer_held();
    bench.pass_ms(500);
    assert!(bench.sends.is_empty(), "it is not known yet what was forgotten: {:?}", bench.sent());
    assert!(!view(&bench).verified);
    bench.answer_held();
    let sent = deliver_all(&mut bench);
    let of = |ids: &[&str]| sent.iter().filter(|id| ids.contains(&id.as_str())).cloned().collect::<Vec<_>>();
    assert_eq!(of(&["m1", "m2", "m3", "m5"]), ["m1", "m2", "m3", "m5"]);
    assert_eq!(of(&["m4", "m6"]), ["m4", "m6"]);
    assert_eq!(sent.len(), 6);
}

#[test]
fn an_acknowledgement_that_comes_late_is_compared_too() {
    let mut bench = Bench::running(limits(), Slotting::ByKey(2));
    bench.table.extend([row(1, "a"), row(2, "e")]);
    bench.pass_ms(30);
    let late = bench.sends.pop_back().unwrap();
    bench.restart(&[]);
    bench.pass_ms(300);
    assert_eq!(bench.verified.len(), 2, "after each start");
    // The batch is older than the start: its message may be forgotten already.
    bench.sends.push_front(late);
    let id = bench.sent()[0][0].to_owned();
    let position = if id == "m1" { 0 } else { 1 };
    bench.forgotten = vec![Position(position)];
    bench.answer_send(vec![delivered()]);
    assert_eq!(bench.verified.last().unwrap(), &[position]);
    assert_eq!(forgotten(&bench), [(1, position, position)]);
    assert!(deliver_all(&mut bench).contains(&id));
}

#[test]
fn where_a_start_changes_nothing_nothing_is_compared() {
    let mut bench = Bench::running(limits(), Slotting::ByKey(2));
    bench.table.extend([row(1, "a"), row(2, "e")]);
    bench.pass_ms(30);
    let late = bench.sends.pop_back().unwrap();
    bench.unchanged = true;
    bench.restart(&[0, 1]);
    bench.pass_ms(500);
    assert_eq!((bench.starts, bench.verified.len()), (2, 1));
    assert_eq!(bench.sends.len(), 1, "the slot that was down goes on");
    bench.sends.push_front(late);
    bench.answer_send(vec![delivered()]);
    assert_eq!(bench.verified.len(), 1, "an acknowledgement of the start before is as good");
    assert!(forgotten(&bench).is_empty() && view(&bench).verified);
    bench.unchanged = false;
    bench.restart(&[0, 1]);
    bench.pass_ms(500);
    assert_eq!((bench.starts, bench.verified.len()), (3, 2));
    assert_eq!(forgotten(&bench).len(), 1);
}

#[test]
fn more_than_the_limit_stops_the_lane_and_nothing_else() {
    let mut bench = Bench::running(LaneLimits { max_forgotten: 2, ..limits() }, Slotting::Single);
    bench.table.extend(rows(1..=8, "k"));
    deliver_all(&mut bench);
    bench.table.extend(rows(9..=9, "k"));
    bench.pass_ms(30);
    bench.restart(&[1, 2, 3]);
    bench.pass_ms(60_000);
    assert!(bench.sends.is_empty());
    assert!(bench.events.iter().any(|e| matches!(e, Event::ForgottenTooMany { limit: 2, .. })));
    let view = view(&bench);
    assert_eq!((view.cursor, view.verified, bench.starts), (Position(8), false, 2));
    assert_eq!(view.last_error.unwrap().code, "OUT-4016");
    assert_eq!(bench.instance.troubles()[0].code, "OUT-4016");
}

#[test]
fn a_destination_that_cannot_be_started_is_asked_less_and_less_often() {
    let mut bench = Bench::new(limits(), Slotting::Single);
    bench.start_fails = true;
    bench.table.extend(rows(1..=3, "k"));
    bench.give(Input::Tick);
    bench.pass_ms(60_000);
    assert!((9..=20).contains(&bench.starts), "{} starts within a minute", bench.starts);
    assert!(bench.sends.is_empty() && view(&bench).last_error.is_some());
    let since = bench.instance.troubles()[0].since_us;
    bench.pass_ms(20_000);
    assert_eq!(bench.instance.troubles()[0].since_us, since, "since the first failure");
    bench.start_fails = false;
    let sent = bench.answer_slots(11_000, &[0], &delivered());
    assert_eq!(sent, ["m1", "m2", "m3"]);
    let told = |e: &&Event| matches!(e, Event::NotStarted { .. } | Event::Started { .. });
    assert_eq!(bench.events.iter().filter(told).count(), 2, "down once, up once");
    assert_eq!(view(&bench).last_error, None);
    assert_eq!(bench.instance.troubles(), []);
}

#[test]
fn a_slot_that_is_down_again_and_again_does_not_restart_the_destination_all_the_time() {
    let mut bench = Bench::running(limits(), Slotting::ByKey(2));
    bench.table.extend([row(1, "a")]);
    let slot = Slotting::ByKey(2).slot_of(Some("a"), Position(0));
    let good = 1 - slot;
    bench.answer_slots(5_000, &[slot], &down());
    let begun = bench.starts;
    for n in 2..60 {
        bench.table.push(row(n, "e"));
        bench.answer_slots(1_000, &[slot], &down());
        assert_eq!(bench.sent(), [[format!("m{n}")]], "the other slot goes on");
        bench.answer_slots(0, &[good], &delivered());
    }
    assert!((5..=14).contains(&(bench.starts - begun)), "{} starts within a minute", bench.starts - begun);
}

/// Nobody forgets so, since a key's messages stand in one queue; and still nothing may be lost or stand in the wrong
/// order among what was not delivered.
#[test]
fn a_key_whose_later_messages_are_on_their_way_parked_or_held() {
    for what in [vec![delivered(), retry()], vec![retry(), retry()], vec![rejected(), retry()], vec![down(), down()]] {
        let mut bench = Bench::running(LaneLimits { max_batch: 2, ..limits() }, Slotting::ByKey(2));
        bench.table.extend([row(1, "a"), row(2, "a"), row(3, "e")]);
        deliver_all(&mut bench);
        bench.table.extend([row(4, "a"), row(5, "a"), row(6, "a"), row(7, "e")]);
        bench.pass_ms(30);
        // The slot of `a` has m4 and m5 under way while the one of `e` finds that the destination has forgotten.
        let at = bench.sends.iter().position(|(_, b)| b.messages[0].id == "m4").unwrap();
        let under_way = bench.sends.remove(at).unwrap();
        assert_eq!(bench.sent(), [["m7"]]);
        bench.log_read = 1;
        bench.restart(&[0, 1]);
        bench.pass_ms(500);
        bench.sends.push_front(under_way);
        bench.answer_send(what.clone());
        let sent: Vec<String> = deliver_all(&mut bench);
        let of_key: Vec<&String> = sent.iter().filter(|id| *id != "m7").collect();
        let expected: &[&str] = match &what[0] {
            Outcome::Delivered(_) => &["m1", "m2", "m5", "m6"],
            Outcome::Rejected(_) => &["m1", "m2"],
            _ => &["m1", "m2", "m4", "m5", "m6"],
        };
        assert_eq!(of_key, expected, "{what:?}");
        let parked = view(&bench).parked;
        let dead = u64::from(matches!(what[0], Outcome::Rejected(_)));
        assert_eq!((parked.retrying, parked.waiting, parked.dead), (0, 2 * dead, dead));
        assert_eq!(view(&bench).cursor, Position(7));
    }
}

#[test]
fn what_is_parked_is_left_alone_and_waits_for_what_was_forgotten_before_it() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.extend(rows(1..=2, "k"));
    deliver_all(&mut bench);
    bench.table.extend(rows(3..=4, "k"));
    for _ in 0..2 {
        bench.pass_ms(30);
        bench.answer_send(vec![retry(); 2]);
    }
    assert_eq!((view(&bench).parked.retrying, view(&bench).parked.waiting), (1, 1));
    bench.table.push(row(5, "other"));
    bench.pass_ms(30);
    // The parked ones are among what is said to be forgotten: they are not settled by a receipt.
    bench.restart(&[1, 2, 3]);
    assert_eq!(deliver_all(&mut bench), ["m2", "m5", "m3", "m4"]);
    assert_eq!(forgotten(&bench), [(1, 1, 1)]);
    assert_eq!((view(&bench).parked.retrying, view(&bench).parked.waiting), (0, 0));
    assert_eq!(view(&bench).cursor, Position(5));
}

#[test]
fn a_dead_one_that_does_not_block_its_key_stays_dead() {
    let mut bench = Bench::running(LaneLimits { block_key: false, ..limits() }, Slotting::Single);
    bench.table.extend(rows(1..=3, "k"));
    bench.pass_ms(30);
    bench.answer_send(vec![delivered(), rejected(), delivered()]);
    bench.table.push(row(4, "k"));
    bench.pass_ms(30);
    bench.restart(&[0, 1, 2]);
    assert_eq!(deliver_all(&mut bench), ["m1", "m3", "m4"]);
    assert_eq!(view(&bench).parked.dead, 1);
}
