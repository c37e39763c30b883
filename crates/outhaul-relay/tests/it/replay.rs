//! Replays against destinations that a test scripts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use outhaul_core::act::{ActNumber, ActState, Edit, PositionRange, Selector, Verb};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, Position};
use outhaul_core::route::{Route, Routes};
use outhaul_relay::replay::{LeftOut, Replay, ReplayError, ReplayShard, ReplayStand, begin_of, replay};
use outhaul_relay::{Destination, Stop};
use outhaul_sink::{AckLevel, Sink};
use outhaul_store::{ActRecord, ActsWanted, NewAct, ParkedQuery, PruneRequest};
use outhaul_testkit::scripted::{Answer, ScriptedSink};
use outhaul_testkit::servers::Flavour;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::{Bench, LIMIT};
use crate::on_each;

/// A replay that runs.
struct Replaying {
    stop: Stop,
    left: Arc<Mutex<Vec<LeftOut>>>,
    stand: watch::Receiver<ReplayStand>,
    task: JoinHandle<Result<ReplayStand, ReplayError>>,
}

impl Replaying {
    async fn end(self) -> (Result<ReplayStand, ReplayError>, Vec<LeftOut>) {
        let ended = tokio::time::timeout(LIMIT, self.task).await.expect("it ends").expect("no panic");
        let left = self.left.lock().unwrap().clone();
        (ended, left)
    }
}

impl Bench {
    /// A log with so many messages, each delivered to `d0` by a relay that has ended.
    async fn with_log(flavour: Flavour, messages: usize) -> (Self, ScriptedSink) {
        let mut bench = Self::new(flavour).await;
        let sink = ScriptedSink::single();
        let relay = bench.relay(&[&sink]).await;
        bench.insert_many(0..messages).await;
        sink.wait_stored(messages).await;
        bench.wait_settled().await;
        relay.drain().await;
        (bench, sink)
    }

    /// Orders a replay of the whole log into `d0`.
    async fn order_replay(&self, selector: Selector) -> ActNumber {
        let status = self.status().await;
        let order = NewAct {
            verb: Verb::Replay,
            destination: Some("d0".into()),
            shards: status.iter().map(|s| s.shard).collect(),
            selector,
            ranges: status.iter().map(|s| (s.shard, PositionRange { from: Position(0), to: s.log_end })).collect(),
            message_id: None,
            edit: None,
            actor: "test".into(),
            why: "a test".into(),
        };
        self.store.order(&order).await.unwrap()
    }

    async fn replay_records(&self, number: ActNumber) -> Vec<ActRecord> {
        self.store.acts(&ActsWanted::Numbers(vec![number])).await.unwrap()
    }

    /// What carries an ordered replay out, from where it stands.
    async fn carrier(&self, number: ActNumber, sink: &ScriptedSink) -> Replay {
        let records = self.replay_records(number).await;
        let open = records.iter().filter(|r| r.state == ActState::Unfinished);
        let shard = |r: &ActRecord| ReplayShard {
            shard: r.act.shard,
            range: r.act.selector.as_ref().unwrap().range.unwrap(),
            next: r.act.next,
            done: r.act.done,
            left: r.act.left,
        };
        let shards = open.map(shard).collect();
        let selector = Selector { range: None, ..records[0].act.selector.clone().unwrap() };
        let destination =
            Destination { name: "d0".into(), sink: sink.sink(), limits: self.limits.clone(), require_ack: None };
        Replay {
            store: self.store.clone(),
            destination,
            names: vec!["d0".into()],
            routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
            number,
            runner: uuid::Uuid::new_v4().to_string(),
            selector,
            shards,
            give_up_after: None,
        }
    }

    async fn begin(&self, work: Replay) -> Replaying {
        assert!(self.store.take_replay(work.number, &work.runner).await.unwrap());
        let (stop, left) = (Stop::new(), Arc::new(Mutex::new(Vec::new())));
        let (stand, seen) = watch::channel(ReplayStand::default());
        let (told, stopped) = (left.clone(), stop.clone());
        let task =
            tokio::spawn(
                async move { replay(work, &stopped, &stand, &|l| told.lock().unwrap().push(l.clone())).await },
            );
        Replaying { stop, left, stand: seen, task }
    }

    /// Replays the whole log into a sink, to its end.
    async fn replay_all(&self, sink: &ScriptedSink, selector: Selector) -> (ReplayStand, Vec<LeftOut>, ActNumber) {
        let number = self.order_replay(selector).await;
        let running = self.begin(self.carrier(number, sink).await).await;
        let (ended, left) = running.end().await;
        (ended.expect("it gets to its end"), left, number)
    }
}

