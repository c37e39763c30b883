//! Who may write, and what became of a checkpoint whose answer was lost.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::message::{Epoch, ShardId};
use outhaul_store::{LeaseRound, Store, StoreErrorKind, StoreOptions};

use super::fixture::{Fixture, Owner, until};
use crate::proxy::{Fate, Proxy};
use crate::servers::Flavour;

async fn expect_fenced(f: &Fixture, checkpoint: &Checkpoint) {
    let (hot, receipts) = (f.hot_ids().await, f.count("outbox_receipt").await);
    assert_eq!(f.store.checkpoint(checkpoint).await.expect("checkpoint"), [ShardOutcome::Fenced]);
    assert_eq!((f.hot_ids().await, f.count("outbox_receipt").await), (hot, receipts));
    assert_eq!(f.store.checkpoint_applied(checkpoint).await.expect("applied"), [Some(ShardOutcome::Fenced)]);
}

/// D3: without the lease, nothing is written: another epoch, another owner, a lease that was given back, no lease ever.
pub async fn only_the_owner_writes(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..3).await;
    let rows = f.read_all().await;
    let one = f.owner("one").await;
    let good = one.checkpoint(vec![one.part(ShardId(0), &rows)]);
    let mut other_epoch = good.clone();
    for epoch in [0, one.epochs[&ShardId(0)].0 + 1] {
        other_epoch.shards[0].epoch = Epoch(epoch);
        expect_fenced(&f, &other_epoch).await;
    }
    for owner in ["two", "ONE", "one ", ""] {
        expect_fenced(&f, &Checkpoint { owner: owner.into(), ..good.clone() }).await;
    }
    let release = LeaseRound { release: vec![(ShardId(0), one.epochs[&ShardId(0)])], ..f.round("one") };
    f.store.lease_round(&release).await.expect("release");
    expect_fenced(&f, &good).await;
    let mut two = f.owner("two").await;
    expect_fenced(&f, &good).await;
    two.move_rows(f.store.as_ref(), &rows).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m2"]);
}

/// A lease that ran out, and that nobody took, still covers a checkpoint: the epoch is what fences.
pub async fn an_expired_lease_that_nobody_took_covers(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..3).await;
    let acquire = LeaseRound { acquire: f.shards(), ttl_ms: 1, ..f.round("one") };
    let report = f.store.lease_round(&acquire).await.expect("acquire");
    let epoch = report.leases[0].epoch;
    until("the lease expires", async || f.store.lease_round(&f.round("two")).await.expect("round").leases[0].expired)
        .await;
    let mut owner = Owner::of("one", [(ShardId(0), epoch)]);
    owner.recover(f.store.as_ref()).await;
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
}

/// Asked of a checkpoint: applied, not applied, or fenced by another epoch since.
pub async fn what_became_of_a_checkpoint(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..20).await;
    let rows = f.read_all().await;
    let mut one = f.owner("one").await;
    let parts: Vec<_> = f.shards().iter().map(|shard| one.part(*shard, &rows)).collect();
    let checkpoint = one.checkpoint(parts.clone());
    let nobody_knows = vec![None; parts.len()];
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect("applied"), nobody_knows);
    one.write(f.store.as_ref(), parts).await;
    let written = vec![Some(ShardOutcome::Written); checkpoint.shards.len()];
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect("applied"), written);
    // The next one, which was never sent, by an owner that loses its shards.
    let next = one.checkpoint(f.shards().iter().map(|shard| one.part(*shard, &[])).collect());
    assert_eq!(f.store.checkpoint_applied(&next).await.expect("applied"), nobody_knows);
    let release = one.epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    f.store.lease_round(&LeaseRound { release, ..f.round("one") }).await.expect("release");
    let mut two = f.owner("two").await;
    let fenced = vec![Some(ShardOutcome::Fenced); next.shards.len()];
    assert_eq!(f.store.checkpoint_applied(&next).await.expect("applied"), fenced);
    two.move_rows(f.store.as_ref(), &[]).await;
    assert_eq!(f.store.checkpoint_applied(&next).await.expect("applied"), fenced, "the number alone is not enough");
}

/// While another transaction holds the lease row, neither a checkpoint nor the question about one goes past it; both
/// give up within their limits, and nothing is written.
pub async fn the_lease_row_is_locked_first(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..3).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &rows)]);
    let mut session = f.database.session().await;
    session.execute("BEGIN; UPDATE outbox_lease SET expires_at = expires_at WHERE shard = 0").await;
    if flavour != Flavour::Sqlite {
        session.query("SELECT epoch FROM outbox_lease WHERE shard = 0 FOR UPDATE").await;
    }
    let refused = f.store.checkpoint(&checkpoint).await.expect_err("the lease row is locked");
    assert_eq!(refused.kind, StoreErrorKind::Timeout, "{refused}");
    let refused = f.store.checkpoint_applied(&checkpoint).await.expect_err("the lease row is locked");
    assert_eq!(refused.kind, StoreErrorKind::Timeout, "{refused}");
    session.execute("COMMIT").await;
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect("applied"), [None]);
    owner.move_rows(f.store.as_ref(), &rows).await;
}

