use std::collections::BTreeMap;

use bytes::Bytes;
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::message::Seq;
use outhaul_core::receipt::{AckLevel, LaneReceipt, LaneState, Receipt};

use outhaul_core::act::{ActNumber, Touched, Verb};

use super::*;

const NOW_US: i64 = 1_000 * HOUR_US;

fn message(position: u64, payload_bytes: usize, destinations: &[u8]) -> Message {
    Message {
        position: Position(position),
        seq: Seq(position + 7),
        shard: ShardId(0),
        id: format!("id-{position}"),
        topic: "orders".into(),
        key: Some(format!("k{}", position % 3)),
        headers: None,
        payload: vec![b'x'; payload_bytes].into(),
        created_at_us: position as i64,
        destinations: destinations.iter().map(|d| DestinationIndex(*d)).collect(),
        defect: None,
    }
}

fn stored(messages: &[Message], names: &[&str], moved_at_us: i64) -> StoredChunk {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let chunk = chunk::encode(messages.iter(), &names);
    StoredChunk {
        shard: ShardId(0),
        base: chunk.base,
        count: chunk.count,
        codec: chunk.codec,
        created_at_us: (chunk.first_created_at_us, chunk.last_created_at_us),
        moved_at_us,
        bytes: chunk.bytes.into(),
    }
}

fn run_of(base: u64, count: u64, payload_bytes: usize) -> StoredChunk {
    let messages: Vec<Message> = (base..base + count).map(|p| message(p, payload_bytes, &[0])).collect();
    stored(&messages, &["a"], NOW_US)
}

fn names_of(chunk: &EncodedChunk, message: usize) -> Vec<String> {
    let names = chunk::destination_names(chunk.codec, &chunk.bytes).unwrap();
    let messages = chunk::decode(chunk.codec, &chunk.bytes, ShardId(0), chunk.base, &names).unwrap();
    messages[message].destinations.iter().map(|d| names[usize::from(d.0)].clone()).collect()
}

#[test]
fn nothing_is_settled_without_a_lane() {
    assert_eq!(settled_below(&ReceiptRow::default()), None);
    let lane = |proven| (LaneState { cursor: Position(9), proven: Position(proven), ..LaneState::default() }, vec![]);
    assert_eq!(
        settled_below(&ReceiptRow { lanes: vec![lane(7), lane(3), lane(9)], ..ReceiptRow::default() }),
        Some(Position(3))
    );
}

#[test]
fn a_joined_chunk_holds_every_message_as_it_was() {
    let first = [message(0, 10, &[0]), message(1, 10, &[0, 1])];
    let second = [message(2, 10, &[0]), message(3, 10, &[])];
    let group = [stored(&first, &["a", "b"], NOW_US), stored(&second, &["c", "a"], NOW_US + 5)];
    let (joined, last) = join_chunks(&group, CHUNK_BYTES);
    assert_eq!((joined.len(), last), (1, Some(0)));
    let JoinedChunk { chunk, moved_at_us, sources } = &joined[0];
    assert_eq!((chunk.base, chunk.count, *moved_at_us), (Position(0), 4, NOW_US + 5));
    assert_eq!((chunk.first_created_at_us, chunk.last_created_at_us), (0, 3));
    assert_eq!(*sources, [Position(0), Position(2)]);
    assert_eq!(names_of(chunk, 0), ["a"]);
    assert_eq!(names_of(chunk, 1), ["a", "b"]);
    assert_eq!(names_of(chunk, 2), ["c"]);
    assert!(names_of(chunk, 3).is_empty());
    let plain = |m: &Message| Message { destinations: DestinationSet::EMPTY, ..m.clone() };
    let back = chunk::decode(chunk.codec, &chunk.bytes, ShardId(0), chunk.base, &[]).unwrap();
    assert_eq!(back, first.iter().chain(&second).map(plain).collect::<Vec<_>>());
    assert!(back.iter().all(|m| outhaul_core::filter::may_contain(&chunk.id_filter, &m.id)));
}

#[test]
fn chunks_are_joined_up_to_a_size() {
    let group =
        [run_of(0, 10, 100), run_of(10, 10, 100), run_of(20, 10, 100), run_of(30, 10, 100), run_of(40, 10, 100)];
    let two = 20 * message(10, 100, &[]).weight();
    let (joined, last) = join_chunks(&group, two);
    let sources: Vec<Vec<u64>> = joined.iter().map(|j| j.sources.iter().map(|p| p.0).collect()).collect();
    assert_eq!(sources, [[0, 10], [20, 30]]);
    assert_eq!(last, Some(40), "the one that is left over may be joined to what follows");
    let (joined, last) = join_chunks(&group, 1);
    assert!(joined.is_empty());
    assert_eq!(last, Some(40));
}

