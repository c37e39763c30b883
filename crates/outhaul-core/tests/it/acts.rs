//! What operators have done to parked messages and lanes.

use bytes::Bytes;
use outhaul_core::act::{ActNumber, ActState, Edit, PauseWrite, Selector, Verb};
use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Event;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Defect, Position};

use super::bench::{Bench, delivered, down, rejected, retry, row};

fn bench() -> Bench {
    Bench::running(LaneLimits::default(), Slotting::Single)
}

/// Of key k: the first message is dead, two wait behind it; another key goes on.
fn blocked() -> Bench {
    let mut bench = bench();
    bench.table.extend([row(1, "k"), row(2, "other")]);
    bench.pass_ms(30);
    bench.answer_send(vec![rejected(), delivered()]);
    bench.table.extend([row(3, "k"), row(4, "k")]);
    bench.pass_ms(1_500);
    assert_eq!((bench.parked.len(), bench.sends.len()), (3, 0));
    bench
}

fn at(position: u64) -> Selector {
    Selector { position: Some(Position(position)), ..Selector::default() }
}

/// What the newest checkpoint says of the newest act.
fn last(bench: &Bench) -> (ActState, u64, u64) {
    let write = bench.written.last().expect("no act was written");
    (write.state, write.done, write.left)
}

#[test]
fn s5_a_redriven_head_goes_first_and_what_waits_follows_in_order() {
    let mut bench = blocked();
    bench.order(Verb::Redrive, Selector::default(), None);
    bench.pass_ms(700);
    assert_eq!(bench.sent(), [["m1"]]);
    assert_eq!(last(&bench), (ActState::Done, 1, 0), "what waits follows by itself");
    bench.answer_send(vec![delivered()]);
    for expected in ["m3", "m4"] {
        bench.pass_ms(100);
        assert_eq!(bench.sent(), [[expected]]);
        bench.answer_send(vec![delivered()]);
    }
    bench.pass_ms(1_500);
    assert!(bench.parked.is_empty() && bench.acts.is_empty());
}

#[test]
fn s5_what_is_skipped_lets_the_next_go_on_once_that_is_stored() {
    let mut bench = blocked();
    bench.order(Verb::Skip, at(0), None);
    bench.checkpoints_fail = true;
    bench.pass_ms(3_000);
    assert!(bench.sends.is_empty(), "a crash now would bring m1 back: {:?}", bench.sent());
    bench.checkpoints_fail = false;
    bench.pass_ms(3_000);
    assert_eq!(bench.sent(), [["m3"]]);
    assert_eq!(last(&bench), (ActState::Done, 1, 0));
    bench.answer_each(3_000, |_| delivered());
    let touched = bench.checkpoints.iter().flat_map(|c| &c.shards[0].receipts.acts).collect::<Vec<_>>();
    assert_eq!((touched.len(), touched[0].positions.len(), touched[0].verb), (1, 1, Verb::Skip));
    assert!(bench.parked.is_empty());
}

#[test]
fn s5_an_edit_is_what_is_sent_and_the_original_is_kept() {
    let mut bench = blocked();
    let payload = Bytes::from_static(b"mended");
    bench.order(Verb::Edit, at(0), Some(Edit { payload: Some(payload.clone()), ..Edit::default() }));
    bench.checkpoints_fail = true;
    bench.pass_ms(2_000);
    assert!(bench.sends.is_empty(), "{:?}", bench.sent());
    bench.checkpoints_fail = false;
    bench.pass_ms(3_000);
    assert_eq!(bench.sent(), [["m1"]]);
    assert_eq!(bench.sends[0].1.messages[0].payload, payload);
    let original = bench.written.iter().find_map(|w| w.original.as_ref()).expect("the original");
    assert!(original.message.payload.is_empty() && original.message.id == "m1");
    bench.answer_each(3_000, |_| delivered());
    assert!(bench.parked.is_empty());
}

