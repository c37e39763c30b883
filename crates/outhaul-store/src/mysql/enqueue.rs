//! Inserting rows, as an application without a library would.

use super::MySqlStore;
use super::catalogue::Layout;
use super::link::Link;
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{text, time_text};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{NewRow, StoreResult};

/// Ids asked for at a time: a SELECT takes 4,096 columns.
const IDS_MAX: usize = 1_000;

impl MySqlStore {
    pub(super) async fn insert_rows(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let layout = self.layout(&self.other).await?;
        refuse_what_has_no_column(rows, &layout)?;
        let mut held = self.other.take(&self.dialer).await?;
        let result = insert(&mut held.link, &layout, rows).await;
        held.give_back(result)
    }
}

async fn insert(link: &mut Link, layout: &Layout, rows: &[NewRow]) -> Result<Vec<String>, Failure> {
    // Numbers are interleaved between sessions, so the ids that a DEFAULT gave could not be told afterwards.
    let mut uuids = fresh_ids(link, rows.iter().filter(|r| r.id.is_none()).count()).await?.into_iter();
    let ids: Vec<String> = rows.iter().map(|r| r.id.clone().or_else(|| uuids.next()).unwrap_or_default()).collect();
    let mut statements = vec![Statement::new("START TRANSACTION")];
    let limit = link.server.packet_bytes;
    let head = layout.insert();
    let mut open: Option<Statement> = None;
    for (row, id) in rows.iter().zip(&ids) {
        let values = layout.values(row, id);
        open = Some(match open.take() {
            Some(mut s) if s.text_bytes() + values.text_bytes() < limit => {
                s.push(", ").append(values);
                s
            }
            full => {
                statements.extend(full);
                let mut s = Statement::new(&head);
                s.append(values);
                s
            }
        });
    }
    statements.extend(open);
    link.run_inside(&statements).await?;
    link.commit().await?;
    Ok(ids)
}

async fn fresh_ids(link: &mut Link, count: usize) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let columns = vec!["UUID()"; (count - ids.len()).min(IDS_MAX)];
        let answers = link.run(&[Statement::new(format!("SELECT {}", columns.join(", ")))]).await?;
        let mut row = answers.into_iter().flat_map(|a| a.rows).next();
        for column in 0..columns.len() {
            ids.push(row.as_mut().map(|row| text(row, column)).transpose()?.unwrap_or_default());
        }
    }
    Ok(ids)
}

impl Layout {
    fn insert(&self) -> String {
        let optional = [&self.key, &self.headers, &self.available_at].into_iter().flatten();
        let columns: Vec<&str> =
            [&self.id.name, &self.topic, &self.payload].into_iter().chain(optional).map(String::as_str).collect();
        format!("INSERT INTO {} ({}) VALUES ", self.table, columns.join(", "))
    }

    fn values(&self, row: &NewRow, id: &str) -> Statement {
        let mut s = Statement::new("(");
        s.push_text(id).push(", ").push_text(&row.topic).push(", ");
        match std::str::from_utf8(&row.payload) {
            // A server converts text, and takes no bytes for JSON.
            Ok(text) if self.payload_is_text => s.push_text(text),
            _ => s.push_bytes(row.payload.to_vec()),
        };
        if self.key.is_some() {
            s.push(", ").push_text_opt(row.key.as_deref());
        }
        if self.headers.is_some() {
            s.push(", ").push_text_opt(row.headers.as_deref());
        }
        if self.available_at.is_some() {
            s.push(", ").push_text_opt(row.available_at_us.map(time_text).as_deref());
        }
        s.push(")");
        s
    }
}

/// What the table has no column for would be lost in silence.
fn refuse_what_has_no_column(rows: &[NewRow], layout: &Layout) -> StoreResult<()> {
    let refuse = |what: &str| Err(StoreError::new(StoreErrorKind::Configuration, what));
    if layout.key.is_none() && rows.iter().any(|r| r.key.is_some()) {
        return refuse("rows have keys, and the outbox table has no column for them");
    }
    if layout.headers.is_none() && rows.iter().any(|r| r.headers.is_some()) {
        return refuse("rows have headers, and the outbox table has no column for them");
    }
    if layout.available_at.is_none() && rows.iter().any(|r| r.available_at_us.is_some()) {
        return refuse("rows have times before which they wait, and the outbox table has no column for them");
    }
    if layout.payload_is_text && rows.iter().any(|r| std::str::from_utf8(&r.payload).is_err()) {
        return Err(StoreError::new(StoreErrorKind::Other, "the payload is not UTF-8, and the column holds text"));
    }
    Ok(())
}
