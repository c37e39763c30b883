//! Parked rows: written, changed and removed by checkpoints.

use std::sync::Arc;

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Defect, Epoch, Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState, ParkedWrite};
use outhaul_store::{InitPlan, PayloadType};

use super::fixture::{AppRow, Fixture, destinations};
use crate::servers::Flavour;

fn entry(message: &Message, destination: &str, state: ParkedState) -> ParkedEntry {
    let n = message.position.0 as i64;
    ParkedEntry {
        destination: destination.into(),
        shard: message.shard,
        position: message.position,
        key: message.key.clone(),
        state,
        attempts: 3,
        due_at_us: if state == ParkedState::Retrying { 1_700_000_000_000_001 + n } else { 0 },
        error_code: "OUT-2001".into(),
        error_text: format!("it's \u{e9} no. {n}"),
        first_failed_at_us: 1_600_000_000_000_002 + n,
        last_failed_at_us: 1_650_000_000_000_003 + n,
    }
}

fn insert(message: &Arc<Message>, destination: &str, state: ParkedState) -> ParkedWrite {
    ParkedWrite::Insert { entry: entry(message, destination, state), message: Arc::clone(message) }
}

/// Rows are parked with the checkpoint that moves them, found by shard, by position, and with their content.
pub async fn rows_are_parked_with_their_message(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..4).await;
    f.insert(&[AppRow::nth(4).with_key(None)]).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    let moved = part.moved.clone();
    part.parked = vec![
        insert(&moved[2], "b", ParkedState::Waiting),
        insert(&moved[0], "b", ParkedState::Retrying),
        insert(&moved[0], "a", ParkedState::Dead),
        insert(&moved[4], NO_ROUTE, ParkedState::Dead),
    ];
    owner.write(f.store.as_ref(), vec![part]).await;
    let wanted = [
        entry(&moved[4], NO_ROUTE, ParkedState::Dead),
        entry(&moved[0], "a", ParkedState::Dead),
        entry(&moved[0], "b", ParkedState::Retrying),
        entry(&moved[2], "b", ParkedState::Waiting),
    ];
    let recovered = f.store.recover(ShardId(0)).await.expect("recover").parked;
    let kept = wanted[1..].iter().map(|e| ParkedEntry { error_text: String::new(), ..e.clone() });
    assert!(recovered.iter().cloned().eq(kept), "no lane looks at what has no route: {recovered:?}");
    let parked_of = |n: u64| f.store.parked_of(ShardId(0), Position(n));
    assert_eq!(parked_of(0).await.expect("parked_of"), wanted[1..3]);
    assert_eq!(parked_of(4).await.expect("parked_of"), wanted[..1]);
    assert!(parked_of(1).await.expect("parked_of").is_empty());
    let asked = [4, 2, 1, 0].map(Position);
    let found = f.store.read_parked(ShardId(0), "b", &asked, &destinations()).await.expect("read_parked");
    assert_eq!(found.iter().map(|p| &p.entry).collect::<Vec<_>>(), [&wanted[2], &wanted[3]]);
    assert_eq!(found.iter().map(|p| &p.message).collect::<Vec<_>>(), [moved[0].as_ref(), moved[2].as_ref()]);
    assert!(f.store.read_parked(ShardId(0), "b", &[], &destinations()).await.expect("read_parked").is_empty());
    assert!(f.store.read_parked(ShardId(0), "B", &asked, &destinations()).await.expect("read_parked").is_empty());
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 5, "parked or not, a message is in the log");
}

/// A later checkpoint changes them, or removes them, one by one.
pub async fn parked_rows_change_and_go(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..4).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    let moved = part.moved.clone();
    part.parked = moved
        .iter()
        .flat_map(|m| [insert(m, "a", ParkedState::Waiting), insert(m, "b", ParkedState::Waiting)])
        .collect();
    owner.write(f.store.as_ref(), vec![part]).await;
    let changed = ParkedEntry {
        state: ParkedState::Retrying,
        attempts: u32::MAX,
        due_at_us: 42,
        error_code: "OUT-2001".into(),
        error_text: "x".repeat(2_000),
        first_failed_at_us: 1,
        last_failed_at_us: 2,
        ..entry(&moved[1], "a", ParkedState::Waiting)
    };
    let mut part = owner.part(ShardId(0), &[]);
    let remove = |destination: &str, n: u64| ParkedWrite::Remove {
        destination: destination.into(),
        shard: ShardId(0),
        position: Position(n),
    };
    part.parked = vec![
        ParkedWrite::Update(changed.clone()),
        // What went wrong stays where nothing is said of it.
        ParkedWrite::Update(ParkedEntry { error_code: String::new(), error_text: String::new(), ..changed.clone() }),
        remove("a", 0),
        remove("b", 0),
        remove("b", 3),
        // In order: what is put back after it was removed is there.
        insert(&moved[3], "b", ParkedState::Retrying),
        ParkedWrite::Update(ParkedEntry {
            error_code: String::new(),
            error_text: String::new(),
            ..entry(&moved[3], "b", ParkedState::Dead)
        }),
        remove("a", 2),
    ];
    owner.write(f.store.as_ref(), vec![part]).await;
    // Where it is shown; a lane does not need it.
    assert_eq!(f.store.parked_of(ShardId(0), Position(1)).await.expect("parked_of")[0], changed);
    let wanted = [
        changed,
        entry(&moved[3], "a", ParkedState::Waiting),
        entry(&moved[1], "b", ParkedState::Waiting),
        entry(&moved[2], "b", ParkedState::Waiting),
        entry(&moved[3], "b", ParkedState::Dead),
    ];
    let wanted = wanted.map(|e| ParkedEntry { error_text: String::new(), ..e });
    assert_eq!(f.store.recover(ShardId(0)).await.expect("recover").parked, wanted);
}

