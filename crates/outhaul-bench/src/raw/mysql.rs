//! MariaDB and MySQL.

use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Value};

use super::{ARTICLE_BATCH, FloorRow, PAGE, PendingRow, Raw, floor_chunk, runs};

pub struct MySqlRaw(Conn);

impl MySqlRaw {
    pub async fn open(url: &str) -> Self {
        Self(Conn::new(Opts::from_url(url).expect("a URL")).await.expect("a connection"))
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::Bytes(b) => String::from_utf8(b).ok(),
        Value::NULL => None,
        other => Some(other.as_sql(true).trim_matches('\'').to_owned()),
    }
}

#[async_trait]
impl Raw for MySqlRaw {
    async fn execute(&mut self, sql: &str) {
        self.0.query_drop(sql).await.expect("a statement");
    }

    async fn number(&mut self, sql: &str) -> u64 {
        let row: Option<mysql_async::Row> = self.0.query_first(sql).await.expect("a query");
        row.and_then(|r| text(r.unwrap().into_iter().next()?)).and_then(|t| t.parse().ok()).unwrap_or(0)
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        let rows: Vec<mysql_async::Row> = self.0.query(sql).await.expect("a query");
        rows.into_iter().filter_map(|r| text(r.unwrap().into_iter().next()?)).collect()
    }

    async fn floor(&mut self, shards: u16) -> usize {
        let sharded = shards > 1;
        let shard_list: Vec<String> = (0..shards).map(|s| s.to_string()).collect();
        let shard_list = shard_list.join(",");
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
        let (mut moved, mut low) = (0, 0u64);
        loop {
            let query = if sharded {
                format!(
                    "SELECT shard, seq, id, topic, msg_key, payload FROM floor_outbox WHERE shard IN ({shard_list}) AND seq > ? ORDER BY seq LIMIT {PAGE}"
                )
            } else {
                format!(
                    "SELECT 0, seq, id, topic, msg_key, payload FROM floor_outbox WHERE seq > ? ORDER BY seq LIMIT {PAGE}"
                )
            };
            let rows: Vec<FloorRow> = self
                .0
                .exec_map(
                    query,
                    (low,),
                    |(shard, seq, id, topic, key, payload): (u16, u64, String, String, Option<String>, Vec<u8>)| {
                        FloorRow { shard, seq, id, topic, key, payload: payload.into() }
                    },
                )
                .await
                .expect("a page");
            let Some(last) = rows.last() else { return moved };
            low = last.seq;
            let count = rows.len();
            self.execute("START TRANSACTION").await;
            for (shard, first, last, n) in runs(&rows) {
                let at = if sharded { format!("shard = {shard} AND ") } else { String::new() };
                self.execute(&format!(
                    "DELETE FROM floor_outbox WHERE {at}seq BETWEEN {first} AND {last} ORDER BY seq LIMIT {n}"
                ))
                .await;
            }
            let chunk = floor_chunk(moved as u64, rows);
            self.0
                .exec_drop("INSERT INTO floor_log (base_position, chunk) VALUES (?, ?)", (moved as u64, chunk))
                .await
                .expect("a chunk");
            self.execute("COMMIT").await;
            moved += count;
        }
    }

    async fn pending(&mut self) -> Vec<PendingRow> {
        let rows: Vec<(String, String, Vec<u8>)> = self
            .0
            .exec(format!("SELECT id, topic, payload FROM article_outbox WHERE status = 'PENDING' ORDER BY created_at LIMIT {ARTICLE_BATCH}"), ())
            .await
            .expect("a page");
        rows.into_iter().map(|(id, _, payload)| PendingRow { id, payload }).collect()
    }

    async fn mark_sent(&mut self, rows: &[PendingRow]) {
        let list: Vec<String> = rows.iter().map(|row| format!("'{}'", row.id)).collect();
        self.execute(&format!(
            "UPDATE article_outbox SET status = 'SENT', sent_at = NOW(3) WHERE id IN ({})",
            list.join(",")
        ))
        .await;
    }
}
