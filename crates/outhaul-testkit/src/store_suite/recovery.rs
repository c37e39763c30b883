//! `recover` and `read_log`: where an owner goes on.

use std::collections::{BTreeMap, BTreeSet};

use outhaul_core::message::{Position, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_store::{NumberedReceipts, PARKED_PAGE_ROWS, StoreErrorKind};

use super::fixture::{AppRow, Fixture, Owner, lane, receipt_of};
use crate::servers::Flavour;

/// A shard that was never written starts at 0.
pub async fn a_fresh_shard_starts_at_zero(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for shard in f.shards() {
        let recovery = f.store.recover(shard).await.expect("recover");
        assert_eq!((recovery.log_end, recovery.next_number), (Position(0), 0));
        assert!(recovery.lanes.lanes.is_empty() && recovery.parked.is_empty());
        assert!(f.store.read_log(shard, Position(0), 1 << 20).await.expect("read_log").is_empty());
    }
}

/// The newest receipt row counts, shard by shard, and the next owner goes on from it.
pub async fn the_next_owner_goes_on(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut one = f.owner("one").await;
    for round in 0..12u64 {
        f.insert_series(round * 10..round * 10 + 10).await;
        one.move_all(&f).await;
    }
    let release = one.epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    f.store.lease_round(&outhaul_store::LeaseRound { release, ..f.round("one") }).await.expect("release");
    let mut ends = 0;
    for shard in f.shards() {
        let recovery = f.store.recover(shard).await.expect("recover");
        let log = f.log(shard).await;
        assert_eq!((recovery.next_number, recovery.log_end.0), (12, log.len() as u64));
        let (state, _) = &recovery.lanes.lanes[0];
        assert_eq!(*state, lane("a", recovery.log_end));
        ends += recovery.log_end.0;
    }
    assert_eq!(ends, 120);
    let other = f.another_store().await;
    let mut two = Owner::take(&f, "two", &f.shards()).await;
    f.insert_series(120..130).await;
    let rows = f.read_all().await;
    two.move_rows(other.as_ref(), &rows).await;
    other.close().await;
    let mut logged = 0;
    for shard in f.shards() {
        let log = f.log(shard).await;
        assert!(log.iter().enumerate().all(|(n, m)| m.position.0 == n as u64));
        logged += log.len();
    }
    assert_eq!(logged, 130);
}

/// The log is read from the chunk that holds a position, up to a size, at least one chunk.
pub async fn the_log_is_read_from_any_position(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    let (mut bases, mut end) = (Vec::new(), 0);
    for count in [3u64, 1, 10, 2, 7] {
        f.insert_series(end..end + count).await;
        owner.move_all(&f).await;
        bases.push((end, count));
        end += count;
    }
    for from in 0..end + 2 {
        let wanted: Vec<u64> =
            bases.iter().filter(|(base, count)| base + count > from).map(|(base, _)| *base).collect();
        let chunks = f.store.read_log(ShardId(0), Position(from), usize::MAX).await.expect("read_log");
        assert_eq!(chunks.iter().map(|c| c.base.0).collect::<Vec<_>>(), wanted, "from {from}");
        assert!(chunks.iter().all(|c| c.shard == ShardId(0) && bases.contains(&(c.base.0, u64::from(c.count)))));
        for max_bytes in [0, 1] {
            let first = f.store.read_log(ShardId(0), Position(from), max_bytes).await.expect("read_log");
            assert_eq!(
                first.iter().map(|c| c.base.0).collect::<Vec<_>>(),
                wanted.iter().take(1).copied().collect::<Vec<_>>()
            );
        }
        let two: usize = chunks.iter().take(2).map(|c| c.bytes.len()).sum();
        let some = f.store.read_log(ShardId(0), Position(from), two).await.expect("read_log");
        assert_eq!(some.len(), chunks.len().min(2));
    }
}

/// A chunk knows when its messages were made and when it was moved.
pub async fn a_chunk_knows_its_times(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..3).await;
    f.insert_series(3..5).await;
    let rows = f.read_all().await;
    f.owner("one").await.move_rows(f.store.as_ref(), &rows).await;
    let chunk = f.store.read_log(ShardId(0), Position(0), 0).await.expect("read_log").remove(0);
    let made: Vec<i64> = rows.iter().map(|r| r.created_at_us).collect();
    assert_eq!(Some(chunk.created_at_us.0), made.iter().min().copied());
    assert_eq!(Some(chunk.created_at_us.1), made.iter().max().copied());
    // SQLite's clock counts milliseconds.
    assert!(
        chunk.moved_at_us >= chunk.created_at_us.1 - 1_000 && chunk.moved_at_us < chunk.created_at_us.1 + 60_000_000
    );
}

