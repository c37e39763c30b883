//! Half, row, commit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use outhaul_core::message::{Row, Seq, ShardId};
use outhaul_core::outbox::PayloadType;
use outhaul_core::transaction::{Answer, Finding, TransactionState, answer};
use outhaul_sink::rocketmq::{RocketMqConfig, half_message};
use outhaul_store::DatabaseKind;
use rocketmq_remoting::client::{Half, SendOptions, TransactionalProducer};
use rocketmq_remoting::message::MessageQueue;
use rocketmq_remoting::request::Resolution;

use super::answers::{CheckBackAnswers, Judge, resolution};
use super::ended::Ended;
use super::error::TransactionError;
use super::options::TransactionOptions;
use crate::driver::{Dialect, RefusalKind, Transaction};
use crate::error::Error;
use crate::event::{Checked, Event, fresh_id};
use crate::outbox::Outbox;
use crate::statement::{Statement, Value, quoted};

/// Queues that a half is tried on, each time under a fresh transaction id.
const HALF_TRIES: usize = 3;
/// Tries of a commit that the broker certainly has not carried out.
const COMMIT_TRIES: u32 = 3;
/// Between two of them.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// Sends transactional messages, and answers the check-backs of its producer group meanwhile. Cheap to share: `Arc` it.
#[derive(Debug)]
pub struct TransactionalSender {
    answers: CheckBackAnswers,
    shared: Arc<Shared>,
}

struct Shared {
    judge: Arc<Judge>,
    producer: Arc<TransactionalProducer>,
    config: RocketMqConfig,
    outbox: Outbox,
    table: String,
    dialect: Dialect,
    next: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A message whose half is stored by a broker. Dropped, it is never delivered unless its row commits.
pub struct Prepared {
    shared: Arc<Shared>,
    ended: Ended,
    row: Checked,
    transaction: String,
    half: Half,
}

impl fmt::Debug for Prepared {
    /// Without what is in the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("transaction", &self.transaction)
            .field("id", &self.row.id)
            .finish_non_exhaustive()
    }
}

/// What became of a message after COMMIT. It is delivered in either case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The broker has confirmed that it delivers.
    Confirmed,
    /// Not confirmed, for this reason. The broker asks, or the relay delivers.
    Later(String),
}

impl TransactionalSender {
    /// Starts answering check-backs, then is ready to send.
    ///
    /// # Errors
    /// As [`CheckBackAnswers::start`].
    pub async fn start(options: TransactionOptions) -> Result<Self, TransactionError> {
        let (config, store) = (options.broker.clone(), options.store.clone());
        let dialect = match store.kind()? {
            DatabaseKind::MySql => Dialect::MySql,
            DatabaseKind::Postgres => Dialect::Postgres,
            DatabaseKind::Sqlite => Dialect::Sqlite,
        };
        let answers = CheckBackAnswers::start(options).await?;
        let outbox = Outbox::new().max_message_bytes(store.max_message_bytes).payload_type(PayloadType::Bytes);
        let shared = Shared {
            judge: answers.judge.clone(),
            producer: answers.producer.clone(),
            config,
            outbox,
            table: store.table("outbox_transaction"),
            dialect,
            next: AtomicUsize::new(0),
        };
        Ok(Self { answers, shared: Arc::new(shared) })
    }

    /// The part that answers: its counts, its health, what it warns of.
    pub const fn answers(&self) -> &CheckBackAnswers {
        &self.answers
    }

    /// Sends the half message. Do it before the database transaction begins, so that no lock waits for a broker.
    ///
    /// # Errors
    /// [`TransactionError::Event`], [`TransactionError::Half`]. Nothing was written, nothing is delivered.
    pub async fn prepare(&self, event: Event) -> Result<Prepared, TransactionError> {
        let shared = &self.shared;
        let checked =
            shared.outbox.checked(shared.dialect, [event]).map_err(|e| TransactionError::Event(e.to_string()))?;
        let Some(row) = checked.into_iter().next() else {
            return Err(TransactionError::Event("there is none".into()));
        };
        if row.available_at_us.is_some() {
            return Err(TransactionError::Event("it cannot be delayed: use the outbox".into()));
        }
        let mut why = String::new();
        for attempt in 0..HALF_TRIES {
            // A half that was stored although its answer was lost is asked about under its own id, which never gets a row.
            let transaction = fresh_id();
            match self.half(&row, &transaction, attempt).await? {
                Ok(half) => {
                    let ended = self.answers.ended.clone();
                    return Ok(Prepared { shared: shared.clone(), ended, row, transaction, half });
                }
                Err(reason) => why = reason,
            }
        }
        Err(TransactionError::Half(why))
    }

