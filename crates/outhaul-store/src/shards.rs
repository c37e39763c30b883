//! Whether leases and rows match the number of shards: what has no lease is delivered by nobody.

use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// Rows that are looked at where no index begins with the shard: the oldest, among which such rows stay.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const LOOKED_AT: u32 = 10_000;

/// Checks the shards that have a lease row, rising, without that of maintenance. `had`: how many shards there were at most.
/// Some: a warning.
///
/// # Errors
/// `WrongSchema`: a shard has none.
pub(crate) fn check_leases(o: &StoreOptions, found: &[i64], shards: u16, had: u16) -> StoreResult<Option<String>> {
    let (lease, meta) = (o.table("outbox_lease"), o.table("outbox_meta"));
    if let Some(missing) = (0..i64::from(shards)).find(|shard| !found.contains(shard)) {
        let what = format!(
            "{lease} has no row for shard {missing}, and {meta} says {shards} shards: nobody would deliver its rows; \
             `outhaul init --shards {shards}` adds what is missing"
        );
        return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
    }
    Ok(found.last().filter(|last| **last >= i64::from(shards.max(had))).map(|last| {
        format!("{lease} has a row for shard {last}, and {meta} says {shards} shards: was one of them changed by hand?")
    }))
}

/// What is said of rows whose shard is none of the shards. `found`: shards of some rows, None for NULL.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn stray(o: &StoreOptions, found: &[Option<i64>], shards: u16) -> Option<StoreError> {
    let column = o.columns.shard.as_deref().unwrap_or("shard");
    let shard = found.iter().find(|shard| shard.is_none_or(|n| !(0..i64::from(shards)).contains(&n)))?;
    let shard = shard.map_or_else(|| "NULL".to_owned(), |n| n.to_string());
    let what = format!(
        "table {} holds rows whose {column} is {shard}, and the shards are 0 to {}: nobody delivers such rows",
        o.outbox(),
        shards.saturating_sub(1)
    );
    Some(StoreError::new(StoreErrorKind::StrayRows, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_match_the_shards() {
        let o = StoreOptions::new("x.db");
        assert_eq!(check_leases(&o, &[0, 1, 2], 3, 0), Ok(None));
        assert!(check_leases(&o, &[0, 1, 2, 3], 3, 0).unwrap().unwrap().contains("shard 3"));
        assert_eq!(check_leases(&o, &[0, 1, 2, 3], 3, 4), Ok(None));
        assert!(check_leases(&o, &[0, 2], 3, 0).unwrap_err().message.contains("no row for shard 1"));
        assert!(check_leases(&o, &[], 1, 0).is_err());
    }

    #[test]
    fn rows_without_a_shard_are_found() {
        let o = StoreOptions::new("x.db");
        assert_eq!(stray(&o, &[], 4), None);
        assert_eq!(stray(&o, &[Some(0), Some(3)], 4), None);
        for (shard, text) in [(Some(4), "is 4"), (Some(-1), "is -1"), (None, "is NULL")] {
            let error = stray(&o, &[Some(0), shard], 4).unwrap();
            assert_eq!(error.kind.code(), "OUT-1016");
            assert!(error.message.contains(text), "{error}");
        }
    }
}
