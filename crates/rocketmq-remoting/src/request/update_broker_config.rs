//! UPDATE_BROKER_CONFIG. Source: `AdminBrokerProcessor` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::codec::CodecError;
use crate::command::Command;
use crate::error::Error;

/// Changes settings of a running broker. Names and values are not checked by it; some settings are read only at its
/// start. Needs an administrator's account.
#[derive(Clone, PartialEq, Eq)]
pub struct UpdateBrokerConfig {
    /// Names and values.
    pub settings: Vec<(String, String)>,
}

impl Request for UpdateBrokerConfig {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UpdateBrokerConfig;

    /// # Errors
    /// [`Error::Unsendable`] if a name or value has a line break, or a name an equals sign.
    fn command(&self) -> Result<Command, Error> {
        let mut body = String::new();
        for (key, value) in &self.settings {
            if key.contains(['\n', '\r', '=']) || value.contains(['\n', '\r']) {
                return Err(Error::Unsendable(CodecError::DoesNotFit("a setting with a line break or equals sign")));
            }
            body.push_str(&format!("{key}={value}\n"));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_one_line() {
        let set = |key: &str, value: &str| UpdateBrokerConfig { settings: vec![(key.into(), value.into())] }.command();
        assert_eq!(set("slaveTimeout", "a=b").unwrap().body, "slaveTimeout=a=b\n");
        for (key, value) in [("a\nb", "c"), ("a", "b\rc"), ("a=b", "c")] {
            assert!(matches!(set(key, value), Err(Error::Unsendable(_))), "{key}={value}");
        }
    }
}
