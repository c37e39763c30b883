//! PostgreSQL.

use async_trait::async_trait;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::{ARTICLE_BATCH, FloorRow, PAGE, PendingRow, Raw, floor_chunk, runs};

pub struct PostgresRaw(Client);

impl PostgresRaw {
    pub async fn open(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        Self(client)
    }
}

#[async_trait]
impl Raw for PostgresRaw {
    async fn execute(&mut self, sql: &str) {
        self.0.batch_execute(sql).await.expect("a statement");
    }

    async fn number(&mut self, sql: &str) -> u64 {
        let messages = self.0.simple_query(sql).await.expect("a query");
        messages
            .iter()
            .find_map(|m| match m {
                SimpleQueryMessage::Row(r) => r.get(0).and_then(|t| t.parse::<f64>().ok()),
                _ => None,
            })
            .map_or(0, |f| f as u64)
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        let messages = self.0.simple_query(sql).await.expect("a query");
        let texts = messages.iter().filter_map(|m| match m {
            SimpleQueryMessage::Row(r) => r.get(0).map(str::to_owned),
            _ => None,
        });
        texts.collect()
    }

    async fn floor(&mut self, shards: u16) -> usize {
        let sharded = shards > 1;
        let list: Vec<i16> = (0..shards).map(|s| s as i16).collect();
        let columns = if sharded { "shard::int2" } else { "0::int2" };
        let filter = if sharded { "shard = ANY($2::int2[]) AND" } else { "$2::int2[] IS NOT NULL AND" };
        let query = format!(
            "SELECT {columns}, seq, id, topic, msg_key, payload FROM floor_outbox WHERE {filter} seq > $1 ORDER BY seq LIMIT {PAGE}"
        );
        let select = self.0.prepare(&query).await.expect("a statement");
        let insert =
            self.0.prepare("INSERT INTO floor_log (base_position, chunk) VALUES ($1, $2)").await.expect("a statement");
        let (mut moved, mut low) = (0usize, 0i64);
        loop {
            let rows: Vec<FloorRow> = self
                .0
                .query(&select, &[&low, &list])
                .await
                .expect("a page")
                .into_iter()
                .map(|r| FloorRow {
                    shard: r.get::<_, i16>(0) as u16,
                    seq: r.get::<_, i64>(1) as u64,
                    id: r.get(2),
                    topic: r.get(3),
                    key: r.get(4),
                    payload: r.get::<_, Vec<u8>>(5).into(),
                })
                .collect();
            let Some(last) = rows.last() else { return moved };
            low = last.seq as i64;
            let count = rows.len();
            let deletes: Vec<String> = runs(&rows)
                .into_iter()
                .map(|(shard, first, last, _)| {
                    let at = if sharded { format!("shard = {shard} AND ") } else { String::new() };
                    format!("DELETE FROM floor_outbox WHERE {at}seq BETWEEN {first} AND {last}")
                })
                .collect();
            let chunk = floor_chunk(moved as u64, rows);
            self.execute(&format!("BEGIN; {}", deletes.join(";"))).await;
            self.0.execute(&insert, &[&(moved as i64), &chunk]).await.expect("a chunk");
            self.execute("COMMIT").await;
            moved += count;
        }
    }

    async fn pending(&mut self) -> Vec<PendingRow> {
        let select = format!(
            "SELECT id, topic, payload FROM article_outbox WHERE status = 'PENDING' ORDER BY created_at LIMIT {ARTICLE_BATCH}"
        );
        let rows = self.0.query(&select, &[]).await.expect("a page");
        rows.iter().map(|r| PendingRow { id: r.get(0), payload: r.get::<_, String>(2).into_bytes() }).collect()
    }

    async fn mark_sent(&mut self, rows: &[PendingRow]) {
        let ids: Vec<&str> = rows.iter().map(|row| &*row.id).collect();
        let update = "UPDATE article_outbox SET status = 'SENT', sent_at = now() WHERE id = ANY($1)";
        self.0.execute(update, &[&ids]).await.expect("an update");
    }
}
