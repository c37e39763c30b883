//! `read`: which rows, in which order, up to which limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use outhaul_core::message::{Defect, Message, Position, Row, Seq, ShardId, parse_headers};
use outhaul_core::runs::Run;
use outhaul_store::{ColumnNames, Found, HEADERS_MAX_BYTES, InitPlan, NewRow, ReadPurpose, ReadRequest};

use super::fixture::{AppRow, Fixture, ids, message_of, shards_of};
use crate::servers::Flavour;

const HOUR_US: i64 = 3_600_000_000;

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    since.as_micros() as i64
}

/// Reads on behind the last row until nothing is cut.
async fn read_on(f: &Fixture, request: &ReadRequest) -> Vec<Vec<Row>> {
    let (mut answers, mut next) = (Vec::new(), 0);
    loop {
        let ranges = vec![Run { first: next, last: u64::MAX }];
        let answer = f.read(&ReadRequest { ranges, ..request.clone() }).await;
        next = answer.rows.last().map_or(next, |row| row.seq.0 + 1);
        assert!(!answer.cut || !answer.rows.is_empty(), "cut before the first row");
        answers.push(answer.rows);
        if !answer.cut {
            return answers;
        }
        assert!(answers.len() < 1_000);
    }
}

/// The four documented columns are enough (L9), and come back as they were.
pub async fn a_row_comes_as_it_was_written(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let odd = AppRow {
        id: Some("It's \u{e9}\u{4e2d}\u{1f600}".into()),
        topic: "orders/placed v2".into(),
        key: Some("Key ".into()),
        payload: (0..=255).collect(),
    };
    let plain = AppRow { id: None, key: None, payload: vec![], ..odd.clone() };
    f.insert(std::slice::from_ref(&odd)).await;
    f.insert(std::slice::from_ref(&plain)).await;
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 2);
    for (row, written) in rows.iter().zip([&odd, &plain]) {
        assert_eq!((&row.topic, &row.key), (&written.topic, &written.key));
        assert_eq!((row.payload.as_ref(), &row.headers), (&written.payload[..], &None));
        assert_eq!((&row.defect, row.shard), (&None, ShardId(0)));
        assert!(
            (now_us() - row.created_at_us).abs() < HOUR_US / 60,
            "created_at is {} us off",
            now_us() - row.created_at_us
        );
    }
    assert_eq!(Some(&rows[0].id), odd.id.as_ref());
    assert!(rows[1].id.len() >= 32, "{} is no UUID", rows[1].id);
}

/// Ids that the database gives are all different.
pub async fn rows_without_an_id_get_one_each(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let rows: Vec<AppRow> = (0..300).map(|n| AppRow::nth(n).with_id(None)).collect();
    f.insert(&rows).await;
    let ids: BTreeSet<String> = f.read_all().await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), 300);
    assert!(ids.iter().all(|id| id.len() <= 64));
}

/// Rows come by rising `seq` over all shards; a key has one shard; every shard is one of the planned ones.
pub async fn rows_rise_over_all_shards(flavour: Flavour) {
    for shard_by_key in [true, false] {
        let plan = InitPlan { shards: shards_of(flavour), shard_by_key, ..InitPlan::default() };
        let f = Fixture::with(flavour, plan, |_| {}).await;
        f.insert_series(0..200).await;
        f.insert(&(200..300).map(|n| AppRow::nth(n).with_key(None)).collect::<Vec<_>>()).await;
        let rows = f.read_all().await;
        let read: Vec<(u64, String)> = rows.iter().map(|r| (r.seq.0, r.id.clone())).collect();
        assert_eq!(read, f.hot().await);
        let mut shards: BTreeMap<String, BTreeSet<ShardId>> = BTreeMap::new();
        for row in &rows {
            assert!(f.shards().contains(&row.shard));
            let by = match (&row.key, shard_by_key) {
                (Some(key), true) => key,
                (None, true) => &row.id,
                (_, false) => &row.topic,
            };
            shards.entry(by.clone()).or_default().insert(row.shard);
        }
        assert!(shards.values().all(|s| s.len() == 1), "one key, two shards: {shards:?}");
        let used: BTreeSet<ShardId> = shards.into_values().flatten().collect();
        assert!(used.len() > 1 || f.plan.shards == 1, "only {used:?} are used");
    }
}