fn number(message: &Message) -> usize {
    message.id[1..].parse().expect("a number")
}

/// The numbers of each key, in the order in which they were stored. One that is stored twice in a row counts once.
fn by_key(sink: &ScriptedSink) -> BTreeMap<String, Vec<usize>> {
    let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for message in sink.stored() {
        let of_key = keys.entry(message.key.clone().unwrap()).or_default();
        of_key.push(number(&message));
        of_key.dedup();
    }
    keys
}

#[track_caller]
fn assert_complete(sink: &ScriptedSink, messages: usize, but: &[usize]) {
    let keys = by_key(sink);
    for (key, numbers) in &keys {
        let of_key = |n: &usize| format!("k{}", n % 5) == *key && !but.contains(n);
        assert_eq!(*numbers, (0..messages).filter(of_key).collect::<Vec<_>>(), "{key}");
    }
    assert_eq!(keys.values().map(Vec::len).sum::<usize>(), messages - but.len());
}

/// As [`assert_complete`], where a send that was not answered may have brought several messages twice.
#[track_caller]
fn assert_first_copies(sink: &ScriptedSink, messages: usize) {
    for (key, numbers) in by_key(sink) {
        let mut seen = std::collections::BTreeSet::new();
        let firsts: Vec<usize> = numbers.into_iter().filter(|n| seen.insert(*n)).collect();
        assert_eq!(firsts, (0..messages).filter(|n| format!("k{}", n % 5) == key).collect::<Vec<_>>(), "{key}");
    }
}

on_each!(all_of_the_log_is_delivered_again: all);

/// Whatever the destination does meanwhile, everything comes, in order per key; lanes do not notice.
async fn all_of_the_log_is_delivered_again(flavour: Flavour) {
    let (bench, first) = Bench::with_log(flavour, 600).await;
    let lanes = |status: &[outhaul_store::ShardStatus]| status.iter().map(|s| s.lanes.clone()).collect::<Vec<_>>();
    let before = lanes(&bench.status().await);
    let sink = ScriptedSink::by_key(4);
    sink.fail_start(true);
    sink.script_by(|message, attempt| match (number(message) % 50, attempt) {
        (7, 1..=2) => Some(Answer::Retry { after_ms: Some(3) }),
        (17, 1) => Some(Answer::Down),
        (23, 1) => Some(Answer::Unknown { stored: true }),
        (31, 1) => Some(Answer::Panics),
        (44, 1) if number(message) == 44 => Some(Answer::Never { stored: true }),
        _ => None,
    });
    let (stand, left, act) = bench.replay_all(&sink, Selector::default()).await;
    assert_eq!((stand.delivered, stand.left, stand.pruned, left.len()), (600, 0, 0, 0));
    assert_eq!(stand.positions_done, 600);
    assert_first_copies(&sink, 600);
    assert!(sink.overlaps().is_empty(), "one batch a slot");
    assert_eq!((lanes(&bench.status().await), first.stored().len()), (before, 600));
    let records = bench.replay_records(act).await;
    assert!(records.iter().all(|r| r.state == ActState::Done && r.note.is_empty()), "{records:?}");
    assert_eq!(records.iter().map(|r| r.act.done).sum::<u64>(), 600);
    let ids = |sink: &ScriptedSink| sink.stored_ids().into_iter().collect::<std::collections::BTreeSet<_>>();
    assert_eq!(ids(&sink), ids(&first), "under the same ids");
}

on_each!(what_is_refused_or_parked_is_left_out: all);

