//! A broker: what it is, and the connection to it that was looked at.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outhaul_core::receipt::AckLevel;
use rocketmq_remoting::client::Master;
use rocketmq_remoting::command::Version;
use rocketmq_remoting::connection::{Address, Channel, Connection};
use rocketmq_remoting::message::DEFAULT_MAX_MESSAGE_BYTES;
use rocketmq_remoting::request::{
    BrokerConfig, DURABILITY_KEYS, GetBrokerConfig, GetRuntimeInfo, RuntimeInfo, SendStatus,
};
use rocketmq_remoting::{Error, ResponseCode};
use tokio::time::Instant;

use super::ack::Durability;
use super::deliver::Carried;
use super::turn::Turns;
use super::window::Window;

/// Levels of the default `messageDelayLevel`.
const DEFAULT_DELAY_LEVELS: i32 = 18;
/// Default `timerMaxDelaySec`: three days.
const DEFAULT_TIMER_MAX_DELAY_SECONDS: u64 = 3 * 24 * 3_600;
/// Default `waitTimeMillsInSendQueue`: a broker sheds requests that have waited longer.
const DEFAULT_SHED_MS: i64 = 200;
/// Weak acknowledgements are told at once, and then so often, with their number.
const WEAK_TOLD_EVERY: Duration = Duration::from_secs(60);
/// An answer about what is flushed serves all who ask within this time.
const BOUND_AGE: Duration = Duration::from_millis(60);

/// What a broker says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) name: String,
    pub(super) version: Option<Version>,
    /// None: it does not tell (a proxy, no rights).
    pub(super) durability: Option<Durability>,
    pub(super) max_message_bytes: usize,
    pub(super) delay_levels: i32,
    pub(super) timer_off: bool,
    pub(super) timer_max_delay_seconds: u64,
    /// An answer that takes longer is slow.
    pub(super) slow: Duration,
    /// Why it does not tell.
    pub(super) untold: Option<String>,
}

impl Facts {
    /// Of a broker that tells nothing: the defaults of RocketMQ.
    pub(super) fn unknown(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: None,
            durability: None,
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            delay_levels: DEFAULT_DELAY_LEVELS,
            timer_off: false,
            timer_max_delay_seconds: DEFAULT_TIMER_MAX_DELAY_SECONDS,
            slow: Duration::from_millis(100),
            untold: None,
        }
    }

    fn told(name: &str, version: Option<Version>, config: &BrokerConfig) -> Self {
        let unknown = Self::unknown(name);
        let version = version.unwrap_or(config.broker_version);
        let positive = |key: &str| config.number(key).filter(|n| *n > 0);
        let levels = config.get("messageDelayLevel").map(|table| table.split_whitespace().count());
        let shed_ms = positive("waitTimeMillsInSendQueue").unwrap_or(DEFAULT_SHED_MS).clamp(20, 2_000);
        Self {
            version: Some(version),
            durability: config.get("flushDiskType").map(|_| Durability::of(config, version)),
            max_message_bytes: positive("maxMessageSize")
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(unknown.max_message_bytes),
            delay_levels: levels.and_then(|n| i32::try_from(n).ok()).unwrap_or(unknown.delay_levels),
            timer_off: config.flag("timerWheelEnable") == Some(false),
            timer_max_delay_seconds: positive("timerMaxDelaySec")
                .map_or(unknown.timer_max_delay_seconds, i64::unsigned_abs),
            slow: Duration::from_millis(shed_ms.unsigned_abs() / 2),
            ..unknown
        }
    }

    /// What SEND_OK proves.
    pub(super) fn level(&self) -> AckLevel {
        self.durability.as_ref().map_or(AckLevel::Unknown, Durability::level)
    }

    /// What an answer with this status proves.
    pub(super) fn level_of(&self, status: SendStatus) -> AckLevel {
        self.durability.as_ref().map_or(AckLevel::Unknown, |durability| durability.level_of(status))
    }

    /// Whether SEND_OK proves at least this.
    pub(super) fn meets(&self, least: AckLevel) -> bool {
        self.durability.as_ref().map_or(least == AckLevel::Unknown, |durability| durability.meets(least))
    }

    pub(super) fn version_words(&self) -> String {
        self.version.map_or_else(|| "of unknown version".to_owned(), |version| version.to_string())
    }
}

/// A broker that was looked at, over the connection that it was looked at on.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) facts: Facts,
    pub(super) address: Address,
    pub(super) channel: Channel,
    /// Number of the connection.
    pub(super) generation: u64,
    pub(super) window: Arc<Window>,
    pub(super) turns: Arc<Turns<Arc<Carried>>>,
    /// What was flushed, and when that was asked.
    flushed: tokio::sync::Mutex<Option<(Instant, Flushed)>>,
    weak: Mutex<Weak>,
    /// When it last answered a send.
    answered_at: Mutex<Option<Instant>>,
}

/// Messages that were stored less safely than the broker is configured for.
#[derive(Debug, Default)]
struct Weak {
    untold: u64,
    told_at: Option<Instant>,
}