/// Rows of other shards are left out.
pub async fn only_the_wanted_shards_are_read(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..100).await;
    let all = f.read_all().await;
    let mut wanted = vec![vec![], f.shards(), vec![ShardId(f.plan.shards)]];
    wanted.extend(f.shards().into_iter().map(|s| vec![s]));
    wanted.extend(f.shards().windows(2).map(|w| vec![w[1], w[0]]));
    for shards in wanted {
        let expected: Vec<&Row> = all.iter().filter(|row| shards.contains(&row.shard)).collect();
        let answer = f.read(&ReadRequest { shards: shards.clone(), ..f.everything() }).await;
        assert_eq!(answer.rows.iter().collect::<Vec<_>>(), expected, "{shards:?}");
    }
}

/// Rows outside the ranges are left out, for both purposes.
pub async fn only_the_wanted_ranges_are_read(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..40).await;
    let hot = f.hot().await;
    let seq = |n: usize| hot[n].0;
    let run = |first, last| Run { first, last };
    for purpose in [ReadPurpose::Poll, ReadPurpose::Rescan] {
        for ranges in [
            vec![run(seq(3), seq(5)), run(seq(9), seq(9)), run(seq(30), u64::MAX)],
            vec![run(0, seq(0))],
            vec![run(seq(39), seq(39) + 1)],
            vec![run(seq(39) + 1, u64::MAX)],
            (0..20).map(|n| run(seq(n * 2), seq(n * 2))).collect(),
        ] {
            let inside = |s: u64| ranges.iter().any(|r| r.first <= s && s <= r.last);
            let expected: Vec<u64> = hot.iter().map(|(s, _)| *s).filter(|s| inside(*s)).collect();
            let answer = f.read(&ReadRequest { purpose, ranges: ranges.clone(), ..f.everything() }).await;
            let read: Vec<u64> = answer.rows.iter().map(|row| row.seq.0).collect();
            assert_eq!((read, answer.cut), (expected, false), "{ranges:?}");
        }
    }
}

/// A limit of rows cuts at the end, and says so.
pub async fn a_limit_cuts_at_the_end(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..20).await;
    let all = f.hot_ids().await;
    for limit in [1, 7, 19, 20, 21] {
        let answers = read_on(&f, &ReadRequest { limit, ..f.everything() }).await;
        assert!(answers.iter().all(|rows| rows.len() <= limit as usize));
        let read: Vec<String> = answers.iter().flat_map(|rows| ids(rows)).collect();
        assert_eq!(read, all, "{limit} rows at a time");
    }
}

/// A limit of bytes cuts at the end, in order of `seq`: a small row never passes a large one. A single row may exceed
/// it.
pub async fn bytes_cut_at_the_end(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let sizes = [10, 200_000, 10, 300_000, 70_000, 65_535, 65_536, 65_537, 0, 1_000_000, 10, 10];
    let row = |(n, size): (usize, &usize)| AppRow::nth(n as u64).with_payload(vec![n as u8; *size]);
    f.insert(&sizes.iter().enumerate().map(row).collect::<Vec<_>>()).await;
    for max_bytes in [1, 100, 250_000, 400_000, 2_000_000] {
        let answers = read_on(&f, &ReadRequest { max_bytes, ..f.everything() }).await;
        for rows in &answers {
            let bytes: usize = rows.iter().map(|r| r.payload.len()).sum();
            let filled = rows.iter().filter(|r| !r.payload.is_empty()).count();
            assert!(bytes <= max_bytes || filled == 1, "{bytes} bytes in {filled} rows");
        }
        let all: Vec<&Row> = answers.iter().flatten().collect();
        assert_eq!(all.len(), sizes.len());
        for (n, row) in all.iter().enumerate() {
            assert!(
                row.id == format!("m{n}") && row.payload.len() == sizes[n] && row.payload.iter().all(|b| *b == n as u8)
            );
        }
        assert!(max_bytes < 2_000_000 || answers.len() == 1, "cut without need");
    }
}

