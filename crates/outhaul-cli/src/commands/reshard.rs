//! `outhaul reshard`: another number of shards, while relays are stopped and applications insert.
//!
//! Messages of a key go to another shard from the change on. Their order rests on nothing of before being unsettled then:
//! all leases are taken first, so that no relay runs, and only then it is looked whether all is settled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::message::{Epoch, ShardId};
use outhaul_store::{DatabaseKind, LeaseRound, Resharded, Store, StoreError, StoreErrorKind};
use serde_json::json;
use tokio::time::Instant;

use super::{of_outbox, open, owner};
use crate::arguments::Reshard;
use crate::config::Outbox;
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, config, output, version};

/// What owners of this command's kind are called.
const NAME: &str = "reshard@";
/// Time to live of its leases: so long relays, and another run, wait after it was killed.
const TTL: Duration = Duration::from_secs(20);
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// An instance that has said something since counts as alive.
const ALIVE: Duration = Duration::from_secs(30);
/// Lanes and pauses that a refusal names at most.
const MOST_NAMED: usize = 5;

/// Changes the number of shards.
///
/// # Errors
/// Relays run, or something is not settled; the database's, or the configuration's.
pub async fn run(a: &Reshard, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let me = format!("{NAME}{}", owner(config.relay.instance.as_deref()));
    let result = Box::pin(change(&store, &me, a.shards)).await;
    store.close().await;
    let changed = result.map_err(|f| of_outbox(f, outbox))?;
    show(outbox, changed.as_ref(), a.shards, json)?;
    Ok(Exit::Fine)
}

/// None: there are so many already.
async fn change(store: &Arc<dyn Store>, me: &str, shards: u16) -> Result<Option<Resharded>, Failure> {
    if store.kind() == DatabaseKind::Sqlite {
        let what = "SQLite has one shard: writers are serial in it, more shards gain nothing";
        return Err(StoreError::new(StoreErrorKind::Configuration, what).into());
    }
    let begun = match store.inspect().await {
        Ok(info) if info.shards == shards => return Ok(None),
        Ok(_) => false,
        Err(e) if e.kind == StoreErrorKind::Resharding => true, // an earlier run was broken off: this one goes on with it
        Err(e) => return Err(e.into()),
    };
    let held = Leases::take(store, me).await?;
    let renewing = held.renewing();
    let result = async {
        settled(store, begun).await?;
        store.reshard(me, shards).await.map_err(Failure::from)
    }
    .await;
    renewing.abort();
    held.release().await;
    result.map(Some)
}

/// All leases of an outbox, under this process's name.
struct Leases {
    store: Arc<dyn Store>,
    me: String,
    of: Vec<(ShardId, Epoch)>,
}

impl Leases {
    /// # Errors
    /// Somebody else owns one, or a relay is alive that could.
    async fn take(store: &Arc<dyn Store>, me: &str) -> Result<Self, Failure> {
        // One that was killed can do nothing about the leases that it has left behind.
        let until = Instant::now() + TTL + RENEW_EVERY;
        let shards: Vec<ShardId> = store.status().await?.iter().map(|s| s.shard).collect();
        loop {
            let report = store.lease_round(&LeaseRound { acquire: shards.clone(), ..round(me) }).await?;
            let mine = report.leases.iter().filter(|l| l.owner.as_deref() == Some(me));
            let held = Self { store: store.clone(), me: me.to_owned(), of: mine.map(|l| (l.shard, l.epoch)).collect() };
            let other = report.leases.iter().filter(|l| !l.expired).find_map(|l| l.owner.clone().filter(|o| o != me));
            let alive = |i: &outhaul_store::InstanceStatus| {
                !i.owner.starts_with(NAME) && u128::from(i.heartbeat_ms) < ALIVE.as_millis()
            };
            let relay = store.instances().await?.into_iter().find(alive);
            let what = match (other, relay) {
                (None, None) if held.of.len() == report.leases.len() => return Ok(held),
                (Some(owner), _) if owner.starts_with(NAME) && Instant::now() < until => {
                    held.release().await;
                    tokio::time::sleep(Duration::from_secs(1)).await; // there is no signal for a lease that runs out
                    continue;
                }
                (_, Some(i)) => format!(
                    "relay {} said something {} s ago (one that was killed counts for {} s)",
                    i.owner,
                    i.heartbeat_ms / 1_000,
                    ALIVE.as_secs()
                ),
                (Some(owner), None) => format!("{owner} owns a shard"),
                (None, None) => "not every shard could be taken".into(),
            };
            held.release().await;
            return Err(Failure::new(&codes::RELAYS_RUN, what));
        }
    }

