//! Operators' acts: ordered, seen, carried out by checkpoints, and kept; what selects parked rows; cancelling.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use outhaul_core::act::{
    ActNumber, ActState, ActWrite, Edit, Original, PauseWrite, PositionRange, Selector, Touched, Verb,
};
use outhaul_core::checkpoint::{ShardCheckpoint, ShardOutcome};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Defect, Epoch, Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState, ParkedWrite};
use outhaul_core::runs::Runs;
use outhaul_store::{
    ActRecord, ActsWanted, CancelRequest, Found, InitPlan, NewAct, NewRow, ParkedQuery, PauseStatus, ReplayProgress,
    Store,
};

use super::fixture::{AppRow, Fixture, Owner, destinations};
use crate::servers::Flavour;

fn new_act(verb: Verb, destination: Option<&str>, shards: &[ShardId]) -> NewAct {
    NewAct {
        verb,
        destination: destination.map(str::to_owned),
        shards: shards.to_vec(),
        selector: Selector::default(),
        ranges: BTreeMap::new(),
        message_id: None,
        edit: None,
        actor: "an operator".into(),
        why: "it's time \u{e9}".into(),
    }
}

fn write(number: ActNumber, state: ActState) -> ActWrite {
    ActWrite { number, state, next: Position(0), done: 0, left: 0, note: String::new(), original: None, pause: None }
}

fn progress(number: ActNumber, shard: ShardId, runner: &str) -> ReplayProgress {
    let runner = runner.to_owned();
    ReplayProgress { number, shard, runner, ended: false, next: Position(9), done: 4, left: 1, note: String::new() }
}

/// A checkpoint that moves nothing and writes these.
fn part(owner: &Owner, acts: Vec<ActWrite>) -> ShardCheckpoint {
    ShardCheckpoint { acts, ..owner.part(ShardId(0), &[]) }
}

async fn records(store: &dyn Store, number: ActNumber) -> Vec<ActRecord> {
    store.acts(&ActsWanted::Numbers(vec![number])).await.expect("acts")
}

/// All that acts do, once, by a user who may have few rights.
pub async fn whatever_acts_need(f: &Fixture, owner: &mut Owner) {
    f.insert(&[AppRow::nth(900)]).await;
    let rows = f.read_all().await;
    let shard = rows[0].shard;
    let mut moving = owner.part(shard, &rows);
    moving.parked = moving.moved.iter().map(|m| insert(m, "a", ParkedState::Dead, "OUT-2001")).collect();
    let message = moving.moved[0].clone();
    assert_eq!(owner.write(f.store.as_ref(), vec![moving]).await, [ShardOutcome::Written]);
    let edit = Edit { payload: Some(Bytes::from_static(b"x")), ..Edit::default() };
    let selector = Selector { position: Some(message.position), ..Selector::default() };
    let new = NewAct { selector, edit: Some(edit.clone()), ..new_act(Verb::Edit, Some("a"), &[shard]) };
    let number = f.store.order(&new).await.expect("order");
    let edited = Arc::new(edit.apply(&message));
    let replace =
        ParkedWrite::Replace { entry: entry(&edited, "a", ParkedState::Retrying, "OUT-2001"), message: edited };
    let original = Some(Original { destination: "a".into(), message });
    for pause in [PauseWrite::Pause(None), PauseWrite::Resume(None)] {
        let act = ActWrite { done: 1, original: original.clone(), pause: Some(pause), ..write(number, ActState::Done) };
        let part = ShardCheckpoint { acts: vec![act], parked: vec![replace.clone()], ..owner.part(shard, &[]) };
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
    }
    let replay = f.store.order(&new_act(Verb::Replay, Some("a"), &[shard])).await.expect("order");
    assert!(f.store.take_replay(replay, "one").await.expect("take_replay"));
    assert!(f.store.keep_replay(&progress(replay, shard, "one")).await.expect("keep_replay"));
    assert_eq!(f.store.edits(shard, "a").await.expect("edits").len(), 1);
    assert_eq!(records(f.store.as_ref(), number).await.len(), 1);
    assert!(!f.store.list_parked(&ParkedQuery::default(), 10).await.expect("list_parked").is_empty());
    assert!(!f.store.count_parked(&ParkedQuery::default()).await.expect("count_parked").is_empty());
    let request = CancelRequest { id: "nothing".into(), actor: "an operator".into(), why: String::new() };
    assert!(f.store.cancel(&request).await.expect("cancel").is_empty());
}

