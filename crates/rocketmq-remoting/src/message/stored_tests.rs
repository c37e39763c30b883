use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::super::compress;
use super::*;

/// Writes a message as a broker stores it.
pub(crate) fn encode(message: &StoredMessage, v2: bool) -> Bytes {
    let mut out = BytesMut::new();
    let properties: String = message.properties.iter().map(|(n, v)| format!("{n}\u{1}{v}\u{2}")).collect();
    out.put_u32(if v2 { MAGIC_V2 } else { MAGIC_V1 });
    out.put_u32(message.body_checksum);
    out.put_i32(message.queue_id);
    out.put_i32(message.flag);
    out.put_i64(message.queue_offset);
    out.put_i64(message.commit_log_offset);
    out.put_i32(message.sys_flag);
    out.put_i64(message.born_at_ms);
    put_host(&mut out, message.born_host);
    out.put_i64(message.stored_at_ms);
    put_host(&mut out, message.store_host);
    out.put_i32(message.reconsume_times);
    out.put_i64(message.prepared_transaction_offset);
    out.put_i32(message.stored_body.len().try_into().unwrap());
    out.put_slice(&message.stored_body);
    if v2 {
        out.put_u16(message.topic.len().try_into().unwrap());
    } else {
        out.put_u8(message.topic.len().try_into().unwrap());
    }
    out.put_slice(message.topic.as_bytes());
    out.put_u16(properties.len().try_into().unwrap());
    out.put_slice(properties.as_bytes());
    let mut record = BytesMut::new();
    record.put_u32(u32::try_from(out.len()).unwrap() + 4);
    record.put_slice(&out);
    record.freeze()
}

fn put_host(out: &mut BytesMut, host: SocketAddr) {
    match host.ip() {
        IpAddr::V4(ip) => out.put_slice(&ip.octets()),
        IpAddr::V6(ip) => out.put_slice(&ip.octets()),
    }
    out.put_i32(i32::from(host.port()));
}

fn arbitrary() -> impl Strategy<Value = StoredMessage> {
    let hosts = (any::<IpAddr>(), any::<u16>(), any::<IpAddr>(), any::<u16>());
    let numbers = (any::<i32>(), any::<i64>(), any::<i64>(), any::<i32>(), any::<i64>(), any::<i32>());
    let texts = (
        "[a-zA-Z0-9_%|-]{1,127}",
        prop::collection::vec(("[a-zA-Z]{1,8}", "[^\u{1}\u{2}]{1,8}"), 0..5),
        prop::collection::vec(any::<u8>(), 0..100),
    );
    (hosts, numbers, texts).prop_map(|((born, born_port, store, store_port), numbers, (topic, list, body))| {
        let mut properties = Properties::default();
        for (name, value) in list {
            properties.set(&name, &value).unwrap();
        }
        let sys_flag = if born.is_ipv6() { sys_flag::BORN_HOST_V6 } else { 0 }
            | if store.is_ipv6() { sys_flag::STORE_HOST_V6 } else { 0 };
        let body = Bytes::from(body);
        StoredMessage {
            topic,
            queue_id: numbers.0,
            queue_offset: numbers.1,
            commit_log_offset: numbers.2,
            flag: numbers.3,
            sys_flag,
            born_at_ms: numbers.4,
            born_host: SocketAddr::new(born, born_port),
            stored_at_ms: numbers.1,
            store_host: SocketAddr::new(store, store_port),
            reconsume_times: numbers.5,
            prepared_transaction_offset: numbers.4,
            properties,
            body_checksum: crc32fast::hash(&body) & 0x7FFF_FFFF,
            stored_body: body,
        }
    })
}

fn example() -> StoredMessage {
    StoredMessage {
        topic: "Orders".into(),
        queue_id: 3,
        queue_offset: 17,
        commit_log_offset: 1_000,
        flag: 0,
        sys_flag: 0,
        born_at_ms: 1,
        born_host: "10.0.0.1:5000".parse().unwrap(),
        stored_at_ms: 2,
        store_host: "127.0.0.1:10911".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        properties: Properties::parse("KEYS\u{1}a b\u{2}TAGS\u{1}t\u{2}UNIQ_KEY\u{1}u"),
        body_checksum: 0,
        stored_body: Bytes::new(),
    }
}

#[test]
fn names_and_ids_are_read_from_the_properties() {
    let message = example();
    assert_eq!(message.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((message.tag(), message.unique_key()), (Some("t"), Some("u")));
    assert_eq!(message.offset_id().to_string(), "7F00000100002A9F00000000000003E8");
    assert_eq!(message.body().unwrap(), Bytes::new());
}

#[test]
fn a_long_topic_has_two_bytes_of_length() {
    let message = StoredMessage { topic: "t".repeat(200), ..example() };
    assert_eq!(StoredMessage::read_all(encode(&message, true)).unwrap(), [message]);
}

#[test]
fn a_broken_record_is_told_apart() {
    let good = encode(&example(), false);
    let with = |at: usize, bytes: &[u8]| {
        let mut all = good.to_vec();
        all[at..at + bytes.len()].copy_from_slice(bytes);
        StoredMessage::read_all(all.into()).unwrap_err()
    };
    assert_eq!(with(0, &[0xFF; 4]), StoredError::Length("record"));
    assert_eq!(with(0, &[0, 0, 0, 3]), StoredError::Length("record"));
    assert_eq!(with(0, &[0x7F, 0, 0, 0]), StoredError::Truncated);
    assert_eq!(with(4, &[1, 2, 3, 4]), StoredError::Magic(0x0102_0304));
    assert_eq!(with(52, &[0, 1, 0, 0]), StoredError::Port(65_536));
    assert_eq!(with(84, &[0xFF; 4]), StoredError::Length("body"));
    assert_eq!(with(88, &[0xFF]), StoredError::Length("topic"));
    assert_eq!(StoredMessage::read_all(good.slice(..good.len() - 1)), Err(StoredError::Truncated));
}

#[test]
fn a_body_is_checked_and_unpacked() {
    for compression in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        let packed: Bytes = compress(&[7; 5_000], compression).unwrap().into();
        let mut message = StoredMessage {
            sys_flag: compression.sys_flag(),
            body_checksum: crc32fast::hash(&packed) & 0x7FFF_FFFF,
            stored_body: packed,
            ..example()
        };
        assert_eq!(message.body().unwrap(), vec![7; 5_000]);
        assert_eq!(message.body_within(4_999), Err(CompressionError::TooLarge { limit_bytes: 4_999 }.into()));
        message.body_checksum ^= 1;
        assert!(matches!(message.body(), Err(StoredError::Checksum { .. })));
    }
    let message = StoredMessage { sys_flag: 0x701, ..example() };
    assert_eq!(message.body(), Err(CompressionError::Unknown(7).into()));
}

proptest! {
    #[test]
    fn round_trip(messages in prop::collection::vec(arbitrary(), 0..4), v2: bool) {
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(m, v2)).collect();
        let back = StoredMessage::read_all(bytes.into()).unwrap();
        for message in &back {
            prop_assert_eq!(message.body().unwrap(), message.stored_body.clone());
        }
        prop_assert_eq!(back, messages);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StoredMessage::read_all(bytes.into());
    }

    #[test]
    fn damaged_records_never_panic(message in arbitrary(), at in any::<prop::sample::Index>(), with in any::<u8>(), v2: bool) {
        let mut bytes = encode(&message, v2).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(messages) = StoredMessage::read_all(bytes.into()) {
            for message in messages {
                let _ = (message.body_within(10_000), message.unwrap_batch());
            }
        }
    }
}
