//! Check-backs are answered from the database.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use outhaul_core::transaction::{Answer, Finding, answer};
use outhaul_sink::rocketmq::{ORIGIN, TRANSACTION};
use outhaul_store::{Store, StoreResult};
use rocketmq_remoting::client::{CheckBack, CheckBacks, Client, Master, TransactionalProducer};
use rocketmq_remoting::request::Resolution;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::brokers::{self, Warning};
use super::ended::{Ended, EndedTask};
use super::error::TransactionError;
use super::options::{Observer, TransactionOptions};

/// How long answers that are under way are waited for at the end.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How often the database is asked for a sign of life while no broker asks anything.
const LOOK: Duration = Duration::from_secs(10);
/// Without an answer of the database for so long, nothing that is asked can be answered.
const SILENCE: Duration = Duration::from_secs(30);

/// A check-back that was judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Id of the transaction.
    pub transaction: String,
    /// Topic of the message.
    pub topic: String,
    /// What the database said. None: nothing.
    pub finding: Option<Finding>,
    /// What the broker was told.
    pub answer: Answer,
    /// Whether the broker has confirmed the answer. Always so for [`Answer::Unknown`], which it never confirms.
    pub told: bool,
    /// The message is of another outbox, so that this one cannot know.
    pub foreign: bool,
}

/// How many check-backs were answered, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// COMMIT.
    pub commits: u64,
    /// ROLLBACK.
    pub rollbacks: u64,
    /// UNKNOWN: open transactions, a database that is away, messages of other outboxes.
    pub unknowns: u64,
    /// Messages of other outboxes among them.
    pub foreign: u64,
    /// Answers that the broker did not confirm: it asks again.
    pub untold: u64,
    /// Ended transactions that could not be marked: they may be delivered twice.
    pub unmarked: u64,
}

/// Whether check-backs can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// They can.
    pub healthy: bool,
    /// Why not; or how many masters the group is registered with.
    pub text: String,
}

#[derive(Default)]
struct Tally {
    commits: AtomicU64,
    rollbacks: AtomicU64,
    unknowns: AtomicU64,
    foreign: AtomicU64,
    untold: AtomicU64,
}

pub(super) struct Judge {
    pub(super) store: Arc<dyn Store>,
    pub(super) origin: String,
    group: String,
    plain_halfs: bool,
    observer: Option<Observer>,
    limit: Duration,
    tally: Tally,
    /// When the database last answered.
    heard: Mutex<Instant>,
}

/// Answers the check-backs of a producer group, until it is stopped or dropped. Any number of processes may do it for one
/// group, as long as all use the same database.
pub struct CheckBackAnswers {
    pub(super) judge: Arc<Judge>,
    pub(super) producer: Arc<TransactionalProducer>,
    pub(super) ended: Ended,
    ended_task: EndedTask,
    masters: Vec<Master>,
    warnings: Vec<Warning>,
    judges: usize,
    places: Arc<Semaphore>,
    reader: JoinHandle<()>,
    looker: JoinHandle<()>,
}

impl fmt::Debug for CheckBackAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckBackAnswers").field("group", &self.judge.group).finish_non_exhaustive()
    }
}

impl CheckBackAnswers {
    /// Opens the database, registers the group with every master, and looks at what the brokers are set to. From then on
    /// check-backs are answered.
    ///
    /// # Errors
    /// [`TransactionError::Store`], [`TransactionError::Register`], [`TransactionError::Rejecting`],
    /// [`TransactionError::TransientPool`], [`TransactionError::Options`].
    pub async fn start(options: TransactionOptions) -> Result<Self, TransactionError> {
        let client = options.broker.client_options().map_err(|e| TransactionError::Options(e.to_string()))?;
        let limit = client.request_limit;
        let store = outhaul_store::open(options.store.clone()).await?;
        store.check_version().await?;
        let origin = store.origin().await?;
        let client = Client::new(client);
        let group = options.broker.producer_group.clone();
        let registering = TransactionalProducer::start(&client, &group, options.start_limit).await;
        let (producer, checks) = registering.map_err(|e| TransactionError::Register(e.to_string()))?;
        let registered = producer.registered_with();
        let looked = brokers::look(&client, &options.broker.cluster, options.retention, &registered).await;
        let looked = match looked {
            Ok(looked) => looked,
            Err(e) => {
                producer.leave().await;
                store.close().await;
                return Err(e);
            }
        };
        for warning in &looked.warnings {
            tracing::warn!(code = warning.code, "{}", warning.text);
        }
        let judge = Arc::new(Judge {
            store: store.clone(),
            origin,
            group,
            plain_halfs: options.plain_halfs,
            observer: options.observer,
            limit,
            tally: Tally::default(),
            heard: Mutex::new(Instant::now()),
        });
        let (ended, ended_task) = Ended::start(store);
        let judges = options.judges.max(1);
        let places = Arc::new(Semaphore::new(judges));
        let reader = tokio::spawn(read(judge.clone(), checks, ended.clone(), places.clone()));
        let looker = tokio::spawn(look(judge.clone()));
        Ok(Self {
            judge,
            producer: Arc::new(producer),
            ended,
            ended_task,
            masters: looked.masters,
            warnings: looked.warnings,
            judges,
            places,
            reader,
            looker,
        })
    }