/// An act is open in the shards that it names, with all that it says, and numbers rise.
pub async fn an_act_is_open_in_its_shards(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let shards = f.shards();
    assert!(f.store.open_acts(&shards).await.expect("open_acts").is_empty());
    let selector = Selector {
        position: Some(Position(7)),
        key: Some("it's 'a' key".into()),
        code: Some("OUT-2001".into()),
        rate_milli: 2_500,
        ..Selector::default()
    };
    let edit = Edit { payload: Some(Bytes::from(vec![0, 255, b'\'', b'\\'])), headers: Some(None), key: None };
    let act = NewAct {
        selector: selector.clone(),
        message_id: Some("m\u{e9}1".into()),
        edit: Some(edit.clone()),
        ..new_act(Verb::Edit, Some("b"), &shards)
    };
    let first = f.store.order(&act).await.expect("order");
    let second = f.store.order(&new_act(Verb::Pause, None, &shards[..1])).await.expect("order");
    assert!(second > first);
    let open = f.store.open_acts(&shards).await.expect("open_acts");
    assert_eq!(open.len(), shards.len() + 1);
    assert!(open.is_sorted_by_key(|a| (a.number, a.shard)));
    let one = &open[0];
    assert_eq!(
        (one.number, one.shard, one.verb, one.destination.as_deref()),
        (first, ShardId(0), Verb::Edit, Some("b"))
    );
    assert_eq!((one.selector.as_ref(), one.edit.as_deref()), (Some(&selector), Some(&edit)));
    assert_eq!((one.next, one.done, one.left), (Position(0), 0, 0));
    assert_eq!(open.last().map(|a| (a.number, a.verb, a.destination.clone())), Some((second, Verb::Pause, None)));
    let of_last = f.store.open_acts(&shards[shards.len() - 1..]).await.expect("open_acts");
    assert!(of_last.iter().all(|a| a.shard == shards[shards.len() - 1]) && !of_last.is_empty());
    assert!(f.store.open_acts(&[]).await.expect("open_acts").is_empty());
    let recovery = f.store.recover(ShardId(0)).await.expect("recover");
    assert_eq!(recovery.acts.iter().map(|a| a.number).collect::<Vec<_>>(), [first, second]);
    let record = &records(f.store.as_ref(), first).await[0];
    assert_eq!((record.actor.as_str(), record.why.as_str()), ("an operator", "it's time \u{e9}"));
    assert_eq!((record.state, record.finished_at_us, record.note.as_str()), (ActState::Open, None, ""));
    assert!(record.at_us > 1_600_000_000_000_000, "{record:?}");
    let by_id = f.store.acts(&ActsWanted::MessageId("m\u{e9}1".into())).await.expect("acts");
    assert_eq!(by_id.len(), shards.len());
    assert!(f.store.acts(&ActsWanted::MessageId("other".into())).await.expect("acts").is_empty());
    for (newest, count) in [(1, 1), (2, shards.len() + 1), (9, shards.len() + 1)] {
        assert_eq!(f.store.acts(&ActsWanted::Newest(newest)).await.expect("acts").len(), count);
    }
    assert!(f.store.order(&new_act(Verb::Skip, Some("a"), &[])).await.is_err(), "about no shard");
}

