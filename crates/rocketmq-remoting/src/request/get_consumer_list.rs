//! GET_CONSUMER_LIST_BY_GROUP. Source: `GetConsumerListByGroupRequestHeader`, `GetConsumerListByGroupResponseBody`,
//! `ConsumerManageProcessor.getConsumerListByGroup` of RocketMQ 4.9.4 and 5.3.3.

use serde::Deserialize;

use super::{Request, answer};
use crate::code::{RequestCode, ResponseCode};
use crate::command::Command;
use crate::error::Error;
use crate::message::check_group;

/// Asks a broker which clients of a consumer group are connected to it. Members have to be registered there by a
/// heartbeat, so a broker that has just started knows few.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetConsumerList {
    /// The group.
    pub group: String,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    consumer_id_list: Vec<String>,
}

impl Request for GetConsumerList {
    /// Client ids; none if the broker knows nobody of the group, which it says as SYSTEM_ERROR with a remark.
    type Answer = Vec<String>;
    const CODE: RequestCode = RequestCode::GetConsumerListByGroup;

    /// # Errors
    /// [`crate::message::MessageError::Group`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.group)?;
        Ok(Command::request(Self::CODE)
            .with("consumerGroup", &self.group)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<Vec<String>, Error> {
        let nobody = answer.response_code() == ResponseCode::SystemError
            && answer.remark.as_deref().is_some_and(|remark| remark.starts_with("no consumer for this group"));
        if nobody {
            return Ok(Vec::new());
        }
        answer::success(Self::CODE, &answer)?;
        Ok(answer::json::<Body>(Self::CODE, &answer)?.consumer_id_list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_no_error() {
        let request = GetConsumerList { group: "g".into(), broker_name: None };
        let answer = |code, remark: Option<&str>| {
            Command::answer_to(&request.command().unwrap(), code, remark.map(str::to_owned))
        };
        let some = answer(ResponseCode::Success, None).with_body(r#"{"consumerIdList":["a@1","b@2"]}"#);
        assert_eq!(request.answer(some).unwrap(), ["a@1", "b@2"]);
        let none = answer(ResponseCode::SystemError, Some("no consumer for this group, g"));
        assert!(request.answer(none).unwrap().is_empty());
        assert!(request.answer(answer(ResponseCode::SystemError, Some("acl"))).is_err());
    }
}
