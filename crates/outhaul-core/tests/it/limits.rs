//! What a destination may be sent: its rate, and the batches that are under way.

use std::collections::BTreeMap;

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Input;
use outhaul_core::lane::Slotting;
use outhaul_core::receipt::{Outcome, Reason};

use super::bench::{Bench, LANE, SHARD, delivered, down, retry, row};

const SLOTS: u32 = 5;

fn limits(rate_milli: u64) -> LaneLimits {
    LaneLimits { rate_milli: Some(rate_milli), ..LaneLimits::default() }
}

/// A bench with so many messages of a hundred keys.
fn bench(limits: LaneLimits, messages: u64) -> Bench {
    let mut bench = Bench::running(limits, Slotting::ByKey(SLOTS));
    bench.table.extend((1..=messages).map(|n| row(n, &format!("k{}", n % 100))));
    bench
}

/// Answers everything at once for so many milliseconds: how large each batch was, by slot.
fn batches(bench: &mut Bench, ms: u64, answer: &Outcome) -> BTreeMap<u32, Vec<usize>> {
    let (end, mut seen) = (bench.now.mono_us + ms * 1_000, BTreeMap::<u32, Vec<usize>>::new());
    while bench.now.mono_us < end {
        bench.pass_ms(1);
        while let Some((_, batch)) = bench.sends.front() {
            let (slot, count) = (batch.slot, batch.messages.len());
            seen.entry(slot).or_default().push(count);
            bench.answer_send(vec![answer.clone(); count]);
        }
    }
    seen
}

fn sum(batches: &BTreeMap<u32, Vec<usize>>) -> usize {
    batches.values().flatten().sum()
}

#[test]
fn a_low_rate_is_kept_exactly_and_waited_for_without_spinning() {
    let mut bench = bench(limits(500), 1_000);
    let ticks = bench.ticks;
    let seen = batches(&mut bench, 200_000, &delivered());
    // The first one goes at once, and then one every two seconds.
    assert!((100..=101).contains(&sum(&seen)), "{}", sum(&seen));
    assert!(seen.values().flatten().all(|n| *n == 1));
    // Polls, lease rounds, rescans, acts and checkpoints: 20 to 30 a second once it is quiet.
    assert!(bench.ticks - ticks < 200 * 40, "{} ticks", bench.ticks - ticks);
}

#[test]
fn at_a_high_rate_batches_stay_batches_and_all_slots_get_the_same() {
    let (mut bench, seconds) = (bench(limits(400_000), 6_400), 10);
    let ticks = bench.ticks;
    let seen = batches(&mut bench, seconds * 1_000, &delivered());
    let (all, count) = (sum(&seen), seen.values().map(Vec::len).sum::<usize>());
    assert!((3_980..=4_041).contains(&all), "{all}");
    assert!(all / count >= 9, "{count} batches for {all} messages");
    assert!(u64::from(bench.ticks - ticks) < seconds * 200, "{} ticks", bench.ticks - ticks);
    let of_slot: Vec<usize> = seen.values().map(|batches| batches.iter().sum()).collect();
    let (least, most) = (of_slot.iter().min().unwrap(), of_slot.iter().max().unwrap());
    assert!(of_slot.len() as u32 == SLOTS && most - least <= 60, "{of_slot:?}");
}

#[test]
fn tries_count_too() {
    let mut bench = Bench::running(LaneLimits { max_attempts: 1_000_000, ..limits(50_000) }, Slotting::ByKey(SLOTS));
    bench.table.extend((1..=1_000).map(|n| row(n, &format!("k{n}"))));
    let seen = batches(&mut bench, 20_000, &retry());
    assert!((950..=1_006).contains(&sum(&seen)), "{}", sum(&seen));
}

