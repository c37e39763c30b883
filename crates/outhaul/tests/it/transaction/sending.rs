//! What the sender promises, one thing at a time.

use std::sync::Arc;
use std::time::Duration;

use outhaul::Event;
use outhaul::transaction::{
    Answer, CheckBackAnswers, Ending, Finding, Judged, TransactionError, TransactionState, TransactionalSender,
};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::RocketMq;
use rocketmq_remoting::client::Admin;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use super::stage::{LIMIT, Stage, eventually};

/// Settings that a test changes are the whole broker's, and every start looks at them.
static TURN: Mutex<()> = Mutex::const_new(());

/// What the application's business may fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn event(stage: &Stage, id: &str) -> Event {
    Event::bytes(&stage.topic, "payload").id(id).key("k").header("a", "1")
}

/// The sender, and every check-back that it judges.
async fn start(stage: &Stage) -> (TransactionalSender, mpsc::UnboundedReceiver<Judged>) {
    #[expect(clippy::disallowed_methods, reason = "a test reads all of it")]
    let (judged, seen) = mpsc::unbounded_channel();
    let options = stage.options().observe(move |j| _ = judged.send(j.clone()));
    (TransactionalSender::start(options).await.unwrap(), seen)
}

async fn next_of(seen: &mut mpsc::UnboundedReceiver<Judged>, transaction: &str) -> Judged {
    let next = async {
        loop {
            let judged = seen.recv().await.unwrap();
            if judged.transaction == transaction {
                return judged;
            }
        }
    };
    timeout(LIMIT, next).await.expect("the broker asks")
}

macro_rules! on_both {
    ($($test:ident)*) => {
        mod v4 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                Box::pin(super::$test(outhaul_testkit::servers::rocketmq::RocketMq::V4)).await;
            })*
        }
        mod v5 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                Box::pin(super::$test(outhaul_testkit::servers::rocketmq::RocketMq::V5)).await;
            })*
        }
    };
}

on_both! {
    a_message_is_delivered_if_and_only_if_its_transaction_commits
    a_transaction_that_was_judged_before_its_row_never_commits
    another_application_in_the_group_says_nothing
}