/// A COMMIT whose answer is lost is CommitUnknown, and the question brings out the truth, whether the server saw the
/// COMMIT or not. For servers; SQLite has no way between.
pub async fn a_lost_answer_to_commit_is_found_out(flavour: Flavour) {
    if flavour == Flavour::Sqlite {
        return;
    }
    for fate in [Fate::RequestLost, Fate::AnswerLost] {
        let f = Fixture::sharded(flavour).await;
        let proxy = Proxy::start(f.database.address()).await;
        let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
        let store = outhaul_store::open(options).await.expect("open");
        f.insert_series(0..20).await;
        let rows = f.read_all().await;
        let mut owner = f.owner("one").await;
        owner.move_rows(store.as_ref(), &[]).await; // all connections are made
        let checkpoint = owner.checkpoint(f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect());
        let trap = proxy.trap(flavour.commit_bytes(), fate);
        let error = store.checkpoint(&checkpoint).await.expect_err("the answer is lost");
        assert_eq!(error.kind, StoreErrorKind::CommitUnknown, "{error}");
        trap.finished().await;
        let applied = store.checkpoint_applied(&checkpoint).await.expect("applied");
        let truth = (fate == Fate::AnswerLost).then_some(ShardOutcome::Written);
        assert_eq!(applied, vec![truth; checkpoint.shards.len()], "{fate:?}");
        if truth.is_none() {
            owner.move_rows(store.as_ref(), &rows).await;
        }
        assert!(f.hot().await.is_empty());
        assert_eq!(logged(&f).await, 20);
        store.close().await;
    }
}

/// A connection that is lost before the COMMIT has written nothing, and the next call makes a new one.
pub async fn a_lost_connection_is_made_anew(flavour: Flavour) {
    if flavour == Flavour::Sqlite {
        return;
    }
    let f = Fixture::sharded(flavour).await;
    let proxy = Proxy::start(f.database.address()).await;
    let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
    let store = outhaul_store::open(options).await.expect("open");
    let mut owner = f.owner("one").await;
    for round in 0..3u64 {
        f.insert_series(round * 10..round * 10 + 10).await;
        let rows = store.read(&f.everything()).await.expect("read").rows;
        owner.move_rows(store.as_ref(), &rows).await;
        store.lease_round(&f.round("one")).await.expect("round");
        store.status().await.expect("status");
        proxy.cut_all().await;
        // Each connection notices by itself: a call may fail once, never twice.
        for turn in 0..2 {
            let results = [
                store.read(&f.everything()).await.map(drop),
                store.checkpoint_applied(&owner.checkpoint(vec![owner.part(ShardId(0), &[])])).await.map(drop),
                store.lease_round(&f.round("one")).await.map(drop),
                store.status().await.map(drop),
            ];
            for error in results.into_iter().filter_map(Result::err) {
                assert!(turn == 0 && error.kind == StoreErrorKind::Unavailable, "{error}");
            }
        }
    }
    proxy.refuse().await;
    proxy.cut_all().await;
    store.read(&f.everything()).await.expect_err("the server is away");
    let error = store.read(&f.everything()).await.expect_err("the server is away");
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    proxy.accept().await;
    store.read(&f.everything()).await.expect("the server is back");
    assert_eq!(logged(&f).await, 30);
    store.close().await;
}

async fn logged(f: &Fixture) -> usize {
    let mut logged = 0;
    for shard in f.shards() {
        logged += f.log(shard).await.len();
    }
    logged
}

/// Calls may be dropped at any await: what follows still works, and every row is moved exactly once.
pub async fn a_dropped_call_does_no_harm(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    let store: &dyn Store = f.store.as_ref();
    for round in 0..25u64 {
        f.insert_series(round * 4..round * 4 + 4).await;
        drop_after(round as usize % 9, store.read(&f.everything())).await;
        drop_after(round as usize % 5, store.lease_round(&f.round("one"))).await;
        let rows = f.read_all().await;
        let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &rows)]);
        drop_after(round as usize, store.checkpoint(&checkpoint)).await;
        // As an owner does that lost an answer: ask, and try again what was not applied.
        if store.checkpoint_applied(&checkpoint).await.expect("applied") == [None] {
            let outcome = store.checkpoint(&checkpoint).await.expect("checkpoint");
            assert!(outcome == [ShardOutcome::Written] || outcome == [ShardOutcome::Mismatch], "{outcome:?}");
        }
        owner.recover(store).await;
    }
    owner.move_all(&f).await;
    let wanted: Vec<String> = (0..100).map(|n| format!("m{n}")).collect();
    assert_eq!(f.log_ids(ShardId(0)).await, wanted);
}

/// Drops a call after so many polls, if it has not ended before.
async fn drop_after<T>(polls: usize, call: impl Future<Output = T>) {
    let mut call = pin!(call);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 || call.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        Poll::Pending
    })
    .await;
}

/// A closed store says so, at once, for every kind of call.
pub async fn a_closed_store_says_so(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let owner = f.owner("one").await;
    f.store.close().await;
    f.store.close().await;
    let results = [
        f.store.read(&f.everything()).await.map(drop),
        f.store.checkpoint(&owner.checkpoint(vec![owner.part(ShardId(0), &[])])).await.map(drop),
        f.store.lease_round(&f.round("one")).await.map(drop),
        f.store.status().await.map(drop),
        f.store.recover(ShardId(0)).await.map(drop),
    ];
    assert!(results.iter().all(Result::is_err));
    // Another store on the same database does not notice.
    f.another_store().await.recover(ShardId(0)).await.expect("recover");
}
