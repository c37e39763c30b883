//! Lease rounds: one owner a shard, by the database's clock.

use std::sync::Arc;

use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, ShardId};
use outhaul_core::trouble::Trouble;
use outhaul_store::{LeaseRound, Store};

use super::fixture::{Fixture, until};
use crate::servers::Flavour;

async fn run(f: &Fixture, round: LeaseRound) -> LeaseReport {
    let report = f.store.lease_round(&round).await.expect("lease_round");
    let shards: Vec<ShardId> = report.leases.iter().map(|l| l.shard).collect();
    assert_eq!(shards, f.shards(), "every shard once, and the lease of maintenance is nobody's business");
    report
}

async fn acquire(f: &Fixture, owner: &str, ttl_ms: u64) -> LeaseReport {
    run(f, LeaseRound { acquire: f.shards(), ttl_ms, ..f.round(owner) }).await
}

async fn look(f: &Fixture, owner: &str) -> LeaseReport {
    run(f, f.round(owner)).await
}

fn all_are(report: &LeaseReport, owner: Option<&str>, epoch: u64) -> bool {
    report.leases.iter().all(|l| l.owner.as_deref() == owner && l.epoch == Epoch(epoch))
}

/// Free shards are acquired with epoch 1, and then are nobody else's; acquiring again does not raise the epoch.
pub async fn a_shard_has_one_owner(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let fresh = look(&f, "one").await;
    assert!(all_are(&fresh, None, 0), "{fresh:?}");
    let report = acquire(&f, "one", 600_000).await;
    assert!(all_are(&report, Some("one"), 1) && report.leases.iter().all(|l| !l.expired), "{report:?}");
    assert!(all_are(&acquire(&f, "two", 600_000).await, Some("one"), 1));
    assert!(all_are(&acquire(&f, "one", 600_000).await, Some("one"), 1));
}

/// A lease is stolen once it has run out, by whoever asks first; the epoch grows by one each time.
pub async fn an_expired_lease_is_stolen(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    acquire(&f, "one", 1).await;
    until("the lease is stolen", async || all_are(&acquire(&f, "two", 600_000).await, Some("two"), 2)).await;
    assert!(all_are(&acquire(&f, "one", 600_000).await, Some("two"), 2));
    // An owner whose own lease ran out gets it back under a new epoch.
    let g = Fixture::sharded(flavour).await;
    acquire(&g, "one", 1).await;
    until("the lease is taken again", async || all_are(&acquire(&g, "one", 600_000).await, Some("one"), 2)).await;
}

/// Renewing works where owner and epoch are still these, expired or not, and nowhere else.
pub async fn only_the_owner_renews(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    acquire(&f, "one", 1).await;
    until("the leases expire", async || look(&f, "two").await.leases.iter().all(|l| l.expired)).await;
    let renew = |owner: &str, epoch: u64| {
        let renew = f.shards().into_iter().map(|shard| (shard, Epoch(epoch))).collect();
        LeaseRound { renew, ..f.round(owner) }
    };
    for (owner, epoch) in [("two", 1), ("one", 2), ("one", 0), ("ONE", 1)] {
        let report = run(&f, renew(owner, epoch)).await;
        assert!(all_are(&report, Some("one"), 1) && report.leases.iter().all(|l| l.expired), "{owner} {epoch}");
    }
    let report = run(&f, renew("one", 1)).await;
    assert!(all_are(&report, Some("one"), 1) && report.leases.iter().all(|l| !l.expired));
}

/// Releasing works where owner and epoch are still these; the shard is free at once, and its epoch stays.
pub async fn only_the_owner_releases(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    acquire(&f, "one", 600_000).await;
    let release = |owner: &str, epoch: u64| {
        let release = f.shards().into_iter().map(|shard| (shard, Epoch(epoch))).collect();
        LeaseRound { release, ..f.round(owner) }
    };
    for (owner, epoch) in [("two", 1), ("one", 2), ("ONE", 1)] {
        assert!(all_are(&run(&f, release(owner, epoch)).await, Some("one"), 1), "{owner} {epoch}");
    }
    assert!(all_are(&run(&f, release("one", 1)).await, None, 1));
    assert!(all_are(&acquire(&f, "two", 600_000).await, Some("two"), 2));
}

