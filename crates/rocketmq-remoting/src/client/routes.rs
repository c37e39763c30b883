//! Where the queues of a topic are, remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::TopicRoute;
use super::name_servers::NameServers;
use crate::code::ResponseCode;
use crate::connection::describe;
use crate::error::Error;
use crate::request::{GetRoute, Request};

/// Routes by topic. A route is never forgotten because a name server is down, or because it lists no broker of the
/// topic at the moment: that is what an outage of the only broker looks like (rocketmq.md F.4). Whether the topic is
/// really gone is the broker's to say.
#[derive(Debug)]
pub(crate) struct Routes {
    limits: RouteLimits,
    topics: Mutex<HashMap<String, Arc<Topic>>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteLimits {
    pub(crate) limit: Duration,
    pub(crate) refresh: Duration,
    pub(crate) pause: Duration,
    pub(crate) max_topics: usize,
}

#[derive(Debug)]
struct Topic {
    name: String,
    known: Mutex<Known>,
    /// Held while a name server is asked, so that one asks for all.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Known {
    route: Option<Arc<TopicRoute>>,
    asked_at: Option<Instant>,
    used_at: Instant,
}

impl Topic {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routes {
    pub(crate) fn new(limits: RouteLimits) -> Self {
        Self { limits, topics: Mutex::default() }
    }

    fn topic(&self, name: &str) -> Arc<Topic> {
        let now = Instant::now();
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(name) {
            topic.known().used_at = now;
            return topic.clone();
        }
        if topics.len() >= self.limits.max_topics {
            let oldest = topics.values().min_by_key(|t| t.known().used_at).map(|t| t.name.clone());
            if let Some(oldest) = oldest {
                topics.remove(&oldest);
            }
        }
        let topic = Arc::new(Topic {
            name: name.to_owned(),
            known: Mutex::new(Known { route: None, asked_at: None, used_at: now }),
            asking: tokio::sync::Mutex::new(()),
        });
        topics.insert(name.to_owned(), topic.clone());
        topic
    }

    /// The route. What is remembered is used at once, and fetched again behind the caller's back when it is old, so that
    /// a name server that is slow or dead holds up nobody who knows the way.
    pub(crate) async fn get(&self, name: &str, servers: &Arc<NameServers>) -> Result<Arc<TopicRoute>, Error> {
        let topic = self.topic(name);
        let remembered = topic.known().route.clone();
        match remembered {
            Some(route) => {
                self.ask_behind(&topic, servers, self.limits.refresh);
                Ok(route)
            }
            None => ask(&topic, servers, self.limits.limit, Some(self.limits.pause)).await,
        }
    }

    /// Something failed that another route may cure: fetches it, unless that was done a moment ago.
    pub(crate) fn suspect(&self, name: &str, servers: &Arc<NameServers>) {
        self.ask_behind(&self.topic(name), servers, self.limits.pause);
    }

    /// Starts a look-up if the last one was begun longer ago than this.
    fn ask_behind(&self, topic: &Arc<Topic>, servers: &Arc<NameServers>, age: Duration) {
        {
            let mut known = topic.known();
            if known.asked_at.is_some_and(|at| at.elapsed() < age) {
                return;
            }
            // The next one who comes will not start another.
            known.asked_at = Some(Instant::now());
        }
        let (topic, servers, limit) = (topic.clone(), servers.clone(), self.limits.limit);
        tokio::spawn(async move {
            // One who asks already asks for all.
            if topic.asking.try_lock().is_ok() {
                let _last_known_stays = ask(&topic, &servers, limit, None).await;
            }
        });
    }

    /// Asks now, whatever is remembered.
    pub(crate) async fn refresh(&self, name: &str, servers: &NameServers) -> Result<Arc<TopicRoute>, Error> {
        ask(&self.topic(name), servers, self.limits.limit, None).await
    }

    /// What was told within `age`, or asks.
    pub(crate) async fn recent(
        &self,
        name: &str,
        servers: &NameServers,
        age: Duration,
    ) -> Result<Arc<TopicRoute>, Error> {
        ask(&self.topic(name), servers, self.limits.limit, Some(age)).await
    }

    /// As if it had never been known.
    pub(crate) fn forget(&self, name: &str) {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Asks the name servers, or takes what somebody else was told within `pause`.
async fn ask(
    topic: &Topic,
    servers: &NameServers,
    limit: Duration,
    pause: Option<Duration>,
) -> Result<Arc<TopicRoute>, Error> {
    let deadline = Instant::now() + limit;
    let Ok(_turn) = tokio::time::timeout_at(deadline, topic.asking.lock()).await else {
        return last_known(topic, Error::TimedOut { request: GetRoute::CODE, after: limit, sent: false });
    };
    if let Some(pause) = pause {
        let known = topic.known();
        if let (Some(route), Some(at)) = (&known.route, known.asked_at)
            && at.elapsed() < pause
        {
            return Ok(route.clone());
        }
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let answer = servers.request(&GetRoute { topic: topic.name.clone() }, left).await;
    let mut known = topic.known();
    known.asked_at = Some(Instant::now());
    match answer {
        Ok(answer) => {
            let route = Arc::new(TopicRoute::new(&topic.name, answer));
            known.route = Some(route.clone());
            Ok(route)
        }
        Err(error) => {
            drop(known);
            last_known(topic, error)
        }
    }
}

fn last_known(topic: &Topic, error: Error) -> Result<Arc<TopicRoute>, Error> {
    let known = topic.known();
    let Some(route) = &known.route else { return Err(error) };
    let gone = error.refused_with() == Some(ResponseCode::TopicNotExist);
    tracing::warn!(topic = topic.name, gone, error = describe(&error), "no new route, the last known one is used");
    Ok(route.clone())
}
