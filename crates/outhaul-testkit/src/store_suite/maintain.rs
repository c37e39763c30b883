//! `prune`: what goes, what never goes, and what merging must not lose.

use std::sync::Arc;

use outhaul_core::chunk;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState, ParkedWrite};
use outhaul_core::receipt::ReceiptRow;
use outhaul_store::{Exported, Found, PruneRequest, Pruned, StoredChunk};

use super::fixture::{AppRow, Fixture, Owner, destinations, lane, receipt_of};
use crate::servers::Flavour;

/// A retention under which nothing is pruned.
const CENTURY_MS: u64 = 100 * 365 * 86_400_000;

fn request(owner: &str) -> PruneRequest {
    PruneRequest { owner: owner.into(), retention_ms: 0, merge_after_ms: None, step: 1_000, exported: None }
}

/// Steps until there is no more to do; what they did in all.
async fn prune(f: &Fixture, request: &PruneRequest) -> Pruned {
    let mut all = Pruned::default();
    for _ in 0..500 {
        let step = f.store.prune(request).await.expect("prune");
        assert!(step.ran, "nobody else holds the lease");
        all.chunks += step.chunks;
        all.messages += step.messages;
        all.receipts += step.receipts;
        all.merged_chunks += step.merged_chunks;
        all.merged_receipts += step.merged_receipts;
        if !step.more {
            return all;
        }
    }
    panic!("pruning does not come to an end");
}

/// Makes what is stored look older.
async fn age(f: &Fixture, hours: u32) {
    for (table, column) in [("outbox_log", "moved_at"), ("outbox_receipt", "created_at")] {
        let micros = u64::from(hours) * 3_600_000_000;
        let kind = match f.flavour() {
            Flavour::Sqlite => "bigint".to_owned(),
            _ => {
                let schema = if f.flavour() == Flavour::Postgres { "current_schema()" } else { "database()" };
                let sql = format!(
                    "SELECT data_type FROM information_schema.columns WHERE table_schema = {schema} AND table_name = '{table}' \
                     AND column_name = '{column}'"
                );
                f.database.query_text(&sql).await
            }
        };
        let older = match f.flavour() {
            _ if kind == "bigint" => micros.to_string(),
            Flavour::Postgres => format!("interval '{hours} hours'"),
            _ => format!("INTERVAL {hours} HOUR"),
        };
        f.database.execute(&format!("UPDATE {table} SET {column} = {column} - {older}")).await;
    }
}

/// Moves rows in small checkpoints, all of them settled by the lane `a`.
async fn fill(f: &Fixture, owner: &mut Owner, checkpoints: u64, rows: u64) {
    let start = f.store.recover(ShardId(0)).await.expect("recover").next_number;
    for n in start..start + checkpoints {
        f.insert_series(n * rows..(n + 1) * rows).await;
        owner.move_all(f).await;
    }
}

async fn log_of_all(f: &Fixture) -> Vec<Vec<Message>> {
    let mut all = Vec::new();
    for shard in f.shards() {
        all.push(f.log(shard).await);
    }
    all
}

/// What is settled and old goes, with its receipts; the newest receipt row stays, and the shard goes on.
pub async fn what_is_settled_goes(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 5, 12).await;
    let mut before = Vec::new();
    for shard in f.shards() {
        before.push(f.store.recover(shard).await.expect("recover"));
    }
    let chunks = f.count("outbox_log").await;
    let receipts = f.count("outbox_receipt").await;
    age(&f, 1).await;
    let pruned = prune(&f, &request("one")).await;
    assert_eq!((pruned.chunks, pruned.messages), (chunks, 60));
    assert_eq!(f.count("outbox_log").await, 0);
    let left = f.count("outbox_receipt").await;
    assert_eq!((left, pruned.receipts), (f.shards().len() as u64, receipts - left));
    for (shard, before) in f.shards().iter().zip(before) {
        let after = f.store.recover(*shard).await.expect("recover");
        assert_eq!((after.log_end, after.next_number, after.lanes), (before.log_end, before.next_number, before.lanes));
    }
    f.insert_series(100..110).await;
    owner.move_all(&f).await;
    let logged: usize = log_of_all(&f).await.iter().map(Vec::len).sum();
    assert_eq!(logged, 10);
    assert_eq!(prune(&f, &PruneRequest { retention_ms: 3_600_000, ..request("one") }).await.messages, 0);
}

