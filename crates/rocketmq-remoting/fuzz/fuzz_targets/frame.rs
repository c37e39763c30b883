//! Any frame, with its length as in `tests/corpus`, read as an answer to each request that reads more than a code.
#![no_main]

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use rocketmq_remoting::codec::{self, MAX_FRAME_BYTES};
use rocketmq_remoting::request::*;
use rocketmq_remoting::{Message, Request, Serialization};

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = BytesMut::from(bytes);
    while let Ok(Some(frame)) = codec::split_frame(&mut buffer, MAX_FRAME_BYTES) {
        read(frame);
    }
    if let Some(frame) = bytes.get(4..) {
        read(Bytes::copy_from_slice(frame));
    }
});

fn read(frame: Bytes) {
    let Ok((command, _)) = codec::decode(frame) else { return };
    let _ = format!("{command:?}");
    for serialization in [Serialization::Json, Serialization::Binary] {
        let mut out = BytesMut::new();
        if codec::encode(&command, serialization, &mut out).is_ok() {
            let again = codec::split_frame(&mut out, MAX_FRAME_BYTES).expect("a frame").expect("a whole one");
            let (again, _) = codec::decode(again).expect("what was written can be read");
            assert_eq!(again.ext, command.ext);
            assert_eq!(again.remark, command.remark);
        }
    }
    let _ = CheckTransactionState::read(&command).map(|check| check.end(Resolution::Commit).command());
    let _ = GetClusterInfo.answer(command.clone());
    let route = GetRoute { topic: "t".into() }.answer(command.clone());
    let _ = route.map(|route| (route.publish_queues("t"), route.subscribe_queues("t")));
    let _ = GetBrokerConfig::of(DURABILITY_KEYS).answer(command.clone());
    let _ = GetRuntimeInfo.answer(command.clone()).map(|info| info.flushed_at_least());
    let send = SendMessage {
        producer_group: "g".into(),
        message: Message::new("t", "x").expect("a message"),
        queue_id: 0,
        born_at_ms: 0,
        delivery: Delivery::Plain,
        compression: None,
        broker_name: None,
    };
    let _ = send.answer(command.clone());
    let query = QueryMessage { topic: "t".into(), key: "k".into(), max_messages: 1, from_ms: 0, to_ms: 0 };
    let _ = query.answer(command.clone());
    let pull = Pull {
        group: "g".into(),
        topic: "t".into(),
        queue_id: 0,
        offset: 0,
        max_messages: 1,
        subscription: Subscription::all(),
        suspend: Duration::ZERO,
        commit_offset: None,
        max_bytes: None,
        broker_name: None,
    };
    let _ = pull.answer(command);
}
