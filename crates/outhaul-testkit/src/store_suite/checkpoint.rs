//! What a checkpoint moves, and what it leaves.

use std::sync::Arc;

use outhaul_core::checkpoint::{ShardCheckpoint, ShardOutcome};
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::{Run, Runs};
use outhaul_store::{LeaseRound, StoreErrorKind};

use super::fixture::{AppRow, Fixture, Owner, ids, lane, message_of};
use crate::servers::Flavour;

/// Rows that are named go, in their order and as they were; the others stay.
pub async fn moves_exactly_the_rows_that_it_names(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..10).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let named = [rows[0].clone(), rows[1].clone(), rows[4].clone(), rows[9].clone()];
    let part = owner.part(ShardId(0), &named);
    assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
    assert_eq!(f.hot_ids().await, ["m2", "m3", "m5", "m6", "m7", "m8"]);
    let wanted: Vec<Message> = named.iter().enumerate().map(|(n, row)| message_of(row, Position(n as u64))).collect();
    assert_eq!(f.log(ShardId(0)).await, wanted);
}

/// The log holds messages in the order in which they were given positions, whatever their `seq`.
pub async fn the_order_is_that_of_the_positions(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..6).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let named: Vec<_> = [4, 5, 0, 2, 1].map(|n: usize| rows[n].clone()).into();
    owner.move_rows(f.store.as_ref(), &named).await;
    owner.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m4", "m5", "m0", "m2", "m1", "m3"]);
    assert!(f.hot().await.is_empty());
}

/// A row that committed into a gap after the read stays: nobody has read it.
pub async fn a_row_in_a_gap_is_not_deleted(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    for (seq, n) in [(10, 0), (11, 1), (13, 3), (15, 5)] {
        f.database.execute(&f.insert_at_sql(seq, &AppRow::nth(n))).await;
    }
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    for (seq, n) in [(9, 9), (12, 2), (14, 4), (16, 6)] {
        f.database.execute(&f.insert_at_sql(seq, &AppRow::nth(n))).await;
    }
    owner.move_rows(f.store.as_ref(), &rows).await;
    assert_eq!(f.hot_ids().await, ["m9", "m2", "m4", "m6"]);
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m3", "m5"]);
    owner.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m3", "m5", "m9", "m2", "m4", "m6"]);
}

/// An open row between, before and behind those to move is neither waited for nor deleted. Where an open writer stops
/// all others (SQLite), the checkpoint gives up within its limits, having written nothing.
pub async fn an_open_row_is_not_waited_for(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    let mut before = f.database.session().await;
    let open = |n| format!("BEGIN;{}", f.insert_sql(&[AppRow::nth(n)]));
    if !f.writers_are_concurrent() {
        f.insert_series(1..3).await;
        let rows = f.read_all().await;
        before.execute(&open(0)).await;
        let waiting = owner.checkpoint(vec![owner.part(ShardId(0), &rows)]);
        let error = f.store.checkpoint(&waiting).await.expect_err("the write lock is taken");
        assert_eq!(error.kind, StoreErrorKind::Timeout);
        before.execute("COMMIT").await;
        owner.move_rows(f.store.as_ref(), &rows).await;
        assert_eq!(f.hot_ids().await, ["m0"]);
        return;
    }
    let (mut between, mut behind) = (f.database.session().await, f.database.session().await);
    before.execute(&open(0)).await;
    f.insert_series(1..4).await;
    between.execute(&open(4)).await;
    f.insert_series(5..9).await;
    behind.execute(&open(9)).await;
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 7);
    owner.move_rows(f.store.as_ref(), &rows).await;
    // And the application may go on where the relay has been.
    f.insert_series(10..12).await;
    for session in [&mut before, &mut between, &mut behind] {
        session.execute("COMMIT").await;
    }
    assert_eq!(f.hot_ids().await, ["m0", "m4", "m9", "m10", "m11"]);
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
}

/// Runs may cover rows of other shards: those stay, unless their own shard's part moves them.
pub async fn a_run_over_several_shards_takes_its_own_rows(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..60).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut left: Vec<u64> = rows.iter().map(|r| r.seq.0).collect();
    for shard in f.shards() {
        let part = owner.part(shard, &rows);
        assert_eq!(part.runs.len(), 1);
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
        left.retain(|seq| rows.iter().any(|r| r.seq.0 == *seq && r.shard != shard));
        assert_eq!(f.hot().await.into_iter().map(|(seq, _)| seq).collect::<Vec<_>>(), left);
    }
}

