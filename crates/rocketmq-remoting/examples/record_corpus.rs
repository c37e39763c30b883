//! Records the frames of a real broker that `tests/replay.rs` reads. A tool of this crate's developers:
//!
//! ```text
//! cargo run -p rocketmq-remoting --example record_corpus -- NAMESERVER FOLDER
//! ```
//!
//! The broker has to run without access control, and to check half messages soon and twice at most
//! (transactionCheckInterval=2000, transactionTimeOut=4000, transactionCheckMax=2). Takes about 20 s. What names
//! files of the machine is left out of the recorded settings and counters.
#![allow(clippy::expect_used, clippy::indexing_slicing, missing_docs)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use rocketmq_remoting::codec::{self, MAX_FRAME_BYTES};
use rocketmq_remoting::message::{BatchBuilder, Compression, MessageQueue, StoredMessage};
use rocketmq_remoting::request::*;
use rocketmq_remoting::{Command, Message, Request, ResponseCode, Serialization};

const TOPIC: &str = "Corpus";
const GROUP: &str = "corpus-group";

struct Peer {
    socket: TcpStream,
    buffer: BytesMut,
    next_opaque: i32,
    folder: PathBuf,
}

impl Peer {
    fn connect(address: &str, folder: &str) -> Self {
        let socket = TcpStream::connect(address).expect("connect");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("read timeout");
        Self { socket, buffer: BytesMut::new(), next_opaque: 1, folder: folder.into() }
    }

    /// The next frame, with its length.
    fn frame(&mut self) -> Bytes {
        loop {
            let whole = self.buffer.clone().freeze();
            if let Some(frame) = codec::split_frame(&mut self.buffer, MAX_FRAME_BYTES).expect("a frame") {
                return whole.slice(..frame.len() + 4);
            }
            let mut part = [0; 65_536];
            let read = self.socket.read(&mut part).expect("read");
            assert!(read > 0, "the peer closed the connection");
            self.buffer.extend_from_slice(part.get(..read).expect("what was read"));
        }
    }

    fn send(&mut self, mut command: Command, serialization: Serialization) -> i32 {
        command.opaque = self.next_opaque;
        self.next_opaque += 1;
        let mut out = BytesMut::new();
        codec::encode(&command, serialization, &mut out).expect("encode");
        self.socket.write_all(&out).expect("write");
        command.opaque
    }

    /// Asks, and keeps the answer under this name.
    fn record(&mut self, name: &str, command: Command, serialization: Serialization) -> Command {
        let opaque = self.send(command, serialization);
        loop {
            let frame = self.frame();
            let (answer, _) = codec::decode(frame.slice(4..)).expect("decode");
            if answer.is_answer() && answer.opaque == opaque {
                self.keep(name, &frame, &answer);
                return answer;
            }
        }
    }

    fn keep(&self, name: &str, frame: &Bytes, command: &Command) {
        println!("{name:32} {command:?}");
        std::fs::write(self.folder.join(format!("{name}.bin")), frame).expect("write");
    }

    fn ask<R: Request>(&mut self, name: &str, request: &R) -> R::Answer {
        let answer = self.record(name, request.command().expect("command"), Serialization::Json);
        request.answer(answer).expect(name)
    }

    fn ask_binary<R: Request>(&mut self, name: &str, request: &R) -> R::Answer {
        let answer = self.record(name, request.command().expect("command"), Serialization::Binary);
        request.answer(answer).expect(name)
    }

