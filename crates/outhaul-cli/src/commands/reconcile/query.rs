//! What a business query says must have an event.

use outhaul_reconcile::{Record, Side};
use outhaul_store::StoreOptions;
use outhaul_store::scan::{Cell, Wanted, scan};

use super::known::{patient, time_of};
use super::{Asked, pushed};
use crate::codes;
use crate::failure::Failure;

/// What a missing message needs to be enqueued, besides its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) payload: Vec<u8>,
}

impl Content {
    pub(super) fn encode(&self) -> Vec<u8> {
        let key = self.key.as_ref().map_or(u32::MAX, |key| key.len() as u32);
        let mut out = (self.topic.len() as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(self.key.as_deref().unwrap_or_default().as_bytes());
        out.extend_from_slice(&self.payload);
        out
    }

    /// Reads what was encoded. None: there is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (topic, key) = (number(0)? as usize, number(4)?);
        let key_end = 8 + topic + if key == u32::MAX { 0 } else { key as usize };
        let text = |part: &[u8]| String::from_utf8(part.to_vec()).ok();
        Some(Self {
            topic: text(bytes.get(8..8 + topic)?)?,
            key: if key == u32::MAX { None } else { Some(text(bytes.get(8 + topic..key_end)?)?) },
            payload: bytes.get(key_end..)?.to_vec(),
        })
    }
}

/// Reads the query: id, then perhaps created_at, topic, key, payload.
pub(super) async fn read(asked: &Asked<'_>, sql: &str, side: &mut Side) -> Result<(), Failure> {
    let failed = |what: String| Failure::new(&codes::BAD_QUERY, what);
    let options = match &asked.a.query_db {
        Some(url) => StoreOptions { url: url.clone(), ..asked.outbox.store.clone() },
        None => asked.outbox.store.clone(),
    };
    let of_query = |e: outhaul_store::StoreError| Failure::from(e).while_doing("--query");
    let mut rows = scan(patient(&options, asked.a.limit), Wanted::Query(sql.to_owned())).map_err(of_query)?;
    let mut number = 0u64;
    while let Some(page) = rows.next().await.map_err(of_query)? {
        for row in page {
            number += 1;
            if asked.a.fix && row.len() < 5 {
                let columns = ["id", "created_at", "topic", "key", "payload"];
                let missing = columns.get(row.len()..).unwrap_or_default().join(", ");
                return Err(failed(format!("--fix needs five columns: the query has no {missing}")));
            }
            if row.len() > 5 {
                return Err(failed(format!("the query has {} columns: there are at most five", row.len())));
            }
            if let Some(record) = record(asked, row).map_err(|what| failed(format!("row {number}: {what}")))? {
                pushed(asked, side, &record)?;
            }
        }
    }
    Ok(())
}

/// A row. None: it is not asked for.
fn record(asked: &Asked<'_>, row: Vec<Cell>) -> Result<Option<Record>, String> {
    let mut cells = row.into_iter();
    let id = cells.next().and_then(Cell::into_bytes).filter(|id| !id.is_empty()).ok_or("it has no id")?;
    if id.len() > outhaul_reconcile::ID_MAX_BYTES {
        return Err(format!("its id has {} bytes", id.len()));
    }
    let at_ms = match cells.next() {
        None | Some(Cell::Null) => None,
        Some(cell) => Some(time_of(&cell).ok_or("its second column is no time")?),
    };
    if !asked.window.contains(at_ms) {
        return Ok(None);
    }
    let mut record = Record::new(id, at_ms);
    if asked.a.fix {
        let text = |cell: Option<Cell>, name: &str| {
            let bytes = cell.and_then(Cell::into_bytes);
            bytes.map(|b| String::from_utf8(b).map_err(|_| format!("its {name} is not UTF-8"))).transpose()
        };
        let topic = text(cells.next(), "topic")?.filter(|t| !t.is_empty()).ok_or("it has no topic")?;
        let key = text(cells.next(), "key")?;
        let payload = cells.next().and_then(Cell::into_bytes).ok_or("it has no payload")?;
        if payload.len() as u64 > asked.outbox.store.max_message_bytes {
            return Err(format!(
                "its payload has {} bytes, max_message_bytes is {}",
                payload.len(),
                asked.outbox.store.max_message_bytes
            ));
        }
        record.content = Content { topic, key, payload }.encode();
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_reads_back() {
        for key in [None, Some(String::new()), Some("k".to_owned())] {
            let content = Content { topic: "t".into(), key, payload: vec![0, 255] };
            assert_eq!(Content::decode(&content.encode()), Some(content));
        }
        assert_eq!(Content::decode(b""), None);
        assert_eq!(Content::decode(&[255; 9]), None);
    }
}
