//! Leases and heartbeats, by the database's clock alone.

use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, ShardId};
use outhaul_core::trouble;

use super::MySqlStore;
use super::link::{Answer, Link};
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{NOW, hex, literal, number, quoted, text, text_opt};
use crate::error::StoreError;
use crate::store::{InstanceStatus, LeaseRound, StoreResult};
use crate::version::{Meta, RESHARD};

/// The largest time to live that the server's arithmetic is asked for, milliseconds.
const TTL_MAX_MS: u64 = 1 << 40;
/// What the column takes, characters.
const VERSION_MAX: usize = 64;

impl MySqlStore {
    /// Heartbeat, renewals and releases are statements of their own, in one round trip. Acquiring takes a second one: an
    /// acquisition skips a row that somebody has locked (a checkpoint of the old owner or another's acquisition is under
    /// way, and the next round will see what came of it), and an UPDATE cannot skip. With the rows locked it looks whether
    /// the number of shards is being changed: what changes it had locked them too when it said so.
    pub(super) async fn round(&self, round: &LeaseRound) -> StoreResult<LeaseReport> {
        let mut held = self.lease.take(&self.dialer).await?;
        let result = self.round_on(&mut held.link, round).await;
        held.give_back(result)?
    }

    pub(super) async fn instance_statuses(&self) -> StoreResult<Vec<InstanceStatus>> {
        let sql = format!(
            "SELECT owner, version, draining, GREATEST(TIMESTAMPDIFF(MICROSECOND, heartbeat, {NOW}), 0) DIV 1000, troubles, config \
             FROM {} ORDER BY owner",
            quoted(&self.options.table("outbox_instance"))
        );
        let rows = self.select(&self.other, sql).await?;
        rows.into_iter()
            .map(|mut row| {
                Ok(InstanceStatus {
                    owner: text(&mut row, 0)?,
                    version: text(&mut row, 1)?,
                    draining: number::<u8>(&row, 2)? == 1,
                    heartbeat_ms: number(&row, 3)?,
                    troubles: trouble::decode(&text_opt(&mut row, 4)?.unwrap_or_default()),
                    config: text(&mut row, 5)?,
                })
            })
            .collect()
    }

    async fn round_on(&self, link: &mut Link, round: &LeaseRound) -> Result<StoreResult<LeaseReport>, Failure> {
        let t = |name: &str| quoted(&self.options.table(name));
        let (lease, instance) = (t("outbox_lease"), t("outbox_instance"));
        let owner = hex(round.owner.as_bytes());
        let ttl_ms = round.ttl_ms.min(TTL_MAX_MS);
        let expiry = format!("{NOW} + INTERVAL {} MICROSECOND", ttl_ms * 1_000);
        let version: String = round.version.chars().take(VERSION_MAX).collect();

        let mut statements = vec![if round.leave {
            format!("DELETE FROM {instance} WHERE owner = {owner}")
        } else {
            let (version, draining) = (literal(&version), u8::from(round.draining));
            let config = literal(&round.config);
            let troubles = match round.troubles.as_slice() {
                [] => "NULL".to_owned(),
                some => literal(&trouble::encode(some)),
            };
            format!(
                "INSERT INTO {instance} (owner, version, draining, heartbeat, troubles, config) \
                 VALUES ({owner}, {version}, {draining}, {NOW}, {troubles}, {config}) ON DUPLICATE KEY UPDATE \
                 version = {version}, draining = {draining}, heartbeat = {NOW}, troubles = {troubles}, config = {config}"
            )
        }];
        let change = |to: &str, of: &[(ShardId, Epoch)]| {
            let which = pairs(of);
            format!("UPDATE {lease} FORCE INDEX (PRIMARY) SET {to} WHERE owner = {owner} AND ({which})")
        };
        if !round.renew.is_empty() {
            statements.push(change(&format!("expires_at = {expiry}"), &round.renew));
        }
        if !round.release.is_empty() {
            statements.push(change("owner = NULL, expires_at = NULL", &round.release));
        }
        if !round.acquire.is_empty() {
            statements.push("START TRANSACTION".into());
            statements.push(format!(
                "SELECT shard FROM {lease} FORCE INDEX (PRIMARY) WHERE shard IN ({}) \
                 AND (owner IS NULL OR expires_at IS NULL OR expires_at <= {NOW}) ORDER BY shard FOR UPDATE SKIP LOCKED",
                shards(round.acquire.iter().map(|s| s.0))
            ));
            statements.push(format!("SELECT value FROM {} WHERE name = '{RESHARD}'", t("outbox_meta")));
            let mut answers = link.run_inside(&statements.iter().map(Statement::new).collect::<Vec<_>>()).await?;
            if let Err(e) = whole(answers.pop().unwrap_or_default())
                && !round.draining
            {
                link.rollback().await?;
                return Ok(Err(e));
            }
            let free: Vec<u16> = answers
                .last()
                .into_iter()
                .flat_map(|a| &a.rows)
                .map(|row| number(row, 0))
                .collect::<StoreResult<_>>()?;
            statements.clear();
            if !free.is_empty() {
                statements.push(format!(
                    "UPDATE {lease} FORCE INDEX (PRIMARY) SET owner = {owner}, epoch = epoch + 1, expires_at = {expiry} WHERE shard IN ({})",
                    shards(free.into_iter())
                ));
            }
            statements.push("COMMIT".into());
        }
        statements.push(format!(
            "SELECT shard, owner, epoch, expires_at IS NULL OR expires_at <= {NOW} FROM {lease} WHERE shard >= 0 ORDER BY shard"
        ));
        statements.push(format!(
            "SELECT owner, draining, config FROM {instance} WHERE heartbeat >= {NOW} - INTERVAL {} MICROSECOND ORDER BY owner",
            ttl_ms * 1_000
        ));
        let statements: Vec<Statement> = statements.iter().map(Statement::new).collect();
        let mut answers = link.run_inside(&statements).await?;
        let (instances, leases) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        Ok(Ok(report(leases, instances)?))
    }
}

/// Whether the number of shards is not being changed, by the row of the meta table that says so.
fn whole(mut said: Answer) -> Result<(), StoreError> {
    let rows = said.rows.iter_mut().filter_map(|row| Some((RESHARD.to_owned(), text(row, 0).ok()?)));
    Meta::new(rows.collect()).check_whole()
}

/// Rows are locked in the order of their shards, here and in a checkpoint: a range over the primary key does so.
fn pairs(of: &[(ShardId, Epoch)]) -> String {
    let pair = |(shard, epoch): &(ShardId, Epoch)| format!("(shard = {shard} AND epoch = {epoch})");
    of.iter().map(pair).collect::<Vec<_>>().join(" OR ")
}

fn shards(shards: impl Iterator<Item = u16>) -> String {
    shards.map(|s| s.to_string()).collect::<Vec<_>>().join(", ")
}

fn report(leases: Answer, instances: Answer) -> StoreResult<LeaseReport> {
    let mut report = LeaseReport::default();
    for mut row in leases.rows {
        report.leases.push(LeaseRow {
            shard: ShardId(number(&row, 0)?),
            owner: text_opt(&mut row, 1)?,
            epoch: Epoch(number(&row, 2)?),
            expired: number::<u8>(&row, 3)? == 1,
        });
    }
    for mut row in instances.rows {
        report.instances.push(InstanceRow {
            owner: text(&mut row, 0)?,
            draining: number::<u8>(&row, 1)? == 1,
            config: text(&mut row, 2)?,
        });
    }
    Ok(report)
}