/// A payload above `max_message_bytes` stays where it is; its row comes without it.
pub async fn a_payload_above_the_limit_is_not_fetched(flavour: Flavour) {
    let f = Fixture::with(flavour, InitPlan::default(), |o| o.max_message_bytes = 1_000).await;
    let sizes = [1_000, 1_001, 3, 500_000];
    let rows: Vec<AppRow> = (0..4).map(|n| AppRow::nth(n).with_payload(vec![7; sizes[n as usize]])).collect();
    f.insert(&rows).await;
    let answer = f.read(&ReadRequest { max_bytes: 1_003, ..f.everything() }).await;
    assert!(!answer.cut, "what is not fetched does not count");
    for (row, size) in answer.rows.iter().zip(sizes) {
        let defect = (size > 1_000).then_some(Defect::TooLarge { bytes: size as u64, limit: 1_000 });
        assert_eq!((row.payload.len(), &row.defect), (if defect.is_some() { 0 } else { size }, &defect));
    }
    assert_eq!(ids(&answer.rows), ["m0", "m1", "m2", "m3"]);
}

/// Rows whose time has not come are left out; they do not count against a limit.
pub async fn rows_of_the_future_are_left_out(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let at = |id: &str, available_at_us| NewRow {
        id: Some(id.into()),
        topic: "t".into(),
        key: Some(id.into()),
        available_at_us,
        ..NewRow::default()
    };
    let now = now_us();
    let new = [
        at("past", Some(now - HOUR_US)),
        at("future", Some(now + HOUR_US)),
        at("far", Some(now + 90 * 24 * HOUR_US)),
        at("now", None),
    ];
    f.store.enqueue(&new).await.expect("enqueue");
    let answer = f.read(&f.everything()).await;
    assert_eq!(ids(&answer.rows), ["past", "now"]);
    let answer = f.read(&ReadRequest { limit: 2, ..f.everything() }).await;
    assert_eq!(ids(&answer.rows), ["past", "now"]);
    assert_eq!(f.hot_ids().await.len(), 4);
}

/// L1: a row that commits after one with a larger `seq` is not seen before, not waited for, and seen afterwards.
pub async fn an_open_transaction_is_neither_seen_nor_waited_for(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut open = f.database.session().await;
    open.execute(&format!("BEGIN;{}", f.insert_sql(&[AppRow::nth(0)]))).await;
    assert!(f.read_all().await.is_empty());
    let mut wanted = vec!["m0".to_owned()];
    if f.writers_are_concurrent() {
        f.insert_series(1..4).await;
        assert_eq!(ids(&f.read_all().await), ["m1", "m2", "m3"]);
        wanted.extend(["m1", "m2", "m3"].map(String::from));
    }
    open.execute("COMMIT").await;
    assert_eq!(ids(&f.read_all().await), wanted, "the late one has the smallest seq");
}

/// What was rolled back never comes, whatever `seq` it took along.
pub async fn what_was_rolled_back_never_comes(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut session = f.database.session().await;
    session.execute(&format!("BEGIN;{}ROLLBACK", f.insert_sql(&[AppRow::nth(0), AppRow::nth(1)]))).await;
    f.insert_series(2..4).await;
    session.execute(&format!("BEGIN;{}ROLLBACK", f.insert_sql(&[AppRow::nth(4)]))).await;
    assert_eq!(ids(&f.read_all().await), ["m2", "m3"]);
}

/// L10: an application that writes an id twice gets both read.
pub async fn one_id_twice_is_two_rows(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert(&[AppRow::nth(1), AppRow::nth(1), AppRow::nth(2)]).await;
    assert_eq!(ids(&f.read_all().await), ["m1", "m1", "m2"]);
    f.owner("one").await.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m1", "m1", "m2"]);
}

