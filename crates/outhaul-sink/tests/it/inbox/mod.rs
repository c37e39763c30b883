//! The inbox, on every database.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::message::Message;
use outhaul_sink::inbox::{InboxConfig, InboxSink};
use outhaul_sink::{Outcome, Sink};
use outhaul_testkit::servers::{Flavour, TestDatabase, create};
use outhaul_testkit::sink_suite::{Destination, Held, Reader};

mod rights;
mod rows;
mod trouble;

/// The name of the consumer that the tests deliver to.
const CONSUMER: &str = "points";

/// An inbox in a database of its own.
struct Inbox {
    database: TestDatabase,
    config: InboxConfig,
}

impl Inbox {
    async fn new(flavour: Flavour) -> Self {
        Self::of(create(flavour).await)
    }

    fn of(database: TestDatabase) -> Self {
        let config = InboxConfig::new(&database.url, CONSUMER);
        Self { database, config }
    }

    /// A sink of the configuration as somebody changed it, started.
    async fn started(&self, change: impl FnOnce(&mut InboxConfig)) -> Arc<InboxSink> {
        let mut config = self.config.clone();
        change(&mut config);
        let sink = InboxSink::new(config);
        sink.start().await.unwrap();
        Arc::new(sink)
    }

    /// What a consumer holds, by shard and position.
    async fn held_by(&self, consumer: &str) -> Vec<Held> {
        let payload = match self.database.flavour {
            Flavour::Postgres => "encode(payload, 'hex')",
            _ => "hex(payload)",
        };
        let sql = format!(
            "SELECT id, topic, msg_key, headers, {payload}, position FROM inbox_message WHERE consumer = '{consumer}'"
        );
        let mut held: Vec<Held> = self.database.query(&sql).await.into_iter().map(held).collect();
        held.sort_by_key(|h| place(&h.place));
        held
    }
}

fn held(row: Vec<Option<String>>) -> Held {
    let [id, topic, key, headers, payload, place] = row.try_into().expect("six columns");
    let needed = |value: Option<String>| value.expect("not null");
    let headers = headers.map(|text| outhaul_core::message::parse_headers(&text).unwrap());
    Held {
        id: needed(id),
        topic: needed(topic),
        key,
        headers: headers.unwrap_or_default(),
        payload: unhex(&needed(payload)),
        place: needed(place),
        created_at_us: None,
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: u8| char::from(b).to_digit(16).expect("a hexadecimal digit") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn place(text: &str) -> (u16, u64) {
    let (shard, position) = text.split_once(':').unwrap();
    (shard.parse().unwrap(), position.parse().unwrap())
}

#[async_trait]
impl Reader for Inbox {
    async fn read(&self) -> Vec<Held> {
        self.held_by(CONSUMER).await
    }
}

#[async_trait]
impl Destination for Inbox {
    async fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(InboxSink::new(self.config.clone()))
    }

    fn drops_copies(&self) -> bool {
        true
    }
}

/// Sends a batch, each message in its slot, and gives the outcomes in the order of the messages.
async fn send(sink: &InboxSink, messages: &[Arc<Message>]) -> Vec<Outcome> {
    let mut outcomes = vec![None; messages.len()];
    let slots = |m: &Message| sink.slotting().slot(m);
    let mut all: Vec<u32> = messages.iter().map(|m| slots(m)).collect();
    all.sort_unstable();
    all.dedup();
    for slot in all {
        let of_slot: Vec<usize> = (0..messages.len()).filter(|i| slots(&messages[*i]) == slot).collect();
        let batch: Vec<_> = of_slot.iter().map(|i| Arc::clone(&messages[*i])).collect();
        let answers = sink.send(slot, &batch).await;
        assert_eq!(answers.len(), batch.len());
        of_slot.into_iter().zip(answers).for_each(|(i, answer)| outcomes[i] = Some(answer));
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

/// How many were delivered, and how many of those had been there before. No other outcome.
fn delivered(outcomes: &[Outcome]) -> (usize, usize) {
    let duplicate = |o: &Outcome| match o {
        Outcome::Delivered(receipt) => usize::from(receipt.detail == "duplicate"),
        other => panic!("{other:?}"),
    };
    (outcomes.len(), outcomes.iter().map(duplicate).sum())
}

/// The code of a batch that as a whole was not delivered, and whether that is unknown.
fn failed(outcomes: &[Outcome]) -> (&'static str, bool) {
    let code = |o: &Outcome| match o {
        Outcome::DestinationDown(reason) => (reason.code, false),
        Outcome::Unknown(reason) => (reason.code, true),
        other => panic!("{other:?}"),
    };
    let first = code(&outcomes[0]);
    assert!(outcomes.iter().all(|o| code(o) == first), "{outcomes:?}");
    first
}

/// The conformance suite and the cases of this file's folder, on one database.
macro_rules! on {
    ($name:ident, $flavour:ident; $($theme:ident::$case:ident,)*) => {
        mod $name {
            use outhaul_testkit::servers::Flavour;

            async fn make() -> super::Inbox {
                super::Inbox::new(Flavour::$flavour).await
            }
            outhaul_testkit::sink_suite!(make());
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$theme::$case(&make().await).await;
                }
            )*
        }
    };
}

macro_rules! on_servers {
    ($($name:ident, $flavour:ident;)*) => {
        $(on! { $name, $flavour;
            rows::consumers_do_not_meet,
            rows::a_row_that_is_there_stays_as_it_is,
            rows::two_relays_at_the_same_time,
            rows::a_table_prefix,
            rights::tables_that_are_missing,
            rights::a_wrong_password,
            rights::a_user_who_may_not_write,
            trouble::connections_that_are_cut_at_any_byte,
            trouble::an_answer_that_never_comes,
            trouble::a_server_that_is_gone_for_a_while,
        })*
    };
}

on! { sqlite, Sqlite;
    rows::consumers_do_not_meet,
    rows::a_row_that_is_there_stays_as_it_is,
    rows::two_relays_at_the_same_time,
    rows::a_table_prefix,
    rights::tables_that_are_missing,
}
on_servers! {
    mariadb, MariaDb;
    mysql, MySql;
    postgres, Postgres;
}
