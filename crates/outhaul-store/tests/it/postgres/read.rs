//! Reading: snapshots, isolation, shards, limits, and values that other tables may hold.

use outhaul_core::message::{Defect, Seq, ShardId};
use outhaul_core::runs::Run;
use outhaul_store::{InitPlan, NewRow, PayloadType, ReadRequest, StoreErrorKind, StoreOptions};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::store_suite::{AppRow, Fixture};

use super::until;

/// Reads page by page, as a relay catches up, and returns the numbers in the order in which they came.
async fn paged(f: &Fixture, request: ReadRequest) -> Vec<u64> {
    let mut request = request;
    let mut seqs = Vec::new();
    loop {
        let answer = f.read(&request).await;
        assert!(answer.rows.len() <= request.limit as usize);
        seqs.extend(answer.rows.iter().map(|row| row.seq.0));
        if !answer.cut {
            return seqs;
        }
        let last = answer.rows.last().expect("a cut answer has rows").seq.0;
        request.ranges = vec![Run { first: last + 1, last: u64::MAX }];
    }
}

#[tokio::test]
async fn pages_of_sixteen_shards_come_in_the_order_of_seq_and_miss_nothing() {
    let f = Fixture::with(Flavour::Postgres, InitPlan { shards: 16, ..InitPlan::default() }, |_| {}).await;
    // Gaps of all sizes, among them some that are longer than any stretch.
    f.database
        .execute(
            "INSERT INTO outbox (seq, topic, msg_key, payload) OVERRIDING SYSTEM VALUE \
             SELECT n * (1 + n % 7) + CASE WHEN n > 2000 THEN 1000000 ELSE 0 END, 't', 'k' || n % 97, '' \
             FROM generate_series(1, 4000) n WHERE n % 7 = 0 OR n > 3000 AND n % 5 = 1",
        )
        .await;
    let all: Vec<u64> = f.hot().await.into_iter().map(|(seq, _)| seq).collect();
    for limit in [1, 7, 100, 5_000] {
        let request = ReadRequest { limit, ..f.everything() };
        assert_eq!(paged(&f, request).await, all, "limit {limit}");
    }
    let some: Vec<ShardId> = [3, 4, 9].map(ShardId).into();
    let request = ReadRequest { limit: 50, shards: some, ..f.everything() };
    let wanted = f.database.query("SELECT seq FROM outbox WHERE shard IN (3, 4, 9) ORDER BY seq").await;
    let wanted: Vec<u64> = wanted.iter().map(|row| row[0].as_deref().unwrap().parse().unwrap()).collect();
    assert!(wanted.len() > 50);
    assert_eq!(paged(&f, request).await, wanted);
    let ranges = vec![Run { first: 100, last: 150 }, Run { first: 1_001_000, last: u64::MAX }];
    let request = ReadRequest { limit: 100_000, ranges, ..f.everything() };
    let wanted: Vec<u64> = all.iter().copied().filter(|s| (100..=150).contains(s) || *s >= 1_001_000).collect();
    let read: Vec<u64> = f.read(&request).await.rows.iter().map(|row| row.seq.0).collect();
    assert_eq!(read, wanted);
}

#[tokio::test]
async fn shards_depend_on_the_key_alone_and_are_all_used() {
    let f = Fixture::with(Flavour::Postgres, InitPlan { shards: 16, ..InitPlan::default() }, |_| {}).await;
    f.insert(&(0..400).map(|n| AppRow::nth(n).with_key(Some(&format!("k{}", n % 200)))).collect::<Vec<_>>()).await;
    let used = f.database.query_u64("SELECT count(DISTINCT shard) FROM outbox").await;
    assert_eq!(used, 16);
    let torn = "SELECT count(*) FROM (SELECT msg_key FROM outbox GROUP BY msg_key HAVING count(DISTINCT shard) > 1) x";
    assert_eq!(f.database.query_u64(torn).await, 0);
    // Fixed for ever: md5('k1') begins with 4fb42a11.
    let shard = f.database.query_u64("SELECT shard FROM outbox WHERE msg_key = 'k1' LIMIT 1").await;
    let md5 = f.database.query_text("SELECT substr(md5('k1'), 1, 8)").await;
    assert_eq!(shard, u64::from_str_radix(&md5, 16).unwrap() % 16);
}

/// L1: found in the snapshot after its commit, also below what was read before.
#[tokio::test]
async fn l1_a_late_commit_is_found() {
    let f = Fixture::sharded(Flavour::Postgres).await;
    let mut late = f.database.session().await;
    late.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(0)]))).await;
    f.insert_series(1..4).await;
    let above_the_mark =
        ReadRequest { ranges: vec![Run { first: 1, last: 1 }, Run { first: 5, last: u64::MAX }], ..f.everything() };
    assert_eq!(f.read_all().await.len(), 3);
    assert_eq!(f.read(&above_the_mark).await.rows.len(), 0);
    late.execute("COMMIT").await;
    let found = f.read(&above_the_mark).await.rows;
    assert_eq!(found.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["m0"]);
}

