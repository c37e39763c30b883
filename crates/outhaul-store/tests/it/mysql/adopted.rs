//! Tables that were made for something else.

use std::time::Duration;

use outhaul_core::message::ShardId;
use outhaul_store::{ColumnNames, InitPlan, StoreErrorKind};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::store_suite::Fixture;

const TABLE: &str = "CREATE TABLE events (id CHAR(36) CHARACTER SET latin1 NOT NULL PRIMARY KEY, aggregatetype VARCHAR(255) \
                     CHARACTER SET latin1 NOT NULL, aggregateid VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, payload JSON)";

async fn debezium(flavour: Flavour) -> Fixture {
    let f = Fixture::empty(flavour, |o| {
        o.columns = ColumnNames::debezium();
        o.outbox_table = "events".into();
        o.lock_timeout = Duration::from_secs(1);
    })
    .await;
    f.database.execute(TABLE).await;
    f.store.init(&InitPlan::default()).await.expect("init beside a table that is there");
    // What the error says is what makes it fit.
    let error = f.store.inspect().await.expect_err("there is no seq");
    assert_eq!(error.kind, StoreErrorKind::NotInitialised);
    let alter = error.message.split("; ").nth(1).expect("the statement that adds it");
    assert!(alter.starts_with("ALTER TABLE"), "{error}");
    f.database.execute(alter).await;
    f
}

fn insert(id: &str, n: u32) -> String {
    format!(
        "INSERT INTO events (id, aggregatetype, aggregateid, type, payload) VALUES ('{id}', 'b\u{fc}ro', 'k{n}', 't', '{{\"n\": {n}}}')"
    )
}

/// One ALTER TABLE, which the error prints, adopts a table made for Debezium's outbox router; text in another character
/// set comes as UTF-8.
pub async fn a_table_made_for_debezium_is_adopted(flavour: Flavour) {
    let f = debezium(flavour).await;
    let info = f.store.inspect().await.expect("inspect");
    assert_eq!(info.payload, outhaul_store::PayloadType::Json);
    assert!(info.warnings.is_empty(), "{:?}", info.warnings);
    for n in 0..30 {
        f.database.execute(&insert(&format!("\u{e9}vent-{n}"), n)).await;
    }
    let rows = f.read_all().await;
    assert_eq!((rows.len(), rows[0].id.as_str(), rows[0].topic.as_str()), (30, "\u{e9}vent-0", "b\u{fc}ro"));
    assert_eq!((rows[7].key.as_deref(), rows[7].payload.as_ref()), (Some("k7"), &br#"{"n": 7}"#[..]));
    let mut owner = f.owner("one").await;
    owner.move_rows(f.store.as_ref(), &rows[..20]).await;
    owner.move_rows(f.store.as_ref(), &rows[25..]).await;
    assert_eq!(f.hot_ids().await, (20..25).map(|n| format!("\u{e9}vent-{n}")).collect::<Vec<_>>());
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 25);
    assert_eq!(f.store.find("\u{e9}vent-22", None).await.expect("find").len(), 1);
    assert!(f.store.find("event-22", None).await.expect("find").is_empty());
}

/// Here the rows lie in the order of another key, and `seq` is an index beside it.
pub async fn a_row_of_an_adopted_table_is_not_waited_for(flavour: Flavour) {
    let f = debezium(flavour).await;
    let mut owner = f.owner("one").await;
    let mut sessions = Vec::new();
    for n in 0..60 {
        if matches!(n, 0 | 20 | 40 | 41) {
            let mut session = f.database.session().await;
            session.execute(&format!("BEGIN; {}", insert(&format!("open-{n}"), n))).await;
            sessions.push(session);
        }
        f.database.execute(&insert(&format!("e-{n}"), n)).await;
    }
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 60);
    owner.move_rows(f.store.as_ref(), &rows).await;
    f.database.execute(&insert("later", 99)).await;
    for session in &mut sessions {
        session.execute("COMMIT").await;
    }
    assert_eq!(f.hot_ids().await, ["open-0", "open-20", "open-40", "open-41", "later"]);
}
