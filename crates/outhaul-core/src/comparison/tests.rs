//! What is shown, and how far back.

use super::*;
use crate::receipt::{LaneState, Receipt};

const MARGIN_MS: u64 = 1_000;

fn receipt(position: u64, sent_at_ms: u64) -> LaneReceipt {
    let receipt =
        Receipt { sent_at_us: sent_at_ms as i64 * 1_000, detail: format!("{sent_at_ms}"), ..Receipt::default() };
    LaneReceipt { position: Position(position), receipt }
}

fn row(number: u64, receipts: Vec<LaneReceipt>) -> (u64, ReceiptRow) {
    let cursor = receipts.iter().map(|r| r.position.0 + 1).max().unwrap_or_default();
    let state = LaneState { destination: "d".into(), cursor: Position(cursor), ..LaneState::default() };
    (number, ReceiptRow { lanes: vec![(state, receipts)], ..ReceiptRow::default() })
}

/// A receipt table and a destination of which everything from a time on is gone.
struct World {
    rows: Vec<(u64, ReceiptRow)>,
    gone_from_ms: u64,
    /// Rows that a read brings at most.
    rows_a_read: usize,
    shown: Vec<Vec<u64>>,
    reads: usize,
}

impl World {
    /// `rows` rows of `each` receipts, one each `step_ms`.
    fn new(rows: u64, each: u64, step_ms: u64) -> Self {
        let of_row = |n: u64| (n * each..(n + 1) * each).map(|p| receipt(p, 1_000_000 + p * step_ms)).collect();
        let rows = (0..rows).map(|n| row(n, of_row(n))).collect();
        Self { rows, gone_from_ms: u64::MAX, rows_a_read: 3, shown: Vec::new(), reads: 0 }
    }

    fn run(&mut self, mut c: Comparison) -> Verification {
        loop {
            match c.step() {
                Step::Done(found) => return found,
                Step::Read(below) => {
                    self.reads += 1;
                    let rows = self.rows.iter().rev().filter(|(n, _)| below.is_none_or(|below| *n < below));
                    c.on_rows(rows.take(self.rows_a_read).cloned().collect());
                }
                Step::Show(page) => {
                    assert!(page.is_sorted_by_key(|r| r.position) && !page.is_empty());
                    self.shown.push(page.iter().map(|r| r.position.0).collect());
                    let is_gone = |r: &&LaneReceipt| r.receipt.detail.parse::<u64>().unwrap() >= self.gone_from_ms;
                    let forgotten: Vec<Position> = page.iter().filter(is_gone).map(|r| r.position).collect();
                    let older = page.iter().min_by_key(|r| r.receipt.sent_at_us).is_some_and(|r| is_gone(&r));
                    c.on_compared(&forgotten, older);
                }
            }
        }
    }

    fn shown(&self) -> usize {
        self.shown.iter().map(Vec::len).sum()
    }
}

fn comparison(recent: Vec<RecentReceipt>) -> Comparison {
    Comparison::new("d".into(), recent, None, 1_000_000, MARGIN_MS)
}

fn recent(position: u64, sent_at_ms: u64) -> RecentReceipt {
    let LaneReceipt { position, receipt } = receipt(position, sent_at_ms);
    RecentReceipt { position, id: Some(format!("m{position}")), receipt }
}

#[test]
fn where_nothing_is_gone_little_is_looked_at() {
    let mut world = World::new(1_000, 50, 20);
    assert_eq!(world.run(comparison(vec![])), Verification::default());
    assert!(world.shown() <= 3 * PAGE.0 && world.shown() >= PAGE.0, "{}", world.shown());
    assert_eq!(world.shown[0].last(), Some(&49_999), "the newest first");
    let mut nothing = World::new(0, 0, 0);
    assert_eq!(nothing.run(comparison(vec![])), Verification::default());
    assert_eq!(nothing.shown(), 0);
}

#[test]
fn everything_that_is_gone_is_found_however_much_it_is() {
    for gone in [1, 100, 1_023, 1_024, 1_025, 30_000, 50_000] {
        let mut world = World::new(1_000, 50, 20);
        world.gone_from_ms = 1_000_000 + (50_000 - gone) * 20;
        let mut found = world.run(comparison(vec![])).forgotten;
        found.sort();
        assert!(found.iter().map(|p| p.0).eq(50_000 - gone..50_000), "{gone}: {}", found.len());
    }
}