/// All shards of an owner in one transaction, each with its own log.
pub async fn all_shards_go_in_one_checkpoint(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    for round in 0..3u64 {
        f.insert_series(round * 50..(round + 1) * 50).await;
        owner.move_all(&f).await;
        assert!(f.hot().await.is_empty());
    }
    let mut logged = 0;
    for shard in f.shards() {
        let log = f.log(shard).await;
        assert!(log.iter().enumerate().all(|(n, m)| m.position == Position(n as u64) && m.shard == shard));
        assert!(log.is_sorted_by_key(|m| m.seq));
        logged += log.len();
    }
    assert_eq!(logged, 150);
}

/// 5,000 rows in one checkpoint, with gaps in it.
pub async fn a_large_checkpoint(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for part in 0..5u64 {
        f.insert_series(part * 1_000..part * 1_000 + 1_000).await;
        f.database.execute(&format!("BEGIN;{}ROLLBACK", f.insert_sql(&[AppRow::nth(0)]))).await;
    }
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    let mut logged = 0;
    for shard in f.shards() {
        logged += f.log(shard).await.len();
    }
    assert_eq!(logged, 5_000);
}

/// Many rows without a neighbour: other shards' rows, or open ones, between each two.
pub async fn rows_that_stand_alone(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..3_000).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let odd: Vec<_> = rows.iter().enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, row)| row.clone()).collect();
    owner.move_rows(f.store.as_ref(), &odd).await;
    let left: Vec<String> = (0..1_500).map(|n| format!("m{}", n * 2)).collect();
    assert_eq!(f.hot_ids().await, left);
}

/// B5: a `seq` that was given again, to another row, deletes nothing and moves nothing.
pub async fn a_seq_given_again_is_a_mismatch(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..3).await;
    let rows = f.read_all().await;
    f.truncate().await;
    f.insert_series(3..6).await;
    assert_eq!(ids(&f.read_all().await), ["m3", "m4", "m5"]);
    let mut owner = f.owner("one").await;
    let part = owner.part(ShardId(0), &rows);
    assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Mismatch]);
    assert_untouched(&f, &["m3", "m4", "m5"]).await;
    owner.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m3", "m4", "m5"]);
}

/// One row of several that is gone, or that is another one by now, holds back its whole shard.
pub async fn one_row_that_differs_is_a_mismatch(flavour: Flavour) {
    for change in [
        "DELETE FROM outbox WHERE id = 'm2'",
        "UPDATE outbox SET id = 'M2' WHERE id = 'm2'",
        "UPDATE outbox SET id = 'm2 ' WHERE id = 'm2'",
    ] {
        let f = Fixture::new(flavour).await;
        f.insert_series(0..5).await;
        let rows = f.read_all().await;
        f.database.execute(change).await;
        let hot = f.hot_ids().await;
        let mut owner = f.owner("one").await;
        let part = owner.part(ShardId(0), &rows);
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Mismatch], "{change}");
        assert_untouched(&f, &hot.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
}

/// B7: a number or log end other than expected, as after a restored backup, is a mismatch.
pub async fn another_number_or_log_end_is_a_mismatch(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..4).await;
    owner.move_all(&f).await;
    f.insert_series(4..8).await;
    let rows = f.read_all().await;
    let right = owner.part(ShardId(0), &rows);
    let shifted = |by: u64| ShardCheckpoint {
        base: Position(right.base.0 + by),
        moved: rows.iter().zip(right.base.0 + by..).map(|(row, at)| Arc::new(message_of(row, Position(at)))).collect(),
        ..right.clone()
    };
    let wrong = [
        ShardCheckpoint { number: right.number + 1, ..right.clone() },
        ShardCheckpoint { number: right.number - 1, ..right.clone() },
        shifted(1),
        ShardCheckpoint { number: 0, base: Position(0), moved: vec![], ..right.clone() },
    ];
    for part in wrong {
        let checkpoint = owner.checkpoint(vec![part]);
        assert_eq!(f.store.checkpoint(&checkpoint).await.expect("checkpoint"), [ShardOutcome::Mismatch]);
    }
    assert_eq!((f.hot_ids().await.len(), f.count("outbox_receipt").await), (4, 1));
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m2", "m3"]);
    owner.move_rows(f.store.as_ref(), &rows).await;
}

async fn assert_untouched(f: &Fixture, hot: &[&str]) {
    assert_eq!(f.hot_ids().await, hot);
    for table in ["outbox_log", "outbox_receipt", "outbox_parked"] {
        assert_eq!(f.count(table).await, 0, "{table}");
    }
}