/// One round does all its parts in order, each for its own shards.
pub async fn a_round_has_several_parts(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let shards = f.shards();
    if shards.len() < 3 {
        return;
    }
    run(&f, LeaseRound { acquire: shards[..2].to_vec(), ..f.round("one") }).await;
    let (epoch, all) = (Epoch(1), f.round("one"));
    let round = LeaseRound {
        renew: vec![(shards[0], epoch)],
        release: vec![(shards[1], epoch)],
        acquire: vec![shards[2]],
        ..all
    };
    let report = run(&f, round).await;
    let row = |n: usize, owner: Option<&str>, epoch: u64| LeaseRow {
        shard: shards[n],
        owner: owner.map(str::to_owned),
        epoch: Epoch(epoch),
        expired: report.leases[n].expired,
    };
    assert_eq!(report.leases[..3], [row(0, Some("one"), 1), row(1, None, 1), row(2, Some("one"), 1)]);
    assert!(!report.leases[0].expired && !report.leases[2].expired);
    // Shards that do not exist are not made.
    run(&f, LeaseRound { acquire: vec![ShardId(999)], renew: vec![(ShardId(998), epoch)], ..f.round("one") }).await;
}

/// Instances show while they are alive: draining ones as such, those that left or fell silent not at all.
pub async fn instances_come_and_go(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let row = |owner: &str, draining: bool| InstanceRow {
        owner: owner.into(),
        draining,
        config: if draining { "00c0ffee00c0ffee".into() } else { String::new() },
    };
    assert_eq!(look(&f, "one").await.instances, [row("one", false)]);
    let (version, config) = ("1.2.3".into(), "00c0ffee00c0ffee".into());
    run(&f, LeaseRound { draining: true, version, config, ..f.round("two") }).await;
    assert_eq!(f.store.instances().await.expect("the instances")[1].config, "00c0ffee00c0ffee");
    let mut instances = look(&f, "one").await.instances;
    instances.sort_by(|a, b| a.owner.cmp(&b.owner));
    assert_eq!(instances, [row("one", false), row("two", true)]);
    let left = run(&f, LeaseRound { leave: true, ..f.round("two") }).await;
    assert_eq!(left.instances, [row("one", false)]);
    // One that falls silent is out of the report once its heartbeat is older than the ttl.
    look(&f, "three").await;
    let quick = || LeaseRound { ttl_ms: 1, ..f.round("one") };
    until("three is forgotten", async || run(&f, quick()).await.instances.iter().all(|i| i.owner != "three")).await;
}