    /// Renews them until it is aborted.
    fn renewing(&self) -> tokio::task::JoinHandle<()> {
        let (store, renew, me) = (self.store.clone(), self.of.clone(), self.me.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RENEW_EVERY).await;
                // What holds on to them ends the change by itself.
                _ = store.lease_round(&LeaseRound { renew: renew.clone(), ..round(&me) }).await;
            }
        })
    }

    /// They run out by themselves where this fails.
    async fn release(self) {
        let round = LeaseRound { release: self.of.clone(), leave: true, ..round(&self.me) };
        if let Err(e) = self.store.lease_round(&round).await {
            eprintln!("the leases could not be released, and run out within {} s: {e}", TTL.as_secs());
        }
    }
}

/// A round that only says that this process is there, as one that takes no part in the sharing of shards.
fn round(me: &str) -> LeaseRound {
    LeaseRound {
        owner: me.to_owned(),
        version: version::SHORT.to_owned(),
        draining: true,
        ttl_ms: u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX),
        renew: vec![],
        release: vec![],
        acquire: vec![],
        leave: false,
        troubles: vec![],
        config: String::new(),
    }
}

/// Whether nothing is left to be delivered of what has left the outbox table, and nothing would treat shards unlike each
/// other. Acts and pauses that have come since the change has `begun` are not in the way: relays, which alone could end
/// them, refuse until it has come to its end.
async fn settled(store: &Arc<dyn Store>, begun: bool) -> Result<(), Failure> {
    let status = store.status().await?;
    let mut left = vec![];
    for s in &status {
        for (lane, _) in &s.lanes.lanes {
            if lane.cursor.min(lane.proven) < s.log_end {
                let behind = s.log_end.0 - lane.cursor.min(lane.proven).0;
                left.push(format!(
                    "shard {} has {behind} messages that are not settled for {}",
                    s.shard, lane.destination
                ));
            }
        }
        for (destination, retrying, waiting, dead) in &s.parked {
            left.push(format!("shard {} has {} parked messages of {destination}", s.shard, retrying + waiting + dead));
        }
    }
    if !begun {
        let shards: Vec<ShardId> = status.iter().map(|s| s.shard).collect();
        let acts: BTreeSet<_> = store.open_acts(&shards).await?.into_iter().map(|act| act.number).collect();
        left.extend(acts.into_iter().map(|number| format!("act {number} is open")));
        let pauses: BTreeSet<_> = store.pauses().await?.into_iter().map(|pause| pause.destination).collect();
        left.extend(pauses.into_iter().map(|d| format!("{} is paused", d.as_deref().unwrap_or("a shard"))));
    }
    if left.is_empty() {
        return Ok(());
    }
    let more = left.len().saturating_sub(MOST_NAMED);
    left.truncate(MOST_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(Failure::new(&codes::NOT_SETTLED, format!("{}{more}", left.join("; "))))
}

fn show(outbox: &Outbox, changed: Option<&Resharded>, shards: u16, json: bool) -> Result<(), Failure> {
    let name = &outbox.name;
    if let Some(why) = changed.and_then(|c| c.unguarded.as_ref()) {
        eprintln!("no CHECK keeps an application from naming a shard that there is not: {why}");
    }
    if json {
        let (before, moved) = changed.map_or((shards, Some(0)), |c| (c.before, c.moved));
        return output::json(&json!({ "outbox": name, "before": before, "shards": shards, "moved_rows": moved }));
    }
    match changed {
        None => output::line(format_args!("{name}: there are {shards} shards already")),
        Some(c) => {
            output::line(format_args!("{name}: {shards} shards in place of {}; relays may be started", c.before))
        }
    }
}
