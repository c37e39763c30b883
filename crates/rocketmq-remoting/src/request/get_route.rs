//! GET_ROUTEINFO_BY_TOPIC, of a name server. Source: `GetRouteInfoRequestHeader`, `TopicRouteData`, `QueueData`,
//! `BrokerData`, and `MQClientInstance` for the order of queues, of RocketMQ 4.9.4.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::create_topic::{PERM_READ, PERM_WRITE};
use super::{Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::{MessageQueue, check_topic};

/// The id of a broker that takes writes; others of its name are slaves.
pub const MASTER_ID: i64 = 0;

/// The most queues that a list of queues has; what a route names beyond them is left out.
const MAX_QUEUES: usize = 65_536;

/// Asks where a topic lives. Refused with TOPIC_NOT_EXIST if there is no such topic, and also while every broker of it
/// is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRoute {
    /// The topic.
    pub topic: String,
}

impl Request for GetRoute {
    type Answer = Route;
    const CODE: RequestCode = RequestCode::GetRouteInfoByTopic;

    /// # Errors
    /// [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE).with("topic", &self.topic).with("acceptStandardJsonOnly", true))
    }

    fn answer(&self, answer: Command) -> Result<Route, Error> {
        answer::success(Self::CODE, &answer)?;
        answer::json(Self::CODE, &answer)
    }
}

/// Where a topic lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// The fixed list of queues of an ordered topic: `broker:count;broker:count`.
    pub order_topic_conf: Option<String>,
    /// Its queues on each broker.
    pub queue_datas: Vec<QueueData>,
    /// Its brokers, masters and slaves under one name.
    pub broker_datas: Vec<BrokerData>,
}

/// A topic's queues on one broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueData {
    /// The broker's name.
    pub broker_name: String,
    /// Queues that can be read.
    pub read_queue_nums: i32,
    /// Queues that can be written.
    pub write_queue_nums: i32,
    /// What is allowed: [`PERM_READ`] and [`PERM_WRITE`].
    pub perm: i32,
    /// The topic's system flag.
    pub topic_sys_flag: i32,
}

/// A broker's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerData {
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub broker_name: String,
    /// `host:port` by id; [`MASTER_ID`] is the master.
    pub broker_addrs: BTreeMap<i64, String>,
}

impl BrokerData {
    /// Address of the master, if there is one now.
    #[must_use]
    pub fn master(&self) -> Option<&str> {
        self.broker_addrs.get(&MASTER_ID).map(String::as_str)
    }
}

impl Route {
    /// The broker with this name.
    #[must_use]
    pub fn broker(&self, name: &str) -> Option<&BrokerData> {
        self.broker_datas.iter().find(|broker| broker.broker_name == name)
    }

    /// The queues that can be written now, in the order of Java's producers: as `orderTopicConf` lists them, whether
    /// their brokers live or not, or else by broker name and number, those of living masters only. At most 65,536.
    #[must_use]
    pub fn publish_queues(&self, topic: &str) -> Vec<MessageQueue> {
        if let Some(conf) = self.order_topic_conf.as_deref().filter(|conf| !conf.is_empty()) {
            let listed = conf.split(';').filter_map(|entry| {
                let (broker, count) = entry.split_once(':')?;
                Some((broker, count.parse().ok()?))
            });
            return queues(topic, listed);
        }
        let mut datas: Vec<&QueueData> = self.queue_datas.iter().filter(|data| data.perm & PERM_WRITE != 0).collect();
        datas.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        let mut masters: HashMap<&str, bool> = HashMap::new();
        for broker in &self.broker_datas {
            masters.entry(&broker.broker_name).or_insert(broker.master().is_some());
        }
        let alive = datas.into_iter().filter(|data| masters.get(data.broker_name.as_str()) == Some(&true));
        queues(topic, alive.map(|data| (data.broker_name.as_str(), data.write_queue_nums)))
    }

    /// The queues that can be read now, from masters or slaves, by broker name and number. At most 65,536.
    #[must_use]
    pub fn subscribe_queues(&self, topic: &str) -> Vec<MessageQueue> {
        let mut datas: Vec<&QueueData> = self.queue_datas.iter().filter(|data| data.perm & PERM_READ != 0).collect();
        datas.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        queues(topic, datas.into_iter().map(|data| (data.broker_name.as_str(), data.read_queue_nums)))
    }
}

fn queues<'a>(topic: &str, brokers: impl Iterator<Item = (&'a str, i32)>) -> Vec<MessageQueue> {
    brokers
        .flat_map(|(broker, count)| (0..count).map(move |id| (broker, id)))
        .take(MAX_QUEUES)
        .map(|(broker, queue_id)| MessageQueue { topic: topic.to_owned(), broker_name: broker.to_owned(), queue_id })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::ResponseCode;

    fn read(body: &'static str) -> Result<Route, Error> {
        let request = GetRoute { topic: "Orders".into() };
        let command = request.command().unwrap();
        request.answer(Command::answer_to(&command, ResponseCode::Success, None).with_body(body))
    }

    fn names(queues: &[MessageQueue]) -> Vec<String> {
        queues.iter().map(|q| format!("{}{}", q.broker_name, q.queue_id)).collect()
    }

    const FASTJSON: &str = r#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.2:10911",1:"10.0.0.3:10911"},"brokerName":"b","cluster":"c"},
        {"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"a","cluster":"c","enableActingMaster":false},
        {"brokerAddrs":{1:"10.0.0.4:10911"},"brokerName":"slave-only"}],"filterServerTable":{},
        "queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":3,"writeQueueNums":2,"topicSysFlag":0,"topicSynFlag":0},
        {"brokerName":"slave-only","perm":6,"readQueueNums":1,"writeQueueNums":1},
        {"brokerName":"a","perm":4,"readQueueNums":1,"writeQueueNums":4},{"brokerName":"a","perm":2,"readQueueNums":9,"writeQueueNums":1}]}"#;

    #[test]
    fn bare_integer_keys_are_read_and_queues_are_in_javas_order() {
        let route = read(FASTJSON).unwrap();
        assert_eq!(route.broker("b").unwrap().master(), Some("10.0.0.2:10911"));
        assert_eq!(route.broker("b").unwrap().broker_addrs.len(), 2);
        assert_eq!(names(&route.publish_queues("Orders")), ["a0", "b0", "b1"]);
        assert_eq!(names(&route.subscribe_queues("Orders")), ["a0", "b0", "b1", "b2", "slave-only0"]);
    }

    #[test]
    fn an_ordered_topic_lists_its_queues_itself() {
        let route = read(r#"{"orderTopicConf":"z:2;a:1;odd;b:x","brokerDatas":[],"queueDatas":[]}"#).unwrap();
        assert_eq!(names(&route.publish_queues("Orders")), ["z0", "z1", "a0"]);
        let empty = read(r#"{"orderTopicConf":"","brokerDatas":[],"queueDatas":[]}"#).unwrap();
        assert_eq!(empty.publish_queues("Orders"), []);
    }

    #[test]
    fn a_route_out_of_its_mind_is_bounded() {
        let route = read(r#"{"orderTopicConf":"a:2147483647;b:2147483647"}"#).unwrap();
        assert_eq!(route.publish_queues("Orders").len(), MAX_QUEUES);
        assert!(matches!(read("{"), Err(Error::Answer { what: "body", .. })));
        assert!(matches!(read(""), Err(Error::Answer { what: "body", .. })));
    }
}
