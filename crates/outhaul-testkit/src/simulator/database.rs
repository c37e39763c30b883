//! The model database: what the tables hold, and what each call does at the moment at which it is executed.

mod acts;
mod checkpoint;
mod lease;
mod reshard;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use outhaul_core::instance::Recovered;
use outhaul_core::message::{Epoch, Message, Position, Row, Seq, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::{LaneState, ReceiptRow};
use outhaul_core::runs::{Run, Runs};
use outhaul_core::schedule::{Scheduled, Upcoming};

pub(super) use acts::ActRow;
pub(super) use checkpoint::Applied;
pub(super) use lease::Round;

use super::ledger::{MessageNumber, number_of};

/// A row of the receipt table.
#[derive(Clone, Debug)]
struct ReceiptRecord {
    epoch: Epoch,
    log_end: Position,
    row: ReceiptRow,
}

/// All that belongs to one shard but its rows in the outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Shard {
    /// The log: a message's position is its place.
    pub(super) log: Vec<Arc<Message>>,
    /// The receipt table: a row's number is its place.
    receipts: Vec<ReceiptRecord>,
    /// Parked rows by destination and position.
    pub(super) parked: BTreeMap<(String, Position), (ParkedEntry, Arc<Message>)>,
    /// Positions with a receipt, by destination.
    receipted: Vec<Runs>,
    /// Positions that the stored lane states call settled, by destination.
    settled: Vec<Runs>,
    /// Positions below it are not owed to a destination, since it was dropped.
    dropped_below: BTreeMap<usize, u64>,
    /// Epochs under which a checkpoint has committed.
    proven: BTreeSet<Epoch>,
}

/// A row of the lease table. Times are those of the simulation.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) owner: Option<String>,
    pub(super) epoch: Epoch,
    pub(super) expires_at: u64,
    /// The transaction that holds the row's lock.
    locked_by: Option<u64>,
}

/// The database.
#[derive(Clone, Debug)]
pub(super) struct Database {
    last_seq: u64,
    /// Rows of transactions that are open.
    open: BTreeMap<u64, Vec<Row>>,
    outbox: BTreeMap<Seq, Row>,
    /// Rows that are scheduled, open ones too, and when they are due.
    due: BTreeMap<Seq, u64>,
    /// Rows that a transaction which is to cancel them holds.
    held: BTreeSet<Seq>,
    pub(super) shards: Vec<Shard>,
    pub(super) leases: Vec<Lease>,
    /// Heartbeat and whether it drains, by owner.
    instances: BTreeMap<String, (u64, bool)>,
    ttl_us: u64,
    /// Where each message stands in the log.
    places: HashMap<MessageNumber, (ShardId, Position)>,
    /// Names of the destinations, by the numbers of the run.
    names: Arc<[String]>,
    /// Whether chunks and receipts go through their codecs.
    encoded: bool,
    /// The table of acts: one row for each act and shard.
    pub(super) acts: Vec<ActRow>,
    /// What is paused: shard and destination, or all of the shard.
    pub(super) paused: BTreeSet<(ShardId, Option<String>)>,
    /// By how many shards the column's expression divides.
    divisor: u16,
    /// How many shards there are, as the meta table says.
    pub(super) said_shards: u16,
    /// To how many they are being changed: the row of the meta table.
    pub(super) resharding: Option<u16>,
    /// Changes of the expression that wait for transactions.
    alters: u32,
    /// Whether shards are acquired all the same while they are being changed: a deliberate fault.
    pub(super) reshard_unchecked: bool,
    /// Whether numbers of the sequence may have been given twice.
    pub(super) restarted: bool,
    /// Whether a checkpoint's epoch is not looked at: a deliberate fault.
    pub(super) epoch_unchecked: bool,
    /// Whether anybody may store how far a replay has got: a deliberate fault.
    pub(super) runner_unchecked: bool,
}

impl Database {
    pub(super) fn new(shards: u16, names: Arc<[String]>, ttl_ms: u64, encoded: bool) -> Self {
        let shard = Shard {
            receipted: vec![Runs::new(); names.len()],
            settled: vec![Runs::new(); names.len()],
            ..Shard::default()
        };
        Self {
            last_seq: 0,
            open: BTreeMap::new(),
            outbox: BTreeMap::new(),
            due: BTreeMap::new(),
            held: BTreeSet::new(),
            shards: vec![shard; usize::from(shards)],
            leases: vec![Lease::default(); usize::from(shards)],
            instances: BTreeMap::new(),
            ttl_us: ttl_ms * 1_000,
            places: HashMap::new(),
            names,
            encoded,
            acts: Vec::new(),
            paused: BTreeSet::new(),
            divisor: shards,
            said_shards: shards,
            resharding: None,
            alters: 0,
            reshard_unchecked: false,
            restarted: false,
            epoch_unchecked: false,
            runner_unchecked: false,
        }
    }