#[test]
fn a_hole_or_an_unreadable_chunk_is_never_bridged() {
    let mut broken = run_of(20, 10, 1);
    broken.bytes = Bytes::from_static(b"?");
    let group = [run_of(0, 10, 1), run_of(11, 9, 1), broken, run_of(30, 10, 1), run_of(40, 10, 1)];
    let (joined, last) = join_chunks(&group, CHUNK_BYTES);
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].sources, [Position(30), Position(40)]);
    assert_eq!(last, Some(30));
    let mut newer = run_of(0, 10, 1);
    newer.codec = 200;
    assert!(join_chunks(&[newer, run_of(10, 1, 1)], CHUNK_BYTES).0.is_empty());
}

#[test]
fn no_destination_is_lost_to_the_limit_of_names() {
    let names: Vec<String> = (0..60).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let others: Vec<String> = (0..6).map(|n| format!("o{n}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let group = [
        stored(&[message(0, 1, &[59])], &names, NOW_US),
        stored(&[message(1, 1, &[5])], &others, NOW_US),
        stored(&[message(2, 1, &[5])], &others, NOW_US),
    ];
    let (joined, _) = join_chunks(&group, CHUNK_BYTES);
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].sources, [Position(1), Position(2)]);
    assert_eq!(names_of(&joined[0].chunk, 0), ["o5"]);
}

fn receipts(number: u64, lanes: &[(&str, u64, &[u64])]) -> StoredReceipts {
    let lane = |(name, cursor, positions): &(&str, u64, &[u64])| {
        let state = LaneState {
            destination: (*name).into(),
            cursor: Position(*cursor),
            proven: Position(*cursor),
            ..LaneState::default()
        };
        let receipt = |p: &u64| LaneReceipt {
            position: Position(*p),
            receipt: Receipt { sent_at_us: number as i64, level: AckLevel::Flushed, attempts: 1, detail: "d".into() },
        };
        (state, positions.iter().map(receipt).collect())
    };
    StoredReceipts {
        number,
        epoch: Epoch(number),
        log_end: Position(number * 10),
        created_at_us: NOW_US + number as i64,
        lanes: ReceiptRow { lanes: lanes.iter().map(lane).collect(), ..ReceiptRow::default() }.encode(),
    }
}

#[test]
fn joined_receipts_keep_every_receipt_and_the_last_state() {
    let group = [
        receipts(4, &[("a", 3, &[0, 2, 9]), ("gone", 1, &[0])]),
        receipts(5, &[("a", 5, &[3, 4])]),
        receipts(6, &[("a", 10, &[]), ("b", 2, &[1])]),
    ];
    let (joined, last) = join_receipts(&group);
    assert_eq!((joined.len(), last), (1, Some(6)));
    assert_eq!(joined[0].sources, [4, 5, 6]);
    assert_eq!(joined[0].span, Some((Position(0), Position(9))));
    let row = &joined[0].row;
    assert_eq!((row.number, row.epoch, row.log_end, row.created_at_us), (6, Epoch(6), Position(60), NOW_US + 6));
    let lanes = ReceiptRow::decode(&row.lanes).unwrap().lanes;
    let states: Vec<(&str, u64)> = lanes.iter().map(|(s, _)| (s.destination.as_str(), s.cursor.0)).collect();
    assert_eq!(states, [("a", 10), ("gone", 1), ("b", 2)]);
    let receipt = |r: &LaneReceipt| (r.position.0, r.receipt.sent_at_us);
    let receipts: Vec<Vec<(u64, i64)>> = lanes.iter().map(|(_, r)| r.iter().map(receipt).collect()).collect();
    assert_eq!(receipts, [vec![(0, 4), (2, 4), (3, 5), (4, 5), (9, 4)], vec![(0, 4)], vec![(1, 6)]]);
}

#[test]
fn joined_receipts_keep_what_acts_have_changed() {
    let touched = |number: u64, destination: &str, positions: &[u64]| {
        let mut runs = outhaul_core::runs::Runs::new();
        positions.iter().for_each(|p| _ = runs.insert(*p));
        let (number, destination) = (ActNumber(number), destination.to_owned());
        Touched { number, verb: Verb::Skip, destination, positions: runs }
    };
    let with = |number: u64, acts: Vec<Touched>| {
        let stored = receipts(number, &[("a", 3, &[2])]);
        let row = ReceiptRow { acts, ..ReceiptRow::decode(&stored.lanes).unwrap() };
        StoredReceipts { lanes: row.encode(), ..stored }
    };
    let group = [with(1, vec![touched(7, "a", &[0, 1])]), with(2, vec![touched(7, "a", &[40]), touched(7, "b", &[5])])];
    let (joined, _) = join_receipts(&group);
    assert_eq!(joined[0].span, Some((Position(0), Position(40))));
    let acts = ReceiptRow::decode(&joined[0].row.lanes).unwrap().acts;
    assert_eq!(acts, [touched(7, "a", &[0, 1, 40]), touched(7, "b", &[5])]);
}

