//! Leases and heartbeats, by the database's clock.

use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, ShardId};
use outhaul_core::trouble;
use rusqlite::{Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{signed, unsigned};
use crate::store::{InstanceStatus, LeaseRound, StoreResult};

/// Heartbeats older than this many times to live are removed: their processes have left without a word.
const FORGOTTEN_TTLS: i64 = 100;

pub(super) fn round(tx: &Transaction<'_>, names: &Names, round: &LeaseRound) -> StoreResult<LeaseReport> {
    let ttl_us = signed(round.ttl_ms.saturating_mul(1_000));
    heartbeat(tx, names, round, ttl_us)?;
    let Names { lease, .. } = names;
    let changed = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        tx.prepare_cached(sql).and_then(|mut s| s.execute(values)).map_err(refusal)
    };
    let renew = format!("UPDATE {lease} SET expires_at = {NOW_US} + ? WHERE shard = ? AND owner = ? AND epoch = ?");
    for (shard, epoch) in &round.renew {
        changed(&renew, params![ttl_us, shard.0, round.owner, signed(epoch.0)])?;
    }
    let release = format!("UPDATE {lease} SET owner = NULL WHERE shard = ? AND owner = ? AND epoch = ?");
    for (shard, epoch) in &round.release {
        changed(&release, params![shard.0, round.owner, signed(epoch.0)])?;
    }
    let acquire = format!(
        "UPDATE {lease} SET owner = ?, epoch = epoch + 1, expires_at = {NOW_US} + ? \
         WHERE shard = ? AND (owner IS NULL OR expires_at <= {NOW_US})"
    );
    for shard in &round.acquire {
        changed(&acquire, params![round.owner, ttl_us, shard.0])?;
    }
    report(tx, names, ttl_us)
}

fn heartbeat(tx: &Transaction<'_>, names: &Names, round: &LeaseRound, ttl_us: i64) -> StoreResult<()> {
    let table = &names.instance;
    if round.leave {
        let sql = format!("DELETE FROM {table} WHERE owner = ?");
        tx.prepare_cached(&sql).and_then(|mut s| s.execute([&round.owner])).map_err(refusal)?;
    } else {
        let sql = format!(
            "INSERT INTO {table} (owner, version, draining, heartbeat, troubles, config) VALUES (?, ?, ?, {NOW_US}, ?, ?) ON CONFLICT (owner) DO \
             UPDATE SET version = excluded.version, draining = excluded.draining, heartbeat = excluded.heartbeat, \
             troubles = excluded.troubles, config = excluded.config"
        );
        let values =
            params![round.owner, round.version, round.draining, trouble::encode(&round.troubles), round.config];
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map_err(refusal)?;
    }
    let sql = format!("DELETE FROM {table} WHERE heartbeat < {NOW_US} - ?");
    let forgotten_us = ttl_us.saturating_mul(FORGOTTEN_TTLS);
    tx.prepare_cached(&sql).and_then(|mut s| s.execute([forgotten_us])).map_err(refusal)?;
    Ok(())
}

pub(super) fn instances(tx: &Transaction<'_>, names: &Names) -> StoreResult<Vec<InstanceStatus>> {
    let sql = format!(
        "SELECT owner, version, draining, max({NOW_US} - heartbeat, 0), troubles, config FROM {} ORDER BY owner",
        names.instance
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let rows = statement.query_map([], |row| {
        Ok(InstanceStatus {
            owner: row.get(0)?,
            version: row.get(1)?,
            draining: row.get(2)?,
            heartbeat_ms: unsigned(row.get(3)?) / 1_000,
            troubles: trouble::decode(&row.get::<_, String>(4)?),
            config: row.get(5)?,
        })
    });
    rows.and_then(Iterator::collect).map_err(refusal)
}

fn report(tx: &Transaction<'_>, names: &Names, ttl_us: i64) -> StoreResult<LeaseReport> {
    let sql = format!(
        "SELECT shard, owner, epoch, expires_at <= {NOW_US} FROM {} WHERE shard >= 0 ORDER BY shard",
        names.lease
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let leases = statement.query_map([], |row| {
        Ok(LeaseRow {
            shard: ShardId(row.get(0)?),
            owner: row.get(1)?,
            epoch: Epoch(unsigned(row.get(2)?)),
            expired: row.get(3)?,
        })
    });
    let leases = leases.and_then(Iterator::collect).map_err(refusal)?;
    let sql = format!(
        "SELECT owner, draining, config FROM {} WHERE heartbeat >= {NOW_US} - ? ORDER BY owner",
        names.instance
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let instances = statement
        .query_map([ttl_us], |row| Ok(InstanceRow { owner: row.get(0)?, draining: row.get(1)?, config: row.get(2)? }));
    Ok(LeaseReport { leases, instances: instances.and_then(Iterator::collect).map_err(refusal)? })
}