    /// What was found about the brokers at the start.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// How many masters there were at the start.
    pub fn masters(&self) -> usize {
        self.masters.len()
    }

    /// Name of the outbox.
    pub fn origin(&self) -> &str {
        &self.judge.origin
    }

    /// What was answered so far.
    pub fn counts(&self) -> Counts {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let tally = &self.judge.tally;
        Counts {
            commits: of(&tally.commits),
            rollbacks: of(&tally.rollbacks),
            unknowns: of(&tally.unknowns),
            foreign: of(&tally.foreign),
            untold: of(&tally.untold),
            unmarked: of(&self.ended.lost),
        }
    }

    /// Whether check-backs can be answered: some master can ask, and the database has answered within half a minute.
    pub fn health(&self) -> Health {
        let registered = self.producer.registered_with().len();
        let silent = self.judge.heard().elapsed();
        let not = |text: String| Health { healthy: false, text };
        if self.reader.is_finished() || self.looker.is_finished() {
            not("a task has ended".into())
        } else if registered == 0 {
            not("no master of the cluster is connected: no check-back can come".into())
        } else if silent > SILENCE {
            not(format!("the database has not answered for {} s: check-backs are answered UNKNOWN", silent.as_secs()))
        } else {
            Health { healthy: true, text: format!("registered with {registered} of {} masters", self.masters.len()) }
        }
    }

    /// Leaves the group, so that brokers ask others at once, then lets what is under way come to its end.
    pub async fn stop(self) {
        self.producer.leave().await;
        self.reader.abort();
        self.looker.abort();
        let all = u32::try_from(self.judges).unwrap_or(u32::MAX);
        _ = tokio::time::timeout(STOP_LIMIT, self.places.acquire_many(all)).await;
        drop(self.ended);
        self.ended_task.stop().await;
        self.judge.store.close().await;
    }
}

/// One after the other takes a place, and is judged beside the others. While all places are taken, what comes waits in the
/// client's queue, which is bounded; what that drops comes again.
async fn read(judge: Arc<Judge>, mut checks: CheckBacks, ended: Ended, places: Arc<Semaphore>) {
    while let Some(check) = checks.next().await {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (judge, ended) = (judge.clone(), ended.clone());
        tokio::spawn(async move {
            judge.settle(&check, &ended).await;
            drop(place);
        });
    }
}

async fn look(judge: Arc<Judge>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let answered = judge.store.origin().await;
        judge.hear(&answered);
    }
}

impl Judge {
    fn heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear<T>(&self, answered: &StoreResult<T>) {
        match answered {
            Ok(_) => *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now(),
            Err(e) => tracing::warn!(error = %e, "the database does not answer: check-backs are answered UNKNOWN"),
        }
    }

    /// What the database says of a transaction.
    pub(super) async fn find(&self, transaction: &str) -> Option<Finding> {
        let judged = self.store.judge(transaction).await;
        self.hear(&judged);
        judged.ok()
    }

    async fn settle(&self, check: &CheckBack, ended: &Ended) {
        let asked = &check.check;
        let properties = &asked.message.properties;
        let transaction = properties.get(TRANSACTION).unwrap_or(&asked.unique_key).to_owned();
        let foreign = asked.producer_group != self.group
            || properties.get(ORIGIN).map_or(!self.plain_halfs, |origin| origin != self.origin);
        // Whoever cannot know says nothing: not even a tombstone may come of it.
        let finding = if foreign { None } else { self.find(&transaction).await };
        let answer = answer(finding);
        let told = check.answer(resolution(answer), self.limit).await;
        if let Err(e) = &told {
            tracing::debug!(%transaction, error = %e, "the answer to a check-back is not confirmed");
        } else if answer == Answer::Commit {
            ended.end(&transaction, format!("{} {}", check.address(), asked.commit_log_offset)).await;
        }
        let judged =
            Judged { transaction, topic: asked.topic().to_owned(), finding, answer, told: told.is_ok(), foreign };
        self.count(&judged);
        tracing::debug!(transaction = %judged.transaction, finding = ?finding, answer = answer.name(), foreign, "check-back");
        if let Some(observer) = &self.observer {
            observer(&judged);
        }
    }

    fn count(&self, judged: &Judged) {
        let add = |n: &AtomicU64| n.fetch_add(1, Ordering::Relaxed);
        add(match judged.answer {
            Answer::Commit => &self.tally.commits,
            Answer::Rollback => &self.tally.rollbacks,
            Answer::Unknown => &self.tally.unknowns,
        });
        if !judged.told {
            add(&self.tally.untold);
        }
        if judged.foreign && add(&self.tally.foreign) == 0 {
            tracing::warn!(
                code = "OUT-5037",
                group = %self.group,
                topic = %judged.topic,
                "a check-back about a message of another outbox: the producer group is shared"
            );
        }
    }
}

pub(super) const fn resolution(answer: Answer) -> Resolution {
    match answer {
        Answer::Commit => Resolution::Commit,
        Answer::Rollback => Resolution::Rollback,
        Answer::Unknown => Resolution::Unknown,
    }
}