/// What is younger than the retention stays.
pub async fn what_is_young_stays(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 3, 2).await;
    age(&f, 5).await;
    fill(&f, &mut owner, 2, 2).await;
    let week = PruneRequest { retention_ms: 7 * 86_400_000, ..request("one") };
    assert_eq!(prune(&f, &week).await, Pruned::default());
    let hours = PruneRequest { retention_ms: 4 * 3_600_000, ..request("one") };
    let pruned = prune(&f, &hours).await;
    assert_eq!((pruned.chunks, pruned.messages), (3, 6));
    assert_eq!(f.log_ids(ShardId(0)).await, ["m6", "m7", "m8", "m9"]);
}

/// L6: with a retention of nothing, hot rows, lagging lanes, levels not reached and parked messages keep what they
/// need.
pub async fn nothing_unsettled_goes(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 3, 10).await; // 0 to 29
    f.insert_series(30..40).await;
    let rows = f.read_all().await;
    let mut part = owner.part(ShardId(0), &rows);
    // Three lanes: one at the end, one that lags inside the second chunk, one whose level is not reached in the third.
    let mut unproven = lane("unproven", Position(40));
    unproven.proven = Position(29);
    part.receipts.lanes.push((lane("lagging", Position(15)), vec![]));
    part.receipts.lanes.push((unproven, vec![]));
    let message = Arc::clone(&part.moved[3]);
    let parked = ParkedEntry {
        destination: "a".into(),
        shard: ShardId(0),
        position: message.position,
        key: message.key.clone(),
        state: ParkedState::Dead,
        attempts: 1,
        due_at_us: 0,
        error_code: String::new(),
        error_text: String::new(),
        first_failed_at_us: 0,
        last_failed_at_us: 0,
    };
    part.parked.push(ParkedWrite::Insert { entry: parked.clone(), message });
    owner.write(f.store.as_ref(), vec![part.clone()]).await;
    f.insert(&[AppRow::nth(99)]).await;
    age(&f, 1_000).await;
    let pruned = prune(&f, &request("one")).await;
    assert_eq!((pruned.chunks, pruned.messages), (1, 10), "only the first chunk is settled by all");
    assert_eq!(f.hot_ids().await, ["m99"]);
    assert_eq!(f.log(ShardId(0)).await.first().map(|m| m.position), Some(Position(10)));
    let receipts: Vec<ReceiptRow> = f.store.receipts_of(ShardId(0), Position(10)).await.expect("receipts_of");
    assert!(!receipts.is_empty(), "receipts of what is in the log stay");
    // The lagging lane arrives; then the level bounds it.
    let mut part = owner.part(ShardId(0), &[]);
    let mut unproven = lane("unproven", Position(40));
    unproven.proven = Position(29);
    part.receipts.lanes.extend([(lane("lagging", Position(40)), vec![]), (unproven, vec![])]);
    owner.write(f.store.as_ref(), vec![part]).await;
    age(&f, 1).await;
    assert_eq!(prune(&f, &request("one")).await.messages, 10);
    assert_eq!(f.log(ShardId(0)).await.first().map(|m| m.position), Some(Position(20)), "29 of the third are proven");
    // All is proven: the log goes, the parked message does not.
    let mut part = owner.part(ShardId(0), &[]);
    part.receipts.lanes.extend([(lane("lagging", Position(40)), vec![]), (lane("unproven", Position(40)), vec![])]);
    owner.write(f.store.as_ref(), vec![part]).await;
    age(&f, 1).await;
    assert_eq!(prune(&f, &request("one")).await.messages, 20);
    let found = f.store.read_parked(ShardId(0), "a", &[Position(33)], &destinations()).await.expect("read_parked");
    assert_eq!((&found[0].entry, found[0].message.id.as_str()), (&parked, "m33"));
    assert_eq!(f.hot_ids().await, ["m99"]);
}