/// S4: bytes that are not UTF-8, where the database lets them in, become a defect of their row alone.
pub async fn text_that_is_not_utf8_is_a_defect(flavour: Flavour) {
    let f = Fixture::adopted(flavour).await;
    let bad = match flavour {
        Flavour::Sqlite => "CAST(X'61ff62' AS TEXT)",
        Flavour::MariaDb | Flavour::MySql => "X'61ff62'",
        Flavour::Postgres => return, // a database in UTF-8 refuses them
    };
    let columns = ["id", "topic", "msg_key", "headers"];
    for (n, column) in columns.iter().enumerate() {
        let value = |c: &str| if c == *column { bad.to_owned() } else { format!("'{c}{n}'") };
        let headers = if *column == "headers" { bad } else { "'{}'" };
        let values = format!("{}, {}, {}, {headers}, X'00ff'", value("id"), value("topic"), value("msg_key"));
        f.database
            .execute(&format!("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES ({values})"))
            .await;
    }
    f.insert_series([9]).await;
    let rows = f.read_all().await;
    let defects: Vec<Option<Defect>> = rows.iter().map(|row| row.defect.clone()).collect();
    assert_eq!(defects, columns.iter().map(|c| Some(Defect::NotUtf8(c))).chain([None]).collect::<Vec<_>>());
    assert_eq!((rows[0].id.as_str(), rows[1].topic.as_str()), ("a\u{fffd}b", "a\u{fffd}b"));
    assert_eq!(rows[0].payload.as_ref(), [0, 255]);
    f.owner("one").await.move_all(&f).await;
    assert!(f.hot().await.is_empty(), "a bad row goes into the log like any other");
    assert_eq!(f.log_ids(ShardId(0)).await[0], "a\u{fffd}b");
}

/// S4: a row without a topic, in a table that allows it, is read with that defect.
pub async fn a_row_without_a_topic_is_a_defect(flavour: Flavour) {
    let f = Fixture::adopted(flavour).await;
    let payload = f.bytes_sql(b"p");
    f.database
        .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('none', NULL, 'k', {payload})"))
        .await;
    f.database
        .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('empty', '', 'k', {payload})"))
        .await;
    f.insert_series([1]).await;
    let rows = f.read_all().await;
    let seen: Vec<(&str, &str, Option<Defect>)> =
        rows.iter().map(|row| (row.id.as_str(), row.topic.as_str(), message_of(row, Position(0)).defect)).collect();
    assert_eq!(
        seen,
        [("none", "", Some(Defect::NoTopic)), ("empty", "", Some(Defect::NoTopic)), ("m1", "topic-1", None)]
    );
    f.owner("one").await.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    assert_eq!(f.log(ShardId(0)).await[0].defect, Some(Defect::NoTopic));
}

