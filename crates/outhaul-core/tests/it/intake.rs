//! Which rows are new.

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Input;
use outhaul_core::intake::{Intake, Taken};
use outhaul_core::lane::Slotting;
use outhaul_core::message::Seq;

use super::bench::{Bench, row};

const NEW: Taken = Taken::New { repeated_id: false };

/// A poll of everything that shows these rows. Returns which of them were new.
fn poll(intake: &mut Intake, shows: &[u64]) -> Vec<u64> {
    let (token, ranges, _) = intake.begin_poll();
    let inside = |n: &u64| ranges.iter().any(|r| r.first <= *n && *n <= r.last);
    let new = shows.iter().copied().filter(inside).filter(|n| intake.take(&row(*n, "k")) == NEW).collect();
    intake.end(token, Some(Seq(u64::MAX)));
    new
}

#[test]
fn l1_the_mark_rises_only_by_a_poll_that_began_after_the_answer() {
    let mut intake = Intake::default();
    let (token, ..) = intake.begin_poll(); // Its snapshot is older than the commit of 5.
    intake.on_resolved(Seq(7));
    intake.end(token, Some(Seq(u64::MAX)));
    assert_eq!(intake.resolved(), Seq(0));
    assert_eq!(poll(&mut intake, &[5, 7]), [5, 7]);
    assert_eq!(intake.resolved(), Seq(7));
}

#[test]
fn a_moved_row_stays_known_until_every_read_that_may_show_it_has_ended() {
    let mut intake = Intake::default();
    assert_eq!(poll(&mut intake, &[1, 2]), [1, 2]);
    let (slow, ..) = intake.begin_rescan();
    intake.moved([Seq(1), Seq(2)].into_iter());
    intake.on_resolved(Seq(2));
    assert!(poll(&mut intake, &[]).is_empty());
    assert_eq!(intake.take(&row(1, "k")), Taken::Known);
    intake.end(slow, None);
    assert!(poll(&mut intake, &[]).is_empty());
    assert_eq!(intake.run_count(), 0);
}

#[test]
fn b5_a_sequence_that_starts_again_is_followed() {
    let mut intake = Intake::default();
    assert_eq!(poll(&mut intake, &[100, 101]), [100, 101]);
    intake.moved([Seq(100), Seq(101)].into_iter());
    intake.on_resolved(Seq(101));
    assert!(poll(&mut intake, &[]).is_empty());
    // After a TRUNCATE: a rescan finds the first row, polls find those after it.
    let (rescan, ..) = intake.begin_rescan();
    assert_eq!(intake.take(&row(1, "k")), NEW);
    intake.end(rescan, None);
    assert_eq!(poll(&mut intake, &[2, 100]), [2, 100]);
}

/// A database that answers late is not asked all the more often: the rest is as long as the poll was, up to the longest wait.
#[test]
fn a_poll_that_took_long_is_followed_by_as_long_a_rest() {
    let mut bench = Bench::running(LaneLimits::default(), Slotting::Single);
    (bench.polls_held, bench.rescans_held) = (true, true);
    bench.pass_ms(80);
    // Milliseconds that a poll takes, and that lie between its answer and the next poll at least.
    for (n, (takes, rests)) in [(0, 2), (6, 5), (500, 7)].into_iter().enumerate() {
        let seq = n as u64 + 1;
        bench.table.push(row(seq, "k"));
        let Some(Input::Rows { token, .. }) = bench.poll.take() else { panic!("no poll is under way") };
        bench.give(Input::Rows { token, rows: Some((Vec::new(), false)) });
        while bench.poll.is_none() {
            bench.pass_ms(1);
        }
        bench.pass_ms(takes);
        let shown = bench.poll.take().expect("a poll is under way");
        bench.give(shown);
        bench.pass_ms(rests);
        assert!(bench.poll.is_none(), "after a poll of {takes} ms");
        bench.pass_ms(2);
        assert!(bench.poll.is_some(), "after a poll of {takes} ms");
    }
}