/// A shard that is fenced, and one that does not match, leave the others alone.
pub async fn one_bad_shard_does_not_hold_back_the_others(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    if f.plan.shards < 3 {
        return;
    }
    f.insert_series(0..80).await;
    let rows = f.read_all().await;
    let mut one = f.owner("one").await;
    let shards = f.shards();
    let released = LeaseRound { release: vec![(shards[0], one.epochs[&shards[0]])], ..f.round("one") };
    f.store.lease_round(&released).await.expect("release");
    Owner::take(&f, "two", &shards[..1]).await;
    let gone = rows.iter().rfind(|row| row.shard == shards[1]).expect("a row of shard 1");
    f.database.execute(&format!("DELETE FROM outbox WHERE id = '{}'", gone.id)).await;
    let parts: Vec<_> = shards.iter().map(|shard| one.part(*shard, &rows)).collect();
    let mut wanted = vec![ShardOutcome::Written; shards.len()];
    (wanted[0], wanted[1]) = (ShardOutcome::Fenced, ShardOutcome::Mismatch);
    assert_eq!(one.write(f.store.as_ref(), parts).await, wanted);
    for (shard, outcome) in shards.iter().zip(wanted) {
        let mine: Vec<String> = rows.iter().filter(|r| r.shard == *shard).map(|r| r.id.clone()).collect();
        let logged = if outcome == ShardOutcome::Written { mine } else { vec![] };
        assert_eq!(f.log_ids(*shard).await, logged, "shard {shard}: {outcome:?}");
    }
    let stays =
        |row: &&outhaul_core::message::Row| (row.shard == shards[0] || row.shard == shards[1]) && row.id != gone.id;
    let left: Vec<String> = rows.iter().filter(stays).map(|r| r.id.clone()).collect();
    assert_eq!(f.hot_ids().await, left);
}

/// A checkpoint without rows writes where the lanes stand, and nothing else.
pub async fn receipts_alone(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..8).await;
    owner.move_all(&f).await;
    let chunks = f.count("outbox_log").await;
    for _ in 0..3 {
        owner.move_rows(f.store.as_ref(), &[]).await;
    }
    assert_eq!(f.count("outbox_log").await, chunks);
    assert_eq!(f.count("outbox_receipt").await, 4 * f.shards().len() as u64);
    let before = f.store.recover(ShardId(0)).await.expect("recover");
    assert_eq!(before.next_number, 4);
}

/// B6: chunks stay within their limit, and a message larger than that has one to itself.
pub async fn large_messages_have_chunks_to_themselves(flavour: Flavour) {
    let f = Fixture::with(flavour, outhaul_store::InitPlan::default(), |o| o.max_message_bytes = 8 << 20).await;
    let sizes: [usize; 6] = [3 << 20, 3 << 20, 10, 5 << 20, 1 << 20, 1 << 20];
    for (n, size) in sizes.into_iter().enumerate() {
        f.insert(&[AppRow::nth(n as u64).with_payload(noise(n as u64, size))]).await;
    }
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    owner.move_rows(f.store.as_ref(), &rows).await;
    let wanted: Vec<Message> = rows.iter().enumerate().map(|(n, row)| message_of(row, Position(n as u64))).collect();
    assert!(f.log(ShardId(0)).await == wanted, "the log differs from what was read");
    let chunks = f.store.read_log(ShardId(0), Position(0), usize::MAX).await.expect("read_log");
    for chunk in &chunks {
        assert!(
            chunk.count == 1 || chunk.bytes.len() <= 4 << 20,
            "{} messages in {} bytes",
            chunk.count,
            chunk.bytes.len()
        );
    }
    assert!(chunks.len() > 3);
}

/// Bytes that no compression makes smaller.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed + 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = std::iter::repeat_with(&mut next).take(bytes.div_ceil(8)).flatten().collect();
    out.truncate(bytes);
    out
}

/// Lanes come back as they were written: positions ahead of the cursor, receipts, several destinations.
pub async fn lanes_are_stored_as_they_stand(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..10).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    let mut ahead = Runs::new();
    [Run { first: 5, last: 6 }, Run { first: 8, last: 8 }].into_iter().for_each(|run| ahead.insert_run(run));
    let mut slow = lane("b", Position(3));
    (slow.proven, slow.ahead) = (Position(1), ahead);
    let settled = |at: &u64| super::fixture::receipt_of(Position(*at));
    part.receipts.lanes.push((slow, [0, 1, 2, 5, 6, 8].iter().map(settled).collect()));
    part.receipts.lanes.push((lane("no longer configured \u{e9}", Position(0)), vec![]));
    let lanes: ReceiptRow = part.receipts.clone();
    owner.write(f.store.as_ref(), vec![part]).await;
    let recovery = f.store.recover(ShardId(0)).await.expect("recover");
    assert_eq!((recovery.lanes, recovery.log_end, recovery.next_number), (lanes, Position(10), 1));
}
