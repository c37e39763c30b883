//! What operators have done while the relay runs (S5): redrive, skip, edit, pause, resume; and what a kill or a change of
//! owner leaves of it.

use std::sync::Arc;

use bytes::Bytes;
use outhaul_core::act::{ActNumber, ActState, Edit, Selector, Verb};
use outhaul_core::message::{Position, ShardId};
use outhaul_store::{ActRecord, ActsWanted, ListedParked, NewAct, ParkedQuery};
use outhaul_testkit::scripted::{Answer, ScriptedSink};
use outhaul_testkit::servers::Flavour;

use crate::engine::{Bench, LIMIT, insert};
use crate::on_each;

impl Bench {
    async fn order(&self, verb: Verb, destination: Option<&str>, selector: Selector, edit: Option<Edit>) -> ActNumber {
        let shards: Vec<ShardId> = self.status().await.iter().map(|s| s.shard).collect();
        let act = NewAct {
            verb,
            destination: destination.map(str::to_owned),
            shards,
            selector,
            ranges: Default::default(),
            message_id: None,
            edit,
            actor: "test".into(),
            why: "a test".into(),
        };
        self.store.order(&act).await.unwrap()
    }

    /// Waits until an act is over everywhere.
    async fn carried_out(&self, number: ActNumber) -> Vec<ActRecord> {
        let wanted = ActsWanted::Numbers(vec![number]);
        let over = async {
            loop {
                let records = self.store.acts(&wanted).await.unwrap();
                if records.iter().all(|r| r.state != ActState::Open) {
                    return records;
                }
                // Another task writes it: there is no signal.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, over).await.expect("the act is carried out")
    }

    async fn do_act(&self, verb: Verb, selector: Selector, edit: Option<Edit>) -> Vec<ActRecord> {
        let number = self.order(verb, Some("d0"), selector, edit).await;
        let records = self.carried_out(number).await;
        assert!(records.iter().all(|r| r.state == ActState::Done), "{records:?}");
        records
    }

    /// The parked row of an id.
    async fn parked_row(&self, id: &str) -> ListedParked {
        let query = ParkedQuery { id: Some(id.into()), ..ParkedQuery::default() };
        self.store.list_parked(&query, 1).await.unwrap().pop().expect("a parked row")
    }

    /// The act about one parked message, in its own shard.
    async fn do_to(&self, verb: Verb, id: &str, edit: Option<Edit>) -> ActRecord {
        let row = self.parked_row(id).await;
        let selector = Selector { position: Some(row.entry.position), ..Selector::default() };
        let records = self.do_act(verb, selector, edit).await;
        records.into_iter().find(|r| r.act.shard == row.entry.shard).expect("a record")
    }
}

fn done(records: &[ActRecord]) -> u64 {
    records.iter().map(|r| r.act.done).sum()
}

/// Three messages of one key, the first of which is refused; one of another key that is delivered.
async fn blocked(bench: &mut Bench, sink: &ScriptedSink) -> crate::engine::Running {
    sink.script("m1", [Answer::Rejected]);
    let relay = bench.relay(&[sink]).await;
    for (id, key) in [("m1", "k"), ("m2", "k"), ("m3", "k"), ("other", "l")] {
        bench.insert(id, key).await;
    }
    sink.wait_stored(1).await;
    bench.wait_settled().await;
    assert_eq!(bench.parked("d0").await, (0, 2, 1));
    relay
}

on_each!(s5_a_blocked_key_is_freed_by_redrive: all);

async fn s5_a_blocked_key_is_freed_by_redrive(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    let relay = blocked(&mut bench, &sink).await;
    let records = bench.do_act(Verb::Redrive, Selector { key: Some("k".into()), ..Selector::default() }, None).await;
    assert_eq!(done(&records), 1, "what waits follows by itself: {records:?}");
    sink.wait_stored(4).await;
    bench.wait("nothing is parked", |s| s.iter().all(|s| s.parked.is_empty())).await;
    relay.drain().await;
    assert_eq!(sink.stored_ids(), ["other", "m1", "m2", "m3"]);
    assert_eq!(sink.duplicates(), 0);
}

on_each!(s5_a_blocked_key_is_freed_by_skip: all);

async fn s5_a_blocked_key_is_freed_by_skip(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    let relay = blocked(&mut bench, &sink).await;
    let row = bench.parked_row("m1").await;
    let record = bench.do_to(Verb::Skip, "m1", None).await;
    assert_eq!((record.act.done, record.actor.as_str()), (1, "test"));
    sink.wait_stored(3).await;
    bench.wait("nothing is parked", |s| s.iter().all(|s| s.parked.is_empty())).await;
    let receipts = bench.store.receipts_of(row.entry.shard, row.entry.position).await.unwrap();
    let touched: Vec<_> = receipts.iter().flat_map(|r| &r.acts).collect();
    assert_eq!(touched.iter().map(|t| (t.number, t.verb)).collect::<Vec<_>>(), [(record.act.number, Verb::Skip)]);
    relay.drain().await;
    // Neither by this owner nor by the next.
    let relay = bench.relay(&[&sink]).await;
    bench.insert("m4", "k").await;
    sink.wait_stored(4).await;
    relay.drain().await;
    assert_eq!(sink.stored_ids(), ["other", "m2", "m3", "m4"]);
}

on_each!(s5_a_blocked_key_is_freed_by_edit: all);

/// What is edited is what is delivered: also when the destination has forgotten it, and by the next owner.
async fn s5_a_blocked_key_is_freed_by_edit(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    let relay = blocked(&mut bench, &sink).await;
    let payload = Bytes::from_static(b"mended");
    let edit = Edit { payload: Some(payload.clone()), headers: Some(Some(r#"{"by":"hand"}"#.into())), key: None };
    assert_eq!(bench.do_to(Verb::Edit, "m1", Some(edit)).await.act.done, 1);
    sink.wait_stored(4).await;
    bench.wait("nothing is parked", |s| s.iter().all(|s| s.parked.is_empty())).await;
    assert_eq!(sink.stored_ids(), ["other", "m1", "m2", "m3"]);
    let is_mended =
        |m: &outhaul_core::message::Message| m.payload == payload && m.headers.as_deref() == Some(r#"{"by":"hand"}"#);
    assert!(sink.stored().iter().filter(|m| m.id == "m1").all(|m| is_mended(m)));
    relay.drain().await;
    sink.forget(&["m1", "m2", "m3"]);
    let relay = bench.relay(&[&sink]).await;
    sink.wait_received(8).await;
    bench.insert("m4", "k").await;
    sink.wait_stored(5).await;
    bench.wait_settled().await;
    relay.drain().await;
    let again: Vec<Arc<_>> = sink.stored();
    assert_eq!(again.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["other", "m1", "m2", "m3", "m4"]);
    assert!(is_mended(&again[1]), "the log has the original: {:?}", again[1]);
}

on_each!(a_paused_lane_begins_nothing: all);

/// Other lanes go on, rows leave the hot table, and a restart changes nothing.
async fn a_paused_lane_begins_nothing(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let (paused, free) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    let relay = bench.relay(&[&paused, &free]).await;
    bench.insert_many(0..10).await;
    paused.wait_stored(10).await;
    let number = bench.order(Verb::Pause, Some("d0"), Selector::default(), None).await;
    bench.carried_out(number).await;
    bench.insert_many(10..30).await;
    free.wait_stored(30).await;
    bench.wait("rows leave the hot table", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    assert_eq!(paused.received().len(), 10);
    relay.drain().await;
    let relay = bench.relay(&[&paused, &free]).await;
    bench.insert_many(30..40).await;
    free.wait_stored(40).await;
    assert_eq!(paused.received().len(), 10);
    let pauses = bench.store.pauses().await.unwrap();
    assert!(pauses.iter().all(|p| p.actor == "test" && p.destination.as_deref() == Some("d0")) && !pauses.is_empty());
    let number = bench.order(Verb::Resume, Some("d0"), Selector::default(), None).await;
    bench.carried_out(number).await;
    paused.wait_stored(40).await;
    bench.wait_settled().await;
    assert!(bench.store.pauses().await.unwrap().is_empty());
    relay.drain().await;
    assert_eq!((paused.duplicates(), free.duplicates()), (0, 0));
}

on_each!(a_pause_that_was_ordered_before_the_start_holds_from_the_start: all);

async fn a_pause_that_was_ordered_before_the_start_holds_from_the_start(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    bench.insert_many(0..20).await;
    bench.order(Verb::Pause, None, Selector::default(), None).await;
    let relay = bench.relay(&[&sink]).await;
    bench.wait("rows leave the hot table", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    let number = bench.order(Verb::Resume, None, Selector::default(), None).await;
    assert!(sink.received().is_empty());
    bench.carried_out(number).await;
    sink.wait_stored(20).await;
    relay.drain().await;
}

on_each!(what_had_no_route_goes_where_the_routes_lead_now: all);

async fn what_had_no_route_goes_where_the_routes_lead_now(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    let relay = bench.relay_with(&[&sink], "something-else").await;
    bench.insert_many(0..20).await;
    bench
        .wait("all is parked under -", |s| {
            s.iter().flat_map(|s| &s.parked).map(|(_, _, _, dead)| dead).sum::<u64>() == 20
        })
        .await;
    let number = bench.order(Verb::Redrive, Some("-"), Selector::default(), None).await;
    let records = bench.carried_out(number).await;
    assert_eq!((done(&records), records.iter().map(|r| r.act.left).sum::<u64>()), (0, 20));
    assert!(records.iter().all(|r| r.act.left == 0 || r.note.starts_with("OUT-4001 ")), "{records:?}");
    relay.drain().await;
    let relay = bench.relay(&[&sink]).await;
    let skipped = bench.parked_row("m7").await;
    let selector = Selector { position: Some(skipped.entry.position), ..Selector::default() };
    let shard = skipped.entry.shard;
    let number = bench.order(Verb::Skip, Some("-"), selector, None).await;
    let records = bench.carried_out(number).await;
    assert_eq!(records.iter().filter(|r| r.act.shard == shard).map(|r| r.act.done).sum::<u64>(), 1);
    let gone = done(&records);
    let number = bench.order(Verb::Redrive, Some("-"), Selector::default(), None).await;
    assert_eq!(done(&bench.carried_out(number).await), 20 - gone);
    sink.wait_stored(20 - gone as usize).await;
    bench.wait("nothing is parked", |s| s.iter().all(|s| s.parked.is_empty())).await;
    relay.drain().await;
    let ids = sink.stored_ids();
    assert!(!ids.contains(&"m7".to_owned()) && sink.duplicates() == 0);
    for key in 0..5 {
        let of_key = ids.iter().filter_map(|id| id[1..].parse::<u64>().ok()).filter(|n| n % 5 == key);
        assert!(of_key.is_sorted(), "order of k{key}: {ids:?}");
    }
}

on_each!(o2_a_redrive_goes_on_after_a_kill: all);

/// O2: hundreds of dead messages of a few keys are redriven under a limit of the rate; the relay is killed in the middle.
async fn o2_a_redrive_goes_on_after_a_kill(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(4));
    sink.otherwise(Answer::Rejected);
    bench.limits.block_key = false;
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..300).await;
    bench
        .wait("all is dead", |s| s.iter().flat_map(|s| &s.parked).map(|(_, _, _, dead)| dead).sum::<u64>() == 300)
        .await;
    sink.otherwise(Answer::Ok);
    let number =
        bench.order(Verb::Redrive, Some("d0"), Selector { rate_milli: 30_000, ..Selector::default() }, None).await;
    sink.wait_stored(30).await;
    let so_far = bench.store.acts(&ActsWanted::Numbers(vec![number])).await.unwrap();
    assert!(so_far.iter().all(|r| r.state == ActState::Open), "{so_far:?}");
    relay.kill().await;
    let relay = bench.relay(&[&sink]).await;
    let records = bench.carried_out(number).await;
    assert!((240..=300).contains(&done(&records)), "{records:?}");
    sink.wait_stored(300).await;
    bench.wait("nothing is parked", |s| s.iter().all(|s| s.parked.is_empty())).await;
    relay.drain().await;
    let ids = sink.stored_ids();
    assert_eq!(ids.len(), 300);
    for key in 0..5 {
        let of_key = ids.iter().filter_map(|id| id[1..].parse::<u64>().ok()).filter(|n| n % 5 == key);
        assert!(of_key.is_sorted(), "order of k{key}: {ids:?}");
    }
}

on_each!(until_empty_carries_out_what_was_ordered: all);

async fn until_empty_carries_out_what_was_ordered(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    blocked(&mut bench, &sink).await.drain().await;
    let number = bench.order(Verb::Redrive, Some("d0"), Selector::default(), None).await;
    bench.until_empty = true;
    let relay = bench.relay(&[&sink]).await;
    tokio::time::timeout(LIMIT, relay.task).await.expect("it ends by itself").unwrap().unwrap();
    assert_eq!(sink.stored_ids(), ["other", "m1", "m2", "m3"]);
    let records = bench.store.acts(&ActsWanted::Numbers(vec![number])).await.unwrap();
    assert!(records.iter().all(|r| r.state == ActState::Done), "{records:?}");
}

on_each!(what_cannot_be_done_is_refused: sqlite => Sqlite, postgres => Postgres);

async fn what_cannot_be_done_is_refused(flavour: Flavour) {
    let (mut bench, sink) = (Bench::new(flavour).await, ScriptedSink::by_key(2));
    let relay = bench.relay(&[&sink]).await;
    bench.database.execute(&insert("m1", "k")).await;
    sink.wait_stored(1).await;
    let at = Selector { position: Some(Position(0)), ..Selector::default() };
    for (verb, destination) in [(Verb::Redrive, "gone"), (Verb::Edit, "-"), (Verb::Edit, "gone")] {
        let number = bench.order(verb, Some(destination), at.clone(), Some(Edit::default())).await;
        let records = bench.carried_out(number).await;
        assert!(
            records.iter().all(|r| r.state == ActState::Refused && r.note.starts_with("OUT-4018 ")),
            "{verb:?} {destination}: {records:?}"
        );
    }
    // What is not parked is left alone, and the act is done all the same.
    assert_eq!(done(&bench.do_act(Verb::Skip, at, None).await), 0);
    relay.drain().await;
}
