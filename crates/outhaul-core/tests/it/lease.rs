//! What a lease allows, and what becomes of a shard that is lost or let go.

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::config::LaneLimits;
use outhaul_core::instance::{Event, Input};
use outhaul_core::lane::Slotting;
use outhaul_core::lease::InstanceRow;

use super::bench::{Bench, delivered, row};

#[test]
fn a_lease_that_was_found_covers_no_send_until_a_round_has_renewed_it() {
    let mut bench = Bench::new(LaneLimits::default(), Slotting::Single);
    bench.table.push(row(1, "k"));
    bench.give(Input::Tick);
    bench.leases_held = true; // It was acquired by this round, or long ago by one whose answer was lost.
    bench.pass_ms(2_000);
    assert!(bench.instance.view()[0].running);
    assert!(bench.sends.is_empty());
    bench.leases_held = false;
    bench.give(Input::Leases(Some(bench.report())));
    assert_eq!(bench.sent(), [["m1"]]);
}

#[test]
fn nothing_is_sent_whose_answer_could_come_after_the_lease() {
    let mut bench = Bench::running(LaneLimits { send_limit_ms: 3_000, ..LaneLimits::default() }, Slotting::Single);
    bench.leases_held = true;
    bench.pass_ms(8_000);
    bench.table.push(row(1, "k"));
    let ticks = bench.ticks;
    bench.pass_ms(1_000);
    assert!(bench.sends.is_empty());
    assert!(bench.ticks - ticks < 300, "{} ticks", bench.ticks - ticks);
}

#[test]
fn d3_rows_of_a_read_that_is_older_than_the_owner_are_refused() {
    let mut bench = Bench::running(LaneLimits::default(), Slotting::Single);
    // A rescan begins, and sees a row that no poll has seen yet; another owner has the shard for a while, and moves it.
    bench.rescans_held = true;
    bench.pass_ms(3_000);
    let Some(Input::Rows { token, .. }) = bench.rescan.take() else { panic!("no rescan has begun") };
    bench.lease = (Some("other".into()), 2, false);
    bench.pass_ms(2_000);
    assert!(bench.events.iter().any(|e| matches!(e, Event::Fenced { .. })));
    bench.lease = (None, 2, false);
    bench.pass_ms(2_000);
    assert!(bench.instance.view()[0].running);
    bench.give(Input::Rows { token, rows: Some((vec![row(1, "k")], false)) });
    bench.pass_ms(200);
    assert!(bench.sends.is_empty());
    assert_eq!(bench.log_end, 0);
}

#[test]
fn a_shard_that_is_not_as_it_was_left_is_let_go_and_acquired_under_a_new_epoch() {
    let mut bench = Bench::running(LaneLimits::default(), Slotting::Single);
    bench.table.push(row(1, "k"));
    bench.outcome = ShardOutcome::Mismatch;
    bench.pass_ms(50);
    let (epoch, old) = bench.sends.pop_front().expect("sent ahead");
    bench.pass_ms(1_000);
    assert!(bench.events.iter().any(|e| matches!(e, Event::Mismatch { .. })));
    assert_eq!((epoch.0, bench.lease.1), (1, 2));
    let (again, batch) = bench.sends.front().expect("sent again").clone();
    assert_eq!((again.0, batch.batch), (2, old.batch));
    // The answer to the old send, which has the same slot and number, says nothing about the new one.
    let shard = super::bench::SHARD;
    let answer = Input::Answer {
        shard,
        epoch,
        destination: super::bench::LANE,
        slot: old.slot,
        batch: old.batch,
        outcomes: vec![delivered()],
    };
    bench.give(answer);
    assert_eq!(bench.instance.view()[0].lanes[0].in_flight, 1);
}

#[test]
fn until_empty_does_not_take_the_lease_of_a_killed_process_for_a_living_one() {
    let mut bench = Bench::new(LaneLimits::default(), Slotting::Single);
    bench.lease = (Some("killed".into()), 1, false);
    bench.give(Input::DrainWhenEmpty);
    bench.pass_ms(9_000);
    assert!(!bench.stopped);
    bench.lease.2 = true;
    bench.table.push(row(1, "k"));
    bench.pass_ms(3_000);
    assert_eq!(bench.sent(), [["m1"]]);
    assert!(!bench.stopped);
    bench.answer_send(vec![delivered()]);
    bench.pass_ms(2_000);
    assert!(bench.stopped);
}

/// Whoever moves a message decides where it goes: others with other routes are told of, again and again while it is so.
#[test]
fn other_configurations_are_told() {
    let mut bench = Bench::running(LaneLimits::default(), Slotting::Single);
    let told = |bench: &mut Bench| {
        bench.pass_ms(1_500);
        let events = std::mem::take(&mut bench.events);
        let of = |e: Event| if let Event::OtherConfiguration { owners } = e { Some(owners) } else { None };
        events.into_iter().filter_map(of).collect::<Vec<_>>()
    };
    let other =
        |owner: &str, config: &str, draining| InstanceRow { owner: owner.into(), draining, config: config.into() };
    bench.others = vec![other("unknown", "", false), other("leaving", "another", true)];
    assert!(told(&mut bench).is_empty());
    bench.others.push(other("two", "another", false));
    assert_eq!(told(&mut bench), [["two"]]);
    assert!(told(&mut bench).is_empty());
    bench.pass_ms(60_000);
    assert_eq!(told(&mut bench), [["two"]]);
    bench.others.clear();
    assert_eq!(told(&mut bench), [Vec::<String>::new()]);
    assert!(told(&mut bench).is_empty());
}
