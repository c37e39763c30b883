//! Tables that were made for something else, rights, and what `inspect` warns about.

use outhaul_core::message::ShardId;
use outhaul_store::{ColumnNames, InitPlan, NewRow, ReadRequest, StoreErrorKind, StoreOptions};
use outhaul_testkit::servers::{Flavour, OwnServer};
use outhaul_testkit::store_suite::{AppRow, Fixture, Owner};

#[tokio::test]
async fn a_debezium_table_is_adopted_by_the_alter_that_the_error_names() {
    let f = Fixture::empty(Flavour::Postgres, |o| {
        o.outbox_table = "outboxevent".into();
        o.columns = ColumnNames::debezium();
    })
    .await;
    f.database
        .execute(
            "CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
             type varchar(255) NOT NULL DEFAULT 'OrderCreated', payload jsonb); \
             INSERT INTO outboxevent VALUES ('6f3c4f2e-0000-4000-8000-000000000001', 'order', '7', 'OrderCreated', '{\"n\": 1}')",
        )
        .await;
    f.store.init(&InitPlan::default()).await.unwrap();
    let error = f.store.inspect().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotInitialised);
    let alter = error.message.split_once("add it: ").expect("the remedy").1;
    f.database.execute(alter).await;
    let info = f.store.inspect().await.unwrap();
    assert_eq!(info.warnings, Vec::<String>::new());
    f.database
        .execute(
            "INSERT INTO outboxevent VALUES ('6f3c4f2e-0000-4000-8000-000000000002', 'order', '8', 'OrderCreated', NULL), \
             ('6f3c4f2e-0000-4000-8000-000000000003', 'order', '8', 'OrderCreated', '{\"n\": 3}')",
        )
        .await;
    let row = NewRow {
        id: Some("6f3c4f2e-0000-4000-8000-000000000004".into()),
        topic: "order".into(),
        key: Some("9".into()),
        payload: "[]".into(),
        ..NewRow::default()
    };
    assert_eq!(f.store.enqueue(std::slice::from_ref(&row)).await.unwrap(), [row.id.clone().unwrap()]);
    assert_eq!(
        f.store.enqueue(&[NewRow { headers: Some("{}".into()), ..row }]).await.unwrap_err().kind,
        StoreErrorKind::Configuration
    );
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 4);
    assert_eq!(
        (rows[0].topic.as_str(), rows[0].key.as_deref(), rows[0].payload.as_ref()),
        ("order", Some("7"), &b"{\"n\": 1}"[..])
    );
    assert!(rows[1].payload.is_empty() && rows[1].defect.is_none());
    f.owner("one").await.move_all(&f).await;
    assert_eq!(f.database.query_u64("SELECT count(*) FROM outboxevent").await, 0);
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 4);
    // The uncached identity column resolves as any other.
    assert_eq!(f.store.resolved(rows[3].seq).await.unwrap(), rows[3].seq);
}

#[tokio::test]
async fn a_table_without_an_index_or_sequence_of_its_own_works_and_is_warned_about() {
    let f = Fixture::empty(Flavour::Postgres, |_| {}).await;
    f.database
        .execute(
            "CREATE SEQUENCE numbers; CREATE UNLOGGED TABLE outbox (seq int NOT NULL DEFAULT nextval('numbers'), id text, topic text, \
             msg_key text, headers jsonb, payload text, created_at timestamp DEFAULT (now() AT TIME ZONE 'UTC'), available_at timestamp)",
        )
        .await;
    f.store.init(&InitPlan::default()).await.unwrap();
    let warnings = f.store.inspect().await.unwrap().warnings;
    for about in ["UNLOGGED", "no index", "created_at", "available_at"] {
        assert!(warnings.iter().any(|w| w.contains(about)), "{about}: {warnings:?}");
    }
    f.database.execute("INSERT INTO outbox (id, topic, payload) VALUES (NULL, NULL, NULL), ('b', 't', 'x')").await;
    let rows = f.read_all().await;
    assert_eq!((rows[0].id.as_str(), rows[0].topic.as_str(), rows[0].payload.len()), ("", "", 0));
    assert_eq!(rows[0].defect, Some(outhaul_core::message::Defect::NoTopic));
    let age_us = f.database.query_u64("SELECT (extract(epoch FROM now()) * 1000000)::bigint").await as i64
        - rows[1].created_at_us;
    assert!((0..60_000_000).contains(&age_us), "{age_us}");
    f.owner("one").await.move_all(&f).await;
    assert_eq!(f.count("outbox").await, 0);
    f.database.execute("ALTER TABLE outbox ALTER COLUMN seq DROP DEFAULT").await;
    let other = f.another_store().await;
    assert!(other.inspect().await.unwrap().warnings.iter().any(|w| w.contains("no sequence")));
    assert_eq!(other.resolved(rows[1].seq).await.unwrap().0, 0);
}

