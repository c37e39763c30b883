//! The transaction that moves rows into the log.
//!
//! Three round trips, more only where a packet's limit asks for it. The first begins it, locks the leases, looks at the
//! heads, writes what is parked and deletes the rows; the chunks are compressed meanwhile. When every answer is as
//! expected, the second inserts chunks and receipts, and the third is the COMMIT, alone, so that a lost answer to
//! anything else is never mistaken for one that may have been committed. Otherwise everything is rolled back and tried
//! again without the shards that do not fit, so the ordinary case pays for no savepoint.
//!
//! READ COMMITTED: an application's INSERT never waits for a DELETE. See `removal` for why the DELETE never waits.

use std::collections::HashMap;

use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::chunk::EncodedChunk;
use outhaul_core::message::ShardId;
use outhaul_core::receipt::ReceiptRow;
use tokio::task::JoinHandle;

use super::MySqlStore;
use super::acts;
use super::catalogue::Layout;
use super::link::{Answer, Link};
use super::parked;
use super::refusal::Failure;
use super::removal::{Expected, Removal};
use super::statement::Statement;
use super::values::{NOW, bytes_opt, number, number_opt, quoted, time_text};
use crate::error::{StoreError, StoreErrorKind};
use crate::merge::CHUNK_BYTES;
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// Where a shard stands in the attempts at one checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Runs by range, the rest by name together with the other shards'.
    Together,
    /// All by name, in statements of its own.
    Alone,
    Out(ShardOutcome),
}

/// A lease row as a checkpoint finds it.
struct LeaseSeen {
    owner: Option<Vec<u8>>,
    epoch: u64,
}

impl LeaseSeen {
    fn holds(&self, owner: &str, epoch: u64) -> bool {
        self.owner.as_deref() == Some(owner.as_bytes()) && self.epoch == epoch
    }
}

/// What the newest receipt row and the log of a shard say.
#[derive(Clone, Copy, Default)]
struct Head {
    newest: Option<u64>,
    receipts_end: Option<u64>,
    log_end: Option<u64>,
}

/// The most that a chunk may hold before compression, so that its literal fits into a packet: two digits a byte, and
/// some room for the filter of its ids.
pub(super) fn chunk_bytes(packet_bytes: usize) -> usize {
    CHUNK_BYTES.min(packet_bytes.saturating_sub(2_048) / 5 * 2).max(1)
}