/// Headers come as the text of what was written; what is not an object of strings is a defect of the message.
pub async fn headers_come_as_json(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let insert = |id: &str, headers: &str| {
        let payload = f.bytes_sql(b"p");
        format!("INSERT INTO outbox (id, topic, headers, payload) VALUES ('{id}', 't', '{headers}', {payload})")
    };
    let good = r#"{"trace":"00-ab","x y":"\u00e9 z"}"#.replace("\\u00e9", "\u{e9}");
    for (id, headers) in [("good", good.as_str()), ("list", "[1, 2]"), ("number", r#"{"a": 1}"#), ("none", "{}")] {
        f.database.execute(&insert(id, headers)).await;
    }
    let rows = f.read_all().await;
    let mut pairs = parse_headers(rows[0].headers.as_deref().expect("headers")).expect("pairs");
    pairs.sort();
    assert_eq!(pairs, [("trace".into(), "00-ab".into()), ("x y".into(), "\u{e9} z".into())]);
    let bad = |n: usize| matches!(message_of(&rows[n], Position(0)).defect, Some(Defect::BadHeaders(_)));
    assert_eq!([0, 1, 2, 3].map(bad), [false, true, true, false]);
}

/// An application's row whose headers have about so many bytes: one, named `h`.
fn with_headers_sql(f: &Fixture, id: &str, bytes: u64) -> String {
    let text = match f.flavour() {
        Flavour::Sqlite => format!("'{{\"h\":\"' || printf('%.*c', {bytes}, 'x') || '\"}}'"),
        Flavour::Postgres => format!("('{{\"h\":\"' || repeat('x', {bytes}) || '\"}}')::json"),
        Flavour::MariaDb | Flavour::MySql => format!("CONCAT('{{\"h\":\"', REPEAT('x', {bytes}), '\"}}')"),
    };
    let payload = f.bytes_sql(b"p");
    format!("INSERT INTO outbox (id, topic, headers, payload) VALUES ('{id}', 't', {text}, {payload});")
}

/// Large headers count like a large payload: an answer stays within its bytes, and all of them come, whole.
pub async fn headers_count_against_the_bytes(flavour: Flavour) {
    const BYTES: usize = 512 << 10;
    let f = Fixture::new(flavour).await;
    let rows: String = (0..60).map(|n| with_headers_sql(&f, &format!("h{n}"), BYTES as u64)).collect();
    f.database.execute(&format!("BEGIN;{rows}COMMIT")).await;
    for (max_bytes, limit) in [(4 << 20, 5_000), (4 << 20, 5), (1, 5_000)] {
        let answers = read_on(&f, &ReadRequest { max_bytes, limit, ..f.everything() }).await;
        for rows in &answers {
            let bytes: usize = rows.iter().map(|r| r.headers.as_ref().map_or(0, String::len) + r.payload.len()).sum();
            assert!(bytes <= max_bytes || rows.len() == 1, "{bytes} bytes in {} rows", rows.len());
        }
        let all: Vec<Row> = answers.into_iter().flatten().collect();
        assert_eq!(ids(&all), (0..60).map(|n| format!("h{n}")).collect::<Vec<_>>());
        for row in &all {
            let pairs = parse_headers(row.headers.as_deref().expect("headers")).expect("pairs");
            assert!(pairs.len() == 1 && pairs[0].0 == "h" && pairs[0].1 == "x".repeat(BYTES), "{}", row.id);
            assert_eq!((row.payload.as_ref(), &row.defect), (&b"p"[..], &None));
        }
    }
    let first = f.read(&ReadRequest { max_bytes: 4 << 20, limit: 5_000, ..f.everything() }).await;
    assert!(first.cut && first.rows.len() >= 7, "{} rows", first.rows.len());
}

/// Headers above their limit stay where they are: their row comes with that defect, and can be moved like any other.
pub async fn headers_above_the_limit_are_not_fetched(flavour: Flavour) {
    let f = Fixture::with(flavour, InitPlan::default(), |o| o.max_message_bytes = 100_000).await;
    let sizes = [("most", HEADERS_MAX_BYTES - 100), ("small", 10), ("above", HEADERS_MAX_BYTES + 1), ("huge", 9 << 20)];
    for (id, bytes) in sizes {
        f.database.execute(&with_headers_sql(&f, id, bytes)).await;
    }
    let above = |row: &Row| matches!(row.id.as_str(), "above" | "huge");
    for limit in [1, 5_000] {
        let rows: Vec<Row> =
            read_on(&f, &ReadRequest { limit, ..f.everything() }).await.into_iter().flatten().collect();
        assert_eq!(ids(&rows), sizes.map(|(id, _)| id));
        for row in &rows {
            assert_eq!((row.headers.is_none(), row.payload.as_ref()), (above(row), &b"p"[..]), "{}", row.id);
            let is_said = matches!(&row.defect, Some(Defect::BadHeaders(why)) if why.contains("the limit is"));
            assert_eq!((is_said, row.defect.is_some()), (above(row), above(row)), "{:?}", row.defect);
        }
    }
    let found = f.store.find("most", None).await.expect("find");
    assert!(matches!(&found[..], [Found::Hot { row, .. }] if row.headers.is_some() && row.defect.is_none()));
    f.owner("one").await.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    let log = f.log(ShardId(0)).await;
    assert_eq!(log.iter().map(|m| m.defect.is_some()).collect::<Vec<_>>(), [false, false, true, true]);
}

/// A table with other column names, and without some of the columns, is read and emptied like any other.
pub async fn columns_may_have_other_names(flavour: Flavour) {
    let f = Fixture::empty(flavour, |o| {
        o.columns = ColumnNames { seq: "number".into(), ..ColumnNames::debezium() };
        o.outbox_table = "events".into();
    })
    .await;
    let text = match flavour {
        Flavour::Postgres | Flavour::Sqlite => "text",
        Flavour::MariaDb | Flavour::MySql => "varchar(255)",
    };
    let (number, bytes) = match flavour {
        Flavour::Sqlite => ("integer PRIMARY KEY AUTOINCREMENT", "blob"),
        Flavour::Postgres => ("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytea"),
        Flavour::MariaDb | Flavour::MySql => ("bigint AUTO_INCREMENT PRIMARY KEY", "longblob"),
    };
    let ddl = format!(
        "CREATE TABLE events (number {number}, id {text} NOT NULL, aggregatetype {text} NOT NULL, aggregateid {text} NOT NULL, \
         type {text} NOT NULL, payload {bytes})"
    );
    f.database.execute(&ddl).await;
    f.store.init(&InitPlan::default()).await.expect("init beside a table that is there");
    f.store.inspect().await.expect("inspect");
    let payload = f.bytes_sql(b"p");
    for n in 0..3 {
        let values = format!("'e{n}', 'order', 'o{n}', 'Placed', {payload}");
        f.database
            .execute(&format!("INSERT INTO events (id, aggregatetype, aggregateid, type, payload) VALUES ({values})"))
            .await;
    }
    let rows = f.read_all().await;
    let seen: Vec<(&str, &str, Option<&str>)> =
        rows.iter().map(|r| (r.id.as_str(), r.topic.as_str(), r.key.as_deref())).collect();
    assert_eq!(seen, [("e0", "order", Some("o0")), ("e1", "order", Some("o1")), ("e2", "order", Some("o2"))]);
    assert!(rows.iter().all(|r| r.payload.as_ref() == b"p" && (now_us() - r.created_at_us).abs() < HOUR_US / 60));
    let mut owner = f.owner("one").await;
    owner.move_rows(f.store.as_ref(), &rows[..2]).await;
    assert_eq!(ids(&f.read_all().await), ["e2"]);
    assert_eq!(f.log_ids(ShardId(0)).await, ["e0", "e1"]);
}

/// B5: a table whose sequence has started again is read from its start, and positions go on upwards.
pub async fn a_sequence_may_start_again(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..5).await;
    owner.move_all(&f).await;
    f.truncate().await;
    f.insert_series(5..8).await;
    let rows = f.read_all().await;
    assert!(rows.iter().all(|row| row.seq < Seq(5)), "the sequence has not started again");
    owner.move_rows(f.store.as_ref(), &rows).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"]);
}

/// B5: numbers that jump and interleave are read in their order, whenever they come.
pub async fn a_sequence_may_jump(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    for (seq, n) in [(1_000_001, 0), (11, 1), (2_000_000_000_000, 2), (12, 3)] {
        f.database.execute(&f.insert_at_sql(seq, &AppRow::nth(n))).await;
    }
    let rows = f.read_all().await;
    assert_eq!(rows.iter().map(|r| r.seq.0).collect::<Vec<_>>(), [11, 12, 1_000_001, 2_000_000_000_000]);
    f.owner("one").await.move_all(&f).await;
    let log: Vec<Message> = f.log(ShardId(0)).await;
    assert_eq!(log.iter().map(|m| m.seq.0).collect::<Vec<_>>(), [11, 12, 1_000_001, 2_000_000_000_000]);
}