/// A refused message is left out and told, and its key goes on; what is parked stays with the relay; edits count.
async fn what_is_refused_or_parked_is_left_out(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let first = ScriptedSink::single();
    first.script("m3", [Answer::Rejected]);
    first.script("m12", [Answer::Rejected]);
    let relay = bench.relay(&[&first]).await;
    bench.insert_many(0..40).await;
    // Of key k3 all but the first are parked behind it, of k2 all behind m12.
    first.wait_stored(40 - 8 - 6).await;
    bench.wait("parked", |s| s.iter().flat_map(|s| &s.parked).map(|(_, r, w, d)| r + w + d).sum::<u64>() == 14).await;
    // What was edited and delivered is replayed as it was delivered.
    let edit = Edit { payload: Some(Bytes::from_static(b"mended")), ..Edit::default() };
    let query = ParkedQuery { id: Some("m12".into()), ..ParkedQuery::default() };
    let row = bench.store.list_parked(&query, 1).await.unwrap().pop().unwrap().entry;
    let order = NewAct {
        verb: Verb::Edit,
        destination: Some("d0".into()),
        shards: vec![row.shard],
        selector: Selector { position: Some(row.position), ..Selector::default() },
        ranges: BTreeMap::new(),
        message_id: Some("m12".into()),
        edit: Some(edit),
        actor: "test".into(),
        why: "a test".into(),
    };
    bench.store.order(&order).await.unwrap();
    first.wait_stored(40 - 8).await;
    bench
        .wait("eight are left", |s| s.iter().flat_map(|s| &s.parked).map(|(_, r, w, d)| r + w + d).sum::<u64>() == 8)
        .await;
    let sink = ScriptedSink::by_key(3);
    sink.script("m5", [Answer::Rejected]);
    let (stand, left, act) = bench.replay_all(&sink, Selector::default()).await;
    let parked: Vec<usize> = (0..40).filter(|n| n % 5 == 3).collect();
    assert_complete(&sink, 40, &[&parked[..], &[5]].concat());
    assert_eq!((stand.delivered, stand.left), (31, 9));
    let mut codes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    left.iter().for_each(|l| codes.entry(l.reason.code).or_default().push(l.id.clone()));
    assert_eq!(codes["OUT-9001"], ["m5"]);
    assert_eq!(codes["OUT-4030"].len(), 8);
    let mended = sink.stored().into_iter().find(|m| m.id == "m12").unwrap();
    assert_eq!(mended.payload.as_ref(), b"mended");
    let records = bench.replay_records(act).await;
    assert_eq!(records.iter().map(|r| r.act.left).sum::<u64>(), 9);
    assert!(records.iter().any(|r| r.note.starts_with("OUT-4030 ") || r.note.starts_with("OUT-9001 ")), "{records:?}");
    // The relay still has them: a redrive delivers.
    assert!(first.stored_ids().iter().all(|id| id != "m3"));
    relay.drain().await;
}

on_each!(a_replay_is_stopped_and_gone_on_with: all);

/// What was acknowledged when it was told to stop is stored; another process goes on from there, and takes it over.
async fn a_replay_is_stopped_and_gone_on_with(flavour: Flavour) {
    let (mut bench, _) = Bench::with_log(flavour, 400).await;
    (bench.limits.max_batch, bench.limits.send_limit_ms) = (10, 20_000);
    let number_of = bench.order_replay(Selector::default()).await;
    let sink = ScriptedSink::single();
    sink.script("m150", [Answer::late()]);
    let running = bench.begin(bench.carrier(number_of, &sink).await).await;
    let mut count = 1;
    while sink.received().iter().all(|r| r.message.id != "m150") {
        sink.wait_received(count).await;
        count = sink.received().len() + 1;
    }
    running.stop.drain();
    sink.open_gates();
    let (ended, _) = running.end().await;
    assert_eq!(ended, Err(ReplayError::Stopped));
    let stored = sink.stored().len() as u64;
    let records = bench.replay_records(number_of).await;
    let done = records.iter().map(|r| r.act.done).sum::<u64>();
    assert_eq!(done, stored, "all that was acknowledged, and nothing else");
    assert!(done < 400 && records.iter().any(|r| r.state == ActState::Unfinished), "{records:?}");

    // One goes on and hangs; another one takes it over, and the first notices.
    let hanging = ScriptedSink::single();
    hanging.otherwise(Answer::late());
    let first = bench.begin(bench.carrier(number_of, &hanging).await).await;
    hanging.wait_received(1).await;
    sink.otherwise(Answer::late());
    let second = bench.begin(bench.carrier(number_of, &sink).await).await;
    sink.wait_received(stored as usize + 1).await;
    hanging.otherwise(Answer::Ok);
    hanging.open_gates();
    let (ended, _) = first.end().await;
    assert_eq!(ended, Err(ReplayError::Taken));
    sink.otherwise(Answer::Ok);
    sink.open_gates();
    let (ended, _) = second.end().await;
    assert_eq!(ended.map(|s| s.delivered + stored), Ok(400 + records_done_before(&records)), "all of it");
    assert_complete(&sink, 400, &[]);
    assert_eq!(sink.duplicates(), 0, "a clean stop repeats nothing");
    assert!(!bench.store.take_replay(number_of, "a third").await.unwrap(), "it is over");
}

/// Delivered in the shards that are still unfinished: what a process that goes on begins to count with.
fn records_done_before(records: &[ActRecord]) -> u64 {
    records.iter().filter(|r| r.state == ActState::Unfinished).map(|r| r.act.done).sum()
}

on_each!(what_the_destination_forgets_meanwhile_is_sent_again: all);

