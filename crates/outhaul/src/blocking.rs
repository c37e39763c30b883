//! rusqlite is synchronous, and so are its methods here. They take a connection, since its transactions and savepoints
//! are used as one, and refuse it outside of a transaction. Begin with `TransactionBehavior::Immediate`: a transaction
//! that first reads and then writes is refused while another one writes.

use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::driver::Dialect;
use crate::driver::rusqlite::{execute, fetch};
use crate::error::Error;
use crate::event::Event;
use crate::inbox::{Inbox, Once, PruneStep, check, ids, read, written};
use crate::outbox::Outbox;

const DIALECT: Dialect = Dialect::Sqlite;

fn in_transaction(tx: &Connection) -> Result<(), Error> {
    if tx.is_autocommit() { Err(Error::NoTransaction) } else { Ok(()) }
}

impl Outbox {
    /// [`enqueue`](Self::enqueue) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn enqueue_blocking(&self, tx: &Connection, event: Event) -> Result<String, Error> {
        let ids = self.enqueue_many_blocking(tx, [event])?;
        Ok(ids.into_iter().next().unwrap_or_default())
    }

    /// [`enqueue_many`](Self::enqueue_many) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn enqueue_many_blocking(
        &self,
        tx: &Connection,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<String>, Error> {
        let rows = self.checked(DIALECT, events)?;
        in_transaction(tx)?;
        // One by one: no way to a server is saved, and the statement stays prepared.
        for row in rows.chunks(1) {
            execute(tx, &self.insert(DIALECT, row))?;
        }
        Ok(rows.into_iter().map(|row| row.id).collect())
    }
}

impl Inbox {
    /// [`once`](Self::once) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn once_blocking<R, E: From<Error>>(
        &self,
        tx: &Connection,
        consumer: &str,
        id: &str,
        effect: impl FnOnce(&Connection) -> Result<R, E>,
    ) -> Result<Once<R>, E> {
        if !self.first_blocking(tx, consumer, id)? {
            return Ok(Once::Seen(()));
        }
        effect(tx).map(Once::First)
    }

    /// [`once_kept`](Self::once_kept) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn once_kept_blocking<R: Serialize + DeserializeOwned, E: From<Error>>(
        &self,
        tx: &Connection,
        consumer: &str,
        id: &str,
        effect: impl FnOnce(&Connection) -> Result<R, E>,
    ) -> Result<Once<R, Option<R>>, E> {
        if !self.first_blocking(tx, consumer, id)? {
            return Ok(Once::Seen(self.kept_blocking(tx, consumer, id)?));
        }
        let result = effect(tx)?;
        self.keep_blocking(tx, consumer, id, &result)?;
        Ok(Once::First(result))
    }

    /// [`first`](Self::first) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn first_blocking(&self, tx: &Connection, consumer: &str, id: &str) -> Result<bool, Error> {
        check(consumer, id)?;
        in_transaction(tx)?;
        Ok(execute(tx, &self.claim(DIALECT, consumer, id))? > 0)
    }

    /// [`keep`](Self::keep) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn keep_blocking<R: Serialize>(
        &self,
        tx: &Connection,
        consumer: &str,
        id: &str,
        result: &R,
    ) -> Result<(), Error> {
        execute(tx, &self.keep_text(DIALECT, consumer, id, &written(result)?))?;
        Ok(())
    }

    /// [`kept`](Self::kept) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn kept_blocking<R: DeserializeOwned>(
        &self,
        tx: &Connection,
        consumer: &str,
        id: &str,
    ) -> Result<Option<R>, Error> {
        read(fetch(tx, &self.look(DIALECT, consumer, id))?)
    }

    /// [`prune`](Self::prune) for rusqlite.
    ///
    /// # Errors
    /// The same.
    pub fn prune_blocking(
        &self,
        tx: &Connection,
        consumer: &str,
        older_than: Duration,
        from: Option<&str>,
    ) -> Result<PruneStep, Error> {
        self.check_age(older_than)?;
        let from = from.unwrap_or_default();
        let next = ids(fetch(tx, &self.step_end(DIALECT, consumer, from))?).pop();
        let old = ids(fetch(tx, &self.old(DIALECT, consumer, (from, next.as_deref()), older_than))?);
        let deleted = if old.is_empty() { 0 } else { execute(tx, &self.delete(DIALECT, consumer, &old))? };
        Ok(PruneStep { deleted, next })
    }
}