#[test]
fn probes_count_too_and_an_open_breaker_waits_for_both() {
    let quick = LaneLimits { breaker_backoff_ms: (1, 1), ..limits(20_000) };
    let mut bench = bench(quick, 1_000);
    let ticks = bench.ticks;
    let seen = batches(&mut bench, 20_000, &down());
    assert!((350..=403).contains(&sum(&seen)), "{}", sum(&seen));
    assert!(bench.ticks - ticks < 20 * 500, "{} ticks", bench.ticks - ticks);
}

#[test]
fn no_more_batches_are_under_way_than_allowed_and_slots_take_turns() {
    let two = LaneLimits { concurrency: Some(2), max_batch: 1, ..LaneLimits::default() };
    let mut bench = bench(two, 1_000);
    bench.pass_ms(200);
    let (mut order, ticks) = (Vec::new(), bench.ticks);
    for _ in 0..60 {
        assert_eq!(bench.sends.len(), 2);
        order.push(bench.sends[0].1.slot);
        bench.answer_send(vec![delivered()]);
    }
    assert!(order.chunks(SLOTS as usize).all(|turns| *turns == order[..SLOTS as usize]), "{order:?}");
    bench.pass_ms(10_000);
    assert_eq!(bench.sends.len(), 2);
    assert!(bench.ticks - ticks < 2_000, "{} ticks while the destination thinks", bench.ticks - ticks);
}

#[test]
fn what_an_earlier_owner_has_under_way_counts_until_it_is_answered() {
    let mut bench = bench(LaneLimits { concurrency: Some(1), ..LaneLimits::default() }, 100);
    bench.pass_ms(200);
    assert_eq!(bench.sends.len(), 1);
    // The lease is lost, and comes back under a new epoch.
    bench.lease = (None, 1, true);
    bench.pass_ms(5_000);
    let (epoch, batch) = bench.sends[0].clone();
    assert_eq!((bench.instance.view()[0].epoch.0, epoch.0, bench.sends.len()), (2, 1, 1));
    let (slot, batch) = (batch.slot, batch.batch);
    bench.sends.clear();
    bench.give(Input::NotSent { shard: SHARD, epoch, destination: LANE, slot, batch });
    assert_eq!(bench.sends.iter().map(|(epoch, _)| epoch.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_drain_does_not_wait_for_the_rate() {
    let mut bench = bench(limits(500), 100);
    bench.pass_ms(500);
    assert_eq!(bench.sent().len(), 1);
    bench.give(Input::Drain);
    bench.pass_ms(1_000);
    assert!(!bench.stopped, "one is under way");
    bench.answer_send(vec![delivered()]);
    bench.pass_ms(500);
    assert!(bench.stopped && bench.sends.is_empty());
}

#[test]
fn until_empty_takes_as_long_as_the_rate_says() {
    let mut bench = bench(limits(10_000), 100);
    bench.give(Input::DrainWhenEmpty);
    let seen = batches(&mut bench, 9_000, &delivered());
    assert!((85..=92).contains(&sum(&seen)) && !bench.stopped, "{seen:?}");
    assert_eq!(sum(&batches(&mut bench, 5_000, &delivered())), 100 - sum(&seen));
    assert!(bench.stopped);
}

/// More keys wait for a part of the destination that is down than the rate lets be tried: what is new gets half of it.
#[test]
fn at_a_low_rate_a_part_that_is_down_holds_up_no_other() {
    let slow = LaneLimits { breaker_backoff_ms: (100, 1_000), ..limits(2_000) };
    let mut bench = Bench::running(slow, Slotting::Single);
    bench.table.extend((1..=200).map(|n| row(n, &format!("{}{n}", if n % 2 == 0 { "down" } else { "up" }))));
    let got_on = std::cell::Cell::new(0);
    let held = Outcome::Held { reason: Reason::new("OUT-9001", "that broker is down"), after_ms: None };
    bench.answer_each(60_000, |m| {
        if m.key.as_deref().is_some_and(|key| key.starts_with("down")) {
            return held.clone();
        }
        got_on.set(got_on.get() + 1);
        delivered()
    });
    assert!((25..=60).contains(&got_on.get()), "{} of about 120 sends", got_on.get());
}