/// Without any lane nothing is known to be settled, so nothing goes.
pub async fn nothing_goes_without_a_lane(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..5).await;
    let mut part = owner.part(ShardId(0), &f.read_all().await);
    part.receipts.lanes.clear();
    owner.write(f.store.as_ref(), vec![part]).await;
    age(&f, 1_000).await;
    assert_eq!(prune(&f, &request("one")).await, Pruned::default());
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 5);
}

/// One runner at a time: while it has more to do, another one is told so and does nothing. Afterwards it may.
pub async fn one_prunes_at_a_time(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 5, 2).await;
    age(&f, 1).await;
    let step = f.store.prune(&PruneRequest { step: 2, ..request("one") }).await.expect("prune");
    assert!(step.ran && step.more, "{step:?}");
    let other = f.another_store().await;
    assert_eq!(other.prune(&request("two")).await.expect("prune"), Pruned::default());
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 10 - step.messages as usize);
    assert_eq!(prune(&f, &request("one")).await.messages, 10 - step.messages);
    assert!(other.prune(&request("two")).await.expect("prune").ran, "finished work leaves the lease");
    other.close().await;
}

/// Positions of chunks of one shard, first and behind the last.
fn span(chunks: &[StoredChunk]) -> Option<(ShardId, u64, u64)> {
    let (first, last) = (chunks.first()?, chunks.last()?);
    assert!(chunks.iter().all(|c| c.shard == first.shard));
    Some((first.shard, first.base.0, last.base.0 + u64::from(last.count)))
}

/// What a step would delete is shown before: shard by shard, no more than asked for, nothing that has to stay. Nobody
/// else prunes until it is done.
pub async fn what_is_prunable_is_shown_before(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    let all = f.store.prunable(&request("one"), ShardId(0), 1 << 20).await.expect("prunable");
    assert!(all.ran && all.chunks.is_empty(), "nothing is there: {all:?}");
    fill(&f, &mut owner, 5, 12).await;
    age(&f, 5).await;
    let mut old = Vec::new();
    for shard in f.shards() {
        old.push(f.store.read_log(shard, Position(0), 1 << 20).await.expect("read_log"));
    }
    assert!(old.iter().any(|chunks| chunks.len() == 5));
    fill(&f, &mut owner, 2, 12).await;
    let hours = PruneRequest { retention_ms: 3 * 3_600_000, ..request("one") };
    for (shard, old) in f.shards().into_iter().zip(old).filter(|(_, old)| !old.is_empty()) {
        let found = f.store.prunable(&hours, shard, 1 << 20).await.expect("prunable");
        assert_eq!(found.chunks.len(), old.len(), "shard {shard}: the old ones and not the young ones");
        for (found, old) in found.chunks.iter().zip(&old) {
            assert_eq!(
                (found.shard, found.base, found.count, found.moved_at_us, &found.bytes),
                (shard, old.base, old.count, old.moved_at_us, &old.bytes)
            );
        }
        let few = PruneRequest { step: 2, ..hours.clone() };
        assert_eq!(f.store.prunable(&few, shard, 1 << 20).await.expect("prunable").chunks.len(), old.len().min(2));
        assert_eq!(f.store.prunable(&hours, shard, 1).await.expect("prunable").chunks.len(), 1, "one at least");
    }
    let behind = ShardId(f.shards().len() as u16);
    assert!(f.store.prunable(&hours, behind, 1 << 20).await.expect("prunable").chunks.is_empty());
    let week = PruneRequest { retention_ms: 7 * 86_400_000, ..request("one") };
    let none = f.store.prunable(&week, ShardId(0), 1 << 20).await.expect("prunable");
    assert!(none.ran && none.chunks.is_empty(), "{none:?}");

    let other = f.another_store().await;
    assert!(!other.prunable(&request("two"), ShardId(0), 1 << 20).await.expect("prunable").ran, "one at a time");
    assert_eq!(other.prune(&request("two")).await.expect("prune"), Pruned::default());
    assert!(f.store.prune(&week).await.expect("prune").ran);
    assert!(other.prunable(&request("two"), ShardId(0), 1 << 20).await.expect("prunable").ran);
    other.close().await;
}

