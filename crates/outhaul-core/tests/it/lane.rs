//! Order, parking and waiting in a lane.

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Event;
use outhaul_core::lane::{ParkedCounts, Slotting};
use outhaul_core::message::{Defect, Message, Position, Row, ShardId};
use outhaul_core::receipt::{Outcome, Reason};

use super::bench::{Bench, delivered, down, rejected, retry, row};

fn limits() -> LaneLimits {
    LaneLimits { quick_tries: 2, quick_backoff_ms: (20, 20), retry_backoff_ms: (1_000, 1_000), ..LaneLimits::default() }
}

#[test]
fn o1_messages_that_were_not_sent_stay_before_those_still_held() {
    let mut bench = Bench::running(LaneLimits { max_batch: 2, quick_tries: 9, ..limits() }, Slotting::Single);
    bench.table.extend((1..=4).map(|n| row(n, "k")));
    bench.pass_ms(30);
    bench.answer_send(vec![retry(), retry()]);
    // m1 and m2 are held; m3 and m4 join them. The next batch takes two of the four, and the destination is down.
    bench.pass_ms(50);
    assert_eq!(bench.sent(), [["m1", "m2"]]);
    bench.answer_send(vec![down(), down()]);
    for expected in [["m1", "m2"], ["m3", "m4"]] {
        bench.pass_ms(500);
        assert_eq!(bench.sent(), [expected]);
        bench.answer_send(vec![delivered(), delivered()]);
    }
}

#[test]
fn s4_a_defect_behind_a_blocked_key_is_dead_and_never_sent() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.push(row(1, "k"));
    bench.pass_ms(30);
    bench.answer_send(vec![rejected()]);
    bench.table.push(row(2, "k"));
    let mut bad = row(3, "k");
    bad.defect = Some(Defect::NotUtf8("headers"));
    bench.table.push(bad);
    bench.pass_ms(100);
    let parked = bench.instance.view()[0].lanes[0].parked;
    assert_eq!((parked.dead, parked.waiting), (2, 1));
    assert!(bench.sends.is_empty());
}

#[test]
fn s6_an_open_breaker_probes_with_a_parked_message_if_there_is_nothing_else() {
    let mut bench = Bench::running(limits(), Slotting::Single);
    bench.table.push(row(1, "k"));
    bench.pass_ms(30);
    bench.answer_send(vec![retry()]);
    bench.pass_ms(30);
    bench.answer_send(vec![retry()]);
    assert_eq!(bench.instance.view()[0].lanes[0].parked.retrying, 1);
    for answer in [down(), down(), delivered()] {
        bench.pass_ms(1_500);
        assert_eq!(bench.sent(), [["m1"]]);
        bench.answer_send(vec![answer]);
    }
    assert!(bench.events.iter().any(|e| matches!(e, Event::DestinationUp { .. })));
    assert_eq!(bench.instance.troubles(), []);
    assert_eq!(bench.instance.view()[0].lanes[0].parked.retrying, 0);
}

#[test]
fn an_open_breaker_with_nothing_to_send_does_not_spin() {
    let mut bench = Bench::running(limits(), Slotting::ByKey(2));
    bench.table.extend([row(1, "a"), row(2, "e")]);
    bench.pass_ms(30);
    assert_eq!(bench.sends.len(), 2, "two slots: {:?}", bench.sent());
    let first = bench.sent()[0][0].to_owned();
    bench.answer_send(vec![down()]);
    bench.answer_send(vec![delivered()]);
    // The probe of the slot that is down has no answer yet: nothing else may be sent, long after the breaker's time.
    let before = bench.ticks;
    bench.pass_ms(1_000);
    assert!(bench.ticks - before < 400, "{} ticks", bench.ticks - before);
    assert_eq!(bench.sent(), [[first.as_str()]]);
    bench.answer_send(vec![delivered()]);
    assert!(bench.events.iter().any(|e| matches!(e, Event::DestinationUp { .. })));
}

/// Keys of both slots by turns.
fn rows(numbers: std::ops::RangeInclusive<u64>) -> Vec<Row> {
    numbers.map(|n| row(n, if n % 2 == 0 { "a" } else { "e" })).collect()
}