/// The GRANTs that `init --print` prints are enough for application and relay, and no more than that.
#[tokio::test]
async fn the_printed_grants_are_enough() {
    let mut f = Fixture::sharded(Flavour::Postgres).await;
    let ddl = f.store.ddl(&f.plan);
    let grants = |to: &str| -> Vec<String> {
        let end = format!(" TO {to};");
        ddl.lines().filter_map(|l| l.strip_prefix("--   GRANT ")?.strip_suffix(&end).map(str::to_owned)).collect()
    };
    let (application, relay) = (grants("application"), grants("relay"));
    assert_eq!((application.len(), relay.len()), (1, 8), "{ddl}");
    let application: Vec<&str> = application.iter().map(String::as_str).collect();
    let relay: Vec<&str> = relay.iter().map(String::as_str).collect();

    let url = f.database.restricted_user(&application).await;
    let mut app = outhaul_testkit::servers::Session::open(Flavour::Postgres, &url).await.unwrap();
    app.execute(&f.insert_sql(&[AppRow::nth(0), AppRow::nth(1).with_id(None)])).await;
    assert!(app.try_execute("SELECT 1 FROM outbox").await.is_err());

    let url = f.database.restricted_user(&relay).await;
    let store = outhaul_store::open(StoreOptions::new(url)).await.unwrap();
    store.inspect().await.unwrap();
    let g = Fixture { store, ..f };
    let mut owner = Owner::take(&g, "one", &g.shards()).await;
    owner.move_all(&g).await;
    g.store.resolved(outhaul_core::message::Seq(0)).await.unwrap();
    g.store.enqueue(&[NewRow { topic: "t".into(), ..NewRow::default() }]).await.unwrap();
    g.store.status().await.unwrap();
    g.store.find("m0", None).await.unwrap();
    let request = outhaul_store::PruneRequest {
        owner: "one".into(),
        retention_ms: 0,
        merge_after_ms: Some(0),
        step: 10,
        exported: None,
    };
    assert!(g.store.prune(&request).await.unwrap().ran);
    outhaul_testkit::store_suite::acts::whatever_acts_need(&g, &mut owner).await;

    // What fell back, and what is pruned and looked for.
    let columns = "id, topic, payload";
    g.database.execute(&format!("INSERT INTO outbox_transaction ({columns}) VALUES ('tx', 't', 'p')")).await;
    for sent in [0, 1] {
        let fell = g.store.fall_back(&outhaul_store::FallBack { after_ms: 0, limit: 10 }).await.expect("fall_back");
        assert_eq!(fell.sent.len(), sent, "{fell:?}");
    }
    g.store.prune_transactions(0, 10).await.expect("prune_transactions");
    g.store.find_transactions("tx").await.expect("find_transactions");
    let mut f = g;

    // An application that sends transactional messages, and `outhaul checkback`.
    let transactional = grants("transactional");
    let url = f.database.restricted_user(&transactional.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut app = outhaul_testkit::servers::Session::open(Flavour::Postgres, &url).await.unwrap();
    app.execute("INSERT INTO outbox_transaction (id, topic, payload) VALUES ('tx2', 't', 'p')").await;
    let store = outhaul_store::open(StoreOptions::new(url)).await.unwrap();
    store.check_version().await.unwrap();
    store.origin().await.unwrap();
    assert_eq!(store.judge("none").await.unwrap(), outhaul_core::transaction::Finding::Buried);
    let ended = outhaul_store::EndedTransaction { id: "tx2".into(), receipt: "r".into() };
    assert_eq!(store.end_transactions(&[ended]).await.unwrap(), 1);

    // Without one of them, inspect names what is missing.
    for (n, missing) in relay.iter().enumerate() {
        let some: Vec<&str> = relay.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, g)| *g).collect();
        let url = f.database.restricted_user(&some).await;
        let error = outhaul_store::open(StoreOptions::new(url)).await.unwrap().inspect().await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Permission, "{missing}: {error}");
    }
}

#[tokio::test]
async fn the_printed_ddl_makes_what_init_makes() {
    let f = Fixture::empty(Flavour::Postgres, |o| o.table_prefix = "Odd \"prefix' ".into()).await;
    let plan = InitPlan { shards: 3, shard_by_key: false, ..InitPlan::default() };
    f.database.execute(&f.store.ddl(&plan)).await;
    f.store.init(&plan).await.unwrap();
    let info = f.store.inspect().await.unwrap();
    assert_eq!((info.shards, info.warnings), (3, vec![]));
    let f = Fixture { plan, ..f };
    let row = |topic: &str, key: &str| NewRow { topic: topic.into(), key: Some(key.into()), ..NewRow::default() };
    f.store.enqueue(&[row("a", "1"), row("a", "2"), row("b", "1")]).await.unwrap();
    let rows = f.read_all().await;
    assert_eq!(rows[0].shard, rows[1].shard, "by topic");
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    assert!(f.read(&ReadRequest { ..f.everything() }).await.rows.is_empty());
    for wrong in [InitPlan { shards: 4, ..f.plan.clone() }, InitPlan { shards: 1, ..f.plan.clone() }] {
        assert_eq!(f.store.init(&wrong).await.unwrap_err().kind, StoreErrorKind::WrongSchema);
    }
    // PostgreSQL 12 has no gen_random_uuid of its own; what stands in for it makes UUIDs too.
    let id = f.database.query_text("SELECT md5(random()::text || clock_timestamp()::text)::uuid::text").await;
    assert_eq!(id.len(), 36);
}

#[tokio::test]
async fn weak_settings_are_warned_about() {
    let server = OwnServer::start(Flavour::Postgres, &["synchronous_commit=off", "fsync=off", "autovacuum=off"]).await;
    let database = server.database().await;
    let store = outhaul_store::open(StoreOptions::new(database.url.clone())).await.unwrap();
    store.init(&InitPlan::default()).await.unwrap();
    database
        .execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow'; GRANT ALL ON ALL TABLES IN SCHEMA public TO narrow; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO narrow; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        .await;
    let store = outhaul_store::open(StoreOptions::new(database.url_as("narrow", "narrow"))).await.unwrap();
    let warnings = store.inspect().await.unwrap().warnings;
    for about in ["synchronous_commit", "fsync", "autovacuum", "row level security"] {
        assert!(warnings.iter().any(|w| w.contains(about)), "{about}: {warnings:?}");
    }
}
