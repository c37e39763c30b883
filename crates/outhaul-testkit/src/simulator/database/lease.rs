//! Leases, on the database's clock, and the list of instances.

use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, ShardId};

use super::Database;

/// One lease round, and which of its parts are carried out.
#[derive(Clone, Debug)]
pub(in crate::simulator) struct Round {
    pub(in crate::simulator) owner: String,
    pub(in crate::simulator) draining: bool,
    pub(in crate::simulator) renew: Vec<(ShardId, Epoch)>,
    pub(in crate::simulator) release: Vec<(ShardId, Epoch)>,
    pub(in crate::simulator) acquire: Vec<ShardId>,
    pub(in crate::simulator) leave: bool,
}

impl Database {
    /// Whether a lock keeps the round waiting.
    pub(in crate::simulator) fn round_waits(&self, round: &Round) -> bool {
        let named = round.renew.iter().chain(&round.release).map(|(s, _)| s).chain(&round.acquire);
        named.into_iter().any(|s| self.leases[usize::from(s.0)].locked_by.is_some())
    }

    /// Carries a round out: all of it, or only what `does` says of heartbeat, renewals, releases, acquisitions.
    pub(in crate::simulator) fn lease_round(
        &mut self,
        now: u64,
        round: &Round,
        mut does: impl FnMut() -> bool,
    ) -> LeaseReport {
        let ttl_us = self.ttl_us;
        if does() {
            match round.leave {
                true => self.instances.remove(&round.owner),
                false => self.instances.insert(round.owner.clone(), (now, round.draining)),
            };
        }
        for (shard, epoch) in &round.renew {
            let lease = &mut self.leases[usize::from(shard.0)];
            if lease.owner.as_ref() == Some(&round.owner) && lease.epoch == *epoch && does() {
                lease.expires_at = now + ttl_us;
            }
        }
        for (shard, epoch) in &round.release {
            let lease = &mut self.leases[usize::from(shard.0)];
            if lease.owner.as_ref() == Some(&round.owner) && lease.epoch == *epoch && does() {
                lease.owner = None;
            }
        }
        let refused = self.refuses(round);
        for shard in round.acquire.iter().filter(|_| !refused) {
            let lease = &mut self.leases[usize::from(shard.0)];
            if (lease.owner.is_none() || lease.expires_at <= now) && does() {
                lease.owner = Some(round.owner.clone());
                lease.epoch = Epoch(lease.epoch.0 + 1);
                lease.expires_at = now + ttl_us;
            }
        }
        self.report(now)
    }

    /// Whether the round wants shards that are being changed. What takes no part in the sharing of them changes them.
    pub(in crate::simulator) fn refuses(&self, round: &Round) -> bool {
        self.resharding.is_some() && !round.draining && !round.acquire.is_empty() && !self.reshard_unchecked
    }

    /// Whether a relay has said something since.
    pub(in crate::simulator) fn hears_a_relay(&self, since: u64) -> bool {
        self.instances.iter().any(|(owner, (heartbeat, _))| owner.starts_with('p') && *heartbeat >= since)
    }

    fn report(&self, now: u64) -> LeaseReport {
        let leases = self.leases.iter().enumerate().map(|(n, l)| LeaseRow {
            shard: ShardId(n as u16),
            owner: l.owner.clone(),
            epoch: l.epoch,
            expired: l.owner.is_some() && l.expires_at <= now,
        });
        let alive = self.instances.iter().filter(|(_, (heartbeat, _))| heartbeat + self.ttl_us >= now);
        let instances = alive.map(|(owner, (_, draining))| InstanceRow {
            owner: owner.clone(),
            draining: *draining,
            config: String::new(),
        });
        LeaseReport { leases: leases.collect(), instances: instances.collect() }
    }

    /// Locks lease rows for a transaction. False: another one has one of them.
    pub(in crate::simulator) fn lock(&mut self, transaction: u64, shards: &[ShardId]) -> bool {
        let free = |l: &super::Lease| l.locked_by.is_none_or(|t| t == transaction);
        if !shards.iter().all(|s| free(&self.leases[usize::from(s.0)])) {
            return false;
        }
        for shard in shards {
            self.leases[usize::from(shard.0)].locked_by = Some(transaction);
        }
        true
    }

    /// Ends a transaction's locks.
    pub(in crate::simulator) fn unlock(&mut self, transaction: u64) {
        self.leases.iter_mut().filter(|l| l.locked_by == Some(transaction)).for_each(|l| l.locked_by = None);
    }

    /// Whether a transaction holds the lease row.
    pub(in crate::simulator) fn is_locked(&self, shard: ShardId) -> bool {
        self.leases[usize::from(shard.0)].locked_by.is_some()
    }

    /// Whether any checkpoint is under way.
    pub(in crate::simulator) fn any_lock(&self) -> bool {
        self.leases.iter().any(|l| l.locked_by.is_some())
    }

    /// Until when the owner holds the shard under this epoch. None: it does not.
    pub(in crate::simulator) fn holds_until(&self, owner: &str, shard: ShardId, epoch: Epoch) -> Option<u64> {
        let lease = &self.leases[usize::from(shard.0)];
        (lease.owner.as_deref() == Some(owner) && lease.epoch == epoch).then_some(lease.expires_at)
    }
}