impl Weak {
    fn count(&mut self, messages: usize, now: Instant) -> Option<u64> {
        self.untold += messages as u64;
        if self.told_at.is_some_and(|at| now.duration_since(at) < WEAK_TOLD_EVERY) {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// How far a broker's commit log is, by its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushed {
    /// Everything below is flushed.
    pub(super) at_least: i64,
}

impl Broker {
    /// Looks at a master. One that was looked at before on the same connection stays as it is; one that did not answer
    /// on it must answer first.
    pub(super) async fn look(
        master: &Master,
        channel: Channel,
        before: Option<Arc<Self>>,
        silent: bool,
        max_in_flight: u32,
        limit: Duration,
    ) -> Result<Arc<Self>, Error> {
        channel.keep_connected();
        let deadline = Instant::now() + limit;
        let connection = channel.connection(limit).await?;
        let unchanged = |b: &Arc<Self>| b.generation == connection.generation() && b.facts.name == master.broker_name;
        if let Some(before) = before.as_ref().filter(|b| unchanged(b)) {
            if silent {
                let left = deadline.saturating_duration_since(Instant::now());
                // A proxy refuses it: that is an answer too.
                match connection.request(&GetRuntimeInfo, left).await {
                    Ok(_) | Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(before.clone());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let facts = facts(&master.broker_name, &connection, left).await?;
        let window = match before {
            Some(before) if before.facts.slow == facts.slow => before.window.clone(),
            _ => Arc::new(Window::new(max_in_flight, facts.slow)),
        };
        Ok(Arc::new(Self {
            facts,
            address: master.address.clone(),
            generation: connection.generation(),
            channel,
            window,
            turns: Turns::new(),
            flushed: tokio::sync::Mutex::default(),
            weak: Mutex::default(),
            answered_at: Mutex::default(),
        }))
    }

    /// The connection that it was looked at on.
    ///
    /// # Errors
    /// [`Error::Reconnected`] if there is another one now.
    pub(super) async fn connection(&self, limit: Duration) -> Result<Connection, Error> {
        let connection = self.channel.connection(limit).await?;
        if connection.generation() == self.generation {
            return Ok(connection);
        }
        Err(Error::Reconnected { expected: self.generation, now: connection.generation() })
    }

    /// Its counters and positions.
    pub(super) async fn runtime_info(&self, limit: Duration) -> Result<RuntimeInfo, Error> {
        self.connection(limit).await?.request(&GetRuntimeInfo, limit).await
    }

    /// What it has flushed. Who asks within a moment shares the answer. None: it does not tell.
    pub(super) async fn flushed(&self, limit: Duration) -> Result<Option<Flushed>, Error> {
        let mut known = self.flushed.lock().await;
        if let Some((at, flushed)) = *known
            && at.elapsed() < BOUND_AGE
        {
            return Ok(Some(flushed));
        }
        let info = self.runtime_info(limit).await?;
        let flushed = info.flushed_at_least().map(|at_least| Flushed { at_least });
        *known = flushed.map(|flushed| (Instant::now(), flushed));
        Ok(flushed)
    }

    /// It has answered a send, whatever it said.
    pub(super) fn answered(&self) {
        *self.answered_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether it has answered no send since.
    pub(super) fn is_silent_since(&self, began: Instant) -> bool {
        self.answered_at.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|at| at < began)
    }

    /// Counts messages that it stored less safely than it is configured for. Returns how many there were since it was
    /// last told, where it is time to tell.
    pub(super) fn weakly_stored(&self, messages: usize) -> Option<u64> {
        self.weak.lock().unwrap_or_else(PoisonError::into_inner).count(messages, Instant::now())
    }
}

async fn facts(name: &str, connection: &Connection, limit: Duration) -> Result<Facts, Error> {
    let version = connection.peer_version();
    match connection.request(&GetBrokerConfig::of(DURABILITY_KEYS), limit).await {
        Ok(config) => Ok(Facts::told(name, version, &config)),
        Err(error @ Error::Refused { .. }) if !is_account_problem(&error) => {
            Ok(Facts { version, untold: Some(error.to_string()), ..Facts::unknown(name) })
        }
        Err(error) => Err(error),
    }
}

/// Whether a refusal says that the account as such is not accepted (rocketmq.md F.1: 4.9 with code 1, 5.x with 16).
pub(super) fn is_account_problem(error: &Error) -> bool {
    const WORDS: [&str; 6] = [
        "no accesskey is configured",
        "check signature failed",
        "no acl config for",
        "username cannot be null",
        "user is disable",
        "authenticationexception",
    ];
    match error {
        Error::Refused {
            code: ResponseCode::NoPermission | ResponseCode::SystemError, remark: Some(remark), ..
        } => {
            let remark = remark.to_lowercase();
            WORDS.iter().any(|word| remark.contains(word))
                || (remark.contains("user:") && remark.contains("is not found"))
        }
        _ => false,
    }
}
