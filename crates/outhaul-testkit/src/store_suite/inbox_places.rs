//! What was read from a queue, and how far: `inbox_queue`.

use std::sync::Arc;

use outhaul_store::inbox::{Arrival, InboxCounts, InboxMessage, Place, Step, Taken};
use outhaul_store::{StoreErrorKind, StoreOptions};

use super::inbox::{InboxFixture, empty, fresh, message};
use crate::servers::Flavour;

const QUEUE: &str = "orders/broker-a/3";

fn arrivals(ids: &[&str]) -> Vec<Arrival> {
    ids.iter().map(|id| Arrival { message: message(id), dead: None }).collect()
}

fn step(before: i64, after: i64, arrivals: Vec<Arrival>) -> Step {
    Step { source: QUEUE.into(), before, after, stored_at_ms: 1_000 + after, arrivals }
}

fn begun(next_offset: i64) -> Place {
    Place { source: QUEUE.into(), next_offset, stored_at_ms: 0 }
}

impl InboxFixture {
    async fn begin(&self, next_offset: i64) {
        self.inbox.begin("c", &[begun(next_offset)]).await.expect("begin");
    }

    async fn take(&self, step: &Step) -> Taken {
        self.inbox.take(0, "c", step).await.expect("take")
    }

    async fn place(&self) -> i64 {
        let places = self.inbox.places("c").await.expect("places");
        places.iter().find(|place| place.source == QUEUE).expect("it has begun").next_offset
    }
}

/// A step is taken from where the place is, and moves it; from anywhere else nothing is stored. What is there under its id
/// stays as it is.
pub async fn a_step_is_taken_once(flavour: Flavour) {
    let f = fresh(flavour).await;
    assert_eq!(f.take(&step(0, 1, arrivals(&["x"]))).await, Taken::Elsewhere, "not begun");
    assert!(f.inbox.places("c").await.expect("places").is_empty());
    f.begin(5).await;
    f.begin(9).await;
    assert_eq!(f.inbox.places("c").await.expect("places"), [begun(5)], "it stays where it was begun");
    assert_eq!(f.take(&step(5, 7, arrivals(&["1", "2"]))).await, Taken::Stored { new: 2 });
    assert_eq!(f.take(&step(5, 7, arrivals(&["1", "2"]))).await, Taken::Elsewhere);
    assert_eq!(f.take(&step(6, 8, arrivals(&["late"]))).await, Taken::Elsewhere);
    assert_eq!(f.take(&step(7, 9, arrivals(&["2", "3"]))).await, Taken::Stored { new: 1 });
    assert_eq!(f.take(&step(9, 12, vec![])).await, Taken::Stored { new: 0 }, "nothing that is wanted");
    assert_eq!(f.take(&step(12, 4, vec![])).await, Taken::Stored { new: 0 }, "an operator goes back");
    let places = f.inbox.places("c").await.expect("places");
    assert_eq!(places, [Place { source: QUEUE.into(), next_offset: 4, stored_at_ms: 1_004 }]);
    assert!(f.inbox.places("another").await.expect("places").is_empty());
    assert_eq!(f.ids_in_order().await, ["1", "2", "3"]);
}

/// Numbers rise in the order of the queue, whatever the ids are, also in large steps; a relay's too.
pub async fn rows_are_numbered_in_the_order_of_the_queue(flavour: Flavour) {
    let f = fresh(flavour).await;
    f.begin(0).await;
    // Neither by id nor by hash in order.
    let ids: Vec<String> = (0..700u32).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for (n, part) in (0..).zip(ids[..500].chunks(250)) {
        assert_eq!(f.take(&step(n * 250, (n + 1) * 250, arrivals(part))).await, Taken::Stored { new: 250 });
    }
    let delivered: Vec<InboxMessage> = ids[500..].iter().map(|id| message(id)).collect();
    f.inbox.deliver(0, "c", &delivered).await.expect("deliver");
    assert_eq!(f.ids_in_order().await, ids);
}

