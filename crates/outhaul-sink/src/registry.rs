//! From the `kind` of a destination to its sink.

use std::sync::Arc;

use outhaul_core::receipt::AckLevel;
use serde_json::Value;

use crate::codes::SinkCode;
use crate::settings::{Key, suggest};
use crate::sink::{Sink, SinkError};

/// All kinds that the configuration knows, in this build or not. `stdout` is `file` with the path `-`.
pub const KINDS: [&str; 9] = ["rocketmq", "kafka", "rabbitmq", "nats", "redis", "http", "inbox", "file", "stdout"];

/// The kinds of this build.
pub fn built() -> Vec<&'static str> {
    KINDS.into_iter().filter(|kind| keys(kind).is_some()).collect()
}

/// The keys of a kind, besides `name`, `kind` and those that every destination has. None: not in this build.
pub fn keys(kind: &str) -> Option<&'static [Key]> {
    match kind {
        #[cfg(feature = "file")]
        "file" => Some(&crate::file::config::KEYS),
        #[cfg(feature = "file")]
        "stdout" => Some(&[]),
        #[cfg(feature = "inbox")]
        "inbox" => Some(&crate::inbox::config::KEYS),
        #[cfg(feature = "rocketmq")]
        "rocketmq" => Some(&crate::rocketmq::config::KEYS),
        _ => None,
    }
}

/// Makes the sink of a destination from its keys (those of [`keys`], as one JSON object) and the least that an
/// acknowledgement has to prove, if anything is demanded. Nothing is opened before [`Sink::start`].
///
/// # Errors
/// [`SinkCode::KindNotBuilt`], [`SinkCode::UnknownKind`], [`SinkCode::Settings`].
pub fn make(
    kind: &str,
    name: &str,
    settings: Value,
    require_ack: Option<AckLevel>,
) -> Result<Arc<dyn Sink>, SinkError> {
    let _used_by_kinds_that_can_do_something_about_it = require_ack;
    match kind {
        #[cfg(feature = "file")]
        "file" => Ok(Arc::new(crate::file::FileSink::new(crate::file::FileConfig::read(name, &settings)?))),
        #[cfg(feature = "file")]
        "stdout" => {
            crate::settings::read::<crate::file::StdoutConfig>(name, &settings, &[])?;
            Ok(Arc::new(crate::file::FileSink::new(crate::file::FileConfig::stdout())))
        }
        #[cfg(feature = "inbox")]
        "inbox" => Ok(Arc::new(crate::inbox::InboxSink::new(crate::inbox::InboxConfig::read(name, &settings)?))),
        #[cfg(feature = "rocketmq")]
        "rocketmq" => {
            let config = crate::rocketmq::RocketMqConfig::read(name, &settings)?;
            Ok(Arc::new(crate::rocketmq::RocketMqSink::new(config, require_ack)))
        }
        _ => {
            drop(settings);
            Err(no_such_kind(kind, name))
        }
    }
}

fn no_such_kind(kind: &str, name: &str) -> SinkError {
    let built = built().join(", ");
    if KINDS.contains(&kind) {
        let what = format!("destination {name:?}: kind {kind:?} is not in this build; it has {built}");
        return SinkError::of(SinkCode::KindNotBuilt, what);
    }
    let guess = suggest(kind, KINDS).map(|k| format!("did you mean {k:?}? ")).unwrap_or_default();
    SinkError::of(
        SinkCode::UnknownKind,
        format!("destination {name:?}: there is no kind {kind:?}; {guess}this build has {built}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(kind: &str, settings: Value) -> String {
        make(kind, "trail", settings, None).err().expect("must be refused").to_string()
    }

    #[test]
    fn a_kind_that_is_not_built_names_those_that_are() {
        for kind in ["kafka", "rabbitmq", "nats", "redis", "http"] {
            let text = refused(kind, json!({}));
            assert!(text.starts_with("OUT-2001 destination \"trail\""), "{text}");
            assert!(built().iter().all(|k| text.contains(k)), "{text}");
        }
    }

    #[test]
    fn an_unknown_kind_gets_a_suggestion() {
        let text = refused("kafak", json!({}));
        assert!(text.starts_with("OUT-2002") && text.contains("did you mean \"kafka\"?"), "{text}");
        assert!(!refused("carrier pigeon", json!({})).contains("did you mean"));
    }

    #[cfg(feature = "file")]
    #[test]
    fn a_wrong_key_is_named() {
        for (settings, part) in [
            (json!({}), "`path` must be given"),
            (json!({"path": "x", "pth": "y"}), "no key `pth`; did you mean `path`?"),
            (json!({"path": 5}), "`path`: invalid type"),
            (json!({"path": ""}), "`path`"),
            (json!({"path": "x", "fsync": "btch"}), "`fsync`: unknown variant `btch`"),
            (json!({"path": "x", "fsync_interval_ms": 0}), "`fsync_interval_ms`"),
            (json!({"path": "x", "rotate_bytes": 10}), "`rotate_bytes`"),
            (json!({"path": "-", "rotate_daily": true}), "standard output"),
            (json!("x"), "table of keys"),
        ] {
            let text = refused("file", settings.clone());
            assert!(text.starts_with("OUT-2003 destination \"trail\"") && text.contains(part), "{settings} {text}");
        }
        assert!(refused("stdout", json!({"path": "x"})).starts_with("OUT-2003"));
    }

    #[cfg(feature = "inbox")]
    #[test]
    fn the_url_of_an_inbox_is_never_shown() {
        for settings in [
            json!({"url": ["s3cret"]}),
            json!({"url": "gopher://u:s3cret@h/x"}),
            json!({"url": "mysql://u:s3cret@h/x", "connections": 0}),
            json!({"url": "mysql://u:s3cret@h/x", "consumer": "c".repeat(65)}),
            json!({"url": "mysql://u:s3cret@h/x", "connections": "many"}),
            json!({"url": "mysql://u:s3cret@h/x", "table_prefix": "a; drop"}),
        ] {
            let text = refused("inbox", settings.clone());
            assert!(text.starts_with("OUT-2003") && !text.contains("s3cret"), "{settings} {text}");
        }
    }
}