    fn refused<R: Request>(&mut self, name: &str, request: &R) {
        let answer = self.record(name, request.command().expect("command"), Serialization::Json);
        assert_ne!(answer.response_code(), ResponseCode::Success, "{name}");
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock before the year 292 million")
}

fn pause(time: Duration) {
    let (_keep, nothing) = mpsc::channel::<()>();
    let _ = nothing.recv_timeout(time);
}

fn message(body: &str, key: &str) -> Message {
    Message::new(TOPIC, body.to_owned())
        .and_then(|m| m.with_unique_key(key))
        .and_then(|m| m.with_keys(["key-1", key]))
        .and_then(|m| m.with_tag("paid"))
        .and_then(|m| m.with_property("name", "wert ä"))
        .expect("a message")
}

fn send(message: Message, queue_id: i32) -> SendMessage {
    SendMessage {
        producer_group: GROUP.into(),
        message,
        queue_id,
        born_at_ms: now_ms(),
        delivery: Delivery::Plain,
        compression: None,
        broker_name: None,
    }
}

fn pull(topic: &str, queue_id: i32, offset: i64) -> Pull {
    Pull {
        group: GROUP.into(),
        topic: topic.into(),
        queue_id,
        offset,
        max_messages: 32,
        subscription: Subscription::all(),
        suspend: Duration::ZERO,
        commit_offset: None,
        max_bytes: None,
        broker_name: None,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name_server, folder] = arguments.as_slice() else { panic!("arguments: NAMESERVER FOLDER") };
    let mut names = Peer::connect(name_server, folder);
    let clusters = names.ask("cluster-info", &GetClusterInfo);
    let (_, address) = clusters.masters().next().expect("a master");
    let mut broker = Peer::connect(address, folder);
    administration(&mut broker, &mut names);
    sends(&mut broker);
    reads(&mut broker);
    transactions(&mut broker);
    broker.ask("delete-topic-broker", &DeleteTopicInBroker { topic: TOPIC.into() });
    names.ask("delete-topic-name-server", &DeleteTopicInNameServer { topic: TOPIC.into() });
    broker.ask(
        "unregister",
        &UnregisterClient { client_id: "corpus".into(), producer_group: Some(GROUP.into()), consumer_group: None },
    );
}

fn administration(broker: &mut Peer, names: &mut Peer) {
    let heartbeat = Heartbeat {
        client_id: "corpus".into(),
        producer_groups: vec![GROUP.into()],
        consumers: vec![ConsumerData {
            group: GROUP.into(),
            subscriptions: vec![(TOPIC.into(), Subscription::of_tags(["paid", "open"]))],
            sub_version: now_ms(),
        }],
    };
    broker.ask("heartbeat", &heartbeat);
    names.refused("route-absent", &GetRoute { topic: "NoSuchTopic".into() });
    broker.ask("create-topic", &CreateTopic::new(TOPIC, 4));
    broker.ask("create-group", &CreateSubscriptionGroup::new(GROUP));
    pause(Duration::from_millis(500));
    let route = GetRoute { topic: TOPIC.into() };
    names.ask("route", &route);
    let mut old = route.command().expect("command");
    old.version = 300;
    old.ext.remove("acceptStandardJsonOnly");
    let old = names.record("route-for-old-clients", old, Serialization::Json);
    let queues: Vec<MessageQueue> = route.answer(old).expect("route").publish_queues(TOPIC);
    assert_eq!(queues.len(), 4);
    broker.ask("update-broker-config", &UpdateBrokerConfig { settings: vec![("slaveTimeout".into(), "3001".into())] });
    record_redacted(broker, "broker-config", &GetBrokerConfig::of(DURABILITY_KEYS), without_files);
}

/// Asks, and keeps the answer with a body from which `redact` has taken what tells about this machine.
fn record_redacted<R: Request>(broker: &mut Peer, name: &str, request: &R, redact: fn(&str) -> String) {
    broker.send(request.command().expect("command"), Serialization::Json);
    let (mut answer, serialization) = codec::decode(broker.frame().slice(4..)).expect("decode");
    answer.body = redact(std::str::from_utf8(&answer.body).expect("text")).into();
    let mut frame = BytesMut::new();
    codec::encode(&answer, serialization, &mut frame).expect("encode");
    broker.keep(name, &frame.freeze(), &answer);
}

fn without_files(settings: &str) -> String {
    let kept: Vec<&str> = settings.lines().filter(|line| !line.contains(['/', '\\'])).collect();
    kept.join("\n")
}

/// A key of it names the folder of the commit log.
fn without_folders(json: &str) -> String {
    let mut info: serde_json::Value = serde_json::from_str(json).expect("JSON");
    info["table"].as_object_mut().expect("a table").retain(|key, _| !key.contains(['/', '\\']));
    info.to_string()
}

fn sends(broker: &mut Peer) {
    broker.ask("send", &send(message("one", "0000000000000000000000000000000A"), 0));
    broker.ask_binary("send-binary", &send(message("two", "0000000000000000000000000000000B"), 0));
    let long = "from the outbox, ".repeat(60);
    for compression in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        let request =
            SendMessage { compression: Some(compression), ..send(message(&long, &format!("{compression:?}")), 0) };
        broker.ask(&format!("send-{}", format!("{compression:?}").to_lowercase()), &request);
    }
    for (name, binary) in [("send-batch", false), ("send-batch-binary", true)] {
        let mut builder = BatchBuilder::new(1 << 20);
        for i in 0..5 {
            assert!(builder.push(&message(&format!("{name} {i}"), &format!("{name}-{i}"))).expect("push"));
        }
        let request = SendBatch {
            producer_group: GROUP.into(),
            batch: builder.finish().expect("batch"),
            queue_id: 1,
            born_at_ms: now_ms(),
            broker_name: None,
        };
        let answer = if binary { broker.ask_binary(name, &request) } else { broker.ask(name, &request) };
        assert_eq!(answer.offset_ids.len(), 5);
    }
    let absent = Message::new("NoSuchTopic", "x").expect("a message");
    broker.refused("send-topic-absent", &send(absent, 0));
    broker.refused("send-queue-absent", &send(message("x", "x"), 99));
    broker.refused("send-too-large", &send(message(&"x".repeat(5 << 20), "x"), 0));
}