/// A destination that proves later: the replay is not over before all is proven, and what is lost in between comes again.
async fn what_the_destination_forgets_meanwhile_is_sent_again(flavour: Flavour) {
    let (bench, _) = Bench::with_log(flavour, 200).await;
    let sink = ScriptedSink::single();
    sink.proves_later(true);
    sink.level(AckLevel::Received);
    let number = bench.order_replay(Selector::default()).await;
    let running = bench.begin(bench.carrier(number, &sink).await).await;
    let mut stand = running.stand.clone();
    // The first shard is delivered, and waits for its proof.
    sink.wait_received(1).await;
    let of_first = bench.replay_records(number).await[0].act.selector.clone().unwrap().range.unwrap().to.0;
    tokio::time::timeout(LIMIT, stand.wait_for(|s| s.delivered == of_first)).await.expect("delivered").unwrap();
    assert_eq!(bench.replay_records(number).await[0].act.next, Position(0), "not proven, so not dealt with");
    let lost = sink.crash();
    assert_eq!(lost.len() as u64, of_first);
    sink.wait_received(2 * of_first as usize).await;
    let flushing = async {
        loop {
            sink.flush();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (ended, _) = tokio::select! {
        ended = running.end() => ended,
        () = flushing => unreachable!(),
    };
    assert_eq!(ended.map(|s| s.delivered), Ok(200));
    assert_complete(&sink, 200, &[]);
    assert!(!sink.verified().is_empty(), "it was asked what it has");
}

on_each!(the_rate_holds_for_all: sqlite => Sqlite, postgres => Postgres);

/// The rate is the whole replay's: what is there after each message is compared with its number.
async fn the_rate_holds_for_all(flavour: Flavour) {
    let (bench, _) = Bench::with_log(flavour, 60).await;
    let sink = ScriptedSink::by_key(8);
    let began = tokio::time::Instant::now();
    bench.replay_all(&sink, Selector { rate_milli: 100_000, ..Selector::default() }).await;
    // 100 a second, of which 5 and one may come at once.
    assert!(began.elapsed() >= Duration::from_millis(540), "{:?}", began.elapsed());
    assert_complete(&sink, 60, &[]);
}

on_each!(filters_and_what_is_pruned: all);

/// Only what fits everything that is named; what the log holds no more is told, and counts as nothing.
async fn filters_and_what_is_pruned(flavour: Flavour) {
    let (mut bench, _) = Bench::with_log(flavour, 50).await;
    let ids = async |selector: Selector, change: &dyn Fn(&mut Replay)| {
        let number = bench.order_replay(selector).await;
        let sink = ScriptedSink::single();
        let mut work = bench.carrier(number, &sink).await;
        change(&mut work);
        let counted = work.count(&|_| {}).await.unwrap();
        let (ended, _) = bench.begin(work).await.end().await;
        let stand = ended.unwrap();
        assert_eq!((stand.delivered, stand.pruned), (counted.messages, counted.pruned), "a dry run counts the same");
        (sink.stored_ids().len(), stand.pruned)
    };
    let nothing = |_: &mut Replay| {};
    assert_eq!(ids(Selector { key: Some("k4".into()), ..Selector::default() }, &nothing).await, (10, 0));
    assert_eq!(ids(Selector { topic: Some("order-*".into()), ..Selector::default() }, &nothing).await, (50, 0));
    assert_eq!(ids(Selector { topic: Some("order".into()), ..Selector::default() }, &nothing).await, (0, 0));
    assert_eq!(ids(Selector { fill: true, ..Selector::default() }, &nothing).await, (0, 0), "its lane had all");
    let other = |work: &mut Replay| {
        work.names = vec!["other".into(), "d0".into()];
        work.routes = Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]);
    };
    assert_eq!(ids(Selector::default(), &other).await, (0, 0), "today's routes lead elsewhere");
    let created_from_us = Some(4_000_000_000_000_000);
    assert_eq!(ids(Selector { created_from_us, ..Selector::default() }, &nothing).await, (0, 0));
    assert_eq!(ids(Selector { created_before_us: created_from_us, ..Selector::default() }, &nothing).await, (50, 0));
    let prune =
        PruneRequest { owner: "pruner".into(), retention_ms: 0, merge_after_ms: None, step: 1_000, exported: None };
    assert_eq!(bench.store.prune(&prune).await.unwrap().messages, 50);
    let first = ScriptedSink::single();
    let relay = bench.relay(&[&first]).await;
    bench.insert_many(50..70).await;
    first.wait_stored(20).await;
    bench.wait_settled().await;
    relay.drain().await;
    let number = bench.order_replay(Selector::default()).await;
    let sink = ScriptedSink::single();
    let (ended, _) = bench.begin(bench.carrier(number, &sink).await).await.end().await;
    let stand = ended.unwrap();
    assert_eq!((stand.delivered, stand.pruned, stand.left), (20, 50, 0));
}

