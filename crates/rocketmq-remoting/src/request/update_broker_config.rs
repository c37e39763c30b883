//! UPDATE_BROKER_CONFIG. Source: `AdminBrokerProcessor` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;

/// Changes settings of a running broker. Names and values are not checked by it; some settings are read only at its
/// start. Needs an administrator's account.
#[derive(Clone, PartialEq, Eq)]
pub struct UpdateBrokerConfig {
    /// Names and values, without line breaks; others are not sent.
    pub settings: Vec<(String, String)>,
}

impl Request for UpdateBrokerConfig {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UpdateBrokerConfig;

    fn command(&self) -> Result<Command, Error> {
        let body: String = self
            .settings
            .iter()
            .filter(|(key, value)| !key.contains(['\n', '\r', '=']) && !value.contains(['\n', '\r']))
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        Ok(Command::request(Self::CODE).with_body(body))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}

/// Names only.
impl std::fmt::Debug for UpdateBrokerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.settings.iter().map(|(key, _)| key)).finish()
    }
}