/// Many are ordered at the same time: each has its own number.
pub async fn many_order_at_once(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let store = f.another_store().await;
        tasks.push(tokio::spawn(async move {
            let mut numbers = Vec::new();
            for _ in 0..5 {
                numbers.push(store.order(&new_act(Verb::Redrive, Some("a"), &[ShardId(0)])).await.expect("order"));
            }
            numbers
        }));
    }
    let mut numbers = Vec::new();
    for task in tasks {
        numbers.extend(task.await.expect("a task"));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 30);
    assert_eq!(f.store.open_acts(&[ShardId(0)]).await.expect("open_acts").len(), 30);
}

/// A replay is nothing to owners; each shard keeps its range; whoever took it last writes how far it has got.
pub async fn a_replay_is_its_commands_own(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let (store, shards) = (f.store.as_ref(), f.shards());
    let range = |shard: ShardId| {
        let from = 5 + u64::from(shard.0);
        PositionRange { from: Position(from), to: Position(from + 20) }
    };
    let selector = Selector { topic: Some("it's *".into()), created_from_us: Some(-7), ..Selector::default() };
    let ranges: BTreeMap<ShardId, PositionRange> = shards.iter().map(|s| (*s, range(*s))).collect();
    let order = NewAct { selector: selector.clone(), ranges, ..new_act(Verb::Replay, Some("a"), &shards) };
    let number = store.order(&order).await.expect("order");
    assert!(store.open_acts(&shards).await.expect("open_acts").is_empty());
    assert!(store.recover(shards[0]).await.expect("recover").acts.is_empty());
    let ordered = records(store, number).await;
    assert_eq!(ordered.len(), shards.len());
    for record in &ordered {
        let (shard, expected) = (record.act.shard, range(record.act.shard));
        assert_eq!((record.state, record.act.next), (ActState::Unfinished, expected.from), "{shard}");
        let selector = Selector { range: Some(expected), ..selector.clone() };
        assert_eq!(record.act.selector.as_ref(), Some(&selector), "{shard}");
    }

    let last = shards[shards.len() - 1];
    let keep = async |p: &ReplayProgress| store.keep_replay(p).await.expect("keep_replay");
    let take = async |number: ActNumber, who: &str| store.take_replay(number, who).await.expect("take_replay");
    assert!(!keep(&progress(number, last, "one")).await, "nobody has taken it yet");
    assert!(!take(ActNumber(number.0 + 1), "one").await);
    let pause = store.order(&new_act(Verb::Pause, None, &shards)).await.expect("order");
    assert!(!take(pause, "one").await, "what is the owners' is not taken");
    for _ in 0..2 {
        assert!(take(number, "one").await);
        assert!(keep(&progress(number, last, "one")).await, "as often as wanted");
    }
    let of_last = async || records(store, number).await.into_iter().find(|r| r.act.shard == last).expect("a record");
    let record = of_last().await;
    assert_eq!((record.act.next, record.act.done, record.act.left), (Position(9), 4, 1));
    assert_eq!((record.state, record.finished_at_us, record.note.as_str()), (ActState::Unfinished, None, "one"));

    assert!(take(number, "two").await);
    assert!(!keep(&progress(number, last, "one")).await, "another one has taken it");
    assert!(!keep(&ReplayProgress { ended: true, ..progress(number, last, "one") }).await);
    let end = ReplayProgress { ended: true, note: "OUT-2001 it's bad".into(), ..progress(number, last, "two") };
    for _ in 0..2 {
        assert!(keep(&end).await, "the answer may have been lost");
    }
    assert!(!keep(&progress(number, last, "two")).await, "it is over");
    assert!(!keep(&ReplayProgress { done: 9, ..end.clone() }).await, "with another result");
    let record = of_last().await;
    assert_eq!((record.state, record.note.as_str()), (ActState::Done, "OUT-2001 it's bad"));
    assert!(record.finished_at_us.is_some_and(|at| at >= record.at_us), "{record:?}");
    if shards.len() > 1 {
        assert!(take(number, "three").await, "other shards are not at their end");
        let others = records(store, number).await.into_iter().filter(|r| r.act.shard != last);
        assert!(others.map(|r| r.state).all(|state| state == ActState::Unfinished));
        assert_eq!(of_last().await.note, "OUT-2001 it's bad");
    } else {
        assert!(!take(number, "three").await, "it is over");
    }
    let replays = store.acts(&ActsWanted::Replays(last)).await.expect("acts");
    assert_eq!(replays.iter().map(|r| (r.act.number, r.act.shard)).collect::<Vec<_>>(), [(number, last)]);
}

