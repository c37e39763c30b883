//! `outhaul validate` of an `[[inbox]]`: its tables, and whether its topics can be read.

use std::time::Duration;

use outhaul_inbox::{InboxError, look_at_tables, look_at_topics};
use outhaul_store::StoreErrorKind;
use serde::Serialize;

use super::inbox::{failure, options};
use crate::codes;
use crate::config::Inbox;
use crate::failure::{Blame, Failure};

/// Limit of looking at the brokers.
const LIMIT: Duration = Duration::from_secs(60);

/// What was found about an inbox.
#[derive(Debug, Serialize)]
pub(super) struct InboxFinding {
    pub(super) name: String,
    pub(super) ok: bool,
    pub(super) group: String,
    pub(super) topics: Vec<TopicFound>,
    /// It makes the tables at its start.
    pub(super) makes_tables: bool,
    pub(super) missing_ddl: Option<String>,
    pub(super) errors: Vec<Failure>,
}

/// What was found about a topic.
#[derive(Debug, Serialize)]
pub(super) struct TopicFound {
    pub(super) topic: String,
    pub(super) text: String,
    pub(super) attention: bool,
}

/// Looks at the database and at the brokers, joins no group, and stores nothing.
pub(super) async fn look(inbox: &Inbox) -> InboxFinding {
    let mut finding = InboxFinding {
        name: inbox.name.clone(),
        ok: false,
        group: inbox.group.clone(),
        topics: vec![],
        makes_tables: false,
        missing_ddl: None,
        errors: vec![],
    };
    let of_inbox = |f: Failure| f.while_doing(format_args!("inbox {}", inbox.name));
    let options = match options(inbox) {
        Ok(options) => options,
        Err(e) => {
            finding.errors.push(of_inbox(e));
            return finding;
        }
    };
    match look_at_tables(&options).await {
        Ok(()) => {}
        Err(InboxError::Store(e)) if e.kind == StoreErrorKind::NotInitialised => {
            let store = outhaul_store::inbox::open(inbox.store.clone(), 1).await;
            let none = match &store {
                Ok(store) => store.inspect().await.is_err_and(|e| e.kind == StoreErrorKind::NotInitialised),
                Err(_) => false,
            };
            // Those of an earlier version it leaves alone.
            finding.makes_tables = none && inbox.create_tables;
            if let Ok(store) = store {
                finding.missing_ddl = none.then(|| store.ddl());
                store.close().await;
            }
            if !finding.makes_tables {
                let what = format!("{}: `outhaul init --inbox` makes what is missing", e.message);
                finding.errors.push(of_inbox(Failure::new(&codes::TABLES_MISSING, what)));
            }
        }
        Err(e) => finding.errors.push(of_inbox(failure(e))),
    }
    match tokio::time::timeout(LIMIT, look_at_topics(&options)).await {
        Ok(Ok(topics)) => {
            let found =
                |t: outhaul_inbox::TopicFinding| TopicFound { topic: t.topic, text: t.text, attention: t.attention };
            finding.topics = topics.into_iter().map(found).collect();
        }
        // Said once: the tables are looked at by the same options.
        Ok(Err(InboxError::Options(_))) if !finding.errors.is_empty() => {}
        Ok(Err(e)) => finding.errors.push(of_inbox(failure(e))),
        Err(_) => finding.errors.push(of_inbox(Failure {
            code: codes::SEND_LIMIT.code.into(),
            message: format!("its brokers did not answer within {} s", LIMIT.as_secs()),
            remedy: "look at the brokers' host, port and load".into(),
            blame: Blame::Failure,
        })),
    }
    finding.ok = finding.errors.is_empty();
    finding
}

impl InboxFinding {
    /// One line, and one for each topic.
    pub(super) fn sentences(&self) -> Vec<String> {
        let (mark, name, group) = (if self.ok { "ok  " } else { "FAIL" }, &self.name, &self.group);
        let tables = if self.makes_tables { ", its tables are made at the start" } else { "" };
        let mut lines = vec![format!("{mark} inbox {name}: group {group}{tables}")];
        for t in &self.topics {
            let mark = if t.attention { "look" } else { "  ok" };
            lines.push(format!("{mark}   topic {}: {}", t.topic, t.text));
        }
        lines
    }
}