    /// The inner error is one that another queue may not have.
    async fn half(
        &self,
        row: &Checked,
        transaction: &str,
        attempt: usize,
    ) -> Result<Result<Half, String>, TransactionError> {
        let shared = &self.shared;
        let source = Row {
            seq: Seq(0),
            shard: ShardId(0),
            id: row.id.as_str().into(),
            topic: row.topic.as_str().into(),
            key: row.key.as_deref().map(Into::into),
            headers: row.headers.as_deref().map(Into::into),
            payload: Bytes::from(row.payload.clone()),
            created_at_us: 0,
            defect: None,
        };
        let message = half_message(&shared.config, source, transaction, &shared.judge.origin)
            .map_err(|reason| TransactionError::Event(reason.text.to_string()))?;
        let key = row.key.as_deref().filter(|_| attempt == 0);
        let queue = match self.queue(message.topic(), key).await {
            Ok(queue) => queue,
            Err(why) => return Ok(Err(why)),
        };
        Ok(shared.producer.half(&queue, &message, &SendOptions::default()).await.map_err(|e| e.to_string()))
    }

    /// The first time where the key belongs, then on one after the other. Only brokers that know the group: another one
    /// could not ask.
    async fn queue(&self, topic: &str, key: Option<&str>) -> Result<MessageQueue, String> {
        let shared = &self.shared;
        let route = shared.producer.producer().route(topic).await.map_err(|e| e.to_string())?;
        let registered = shared.producer.registered_with();
        let known = |queue: &&MessageQueue| route.master(&queue.broker_name).is_some_and(|a| registered.contains(a));
        let usable: Vec<&MessageQueue> = route.queues().iter().filter(known).collect();
        let n = shared.next.fetch_add(1, Ordering::Relaxed);
        let by_key = key.and_then(|key| rocketmq_remoting::message::queue_by_hash(key, route.queues().len()));
        let first = by_key.and_then(|at| route.queues().get(at)).filter(known);
        let queue = first.or_else(|| n.checked_rem(usable.len()).and_then(|at| usable.get(at).copied()));
        queue
            .cloned()
            .ok_or_else(|| format!("no queue of topic {topic} is on a broker that has accepted the producer group"))
    }

    /// Leaves the group and lets what is under way come to its end. Messages that are prepared and not committed yet are
    /// left to other processes of the group, to the next start, and to the relay.
    pub async fn stop(self) {
        drop(self.shared);
        self.answers.stop().await;
    }
}

impl Prepared {
    /// Id of the transaction: the key of its row.
    pub fn transaction(&self) -> &str {
        &self.transaction
    }

    /// Id of the message, by which consumers dedupe.
    pub fn id(&self) -> &str {
        &self.row.id
    }

    /// All of it: inserts the row, runs the business, which commits, and tells the broker. Hand over a transaction in which
    /// nothing has been done yet: a check-back that comes before the row ends the transaction, and the earlier the row, the
    /// less can be lost by that. The business is not run if the row was not inserted.
    ///
    /// The business gets the transaction, and returns Ok after its COMMIT was answered with success, and only then. On an
    /// error nothing is told to anybody: the row decides, which also holds where COMMIT was not answered.
    ///
    /// # Errors
    /// The business's, and those of [`record`](Self::record), upon which the transaction is dropped.
    pub async fn within<T, R, E, F, B>(self, mut tx: T, business: F) -> Result<(R, Ending), E>
    where
        T: Transaction,
        E: From<TransactionError>,
        F: FnOnce(T) -> B,
        B: Future<Output = Result<R, E>>,
    {
        self.record(&mut tx).await?;
        let result = business(tx).await?;
        Ok((result, self.committed().await))
    }