    // ---- applications ----------------------------------------------------------------------------------------------

    pub(super) fn begin(&mut self, transaction: u64) {
        self.open.insert(transaction, Vec::new());
    }

    /// The next number of the sequence. Numbers of transactions that roll back are not given again.
    pub(super) const fn draw_seq(&mut self, skip: u64) -> Seq {
        self.last_seq += 1 + skip;
        Seq(self.last_seq)
    }

    /// `due`: when it is to be delivered, if it is scheduled.
    pub(super) fn insert(&mut self, transaction: u64, row: Row, due: Option<u64>) {
        match due {
            Some(due) => drop(self.due.insert(row.seq, due)),
            None => drop(self.due.remove(&row.seq)), // The number may have been another row's.
        }
        if let Some(rows) = self.open.get_mut(&transaction) {
            rows.push(row);
        }
    }

    pub(super) fn commit(&mut self, transaction: u64) -> Vec<MessageNumber> {
        let rows = self.open.remove(&transaction).unwrap_or_default();
        let numbers = rows.iter().filter_map(|r| number_of(&r.id)).collect();
        self.outbox.extend(rows.into_iter().map(|r| (r.seq, r)));
        numbers
    }

    pub(super) fn roll_back(&mut self, transaction: u64) -> Vec<MessageNumber> {
        let rows = self.open.remove(&transaction).unwrap_or_default();
        rows.iter().filter_map(|r| number_of(&r.id)).collect()
    }

    /// A transaction begins that deletes a scheduled row which is not due. False: there is none, or somebody holds it.
    pub(super) fn hold(&mut self, now: u64, seq: Seq, id: &str) -> bool {
        let is_there = self.outbox.get(&seq).is_some_and(|r| r.id == id);
        is_there && self.due.get(&seq).is_some_and(|due| *due > now) && self.held.insert(seq)
    }

    /// It ends. True: the row is gone.
    pub(super) fn end_hold(&mut self, seq: Seq, commits: bool) -> bool {
        let gone = self.held.remove(&seq) && commits && self.outbox.remove(&seq).is_some();
        if gone {
            self.due.remove(&seq);
        }
        gone
    }

    /// Rolls back everything that is open.
    pub(super) fn roll_back_all(&mut self) -> Vec<MessageNumber> {
        self.held.clear();
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().flat_map(|t| self.roll_back(t)).collect()
    }

    /// Empties the outbox and starts its sequence again. Returns what was in it.
    pub(super) fn truncate(&mut self) -> Vec<MessageNumber> {
        self.last_seq = 0;
        self.restarted = true;
        self.held.clear();
        let open: BTreeSet<Seq> = self.open.values().flatten().map(|r| r.seq).collect();
        self.due.retain(|seq, _| open.contains(seq));
        std::mem::take(&mut self.outbox).values().filter_map(|r| number_of(&r.id)).collect()
    }

    /// What a backup holds: all that is committed.
    pub(super) fn backup(&self) -> Self {
        let mut copy = self.clone();
        copy.open.clear();
        copy.held.clear();
        copy.restarted = true;
        copy.leases.iter_mut().for_each(|l| l.locked_by = None);
        copy
    }

    /// Whether a message is in the outbox or in the log.
    pub(super) fn has(&self, number: MessageNumber) -> bool {
        self.places.contains_key(&number) || self.outbox.values().any(|r| number_of(&r.id) == Some(number))
    }

    // ---- reads -----------------------------------------------------------------------------------------------------

    /// The scheduled rows that are due soonest.
    pub(super) fn ahead(&self, now: u64, shards: &[ShardId], ranges: &[Run], limit: usize) -> Upcoming {
        let inside = |seq: &Seq| ranges.iter().any(|r| r.first <= seq.0 && seq.0 <= r.last);
        let row = |(seq, due): (&Seq, &u64)| {
            let row = self.outbox.get(seq).filter(|r| shards.contains(&r.shard) && inside(seq))?;
            Some(Scheduled { shard: row.shard, seq: *seq, due_at_us: *due as i64 })
        };
        let mut rows: Vec<Scheduled> = self.due.iter().filter_map(row).collect();
        rows.sort_by_key(|r| (r.due_at_us, r.seq));
        rows.truncate(limit);
        Upcoming { now_us: now as i64, cut: rows.len() == limit, rows }
    }

