//! Order, parking and waiting in a lane.

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Event;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Defect;

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
    // The other slot has no answer yet, so nothing may probe, long after the breaker's time.
    let before = bench.ticks;
    bench.pass_ms(1_000);
    assert!(bench.ticks - before < 400, "{} ticks", bench.ticks - before);
    bench.answer_send(vec![delivered()]);
    bench.pass_ms(1_000);
    assert_eq!(bench.sent(), [[first.as_str()]]);
}
