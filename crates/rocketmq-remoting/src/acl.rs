//! Access control: every request is signed with HMAC-SHA1, the same for 4.9 and for ACL 2.0 of 5.x.
//!
//! Source: `AclClientRPCHook`, `AclUtils`, `AclSigner` of RocketMQ 4.9.4.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::command::Command;

const ACCESS_KEY: &str = "AccessKey";
const SECURITY_TOKEN: &str = "SecurityToken";
const SIGNATURE: &str = "Signature";

/// Who asks. The secret stays here: it is shown by no `Debug`, and no request carries it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    access_key: String,
    secret_key: String,
    security_token: Option<String>,
}

impl Credentials {
    /// An account's name and secret.
    #[must_use]
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self { access_key: access_key.into(), secret_key: secret_key.into(), security_token: None }
    }

    /// With a temporary token of a security service.
    #[must_use]
    pub fn with_security_token(mut self, token: impl Into<String>) -> Self {
        self.security_token = Some(token.into()).filter(|t| !t.is_empty());
        self
    }

    /// The account's name.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.access_key
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Signs a request. Do it last: the signature covers every field and the body (opaque, code and flag are not covered). A
/// signature that is there already is replaced.
pub fn sign(command: &mut Command, credentials: &Credentials) {
    command.ext.remove(SIGNATURE);
    command.ext.remove(SECURITY_TOKEN);
    command.ext.set(ACCESS_KEY, credentials.access_key.as_str());
    if let Some(token) = &credentials.security_token {
        command.ext.set(SECURITY_TOKEN, token.as_str());
    }
    let signature = signature(command, credentials);
    command.ext.set(SIGNATURE, signature);
}

/// Values of all fields in ascending order of their names, then the body.
fn signature(command: &Command, credentials: &Credentials) -> String {
    let mut fields: Vec<(&str, &str)> = command.ext.iter().collect();
    // Java orders by UTF-16 units; names are ASCII, where bytes give the same order.
    fields.sort_unstable_by_key(|(name, _)| *name);
    // HMAC takes keys of any length: `new_from_slice` cannot fail.
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(credentials.secret_key.as_bytes()) else { return String::new() };
    for (_, value) in fields {
        mac.update(value.as_bytes());
    }
    mac.update(&command.body);
    STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::RequestCode;

    fn signed(credentials: &Credentials) -> Command {
        let mut command =
            Command::request(RequestCode::SendMessageV2).with("b", "Orders").with("a", "group").with_body("body");
        sign(&mut command, credentials);
        command
    }

    /// RFC 2202, test case 2: the value is all there is to sign.
    #[test]
    fn the_signature_is_hmac_sha1() {
        let mut command = Command::request(RequestCode::HeartBeat).with("x", "what do ya want for nothing?");
        assert_eq!(signature(&command, &Credentials::new("", "Jefe")), "7/zfauXrL6LSdBbV8YTfnCWafHk=");
        // Fields come first, in the order of their names, then the body.
        command.ext.set("x", "do ya want");
        command.ext.set("w", "what ");
        command.body = " for nothing?".into();
        assert_eq!(signature(&command, &Credentials::new("", "Jefe")), "7/zfauXrL6LSdBbV8YTfnCWafHk=");
    }

    #[test]
    fn signing_again_replaces_what_was_signed() {
        let plain = Credentials::new("app", "secret");
        let token = plain.clone().with_security_token("t");
        let mut command = signed(&token);
        assert_eq!(command.ext.get("SecurityToken"), Some("t"));
        sign(&mut command, &plain);
        assert_eq!(command.ext.get("SecurityToken"), None);
        assert_eq!(command.ext.get("Signature"), signed(&plain).ext.get("Signature"));
        assert_eq!(command.ext.get("AccessKey"), Some("app"));
        assert_ne!(signed(&token).ext.get("Signature"), signed(&plain).ext.get("Signature"));
    }

    #[test]
    fn no_secret_is_shown() {
        let credentials = Credentials::new("app", "hidden1").with_security_token("hidden2");
        let text = format!("{credentials:?} {:?}", signed(&credentials));
        assert!(text.contains("app") && !text.contains("hidden"), "{text}");
    }
}
