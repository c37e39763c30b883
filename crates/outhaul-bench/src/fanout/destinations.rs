//! The ten destinations, and what each holds in the end.

use std::path::PathBuf;
use std::sync::Arc;

use outhaul_sink::Sink;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::troubled::Trouble;
use crate::raw::{self, Place};
use crate::rocketmq::{self, Broker, Topic};
use crate::{Db, child};

/// A destination, as the child is told.
pub struct Part {
    pub name: String,
    kind: &'static str,
    settings: Value,
    pub trouble: Option<Trouble>,
}

impl Part {
    pub fn is_inbox(&self) -> bool {
        self.kind == "inbox"
    }

    pub fn to_json(&self) -> Value {
        let trouble = self.trouble.map(Trouble::name);
        json!({ "name": self.name, "kind": self.kind, "settings": self.settings, "trouble": trouble })
    }
}

/// The sink of a part, from what [`Part::to_json`] gives: its name, the sink, its trouble.
pub fn made(part: &Value) -> (String, Arc<dyn Sink>, Option<Trouble>) {
    let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
    let (name, kind, settings) = (text("name"), text("kind"), part["settings"].clone());
    let sink = match kind.as_str() {
        "endpoint" => {
            let address = settings["address"].as_str().and_then(|a| a.parse().ok());
            Arc::new(child::Reporting::new(Some(address.expect("an address"))))
        }
        _ => outhaul_sink::make(&kind, &name, settings, None).expect("a sink"),
    };
    (name, sink, Trouble::parse(&text("trouble")))
}

/// All that one run delivers to. Made anew for each.
pub struct Destinations {
    db: Db,
    pub parts: Vec<Part>,
    folder: PathBuf,
    inboxes: Vec<Place>,
    topics: Vec<Topic>,
    endpoints: Vec<Endpoint>,
}

impl Destinations {
    /// Three of each kind but two topics and two endpoints. The last of three kinds turns bad.
    pub async fn make(db: Db, rows: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("outhaul-bench-fanout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let mut all = Self { db, parts: vec![], folder, inboxes: vec![], topics: vec![], endpoints: vec![] };
        for n in 1..=3 {
            let path = all.file(n);
            _ = std::fs::remove_file(&path);
            let trouble = (n == 3).then_some(Trouble::Rejects);
            all.part(format!("file-{n}"), "file", json!({ "path": path }), trouble);
        }
        for n in 1..=3 {
            let place = raw::place(db).await;
            let settings = json!({ "url": place.url, "consumer": "bench" });
            all.part(format!("inbox-{n}"), "inbox", settings, (n == 3).then_some(Trouble::Down));
            all.inboxes.push(place);
        }
        let namesrv = Broker::V4.namesrv();
        for n in 1..=2 {
            let topic = Topic::make(&namesrv).await;
            let settings = json!({ "namesrv": namesrv, "topic_prefix": topic.prefix });
            all.part(format!("mq-{n}"), "rocketmq", settings, (n == 2).then_some(Trouble::Slower));
            all.topics.push(topic);
        }
        for n in 1..=2 {
            let endpoint = Endpoint::open(rows, n).await;
            let settings = json!({ "address": endpoint.address.to_string() });
            all.part(format!("http-{n}"), "endpoint", settings, None);
            all.endpoints.push(endpoint);
        }
        all
    }

    fn part(&mut self, name: String, kind: &'static str, settings: Value, trouble: Option<Trouble>) {
        self.parts.push(Part { name, kind, settings, trouble });
    }

    fn file(&self, n: usize) -> PathBuf {
        self.folder.join(format!("{n}.jsonl"))
    }

    /// Where the child notes the acknowledgements of a destination.
    pub fn acks(&self) -> PathBuf {
        self.folder.join("acks")
    }

    /// How often each destination holds each row, by number of the row. An inbox holds none twice: of it only whether.
    pub async fn held(&mut self, rows: usize) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        for n in 1..=3 {
            let text = std::fs::read_to_string(self.file(n)).unwrap_or_default();
            let ids = text.lines().filter_map(|line| {
                let line: Value = serde_json::from_str(line).expect("a line of JSON");
                line["id"].as_str().map(str::to_owned)
            });
            all.push(counted(rows, ids));
        }
        for inbox in &mut self.inboxes {
            all.push(counted(rows, inbox.raw.texts("SELECT id FROM inbox_message").await.into_iter()));
        }
        for topic in &self.topics {
            all.push(counted(rows, rocketmq::latency::ids(topic).await.into_iter()));
        }
        all.extend(self.endpoints.iter().map(Endpoint::held));
        all
    }

    /// Takes all of it away.
    pub async fn remove(self) {
        for place in self.inboxes {
            raw::remove(self.db, place).await;
        }
        for topic in self.topics {
            topic.delete().await;
        }
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn counted(rows: usize, ids: impl Iterator<Item = String>) -> Vec<u32> {
    let mut counts = vec![0; rows];
    for id in ids {
        let n = crate::latency::number(&id).filter(|n| *n < rows).expect("the id of a row");
        counts[n] += 1;
    }
    counts
}