impl MySqlStore {
    pub(super) async fn write_checkpoint(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<ShardOutcome>> {
        let layout = self.layout(&self.checkpoint).await?;
        let mut ways: Vec<Way> = vec![Way::Together; checkpoint.shards.len()];
        // Each round takes at least one shard a step further: from together to alone, or out.
        for _ in 0..=2 * checkpoint.shards.len() {
            if ways.iter().all(|way| matches!(way, Way::Out(_))) {
                break;
            }
            let mut held = self.checkpoint.take(&self.dialer).await?;
            let result = self.attempt(&mut held.link, checkpoint, &layout, &mut ways).await;
            if held.give_back(result)? {
                break;
            }
        }
        Ok(ways.iter().map(|way| if let Way::Out(outcome) = way { *outcome } else { ShardOutcome::Written }).collect())
    }

    /// One transaction with the shards that are still in. False: rolled back, `ways` say what is different next time.
    async fn attempt(
        &self,
        link: &mut Link,
        checkpoint: &Checkpoint,
        layout: &Layout,
        ways: &mut [Way],
    ) -> Result<bool, Failure> {
        let packet = link.server.packet_bytes;
        let parts: Vec<(usize, &ShardCheckpoint, Way)> = checkpoint
            .shards
            .iter()
            .zip(ways.iter().copied())
            .enumerate()
            .filter(|(_, (_, way))| !matches!(way, Way::Out(_)))
            .map(|(part, (shard, way))| (part, shard, way))
            .collect();
        let shards: Vec<ShardId> = parts.iter().map(|(_, s, _)| s.shard).collect();
        let names = &checkpoint.destinations;
        let parked = parked::statements(&self.options, layout, parts.iter().map(|(_, s, _)| *s), names, packet);
        // Rows of a status table stay where they are.
        let leaving = parts.iter().filter(|_| self.options.status.is_none());
        let removed: Vec<_> = leaving.map(|(part, s, way)| (*part, *s, *way == Way::Alone)).collect();
        let removal = Removal::of(layout, &removed, packet);
        let mut statements = vec![
            Statement::new("START TRANSACTION"),
            Statement::new(lock(&self.options, &shards)),
            Statement::new(heads(&self.options, &shards)),
        ];
        let checkpoints: Vec<&ShardCheckpoint> = parts.iter().map(|(_, s, _)| *s).collect();
        statements.extend(acts::statements(&self.options, &checkpoints, names));
        statements.extend(parked);
        let before_removal = statements.len();
        statements.extend(removal.statements);

        let packing = pack(&parts, checkpoint, chunk_bytes(packet));
        let mut answers = link.run_inside(&statements).await?;
        let of_removal = answers.split_off(before_removal.min(answers.len()));
        let mut answers = answers.into_iter().skip(1);
        let (leases, heads) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let mut fits: HashMap<usize, Way> = HashMap::new();
        judge_heads(&checkpoint.owner, &parts, leases, heads, &mut fits)?;
        judge_removal(&parts, &removal.expected, &of_removal, &mut fits)?;
        if !fits.is_empty() {
            for (part, way) in fits {
                if let Some(place) = ways.get_mut(part) {
                    *place = way;
                }
            }
            link.rollback().await?;
            return Ok(false);
        }
        let chunks = packing.await.map_err(|_| StoreError::new(StoreErrorKind::Other, "packing chunks failed"))?;
        let mut statements = insert_chunks(&self.options, &chunks, packet);
        statements.extend(insert_receipts(&self.options, &parts, packet));
        link.run_inside(&statements).await?;
        link.commit().await?;
        Ok(true)
    }

    pub(super) async fn was_applied(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<Option<ShardOutcome>>> {
        if checkpoint.shards.is_empty() {
            return Ok(Vec::new());
        }
        let shards: Vec<ShardId> = checkpoint.shards.iter().map(|s| s.shard).collect();
        let numbers: Vec<String> =
            checkpoint.shards.iter().map(|s| format!("(shard = {} AND `number` = {})", s.shard, s.number)).collect();
        let statements = [
            "START TRANSACTION".to_owned(),
            lock(&self.options, &shards),
            format!(
                "SELECT shard, epoch FROM {} WHERE {}",
                quoted(&self.options.table("outbox_receipt")),
                numbers.join(" OR ")
            ),
            "ROLLBACK".into(),
        ];
        let mut held = self.checkpoint.take(&self.dialer).await?;
        let result = held.link.run_inside(&statements.map(Statement::new)).await;
        let mut answers = held.give_back(result)?.into_iter().skip(1);
        let leases = leases(answers.next().unwrap_or_default())?;
        let mut written: HashMap<u16, u64> = HashMap::new();
        for row in answers.next().unwrap_or_default().rows {
            written.insert(number(&row, 0)?, number(&row, 1)?);
        }
        let outcome = |s: &ShardCheckpoint| {
            if written.get(&s.shard.0) == Some(&s.epoch.0) {
                return Some(ShardOutcome::Written);
            }
            let ours = leases.get(&s.shard.0).is_some_and(|l| l.holds(&checkpoint.owner, s.epoch.0));
            (!ours).then_some(ShardOutcome::Fenced)
        };
        Ok(checkpoint.shards.iter().map(outcome).collect())
    }
}

fn list(shards: &[ShardId]) -> String {
    let mut shards = shards.to_vec();
    shards.sort_unstable(); // rows are locked in the order of their shards, here and in a lease round
    shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn lock(options: &StoreOptions, shards: &[ShardId]) -> String {
    format!(
        "SELECT shard, owner, epoch FROM {} FORCE INDEX (PRIMARY) WHERE shard IN ({}) ORDER BY shard FOR UPDATE",
        quoted(&options.table("outbox_lease")),
        list(shards)
    )
}

/// A statement of its own behind the lock: what the lock was waited for is visible only to the next one.
fn heads(options: &StoreOptions, shards: &[ShardId]) -> String {
    let t = |name: &str| quoted(&options.table(name));
    let of_receipts = |what: &str| {
        format!(
            "(SELECT {what} FROM {} r WHERE r.shard = l.shard ORDER BY r.`number` DESC LIMIT 1)",
            t("outbox_receipt")
        )
    };
    format!(
        "SELECT l.shard, {}, {}, (SELECT g.base_position + g.`count` FROM {} g WHERE g.shard = l.shard \
         ORDER BY g.base_position DESC LIMIT 1) FROM {} l WHERE l.shard IN ({})",
        of_receipts("r.`number`"),
        of_receipts("r.log_end"),
        t("outbox_log"),
        t("outbox_lease"),
        list(shards)
    )
}

fn leases(answer: Answer) -> StoreResult<HashMap<u16, LeaseSeen>> {
    let mut leases = HashMap::new();
    for mut row in answer.rows {
        let (shard, epoch) = (number(&row, 0)?, number(&row, 2)?);
        leases.insert(shard, LeaseSeen { owner: bytes_opt(&mut row, 1)?, epoch });
    }
    Ok(leases)
}

/// What is wrong with shards as far as lease, receipts and log tell.
fn judge_heads(
    owner: &str,
    parts: &[(usize, &ShardCheckpoint, Way)],
    lease_rows: Answer,
    head_rows: Answer,
    fits: &mut HashMap<usize, Way>,
) -> StoreResult<()> {
    let leases = leases(lease_rows)?;
    let mut heads: HashMap<u16, Head> = HashMap::new();
    for row in head_rows.rows {
        let at = |column| Ok::<_, StoreError>(number_opt(&row, column)?.and_then(|n| u64::try_from(n).ok()));
        heads.insert(number(&row, 0)?, Head { newest: at(1)?, receipts_end: at(2)?, log_end: at(3)? });
    }
    for (part, s, _) in parts {
        let head = heads.get(&s.shard.0).copied().unwrap_or_default();
        let as_left = head.newest.map_or(0, |n| n + 1) == s.number
            && head.receipts_end.unwrap_or(0) == s.base.0
            && head.log_end.is_none_or(|end| end <= s.base.0);
        if !leases.get(&s.shard.0).is_some_and(|l| l.holds(owner, s.epoch.0)) {
            fits.insert(*part, Way::Out(ShardOutcome::Fenced));
        } else if !as_left {
            fits.insert(*part, Way::Out(ShardOutcome::Mismatch));
        }
    }
    Ok(())
}

/// Compares what was found and deleted with what was read.
fn judge_removal(
    parts: &[(usize, &ShardCheckpoint, Way)],
    expected: &[Expected],
    answers: &[Answer],
    fits: &mut HashMap<usize, Way>,
) -> StoreResult<()> {
    if expected.len() != answers.len() {
        return Err(StoreError::new(StoreErrorKind::Other, "the server answered fewer statements than it was sent"));
    }
    let mut doubtful = Vec::new();
    for (expected, answer) in expected.iter().zip(answers) {
        match expected {
            Expected::Sum { part, rows, sum } => {
                let same = match answer.rows.first() {
                    Some(row) => number::<u64>(row, 0)? == *rows && number::<u64>(row, 1)? == *sum,
                    None => false,
                };
                doubtful.extend((!same).then_some(*part));
            }
            Expected::Deleted { parts, rows } => {
                if answer.affected != *rows {
                    doubtful.extend(parts);
                }
            }
        }
    }
    for (part, _, way) in parts.iter().filter(|(part, _, _)| doubtful.contains(part)) {
        let next = if *way == Way::Together { Way::Alone } else { Way::Out(ShardOutcome::Mismatch) };
        fits.entry(*part).or_insert(next);
    }
    Ok(())
}

/// Packs the chunks on a thread for such work, which begins at once, while the server deletes.
fn pack(
    parts: &[(usize, &ShardCheckpoint, Way)],
    checkpoint: &Checkpoint,
    max_bytes: usize,
) -> JoinHandle<Vec<(ShardId, EncodedChunk)>> {
    let moved = |s: &ShardCheckpoint| ShardCheckpoint {
        moved: s.moved.clone(),
        runs: Vec::new(),
        receipts: ReceiptRow::default(),
        parked: Vec::new(),
        acts: Vec::new(),
        ..*s
    };
    let shards: Vec<ShardCheckpoint> =
        parts.iter().filter(|(_, s, _)| !s.moved.is_empty()).map(|(_, s, _)| moved(s)).collect();
    let names = checkpoint.destinations.clone();
    tokio::task::spawn_blocking(move || {
        let pack = |s: &ShardCheckpoint| {
            let shard = s.shard;
            s.chunks(&names, max_bytes).into_iter().map(move |chunk| (shard, chunk)).collect::<Vec<_>>()
        };
        shards.iter().flat_map(pack).collect()
    })
}

/// Joins rows of values into as few statements as fit into packets.
pub(super) fn batched(
    head: &str,
    tail: &str,
    rows: impl Iterator<Item = Statement>,
    packet_bytes: usize,
) -> Vec<Statement> {
    let mut statements = Vec::new();
    let mut open: Option<Statement> = None;
    for row in rows {
        open = Some(match open.take() {
            Some(mut s) if s.text_bytes() + row.text_bytes() + tail.len() + 2 <= packet_bytes => {
                s.push(", ").append(row);
                s
            }
            full => {
                statements.extend(full);
                let mut s = Statement::new(head);
                s.append(row);
                s
            }
        });
    }
    statements.extend(open);
    statements.iter_mut().for_each(|s| _ = s.push(tail));
    statements
}

/// The values of a chunk's row; `moved_at` is SQL.
pub(super) fn chunk_values(shard: ShardId, chunk: &EncodedChunk, moved_at: Option<i64>) -> Statement {
    let mut s = Statement::new(format!("({shard}, {}, {}, ", chunk.base, chunk.count));
    s.push_text(time_text(chunk.first_created_at_us))
        .push(", ")
        .push_text(time_text(chunk.last_created_at_us))
        .push(", ");
    match moved_at {
        Some(us) => s.push_text(time_text(us)),
        None => s.push(NOW),
    };
    s.push(", ").push_number(chunk.codec).push(", ");
    s.push_bytes(chunk.id_filter.clone()).push(", ").push_bytes(chunk.bytes.clone()).push(")");
    s
}

/// The columns of [`chunk_values`].
pub(super) const CHUNK_COLUMNS: &str =
    "(shard, base_position, `count`, first_created_at, last_created_at, moved_at, codec, id_filter, chunk)";
/// The columns of a receipt row's values.
pub(super) const RECEIPT_COLUMNS: &str =
    "(shard, `number`, epoch, log_end, from_position, to_position, created_at, lanes)";

fn insert_chunks(options: &StoreOptions, chunks: &[(ShardId, EncodedChunk)], packet_bytes: usize) -> Vec<Statement> {
    let head = format!("INSERT INTO {} {CHUNK_COLUMNS} VALUES ", quoted(&options.table("outbox_log")));
    batched(&head, "", chunks.iter().map(|(shard, chunk)| chunk_values(*shard, chunk, None)), packet_bytes)
}

fn insert_receipts(
    options: &StoreOptions,
    parts: &[(usize, &ShardCheckpoint, Way)],
    packet_bytes: usize,
) -> Vec<Statement> {
    let head = format!("INSERT INTO {} {RECEIPT_COLUMNS} VALUES ", quoted(&options.table("outbox_receipt")));
    let rows = parts.iter().map(|(_, s, _)| {
        let span = s.receipts.span().map_or_else(|| "NULL, NULL".into(), |(from, to)| format!("{from}, {to}"));
        let mut row =
            Statement::new(format!("({}, {}, {}, {}, {span}, {NOW}, ", s.shard, s.number, s.epoch, s.log_end()));
        row.push_bytes(s.receipts.encode()).push(")");
        row
    });
    batched(&head, "", rows, packet_bytes)
}
