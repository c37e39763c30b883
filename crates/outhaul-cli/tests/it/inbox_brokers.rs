//! `outhaul inbox` and what brokers and databases do to it: tags, topics that come late, messages that were lost or are too
//! large, a member that was stopped for long, and rows that were done long ago.

use bytes::Bytes;
use outhaul_testkit::detour::Detour;
use outhaul_testkit::proxy::Proxy;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq, topic_name};
use outhaul_testkit::servers::{Flavour, OwnServer, create};
use rocketmq_remoting::Message;
use rocketmq_remoting::client::{Admin, Client, Where};
use rocketmq_remoting::message::MessageQueue;
use rocketmq_remoting::request::{CreateSubscriptionGroup, CreateTopic};

use crate::inbox::{Service, eventually, message, send, statement, topic_with};
use crate::program::{LIMIT, Running};

macro_rules! on_both {
    ($($name:ident as $four:ident $five:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $four() {
                Box::pin($name(RocketMq::V4)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn $five() {
                Box::pin($name(RocketMq::V5)).await;
            }
        )*
    };
}

on_both! {
    only_wanted_tags_come as only_wanted_tags_come_4 only_wanted_tags_come_5
    a_topic_that_comes_later as a_topic_that_comes_later_4 a_topic_that_comes_later_5
    what_a_broker_has_lost_is_said as what_a_broker_has_lost_is_said_4 what_a_broker_has_lost_is_said_5
}

/// A message with an id, the key `k` and a payload of so many bytes.
fn sized(topic: &str, id: &str, bytes: usize) -> Message {
    let message = Message::new(topic, Bytes::from(vec![b'x'; bytes])).unwrap();
    message.with_property("outhaul-id", id).unwrap().with_property("outhaul-key", "k").unwrap()
}

async fn send_all(client: &Client, queue: &MessageQueue, prefix: &str, numbers: std::ops::Range<u32>, bytes: usize) {
    for n in numbers {
        send(client, queue, sized(&queue.topic, &format!("{prefix}{n:03}"), bytes)).await;
    }
}

fn names(prefix: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("{prefix}{n:03}")).collect()
}

async fn stop(daemon: Running) -> String {
    daemon.signal("TERM").await;
    daemon.end().await.expect(0).stdout
}

/// Of a topic with tags those that are named, also where a broker takes another for one of them (`Aa` and `BB` have the
/// same hash). The place moves over what is not wanted.
async fn only_wanted_tags_come(version: RocketMq) {
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let service = Service::new(Flavour::Sqlite, &version.namesrv(), &format!("{topic}:Aa||us"), "").await;
    let tagged = async |n: u32, tag: &str| {
        let mut message = sized(&topic, &format!("m{n:03}"), 10);
        if !tag.is_empty() {
            message = message.with_tag(tag).unwrap();
        }
        send(&client, &queue, message).await;
    };
    for (n, tag) in (0..).zip(["Aa", "BB", "us", "", "asia", "us", "BB"]) {
        tagged(n, tag).await;
    }
    let daemon = service.start("health").await;
    eventually("those that are wanted", LIMIT, async || service.ids().await == ["m000", "m002", "m005"]).await;
    let headers = service.database.query("SELECT headers FROM inbox_message ORDER BY seq").await;
    assert!(headers[1][0].as_deref().unwrap().contains(r#""tags":"us""#), "{headers:?}");
    // All that comes for a while is not wanted, and then one is.
    for n in 7..60 {
        tagged(n, if n % 2 == 0 { "BB" } else { "asia" }).await;
    }
    let behind = async || service.count("SELECT next_offset FROM inbox_queue").await == 60;
    eventually("the place is behind what is not wanted", LIMIT, behind).await;
    tagged(60, "Aa").await;
    eventually("one more", LIMIT, async || service.ids().await == ["m000", "m002", "m005", "m060"]).await;
    stop(daemon).await;
}

/// A topic that nobody has made yet is waited for, and said to be missing by the health file and by `validate`; another is
/// read meanwhile.
async fn a_topic_that_comes_later(version: RocketMq) {
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let late = topic_name();
    let both = format!("{topic}\", \"{late}");
    let service = Service::new(Flavour::Sqlite, &version.namesrv(), &both, "from = \"end\"").await;
    let validate = async |code: i32| service.folder.run(&["validate"], "", &[]).await.expect(code).stdout;
    let missing = validate(3).await;
    let makes = missing.contains("ok   inbox points: group ") && missing.contains("its tables are made at the start");
    assert!(makes && missing.contains(&format!("look   topic {late}: there is no such topic")), "{missing}");
    let mut daemon = service.start("health").await;
    daemon.says(&format!("queues are not shared anew, will be tried again: {late}")).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let begun = async || service.count("SELECT count(*) FROM inbox_queue").await == 1;
    eventually("the other has begun", LIMIT, begun).await;
    send_all(&client, &queue, "a", 0..3, 10).await;
    eventually("the other is read", LIMIT, async || service.ids().await == names("a", 0..3)).await;
    eventually("it is not well", LIMIT, async || {
        let health = service.health("health");
        health["healthy"] == false && health["state"].as_str().is_some_and(|state| state.contains(&late))
    })
    .await;
    Admin::new(&client).create_topic(&CreateTopic::new(&late, 1), &Where::Everywhere).await.unwrap();
    eventually("the topic has a route", LIMIT, async || client.refresh_route(&late).await.is_ok()).await;
    let begun = async || service.count("SELECT count(*) FROM inbox_queue").await == 2;
    eventually("it has begun", LIMIT, begun).await;
    let queue = client.route(&late).await.unwrap().queues()[0].clone();
    send_all(&client, &queue, "b", 0..3, 10).await;
    let all = [names("a", 0..3), names("b", 0..3)].concat();
    eventually("it is read", LIMIT, async || service.ids().await == all).await;
    eventually("it is well", LIMIT, async || service.health("health")["healthy"] == true).await;
    let found = validate(0).await;
    assert!(found.contains(&format!("  ok   topic {late}: 1 queues can be read")), "{found}");
    stop(daemon).await;
}

/// A broker that makes no groups by itself says no until somebody has made the group: `validate` fails, the daemon waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_nobody_has_made() {
    let broker = OwnRocketMq::start(RocketMq::V4, &["autoCreateSubscriptionGroup=false"]).await;
    let (client, topic) = topic_with(broker.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    send_all(&client, &queue, "a", 0..3, 10).await;
    let service = Service::new(Flavour::Sqlite, broker.namesrv(), &topic, "").await;
    let refused = service.folder.run(&["validate"], "", &[]).await.expect(1).stderr;
    assert!(
        refused.contains("OUT-5050 inbox points: ") && refused.contains("SUBSCRIPTION_GROUP_NOT_EXIST"),
        "{refused}"
    );
    let mut daemon = service.start("health").await;
    daemon.says("SUBSCRIPTION_GROUP_NOT_EXIST").await;
    let health = service.health("health");
    let group = CreateSubscriptionGroup::new(health["group"].as_str().unwrap());
    Admin::new(&client).create_group(&group, &Where::Everywhere).await.unwrap();
    eventually("it reads", LIMIT, async || service.ids().await == names("a", 0..3)).await;
    service.folder.run(&["validate"], "", &[]).await.expect(0);
    stop(daemon).await;
}

/// A broker that has forgotten the end of a queue, and one that has deleted what was not read: both are said with their
/// codes, nothing that is there is missed, and what was lost is counted.
async fn what_a_broker_has_lost_is_said(version: RocketMq) {
    const FILE_BYTES: usize = 1 << 20;
    let settings = [format!("mappedFileSizeCommitLog={FILE_BYTES}")];
    let broker = OwnRocketMq::start(version, &settings.each_ref().map(String::as_str)).await;
    let (client, topic) = topic_with(broker.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let service = Service::new(Flavour::Sqlite, broker.namesrv(), &topic, "").await;
    let mut daemon = service.start("health").await;
    let read = async |expected: &[Vec<String>]| {
        let expected = expected.concat();
        eventually("they are there", LIMIT, async || service.ids().await == expected).await;
    };
    send_all(&client, &queue, "a", 0..10, 10).await;
    read(&[names("a", 0..10)]).await;
    broker.snapshot("ten", &[Part::BrokerA]).await;
    send_all(&client, &queue, "b", 0..10, 10).await;
    read(&[names("a", 0..10), names("b", 0..10)]).await;

    broker.rollback("ten").await;
    let back = async || client.refresh_route(&topic).await.is_ok() && client.max_offset(&queue).await.is_ok();
    eventually("the broker is back", LIMIT, back).await;
    send_all(&client, &queue, "c", 0..5, 10).await;
    let said = daemon.says("OUT-5053").await;
    assert!(said.contains("the queue ends before what was read from it"), "{said}");
    read(&[names("a", 0..10), names("b", 0..10), names("c", 0..5)]).await;
    assert_eq!(service.health("health")["lost"], 0);
    stop(daemon).await;

    // Four files of the store are full, the daemon is down, and the oldest two are deleted.
    send_all(&client, &queue, "d", 0..70, FILE_BYTES / 16).await;
    broker.kill9(&[Part::BrokerA]).await;
    let store = broker.folder().join("broker-a/store/commitlog");
    let mut files: Vec<_> = std::fs::read_dir(&store).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    files.iter().take(2).for_each(|file| std::fs::remove_file(file).unwrap());
    broker.restart(&[Part::BrokerA]).await;
    let mut daemon = service.start("health").await;
    let said = daemon.says("OUT-5052").await;
    assert!(said.contains("offsets any more"), "{said}");
    let lost = async || service.health("health")["lost"].as_u64().unwrap_or_default();
    eventually("what was lost is counted", LIMIT, async || lost().await > 0).await;
    let lost = u32::try_from(lost().await).unwrap();
    assert!((10..60).contains(&lost), "{lost}");
    read(&[names("a", 0..10), names("b", 0..10), names("c", 0..5), names("d", lost..70)]).await;
    send_all(&client, &queue, "e", 0..3, 10).await;
    read(&[names("a", 0..10), names("b", 0..10), names("c", 0..5), names("d", lost..70), names("e", 0..3)]).await;
    stop(daemon).await;
}

/// A message that no statement of the database can carry: dead, without its payload, with where it is; the others of the
/// same pull come as they are.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_the_database_takes() {
    let server = OwnServer::start(Flavour::MariaDb, &["max_allowed_packet=1M"]).await;
    let version = RocketMq::V4;
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    send_all(&client, &queue, "a", 0..3, 10).await;
    send(&client, &queue, sized(&topic, "large", 2 << 20)).await;
    send_all(&client, &queue, "b", 0..3, 10).await;
    let service = Service::with(server.database().await, &version.namesrv(), &topic, "");
    let daemon = service.start("health").await;
    let all = [names("a", 0..3), vec!["large".into()], names("b", 0..3)].concat();
    eventually("all are there", LIMIT, async || service.ids().await == all).await;
    let dead =
        service.database.query("SELECT id, last_error, length(payload) FROM inbox_message WHERE dead_at IS NOT NULL");
    let dead = dead.await;
    let why = dead[0][1].clone().unwrap();
    assert_eq!((dead.len(), dead[0][0].as_deref(), dead[0][2].as_deref()), (1, Some("large"), Some("0")), "{dead:?}");
    assert!(why.starts_with("OUT-5054 ") && why.contains("offset 3") && why.contains("without headers"), "{why}");
    assert_eq!(service.health("health")["healthy"], true);
    stop(daemon).await;
}

/// A member is stopped while it has read what it cannot store, another takes over, and what both have read is pruned: when the
/// first wakes up it puts nothing back, and goes on from where the other is.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_stopped_puts_nothing_back() {
    let broker = OwnRocketMq::start(RocketMq::V4, &[]).await;
    let (client, topic) = topic_with(broker.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let address = broker.address(Part::BrokerA).await;
    let way = Proxy::start(address).await;
    let names_of = Detour::names(broker.address(Part::Namesrv).await, vec![(address, way.address())]).await;
    let database = create(Flavour::Postgres).await;
    let to_database = Proxy::start(database.address()).await;
    // The sleeper goes through proxies, the other does not.
    let sleeper = Service::with(database, &names_of.address.to_string(), &topic, "");
    let config = std::fs::read_to_string(sleeper.folder.path("outhaul.toml")).unwrap();
    let direct = &sleeper.database.url;
    let config = config.replace(direct.as_str(), &sleeper.database.url_at(to_database.address()));
    sleeper.folder.write("sleeper.toml", &config);
    let mut first = sleeper.folder.start(&["inbox", "-c", "sleeper.toml", "--health-file", "h1", "--json"], &[]);
    first.says("reading into the inbox").await;
    send_all(&client, &queue, "a", 0..10, 10).await;
    eventually("the first reads", LIMIT, async || sleeper.ids().await.len() == 10).await;
    to_database.refuse().await;
    to_database.cut_all().await;
    send_all(&client, &queue, "b", 0..10, 10).await;
    first.says("not stored, will be tried again").await;
    first.signal("STOP").await;
    way.cut_all().await; // the broker sees it go
    let config = config.replace(&names_of.address.to_string(), broker.namesrv());
    let config = config.replace(&sleeper.database.url_at(to_database.address()), &sleeper.database.url);
    sleeper.folder.write("other.toml", &config);
    let mut second = sleeper.folder.start(&["inbox", "-c", "other.toml", "--health-file", "h2", "--json"], &[]);
    second.says("reading into the inbox").await;
    eventually("the second goes on", LIMIT, async || sleeper.ids().await.len() == 20).await;
    sleeper.database.execute("DELETE FROM inbox_message").await;
    to_database.accept().await;
    first.signal("CONT").await;
    send_all(&client, &queue, "c", 0..10, 10).await;
    eventually("both go on", LIMIT, async || sleeper.ids().await == names("c", 0..10)).await;
    second.signal("TERM").await;
    second.end().await.expect(0);
    send_all(&client, &queue, "d", 0..10, 10).await;
    let both = [names("c", 0..10), names("d", 0..10)].concat();
    eventually("the first goes on alone", LIMIT, async || sleeper.ids().await.len() >= 20).await;
    assert_eq!(sleeper.ids().await, both);
    first.signal("TERM").await;
    let counts = first.end().await.expect(0).json();
    assert_eq!(counts["duplicates"], 0, "{counts}");
}

/// The place is moved while a step of the daemon waits for it, as another member would: what the daemon has read is stored by
/// nobody a second time, and it goes on from where the place is.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_moves_under_a_step() {
    let version = RocketMq::V5;
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let service = Service::new(Flavour::Postgres, &version.namesrv(), &topic, "").await;
    let daemon = service.start("health").await;
    send_all(&client, &queue, "a", 0..10, 10).await;
    eventually("the first are there", LIMIT, async || service.ids().await == names("a", 0..10)).await;
    let mut other = service.database.session().await;
    other.execute("BEGIN").await;
    other.execute("SELECT * FROM inbox_queue FOR UPDATE").await;
    send_all(&client, &queue, "b", 0..10, 10).await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a step waits", LIMIT, async || service.count(waits).await > 0).await;
    other.execute("UPDATE inbox_queue SET next_offset = 20").await;
    other.execute("COMMIT").await;
    send_all(&client, &queue, "c", 0..10, 10).await;
    let ends_with = async |id: &str| service.ids().await.last().is_some_and(|last| last == id);
    eventually("it goes on", LIMIT, async || ends_with("c009").await).await;
    assert_eq!(service.ids().await, [names("a", 0..10), names("c", 0..10)].concat());
    stop(daemon).await;
}

/// With `retention` one of two copies deletes what was done longer ago; what is not done, or dead, stays.
async fn done_rows_go(flavour: Flavour) {
    let version = RocketMq::V4;
    let (client, topic) = topic_with(&version.namesrv(), 2).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let keys = "retention = \"1s\"\nreplay_window = \"0s\"";
    let service = Service::new(flavour, &version.namesrv(), &topic, keys).await;
    let (first, second) = (service.start("h1").await, service.start("h2").await);
    for n in 0..4 {
        let (id, key) = (format!("m{n:03}"), format!("k{n}"));
        send(&client, &queue, message(&topic, &[("outhaul-id", &id), ("outhaul-key", &key)])).await;
    }
    eventually("they are there", LIMIT, async || service.ids().await.len() == 4).await;
    let sql = service.statements().await;
    let mut session = service.database.session().await;
    for id in ["m000", "m002"] {
        let done = statement(&sql, "done").replace(":id", &format!("'{id}'"));
        assert_eq!(session.execute(&done).await, 1);
    }
    for _ in 0..10 {
        session.execute("UPDATE inbox_message SET claimed_until = NULL WHERE id = 'm003'").await;
        let failed = statement(&sql, "failed").replace(":id", "'m003'").replace(":error", "'no'");
        assert_eq!(session.execute(&failed).await, 1);
    }
    eventually("what is done goes", LIMIT, async || service.ids().await == ["m001", "m003"]).await;
    let pruned = |file: &str| service.health(file)["pruned"].as_u64().unwrap_or_default();
    eventually("it is counted", LIMIT, async || pruned("h1") + pruned("h2") == 2).await;
    for daemon in [first, second] {
        stop(daemon).await;
    }
    // Less than a replay can bring again is refused.
    let short = [("OUTHAUL__INBOX__POINTS__REPLAY_WINDOW", "2s")];
    let refused = service.folder.run(&["inbox"], "", &short).await.expect(2).stderr;
    assert!(refused.contains("retention is 1000 ms, below replay_window, 2000 ms"), "{refused}");
}

crate::program::on_every_database!(done_rows_go);
