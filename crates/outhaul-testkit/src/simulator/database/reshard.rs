//! A change of the number of shards: the column's expression, rows that are there, leases.
//!
//! As MySQL and MariaDB do it: the expression is changed in a moment in which no transaction has inserted and is open, and
//! rows that are there follow. On PostgreSQL all of it is one transaction.

use outhaul_core::message::{Row, ShardId};

use super::{Database, Lease, Shard};
use crate::simulator::application::Step;
use crate::simulator::ledger::{MessageNumber, number_of};

/// The shard of a key, or of a message without one, where there are so many.
fn shard(key: Option<usize>, number: MessageNumber, shards: u16) -> ShardId {
    ShardId((key.unwrap_or(number) % usize::from(shards)) as u16)
}

fn shard_of_row(row: &Row, shards: u16) -> ShardId {
    let key = row.key.as_ref().and_then(|key| key.strip_prefix('k')?.parse().ok());
    shard(key, number_of(&row.id).unwrap_or_default(), shards)
}

impl Database {
    /// What the expression gives a row that is inserted now.
    pub(in crate::simulator) fn shard_of(&self, key: Option<usize>, number: MessageNumber) -> ShardId {
        shard(key, number, self.divisor)
    }

    /// Whether the step would lock the table, and a change of the expression stands in the queue before it.
    pub(in crate::simulator) fn is_altered_before(&self, step: &Step) -> bool {
        let has_lock = match step {
            Step::Insert(transaction) => self.open.get(transaction).is_none_or(|rows| !rows.is_empty()),
            _ => false,
        };
        self.alters > 0 && !has_lock
    }

    /// A change of the expression stands in the queue from now on, or no longer.
    pub(in crate::simulator) const fn queue_alter(&mut self, waits: bool) {
        self.alters = if waits { self.alters + 1 } else { self.alters.saturating_sub(1) };
    }

    /// Changes the expression. False: a transaction has inserted or deleted, and is open.
    pub(in crate::simulator) fn alter(&mut self, shards: u16, awaits: bool) -> bool {
        let busy = self.open.values().any(|rows| !rows.is_empty()) || !self.held.is_empty();
        if busy && awaits {
            return false;
        }
        self.divisor = shards;
        true
    }

    /// Gives some committed rows their new shard, but for those that somebody holds. Returns them, and whether none is left.
    pub(in crate::simulator) fn move_rows(
        &mut self,
        shards: u16,
        most: usize,
    ) -> (Vec<(MessageNumber, ShardId)>, bool) {
        let mut moved = Vec::new();
        let mut left = false;
        for row in self.outbox.values_mut() {
            let right = shard_of_row(row, shards);
            if row.shard == right {
                continue;
            }
            if moved.len() == most || self.held.contains(&row.seq) {
                left = true;
                continue;
            }
            row.shard = right;
            moved.extend(number_of(&row.id).map(|number| (number, right)));
        }
        (moved, !left)
    }

    /// Whether all leases are this owner's, and have not run out.
    pub(in crate::simulator) fn owns_all(&self, owner: &str, now: u64) -> bool {
        self.leases.iter().all(|l| l.owner.as_deref() == Some(owner) && l.expires_at > now)
    }

    /// The change has come to its end: shards that are new get a lease, those that are none any more keep theirs. The
    /// error is a rule that was broken: from now on relays go by the number that is said.
    pub(in crate::simulator) fn end_reshard(&mut self, shards: u16) -> Result<(), String> {
        if self.divisor != shards {
            return Err(format!("{shards} shards are said, and the expression makes {}", self.divisor));
        }
        if let Some(row) = self.outbox.values().find(|row| row.shard != shard_of_row(row, shards)) {
            return Err(format!("{} is left in shard {} as there are {shards}", row.id, row.shard));
        }
        let had = usize::from(shards).max(self.leases.len());
        let lanes = self.names.len();
        let empty = || vec![outhaul_core::runs::Runs::new(); lanes];
        self.leases.resize_with(had, Lease::default);
        self.shards.resize_with(had, || Shard { receipted: empty(), settled: empty(), ..Shard::default() });
        self.said_shards = shards;
        self.resharding = None;
        Ok(())
    }
}

impl Shard {
    /// Whether every lane has settled all of the log, and proven it.
    pub(in crate::simulator) fn is_settled(&self, proven_too: bool) -> bool {
        let end = self.log.len() as u64;
        let lanes = self.receipts.last().into_iter().flat_map(|r| &r.row.lanes);
        lanes.map(|(s, _)| s).all(|s| s.cursor.0 >= end && (!proven_too || s.proven.0 >= end))
    }
}