/// L5: a payload above the limit goes from table to table inside the server, whole, whatever its type.
pub async fn a_payload_above_the_limit_is_kept_inside_the_server(flavour: Flavour) {
    for payload in [PayloadType::Bytes, PayloadType::Text] {
        let plan = InitPlan { payload, shards: super::shards_of(flavour), ..InitPlan::default() };
        let f = Fixture::with(flavour, plan, |o| o.max_message_bytes = 1_000).await;
        let large = "0123456789".repeat(500_000);
        let literal = |text: &str| match payload {
            PayloadType::Text => format!("'{text}'"),
            _ => f.bytes_sql(text.as_bytes()),
        };
        for (id, text) in [("small", "s"), ("large", large.as_str()), ("last", "l")] {
            let values = format!("'{id}', 't', 'k', {}", literal(text));
            f.database.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ({values})")).await;
        }
        let rows = f.read_all().await;
        assert_eq!(rows[1].defect, Some(Defect::TooLarge { bytes: 5_000_000, limit: 1_000 }));
        let mut owner = f.owner("one").await;
        let mut part = owner.part(rows[0].shard, &rows);
        let moved = part.moved.clone();
        part.parked = vec![
            insert(&moved[0], "a", ParkedState::Waiting),
            insert(&moved[1], "a", ParkedState::Dead),
            insert(&moved[1], "b", ParkedState::Dead),
        ];
        let shard = part.shard;
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
        assert!(f.hot().await.is_empty());
        let sql =
            format!("SELECT count(*) FROM outbox_parked WHERE oversize_payload = {}", f.bytes_sql(large.as_bytes()));
        assert_eq!(f.database.query_u64(&sql).await, 2, "{payload:?}");
        assert_eq!(f.database.query_u64("SELECT count(*) FROM outbox_parked WHERE oversize_payload IS NULL").await, 1);
        let found = f.store.read_parked(shard, "a", &[Position(1)], &destinations()).await.expect("read_parked");
        assert_eq!((&found[0].message, found[0].message.payload.len()), (moved[1].as_ref(), 0));
    }
}

/// Many rows at once, and many asked for.
pub async fn many_parked_rows(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..2_000).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    let moved = part.moved.clone();
    part.parked = moved.iter().map(|m| insert(m, "a", ParkedState::Waiting)).collect();
    owner.write(f.store.as_ref(), vec![part]).await;
    let even: Vec<Position> = (0..1_000).map(|n| Position(n * 2)).collect();
    let found = f.store.read_parked(ShardId(0), "a", &even, &destinations()).await.expect("read_parked");
    assert_eq!(found.iter().map(|p| p.entry.position).collect::<Vec<_>>(), even);
    assert!(found.iter().all(|p| p.message == *moved[p.entry.position.0 as usize]));
    let mut part = owner.part(ShardId(0), &[]);
    part.parked = even
        .iter()
        .map(|at| ParkedWrite::Remove { destination: "a".into(), shard: ShardId(0), position: *at })
        .collect();
    owner.write(f.store.as_ref(), vec![part]).await;
    assert_eq!(f.store.recover(ShardId(0)).await.expect("recover").parked.len(), 1_000);
}

/// A shard that is fenced, or does not match, parks nothing either.
pub async fn nothing_is_parked_without_the_lease(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..2).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    part.parked = vec![insert(&part.moved[0].clone(), "a", ParkedState::Dead)];
    let mut fenced = part.clone();
    fenced.epoch = Epoch(part.epoch.0 + 1);
    assert_eq!(owner.write(f.store.as_ref(), vec![fenced]).await, [ShardOutcome::Fenced]);
    f.database.execute("DELETE FROM outbox WHERE id = 'm1'").await;
    assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Mismatch]);
    assert_eq!((f.count("outbox_parked").await, f.count("outbox_log").await), (0, 0));
    assert_eq!(f.hot_ids().await, ["m0"]);
}
