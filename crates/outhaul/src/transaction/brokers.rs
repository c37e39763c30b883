//! What brokers are set to do with transactions, looked at before the first half.

use std::fmt;
use std::time::Duration;

use rocketmq_remoting::client::{Admin, Client, Master};
use rocketmq_remoting::connection::Address;
use rocketmq_remoting::request::BrokerConfig;

use super::error::TransactionError;

const KEYS: [&str; 9] = [
    "transactionTimeOut",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionOpBatchInterval",
    "rejectTransactionMessage",
    "transientStorePoolEnable",
    "fileReservedTime",
    "transRocksDBEnable",
    "transWriteOriginTransHalfEnable",
];
/// A broker that gives up sooner than this hardly outlasts a restart of the application.
const PATIENCE: Duration = Duration::from_secs(300);

/// Something about a broker that costs duplicates or time, and no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// `OUT-nnnn`.
    pub code: &'static str,
    /// One line.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

/// Masters that were looked at.
pub(super) struct Looked {
    pub(super) masters: Vec<Master>,
    pub(super) warnings: Vec<Warning>,
}

/// Looks at every master of the cluster.
pub(super) async fn look(
    client: &Client,
    cluster: &str,
    retention: Duration,
    registered: &[Address],
) -> Result<Looked, TransactionError> {
    let admin = Admin::new(client);
    let cluster = Some(cluster).filter(|name| !name.is_empty());
    let masters = admin.masters(cluster).await.map_err(|e| TransactionError::Register(e.to_string()))?;
    let mut warnings = Vec::new();
    for master in &masters {
        let broker = &master.broker_name;
        if !registered.contains(&master.address) {
            let text =
                format!("broker {broker} has not accepted the producer group yet: no half goes there until it has");
            warnings.push(Warning { code: "OUT-5030", text });
        }
        match admin.broker_config(&master.address, &KEYS).await {
            Ok(config) => warnings.extend(judge(broker, &config, retention)?),
            Err(e) => {
                let text = format!("broker {broker} does not tell its settings: {e}");
                warnings.push(Warning { code: "OUT-5031", text });
            }
        }
    }
    Ok(Looked { masters, warnings })
}

fn judge(broker: &str, config: &BrokerConfig, retention: Duration) -> Result<Vec<Warning>, TransactionError> {
    if config.flag("rejectTransactionMessage") == Some(true) {
        return Err(TransactionError::Rejecting { broker: broker.to_owned() });
    }
    if config.flag("transientStorePoolEnable") == Some(true) {
        return Err(TransactionError::TransientPool { broker: broker.to_owned() });
    }
    let number = |key: &str| config.number(key).and_then(|n| u64::try_from(n).ok());
    let mut warnings = Vec::new();
    let mut warn = |code, text| warnings.push(Warning { code, text });
    if let (Some(interval), Some(most)) = (number("transactionCheckInterval"), number("transactionCheckMax")) {
        let patience = Duration::from_millis(interval.saturating_mul(most));
        if patience < PATIENCE {
            warn(
                "OUT-5032",
                format!(
                    "broker {broker} gives up a half after {} s (transactionCheckInterval={interval}, transactionCheckMax={most}); \
                     what is not ended by then goes out by the relay",
                    patience.as_secs()
                ),
            );
        }
    }
    if let (Some(timeout), Some(batch)) = (number("transactionTimeOut"), number("transactionOpBatchInterval"))
        && timeout <= batch
    {
        warn(
            "OUT-5033",
            format!(
                "broker {broker} asks again about transactions that have ended, and delivers them twice, since \
                 transactionTimeOut={timeout} is not above transactionOpBatchInterval={batch}"
            ),
        );
    }
    if let Some(hours) = number("fileReservedTime")
        && Duration::from_secs(hours.saturating_mul(3_600)) >= retention
    {
        warn(
            "OUT-5034",
            format!(
                "broker {broker} keeps halfs for {hours} hours (fileReservedTime), and rows are kept for {} hours: keep them \
                 longer, or a late question about a delivered message is answered ROLLBACK",
                retention.as_secs() / 3_600
            ),
        );
    }
    if config.flag("transRocksDBEnable") == Some(true) && config.flag("transWriteOriginTransHalfEnable") == Some(false)
    {
        warn(
            "OUT-5035",
            format!("broker {broker} drops a half without a trace when it gives up (transRocksDBEnable=true)"),
        );
    }
    Ok(warnings)
}
