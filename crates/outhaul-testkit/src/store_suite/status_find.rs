//! `status`, `find` and `enqueue`: what people look at and put in by hand.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::chunk;
use outhaul_core::message::{Epoch, Position, ShardId, parse_headers};
use outhaul_core::parked::{ParkedEntry, ParkedState, ParkedWrite};
use outhaul_store::{Found, InitPlan, NewRow, PayloadType, ShardStatus};

use super::fixture::{AppRow, Fixture, lane};
use crate::servers::Flavour;

async fn status(f: &Fixture) -> Vec<ShardStatus> {
    let status = f.store.status().await.expect("status");
    assert_eq!(status.iter().map(|s| s.shard).collect::<Vec<_>>(), f.shards());
    status
}

/// A fresh database has nothing to show but its shards.
pub async fn status_of_nothing(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for shard in status(&f).await {
        assert_eq!((shard.owner, shard.epoch, shard.hot_rows, shard.oldest_hot_ms), (None, Epoch(0), 0, None));
        assert!(shard.log_end == Position(0) && shard.lanes.lanes.is_empty() && shard.oldest_unsent_ms.is_empty());
        assert!(shard.parked.is_empty() && shard.last_errors.is_empty());
    }
}

/// Owners, hot rows and their age, log ends and lanes, shard by shard.
pub async fn status_of_a_shard_at_work(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..40).await;
    owner.move_all(&f).await;
    f.insert_series(40..100).await;
    let rows = f.read_all().await;
    for shard in status(&f).await {
        let hot = rows.iter().filter(|row| row.shard == shard.shard).count() as u64;
        assert_eq!((shard.owner.as_deref(), shard.epoch), (Some("one"), Epoch(1)));
        assert_eq!((shard.hot_rows, shard.oldest_hot_ms.is_some()), (hot, hot > 0));
        assert!(shard.oldest_hot_ms.is_none_or(|ms| ms < 60_000), "{:?} ms", shard.oldest_hot_ms);
        let recovery = f.store.recover(shard.shard).await.expect("recover");
        assert_eq!((shard.log_end, shard.lanes), (recovery.log_end, recovery.lanes));
    }
}

/// Lanes that lag show the age of what they have not sent; parked rows are counted by state; errors by destination.
pub async fn status_of_lagging_lanes(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..9).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    part.receipts.lanes.push((lane("b", Position(4)), vec![]));
    let park = |n: usize, destination: &str, state: ParkedState| {
        let message = Arc::clone(&part.moved[n]);
        let entry = ParkedEntry {
            destination: destination.into(),
            shard: ShardId(0),
            position: message.position,
            key: message.key.clone(),
            state,
            attempts: 1,
            due_at_us: 0,
            error_code: "OUT-2001".into(),
            error_text: if state == ParkedState::Waiting { String::new() } else { format!("error {n}") },
            first_failed_at_us: 0,
            last_failed_at_us: n as i64,
        };
        ParkedWrite::Insert { entry, message }
    };
    part.parked = vec![
        park(0, "a", ParkedState::Dead),
        park(2, "a", ParkedState::Retrying),
        park(1, "a", ParkedState::Dead),
        park(3, "a", ParkedState::Waiting),
        park(0, "b", ParkedState::Waiting),
    ];
    owner.write(f.store.as_ref(), vec![part]).await;
    let shard = status(&f).await.remove(0);
    let lagging: Vec<&str> = shard.oldest_unsent_ms.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(lagging, ["b"], "a has nothing left to send");
    assert!(shard.oldest_unsent_ms[0].1 < 60_000);
    let mut parked = shard.parked;
    parked.sort();
    assert_eq!(parked, [("a".into(), 1, 1, 2), ("b".into(), 0, 1, 0)]);
    assert_eq!(shard.last_errors, [("a".into(), "error 2".into())]);
}

/// An expired lease has no owner to show.
pub async fn status_of_an_expired_lease(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let round = outhaul_store::LeaseRound { acquire: f.shards(), ttl_ms: 1, ..f.round("one") };
    f.store.lease_round(&round).await.expect("lease_round");
    super::fixture::until("the lease expires", async || status(&f).await[0].owner.is_none()).await;
    assert_eq!(status(&f).await[0].epoch, Epoch(1));
}

