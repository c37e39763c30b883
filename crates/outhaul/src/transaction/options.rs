//! Settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outhaul_sink::rocketmq::RocketMqConfig;
use outhaul_store::StoreOptions;

use super::answers::Judged;
use super::error::TransactionError;

/// Called with every check-back that was judged.
pub(super) type Observer = Arc<dyn Fn(&Judged) + Send + Sync>;

/// How to send transactional messages, or to answer check-backs.
#[derive(Clone)]
pub struct TransactionOptions {
    /// The brokers: the keys of a destination of kind `rocketmq`, of which those for sending in lanes have no meaning
    /// here. `producer_group` is the group: one application's alone, all of whose processes use one database.
    pub broker: RocketMqConfig,
    /// The outbox's database. Its user needs what `outhaul init --print` says of transactional messages.
    pub store: StoreOptions,
    /// Whether check-backs about messages that do not name their outbox are judged, by the message's unique key: those of
    /// Apache's clients. Default false: such a message is not from this library.
    pub plain_halfs: bool,
    /// How long rows are kept after a transaction has ended: `[outbox.transactions] retention` of the relay. Brokers that
    /// may ask for longer are warned about. Default 7 days.
    pub retention: Duration,
    /// Limit of registering with the brokers at the start. Default 10 s.
    pub start_limit: Duration,
    /// Check-backs that are judged at a time. Default 16.
    pub judges: usize,
    pub(super) observer: Option<Observer>,
}

impl TransactionOptions {
    /// Defaults for these name servers (`host:port`, several with commas), this producer group and this database.
    ///
    /// # Errors
    /// [`TransactionError::Options`].
    pub fn new(namesrv: &str, group: &str, url: &str) -> Result<Self, TransactionError> {
        let keys = serde_json::json!({ "namesrv": namesrv, "producer_group": group });
        let broker = RocketMqConfig::read("transactions", &keys);
        let broker = broker.map_err(|e| TransactionError::Options(e.to_string()))?;
        Ok(Self::of(broker, StoreOptions::new(url)))
    }

    /// Defaults for these brokers and this database.
    pub fn of(broker: RocketMqConfig, store: StoreOptions) -> Self {
        Self {
            broker,
            store,
            plain_halfs: false,
            retention: Duration::from_secs(7 * 24 * 3_600),
            start_limit: Duration::from_secs(10),
            judges: 16,
            observer: None,
        }
    }

    /// Calls this with every check-back that was judged, for metrics of the application's own. It must not block.
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(&Judged) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for TransactionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionOptions")
            .field("group", &self.broker.producer_group)
            .field("namesrv", &self.broker.namesrv)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}