/// Of the log goes what was exported and nothing else: not what has become old since, not what stands at the same
/// positions and was moved later. Receipts go by themselves.
pub async fn only_what_was_exported_goes(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 6, 3).await; // 0 to 17
    age(&f, 5).await;
    let shown = f.store.prunable(&PruneRequest { step: 2, ..request("one") }, ShardId(0), 1 << 20).await;
    let shown = shown.expect("prunable").chunks;
    assert_eq!(span(&shown), Some((ShardId(0), 0, 6)));
    let exported = |below, moved_at_us| PruneRequest {
        exported: Some(vec![Exported { shard: ShardId(0), below: Position(below), moved_at_us }]),
        ..request("one")
    };
    let newest = shown.iter().map(|c| c.moved_at_us).max().expect("a chunk");
    let none = PruneRequest { exported: Some(vec![]), ..request("one") };
    assert_eq!(prune(&f, &none).await.messages, 0, "nothing was exported");
    let elsewhere = Exported { shard: ShardId(1), below: Position(18), moved_at_us: newest };
    let elsewhere = PruneRequest { exported: Some(vec![elsewhere]), ..request("one") };
    assert_eq!(prune(&f, &elsewhere).await.messages, 0, "of this shard nothing was exported");
    assert_eq!(prune(&f, &exported(6, shown[0].moved_at_us - 1)).await.messages, 0, "others were exported");
    assert_eq!(prune(&f, &exported(5, newest)).await.messages, 3, "a chunk goes as a whole or not at all");
    let pruned = prune(&f, &exported(6, newest)).await;
    assert_eq!((pruned.chunks, pruned.messages, pruned.receipts), (1, 3, 1));
    assert_eq!(f.log(ShardId(0)).await.first().map(|m| m.position), Some(Position(6)));
    let young = PruneRequest { retention_ms: 7 * 86_400_000, ..exported(18, i64::MAX) };
    assert_eq!(prune(&f, &young).await.messages, 0, "it is exported, but not old");
    // Nor what a lane still needs.
    f.insert_series(18..20).await;
    let rows = f.read_all().await;
    let mut part = owner.part(ShardId(0), &rows);
    part.receipts.lanes.push((lane("lagging", Position(9)), vec![]));
    owner.write(f.store.as_ref(), vec![part]).await;
    age(&f, 1).await;
    assert_eq!(prune(&f, &exported(20, i64::MAX)).await.messages, 3);
    assert_eq!(f.log(ShardId(0)).await.first().map(|m| m.position), Some(Position(9)));
}

/// A step has a bound, and says when there is more.
pub async fn steps_are_bounded(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 7, 1).await;
    age(&f, 1).await;
    let step = f.store.prune(&PruneRequest { step: 3, ..request("one") }).await.expect("prune");
    assert!(step.more && step.chunks > 0 && step.chunks <= 3 && step.receipts <= 3, "{step:?}");
    let rest = prune(&f, &PruneRequest { step: 3, ..request("one") }).await;
    assert_eq!(step.chunks + rest.chunks, 7);
    assert_eq!((f.count("outbox_log").await, f.count("outbox_receipt").await), (0, 1));
}

