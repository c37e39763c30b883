//! The id filter of a chunk: says "certainly not here" or "perhaps here" for an id, in 12 bits an id.

use xxhash_rust::xxh3::xxh3_64;

const BITS_PER_ID: usize = 12;
const PROBES: u64 = 8;

/// Builds the filter of these ids. False positives: about 0.3 %.
pub fn build<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Vec<u8> {
    let bits = (ids.len() * BITS_PER_ID).max(64).next_multiple_of(8);
    let mut filter = vec![0u8; bits / 8];
    for id in ids {
        for bit in bits_of(id, filter.len()) {
            if let Some(byte) = filter.get_mut(bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
    filter
}

/// Whether the id may be among those that the filter was built of. An empty filter says yes to everything.
pub fn may_contain(filter: &[u8], id: &str) -> bool {
    filter.is_empty()
        || bits_of(id, filter.len()).all(|bit| filter.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1))
}

fn bits_of(id: &str, filter_bytes: usize) -> impl Iterator<Item = usize> {
    let hash = xxh3_64(id.as_bytes());
    let (a, b) = (hash & 0xffff_ffff, hash >> 32 | 1);
    let bits = filter_bytes as u64 * 8;
    (0..PROBES).map(move |i| (a.wrapping_add(i.wrapping_mul(b)).wrapping_add(i * i) % bits) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_and_little_else() {
        let ids: Vec<String> = (0..5000).map(|n| format!("id-{n}")).collect();
        let filter = build(ids.iter().map(String::as_str));
        assert!(ids.iter().all(|id| may_contain(&filter, id)));
        let false_hits = (0..100_000).filter(|n| may_contain(&filter, &format!("other-{n}"))).count();
        assert!(false_hits < 1_000, "{false_hits} of 100000");
        assert!(!may_contain(&build([].into_iter()), "x"));
    }
}