#[test]
fn l3_a_slot_that_is_down_or_silent_leaves_the_others_alone() {
    let few =
        LaneLimits { max_queued: 20, max_span: 60, breaker_failures: 2, breaker_backoff_ms: (100, 400), ..limits() };
    let silence = Outcome::Unknown(Reason::new("OUT-4003", "no answer"));
    for bad in [down(), silence] {
        let mut bench = Bench::running(few.clone(), Slotting::ByKey(2));
        let (good_slot, bad_slot) = (Slotting::ByKey(2).slot_of(Some("e"), Position(0)), 0);
        let bad_slot = if good_slot == bad_slot { 1 } else { bad_slot };
        let view = |bench: &Bench| bench.instance.view()[0].lanes[0].clone();
        // More than the queue holds waits for the bad slot, and still each message of the other one is sent at once.
        for n in 0..28 {
            bench.table.extend(rows(2 * n + 1..=2 * n + 2));
            bench.pass_ms(12);
            let sent = bench.sent().iter().flatten().any(|id| *id == format!("m{}", 2 * n + 1));
            assert!(sent, "m{} is not sent at once: {:?}", 2 * n + 1, view(&bench));
            bench.answer_slots(0, &[good_slot], &delivered());
            let tried = bench.answer_slots(0, &[bad_slot], &bad);
            assert!(tried.len() <= few.max_batch, "{tried:?}");
        }
        bench.answer_slots(2_000, &[bad_slot], &bad);
        assert_eq!((view(&bench).slots, view(&bench).slots_down), (2, 1), "{:?}", view(&bench));
        assert_eq!(view(&bench).cursor, Position(1), "the first of the bad slot");
        assert_eq!(view(&bench).parked, ParkedCounts::default(), "nothing is parked");
        // The span has its limit: beyond it the lane waits as a whole.
        bench.table.extend(rows(57..=200));
        bench.answer_slots(1_000, &[good_slot], &delivered());
        assert_eq!(view(&bench).next, Position(61));
        // Back-off: not one probe after the other.
        let tried = bench.answer_slots(4_000, &[bad_slot], &bad).len();
        assert!((10..=25 * 10).contains(&tried), "{tried} messages in probes of ten");
        let downs = bench.events.iter().filter(|e| matches!(e, Event::DestinationDown { .. })).count();
        assert_eq!(downs, 1);
        let troubles = bench.instance.troubles();
        let told = troubles.iter().map(|t| (t.shards.as_slice(), t.code.as_str())).collect::<Vec<_>>();
        assert_eq!(told, [(&[ShardId(0)][..], view(&bench).last_error.unwrap().code)]);
        let there = bench.answer_slots(3_000, &[0, 1], &delivered());
        assert!(
            there
                .iter()
                .filter(|id| id[1..].parse::<u64>().unwrap() % 2 == 0)
                .is_sorted_by_key(|id| id[1..].parse::<u64>().unwrap())
        );
        let view = view(&bench);
        assert_eq!((view.cursor, view.slots_down, view.queued), (Position(200), 0, 0));
    }
}

#[test]
fn d4_what_is_not_stored_is_bounded_however_long_checkpoints_fail() {
    let mut bench = Bench::running(LaneLimits { max_queued: 20, max_batch: 5, ..limits() }, Slotting::Single);
    bench.table.extend((1..=200).map(|n| row(n, "k")));
    bench.checkpoints_fail = true;
    let ids = bench.answer_slots(5_000, &[0], &delivered());
    // Twenty results, and as many as the lane had taken by then.
    assert!((20..=40).contains(&ids.len()), "{} were sent without a checkpoint", ids.len());
    bench.checkpoints_fail = false;
    let rest = bench.answer_slots(60_000, &[0], &delivered());
    assert_eq!(ids.len() + rest.len(), 200, "and then the rest, each once");
}