/// B1: dead rows that a held snapshot keeps are not looked at by a poll that begins above them.
#[tokio::test]
async fn b1_a_held_snapshot_costs_a_poll_nothing() {
    for shards in [1, 4] {
        let f = Fixture::with(Flavour::Postgres, InitPlan { shards, ..InitPlan::default() }, |_| {}).await;
        f.database
            .execute(
                "INSERT INTO outbox (topic, msg_key, payload) SELECT 't', n::text, '' FROM generate_series(1, 20000) n",
            )
            .await;
        let mut holder = f.database.session().await;
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox").await;
        f.database.execute("DELETE FROM outbox").await;
        f.insert_series(0..5).await;
        let mut session = f.database.session().await;
        until(&mut session, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = '' AND state = 'idle' AND pid NOT IN (pg_backend_pid())").await;
        let touched = "SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE relname = 'outbox'";
        session.execute("SELECT pg_stat_force_next_flush()").await;
        let before = session.query_u64(touched).await;
        let reader = f.another_store().await;
        for _ in 0..3 {
            let request =
                ReadRequest { ranges: vec![Run { first: 20_001, last: u64::MAX }], limit: 2_000, ..f.everything() };
            assert_eq!(reader.read(&request).await.unwrap().rows.len(), 5);
        }
        // A session tells its counts when it ends.
        reader.close().await;
        drop(reader);
        until(&mut session, "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%FROM \"outbox\"%' AND datname = current_database() AND pid <> pg_backend_pid()").await;
        session.execute("SELECT pg_stat_clear_snapshot()").await;
        let after = session.query_u64(touched).await;
        assert!(after - before < 200, "{} blocks for three polls of five rows, {shards} shards", after - before);
        holder.execute("COMMIT").await;
    }
}

/// B4: whatever the server's default is, nothing is missed and nothing fails.
#[tokio::test]
async fn b4_the_servers_isolation_level_does_not_matter() {
    for level in ["serializable", "repeatable read"] {
        let f = Fixture::sharded(Flavour::Postgres).await;
        f.database
            .execute(&format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", f.database.name()))
            .await;
        // The server itself says in which level the store's transactions write.
        f.database
            .execute(
                "CREATE FUNCTION check_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                   IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'written as %', current_setting('transaction_isolation'); END IF; \
                   RETURN NEW; END $$; \
                 CREATE TRIGGER level BEFORE INSERT ON outbox_receipt FOR EACH ROW EXECUTE FUNCTION check_level(); \
                 CREATE TRIGGER level BEFORE UPDATE ON outbox_lease FOR EACH ROW EXECUTE FUNCTION check_level()",
            )
            .await;
        let store = f.another_store().await;
        let g = Fixture { store, ..f };
        let mut owner = g.owner("one").await;
        let Fixture { store, .. } = &g;
        let f = &g;
        for n in 0..5 {
            // A writer in the same level that reads what a checkpoint takes away.
            let mut app = f.database.session().await;
            app.execute(&format!("BEGIN; SELECT count(*) FROM outbox; {}", f.insert_sql(&[AppRow::nth(n)]))).await;
            let rows = store.read(&f.everything()).await.unwrap().rows;
            owner.move_rows(store.as_ref(), &rows).await;
            app.execute("COMMIT").await;
            assert!(store.resolved(Seq(0)).await.unwrap().0 >= n);
        }
        let rows = store.read(&f.everything()).await.unwrap().rows;
        owner.move_rows(store.as_ref(), &rows).await;
        let mut logged = Vec::new();
        for shard in f.shards() {
            logged.extend(f.log_ids(shard).await);
        }
        logged.sort_unstable();
        assert_eq!(logged, ["m0", "m1", "m2", "m3", "m4"]);
    }
}

#[tokio::test]
async fn rows_that_are_not_due_are_left() {
    for shards in [1, 4] {
        let f = Fixture::with(Flavour::Postgres, InitPlan { shards, ..InitPlan::default() }, |_| {}).await;
        let row = |n: u64, later| NewRow {
            id: Some(format!("m{n}")),
            topic: "t".into(),
            key: Some(n.to_string()),
            available_at_us: later,
            ..NewRow::default()
        };
        let far = Some(4_102_444_800_000_000);
        let rows: Vec<NewRow> = (0..30).map(|n| row(n, far)).chain([row(30, None), row(31, Some(0))]).collect();
        f.store.enqueue(&rows).await.unwrap();
        for limit in [4, 100] {
            let answer = f.read(&ReadRequest { limit, ..f.everything() }).await;
            let ids: Vec<&str> = answer.rows.iter().map(|row| row.id.as_str()).collect();
            assert_eq!(ids, ["m30", "m31"], "{shards} shards, limit {limit}");
        }
    }
}

#[tokio::test]
async fn texts_that_are_not_utf8_are_read_and_moved_like_any_other() {
    let f = Fixture::empty(Flavour::Postgres, |_| {}).await;
    let name = format!("{}_ascii", f.database.name());
    f.database
        .execute(&format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"))
        .await;
    let url = f.database.url.replace(f.database.name(), &name);
    let store = outhaul_store::open(StoreOptions::new(&url)).await.unwrap();
    store.init(&InitPlan { shards: 4, payload: PayloadType::Text, ..InitPlan::default() }).await.unwrap();
    assert!(store.inspect().await.unwrap().warnings.iter().any(|w| w.contains("SQL_ASCII")));
    let mut session = outhaul_testkit::servers::Session::open(Flavour::Postgres, &url).await.unwrap();
    // E'\x' makes the bytes inside the server: no client sends them.
    let bad = "convert_from('\\x61ff62', 'SQL_ASCII')";
    session
        .execute(&format!(
            "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('a', 't', 'k', 'plain'), ({bad}, 't', 'k', 'x'), \
             ('c', {bad}, 'k', 'x'), ('d', 't', {bad}, {bad})"
        ))
        .await;
    let request = ReadRequest { shards: (0..4).map(ShardId).collect(), ..f.everything() };
    let rows = store.read(&request).await.unwrap().rows;
    assert_eq!(rows.len(), 4);
    let defect = |id: &str| rows.iter().find(|row| row.id == id).unwrap().defect.clone();
    assert_eq!(defect("a"), None);
    assert_eq!(defect("a\u{fffd}b"), Some(Defect::NotUtf8("id")));
    assert_eq!(defect("c"), Some(Defect::NotUtf8("topic")));
    assert_eq!(defect("d"), Some(Defect::NotUtf8("msg_key")));
    assert_eq!(rows.iter().find(|row| row.id == "d").unwrap().payload.as_ref(), b"a\xffb");
    // The checkpoint compares the same texts.
    let shards: Vec<ShardId> = (0..4).map(ShardId).collect();
    let g = Fixture { store, ..f };
    let mut owner = outhaul_testkit::store_suite::Owner::take(&g, "one", &shards).await;
    owner.move_rows(g.store.as_ref(), &rows).await;
    assert_eq!(session.query_u64("SELECT count(*) FROM outbox").await, 0);
    g.store.close().await;
    drop(session);
    g.database.execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

#[tokio::test]
async fn payloads_of_every_type_come_as_bytes() {
    for (payload, column) in [(PayloadType::Text, "text"), (PayloadType::Json, "jsonb"), (PayloadType::Json, "json")] {
        let f =
            Fixture::with(Flavour::Postgres, InitPlan { payload, ..InitPlan::default() }, |o| o.max_message_bytes = 60)
                .await;
        f.database
            .execute(&format!("ALTER TABLE outbox ALTER COLUMN payload TYPE {column} USING payload::{column}"))
            .await;
        let info = f.another_store().await.inspect().await.unwrap();
        assert_eq!(info.payload, payload, "{column}");
        f.database.execute("INSERT INTO outbox (id, topic, payload) VALUES ('a', 't', '{\"n\": 1}')").await;
        let big = "{\"n\": \"0123456789012345678901234567890123456789012345678901234567890123456789\"}";
        f.database.execute(&format!("INSERT INTO outbox (id, topic, payload) VALUES ('b', 't', '{big}')")).await;
        let row = NewRow { topic: "t".into(), payload: "{\"m\": [2]}".into(), ..NewRow::default() };
        f.store.enqueue(&[row]).await.unwrap();
        let rows = f.read_all().await;
        assert_eq!(rows[0].payload, "{\"n\": 1}", "{column}");
        assert_eq!(rows[1].defect, Some(Defect::TooLarge { bytes: big.len() as u64, limit: 60 }), "{column}");
        assert!(rows[1].payload.is_empty());
        assert_eq!(rows[2].payload, "{\"m\": [2]}", "{column}");
        let bytes = NewRow { topic: "t".into(), payload: vec![0xff].into(), ..NewRow::default() };
        assert_eq!(f.store.enqueue(&[bytes]).await.unwrap_err().kind, StoreErrorKind::Other);
    }
}

#[tokio::test]
async fn times_at_infinity_do_not_stop_anything() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.database
        .execute("INSERT INTO outbox (id, topic, payload, created_at, available_at) VALUES ('a', 't', '', 'infinity', '-infinity'), ('b', 't', '', '-infinity', NULL)")
        .await;
    f.owner("one").await.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["a", "b"]);
}
