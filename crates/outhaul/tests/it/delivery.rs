//! What was enqueued is delivered byte for byte, and nothing that was accepted is parked.

use std::sync::Arc;
use std::time::Duration;

use outhaul::{Event, Outbox, PayloadType};
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::Message;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Stop};
use outhaul_store::{InitPlan, StoreOptions};
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::{self, Flavour};

use crate::application::{Client, Driver, End, Enqueue, LIMIT, database, make_tables};
use crate::by_each;

/// Delivers until so many messages have come, and returns them in their order. None may be parked.
pub async fn delivered(url: &str, count: usize) -> Vec<Arc<Message>> {
    let sink = ScriptedSink::single();
    let destination =
        Destination { name: "test".into(), sink: sink.sink(), limits: LaneLimits::default(), require_ack: None };
    // The relay closes the one that it is given.
    let store = outhaul_store::open(StoreOptions::new(url)).await.unwrap();
    let outbox = outhaul_relay::Outbox {
        name: "test".into(),
        store: outhaul_store::open(StoreOptions::new(url)).await.unwrap(),
        destinations: vec![destination],
        routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
        settings: Settings::default(),
        owner: "test".into(),
        until_empty: false,
        shutdown_limit_ms: 20_000,
        maintenance: None,
        transactions: None,
        watch: None,
    };
    let stop = Stop::new();
    let relay = tokio::spawn(outhaul_relay::run(vec![outbox], stop.clone()));
    sink.wait_stored(count).await;
    stop.drain();
    tokio::time::timeout(LIMIT, relay).await.expect("the relay ends").unwrap().unwrap();
    let parked: u64 = store.status().await.unwrap().iter().flat_map(|s| &s.parked).map(|(_, r, w, d)| r + w + d).sum();
    assert_eq!(parked, 0, "what was accepted is delivered");
    sink.received().into_iter().map(|r| r.message).collect()
}

by_each!(every_byte_arrives);

/// Payloads of all bytes; keys and ids that differ only in case, in spaces at the end, or in how an accent is written;
/// headers with whatever JSON has to escape; sizes up to the limits.
async fn every_byte_arrives(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let mut client = Client::open(driver, &database).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let widest = "\u{1f4e6}".repeat(16);
    let largest = "v".repeat((1 << 20) - r#"{"h": ""}"#.len());
    let one = |id: &str, topic: &str, key: Option<&str>, headers: &[(&str, &str)], payload: &[u8]| Described {
        id: id.into(),
        topic: topic.into(),
        key: key.map(str::to_owned),
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        payload: payload.to_vec(),
    };
    let mut all = vec![
        one("a", "t", Some("k"), &[("plain", "x")], &all_bytes),
        one("A", "t", Some("K"), &[], b""),
        one("a ", "t", Some("k "), &[], b"x"),
        one("\u{e9}", "t\u{e9}", Some("\u{e9}"), &[], b"x"),
        one("e\u{301}", "te\u{301}", Some("e\u{301}"), &[], b"x"),
        one("?$1:x", "\u{1f4e6}", Some("\\'\"`\u{1f4e6}"), &[], b"'; DROP TABLE outbox; --"),
        one("b", "t", None, &[("", ""), ("q\"\\/", "\u{1}\n\t\u{1f4e6}'"), ("x", "\u{7f}")], b"x"),
        one(&widest, &"t".repeat(255), Some(&"k".repeat(255)), &[], &vec![0xff; 4 << 20]),
        one("c", "t", None, &[("h", &largest)], b"x"),
    ];
    for single in &all {
        let work = Enqueue { outbox: &Outbox::new(), events: vec![single.event()] };
        assert_eq!(client.transact(&work, End::Commit).await.unwrap(), [single.id.as_str()]);
    }
    let many: Vec<Described> =
        (0..1_000).map(|n| one(&format!("n{n}"), "many", Some("in order"), &[], n.to_string().as_bytes())).collect();
    let events = many.iter().map(Described::event).collect();
    client.transact(&Enqueue { outbox: &Outbox::new(), events }, End::Commit).await.unwrap();
    all.extend(many);
    let messages = delivered(&database.url, all.len()).await;
    assert_eq!(messages.len(), all.len());
    for (message, expected) in messages.iter().zip(&all) {
        assert!(*expected == Described::from(message), "{} arrived as {message:?}", expected.id);
    }
}

/// All that an application can say of a message, headers by name.
#[derive(PartialEq, Eq)]
struct Described {
    id: String,
    topic: String,
    key: Option<String>,
    headers: Vec<(String, String)>,
    payload: Vec<u8>,
}

impl Described {
    fn event(&self) -> Event {
        let event = Event::bytes(&self.topic, self.payload.clone()).id(&self.id);
        let event = self.headers.iter().fold(event, |event, (name, value)| event.header(name, value));
        match &self.key {
            Some(key) => event.key(key),
            None => event,
        }
    }

    /// A database may change the order of the headers.
    fn from(message: &Message) -> Self {
        let mut headers = message.header_pairs();
        headers.sort();
        let payload = message.payload.to_vec();
        Self { id: message.id.clone(), topic: message.topic.clone(), key: message.key.clone(), headers, payload }
    }
}

by_each!(a_column_of_json_takes_json);

/// Payload columns of text and JSON: what is read back means the same.
async fn a_column_of_json_takes_json(driver: Driver, flavour: Flavour) {
    for payload in [PayloadType::Text, PayloadType::Json] {
        let database = servers::create(flavour).await;
        make_tables(&database.url, &InitPlan { payload, ..InitPlan::default() }).await;
        let mut client = Client::open(driver, &database).await;
        let outbox = Outbox::new().payload_type(payload);
        let value = serde_json::json!({ "text": "\u{e9}\u{1f4e6}'\"\\", "n": [1, 2.5, null] });
        let events = vec![Event::json("t", &value).unwrap()];
        client.transact(&Enqueue { outbox: &outbox, events }, End::Commit).await.unwrap();
        let typed = match flavour {
            Flavour::Sqlite => "typeof(payload) = 'text' AND payload ->> 'text' LIKE '%\\'",
            Flavour::Postgres => "payload::jsonb ->> 'text' LIKE '%\\\\'",
            Flavour::MariaDb | Flavour::MySql => "JSON_VALID(payload) AND JSON_EXTRACT(payload, '$.n[1]') = 2.5",
        };
        assert_eq!(database.query_u64(&format!("SELECT count(*) FROM outbox WHERE {typed}")).await, 1, "{payload:?}");
        let messages = delivered(&database.url, 1).await;
        let found: serde_json::Value = serde_json::from_slice(&messages[0].payload).unwrap();
        assert_eq!(found, value);
    }
}

by_each!(a_scheduled_event_waits);

async fn a_scheduled_event_waits(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let mut client = Client::open(driver, &database).await;
    let at = std::time::SystemTime::now() + Duration::from_millis(2_500);
    let events = vec![Event::bytes("t", "later").available_at(at), Event::bytes("t", "now")];
    client.transact(&Enqueue { outbox: &Outbox::new(), events }, End::Commit).await.unwrap();
    let messages = delivered(&database.url, 2).await;
    let payloads: Vec<&[u8]> = messages.iter().map(|m| &m.payload[..]).collect();
    assert_eq!(payloads, [&b"now"[..], b"later"]);
    assert!(std::time::SystemTime::now() >= at, "it was delivered before its time");
}