on_each!(slots_are_served_at_the_same_time: sqlite => Sqlite);

async fn slots_are_served_at_the_same_time(flavour: Flavour) {
    let (mut bench, _) = Bench::with_log(flavour, 40).await;
    (bench.limits.max_batch, bench.limits.send_limit_ms) = (1, 20_000);
    let sink = ScriptedSink::by_key(8);
    sink.otherwise(Answer::late());
    let number = bench.order_replay(Selector::default()).await;
    let running = bench.begin(bench.carrier(number, &sink).await).await;
    sink.wait_received(2).await;
    sink.otherwise(Answer::Ok);
    sink.open_gates();
    let (ended, _) = running.end().await;
    assert_eq!(ended.map(|s| s.delivered), Ok(40));
    assert!(sink.most_under_way() > 1 && sink.overlaps().is_empty());
}

on_each!(it_gives_up_if_it_is_told_to: sqlite => Sqlite);

/// A destination that is down is waited for; only with a limit the replay ends, and can be gone on with.
async fn it_gives_up_if_it_is_told_to(flavour: Flavour) {
    let (bench, _) = Bench::with_log(flavour, 20).await;
    let sink = ScriptedSink::single();
    sink.otherwise(Answer::Down);
    let number = bench.order_replay(Selector::default()).await;
    let mut work = bench.carrier(number, &sink).await;
    work.give_up_after = Some(Duration::from_millis(300));
    let running = bench.begin(work).await;
    let (ended, _) = running.end().await;
    assert!(matches!(ended, Err(ReplayError::GivenUp(_, ref reason)) if reason.code == "OUT-9001"), "{ended:?}");
    assert!(sink.starts() > 1, "it was tried again");
    assert!(sink.calls() < 40, "with waits: {}", sink.calls());
    sink.otherwise(Answer::Ok);
    let (ended, _) = bench.begin(bench.carrier(number, &sink).await).await.end().await;
    assert_eq!(ended.map(|s| s.delivered), Ok(20));
    assert_eq!(sink.slotting(), Slotting::Single);
}

on_each!(a_moment_is_found_in_the_log: all);

/// The beginning for a moment is a chunk's: nothing that was created since lies before it, and what was moved long before
/// is not read.
async fn a_moment_is_found_in_the_log(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    for n in 0..8 {
        bench.insert_many(n * 10..n * 10 + 10).await;
        sink.wait_stored(n * 10 + 10).await;
        bench.wait_settled().await;
    }
    relay.drain().await;
    for s in bench.status().await {
        let range = PositionRange { from: Position(0), to: s.log_end };
        let mut bases = Vec::new();
        let mut next = Position(0);
        while next < s.log_end {
            let chunk = bench.store.read_log(s.shard, next, 1).await.unwrap().remove(0);
            bases.push(chunk.base);
            next = Position(chunk.base.0 + u64::from(chunk.count));
        }
        assert!(bases.len() >= 8, "{bases:?}");
        // As if each chunk had been moved an hour and more after the one before.
        let hour = 4_000_000_000i64;
        for (n, base) in bases.iter().enumerate() {
            let at = n as i64 * hour;
            let sql = bench.set_moved_at(s.shard.0, base.0, at);
            bench.database.execute(&sql).await;
        }
        for (n, base) in bases.iter().enumerate() {
            let begin = begin_of(&bench.store, s.shard, range, n as i64 * hour + 3_600_000_000).await.unwrap();
            assert_eq!(begin, *base, "{n} of {bases:?}");
        }
        let behind = begin_of(&bench.store, s.shard, range, 99 * hour).await.unwrap();
        assert_eq!(behind, s.log_end);
    }
}

impl Bench {
    fn set_moved_at(&self, shard: u16, base: u64, at_us: i64) -> String {
        let at = match self.database.flavour {
            Flavour::Sqlite => at_us.to_string(),
            Flavour::Postgres => format!("'1970-01-01 00:00Z'::timestamptz + {at_us} * interval '1 microsecond'"),
            _ => format!("TIMESTAMPADD(MICROSECOND, {at_us}, '1970-01-01')"),
        };
        let of_shard = if self.database.flavour == Flavour::Sqlite { "" } else { &format!(" AND shard = {shard}") };
        format!("UPDATE outbox_log SET moved_at = {at} WHERE base_position = {base}{of_shard}")
    }
}