fn reads(broker: &mut Peer) {
    record_redacted(broker, "runtime-info", &GetRuntimeInfo, without_folders);
    pause(Duration::from_secs(1)); // queues and index are built a moment after the answer
    let first = broker.ask("pull", &pull(TOPIC, 0, 0));
    assert_eq!(first.messages.len(), 5);
    let batches = broker.ask_binary("pull-binary", &pull(TOPIC, 1, 0));
    assert_eq!(batches.messages.len(), 10);
    broker.ask("pull-nothing", &pull(TOPIC, 0, 5));
    broker.ask("pull-moved", &pull(TOPIC, 0, 500));
    let id = first.messages.first().expect("a message").offset_id();
    broker.ask("view-message", &ViewMessage::from(id));
    broker.refused("view-message-absent", &ViewMessage { commit_log_offset: 1 << 40 });
    let query = |key: &str| QueryMessage {
        topic: TOPIC.into(),
        key: key.into(),
        max_messages: 32,
        from_ms: 0,
        to_ms: now_ms() + 60_000,
    };
    assert_eq!(broker.ask("query-message", &query("0000000000000000000000000000000A")).len(), 1);
    broker.ask("query-message-absent", &query("nothing"));
    let (topic, queue_id, broker_name) = (TOPIC.to_owned(), 0, None);
    broker.ask("max-offset", &GetMaxOffset { topic: topic.clone(), queue_id, broker_name: broker_name.clone() });
    broker.ask("min-offset", &GetMinOffset { topic: topic.clone(), queue_id, broker_name: broker_name.clone() });
    let at_ms = now_ms() - 60_000;
    broker.ask(
        "search-offset",
        &SearchOffset { topic: topic.clone(), queue_id, at_ms, broker_name: broker_name.clone() },
    );
    let group = GROUP.to_owned();
    let query = QueryConsumerOffset { group: group.clone(), topic: topic.clone(), queue_id: 99, broker_name: None };
    broker.ask("consumer-offset-absent", &query);
    let update = UpdateConsumerOffset { group, topic, queue_id, offset: 3, broker_name };
    broker.ask("update-consumer-offset", &update);
    broker.ask("consumer-offset", &QueryConsumerOffset { queue_id, ..query });
}

fn transactions(broker: &mut Peer) {
    let half = |key: &str| SendMessage { delivery: Delivery::Half, ..send(message("half", key), 2) };
    let end = |answer: &SendAnswer, key: &str, resolution| EndTransaction {
        producer_group: GROUP.into(),
        half_queue_offset: answer.queue_offset,
        commit_log_offset: answer.offset_ids.first().expect("an id").commit_log_offset,
        resolution,
        unique_key: key.into(),
        transaction_id: answer.transaction_id.clone(),
        from_check: false,
        topic: Some(TOPIC.into()),
        broker_name: None,
    };
    let committed = broker.ask("send-half", &half("commit"));
    broker.ask("commit", &end(&committed, "commit", Resolution::Commit));
    let rolled_back = broker.ask_binary("send-half-binary", &half("rollback"));
    broker.ask_binary("rollback", &end(&rolled_back, "rollback", Resolution::Rollback));
    let wrong = SendAnswer { queue_offset: 1 << 40, ..committed };
    broker.refused("commit-wrong-offset", &end(&wrong, "commit", Resolution::Commit));

    broker.ask("send-half-open", &half("open"));
    let check = loop {
        let frame = broker.frame();
        let (command, _) = codec::decode(frame.slice(4..)).expect("decode");
        // With such short times 5.x also asks about halfs that have ended.
        let Ok(check) = CheckTransactionState::read(&command) else { continue };
        if check.unique_key == "open" {
            broker.keep("check-transaction-state", &frame, &command);
            break check;
        }
    };
    println!("{check:?}");
    // Not answered, it is given up after two checks.
    let parked = loop {
        pause(Duration::from_secs(1));
        let command = pull("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0);
        let answer = broker.record("pull-given-up", command.command().expect("command"), Serialization::Json);
        let found = answer.response_code() == ResponseCode::Success;
        if let Some(message) =
            found.then(|| StoredMessage::read_all(answer.body).expect("messages")).and_then(|m| m.into_iter().next())
        {
            break message;
        }
    };
    broker.ask("resume-half", &ResumeHalf { offset_id: parked.offset_id() });
}