/// S4: a receipt row or chunk that nobody can read is said to be corrupt, or handed over as it is: never a panic.
pub async fn unreadable_rows_are_corrupt(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert(&[AppRow::nth(0)]).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    let junk = f.bytes_sql(&[99, 1, 2, 3]);
    f.database.execute(&format!("UPDATE outbox_log SET codec = 77, chunk = {junk}")).await;
    let chunk = f.store.read_log(ShardId(0), Position(0), 0).await.expect("read_log").remove(0);
    assert_eq!((chunk.codec, &chunk.bytes[..]), (77, &[99, 1, 2, 3][..]));
    f.store.status().await.expect("status does not need what nobody can read");
    f.database.execute(&format!("UPDATE outbox_receipt SET lanes = {junk}")).await;
    let error = f.store.recover(ShardId(0)).await.expect_err("the receipt row is junk");
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
}

/// Receipts are found by position, in whichever row they stand.
pub async fn receipts_are_found_by_position(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    for round in 0..4u64 {
        f.insert_series(round * 20..round * 20 + 20).await;
        owner.move_all(&f).await;
        owner.move_rows(f.store.as_ref(), &[]).await;
    }
    for shard in f.shards() {
        let end = f.store.recover(shard).await.expect("recover").log_end;
        for position in (0..end.0).map(Position) {
            let rows = f.store.receipts_of(shard, position).await.expect("receipts_of");
            let found = rows.iter().flat_map(|r| &r.lanes).flat_map(|(_, r)| r).filter(|r| r.position == position);
            assert_eq!(found.collect::<Vec<_>>(), [&receipt_of(position)]);
        }
        assert!(f.store.receipts_of(shard, end).await.expect("receipts_of").is_empty());
    }
}

/// Receipts are read from the newest row down, page by page; rows without any are left out.
pub async fn receipts_are_read_from_the_newest_down(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    for shard in f.shards() {
        assert!(f.store.receipts_below(shard, None, usize::MAX).await.expect("receipts_below").is_empty());
    }
    let mut with_receipts: BTreeMap<ShardId, Vec<u64>> = BTreeMap::new();
    for round in 0..6u64 {
        f.insert_series(round * 20..round * 20 + 20).await;
        let before = newest_numbers(&f).await;
        owner.move_all(&f).await;
        owner.move_rows(f.store.as_ref(), &[]).await; // a row without receipts
        for shard in f.shards() {
            with_receipts.entry(shard).or_default().push(before[&shard]);
        }
    }
    let mut rows = 0;
    for shard in f.shards() {
        let end = f.store.recover(shard).await.expect("recover").log_end;
        let all = f.store.receipts_below(shard, None, usize::MAX).await.expect("receipts_below");
        let numbers: Vec<u64> = all.iter().map(|r| r.number).collect();
        let mut wanted = with_receipts[&shard].clone();
        wanted.retain(|n| all.iter().any(|r| r.number == *n)); // a shard may have got no row in a round
        wanted.reverse();
        assert_eq!(numbers, wanted);
        let positions = |rows: &[NumberedReceipts]| -> BTreeSet<u64> {
            rows.iter().flat_map(|r| &r.row.lanes).flat_map(|(_, r)| r).map(|r| r.position.0).collect()
        };
        assert_eq!(positions(&all), (0..end.0).collect());
        // Row by row, and each page below the one before it.
        let (mut below, mut seen) = (None, Vec::new());
        loop {
            let page = f.store.receipts_below(shard, below, 0).await.expect("receipts_below");
            let Some(last) = page.last() else { break };
            assert_eq!(page.len(), 1, "one row, whatever its size");
            below = Some(last.number);
            seen.extend(page);
        }
        assert_eq!(seen, all);
        let some: usize = all.iter().take(2).map(|r| r.row.encode().len()).sum();
        let page = f.store.receipts_below(shard, None, some).await.expect("receipts_below");
        assert_eq!(page, all[..all.len().min(2)]);
        let newest = all.first().map_or(0, |r| r.number);
        let page = f.store.receipts_below(shard, Some(newest + 1), 0).await.expect("receipts_below");
        assert_eq!(page, all[..all.len().min(1)], "the limit itself is left out, what is below it is not");
        rows += all.len();
    }
    assert!(rows >= 6);
}

