//! Brokers that have too much to do.

use std::sync::Arc;
use std::time::Instant;

use outhaul_testkit::detour::Detour;
use outhaul_testkit::servers::rocketmq::topic_name;
use outhaul_testkit::servers::soak;
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Producer, SendOptions, Where};
use rocketmq_remoting::message::Message;
use rocketmq_remoting::request::CreateTopic;
use rocketmq_remoting::{Error, ResponseCode, codec};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::{A, B, Cluster};
use super::stage::{LIMIT, QUEUES, Stage, config, rows};

/// SYSTEM_BUSY, which brokers answer here to whatever has waited for one of their threads, or finds another one writing:
/// nothing of it was stored, so nothing comes twice; nothing is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy() {
    let cluster = Cluster::take().await;
    let (refused, seen) = watch::channel(0_usize);
    let refused = Arc::new(refused);
    let (mut brokers, mut detours) = (Vec::new(), Vec::new());
    for part in [A, B] {
        let (broker, refused) = (cluster.servers.address(part).await, refused.clone());
        let detour = Detour::start(broker, move |answer| {
            let (code, remark) = said(answer);
            if is_busy(code, remark.as_deref()) {
                refused.send_modify(|n| *n += 1);
            }
        })
        .await;
        brokers.push((broker, detour.address));
        detours.push(detour);
    }
    let names = Detour::names(cluster.servers.namesrv().parse().unwrap(), brokers.clone()).await;
    let mut settings = config(&names.address.to_string());
    settings.request_limit_ms = 4_000; // only busy, and never silent
    let mut stage = Stage::new(cluster.servers.namesrv(), settings, QUEUES / 2, 4).await;
    let admin = Admin::new(&stage.client);
    let set = async |wait: &str, page_cache: &str| {
        let settings = [("waitTimeMillsInSendQueue", wait), ("osPageCacheBusyTimeOutMills", page_cache)];
        for (broker, _) in &brokers {
            admin.update_broker_config(&broker.to_string().parse().unwrap(), &settings).await.unwrap();
        }
    };
    set("0", "-1").await;
    let flood = flood(cluster.servers.namesrv()).await;
    let mut writers = stage.writers_during_faults(if soak() { 2_000 } else { 600 }, 53);
    let mut relays = [stage.scene.relay()];
    let began = Instant::now();
    let enough = if soak() { 300 } else { 20 };
    let mut watched = seen.clone();
    let waited = tokio::time::timeout(LIMIT, watched.wait_for(|n| *n >= enough)).await.is_ok();
    assert!(waited, "SYSTEM_BUSY {} times within {LIMIT:?}", *seen.borrow());
    stage.arrived(rows(2_000) / 2).await;
    drop(flood);
    let refusals = *seen.borrow();
    set("5000", "10000").await;
    println!("SYSTEM_BUSY {refusals} times in {:?}", began.elapsed());
    stage.faults_are_over(&writers);
    // A message that was refused and stored all the same would be a copy that no silence explains.
    stage.scene.settle(&mut writers, &mut relays, "busy brokers").await;
    stage.assert_nothing_forgotten();
    drop(detours);
}

/// Who has found another one writing is told so with code 1.
fn is_busy(code: ResponseCode, remark: Option<&str>) -> bool {
    let remark = remark.unwrap_or_default();
    code == ResponseCode::SystemBusy || (code == ResponseCode::SystemError && remark.contains("broker busy"))
}

/// Other producers, which send as fast as the brokers let them, to a topic of their own.
async fn flood(namesrv: &str) -> JoinSet<()> {
    let client = Client::new(ClientOptions::new(namesrv).unwrap().window(256));
    let topic = topic_name();
    Admin::new(&client).create_topic(&CreateTopic::new(&*topic, 1), &Where::Everywhere).await.unwrap();
    let queues = client.route(&topic).await.unwrap().queues().to_vec();
    let producer = Producer::new(&client, "outhaul-test").unwrap();
    let message = Message::new(&*topic, "x".repeat(20_000)).unwrap().with_unique_key("flood").unwrap();
    let mut flood = JoinSet::new();
    for queue in queues.iter().cycle().take(64) {
        let (producer, queue, message) = (producer.clone(), queue.clone(), message.clone());
        flood.spawn(async move {
            loop {
                let sent = producer.send(&queue, &message, &SendOptions::default()).await;
                if let Err(error) = sent {
                    let said =
                        matches!(&error, Error::Refused { code, remark, .. } if is_busy(*code, remark.as_deref()));
                    assert!(said, "{error}");
                }
            }
        });
    }
    flood
}

/// Code and remark of an answer.
fn said(answer: &[u8]) -> (ResponseCode, Option<String>) {
    let (command, _) = codec::decode(answer.to_vec().into()).unwrap();
    (command.response_code(), command.remark)
}