async fn a_message_is_delivered_if_and_only_if_its_transaction_commits(version: RocketMq) {
    let _turn = TURN.lock().await;
    let stage = Stage::new(version, Flavour::Postgres).await;
    let (sender, _seen) = start(&stage).await;
    let pool = sqlx::PgPool::connect(&stage.database.url).await.unwrap();
    let prepared = sender.prepare(event(&stage, "committed")).await.unwrap();
    let transaction = prepared.transaction().to_owned();
    let sending = prepared.within(pool.begin().await.unwrap(), |mut tx| async move {
        let insert = "INSERT INTO business (id, tx) VALUES ('committed', $1)";
        sqlx::query(insert).bind(transaction).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok::<_, Failure>(7)
    });
    assert_eq!(tokio::spawn(sending).await.unwrap().unwrap(), (7, Ending::Confirmed));
    let prepared = sender.prepare(event(&stage, "rolled back")).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    prepared.record(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(prepared.settle().await, Answer::Rollback);
    let prepared = sender.prepare(event(&stage, "failed")).await.unwrap();
    let failing = prepared.within(pool.begin().await.unwrap(), |tx| async move {
        tx.rollback().await?;
        Err::<(), Failure>("the business says no".into())
    });
    failing.await.unwrap_err();
    // A COMMIT that was not answered: the database knows.
    let prepared = sender.prepare(event(&stage, "unanswered")).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    prepared.record(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    let mut again = pool.begin().await.unwrap();
    let refused = prepared.record(&mut again).await.unwrap_err();
    assert!(matches!(refused, TransactionError::Committed), "{refused}");
    again.rollback().await.unwrap();
    assert_eq!(prepared.settle().await, Answer::Commit);

    let delayed = sender.prepare(event(&stage, "x").header("delay-level", "3")).await.unwrap_err();
    assert_eq!(delayed.code(), "OUT-5020", "{delayed}");
    let nowhere = sender.prepare(Event::bytes("no-such-topic", "x")).await.unwrap_err();
    assert_eq!(nowhere.code(), "OUT-5022", "{nowhere}");

    sender.stop().await;
    let delivered = stage.delivered().await;
    let mut ids: Vec<&str> = delivered.keys().map(String::as_str).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["committed", "unanswered"]);
    let states: Vec<String> = stage.states().await.into_values().collect();
    let of = |state: &str| states.iter().filter(|s| *s == state).count();
    assert_eq!((of("ended"), of("committed")), (2, 0), "all is marked before it stops: {states:?}");
}

/// T1: the broker asks before the row is there. The business is not run, on databases that would let it go on too.
async fn a_transaction_that_was_judged_before_its_row_never_commits(version: RocketMq) {
    let _turn = TURN.lock().await;
    let stage = Stage::new(version, Flavour::MariaDb).await;
    let (sender, mut seen) = start(&stage).await;
    let pool = sqlx::MySqlPool::connect(&stage.database.url).await.unwrap();
    let prepared = sender.prepare(event(&stage, "late")).await.unwrap();
    let judged = next_of(&mut seen, prepared.transaction()).await;
    assert_eq!((judged.finding, judged.answer), (Some(Finding::Buried), Answer::Rollback));
    let tx = pool.begin().await.unwrap();
    let run =
        prepared.within(tx, |_| async { Err::<(), TransactionError>(TransactionError::Half("it is run".into())) });
    let refused = run.await.unwrap_err();
    assert_eq!(refused.code(), "OUT-5021", "{refused}");

    // Held open past the first question: UNKNOWN, and then it commits.
    let prepared = sender.prepare(event(&stage, "held")).await.unwrap();
    let transaction = prepared.transaction().to_owned();
    let mut tx = pool.begin().await.unwrap();
    prepared.record(&mut tx).await.unwrap();
    let judged = next_of(&mut seen, &transaction).await;
    assert_eq!((judged.finding, judged.answer), (Some(Finding::Open), Answer::Unknown));
    tx.commit().await.unwrap();
    drop(prepared); // END_TRANSACTION is never sent: the broker asks again.
    loop {
        let judged = next_of(&mut seen, &transaction).await;
        if judged.answer == Answer::Commit {
            assert_eq!(judged.finding, Some(Finding::Row(TransactionState::Committed)));
            break;
        }
    }
    eventually("delivered", async || stage.delivered().await.contains_key("held")).await;
    sender.stop().await;
    assert_eq!(stage.delivered().await.len(), 1);
}

/// T4: brokers ask any process of a group. One of another database cannot know, and its tombstone would keep nobody out.
async fn another_application_in_the_group_says_nothing(version: RocketMq) {
    let _turn = TURN.lock().await;
    let stage = Stage::new(version, Flavour::Postgres).await;
    let other = Stage::new(version, Flavour::MariaDb).await;
    let (sender, mut seen) = start(&stage).await;
    let mut options = other.options();
    options.broker.producer_group.clone_from(&stage.group);
    options.plain_halfs = true;
    #[expect(clippy::disallowed_methods, reason = "a test reads all of it")]
    let (judged, mut seen_by_other) = mpsc::unbounded_channel();
    let foreign = CheckBackAnswers::start(options.observe(move |j| _ = judged.send(j.clone()))).await.unwrap();
    let pool = sqlx::PgPool::connect(&stage.database.url).await.unwrap();
    let prepared = sender.prepare(event(&stage, "one")).await.unwrap();
    let transaction = prepared.transaction().to_owned();
    let mut tx = pool.begin().await.unwrap();
    prepared.record(&mut tx).await.unwrap();
    // The transaction is open until both were asked.
    next_of(&mut seen, &transaction).await;
    let told = next_of(&mut seen_by_other, &transaction).await;
    assert!(told.foreign && told.answer == Answer::Unknown && told.finding.is_none(), "{told:?}");
    tx.commit().await.unwrap();
    drop(prepared);
    eventually("delivered", async || stage.delivered().await.contains_key("one")).await;
    assert!(foreign.counts().foreign > 0);
    assert!(other.states().await.is_empty(), "not even a tombstone");
    foreign.stop().await;
    sender.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_are_looked_at_before_the_first_half() {
    let _turn = TURN.lock().await;
    for version in RocketMq::ALL {
        let stage = Arc::new(Stage::new(version, Flavour::Sqlite).await);
        let admin = Admin::new(&stage.client);
        let address = admin.masters(None).await.unwrap().remove(0).address;
        let set = async |key: &str, value: &str| admin.update_broker_config(&address, &[(key, value)]).await.unwrap();
        set("rejectTransactionMessage", "true").await;
        let refused = TransactionalSender::start(stage.options()).await.map(drop);
        set("rejectTransactionMessage", "false").await;
        assert_eq!(refused.unwrap_err().code(), "OUT-5024");

        let sender = TransactionalSender::start(stage.options()).await.unwrap();
        let codes: Vec<&str> = sender.answers().warnings().iter().map(|w| w.code).collect();
        assert!(codes.contains(&"OUT-5032"), "eight questions, a second apart: {codes:?}");
        assert!(!codes.contains(&"OUT-5033") && !codes.contains(&"OUT-5034"), "{codes:?}");
        sender.stop().await;

        let mut options = stage.options();
        options.retention = Duration::from_secs(3_600);
        let sender = TransactionalSender::start(options).await.unwrap();
        let health = sender.answers().health();
        assert!(health.healthy, "{health:?}");
        assert!(sender.answers().warnings().iter().any(|w| w.code == "OUT-5034"));
        sender.stop().await;
        if version == RocketMq::V5 {
            set("transactionOpBatchInterval", "3000").await;
            let sender = TransactionalSender::start(stage.options()).await.unwrap();
            set("transactionOpBatchInterval", "200").await;
            assert!(sender.answers().warnings().iter().any(|w| w.code == "OUT-5033"));
            sender.stop().await;
        }
    }
    let stage = Stage::new(RocketMq::V4, Flavour::Sqlite).await;
    let mut options = stage.options();
    options.broker.namesrv = vec!["127.0.0.1:9".into()];
    options.start_limit = Duration::from_secs(2);
    assert_eq!(TransactionalSender::start(options).await.map(drop).unwrap_err().code(), "OUT-5023");
}
