//! The statements by which handlers in any language take messages from `inbox_message`.
//!
//! A row waits while `done_at` and `dead_at` are NULL; `claimed_until` in the future keeps it from everybody (a claim, or
//! the pause after a failure). A message may be taken if no earlier one of its key is unfinished. That question is a
//! scalar subquery with a LIMIT, which no planner turns into a join: for a message that has to wait it is one step into
//! an index. (For the first of its key MySQL reads all open entries of that key; the others do not. With an ORDER BY it
//! would sort them for each message that waits.)
//!
//! On MySQL and MariaDB the locking read sees each row as it is when the read comes to it, the subquery what had committed
//! when the statement began to look: of two messages of a key that commit in between, the second would seem to have
//! nothing before it. So it must itself be among what the subqueries see.

use outhaul_store::DatabaseKind;

/// Failures after which a message is dead.
const MAX_ATTEMPTS: u32 = 10;

/// What is the same for all statements of a handler.
pub(super) struct Handler<'a> {
    /// The database.
    pub(super) database: DatabaseKind,
    /// The table's name.
    pub(super) table: &'a str,
    /// The consumer's name as a literal.
    pub(super) consumer: String,
    /// Whether a dead message keeps later ones of its key waiting.
    pub(super) block_key: bool,
}

impl Handler<'_> {
    const fn now(&self) -> &'static str {
        match self.database {
            DatabaseKind::MySql => "CURRENT_TIMESTAMP(6)",
            DatabaseKind::Postgres => "clock_timestamp()",
            DatabaseKind::Sqlite => "CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
        }
    }

    /// So many seconds from now; `seconds` is an expression.
    fn later(&self, seconds: &str) -> String {
        let now = self.now();
        match self.database {
            DatabaseKind::MySql => format!("{now} + INTERVAL {seconds} SECOND"),
            DatabaseKind::Postgres => format!("{now} + {seconds} * interval '1 second'"),
            DatabaseKind::Sqlite => format!("{now} + {seconds} * 1000000"),
        }
    }

    /// 1, 2, 4 … 256 seconds.
    const fn pause(&self) -> &'static str {
        match self.database {
            DatabaseKind::MySql | DatabaseKind::Postgres => "power(2, least(attempts, 8))",
            DatabaseKind::Sqlite => "(1 << min(attempts, 8))",
        }
    }

    fn begin(&self) -> String {
        match self.database {
            DatabaseKind::Sqlite => "BEGIN IMMEDIATE;".into(),
            DatabaseKind::MySql | DatabaseKind::Postgres => "BEGIN;".into(),
        }
    }

    fn next(&self) -> String {
        let (table, consumer, now) = (self.table, &self.consumer, self.now());
        let hint = |index| match self.database {
            DatabaseKind::MySql => format!(" FORCE INDEX ({index})"),
            DatabaseKind::Postgres | DatabaseKind::Sqlite => String::new(),
        };
        let (open, of_key) = (hint("open"), hint("open_of_key"));
        let dead = if self.block_key { "" } else { " AND e.dead_at IS NULL" };
        let lock = if self.database == DatabaseKind::Sqlite { "" } else { " FOR UPDATE SKIP LOCKED" };
        let seen = match self.database {
            DatabaseKind::MySql => {
                format!("    AND (SELECT 1 FROM {table} s WHERE s.seq = m.seq) = 1\n")
            }
            DatabaseKind::Postgres | DatabaseKind::Sqlite => String::new(),
        };
        format!(
            "SELECT m.id, m.topic, m.msg_key, m.headers, m.payload, m.attempts FROM {table} m{open}\n  \
             WHERE m.consumer = {consumer} AND m.done_at IS NULL AND m.dead_at IS NULL\n    \
             AND (m.claimed_until IS NULL OR m.claimed_until <= {now})\n    \
             AND (SELECT 1 FROM {table} e{of_key} WHERE e.consumer = m.consumer AND e.msg_key = m.msg_key\n      \
             AND e.done_at IS NULL{dead} AND e.seq < m.seq LIMIT 1) IS NULL\n{seen}  \
             ORDER BY m.seq LIMIT 1{lock};"
        )
    }

    fn update(&self, set: &str, when: &str) -> String {
        format!(
            "UPDATE {} SET {set}\n  WHERE consumer = {} AND id = :id AND done_at IS NULL AND {when};",
            self.table, self.consumer
        )
    }

    fn failed(&self, attempts: &str, count: &str, when: &str) -> String {
        // `attempts` last: MySQL takes assignments one after the other.
        let (now, later) = (self.now(), self.later(self.pause()));
        let set = format!(
            "dead_at = CASE WHEN {attempts} >= {MAX_ATTEMPTS} THEN {now} END, claimed_by = NULL,\n    \
             claimed_until = {later}, last_error = :error{count}"
        );
        self.update(&set, when)
    }

    fn prune(&self) -> String {
        let (table, consumer) = (self.table, &self.consumer);
        match self.database {
            DatabaseKind::MySql => format!(
                "DELETE FROM {table} WHERE consumer = {consumer} AND done_at < CURRENT_TIMESTAMP(6) - INTERVAL 14 DAY LIMIT 1000;"
            ),
            DatabaseKind::Postgres => format!(
                "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE consumer = {consumer}\n  \
                 AND done_at < now() - interval '14 days' LIMIT 1000));"
            ),
            DatabaseKind::Sqlite => format!(
                "DELETE FROM {table} WHERE seq IN (SELECT seq FROM {table} WHERE consumer = {consumer}\n  \
                 AND done_at < {} - 14 * 86400000000 LIMIT 1000);",
                self.now()
            ),
        }
    }

    /// Names and texts, in the order in which they are used.
    pub(super) fn steps(&self) -> Vec<(&'static str, String)> {
        let now = self.now();
        let free = format!("dead_at IS NULL AND (claimed_until IS NULL OR claimed_until <= {now})");
        let mine = "dead_at IS NULL AND claimed_by = :claim";
        let claim = format!("claimed_by = :claim, claimed_until = {}, attempts = attempts + 1", self.later("60"));
        let done = format!("done_at = {now}");
        let dead = format!(
            "SELECT id, topic, msg_key, attempts, last_error FROM {} WHERE consumer = {} AND done_at IS NULL\n  \
             AND dead_at IS NOT NULL ORDER BY seq LIMIT 100;",
            self.table, self.consumer
        );
        let mut steps = vec![];
        if self.database == DatabaseKind::MySql {
            // At REPEATABLE READ it would lock gaps, and keep messages from coming in.
            steps.push(("isolation", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;".into()));
        }
        steps.extend([
            ("begin", self.begin()),
            ("next", self.next()),
            ("done", self.update(&done, &free)),
            ("commit", "COMMIT;".into()),
            ("failed", self.failed("attempts + 1", ", attempts = attempts + 1", &free)),
            ("claim", self.update(&claim, &free)),
            ("done_claimed", self.update(&done, mine)),
            ("failed_claimed", self.failed("attempts", "", mine)),
            ("dead", dead),
            (
                "redrive",
                self.update(
                    "dead_at = NULL, attempts = 0, claimed_by = NULL, claimed_until = NULL",
                    "dead_at IS NOT NULL",
                ),
            ),
            ("skip", self.update(&done, "dead_at IS NOT NULL")),
            ("prune", self.prune()),
        ]);
        steps
    }

    /// How they are used.
    pub(super) fn note(&self) -> String {
        let alone = if self.database == DatabaseKind::Sqlite {
            "SQLite has one writer at a time, so handlers take turns"
        } else {
            "other handlers pass over the row meanwhile"
        };
        let first = if self.database == DatabaseKind::MySql { "isolation before each begin. " } else { "" };
        format!(
            "{first}The simple way, in one transaction: begin, next, the effect in this database, done, commit; {alone}. done must\n\
             change 1 row. If the effect fails: ROLLBACK, then failed by itself: the message comes again after 1, 2, 4 …\n\
             256 s, and is dead after {MAX_ATTEMPTS} failures. A handler that is killed leaves the message to the next.\n\
             The other way, for effects that take long: begin, next (with LIMIT n for several: never two of a key), claim\n\
             for each with a new text as :claim, commit; then for each begin, effect, done_claimed, commit. If that changes\n\
             0 rows, its 60 s were over and somebody else has it: ROLLBACK. If the effect fails: failed_claimed. attempts\n\
             counts claims then: above {MAX_ATTEMPTS} the message kills its handlers.\n\
             For operators: dead, redrive, skip. prune: again and again until it deletes fewer than 1000."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_message_blocks_its_key_or_not() {
        let next = |block_key| {
            Handler { database: DatabaseKind::Postgres, table: "t", consumer: "'c'".into(), block_key }.next()
        };
        assert!(!next(true).contains("e.dead_at") && next(false).contains("AND e.dead_at IS NULL AND e.seq"));
    }
}
