//! What a sink says when it may not, or when something is missing.

use outhaul_sink::inbox::{InboxConfig, InboxSink};
use outhaul_sink::{Sink, SinkCode};
use outhaul_testkit::servers::create;
use outhaul_testkit::sink_suite::{Messages, Reader};

use super::{CONSUMER, Inbox, delivered, failed, send};

/// They are made at the start, unless that is switched off; then a code says what to do.
pub async fn tables_that_are_missing(inbox: &Inbox) {
    let mut config = inbox.config.clone();
    config.create_table = false;
    let sink = InboxSink::new(config);
    let messages = Messages::default().many(4, 2);
    let error = sink.start().await.unwrap_err();
    assert_eq!((error.code, error.passes), (SinkCode::InboxTables.code(), false), "{error}");
    assert_eq!(failed(&send(&sink, &messages).await), (SinkCode::InboxTables.code(), false));

    inbox.started(|_| ()).await.close().await;
    sink.start().await.unwrap();
    assert_eq!(delivered(&send(&sink, &messages).await), (4, 0));
    // Taken away while it runs, and made again.
    inbox.database.execute("DROP TABLE inbox_message").await;
    assert_eq!(failed(&send(&sink, &messages).await), (SinkCode::InboxTables.code(), false));
    inbox.started(|_| ()).await.close().await;
    sink.start().await.unwrap();
    assert_eq!(delivered(&send(&sink, &messages).await), (4, 0));
    assert_eq!(inbox.read().await.len(), 4);
    sink.close().await;
}

/// The code names it; the message does not hold it.
pub async fn a_wrong_password(inbox: &Inbox) {
    let mut config = inbox.config.clone();
    config.url = inbox.database.url_as("outhaul", "s3cret");
    let sink = InboxSink::new(config);
    let error = sink.start().await.unwrap_err();
    assert_eq!((error.code, error.passes), ("OUT-1005", false), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
    let outcomes = send(&sink, &Messages::default().many(2, 1)).await;
    assert_eq!(failed(&outcomes), ("OUT-1005", false));
    assert!(!format!("{outcomes:?}").contains("s3cret"));
    sink.close().await;
}

/// A user with the right to read alone.
pub async fn a_user_who_may_not_write(inbox: &Inbox) {
    let mut database = create(inbox.database.flavour).await;
    let owner = InboxSink::new(InboxConfig::new(&database.url, CONSUMER));
    owner.start().await.unwrap();
    owner.close().await;
    let url = database.restricted_user(&["SELECT ON inbox_message"]).await;
    let sink = InboxSink::new(InboxConfig::new(url, CONSUMER));
    let messages = Messages::default().many(3, 1);
    // Some databases tell it when they are looked at, all when they are written to.
    if let Err(error) = sink.start().await {
        assert_eq!((error.code, error.passes), ("OUT-1006", false), "{error}");
    }
    assert_eq!(failed(&send(&sink, &messages).await), ("OUT-1006", false));
    sink.close().await;
}