/// More parked rows than a page holds come all, by destination and rising position, with no more text than is needed;
/// those of other shards and those without a route do not.
pub async fn parked_rows_come_in_pages(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let shard = f.plan.shards - 1;
    let rows = PARKED_PAGE_ROWS as u64 + 1;
    let lanes = [("-", shard, 3), ("a", shard, 2 * rows), ("b", shard, PARKED_PAGE_ROWS as u64), ("z", shard, 1)];
    for (destination, shard, count) in lanes.into_iter().chain((shard > 0).then_some(("a", 0, 4))) {
        park(&f, destination, shard, count).await;
    }
    let parked = f.store.recover(ShardId(shard)).await.expect("recover").parked;
    let found: Vec<(&str, u64)> = parked.iter().map(|p| (p.destination.as_str(), p.position.0)).collect();
    let of = |lane: &(&'static str, u16, u64)| (0..lane.2).map(|n| (lane.0, 10 + n)).collect::<Vec<_>>();
    assert!(found == lanes[1..].iter().flat_map(of).collect::<Vec<_>>(), "{} rows, or in another order", found.len());
    let as_expected =
        |p: &ParkedEntry| p.shard == ShardId(shard) && p.error_code == "OUT-2001" && p.error_text.is_empty();
    assert!(parked.iter().all(as_expected));
    for (destination, from, expected) in
        [("-", 0, 10..13), ("a", 12, 12..12 + PARKED_PAGE_ROWS as u64), ("b", 9_000, 0..0)]
    {
        let page = f.store.parked(ShardId(shard), destination, Position(from)).await.expect("a page");
        assert!(page.iter().map(|p| p.position.0).eq(expected) && page.iter().all(|p| p.destination == destination));
    }
}

/// Parks rows at positions from 10 on by plain SQL.
async fn park(f: &Fixture, destination: &str, shard: u16, count: u64) {
    let text = "\u{e9}".repeat(1_200);
    let numbers = match f.flavour() {
        Flavour::Postgres => format!("SELECT n FROM generate_series(0, {count} - 1) n"),
        _ => format!(
            "WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {count} - 1) SELECT n FROM s"
        ),
    };
    let raised = match f.flavour() {
        Flavour::MariaDb => "SET SESSION max_recursive_iterations = 1000000;",
        Flavour::MySql => "SET SESSION cte_max_recursion_depth = 1000000;",
        Flavour::Postgres | Flavour::Sqlite => "",
    };
    let position = if matches!(f.flavour(), Flavour::MariaDb | Flavour::MySql) { "`position`" } else { "position" };
    let (id, message) = (f.bytes_sql(b"i"), f.bytes_sql(b"m"));
    let id = if f.flavour() == Flavour::Postgres { "'i'".to_owned() } else { id };
    let sql = format!(
        "{raised}INSERT INTO {} (destination, shard, {position}, id, state, attempts, due_at, error_code, error_text, first_failed_at, \
         last_failed_at, codec, message) SELECT '{destination}', {shard}, n + 10, {id}, 'dead', 1, 0, 'OUT-2001', '{text}', 1, 2, 1, \
         {message} FROM ({numbers}) numbers",
        f.options.table("outbox_parked")
    );
    f.database.execute(&sql).await;
}

async fn newest_numbers(f: &Fixture) -> BTreeMap<ShardId, u64> {
    let mut numbers = BTreeMap::new();
    for shard in f.shards() {
        numbers.insert(shard, f.store.recover(shard).await.expect("recover").next_number);
    }
    numbers
}
