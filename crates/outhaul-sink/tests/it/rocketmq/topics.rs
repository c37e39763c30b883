//! Topics that are not there, or not to be written.

use std::time::Duration;

use outhaul_sink::Sink;
use outhaul_testkit::servers::rocketmq::{Account, OwnRocketMq, RocketMq};
use rocketmq_remoting::client::{Admin, Where};
use rocketmq_remoting::request::{CreateTopic, PERM_READ, PERM_WRITE};

use super::{Topics, delivered, many, message, send, text, word};

/// L3: a typo is a failed attempt with its reason; nothing is created, and nothing of others is held.
pub(super) async fn an_unknown_topic_fails_and_is_not_created(version: RocketMq) {
    let topics = Topics::shared(version);
    topics.create("orders", 4).await;
    let sink = topics.started(|c| c.create_topics = false).await;
    let mut all = many(0..7);
    all[2] = message(2, |row| row.topic = "ordres".into());
    let outcomes = send(&sink, &all).await;
    assert_eq!(word(&outcomes[2]), ("retry", "OUT-2033"));
    assert!(text(&outcomes[2]).contains(&topics.topic("ordres")), "{outcomes:?}");
    assert!(outcomes.iter().enumerate().all(|(n, o)| n == 2 || word(o).0 == "delivered"), "{outcomes:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(topics.client().route(&topics.topic("ordres")).await.is_err(), "it was created");
    // Made by an operator meanwhile: it goes on.
    topics.create("ordres", 1).await;
    delivered(&sink, &all[2..3]).await;
    // A name that no topic can have is refused for good.
    let outcomes = send(&sink, &[message(9, |row| row.topic = "orders.created".into())]).await;
    assert_eq!(word(&outcomes[0]), ("rejected", "OUT-2010"));
}

/// A topic that is read-only: a failed attempt with the reason, which passes when it is opened again.
pub(super) async fn a_topic_that_may_not_be_written(version: RocketMq) {
    let topics = Topics::shared(version);
    topics.create("orders", 2).await;
    let admin = Admin::new(&topics.client());
    let mut topic = CreateTopic::new(topics.topic("orders"), 2);
    topic.perm = PERM_READ;
    admin.create_topic(&topic, &Where::Everywhere).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sink = topics.started(|_| ()).await;
    let outcomes = send(&sink, &many(0..7)).await;
    assert!(outcomes.iter().all(|o| word(o) == ("retry", "OUT-2033")), "{outcomes:?}");
    assert!(text(&outcomes[0]).contains("no queue that can be written to"), "{outcomes:?}");
    topic.perm |= PERM_WRITE;
    admin.create_topic(&topic, &Where::Everywhere).await.unwrap();
    for _ in 0..50 {
        if send(&sink, &many(0..7)).await.iter().all(|o| word(o).0 == "delivered") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("it is not written to although it is open again");
}

/// Brokers, limits, level, topics, rights; nothing is stored or created by looking.
pub(super) async fn validate_tells_all_of_it(version: RocketMq) {
    let topics = Topics::shared(version);
    topics.create("orders", 6).await;
    let sink = topics.started(|c| c.create_topics = false).await;
    let findings = sink.examine(&["orders".into(), "ordres".into(), "a.b".into()]).await;
    let line = |subject: &str, part: &str| {
        let found = findings.iter().find(|f| f.subject.contains(subject) && f.text.contains(part));
        found.unwrap_or_else(|| panic!("{subject}: {part} in {findings:#?}"))
    };
    let number = match version {
        RocketMq::V4 => "4.9.4 at",
        RocketMq::V5 => "5.",
    };
    assert!(!line("broker-a", number).attention);
    line("broker-a", "ASYNC_FLUSH, ASYNC_MASTER");
    line("broker-a", "maxMessageSize 4194304, 18 delay levels");
    line("broker-a", "proves `received`");
    line("broker-a", "flushDiskType=SYNC_FLUSH");
    let orders = topics.topic("orders");
    assert!(!line(&orders, "6 queues (broker-a 6)").attention);
    assert!(!line(&orders, "lets this account send").attention);
    assert!(!line(&orders, "lets this account read").attention);
    assert!(line("ordres", "OUT-2033").attention);
    assert!(line("a.b", "is not").attention);
    assert!(topics.stored("orders").await.is_empty());
}

/// Accounts: what is missing is named by `validate` and by outcomes; with the right account all of it works.
async fn accounts(version: RocketMq) {
    let cluster = OwnRocketMq::start(version, &["acl"]).await;
    let topics = Topics::at(cluster.namesrv());
    cluster.java().signed(Account::ADMIN).create_topic(&topics.topic("orders"), 4).await;
    let sink = |account: Account| {
        topics.sink(None, |c| {
            c.access_key = account.access_key.into();
            c.secret_key = account.secret_key.into();
            c.create_topics = false;
        })
    };
    let wrong = sink(Account { access_key: "outhaul-app", secret_key: "wrong-secret" });
    assert_eq!(wrong.start().await.unwrap_err().code, "OUT-2031");
    assert_eq!(topics.sink(None, |_| ()).start().await.unwrap_err().code, "OUT-2031");

    let reader = sink(Account::READER);
    reader.start().await.unwrap();
    let findings = reader.examine(&["orders".into()]).await;
    assert!(findings.iter().any(|f| f.attention && f.text.contains("does not let it send")), "{findings:#?}");
    // A single message: 4.9 does not look at rights to send batches.
    let outcomes = send(&reader, &[message(0, |_| ())]).await;
    assert_eq!(word(&outcomes[0]), ("retry", "OUT-2036"), "{outcomes:?}");

    let app = sink(Account::APP);
    app.start().await.unwrap();
    let all = many(0..70);
    let receipts = delivered(&app, &all).await;
    let verified = app.verify(&super::acknowledged(&all, &receipts)).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false));
    let findings = app.examine(&["orders".into()]).await;
    assert!(findings.iter().all(|f| !f.attention), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_of_4_9() {
    accounts(RocketMq::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_of_5() {
    accounts(RocketMq::V5).await;
}

/// TLS with an authority of one's own, with the wrong one, and with none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls() {
    for version in RocketMq::ALL {
        let topics = Topics::shared(version);
        let sink = topics
            .started(|c| {
                c.tls = true;
                c.tls_ca_file = version.ca_file();
            })
            .await;
        delivered(&sink, &many(0..7)).await;
        let insecure = topics.sink(None, |c| (c.tls, c.tls_insecure) = (true, true));
        let info = insecure.start().await.unwrap();
        assert!(info.warnings.iter().any(|w| w.contains("tls_insecure")), "{info:?}");
        let other_name = topics.sink(None, |c| {
            c.tls = true;
            c.tls_ca_file = version.ca_file();
            c.tls_server_name = "somebody-else".into();
        });
        assert_eq!(other_name.start().await.unwrap_err().code, "OUT-2032");
        let no_file = topics.sink(None, |c| (c.tls, c.tls_ca_file) = (true, "/nowhere.pem".into()));
        assert_eq!(no_file.start().await.unwrap_err().code, "OUT-2032");
    }
}
