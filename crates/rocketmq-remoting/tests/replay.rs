//! Reads what real peers wrote: frames of brokers and name servers that `examples/record_corpus.rs` recorded
//! (`corpus/4.9.4`, `corpus/5.5.0`), and what Java's own classes made of known input (`corpus/java`, by
//! `corpus/Vectors.java`). Then damages each of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rocketmq_remoting::codec::{self, MAX_FRAME_BYTES};
use rocketmq_remoting::command::Version;
use rocketmq_remoting::message::{OffsetId, StoredMessage, decode_batch, java_hash, queue_by_hash, sys_flag};
use rocketmq_remoting::request::*;
use rocketmq_remoting::{
    Command, Credentials, Error, Language, Message, Request, RequestCode, ResponseCode, Serialization, acl,
};

const RELEASES: [&str; 2] = ["4.9.4", "5.5.0"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

fn bytes(name: &str) -> Bytes {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}")).into()
}

/// A recorded frame. It must be whole, with nothing behind it.
fn frame(name: &str) -> (Command, Serialization) {
    let mut buffer = BytesMut::from(bytes(&format!("{name}.bin")));
    let frame = codec::split_frame(&mut buffer, MAX_FRAME_BYTES).unwrap().expect("a whole frame");
    assert!(buffer.is_empty(), "{name}");
    codec::decode(frame).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// What a request makes of the recorded answer.
fn answer<R: Request>(release: &str, name: &str, request: &R) -> Result<R::Answer, Error> {
    request.answer(frame(&format!("{release}/{name}")).0)
}

fn send() -> SendMessage {
    SendMessage {
        producer_group: "g".into(),
        message: Message::new("Corpus", "x").unwrap(),
        queue_id: 0,
        born_at_ms: 0,
        delivery: Delivery::Plain,
        compression: None,
        broker_name: None,
    }
}

fn batch(count: usize) -> SendBatch {
    let mut builder = rocketmq_remoting::message::BatchBuilder::new(1_000);
    for _ in 0..count {
        let message = Message::new("Corpus", "x").unwrap().with_unique_key("u").unwrap();
        assert!(builder.push(&message).unwrap());
    }
    SendBatch {
        producer_group: "g".into(),
        batch: builder.finish().unwrap(),
        queue_id: 0,
        born_at_ms: 0,
        broker_name: None,
    }
}

fn pull(tags: &[&str]) -> Pull {
    Pull {
        group: "g".into(),
        topic: "Corpus".into(),
        queue_id: 0,
        offset: 0,
        max_messages: 32,
        subscription: Subscription::of_tags(tags.iter().copied()),
        suspend: Duration::ZERO,
        commit_offset: None,
        max_bytes: None,
        broker_name: None,
    }
}

fn end() -> EndTransaction {
    EndTransaction {
        producer_group: "g".into(),
        half_queue_offset: 0,
        commit_log_offset: 0,
        resolution: Resolution::Commit,
        unique_key: "u".into(),
        transaction_id: None,
        from_check: false,
        topic: None,
        broker_name: None,
    }
}

fn query(key: &str) -> QueryMessage {
    QueryMessage { topic: "Corpus".into(), key: key.into(), max_messages: 32, from_ms: 0, to_ms: 0 }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (ResponseCode, String) {
    match result {
        Err(Error::Refused { code, remark, .. }) => (code, remark.unwrap_or_default()),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn name_servers_are_read() {
    for release in RELEASES {
        let clusters = answer(release, "cluster-info", &GetClusterInfo).unwrap();
        let masters: Vec<_> = clusters.masters().collect();
        assert_eq!(masters.len(), 1);
        let (name, address) = masters[0];
        assert_eq!(clusters.cluster_addr_table["outhaul-test"], [name]);

        let request = GetRoute { topic: "Corpus".into() };
        let route = answer(release, "route", &request).unwrap();
        assert_eq!(route.broker(name).unwrap().master(), Some(address));
        let queues: Vec<i32> = route.publish_queues("Corpus").iter().map(|q| q.queue_id).collect();
        assert_eq!(queues, [0, 1, 2, 3]);
        // The same for a client that does not ask for standard JSON: with a bare integer as the key of the address.
        let old = frame(&format!("{release}/route-for-old-clients")).0;
        assert!(old.body.windows(3).any(|w| w == b"{0:"), "{release}");
        assert_eq!(request.answer(old).unwrap(), route);

        let (code, remark) = refused(answer(release, "route-absent", &request));
        assert_eq!(code, ResponseCode::TopicNotExist);
        assert!(remark.starts_with("No topic route info"), "{remark}");
        let request = DeleteTopicInNameServer { topic: "Corpus".into() };
        assert_eq!(answer(release, "delete-topic-name-server", &request).unwrap(), Acknowledged { remark: None });
    }
}

#[test]
fn administration_is_read() {
    for release in RELEASES {
        let heartbeat = Heartbeat { client_id: "c".into(), producer_groups: vec![], consumers: vec![] };
        let version = answer(release, "heartbeat", &heartbeat).unwrap().broker_version;
        assert_eq!(version.to_string(), release);
        assert_eq!(version.is_5(), release.starts_with('5'));
        // SUCCESS has a remark here that sounds otherwise; it is kept.
        let created = answer(release, "create-topic", &CreateTopic::new("Corpus", 4)).unwrap();
        assert_eq!(created.remark.as_deref(), Some("not set any response code"));
        answer(release, "create-group", &CreateSubscriptionGroup::new("g")).unwrap();
        answer(release, "update-broker-config", &UpdateBrokerConfig { settings: vec![] }).unwrap();
        answer(release, "delete-topic-broker", &DeleteTopicInBroker { topic: "Corpus".into() }).unwrap();
        let leave = UnregisterClient { client_id: "c".into(), producer_group: None, consumer_group: None };
        answer(release, "unregister", &leave).unwrap();

        let config = answer(release, "broker-config", &GetBrokerConfig::of(DURABILITY_KEYS)).unwrap();
        assert_eq!(config.get("flushDiskType"), Some("ASYNC_FLUSH"));
        assert_eq!(config.get("brokerRole"), Some("ASYNC_MASTER"));
        assert_eq!(config.number("maxMessageSize"), Some(4_194_304));
        assert_eq!(config.flag("transientStorePoolEnable"), Some(false));
        assert_eq!(config.number("slaveTimeout"), Some(3_001));
        assert_eq!(config.get("messageDelayLevel"), Some("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"));
        assert_eq!(config.number("inSyncReplicas"), version.is_5().then_some(1));
        assert_eq!(config.broker_version, version);
        assert!(config.iter().count() < 30);

        let info = answer(release, "runtime-info", &GetRuntimeInfo).unwrap();
        let (end, flushed) = (info.commit_log_max_offset().unwrap(), info.flushed_at_least().unwrap());
        assert!((0..=end).contains(&flushed) && end > 1_000, "{flushed} of {end}");
        assert_eq!((info.broker_version, info.get("bootTimestamp").is_some()), (version, true));
    }
}

#[test]
fn sends_are_read() {
    for release in RELEASES {
        for (name, offset) in [("send", 0), ("send-binary", 1), ("send-zlib", 2), ("send-lz4", 3), ("send-zstd", 4)] {
            let stored = answer(release, name, &send()).unwrap();
            assert_eq!((stored.status, stored.queue_id, stored.queue_offset), (SendStatus::Ok, 0, offset), "{name}");
            assert_eq!(stored.offset_ids.len(), 1);
            assert_eq!(stored.transaction_id.is_some(), release.starts_with('5'));
            assert_eq!(stored.broker_version.to_string(), release);
        }
        for (name, offset) in [("send-batch", 0), ("send-batch-binary", 5)] {
            let stored = answer(release, name, &batch(5)).unwrap();
            assert_eq!((stored.queue_id, stored.queue_offset, stored.transaction_id), (1, offset, None));
            assert!(stored.offset_ids.is_sorted() && stored.offset_ids.len() == 5);
            assert!(matches!(answer(release, name, &batch(4)), Err(Error::Answer { .. })));
        }
        // Only 4.9 answers in the serialisation of the request.
        let (_, serialization) = frame(&format!("{release}/send-binary"));
        assert_eq!(serialization == Serialization::Binary, release == "4.9.4");

        let (code, remark) = refused(answer(release, "send-topic-absent", &send()));
        assert_eq!(code, ResponseCode::TopicNotExist);
        assert!(remark.contains("NoSuchTopic"), "{remark}");
        let (code, remark) = refused(answer(release, "send-queue-absent", &send()));
        assert_eq!(code == ResponseCode::SystemError, release == "4.9.4");
        assert_eq!(code == ResponseCode::InvalidParameter, release == "5.5.0");
        assert!(remark.starts_with("request queueId[99] is illegal"), "{remark}");
        assert_eq!(refused(answer(release, "send-too-large", &send())).0, ResponseCode::MessageIllegal);
    }
}

#[test]
fn pulled_messages_are_read() {
    for release in RELEASES {
        let single = answer(release, "pull", &pull(&["paid", "open"])).unwrap();
        assert_eq!(
            (single.status, single.next_offset, single.min_offset, single.max_offset),
            (PullStatus::Found, 5, 0, 5)
        );
        assert_eq!(single.suggested_broker_id, 0);
        let bodies: Vec<Bytes> = single.messages.iter().map(|m| m.body().unwrap()).collect();
        let long = "from the outbox, ".repeat(60);
        assert_eq!(bodies, [b"one", b"two", long.as_bytes(), long.as_bytes(), long.as_bytes()]);
        let types: Vec<i32> = single.messages.iter().map(|m| m.sys_flag).collect();
        assert_eq!(types, [0, 0, 0x301, 0x101, 0x201]);
        let first = &single.messages[0];
        assert_eq!(first.unique_key(), Some("0000000000000000000000000000000A"));
        assert_eq!(first.keys().collect::<Vec<_>>(), ["key-1", "0000000000000000000000000000000A"]);
        assert_eq!((first.tag(), first.properties.get("name")), (Some("paid"), Some("wert ä")));
        assert_eq!((first.topic.as_str(), first.queue_id, first.queue_offset), ("Corpus", 0, 0));
        let sent = answer(release, "send", &send()).unwrap().offset_ids;
        assert_eq!(sent, [first.offset_id()]);
        // A tag that is not wanted: the broker's hash could be the same, so it is compared again.
        let other = answer(release, "pull", &pull(&["open"])).unwrap();
        assert_eq!((other.messages.len(), other.next_offset), (0, 5));

        let batched = answer(release, "pull-binary", &pull(&[])).unwrap().messages;
        let ids: Vec<OffsetId> = batched.iter().map(StoredMessage::offset_id).collect();
        let sent = [("send-batch", 0..5), ("send-batch-binary", 5..10)];
        for (name, part) in sent {
            assert_eq!(answer(release, name, &batch(5)).unwrap().offset_ids, ids[part.clone()]);
            for (i, message) in batched[part].iter().enumerate() {
                assert_eq!(message.body().unwrap(), format!("{name} {i}"));
                assert_eq!(message.unique_key(), Some(format!("{name}-{i}").as_str()));
            }
        }
        let nothing = answer(release, "pull-nothing", &pull(&[])).unwrap();
        assert_eq!((nothing.status, nothing.next_offset), (PullStatus::NotFound, 5));
        let moved = answer(release, "pull-moved", &pull(&[])).unwrap();
        assert_eq!((moved.status, moved.next_offset), (PullStatus::OffsetMoved, 5));
        assert_eq!(moved.remark.as_deref(), Some("OFFSET_OVERFLOW_BADLY"));
    }
}

#[test]
fn searches_and_offsets_are_read() {
    for release in RELEASES {
        let seen = answer(release, "view-message", &ViewMessage { commit_log_offset: 0 }).unwrap();
        assert_eq!(seen, answer(release, "pull", &pull(&[])).unwrap().messages[0]);
        let absent = refused(answer(release, "view-message-absent", &ViewMessage { commit_log_offset: 0 }));
        assert_eq!(absent.0, ResponseCode::SystemError);
        // Its unique key is one of its keys too, so that the broker's index has it twice.
        let found = answer(release, "query-message", &query("0000000000000000000000000000000A")).unwrap();
        assert_eq!(found, [seen]);
        assert_eq!(answer(release, "query-message", &query("another of the same hash")).unwrap(), []);
        assert_eq!(answer(release, "query-message-absent", &query("nothing")).unwrap(), []);

        let (topic, queue_id, broker_name) = ("Corpus".to_owned(), 0, None);
        let max = GetMaxOffset { topic: topic.clone(), queue_id, broker_name: broker_name.clone() };
        assert_eq!(answer(release, "max-offset", &max).unwrap().offset, 5);
        let min = GetMinOffset { topic: topic.clone(), queue_id, broker_name: broker_name.clone() };
        assert_eq!(answer(release, "min-offset", &min).unwrap().offset, 0);
        let search = SearchOffset { topic: topic.clone(), queue_id, at_ms: 0, broker_name: broker_name.clone() };
        assert_eq!(answer(release, "search-offset", &search).unwrap().offset, 0);
        let stands = QueryConsumerOffset { group: "g".into(), topic: topic.clone(), queue_id, broker_name: None };
        assert_eq!(answer(release, "consumer-offset", &stands).unwrap().offset, Some(3));
        // A group that the broker does not know: 4.9 says 0 as long as the queue is whole.
        let unknown = answer(release, "consumer-offset-absent", &stands).unwrap().offset;
        assert_eq!(unknown, (release == "4.9.4").then_some(0));
        let moves = UpdateConsumerOffset { group: "g".into(), topic, queue_id, offset: 3, broker_name };
        answer(release, "update-consumer-offset", &moves).unwrap();
    }
}

#[test]
fn transactions_are_read() {
    for release in RELEASES {
        let half = answer(release, "send-half", &send()).unwrap();
        assert_eq!((half.queue_id, half.queue_offset), (2, 0));
        assert_eq!(answer(release, "send-half-binary", &send()).unwrap().queue_offset, 1);
        answer(release, "commit", &end()).unwrap();
        answer(release, "rollback", &end()).unwrap();
        let (code, remark) = refused(answer(release, "commit-wrong-offset", &end()));
        assert_eq!((code, remark.as_str()), (ResponseCode::SystemError, "The transaction state table offset wrong"));

        let (push, _) = frame(&format!("{release}/check-transaction-state"));
        assert!(push.is_one_way() && !push.is_answer());
        assert_eq!(push.request_code(), RequestCode::CheckTransactionState);
        let check = CheckTransactionState::read(&push).unwrap();
        assert_eq!((check.unique_key.as_str(), check.producer_group.as_str()), ("open", "corpus-group"));
        assert_eq!((check.topic(), check.message.body().unwrap()), ("Corpus", Bytes::from_static(b"half")));
        assert_eq!(check.check_times(), Some(1));
        assert_eq!(check.broker_name.is_some(), release.starts_with('5'));
        // Each check moves the half, so that its offsets are not those of the send.
        let sent = answer(release, "send-half-open", &send()).unwrap();
        assert!(check.half_queue_offset > sent.queue_offset);
        assert!(check.commit_log_offset > sent.last_commit_log_offset().unwrap());
        let end = check.end(Resolution::Rollback).command().unwrap();
        assert_eq!(end.ext.get("commitLogOffset"), push.ext.get("commitLogOffset"));
        assert_eq!(end.ext.get("tranStateTableOffset"), push.ext.get("tranStateTableOffset"));
        assert_eq!((end.ext.get("fromTransactionCheck"), end.ext.get("topic")), (Some("true"), Some("Corpus")));

        let given_up = answer(release, "pull-given-up", &pull(&[])).unwrap().messages.remove(0);
        assert_eq!(given_up.topic, "TRANS_CHECK_MAX_TIME_TOPIC");
        assert_eq!(given_up.properties.get("REAL_TOPIC"), Some("Corpus"));
        assert_eq!(given_up.unique_key(), Some("open"));
        answer(release, "resume-half", &ResumeHalf { offset_id: given_up.offset_id() }).unwrap();
    }
}

#[test]
fn java_and_this_crate_write_the_same() {
    let body = "from the outbox, ".repeat(60);
    for (name, binary) in [("java/request-json", false), ("java/request-rocketmq", true)] {
        let (request, serialization) = frame(name);
        assert_eq!(serialization == Serialization::Binary, binary);
        assert_eq!((request.code, request.language, request.opaque), (310, Language::Java, 77));
        assert_eq!((request.remark.as_deref(), &request.body[..]), (Some("Grüße"), body.as_bytes()));
        assert_eq!(request.ext.get("i"), Some("KEYS\u{1}1\u{2}TAGS\u{1}ä"));
        assert_eq!((request.ext.get("a"), request.ext.get("k")), (Some("group"), Some("false")));
    }
    for name in ["zlib", "lz4", "zstd", "ipv6"] {
        let message = StoredMessage::read_all(bytes(&format!("java/stored-{name}.bin"))).unwrap().remove(0);
        assert_eq!(message.body().unwrap(), body, "{name}");
        assert_eq!(message.keys().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!((message.tag(), message.properties.get("name")), (Some("paid"), Some("wert ä")));
        assert_eq!((message.flag, message.queue_id, message.reconsume_times), (7, 3, 2));
        assert_eq!((message.queue_offset, message.commit_log_offset), (1 << 33, 1 << 34));
        assert_eq!((message.born_at_ms, message.stored_at_ms), (1_700_000_000_000, 1_700_000_000_001));
        assert_eq!(message.prepared_transaction_offset, 5);
        let v6 = name == "ipv6";
        assert_eq!(message.sys_flag & (sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6) != 0, v6);
        let hosts =
            if v6 { ["[2001:db8::1]:10911", "[2001:db8::2]:50000"] } else { ["127.0.0.1:10911", "10.0.0.1:50000"] };
        assert_eq!([message.store_host, message.born_host].map(|h| h.to_string()), hosts);
    }
    let batch = decode_batch(bytes("java/batch.bin")).unwrap();
    for (i, message) in (0i32..).zip(&batch) {
        assert_eq!((message.flag, &message.body[..]), (i, format!("body {i}").as_bytes()));
        assert_eq!(message.properties.get("UNIQ_KEY"), Some(format!("unique{i}").as_str()));
        assert_eq!(message.properties.get("TAGS"), Some(format!("tag{i}").as_str()));
    }
    assert_eq!(batch.len(), 3);
}

#[test]
fn java_and_this_crate_compute_the_same() {
    let facts = std::fs::read_to_string(path("java/facts.txt")).unwrap();
    let mut seen = 0;
    for line in facts.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["hash", text, hash] => assert_eq!(java_hash(text).to_string(), hash, "{text}"),
            ["queue", text, queues, chosen] => {
                let ours = queue_by_hash(text, queues.parse().unwrap()).unwrap();
                assert_eq!(ours.to_string(), chosen, "{text} of {queues}");
            }
            ["signature", secret, signature] => {
                let mut command = Command::request(RequestCode::HeartBeat)
                    .with("b", "Orders")
                    .with("a", "group ä")
                    .with("Z", "last")
                    .with_body("body ä");
                acl::sign(&mut command, &Credentials::new("app", secret).with_security_token("token"));
                assert_eq!(command.ext.get("Signature"), Some(signature));
            }
            _ => panic!("{line}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 9 * 8 + 1);
}

/// Everything that reads bytes of a peer, one after the other.
fn read_as_anything(frame: Bytes) {
    let Ok((command, _)) = codec::decode(frame) else { return };
    let _ = format!("{command:?}");
    for serialization in [Serialization::Json, Serialization::Binary] {
        let mut out = BytesMut::new();
        let _ = codec::encode(&command, serialization, &mut out);
    }
    let _ = CheckTransactionState::read(&command).map(|check| check.end(Resolution::Commit).command());
    let _ = GetClusterInfo.answer(command.clone());
    let _ = GetRoute { topic: "t".into() }
        .answer(command.clone())
        .map(|r| (r.publish_queues("t"), r.subscribe_queues("t")));
    let _ = GetBrokerConfig::of(DURABILITY_KEYS).answer(command.clone());
    let _ = GetRuntimeInfo.answer(command.clone()).map(|info| info.flushed_at_least());
    let _ = send().answer(command.clone());
    let _ = batch(5).answer(command.clone());
    let _ = query("k").answer(command.clone());
    let _ = GetMaxOffset { topic: "t".into(), queue_id: 0, broker_name: None }.answer(command.clone());
    let _ = decode_batch(command.body.clone());
    for message in pull(&[]).answer(command).map(|answer| answer.messages).unwrap_or_default() {
        let _ = (message.body_within(1 << 20), message.unwrap_batch(), format!("{message:?}"));
    }
}

#[test]
fn no_damage_makes_a_reader_panic() {
    let mut frames = 0;
    for folder in RELEASES.iter().chain(&["java"]) {
        for entry in std::fs::read_dir(path(folder)).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_none_or(|e| e != "bin") {
                continue;
            }
            frames += 1;
            let whole: Bytes = std::fs::read(&file).unwrap().into();
            let frame = whole.slice(4.min(whole.len())..);
            read_as_anything(frame.clone());
            // Cut off at up to 60 places; one byte changed at up to 100 places.
            for end in (0..frame.len()).step_by(frame.len() / 60 + 1) {
                read_as_anything(frame.slice(..end));
            }
            for at in (0..frame.len()).step_by(frame.len() / 100 + 1) {
                for change in [0x01, 0x80, 0xFF] {
                    let mut damaged = frame.to_vec();
                    damaged[at] ^= change;
                    read_as_anything(damaged.into());
                }
            }
        }
    }
    assert!(frames > 80, "{frames}");
}

#[test]
fn recorded_frames_survive_being_written_again() {
    for release in RELEASES {
        for entry in std::fs::read_dir(path(release)).unwrap() {
            let name = entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
            let (command, _) = frame(&format!("{release}/{name}"));
            for serialization in [Serialization::Json, Serialization::Binary] {
                let mut out = BytesMut::new();
                codec::encode(&command, serialization, &mut out).unwrap();
                let again = codec::split_frame(&mut out, MAX_FRAME_BYTES).unwrap().unwrap();
                assert_eq!(codec::decode(again), Ok((command.clone(), serialization)), "{name}");
            }
            assert!(command.version() >= Version::V4_9_4, "{name}");
        }
    }
}