#[test]
fn many_parked_messages_are_tried_again_a_few_at_a_time() {
    let limits = LaneLimits { quick_tries: 1, retry_backoff_ms: (10_000, 10_000), ..limits() };
    let mut bench =
        Bench::running(LaneLimits { max_batch: 50, breaker_failures: 1_000_000, ..limits }, Slotting::Single);
    bench.table.extend((1..=2_000).map(|n| row(n, &format!("k{n}"))));
    bench.answer_slots(5_000, &[0], &retry());
    assert_eq!(bench.instance.view()[0].lanes[0].parked.retrying, 2_000);
    // All of them are due at about the same time; the slot takes a few, and asks for the content of no more.
    bench.pass_ms(20_000);
    let under_way: usize = bench.sent().iter().map(Vec::len).sum();
    assert!((1..=32).contains(&under_way) && bench.parked_reads <= 32, "{under_way}, {}", bench.parked_reads);
    let before = bench.ticks;
    bench.pass_ms(5_000);
    assert!(bench.ticks - before < 2_000, "{} ticks while the destination thinks", bench.ticks - before);
    bench.answer_slots(120_000, &[0], &delivered());
    assert_eq!(bench.instance.view()[0].lanes[0].parked, ParkedCounts::default());
}

/// Messages of one slot belong to different parts of the destination (queues of two brokers, say). One part is down for
/// long, and more messages wait for it than the lane may hold: those of the other part are sent as they come.
#[test]
fn l3_a_part_that_is_down_holds_up_no_other_of_its_slot() {
    let few = LaneLimits { max_queued: 20, max_batch: 10, max_span: 2_000, ..limits() };
    let mut bench = Bench::running(few, Slotting::Single);
    let delivered_ids = std::cell::RefCell::new(Vec::new());
    let up = std::cell::Cell::new(false);
    let answer = |m: &Message| {
        if m.key.as_deref() == Some("a") && !up.get() {
            return Outcome::Held { reason: Reason::new("OUT-9001", "that broker is down"), after_ms: None };
        }
        delivered_ids.borrow_mut().push(m.id.clone());
        delivered()
    };
    let view = |bench: &Bench| bench.instance.view()[0].lanes[0].clone();
    for n in 0..60 {
        bench.table.extend(rows(4 * n + 1..=4 * n + 4));
        bench.answer_each(40, answer);
        let good = delivered_ids.borrow().len() as u64;
        assert_eq!(good, 2 * n + 2, "round {n}: {:?}", view(&bench));
    }
    assert_eq!(view(&bench).parked, ParkedCounts::default(), "nothing is parked, nothing counts");
    assert!(view(&bench).queued > 100, "{:?}", view(&bench));
    let troubles = bench.instance.troubles();
    assert_eq!((troubles.len(), troubles[0].text.as_str()), (1, "that broker is down"));
    let before = bench.starts;
    bench.answer_each(60_000, answer);
    assert!((4..=20).contains(&(bench.starts - before)), "{} starts within a minute", bench.starts - before);

    up.set(true);
    bench.answer_each(11_000, answer);
    let all = delivered_ids.borrow();
    assert_eq!(all.len(), 240);
    let numbers = |odd: u64| -> Vec<u64> {
        let all = all.iter().map(|id| id[1..].parse::<u64>().unwrap());
        all.filter(|n| n % 2 == odd).collect()
    };
    assert!(numbers(0).is_sorted() && numbers(1).is_sorted(), "each key in its order");
    assert_eq!((view(&bench).cursor, view(&bench).queued), (Position(240), 0));
    assert_eq!(bench.instance.troubles(), []);
    let told = |wanted: fn(&Event) -> bool| bench.events.iter().filter(|e| wanted(e)).count();
    assert_eq!(told(|e| matches!(e, Event::DestinationDown { .. })), 1);
    assert_eq!(told(|e| matches!(e, Event::DestinationUp { .. })), 1);
}

/// That a part is back may be noticed by a look alone: starts that come more often than looks do not put them off.
#[test]
fn a_part_that_is_down_is_looked_at_however_often_the_destination_is_started() {
    let mut bench = Bench::running(LaneLimits { breaker_backoff_ms: (100, 1_000), ..limits() }, Slotting::Single);
    bench.table.push(row(1, "a"));
    let (starts, looks) = (bench.starts, bench.asked.len());
    let held = Outcome::Held { reason: Reason::new("OUT-9001", "that broker is down"), after_ms: None };
    bench.answer_each(30_000, |_| held.clone());
    let (starts, looks) = (bench.starts - starts, bench.asked.len() - looks);
    assert!(starts >= 20 && (4..=8).contains(&looks), "{starts} starts, {looks} looks");
}
