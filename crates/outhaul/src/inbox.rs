//! The other end: the effect of a message happens once, however often it is delivered.

use std::time::Duration;

use outhaul_core::outbox::ID_MAX_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::driver::{Dialect, RefusalKind, Transaction};
use crate::error::Error;
use crate::statement::{Statement, Value, quoted};

/// The most bytes of a consumer's name.
const CONSUMER_MAX_BYTES: usize = 255;
/// Rows that one step of pruning looks at.
const STEP_ROWS: i64 = 500;
/// The default of `retention` of a relay's log: what is older cannot be replayed from it.
const REPLAY_WINDOW: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The table `inbox` of a consumer's database: what each consumer has applied, by (consumer, id).
///
/// The row of a message is inserted in the transaction of its effect, so that both are there or neither is. Of several
/// copies that come at the same time the first one's transaction decides: the others wait until it has ended, and find
/// its row, or take its place.
#[derive(Clone, Debug)]
pub struct Inbox {
    table: String,
    replay_window: Duration,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<R, S = ()> {
    /// It was the first copy: the effect's result.
    First(R),
    /// An earlier copy was applied.
    Seen(S),
}

/// What a step of pruning did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneStep {
    /// Rows that it deleted.
    pub deleted: u64,
    /// Where the next step begins. None: there is nothing behind it.
    pub next: Option<String>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    /// The table `inbox` as `outhaul init --inbox` makes it.
    pub fn new() -> Self {
        Self { table: "inbox".into(), replay_window: REPLAY_WINDOW }
    }