#[test]
fn joined_receipts_have_a_bound_and_leave_alone_what_they_cannot_read() {
    let many: Vec<u64> = (0..MERGED_COUNT as u64 / 2).collect();
    let group = [receipts(1, &[("a", 0, &many)]), receipts(2, &[("a", 0, &many)]), receipts(3, &[("a", 0, &[1])])];
    let (joined, _) = join_receipts(&group);
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].sources, [1, 2]);
    let mut broken = receipts(2, &[]);
    broken.lanes = vec![99];
    assert!(join_receipts(&[receipts(1, &[]), broken, receipts(3, &[])]).0.is_empty());
}

fn head(key: u64, count: u32, hours_ago: i64) -> Head {
    Head { key, count, at_us: NOW_US - hours_ago * HOUR_US, bytes: 100 }
}

fn pairs(plan: &Plan) -> Vec<(u64, u64)> {
    plan.groups.iter().map(|r| (r.first, r.last)).collect()
}

#[test]
fn only_closed_hours_are_joined_and_each_by_itself() {
    let heads =
        [head(0, 1, 5), head(1, 1, 5), head(2, 1, 4), head(3, 1, 3), head(4, 1, 3), head(5, 1, 1), head(6, 1, 1)];
    let plan = plan(0, &heads, false, NOW_US, 3_600_000);
    assert_eq!(pairs(&plan), [(0, 1), (3, 4)]);
    assert_eq!((plan.next_mark(Some(3)), plan.more), (5, false));
}

#[test]
fn an_hour_is_closed_so_long_after_its_end_and_not_before() {
    let heads = [head(0, 1, 2), head(1, 1, 2)];
    for (now_us, after_ms, closed) in [
        (NOW_US, 3_600_000, true),
        (NOW_US - 1, 3_600_000, false),
        (NOW_US, 3_600_001, false),
        (NOW_US, u64::MAX, false),
    ] {
        assert_eq!(!plan(0, &heads, false, now_us, after_ms).groups.is_empty(), closed, "{now_us} {after_ms}");
    }
}

#[test]
fn the_mark_stays_where_nothing_is_left_to_do() {
    assert_eq!(plan(42, &[], false, NOW_US, 0).next_mark(None), 42);
    let done = plan(0, &[head(7, 10, 5), head(17, 10, 5)], false, NOW_US, 0);
    assert_eq!((done.next_mark(Some(7)), done.more), (18, false));
    assert_eq!(plan(3, &[head(7, 1, 0)], false, NOW_US, 0).next_mark(None), 7);
}

#[test]
fn a_step_is_bounded_in_bytes() {
    let large = |key| Head { key, count: 1, at_us: 0, bytes: 3 << 20 };
    let heads: Vec<Head> = (0..20).map(large).collect();
    let plan = plan(0, &heads, false, NOW_US, 0);
    assert!(plan.more && plan.groups.is_empty());
    assert_eq!(plan.next_mark(None), 4);
}

/// However small the steps, merging comes to an end, loses nothing, and leaves few chunks.
#[test]
fn steps_end_and_leave_little() {
    for (limit, max_bytes) in [(2, CHUNK_BYTES), (3, CHUNK_BYTES), (7, 3_000), (100, CHUNK_BYTES), (2, 1)] {
        let mut log: BTreeMap<u64, StoredChunk> = (0..60)
            .map(|n| (n * 2, stored(&[message(n * 2, 9, &[0]), message(n * 2 + 1, 9, &[0])], &["a"], 0)))
            .collect();
        let mut mark = 0;
        let mut more = true;
        for _ in 0..500 {
            let heads: Vec<Head> = log
                .range(mark..)
                .take(limit)
                .map(|(k, c)| Head { key: *k, count: c.count, at_us: c.moved_at_us, bytes: c.bytes.len() as u64 })
                .collect();
            let plan = plan(mark, &heads, log.range(mark..).count() > limit, NOW_US, 0);
            let mut last_joined = None;
            for group in &plan.groups {
                let chunks: Vec<StoredChunk> = log.range(group.first..=group.last).map(|(_, c)| c.clone()).collect();
                let (joined, last) = join_chunks(&chunks, max_bytes);
                last_joined = last;
                for j in joined {
                    j.sources.iter().for_each(|base| assert!(log.remove(&base.0).is_some()));
                    let chunk = StoredChunk { bytes: j.chunk.bytes.into(), count: j.chunk.count, ..chunks[0].clone() };
                    log.insert(j.chunk.base.0, StoredChunk { base: j.chunk.base, ..chunk });
                }
            }
            mark = plan.next_mark(last_joined);
            more = plan.more;
            if !more {
                break;
            }
        }
        assert!(!more, "{limit} heads a step do not end");
        let mut next = 0;
        for (base, chunk) in &log {
            assert_eq!(*base, next);
            next += u64::from(chunk.count);
        }
        assert_eq!(next, 120);
        let most = if max_bytes == CHUNK_BYTES { 1 } else { 60 };
        assert!(log.len() <= most, "{} chunks are left with {limit} heads a step", log.len());
    }
}