/// How far an act has got is written with the checkpoint, and only by the owner.
pub async fn progress_is_part_of_a_checkpoint(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let number = f.store.order(&new_act(Verb::Redrive, Some("a"), &[ShardId(0)])).await.expect("order");
    let mut owner = f.owner("one").await;
    let progress = ActWrite {
        next: Position(40),
        done: 7,
        left: 2,
        note: "OUT-4001 \u{e9}".into(),
        ..write(number, ActState::Open)
    };
    let mut fenced = part(&owner, vec![write(number, ActState::Done)]);
    fenced.epoch = Epoch(fenced.epoch.0 + 1);
    assert_eq!(owner.write(f.store.as_ref(), vec![fenced]).await, [ShardOutcome::Fenced]);
    let written = part(&owner, vec![progress]);
    assert_eq!(owner.write(f.store.as_ref(), vec![written]).await, [ShardOutcome::Written]);
    let act = &f.store.open_acts(&[ShardId(0)]).await.expect("open_acts")[0];
    assert_eq!((act.next, act.done, act.left), (Position(40), 7, 2));
    let done = ActWrite { next: Position(41), done: 8, left: 2, ..write(number, ActState::Done) };
    let written = part(&owner, vec![done]);
    owner.write(f.store.as_ref(), vec![written]).await;
    assert!(f.store.open_acts(&[ShardId(0)]).await.expect("open_acts").is_empty());
    assert!(f.store.recover(ShardId(0)).await.expect("recover").acts.is_empty());
    let record = &records(f.store.as_ref(), number).await[0];
    assert_eq!((record.state, record.act.done, record.act.left), (ActState::Done, 8, 2));
    assert!(record.finished_at_us.is_some_and(|at| at >= record.at_us), "{record:?}");
}

/// What is paused is there from the checkpoint on that says so, with who and why, until another one ends it.
pub async fn pauses_begin_and_end(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    let mut owner = f.owner("one").await;
    let mut numbers = Vec::new();
    for verb in [Verb::Pause, Verb::Pause, Verb::Pause, Verb::Resume, Verb::Resume] {
        numbers.push(f.store.order(&new_act(verb, Some("a"), &[ShardId(0)])).await.expect("order"));
    }
    let pause = |n: usize, change: PauseWrite| ActWrite { pause: Some(change), ..write(numbers[n], ActState::Done) };
    let on = |d: Option<&str>| PauseWrite::Pause(d.map(str::to_owned));
    let off = |d: Option<&str>| PauseWrite::Resume(d.map(str::to_owned));
    let written = part(&owner, vec![pause(0, on(Some("a"))), pause(1, on(None))]);
    owner.write(f.store.as_ref(), vec![written]).await;
    let paused = f.store.pauses().await.expect("pauses");
    assert_eq!(paused.iter().map(|p| p.destination.as_deref()).collect::<Vec<_>>(), [None, Some("a")]);
    let PauseStatus { shard, number, since_us, actor, why, .. } = &paused[1];
    assert_eq!(
        (*shard, *number, actor.as_str(), why.as_str()),
        (ShardId(0), numbers[0], "an operator", "it's time \u{e9}")
    );
    assert!(*since_us > 1_600_000_000_000_000);
    assert_eq!(f.store.recover(ShardId(0)).await.expect("recover").paused, [None, Some("a".to_owned())]);
    // Once more, and the end of the other, in one checkpoint; then one that begins and ends.
    let written = part(&owner, vec![pause(2, on(Some("a"))), pause(3, off(None))]);
    owner.write(f.store.as_ref(), vec![written]).await;
    let paused = f.store.pauses().await.expect("pauses");
    assert_eq!(
        paused.iter().map(|p| (p.number, p.destination.as_deref())).collect::<Vec<_>>(),
        [(numbers[2], Some("a"))]
    );
    let written = part(&owner, vec![pause(1, on(Some("b"))), pause(3, off(Some("b"))), pause(4, off(Some("a")))]);
    owner.write(f.store.as_ref(), vec![written]).await;
    assert!(f.store.pauses().await.expect("pauses").is_empty());
}