#[test]
fn acknowledgements_that_came_in_another_order_do_not_hide_anything() {
    // One slot took long: its messages are old by what the destination stored, and the newest by their answer.
    let mut world = World::new(100, 50, 1);
    let late: Vec<LaneReceipt> = (10_000..13_000).map(|p| receipt(p, 1_004_999)).collect();
    world.rows.push(row(100, late));
    // They are there. What was stored after them and answered before them is not: the last 600 of the others.
    let mut c = comparison(vec![]);
    let mut forgotten = Vec::new();
    loop {
        match c.step() {
            Step::Done(found) => {
                forgotten.extend(found.forgotten);
                break;
            }
            Step::Read(below) => {
                let rows = world.rows.iter().rev().filter(|(n, _)| below.is_none_or(|below| *n < below));
                c.on_rows(rows.take(2).cloned().collect());
            }
            Step::Show(page) => {
                let gone: Vec<Position> =
                    page.iter().map(|r| r.position).filter(|p| (4_400..5_000).contains(&p.0)).collect();
                c.on_compared(&gone, false);
            }
        }
    }
    assert_eq!(forgotten.len(), 600);
}

#[test]
fn the_newest_receipt_of_a_position_counts() {
    let mut world = World::new(10, 10, 10);
    // Positions 40 and 41 were sent again later, one of them once more, not stored yet.
    world.rows.push(row(10, vec![receipt(40, 2_000_000), receipt(41, 2_000_000), receipt(41, 2_000_500)]));
    world.gone_from_ms = 1_500_000;
    let mut found = world.run(comparison(vec![recent(40, 3_000_000), recent(40, 1_400_000)])).forgotten;
    found.sort();
    assert_eq!(found, [Position(41)], "the newest of 40 is there, the newest of 41 is not");
    assert_eq!(world.shown(), 100, "each position once");
    let c = comparison(vec![recent(7, 1)]);
    assert_eq!((c.id(Position(7)), c.id(Position(8))), (Some("m7"), None));
}

#[test]
fn rows_that_are_merged_meanwhile_are_read_anew() {
    let mut world = World::new(100, 50, 20);
    world.gone_from_ms = 0; // All is gone: all has to be found.
    let mut c = comparison(vec![]);
    let mut reads = 0;
    let mut found = loop {
        match c.step() {
            Step::Done(found) => break found.forgotten,
            Step::Read(below) => {
                reads += 1;
                if reads == 7 {
                    // Everything up to row 85 is now in row 89: rows below what was read last went above it.
                    let all: Vec<LaneReceipt> = world
                        .rows
                        .drain(..90)
                        .flat_map(|(_, row)| row.lanes.into_iter().flat_map(|(_, r)| r))
                        .collect();
                    world.rows.insert(0, row(89, all));
                }
                let rows = world.rows.iter().rev().filter(|(n, _)| below.is_none_or(|below| *n < below));
                c.on_rows(rows.take(2).cloned().collect());
            }
            Step::Show(page) => {
                let all: Vec<Position> = page.iter().map(|r| r.position).collect();
                c.on_compared(&all, true);
            }
        }
    };
    found.sort();
    assert!(found.iter().map(|p| p.0).eq(0..5_000), "{}", found.len());
}

#[test]
fn rows_from_before_the_lane_are_not_looked_at() {
    let mut world = World::new(100, 50, 20);
    for (_, row) in &mut world.rows[..90] {
        row.lanes[0].0.destination = "other".into();
    }
    world.gone_from_ms = 0;
    assert_eq!(world.run(comparison(vec![])).forgotten.len(), 500);
    assert!(world.reads <= 12, "{}", world.reads);
}

#[test]
fn the_limit_of_what_is_forgotten_ends_it() {
    let mut world = World::new(1_000, 50, 20);
    world.gone_from_ms = 0;
    let found = world.run(Comparison::new("d".into(), vec![], None, 2_000, MARGIN_MS));
    assert!(found.forgotten.len() > 2_000 && found.forgotten.len() < 5_000);
}

#[test]
fn receipts_that_are_not_proven_come_along() {
    let mut world = World::new(200, 50, 20);
    let from = Position(3_333);
    let found = world.run(Comparison::new("d".into(), vec![], Some(from), 1_000, MARGIN_MS));
    let mut positions: Vec<u64> = found.unproven.iter().map(|r| r.position.0).collect();
    positions.sort_unstable();
    assert!(positions.into_iter().eq(3_333..10_000));
    assert!(world.shown() < 4_000, "only for the comparison: {}", world.shown());
}
