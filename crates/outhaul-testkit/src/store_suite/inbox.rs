//! The `inbox_message` table of a consumer.

use std::sync::Arc;
use std::time::Duration;

use outhaul_store::inbox::{Inbox, InboxMessage, InboxOutcome, PRUNE_ROWS};
use outhaul_store::{StoreErrorKind, StoreOptions};

use crate::servers::{self, Flavour, TestDatabase};

pub(super) struct InboxFixture {
    pub(super) inbox: Arc<dyn Inbox>,
    pub(super) database: TestDatabase,
}

pub(super) async fn empty(flavour: Flavour) -> InboxFixture {
    let database = servers::create(flavour).await;
    let inbox = outhaul_store::inbox::open(StoreOptions::new(database.url.clone()), 4).await.expect("open");
    InboxFixture { inbox, database }
}

pub(super) async fn fresh(flavour: Flavour) -> InboxFixture {
    let f = empty(flavour).await;
    f.inbox.init().await.expect("init");
    f
}

pub(super) fn message(id: &str) -> InboxMessage {
    InboxMessage {
        id: id.into(),
        topic: "orders".into(),
        key: Some(format!("key of {id}")),
        headers: Some(r#"{"a":"1"}"#.into()),
        payload: format!("payload of {id}").into_bytes().into(),
        position: "0:7".into(),
    }
}

impl InboxFixture {
    async fn deliver(&self, consumer: &str, messages: &[InboxMessage]) -> Vec<InboxOutcome> {
        let outcomes = self.inbox.deliver(0, consumer, messages).await.expect("deliver");
        assert_eq!(outcomes.len(), messages.len());
        outcomes
    }

    async fn count(&self) -> u64 {
        self.database.query_u64("SELECT count(*) FROM inbox_message").await
    }
}

use InboxOutcome::{Behind, Duplicate, Stored};

/// Without its tables an inbox says so; `init` makes them, as often as it is called, and so does its DDL by hand.
pub async fn init_makes_the_tables(flavour: Flavour) {
    let f = empty(flavour).await;
    assert_eq!(f.inbox.inspect().await.expect_err("no tables").kind, StoreErrorKind::NotInitialised);
    f.inbox.init().await.expect("init");
    f.inbox.inspect().await.expect("inspect");
    assert_eq!(f.deliver("c", &[message("1")]).await, [Stored]);
    f.inbox.init().await.expect("init again");
    assert_eq!(f.count().await, 1);
    let by_hand = empty(flavour).await;
    by_hand.database.execute(&by_hand.inbox.ddl()).await;
    by_hand.inbox.inspect().await.expect("inspect");
    assert_eq!(by_hand.deliver("c", &[message("1")]).await, [Stored]);
    assert_eq!(by_hand.database.query_u64("SELECT count(*) FROM inbox").await, 0);
    f.inbox.close().await;
    f.inbox.deliver(0, "c", &[message("2")]).await.expect_err("closed");
}

/// A message is there once, as it came first, for each consumer; twice in one batch counts as twice.
pub async fn a_message_is_stored_once(flavour: Flavour) {
    let f = fresh(flavour).await;
    assert_eq!(f.deliver("c", &[message("1"), message("2"), message("1")]).await, [Stored, Stored, Duplicate]);
    let other = InboxMessage { topic: "other".into(), payload: "other".into(), ..message("1") };
    assert_eq!(f.deliver("c", &[other.clone(), message("3"), message("2")]).await, [Duplicate, Stored, Duplicate]);
    assert_eq!(f.deliver("d", &[other, message("3")]).await, [Stored, Stored]);
    let topics = f.database.query("SELECT consumer, id, topic FROM inbox_message ORDER BY consumer, id").await;
    let topics: Vec<String> =
        topics.into_iter().map(|row| row.into_iter().flatten().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(topics, ["c 1 orders", "c 2 orders", "c 3 orders", "d 1 other", "d 3 orders"]);
    assert!(f.deliver("c", &[]).await.is_empty());
}

/// The columns hold what was delivered, and what a consumer writes later starts empty.
pub async fn the_columns_are_filled(flavour: Flavour) {
    let f = fresh(flavour).await;
    let bytes: Vec<u8> = (0..=255).collect();
    let odd = InboxMessage {
        topic: "\u{e9}'s".into(),
        key: None,
        headers: None,
        payload: bytes.clone().into(),
        ..message("odd")
    };
    f.deliver("consumer \u{e9}", &[odd, message("plain")]).await;
    let literal = match flavour {
        Flavour::Postgres => format!("'\\x{}'::bytea", hex(&bytes)),
        _ => format!("X'{}'", hex(&bytes)),
    };
    let blank =
        "claimed_by IS NULL AND claimed_until IS NULL AND attempts = 0 AND done_at IS NULL AND last_error IS NULL";
    let odd =
        format!("id = 'odd' AND topic = '\u{e9}''s' AND msg_key IS NULL AND headers IS NULL AND payload = {literal}");
    let sql = format!(
        "SELECT count(*) FROM inbox_message WHERE consumer = 'consumer \u{e9}' AND position = '0:7' AND {blank} AND {odd}"
    );
    assert_eq!(f.database.query_u64(&sql).await, 1);
    let sql = format!(
        "SELECT count(*) FROM inbox_message WHERE id = 'plain' AND msg_key = 'key of plain' AND headers IS NOT NULL \
         AND received_at IS NOT NULL AND {blank}"
    );
    assert_eq!(f.database.query_u64(&sql).await, 1);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Ids and consumers compare by bytes: case, accents and spaces at the end make another one.
pub async fn ids_compare_by_bytes(flavour: Flavour) {
    let f = fresh(flavour).await;
    let ids = ["a", "A", "a ", "\u{e4}", "e\u{301}", "\u{e9}"];
    let messages: Vec<InboxMessage> = ids.iter().map(|id| message(id)).collect();
    for consumer in ["c", "C", "c "] {
        assert_eq!(f.deliver(consumer, &messages).await, vec![Stored; ids.len()], "{consumer:?}");
        assert_eq!(f.deliver(consumer, &messages).await, vec![Duplicate; ids.len()], "{consumer:?}");
    }
    assert_eq!(f.count().await, 18);
}

/// A message that the table refuses holds back later ones of its key, and nothing else.
pub async fn a_refused_message_holds_back_its_key(flavour: Flavour) {
    let f = fresh(flavour).await;
    let with_key = |id: &str, key: Option<&str>| InboxMessage { key: key.map(str::to_owned), ..message(id) };
    let long = |key: Option<&str>| with_key(&"x".repeat(80), key);
    let batch = [
        with_key("1", Some("k")),
        long(Some("k")),
        with_key("2", Some("k")),
        with_key("3", Some("other")),
        long(None),
        with_key("4", None),
        with_key("1", Some("k")),
        with_key("5", Some("K")),
    ];
    let outcomes = f.deliver("c", &batch).await;
    assert!(
        matches!(&outcomes[1], InboxOutcome::Refused(why) if !why.is_empty() && !why.contains("payload of")),
        "{outcomes:?}"
    );
    assert!(matches!(outcomes[4], InboxOutcome::Refused(_)), "{outcomes:?}");
    let rest: Vec<&InboxOutcome> = [0, 2, 3, 5, 6, 7].iter().map(|n| &outcomes[*n]).collect();
    assert_eq!(rest, [&Stored, &Behind, &Stored, &Stored, &Behind, &Stored]);
    assert_eq!(f.count().await, 4);
    // Without the bad one the key goes on.
    assert_eq!(f.deliver("c", &[with_key("2", Some("k"))]).await, [Stored]);
}

/// Large batches and large payloads.
pub async fn a_large_batch(flavour: Flavour) {
    let f = fresh(flavour).await;
    let batch: Vec<InboxMessage> = (0..2_000).map(|n| message(&n.to_string())).collect();
    assert_eq!(f.deliver("c", &batch).await, vec![Stored; 2_000]);
    assert_eq!(f.deliver("c", &batch).await, vec![Duplicate; 2_000]);
    let large = |id: &str| InboxMessage { payload: vec![b'x'; 4 << 20].into(), ..message(id) };
    assert_eq!(f.deliver("c", &[large("L1"), large("L2"), large("L3"), large("L4")]).await, vec![Stored; 4]);
    assert_eq!(f.count().await, 2_004);
}

/// Several lanes deliver at the same time, each its own messages; what two of them bring is stored once.
pub async fn lanes_deliver_at_once(flavour: Flavour) {
    let f = Arc::new(fresh(flavour).await);
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..4usize {
        let f = Arc::clone(&f);
        lanes.spawn(async move {
            let mut stored = 0;
            for batch in 0..10 {
                let messages: Vec<InboxMessage> =
                    (0..20).map(|n| message(&format!("{}-{batch}-{n}", if n < 10 { 9 } else { lane }))).collect();
                // A deadlock costs a try, no more: what is there already is a duplicate.
                let mut outcomes = f.inbox.deliver(lane, "c", &messages).await;
                for _ in 0..20 {
                    match &outcomes {
                        Err(error) if error.kind.passes() => outcomes = f.inbox.deliver(lane, "c", &messages).await,
                        _ => break,
                    }
                }
                stored += outcomes.expect("deliver").iter().filter(|o| **o == Stored).count();
            }
            stored
        });
    }
    let stored: usize = lanes.join_all().await.into_iter().sum();
    assert_eq!((stored, f.count().await), (500, 500));
}

/// The table as versions before places made it.
fn earlier_ddl(flavour: Flavour) -> String {
    let columns = match flavour {
        Flavour::Sqlite => {
            "consumer TEXT NOT NULL, id TEXT NOT NULL, topic TEXT NOT NULL, msg_key TEXT, headers TEXT, payload BLOB NOT \
             NULL, position TEXT NOT NULL, received_at INTEGER NOT NULL, claimed_by TEXT, claimed_until INTEGER, attempts \
             INTEGER NOT NULL DEFAULT 0, done_at INTEGER, last_error TEXT"
        }
        Flavour::MariaDb | Flavour::MySql => {
            "consumer VARBINARY(255) NOT NULL, id VARBINARY(64) NOT NULL, topic VARCHAR(255) NOT NULL, msg_key \
             VARBINARY(255) NULL, headers JSON NULL, payload LONGBLOB NOT NULL, `position` VARCHAR(32) NOT NULL, \
             received_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), claimed_by VARCHAR(255) NULL, claimed_until \
             TIMESTAMP(6) NULL DEFAULT NULL, attempts INT UNSIGNED NOT NULL DEFAULT 0, done_at TIMESTAMP(6) NULL DEFAULT \
             NULL, last_error TEXT NULL"
        }
        Flavour::Postgres => {
            "consumer varchar(255) COLLATE \"C\" NOT NULL, id varchar(64) COLLATE \"C\" NOT NULL, topic varchar(255) NOT \
             NULL, msg_key varchar(255) COLLATE \"C\", headers json, payload bytea NOT NULL, position varchar(32) NOT NULL, \
             received_at timestamptz(6) NOT NULL DEFAULT now(), claimed_by varchar(255), claimed_until timestamptz(6), \
             attempts integer NOT NULL DEFAULT 0, done_at timestamptz(6), last_error text"
        }
    };
    format!("CREATE TABLE inbox_message ({columns}, PRIMARY KEY (consumer, id))")
}

/// A table of an earlier version gets its numbers in the order in which its rows came, and goes on from there; relays
/// deliver into it before and after.
pub async fn an_earlier_table_gets_numbers(flavour: Flavour) {
    let f = empty(flavour).await;
    f.database.execute(&earlier_ddl(flavour)).await;
    let at = |n: u32| match flavour {
        Flavour::Sqlite => format!("{n}000000"),
        _ => format!("'2026-01-01 00:00:0{n}'"),
    };
    // Neither ids nor positions as text are in the order of arrival.
    for (id, second, position) in [("a", 3, "0:2"), ("b", 1, "0:10"), ("c", 1, "0:9"), ("d", 2, "0:1")] {
        let values = format!("'c', '{id}', 't', 'k', 'x', '{position}', {}", at(second));
        let columns = "consumer, id, topic, msg_key, payload, position, received_at";
        f.database.execute(&format!("INSERT INTO inbox_message ({columns}) VALUES ({values})")).await;
    }
    assert_eq!(f.deliver("c", &[message("e"), message("a")]).await, [Stored, Duplicate]);
    assert_eq!(f.inbox.inspect_places().await.expect_err("no numbers yet").kind, StoreErrorKind::NotInitialised);
    for _ in 0..2 {
        f.inbox.init().await.expect("init");
    }
    f.inbox.inspect_places().await.expect("of this version");
    assert_eq!(f.deliver("c", &[message("0"), message("d"), message("1")]).await, [Stored, Duplicate, Stored]);
    assert_eq!(f.ids_in_order().await, ["c", "b", "d", "a", "e", "0", "1"]);
}

/// What was done long ago goes, in small steps, and nothing else: not what was done lately, waits, is dead, or is another
/// consumer's. A row that a handler holds is not waited for.
pub async fn what_was_done_long_ago_goes(flavour: Flavour) {
    let day = Duration::from_secs(86_400);
    let f = fresh(flavour).await;
    let prune = async |from: Option<&str>| f.inbox.prune("c", 7 * day, from).await.expect("prune");
    assert_eq!((prune(None).await.deleted, prune(None).await.next), (0, None), "nothing is there");
    let old = PRUNE_ROWS * 5 / 2;
    let ids: Vec<String> = (0..old as u32).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    let all: Vec<InboxMessage> = ids.iter().map(|id| message(id)).collect();
    for part in all.chunks(250) {
        f.deliver("c", part).await;
    }
    f.deliver("other", &all[..1]).await;
    let ago = |days: u32| match flavour {
        Flavour::Sqlite => format!("(CAST(strftime('%s', 'now') AS INTEGER) - {days} * 86400) * 1000000"),
        Flavour::Postgres => format!("now() - interval '{days} days'"),
        Flavour::MariaDb | Flavour::MySql => format!("CURRENT_TIMESTAMP - INTERVAL {days} DAY"),
    };
    let change = async |set: &str, which: &str| {
        f.database.execute(&format!("UPDATE inbox_message SET {set} WHERE {which}")).await;
    };
    change(&format!("received_at = {}, done_at = {}", ago(9), ago(8)), "1 = 1").await;
    // Of the last day, not done, dead, held: ids that are spread over all steps.
    change(&format!("done_at = {}", ago(6)), &format!("id = '{}' AND consumer = 'c'", ids[3])).await;
    change("done_at = NULL", &format!("id IN ('{}', '{}') AND consumer = 'c'", ids[700], ids[701])).await;
    change(&format!("done_at = NULL, dead_at = {}", ago(8)), &format!("id = '{}'", ids[old - 1])).await;
    let mut handler = f.database.session().await;
    if flavour != Flavour::Sqlite {
        handler.execute("BEGIN").await;
        let held = format!("SELECT id FROM inbox_message WHERE id = '{}' AND consumer = 'c' FOR UPDATE", ids[700]);
        assert_eq!(handler.query(&held).await.len(), 1);
    }
    let (mut deleted, mut steps, mut from) = (0, 0, None);
    loop {
        let step = prune(from.as_deref()).await;
        assert!(step.deleted <= PRUNE_ROWS as u64, "{step:?}");
        (deleted, steps) = (deleted + step.deleted, steps + 1);
        match step.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!((deleted, steps), (old as u64 - 4, 3));
    assert_eq!((prune(None).await.deleted, f.count().await), (0, 5));
    let left = f.database.query("SELECT id FROM inbox_message WHERE consumer = 'c' ORDER BY seq").await;
    let left: Vec<String> = left.into_iter().map(|row| row.into_iter().flatten().collect()).collect();
    assert_eq!(left, [&ids[3], &ids[700], &ids[701], &ids[old - 1]].map(String::clone));
    if flavour != Flavour::Sqlite {
        handler.execute("ROLLBACK").await;
    }
    no_right_to_delete(f).await;
}

async fn no_right_to_delete(mut f: InboxFixture) {
    let grants: &[&str] = match f.database.flavour {
        Flavour::Sqlite => return, // it knows no users
        Flavour::Postgres => &["SELECT, INSERT, UPDATE ON inbox_message"],
        Flavour::MariaDb | Flavour::MySql => &["SELECT, INSERT, UPDATE ON *"],
    };
    let url = f.database.restricted_user(grants).await;
    let narrow = outhaul_store::inbox::open(StoreOptions::new(url), 1).await.expect("open");
    let refused = narrow.prune("nobody", Duration::from_secs(1), None).await.expect_err("no right");
    assert_eq!(refused.kind, StoreErrorKind::Permission, "{refused}");
    narrow.close().await;
}

impl InboxFixture {
    /// Ids by their numbers.
    pub(super) async fn ids_in_order(&self) -> Vec<String> {
        let rows = self.database.query("SELECT id FROM inbox_message ORDER BY seq").await;
        rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect()
    }
}