fn entry(message: &Message, destination: &str, state: ParkedState, code: &str) -> ParkedEntry {
    ParkedEntry {
        destination: destination.into(),
        shard: message.shard,
        position: message.position,
        key: message.key.clone(),
        state,
        attempts: 3,
        due_at_us: 0,
        error_code: code.into(),
        error_text: "text".into(),
        first_failed_at_us: 1,
        last_failed_at_us: 2,
    }
}

fn insert(message: &Arc<Message>, destination: &str, state: ParkedState, code: &str) -> ParkedWrite {
    ParkedWrite::Insert { entry: entry(message, destination, state, code), message: Arc::clone(message) }
}

/// An edit replaces content and key of a parked row and keeps what was there; the log is told apart from it.
pub async fn an_edit_keeps_the_original(flavour: Flavour) {
    let plan = InitPlan::default();
    let f = Fixture::with(flavour, plan, |o| o.max_message_bytes = 1_000).await;
    let large = vec![b'x'; 5_000];
    f.insert(&[AppRow::nth(0), AppRow::nth(1).with_payload(large.clone())]).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut first = owner.part(ShardId(0), &rows);
    let moved = first.moved.clone();
    first.parked = vec![
        insert(&moved[0], "a", ParkedState::Dead, "OUT-2001"),
        insert(&moved[1], "a", ParkedState::Dead, "OUT-4002"),
        insert(&moved[1], "b", ParkedState::Dead, "OUT-4002"),
    ];
    owner.write(f.store.as_ref(), vec![first]).await;
    let edit = Edit { payload: Some(Bytes::from_static(b"mended")), headers: None, key: Some(Some("k'".into())) };
    let mut acts = Vec::new();
    let mut parked = Vec::new();
    let mut numbers = Vec::new();
    for (n, message) in moved.iter().enumerate() {
        let selector = Selector { position: Some(message.position), ..Selector::default() };
        let order = NewAct { selector, edit: Some(edit.clone()), ..new_act(Verb::Edit, Some("a"), &[ShardId(0)]) };
        let number = f.store.order(&order).await.expect("order");
        let original = Some(Original { destination: "a".into(), message: message.clone() });
        acts.push(ActWrite { next: Position(n as u64 + 1), done: 1, original, ..write(number, ActState::Done) });
        let edited = Arc::new(edit.apply(message));
        assert_eq!(edited.defect, None);
        let entry = entry(&edited, "a", ParkedState::Retrying, "OUT-2001");
        parked.push(ParkedWrite::Replace { entry, message: edited });
        numbers.push(number);
    }
    let mut second = part(&owner, acts);
    second.parked = parked;
    assert_eq!(owner.write(f.store.as_ref(), vec![second]).await, [ShardOutcome::Written]);
    let found = f.store.read_parked(ShardId(0), "a", &[Position(0), Position(1)], &destinations()).await.expect("read");
    for row in &found {
        assert_eq!((row.message.payload.as_ref(), row.message.key.as_deref()), (&b"mended"[..], Some("k'")));
        assert_eq!((row.entry.key.as_deref(), row.entry.state), (Some("k'"), ParkedState::Retrying));
    }
    let other = f.store.parked_of(ShardId(0), Position(1)).await.expect("parked_of");
    assert_eq!(other.iter().find(|e| e.destination == "b").map(|e| e.key.clone()), Some(moved[1].key.clone()));
    assert_eq!(f.store.edits(ShardId(0), "a").await.expect("edits").len(), 2);
    assert!(f.store.edits(ShardId(0), "b").await.expect("edits").is_empty());
    let edited = f.store.recover(ShardId(0)).await.expect("recover").edited;
    assert_eq!(edited, [0, 1].map(|n| ("a".to_owned(), Position(n as u64), numbers[n])));
    let kept = |column: &str, n: usize, value: &[u8]| {
        format!(
            "SELECT count(*) FROM outbox_act WHERE act_number = {} AND {column} = {}",
            numbers[n],
            f.bytes_sql(value)
        )
    };
    let packed = outhaul_core::chunk::encode(std::iter::once(moved[0].as_ref()), &destinations()).bytes;
    assert_eq!(f.database.query_u64(&kept("original", 0, &packed)).await, 1);
    assert_eq!(
        f.database.query_u64(&kept("original_payload", 1, &large)).await,
        1,
        "what was never fetched is kept too"
    );
    let left = "SELECT count(*) FROM outbox_parked WHERE oversize_payload IS NOT NULL";
    assert_eq!(f.database.query_u64(left).await, 1, "that of the other destination");
    assert_eq!(moved[1].defect, Some(Defect::TooLarge { bytes: 5_000, limit: 1_000 }));
}

