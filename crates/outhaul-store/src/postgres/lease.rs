//! Leases and heartbeats, by the database's clock alone.

use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, ShardId};
use outhaul_core::trouble;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Statement, get};
use super::values::{clean, quoted, signed, small, unsigned};
use crate::store::{InstanceStatus, LeaseRound, StoreResult};

impl PostgresStore {
    /// Heartbeat and changes in one transaction, in one round trip after its BEGIN; then a look in the same one.
    ///
    /// An acquisition skips a row that somebody has locked: a checkpoint of the old owner or another's acquisition is
    /// under way, and the next round will see what came of it.
    pub(super) async fn round(&self, round: &LeaseRound) -> StoreResult<LeaseReport> {
        let t = |name: &str| quoted(&self.options.table(name));
        let (lease, instance) = (t("outbox_lease"), t("outbox_instance"));
        let later = "clock_timestamp() + $3 * interval '1 millisecond'";
        let beat = format!(
            "INSERT INTO {instance} (owner, version, draining, heartbeat, troubles, config) \
             VALUES ($1, $2, $3, clock_timestamp(), $4, $5) \
             ON CONFLICT (owner) DO UPDATE SET version = EXCLUDED.version, draining = EXCLUDED.draining, \
             heartbeat = EXCLUDED.heartbeat, troubles = EXCLUDED.troubles, config = EXCLUDED.config"
        );
        let leave = format!("DELETE FROM {instance} WHERE owner = $1");
        let renew = format!(
            "UPDATE {lease} l SET expires_at = {later} FROM unnest($2, $4) r(s, e) \
             WHERE l.shard = r.s AND l.owner = $1 AND l.epoch = r.e"
        );
        let release = format!(
            "UPDATE {lease} l SET owner = NULL, expires_at = NULL FROM unnest($2, $3) r(s, e) \
             WHERE l.shard = r.s AND l.owner = $1 AND l.epoch = r.e"
        );
        let acquire = format!(
            "UPDATE {lease} SET owner = $1, epoch = epoch + 1, expires_at = {later} WHERE shard IN (SELECT shard FROM {lease} \
               WHERE shard = ANY ($2) AND (owner IS NULL OR expires_at IS NULL OR expires_at <= clock_timestamp()) \
               ORDER BY shard FOR UPDATE SKIP LOCKED)"
        );
        let leases = format!(
            "SELECT shard, owner, epoch, expires_at IS NULL OR expires_at <= clock_timestamp() FROM {lease} WHERE shard >= 0 ORDER BY shard"
        );
        let instances = format!(
            "SELECT owner, draining, config FROM {instance} WHERE heartbeat >= clock_timestamp() - $1 * interval '1 millisecond' ORDER BY owner"
        );

        let owner = clean(&round.owner);
        let version = clean(&round.version);
        let config = clean(&round.config);
        let troubles = trouble::encode(&round.troubles);
        let ttl_ms = f64::from(u32::try_from(round.ttl_ms).unwrap_or(u32::MAX));
        let pairs = |of: &[(ShardId, Epoch)]| -> (Vec<i16>, Vec<i64>) {
            let mut of = of.to_vec();
            of.sort_unstable(); // rows are locked in the order of their shards, here and in a checkpoint
            of.iter().map(|(s, e)| (small(*s), signed(e.0))).unzip()
        };
        let (renewed, renewed_epochs) = pairs(&round.renew);
        let (released, released_epochs) = pairs(&round.release);
        let acquired: Vec<i16> = round.acquire.iter().map(|s| small(*s)).collect();

        let mut statements = vec![if round.leave {
            Statement::new(&leave).with(&owner, Type::TEXT)
        } else {
            Statement::new(&beat)
                .with(&owner, Type::TEXT)
                .with(&version, Type::TEXT)
                .with(&round.draining, Type::BOOL)
                .with(&troubles, Type::TEXT)
                .with(&config, Type::TEXT)
        }];
        if !renewed.is_empty() {
            statements.push(
                Statement::new(&renew)
                    .with(&owner, Type::TEXT)
                    .with(&renewed, Type::INT2_ARRAY)
                    .with(&ttl_ms, Type::FLOAT8)
                    .with(&renewed_epochs, Type::INT8_ARRAY),
            );
        }
        if !released.is_empty() {
            statements.push(
                Statement::new(&release)
                    .with(&owner, Type::TEXT)
                    .with(&released, Type::INT2_ARRAY)
                    .with(&released_epochs, Type::INT8_ARRAY),
            );
        }
        if !acquired.is_empty() {
            statements.push(
                Statement::new(&acquire)
                    .with(&owner, Type::TEXT)
                    .with(&acquired, Type::INT2_ARRAY)
                    .with(&ttl_ms, Type::FLOAT8),
            );
        }
        statements.push(Statement::new(&leases));
        statements.push(Statement::new(&instances).with(&ttl_ms, Type::FLOAT8));

        // Each statement is right by itself, so that nothing depends on BEGIN having worked.
        let held = self.lease.take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &statements).await;
        let mut answers = held.give_back(result)?;
        let (instances, leases) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        let mut report = LeaseReport::default();
        for row in &leases {
            report.leases.push(LeaseRow {
                shard: ShardId(u16::try_from(get::<i16>(row, 0)?).unwrap_or_default()),
                owner: get(row, 1)?,
                epoch: Epoch(unsigned(get(row, 2)?)),
                expired: get(row, 3)?,
            });
        }
        for row in &instances {
            report.instances.push(InstanceRow { owner: get(row, 0)?, draining: get(row, 1)?, config: get(row, 2)? });
        }
        Ok(report)
    }

    pub(super) async fn instance_statuses(&self) -> StoreResult<Vec<InstanceStatus>> {
        let sql = format!(
            "SELECT owner, version, draining, \
               greatest(extract(epoch FROM clock_timestamp() - heartbeat) * 1000, 0)::bigint, troubles, config FROM {} ORDER BY owner",
            quoted(&self.options.table("outbox_instance"))
        );
        let rows = self.select(&self.other, Statement::new(&sql)).await?;
        let status = |row: &tokio_postgres::Row| {
            Ok(InstanceStatus {
                owner: get(row, 0)?,
                version: get(row, 1)?,
                draining: get(row, 2)?,
                heartbeat_ms: unsigned(get(row, 3)?),
                troubles: trouble::decode(&get::<String>(row, 4)?),
                config: get(row, 5)?,
            })
        };
        rows.iter().map(status).collect()
    }
}