/// The content of a message is made of its edits by rising number, so that is how they are carried out.
#[test]
fn edits_of_one_message_are_carried_out_by_number() {
    let mut bench = blocked();
    let payload = |text: &'static [u8]| Some(Bytes::from_static(text));
    bench.order(Verb::Edit, at(0), Some(Edit { payload: payload(b"first"), headers: None, key: None }));
    let headers = Some(Some(r#"{"edited":"1"}"#.to_owned()));
    bench.order(Verb::Edit, at(0), Some(Edit { payload: payload(b"second"), headers, key: None }));
    bench.pass_ms(3_000);
    assert_eq!(bench.sent(), [["m1"]]);
    let sent = bench.sends[0].1.messages[0].clone();
    assert_eq!((sent.payload.as_ref(), sent.headers.as_deref()), (&b"second"[..], Some(r#"{"edited":"1"}"#)));
    bench.answer_send(vec![rejected()]);
    bench.pass_ms(1_500);

    bench.order(Verb::Edit, at(0), Some(Edit { payload: payload(b"late"), headers: None, key: None }));
    bench.acts.last_mut().expect("ordered").number = ActNumber(0); // Its transaction committed last.
    bench.pass_ms(1_500);
    assert_eq!(last(&bench), (ActState::Done, 0, 1));
    assert!(bench.sends.is_empty(), "{:?}", bench.sent());
}

#[test]
fn an_edit_that_mends_nothing_is_left() {
    let mut bench = bench();
    let mut bad = row(1, "k");
    bad.defect = Some(Defect::NotUtf8("topic"));
    bench.table.push(bad);
    bench.pass_ms(1_500);
    bench.order(Verb::Edit, at(0), Some(Edit { headers: Some(None), ..Edit::default() }));
    bench.pass_ms(1_500);
    assert_eq!(last(&bench), (ActState::Done, 0, 1));
    assert!(bench.written.last().is_some_and(|w| w.note.starts_with("OUT-4018 ")), "{:?}", bench.written);
    // A redrive does not send it either.
    bench.order(Verb::Redrive, at(0), None);
    bench.pass_ms(1_500);
    assert_eq!((bench.sends.len(), bench.instance.view()[0].lanes[0].parked.dead), (0, 1));
}

#[test]
fn a_mended_message_goes_behind_older_ones_of_its_key() {
    let mut bench = bench();
    bench.table.push(row(1, "k"));
    bench.pass_ms(30);
    let mut bad = row(2, "k");
    bad.defect = Some(Defect::NotUtf8("headers"));
    bench.table.push(bad);
    bench.pass_ms(1_500);
    assert_eq!(bench.sent(), [["m1"]]);
    bench.order(Verb::Edit, at(1), Some(Edit { headers: Some(None), ..Edit::default() }));
    bench.pass_ms(1_500);
    assert_eq!(bench.sent(), [["m1"]], "m1 is under way yet");
    bench.answer_send(vec![down()]);
    for first in [down(), retry(), delivered()] {
        bench.pass_ms(1_500);
        assert_eq!(bench.sent(), [["m1", "m2"]]);
        let second = if first == delivered() { delivered() } else { down() };
        bench.answer_send(vec![first, second]);
    }
    bench.pass_ms(1_500);
    assert!(bench.sends.is_empty() && bench.parked.is_empty());
}

#[test]
fn what_is_under_way_ends_before_it_is_skipped() {
    let mut bench = blocked();
    bench.order(Verb::Redrive, Selector::default(), None);
    bench.pass_ms(700);
    assert_eq!(bench.sent(), [["m1"]]);
    bench.order(Verb::Skip, at(0), None);
    bench.pass_ms(1_500);
    assert!(bench.acts.iter().any(|a| a.verb == Verb::Skip), "it waits");
    bench.answer_send(vec![delivered()]);
    bench.pass_ms(1_500);
    assert_eq!(last(&bench), (ActState::Done, 0, 0), "it was delivered: nothing to skip");
}

#[test]
fn a_paused_lane_begins_nothing_and_ends_what_is_under_way() {
    let mut bench = bench();
    bench.table.push(row(1, "k"));
    bench.pass_ms(30);
    bench.order(Verb::Pause, Selector::default(), None);
    bench.pass_ms(700);
    assert_eq!(bench.written.last().and_then(|w| w.pause.clone()), Some(PauseWrite::Pause(Some("d".into()))));
    bench.answer_send(vec![delivered()]);
    bench.table.push(row(2, "k"));
    let before = bench.ticks;
    bench.pass_ms(3_000);
    assert!(bench.sends.is_empty() && bench.table.is_empty(), "rows still move into the log");
    assert!(bench.ticks - before < 700, "{} ticks", bench.ticks - before);
    bench.order(Verb::Resume, Selector::default(), None);
    bench.pass_ms(700);
    assert_eq!(bench.sent(), [["m2"]]);
    let acted = bench.events.iter().filter(|e| matches!(e, Event::Acted { .. })).count();
    assert_eq!(acted, 2);
}

#[test]
fn what_was_paused_is_paused_for_the_next_owner() {
    for paused in [Some("d".to_owned()), None] {
        let mut bench = Bench::new(LaneLimits::default(), Slotting::Single);
        bench.paused = vec![paused];
        bench.table.push(row(1, "k"));
        bench.give(outhaul_core::instance::Input::Tick);
        bench.pass_ms(3_000);
        assert!(bench.sends.is_empty() && bench.table.is_empty());
    }
}

#[test]
fn a_rate_is_kept() {
    let mut bench = bench();
    bench.table.extend((1..=100).map(|n| row(n, &format!("k{n}"))));
    bench.pass_ms(30);
    bench.answer_each(1_500, |_| rejected());
    assert_eq!(bench.parked.len(), 100);
    bench.order(Verb::Redrive, Selector { rate_milli: 10_000, ..Selector::default() }, None);
    let mut sent = 0;
    for _ in 0..4 {
        sent += bench.answer_slots(1_000, &[0], &delivered()).len();
    }
    assert!((30..=42).contains(&sent), "{sent} in four seconds");
    let progress: Vec<u64> = bench.written.iter().map(|w| w.done).collect();
    assert!(progress.is_sorted() && progress.len() > 10, "{progress:?}");
    assert!(bench.written.iter().all(|w| w.state == ActState::Open));
}

#[test]
fn what_no_route_names_stays_unless_it_is_skipped() {
    let mut bench = bench();
    let mut stray = row(1, "k");
    stray.topic = "nowhere".into();
    bench.table.push(stray);
    bench.pass_ms(1_500);
    for (verb, state, done, left) in [
        (Verb::Redrive, ActState::Done, 0, 1),
        (Verb::Edit, ActState::Refused, 0, 0),
        (Verb::Skip, ActState::Done, 1, 0),
    ] {
        assert_eq!(bench.parked.len(), 1);
        bench.order(verb, Selector::default(), Some(Edit::default()));
        bench.acts.last_mut().expect("an act").destination = Some("-".into());
        bench.pass_ms(1_500);
        assert_eq!(last(&bench), (state, done, left), "{verb:?}");
    }
    assert!(bench.parked.is_empty() && bench.sends.is_empty());
}