/// What acts have changed is found by position, and outlives merging.
pub async fn what_was_changed_is_found_by_position(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..4).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    let mut positions = Runs::new();
    [0, 1, 3].iter().for_each(|p| _ = positions.insert(*p));
    let touched = Touched { number: ActNumber(5), verb: Verb::Skip, destination: "a".into(), positions };
    let mut second = owner.part(ShardId(0), &[]);
    second.receipts.acts = vec![touched.clone()];
    owner.write(f.store.as_ref(), vec![second]).await;
    for (position, there) in [(0, true), (2, true), (3, true), (4, false)] {
        let rows = f.store.receipts_of(ShardId(0), Position(position)).await.expect("receipts_of");
        assert_eq!(rows.iter().any(|r| r.acts == [touched.clone()]), there, "{position}");
    }
}

/// Rows are listed and counted by everything that a query can name, page by page.
pub async fn parked_rows_are_listed_and_counted(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..40).await;
    f.insert(&[AppRow::nth(40).with_key(None)]).await;
    let rows = f.read_all().await;
    let mut owner = f.owner("one").await;
    let mut parts: Vec<ShardCheckpoint> = f.shards().iter().map(|s| owner.part(*s, &rows)).collect();
    let state = |n: u64| [ParkedState::Dead, ParkedState::Waiting, ParkedState::Retrying][n as usize % 3];
    let code = |n: u64| if n.is_multiple_of(2) { "OUT-2001" } else { "OUT-2002" };
    for part in &mut parts {
        for m in &part.moved {
            let n: u64 = m.id[1..].parse().expect("a number");
            part.parked.push(insert(m, "a", state(n), code(n)));
            if n < 10 {
                part.parked.push(insert(m, NO_ROUTE, ParkedState::Dead, "OUT-4001"));
            }
        }
    }
    owner.write(f.store.as_ref(), parts).await;
    let list = async |query: ParkedQuery| f.store.list_parked(&query, 1_000).await.expect("list_parked");
    let all = list(ParkedQuery::default()).await;
    assert_eq!(all.len(), 51);
    assert!(all.is_sorted_by_key(|p| (p.entry.destination.clone(), p.entry.shard, p.entry.position)));
    let of = |destination: &str| ParkedQuery { destination: Some(destination.into()), ..ParkedQuery::default() };
    assert_eq!((list(of("a")).await.len(), list(of(NO_ROUTE)).await.len(), list(of("A")).await.len()), (41, 10, 0));
    let by_key = list(ParkedQuery { key: Some("k3".into()), ..of("a") }).await;
    assert!(by_key.len() == 8 && by_key.iter().all(|p| p.entry.key.as_deref() == Some("k3")));
    let by_id = list(ParkedQuery { id: Some("m7".into()), ..ParkedQuery::default() }).await;
    assert_eq!(by_id.iter().map(|p| p.entry.destination.as_str()).collect::<Vec<_>>(), [NO_ROUTE, "a"]);
    assert!(by_id.iter().all(|p| p.id == "m7"));
    let dead = list(ParkedQuery { state: Some(ParkedState::Dead), code: Some("OUT-2002".into()), ..of("a") }).await;
    assert!(
        dead.len() == 7 && dead.iter().all(|p| p.entry.state == ParkedState::Dead && p.entry.error_code == "OUT-2002")
    );
    let one = &by_id[1].entry;
    let at = ParkedQuery { shard: Some(one.shard), position: Some(one.position), ..of("a") };
    assert_eq!(list(at).await.len(), 1);
    // Page by page, over all and within one lane.
    for query in [ParkedQuery::default(), ParkedQuery { shard: Some(one.shard), ..of("a") }] {
        let whole = list(query.clone()).await;
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page =
                f.store.list_parked(&ParkedQuery { after: after.clone(), ..query.clone() }, 7).await.expect("list");
            let Some(last) = page.last() else { break };
            after = Some((last.entry.destination.clone(), last.entry.shard, last.entry.position));
            paged.extend(page);
        }
        assert_eq!(paged, whole);
    }
    let counts = f.store.count_parked(&of("a")).await.expect("count_parked");
    let sum = |code: &str, state: ParkedState| -> u64 {
        counts.iter().filter(|c| c.code == code && c.state == state).map(|c| c.count).sum()
    };
    assert_eq!((sum("OUT-2001", ParkedState::Dead), sum("OUT-2002", ParkedState::Waiting)), (7, 7));
    let counts = f.store.count_parked(&ParkedQuery::default()).await.expect("count_parked");
    assert_eq!(counts.iter().map(|c| c.count).sum::<u64>(), 51);
}