/// What keeps an instance from delivering is shown with its last heartbeat, as long as it is so.
pub async fn instances_tell_their_troubles(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let trouble = Trouble {
        destination: "mq".into(),
        shards: vec![ShardId(0)],
        since_us: 1_796_000_000_000_000,
        code: "OUT-2030".into(),
        text: "no route to 'a\\b' \u{1f4a5}".into(),
    };
    let troubles = vec![trouble.clone(), Trouble { destination: "points".into(), ..trouble }];
    run(&f, LeaseRound { draining: true, version: "1.2.3".into(), ..f.round("two") }).await;
    run(&f, LeaseRound { troubles: troubles.clone(), ..f.round("one") }).await;
    let seen = f.store.instances().await.expect("the instances");
    assert_eq!(seen.iter().map(|i| i.owner.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!((&seen[0].troubles, seen[0].draining), (&troubles, false));
    assert_eq!((seen[1].troubles.len(), seen[1].draining, seen[1].version.as_str()), (0, true, "1.2.3"));
    assert!(seen.iter().all(|i| i.heartbeat_ms < 60_000), "{seen:?}");
    look(&f, "one").await;
    let seen = f.store.instances().await.expect("the instances");
    assert_eq!(seen[0].troubles, []);
    until("the heartbeat is older", async || f.store.instances().await.expect("the instances")[1].heartbeat_ms > 20)
        .await;
}

/// What a destination remembers is there for the next process.
pub async fn destinations_remember(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let store = &f.store;
    assert_eq!(store.memory("mq").await.expect("nothing yet"), None);
    let long = "{\"topics\": \"'\\\\ \u{1f4a5}\"}".repeat(3_000);
    for (name, text) in [("mq", "one"), ("MQ", "another"), ("mq", long.as_str()), ("mq", long.as_str())] {
        store.keep_memory(name, text).await.expect("it is kept");
        assert_eq!(f.another_store().await.memory(name).await.expect("it is there").as_deref(), Some(text));
    }
    assert_eq!(store.memory("MQ").await.expect("it is there").as_deref(), Some("another"));
    store.inspect().await.expect("the rest of the table is as it was");
}

/// A turn is one process's until it runs out or is given back; taking it again keeps it.
pub async fn turns_are_one_process(flavour: Flavour) {
    const LONG: u64 = 3_600_000;
    let f = Fixture::new(flavour).await;
    let (store, other) = (&f.store, f.another_store().await);
    let turn = async |store: &Arc<dyn Store>, name: &str, owner: &str, ttl_ms: u64| {
        store.turn(name, owner, ttl_ms).await.expect("an answer")
    };
    assert_eq!(turn(store, "a", "one's 1", LONG).await, None);
    assert_eq!(turn(&other, "a", "two 2", LONG).await.as_deref(), Some("one's 1"), "it has it");
    assert_eq!(turn(&other, "A", "two 2", LONG).await, None, "this is another one");
    assert_eq!(turn(&other, "a", "ONE'S 1", LONG).await.as_deref(), Some("one's 1"), "names are told apart exactly");
    assert_eq!(turn(&other, "a", "two 2", 0).await.as_deref(), Some("one's 1"), "nobody else gives it back");
    assert_eq!(turn(store, "a", "one's 1", LONG).await, None, "kept");
    assert_eq!(turn(store, "a", "one's 1", 0).await, None, "given back");
    assert_eq!(turn(&other, "a", "two 2", 50).await, None);
    until("it has run out", async || turn(store, "a", "one's 1", LONG).await.is_none()).await;
    assert_eq!(turn(&other, "a", "two 2", 50).await.as_deref(), Some("one's 1"));
    // Of many at the same moment, one gets it.
    let f = Arc::new(f);
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..6 {
        let f = Arc::clone(&f);
        asking.spawn(async move {
            let store = f.another_store().await;
            store.turn("many", &format!("owner {n}"), LONG).await.expect("an answer")
        });
    }
    let answers = asking.join_all().await;
    assert_eq!(answers.iter().filter(|holder| holder.is_none()).count(), 1, "{answers:?}");
    f.store.inspect().await.expect("the rest of the table is as it was");
}

/// Of many that ask at the same moment, one gets each shard.
pub async fn many_ask_at_once(flavour: Flavour) {
    let f = Arc::new(Fixture::sharded(flavour).await);
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..6 {
        let f = Arc::clone(&f);
        asking.spawn(async move {
            let (store, owner) = (f.another_store().await, format!("owner-{n}"));
            let round = LeaseRound { acquire: f.shards(), ..f.round(&owner) };
            // A deadlock or a lock that was not had in time costs a round, no more.
            let mut report = store.lease_round(&round).await;
            for _ in 0..20 {
                match &report {
                    Err(error) if error.kind.passes() => report = store.lease_round(&round).await,
                    _ => break,
                }
            }
            store.close().await;
            report.expect("lease_round")
        });
    }
    let reports = asking.join_all().await;
    let last = look(&f, "one").await;
    assert!(last.leases.iter().all(|l| l.epoch == Epoch(1) && l.owner.is_some()), "{last:?}");
    for lease in reports.iter().flat_map(|r| &r.leases).filter(|l| l.owner.is_some()) {
        assert!(last.leases.contains(lease), "{lease:?} was true for a moment");
    }
}