/// Ids are found where they are, with and without a hint of the time, and nowhere else.
pub async fn ids_are_found(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut owner = f.owner("one").await;
    for round in 0..5u64 {
        f.insert_series(round * 20..round * 20 + 20).await;
        owner.move_all(&f).await;
    }
    f.insert_series(100..103).await;
    let hour = 3_600_000_000;
    for id in ["m0", "m37", "m99", "m101"] {
        let (shards, hot) = where_is(&f, id, None).await;
        let (in_log, in_hot) = (usize::from(id != "m101"), usize::from(id == "m101"));
        assert_eq!((shards.len(), hot), (in_log, in_hot), "{id}");
        if let Some(created_at_us) = shards.first() {
            let near = Some((created_at_us - hour, created_at_us + hour));
            assert_eq!(where_is(&f, id, near).await.0.len(), 1);
            assert_eq!(where_is(&f, id, Some((*created_at_us, *created_at_us))).await.0.len(), 1);
            assert!(where_is(&f, id, Some((created_at_us - 2 * hour, created_at_us - hour))).await.0.is_empty());
            assert!(where_is(&f, id, Some((created_at_us + hour, created_at_us + 2 * hour))).await.0.is_empty());
        }
    }
    for id in ["m103", "M0", "m0 ", ""] {
        assert_eq!(where_is(&f, id, None).await, (vec![], 0), "{id:?}");
    }
}

/// `created_at` of each logged message with this id, and the number of hot rows with it.
async fn where_is(f: &Fixture, id: &str, hint: Option<(i64, i64)>) -> (Vec<i64>, usize) {
    let (mut logged, mut hot) = (Vec::new(), 0);
    for found in f.store.find(id, hint).await.expect("find") {
        match found {
            Found::Hot { row, .. } => {
                assert_eq!(row.id, id);
                hot += 1;
            }
            Found::Status { .. } => panic!("there is no status table"),
            Found::Logged { chunk: c } => {
                let messages = chunk::decode(c.codec, &c.bytes, c.shard, c.base, &[]).expect("a chunk");
                logged.extend(messages.into_iter().filter(|m| m.id == id).map(|m| m.created_at_us));
            }
        }
    }
    (logged, hot)
}

/// Rows are enqueued in order, as given; ids are returned, the database's own among them.
pub async fn rows_are_enqueued(flavour: Flavour) {
    for payload in [PayloadType::Bytes, PayloadType::Text, PayloadType::Json] {
        let f = Fixture::with(flavour, InitPlan { payload, ..InitPlan::default() }, |_| {}).await;
        let new: Vec<NewRow> = (0..300)
            .map(|n| NewRow {
                id: (n % 3 != 0).then(|| format!("it's-{n}")),
                topic: format!("t{n}"),
                key: (n % 2 == 0).then(|| format!("k{n}")),
                headers: (n % 5 == 0).then(|| r#"{"h":"1"}"#.to_owned()),
                payload: format!("{{\"n\": {n}}}").into(),
                available_at_us: None,
                ..NewRow::default()
            })
            .collect();
        let ids = f.store.enqueue(&new).await.expect("enqueue");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 300);
        let rows = f.read_all().await;
        assert_eq!(rows.iter().map(|r| &r.id).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
        for ((row, new), id) in rows.iter().zip(&new).zip(&ids) {
            assert!(new.id.as_ref().is_none_or(|wanted| wanted == id));
            assert_eq!((&row.topic, &row.key), (&new.topic, &new.key));
            let pairs = |headers: &Option<String>| headers.as_deref().map(|h| parse_headers(h).expect("headers"));
            assert_eq!(pairs(&row.headers), pairs(&new.headers));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(' ', "");
            assert_eq!(text(&row.payload), text(&new.payload));
        }
        assert!(f.store.enqueue(&[]).await.expect("enqueue").is_empty());
    }
}

/// One row that the table refuses keeps out all rows of its call.
pub async fn enqueueing_is_all_or_nothing(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let row = |id: String| NewRow { id: Some(id), topic: "t".into(), ..NewRow::default() };
    f.store.enqueue(&[row("good".into()), row("x".repeat(65))]).await.expect_err("an id of 65 characters");
    assert!(f.hot().await.is_empty());
    f.store.enqueue(&[row("x".repeat(64))]).await.expect("an id of 64 characters");
    f.insert(&[AppRow::nth(1)]).await;
    assert_eq!(f.hot_ids().await, ["x".repeat(64), "m1".into()]);
}