/// Several readers that all believe that the queue is theirs: everything is there once, in order, although each gives it
/// ids of its own.
pub async fn readers_of_one_queue_store_it_once(flavour: Flavour) {
    const MESSAGES: i64 = 120;
    let f = Arc::new(fresh(flavour).await);
    f.begin(0).await;
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..4usize {
        let f = Arc::clone(&f);
        readers.spawn(async move {
            let options = StoreOptions::new(f.database.url.clone());
            let inbox = outhaul_store::inbox::open(options, 1).await.expect("open");
            let (mut stored, mut at) = (0, 0);
            while at < MESSAGES {
                let after = (at + 1 + reader as i64).min(MESSAGES);
                let ids: Vec<String> = (at..after).map(|n| format!("{n} by {reader}")).collect();
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                match inbox.take(0, "c", &step(at, after, arrivals(&ids))).await {
                    Ok(Taken::Stored { new }) => {
                        stored += new;
                        at = after;
                    }
                    Ok(Taken::Elsewhere) => at = inbox.places("c").await.expect("places")[0].next_offset,
                    Ok(Taken::Refused(why)) => panic!("{why}"),
                    Err(e) if e.kind.passes() => at = inbox.places("c").await.expect("places")[0].next_offset,
                    Err(e) => panic!("{e}"),
                }
            }
            inbox.close().await;
            stored
        });
    }
    let stored: u64 = readers.join_all().await.into_iter().sum();
    assert_eq!((stored, f.place().await), (MESSAGES as u64, MESSAGES));
    let ids = f.ids_in_order().await;
    let offsets: Vec<&str> = ids.iter().filter_map(|id| id.split(' ').next()).collect();
    assert_eq!(offsets, (0..MESSAGES).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// A step with a message that the table does not take is undone as a whole, and the connection is good for the next.
pub async fn a_refused_step_changes_nothing(flavour: Flavour) {
    let f = fresh(flavour).await;
    f.begin(0).await;
    let long = "x".repeat(80);
    let refused = f.take(&step(0, 3, arrivals(&["1", &long, "2"]))).await;
    assert!(matches!(&refused, Taken::Refused(why) if !why.is_empty()), "{refused:?}");
    assert_eq!((f.place().await, f.ids_in_order().await.len()), (0, 0));
    assert_eq!(f.take(&step(0, 1, arrivals(&["1"]))).await, Taken::Stored { new: 1 });
    assert_eq!(f.place().await, 1);
}

/// Dead rows have their reason; what waits and what is dead are counted, and what is done is not.
pub async fn what_is_dead_is_counted(flavour: Flavour) {
    let f = fresh(flavour).await;
    assert_eq!(f.inbox.counts("c").await.expect("counts"), InboxCounts::default());
    f.begin(0).await;
    let mut all = arrivals(&["1", "2", "3", "4"]);
    all[2].dead = Some("no text".into());
    assert_eq!(f.take(&step(0, 4, all)).await, Taken::Stored { new: 4 });
    let now = match flavour {
        Flavour::Sqlite => "1",
        _ => "CURRENT_TIMESTAMP",
    };
    f.database.execute(&format!("UPDATE inbox_message SET done_at = {now} WHERE id = '2'")).await;
    let counts = f.inbox.counts("c").await.expect("counts");
    assert_eq!((counts.waiting, counts.dead), (2, 1));
    assert!(counts.oldest_seconds < 3_600, "{counts:?}");
    let why = f.database.query_text("SELECT last_error FROM inbox_message WHERE dead_at IS NOT NULL").await;
    assert_eq!(why, "no text");
    assert_eq!(f.inbox.counts("another").await.expect("counts"), InboxCounts::default());
}

/// Without tables, or with those of an earlier version, it is said before anything is read.
pub async fn without_its_tables_it_says_so(flavour: Flavour) {
    let f = empty(flavour).await;
    let error = async || f.inbox.inspect_places().await.expect_err("no tables").kind;
    assert_eq!(error().await, StoreErrorKind::NotInitialised);
    f.inbox.init().await.expect("init");
    f.inbox.inspect_places().await.expect("of this version");
    f.database.execute("DROP TABLE inbox_queue").await;
    assert_eq!(error().await, StoreErrorKind::NotInitialised);
}