    /// Scheduled rows that are due become ordinary ones, but for those that somebody holds.
    pub(super) fn make_ordinary(&mut self, now: u64, shards: &[ShardId], ranges: &[Run]) {
        let (outbox, held) = (&self.outbox, &self.held);
        self.due.retain(|seq, due| {
            let inside = ranges.iter().any(|r| r.first <= seq.0 && seq.0 <= r.last);
            let wanted = outbox.get(seq).is_some_and(|r| shards.contains(&r.shard));
            !(inside && wanted && *due <= now && !held.contains(seq))
        });
    }

    /// Committed rows by rising `seq`, and whether a limit cut them. `all`: scheduled ones too, as if they were due.
    pub(super) fn read(
        &self,
        shards: &[ShardId],
        ranges: &[Run],
        limit: u32,
        max_bytes: usize,
        all: bool,
    ) -> (Vec<Row>, bool) {
        let mut rows: Vec<Row> = Vec::new();
        let mut bytes = 0;
        for range in ranges {
            for row in self.outbox.range(Seq(range.first)..=Seq(range.last)).map(|(_, r)| r) {
                if !shards.contains(&row.shard) || (!all && self.due.contains_key(&row.seq)) {
                    continue;
                }
                bytes += row.payload.len();
                if rows.len() >= limit as usize || (!rows.is_empty() && bytes > max_bytes) {
                    return (rows, true);
                }
                rows.push(row.clone());
            }
        }
        (rows, false)
    }

    /// No open transaction holds a `seq` at or below it.
    pub(super) fn resolved(&self) -> Seq {
        let oldest = self.open.values().flatten().map(|r| r.seq.0).min();
        Seq(oldest.map_or(self.last_seq, |seq| seq - 1))
    }

    /// What an owner needs to start a shard.
    pub(super) fn recover(&self, shard: ShardId) -> Recovered {
        let tables = self.shard(shard);
        let newest = tables.receipts.last();
        Recovered {
            log_end: newest.map_or(Position(0), |r| r.log_end),
            next_number: tables.receipts.len() as u64,
            lanes: newest.map(|r| r.row.clone()).unwrap_or_default(),
            parked: tables.parked.values().map(|(entry, _)| entry.clone()).collect(),
            acts: self.open_acts(&[(shard, Epoch(0))]),
            paused: self.paused.iter().filter(|(s, _)| *s == shard).map(|(_, d)| d.clone()).collect(),
            edited: self.edited(shard),
        }
    }

    /// Receipt rows that hold receipts, from the newest down.
    pub(super) fn receipts_below(&self, shard: ShardId, below: Option<u64>, most: usize) -> Vec<(u64, ReceiptRow)> {
        let rows = self.shard(shard).receipts.iter().enumerate().rev();
        let wanted = rows.filter(|(n, r)| below.is_none_or(|below| (*n as u64) < below) && r.row.span().is_some());
        wanted.take(most).map(|(n, r)| (n as u64, r.row.clone())).collect()
    }

    pub(super) fn read_log(&self, shard: ShardId, from: Position, most: usize) -> Vec<Arc<Message>> {
        let from = usize::try_from(from.0).unwrap_or(usize::MAX);
        self.shard(shard).log.iter().skip(from).take(most).cloned().collect()
    }

    pub(super) fn read_parked(&self, shard: ShardId, destination: &str, positions: &[Position]) -> Vec<Arc<Message>> {
        let parked = &self.shard(shard).parked;
        positions.iter().filter_map(|p| parked.get(&(destination.to_owned(), *p))).map(|(_, m)| m.clone()).collect()
    }

    // ---- what the judge asks ---------------------------------------------------------------------------------------

    pub(super) fn shard(&self, shard: ShardId) -> &Shard {
        &self.shards[usize::from(shard.0)]
    }

    pub(super) fn hot_rows(&self) -> usize {
        self.outbox.len() + self.open.len()
    }

    /// Whether the receipt of a message is stored.
    pub(super) fn is_receipted(&self, number: MessageNumber, destination: usize) -> bool {
        self.places.get(&number).is_some_and(|(s, p)| self.shard(*s).receipted[destination].contains(p.0))
    }

    /// Where a message stands in the log.
    pub(super) fn place(&self, number: MessageNumber) -> Option<(ShardId, Position)> {
        self.places.get(&number).copied()
    }

    /// Whether a checkpoint of this epoch has committed.
    pub(super) fn is_proven(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.shard(shard).proven.contains(&epoch)
    }
}

impl Shard {
    /// Up to where the lanes are settled and proven by the newest receipt row.
    pub(super) fn settled_to(&self) -> Vec<(String, Position)> {
        let newest = self.receipts.last();
        let reached = |s: &LaneState| (s.destination.clone(), s.cursor.min(s.proven));
        newest.map(|r| r.row.lanes.iter().map(|(s, _)| reached(s)).collect()).unwrap_or_default()
    }
}