    /// The first part of [`within`](Self::within): inserts the row, as the first statement of the transaction. After an error the transaction must be rolled back: MySQL, MariaDB and SQLite would let it
    /// go on and commit, without its message.
    ///
    /// # Errors
    /// [`TransactionError::RolledBack`]: prepare again. [`TransactionError::Committed`]: an earlier try has done it all.
    /// [`TransactionError::Row`].
    pub async fn record<T: Transaction + ?Sized>(&self, tx: &mut T) -> Result<(), TransactionError> {
        if !tx.is_open() {
            return Err(TransactionError::Row(Error::NoTransaction));
        }
        match tx.execute(self.insert(tx.dialect())).await {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.kind == RefusalKind::Duplicate => Err(self.decided().await),
            Err(refusal) => Err(TransactionError::Row(refusal.into())),
        }
    }

    /// Why there is a row already.
    async fn decided(&self) -> TransactionError {
        match self.shared.judge.find(&self.transaction).await {
            Some(Finding::Row(TransactionState::RolledBack) | Finding::Buried) | None => TransactionError::RolledBack,
            Some(Finding::Row(_) | Finding::Open) => TransactionError::Committed,
        }
    }

    fn insert(&self, dialect: Dialect) -> Statement<'_> {
        let (table, row) = (quoted(dialect, &self.shared.table), &self.row);
        let columns = "id, message_id, topic, msg_key, headers, payload";
        let mut s = Statement::new(format!("INSERT INTO {table} ({columns}) VALUES ("));
        s.name(dialect, Some(&self.transaction));
        s.push(", ");
        s.name(dialect, Some(&row.id));
        s.push(", ");
        s.text(dialect, Some(&row.topic));
        s.push(", ");
        s.name(dialect, row.key.as_deref());
        s.push(", ");
        s.text(dialect, row.headers.as_deref());
        s.push(if dialect == Dialect::Postgres { "::json, " } else { ", " });
        s.value(dialect, ("", ""), Value::Bytes(&row.payload));
        s.push(")");
        s
    }

    /// The last part of [`within`](Self::within): tells the broker to deliver. **Only after COMMIT was answered with
    /// success.** Waits for the broker's yes; whatever
    /// it says, the message is delivered.
    pub async fn committed(self) -> Ending {
        let mut why = String::new();
        for n in 0..COMMIT_TRIES {
            if n > 0 {
                tokio::time::sleep(COMMIT_PAUSE).await;
            }
            match self.shared.producer.end(&self.half, Resolution::Commit, None).await {
                Ok(()) => {
                    self.ended.end(&self.transaction, self.receipt()).await;
                    return Ending::Confirmed;
                }
                Err(e) => {
                    // Twice committed is twice delivered: only what certainly was not done is done again.
                    let again = !e.may_have_been_done() && e.refused_with().is_none_or(|code| !is_final(code));
                    why = e.to_string();
                    if !again {
                        break;
                    }
                }
            }
        }
        tracing::debug!(transaction = %self.transaction, reason = %why, "commit not confirmed: the broker will ask");
        Ending::Later(why)
    }

    /// Tells the broker at once what the database says, instead of letting it ask: after a rollback, so that the half does
    /// not wait. Safe at any time, also after a COMMIT that was not answered: the database is asked first. Returns what
    /// the broker was told.
    pub async fn settle(self) -> Answer {
        let said = answer(self.shared.judge.find(&self.transaction).await);
        let told = match said {
            Answer::Unknown => return said,
            said => self.shared.producer.end(&self.half, resolution(said), None).await,
        };
        match told {
            Ok(()) if said == Answer::Commit => self.ended.end(&self.transaction, self.receipt()).await,
            Ok(()) => {}
            Err(e) => {
                tracing::debug!(transaction = %self.transaction, error = %e, "not settled: the broker will ask");
                return Answer::Unknown;
            }
        }
        said
    }

    fn receipt(&self) -> String {
        let sent = &self.half.sent;
        let place = sent.answer.offset_ids.first().map_or(-1, |id| id.commit_log_offset);
        format!("{} {place}", sent.address)
    }
}

/// The broker waits for its own question, or for its master.
const fn is_final(code: rocketmq_remoting::code::ResponseCode) -> bool {
    use rocketmq_remoting::code::ResponseCode::{IllegalOperation, SlaveNotAvailable};
    matches!(code, IllegalOperation | SlaveNotAvailable)
}