    /// What the names of the tables begin with.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.table = format!("{prefix}inbox");
        self
    }

    /// How far back whoever delivers may go: `retention` of the relay, more where exported files are enqueued again.
    /// Default 7 days, which is the relay's.
    #[must_use]
    pub fn replay_window(mut self, window: Duration) -> Self {
        self.replay_window = window;
        self
    }

    /// Runs the effect if this consumer has not applied the message yet. On an error, whoever it comes from, roll back:
    /// only then will another copy be taken for the first.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx-postgres")]
    /// # async fn example(pool: sqlx::PgPool, id: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let inbox = outhaul::Inbox::new();
    /// let mut tx = pool.begin().await?;
    /// inbox
    ///     .once(&mut *tx, "points", id, async |tx| {
    ///         sqlx::query("UPDATE accounts SET points = points + 10 WHERE id = 7").execute(tx).await?;
    ///         Ok::<_, Box<dyn std::error::Error>>(())
    ///     })
    ///     .await?;
    /// tx.commit().await?; // then acknowledge the message
    /// # Ok(()) }
    /// ```
    ///
    /// In a task that is spawned, today's compiler takes an effect only if the transaction's type has no lifetime: with
    /// sqlx pass the connection (`&mut *tx`, as above); with tokio-postgres and mysql_async use [`first`](Self::first).
    ///
    /// # Errors
    /// The effect's, and those of [`first`](Self::first).
    pub async fn once<T, R, E, F>(&self, tx: &mut T, consumer: &str, id: &str, effect: F) -> Result<Once<R>, E>
    where
        T: Transaction,
        E: From<Error>,
        F: AsyncFnOnce(&mut T) -> Result<R, E>,
    {
        if !self.first(tx, consumer, id).await? {
            return Ok(Once::Seen(()));
        }
        effect(tx).await.map(Once::First)
    }

    /// As [`once`](Self::once), and keeps the effect's result: a later copy gets what the first had, or None if the row
    /// came from a call that kept nothing.
    ///
    /// # Errors
    /// As `once`; [`Error::Json`]: the result cannot be written as JSON, or what was kept is not of this type.
    pub async fn once_kept<T, R, E, F>(
        &self,
        tx: &mut T,
        consumer: &str,
        id: &str,
        effect: F,
    ) -> Result<Once<R, Option<R>>, E>
    where
        T: Transaction,
        R: Serialize + DeserializeOwned,
        E: From<Error>,
        F: AsyncFnOnce(&mut T) -> Result<R, E>,
    {
        if !self.first(tx, consumer, id).await? {
            return Ok(Once::Seen(self.kept(tx, consumer, id).await?));
        }
        let result = effect(tx).await?;
        self.keep(tx, consumer, id, &result).await?;
        Ok(Once::First(result))
    }

    /// Whether this is the first copy of the message: then its row was inserted, and the caller applies the message in
    /// this same transaction, or rolls back. Waits while the transaction of another copy is open, as long as the
    /// database lets it.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")]
    /// # async fn example(mut client: tokio_postgres::Client, id: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = client.transaction().await?;
    /// if outhaul::Inbox::new().first(&mut tx, "points", id).await? {
    ///     tx.execute("UPDATE accounts SET points = points + 10 WHERE id = 7", &[]).await?;
    /// }
    /// tx.commit().await?; // then acknowledge the message
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoTransaction`], [`Error::Inbox`]: nothing was written. [`Error::Retry`]: roll back and run the
    /// transaction again; two copies that came at the same time may end in it. Anything else is the database's word.
    pub async fn first<T: Transaction + ?Sized>(&self, tx: &mut T, consumer: &str, id: &str) -> Result<bool, Error> {
        check(consumer, id)?;
        if !tx.is_open() {
            return Err(Error::NoTransaction);
        }
        let dialect = tx.dialect();
        match tx.execute(self.claim(dialect, consumer, id)).await {
            Ok(rows) => Ok(rows > 0),
            // MySQL takes back the one statement and goes on. That the row is there is looked up, since a trigger's
            // table may have a primary key too.
            Err(refusal) if refusal.kind == RefusalKind::Duplicate => {
                let there = tx.fetch(self.look(dialect, consumer, id)).await?;
                if there.is_empty() { Err(refusal.into()) } else { Ok(false) }
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Keeps a result with the row that [`first`](Self::first) inserted, as JSON.
    ///
    /// # Errors
    /// [`Error::Json`], or the database's word; roll back.
    pub async fn keep<T: Transaction + ?Sized, R: Serialize>(
        &self,
        tx: &mut T,
        consumer: &str,
        id: &str,
        result: &R,
    ) -> Result<(), Error> {
        let json = written(result)?;
        let statement = self.keep_text(tx.dialect(), consumer, id, &json);
        tx.execute(statement).await?;
        Ok(())
    }

    /// The result that was kept for a message, if there is one.
    ///
    /// # Errors
    /// [`Error::Json`]: it is not of this type; or the database's word.
    pub async fn kept<T: Transaction + ?Sized, R: DeserializeOwned>(
        &self,
        tx: &mut T,
        consumer: &str,
        id: &str,
    ) -> Result<Option<R>, Error> {
        let statement = self.look(tx.dialect(), consumer, id);
        read(tx.fetch(statement).await?)
    }

    /// Deletes what a consumer applied longer ago than `older_than`, by the database's clock: a step that looks at a few
    /// hundred rows, in the caller's transaction. Commit, then go on from [`PruneStep::next`] until it is None.
    ///
    /// # Errors
    /// [`Error::ReplayWindow`]: a replay could bring again what would be deleted. Nothing was; or the database's word.
    pub async fn prune<T: Transaction + ?Sized>(
        &self,
        tx: &mut T,
        consumer: &str,
        older_than: Duration,
        from: Option<&str>,
    ) -> Result<PruneStep, Error> {
        self.check_age(older_than)?;
        let dialect = tx.dialect();
        let from = from.unwrap_or_default();
        let next = ids(tx.fetch(self.step_end(dialect, consumer, from)).await?).pop();
        let old = ids(tx.fetch(self.old(dialect, consumer, (from, next.as_deref()), older_than)).await?);
        let deleted = if old.is_empty() { 0 } else { tx.execute(self.delete(dialect, consumer, &old)).await? };
        Ok(PruneStep { deleted, next })
    }

    pub(crate) fn check_age(&self, older_than: Duration) -> Result<(), Error> {
        if older_than < self.replay_window {
            return Err(Error::ReplayWindow { older_than, window: self.replay_window });
        }
        Ok(())
    }

    pub(crate) fn claim<'a>(&self, dialect: Dialect, consumer: &'a str, id: &'a str) -> Statement<'a> {
        let mut s = Statement::new(format!("INSERT INTO {} (consumer, id) VALUES (", quoted(dialect, &self.table)));
        s.name(dialect, Some(consumer));
        s.push(", ");
        s.name(dialect, Some(id));
        s.push(match dialect {
            Dialect::MySql => ")",
            Dialect::Postgres | Dialect::Sqlite => ") ON CONFLICT (consumer, id) DO NOTHING",
        });
        s
    }

    /// The kept result. In MySQL a read that locks: others do not see, at its default isolation, what was committed
    /// after they began.
    pub(crate) fn look<'a>(&self, dialect: Dialect, consumer: &'a str, id: &'a str) -> Statement<'a> {
        // As bytes: text would come in the character set of the session.
        let result = if dialect == Dialect::MySql { "CAST(result AS BINARY)" } else { "result" };
        let mut s = Statement::new(format!("SELECT {result} FROM {}", quoted(dialect, &self.table)));
        of_message(dialect, &mut s, consumer, id);
        s.push(if dialect == Dialect::MySql { " LOCK IN SHARE MODE" } else { "" });
        s
    }

    pub(crate) fn keep_text<'a>(
        &self,
        dialect: Dialect,
        consumer: &'a str,
        id: &'a str,
        json: &'a str,
    ) -> Statement<'a> {
        let mut s = Statement::new(format!("UPDATE {} SET result = ", quoted(dialect, &self.table)));
        s.text(dialect, Some(json));
        of_message(dialect, &mut s, consumer, id);
        s
    }

    /// The last id of the rows that a step looks at; none if it comes to the end.
    pub(crate) fn step_end<'a>(&self, dialect: Dialect, consumer: &'a str, from: &'a str) -> Statement<'a> {
        let mut s = Statement::new(format!("SELECT id FROM {}", quoted(dialect, &self.table)));
        behind(dialect, &mut s, consumer, from);
        s.push(&format!(" ORDER BY id LIMIT 1 OFFSET {}", STEP_ROWS - 1));
        s
    }

    /// Ids behind `from`, up to and with `to`, that are old. They are looked up without a lock, and deleted by their
    /// exact ids: a range would lock what lies between, and keep others from inserting there.
    pub(crate) fn old<'a>(
        &self,
        dialect: Dialect,
        consumer: &'a str,
        (from, to): (&'a str, Option<&'a str>),
        older_than: Duration,
    ) -> Statement<'a> {
        let mut s = Statement::new(format!("SELECT id FROM {}", quoted(dialect, &self.table)));
        behind(dialect, &mut s, consumer, from);
        if to.is_some() {
            s.push(" AND id <= ");
            s.name(dialect, to);
        }
        let seconds = Value::Number(Some(i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX / 2_000_000)));
        s.value(
            dialect,
            match dialect {
                Dialect::MySql => (" AND UNIX_TIMESTAMP(processed_at) < UNIX_TIMESTAMP() - ", ""),
                Dialect::Postgres => (" AND processed_at < clock_timestamp() - ", "::bigint * interval '1 second'"),
                Dialect::Sqlite => (" AND processed_at < (CAST(strftime('%s', 'now') AS INTEGER) - ", ") * 1000000"),
            },
            seconds,
        );
        s
    }

    pub(crate) fn delete<'a>(&self, dialect: Dialect, consumer: &'a str, ids: &'a [String]) -> Statement<'a> {
        let mut s = Statement::new(format!("DELETE FROM {} WHERE consumer = ", quoted(dialect, &self.table)));
        s.name(dialect, Some(consumer));
        s.push(" AND id IN (");
        for (n, id) in ids.iter().enumerate() {
            s.push(if n == 0 { "" } else { ", " });
            s.name(dialect, Some(id));
        }
        s.push(")");
        s.repeats = false;
        s
    }
}

fn of_message<'a>(dialect: Dialect, s: &mut Statement<'a>, consumer: &'a str, id: &'a str) {
    s.push(" WHERE consumer = ");
    s.name(dialect, Some(consumer));
    s.push(" AND id = ");
    s.name(dialect, Some(id));
}

fn behind<'a>(dialect: Dialect, s: &mut Statement<'a>, consumer: &'a str, from: &'a str) {
    s.push(" WHERE consumer = ");
    s.name(dialect, Some(consumer));
    s.push(" AND id > ");
    s.name(dialect, Some(from));
}

/// Looks whether the row can hold them as they are: what a database cuts off would be another message.
pub(crate) fn check(consumer: &str, id: &str) -> Result<(), Error> {
    for (part, text, most) in [("the consumer", consumer, CONSUMER_MAX_BYTES), ("the id", id, ID_MAX_BYTES)] {
        if text.is_empty() || text.len() > most || text.contains('\0') {
            let bytes = text.len();
            return Err(Error::Inbox(format!("{part} must have 1 to {most} bytes and no NUL; it has {bytes} bytes")));
        }
    }
    Ok(())
}

pub(crate) fn written<R: Serialize>(result: &R) -> Result<String, Error> {
    serde_json::to_string(result).map_err(|source| Error::Json { what: "the result cannot be written as JSON", source })
}

pub(crate) fn read<R: DeserializeOwned>(rows: Vec<Option<Vec<u8>>>) -> Result<Option<R>, Error> {
    let Some(json) = rows.into_iter().flatten().next() else { return Ok(None) };
    serde_json::from_slice(&json)
        .map(Some)
        .map_err(|source| Error::Json { what: "the kept result is not of the type that is asked for", source })
}

pub(crate) fn ids(rows: Vec<Option<Vec<u8>>>) -> Vec<String> {
    rows.into_iter().flatten().map(|id| String::from_utf8_lossy(&id).into_owned()).collect()
}