/// Chunks and receipt rows of closed hours become few; every message, receipt and id is found as before.
pub async fn merging_loses_nothing(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 15, 8).await;
    age(&f, 2).await;
    fill(&f, &mut owner, 5, 8).await;
    age(&f, 3).await;
    fill(&f, &mut owner, 3, 8).await; // of the open hour
    let before = log_of_all(&f).await;
    let (chunks, receipts) = (f.count("outbox_log").await, f.count("outbox_receipt").await);
    let mut recovered = Vec::new();
    for shard in f.shards() {
        recovered.push(f.store.recover(shard).await.expect("recover"));
    }
    let merge = PruneRequest { retention_ms: CENTURY_MS, merge_after_ms: Some(0), ..request("one") };
    let merged = prune(&f, &merge).await;
    assert_eq!((merged.chunks, merged.messages, merged.receipts), (0, 0, 0), "merging is not pruning");
    assert!(merged.merged_chunks > 0 && merged.merged_receipts > 0, "{merged:?}");
    // At most two closed hours (their edges may fall between two checkpoints) and three open checkpoints a shard.
    let shards = f.shards().len() as u64;
    assert!(f.count("outbox_log").await <= 7 * shards, "{} chunks of {chunks}", f.count("outbox_log").await);
    assert!(f.count("outbox_receipt").await <= 7 * shards, "{} rows of {receipts}", f.count("outbox_receipt").await);
    assert_eq!(log_of_all(&f).await, before);
    for (shard, before) in f.shards().iter().zip(recovered) {
        let after = f.store.recover(*shard).await.expect("recover");
        assert_eq!((after.log_end, after.next_number, after.lanes), (before.log_end, before.next_number, before.lanes));
    }
    for message in before.iter().flatten() {
        assert_receipt(&f, message).await;
        assert_found(&f, message).await;
    }
    // Again: nothing is left to do, and the shards go on.
    let again = prune(&f, &merge).await;
    assert_eq!((again.merged_chunks, again.merged_receipts), (0, 0));
    fill(&f, &mut owner, 2, 8).await;
    // And what was merged is pruned like the rest.
    age(&f, 1).await;
    let total: u64 = before.iter().map(|log| log.len() as u64).sum::<u64>() + 16;
    assert_eq!(prune(&f, &request("one")).await.messages, total);
}

async fn assert_receipt(f: &Fixture, message: &Message) {
    let rows = f.store.receipts_of(message.shard, message.position).await.expect("receipts_of");
    let found = rows.iter().flat_map(|r| &r.lanes).flat_map(|(_, r)| r).filter(|r| r.position == message.position);
    assert_eq!(found.collect::<Vec<_>>(), [&receipt_of(message.position)]);
}

async fn assert_found(f: &Fixture, message: &Message) {
    for hint in [None, Some((message.created_at_us, message.created_at_us))] {
        let found = f.store.find(&message.id, hint).await.expect("find");
        let holds = |found: &Found| match found {
            Found::Hot { .. } | Found::Status { .. } => false,
            Found::Logged { chunk: c } => {
                let messages = chunk::decode(c.codec, &c.bytes, c.shard, c.base, &destinations()).expect("a chunk");
                messages.contains(message)
            }
        };
        assert!(found.iter().any(holds), "{} is not found", message.id);
    }
}

/// In small steps the end is the same, and each step is one of few rows.
pub async fn merging_goes_in_steps(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 12, 3).await;
    age(&f, 5).await;
    fill(&f, &mut owner, 1, 3).await;
    let before = log_of_all(&f).await;
    let merge = PruneRequest { retention_ms: CENTURY_MS, merge_after_ms: Some(0), step: 3, ..request("one") };
    let step = f.store.prune(&merge).await.expect("prune");
    assert!(step.more && step.merged_chunks <= 3 && step.merged_receipts <= 3, "{step:?}");
    prune(&f, &merge).await;
    assert_eq!(log_of_all(&f).await, before);
    assert!(f.count("outbox_log").await <= 3 && f.count("outbox_receipt").await <= 4);
    for message in before.iter().flatten() {
        assert_receipt(&f, message).await;
    }
}

/// Hours that are still open, or closed too short a time ago, stay as they are.
pub async fn open_hours_are_not_merged(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    fill(&f, &mut owner, 4, 2).await;
    let merge = |after_ms| PruneRequest { retention_ms: CENTURY_MS, merge_after_ms: Some(after_ms), ..request("one") };
    age(&f, 2).await;
    assert_eq!(prune(&f, &merge(3 * 3_600_000)).await, Pruned::default());
    assert_eq!((f.count("outbox_log").await, f.count("outbox_receipt").await), (4, 4));
    assert!(prune(&f, &merge(0)).await.merged_chunks > 0);
}
