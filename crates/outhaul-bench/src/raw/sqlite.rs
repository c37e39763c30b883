//! SQLite.

use std::path::Path;

use async_trait::async_trait;
use rusqlite::Connection;

use super::{ARTICLE_BATCH, FloorRow, PAGE, PendingRow, Raw, floor_chunk, runs};

pub struct SqliteRaw(std::sync::Mutex<Connection>);

impl SqliteRaw {
    pub fn open(path: &Path) -> Self {
        let connection = Connection::open(path).expect("a database");
        connection
            .execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA busy_timeout=10000")
            .expect("settings");
        Self(std::sync::Mutex::new(connection))
    }
}

#[async_trait]
impl Raw for SqliteRaw {
    async fn execute(&mut self, sql: &str) {
        self.0.get_mut().expect("a connection").execute_batch(sql).expect("a statement");
    }

    async fn number(&mut self, sql: &str) -> u64 {
        self.0.get_mut().expect("a connection").query_row(sql, [], |r| r.get::<_, i64>(0)).map_or(0, |n| n as u64)
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        let c = self.0.get_mut().expect("a connection");
        let mut select = c.prepare(sql).expect("a statement");
        let rows = select.query_map([], |r| r.get(0)).expect("a query");
        rows.map(|r| r.expect("a text")).collect()
    }

    async fn floor(&mut self, _shards: u16) -> usize {
        let c = self.0.get_mut().expect("a connection");
        let (mut moved, mut low) = (0usize, 0i64);
        loop {
            let rows: Vec<FloorRow> = {
                let mut select = c
                    .prepare_cached(&format!("SELECT seq, id, topic, msg_key, payload FROM floor_outbox WHERE seq > ? ORDER BY seq LIMIT {PAGE}"))
                    .expect("a statement");
                let rows = select
                    .query_map([low], |r| {
                        Ok(FloorRow {
                            shard: 0,
                            seq: r.get::<_, i64>(0)? as u64,
                            id: r.get(1)?,
                            topic: r.get(2)?,
                            key: r.get(3)?,
                            payload: r.get_ref(4)?.as_bytes().map(<[u8]>::to_vec).unwrap_or_default().into(),
                        })
                    })
                    .expect("a page");
                rows.map(|r| r.expect("a row")).collect()
            };
            let Some(last) = rows.last() else { return moved };
            low = last.seq as i64;
            let count = rows.len();
            let runs = runs(&rows);
            let chunk = floor_chunk(moved as u64, rows);
            c.execute_batch("BEGIN IMMEDIATE").expect("begin");
            for (_, first, last, _) in runs {
                c.execute("DELETE FROM floor_outbox WHERE seq BETWEEN ? AND ?", [first as i64, last as i64])
                    .expect("a delete");
            }
            c.execute("INSERT INTO floor_log (base_position, chunk) VALUES (?, ?)", (moved as i64, chunk))
                .expect("a chunk");
            c.execute_batch("COMMIT").expect("commit");
            moved += count;
        }
    }

    async fn pending(&mut self) -> Vec<PendingRow> {
        let c = self.0.get_mut().expect("a connection");
        let mut select = c
            .prepare_cached(&format!("SELECT id, topic, payload FROM article_outbox WHERE status = 'PENDING' ORDER BY created_at LIMIT {ARTICLE_BATCH}"))
            .expect("a statement");
        let rows = select
            .query_map([], |r| Ok(PendingRow { id: r.get(0)?, payload: r.get::<_, String>(2)?.into_bytes() }))
            .expect("a page");
        rows.map(|r| r.expect("a row")).collect()
    }

    async fn mark_sent(&mut self, rows: &[PendingRow]) {
        let list: Vec<String> = rows.iter().map(|row| format!("'{}'", row.id)).collect();
        let c = self.0.get_mut().expect("a connection");
        c.execute_batch(&format!(
            "UPDATE article_outbox SET status = 'SENT', sent_at = datetime('now') WHERE id IN ({})",
            list.join(",")
        ))
        .expect("an update");
    }
}