/// A scheduled row goes if it is not due yet, and only then; its content is kept with the act.
pub async fn a_scheduled_row_is_cancelled(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let now_us =
        i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_micros())
            .expect("a moment");
    let row = |id: &str, at: Option<i64>| NewRow {
        id: Some(id.into()),
        topic: "t".into(),
        payload: Bytes::from_static(b"later"),
        available_at_us: at,
        ..NewRow::default()
    };
    let hour = 3_600_000_000;
    let rows = [row("due", None), row("past", Some(now_us - hour)), row("later", Some(now_us + hour))];
    f.store.enqueue(&rows).await.expect("enqueue");
    let request = |id: &str| CancelRequest { id: id.into(), actor: "an operator".into(), why: "wrong".into() };
    for id in ["due", "past", "nobody"] {
        assert!(f.store.cancel(&request(id)).await.expect("cancel").is_empty(), "{id}");
    }
    let found = f.store.find("later", None).await.expect("find");
    assert!(
        matches!(found[..], [Found::Hot { due_at_us: Some(at), .. }] if at == now_us + hour),
        "found before it is due"
    );
    let numbers = f.store.cancel(&request("later")).await.expect("cancel");
    assert_eq!(numbers.len(), 1);
    assert!(f.store.cancel(&request("later")).await.expect("cancel").is_empty());
    let mut left = f.hot_ids().await;
    left.sort();
    assert_eq!(left, ["due", "past"]);
    let record = &f.store.acts(&ActsWanted::MessageId("later".into())).await.expect("acts")[0];
    assert_eq!((record.act.verb, record.state, record.act.done), (Verb::Cancel, ActState::Done, 1));
    assert_eq!((record.act.number, record.actor.as_str(), record.why.as_str()), (numbers[0], "an operator", "wrong"));
    assert!(f.store.open_acts(&f.shards()).await.expect("open_acts").is_empty());
    let kept = "SELECT count(*) FROM outbox_act WHERE original IS NOT NULL AND finished_at IS NOT NULL";
    assert_eq!(f.database.query_u64(kept).await, 1);
}
