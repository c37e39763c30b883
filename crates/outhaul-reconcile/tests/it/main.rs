//! Both sides against sets in memory.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use outhaul_reconcile::{
    Counts, Expectation, Group, MEMORY_MIN_BYTES, Place, Record, Side, Sorted, Verdict, compare, judge,
};
use proptest::prelude::*;

/// A folder of its own, which must be empty while and after it is used.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("reconcile-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sorted(folder: &Folder, memory: usize, records: impl IntoIterator<Item = Record>) -> Sorted {
    let mut side = Side::new(&folder.0, memory);
    records.into_iter().for_each(|r| side.push(&r).unwrap());
    side.finish().unwrap()
}

fn groups(expected: &Sorted, actual: &Sorted, memory: usize) -> Vec<Group> {
    let mut all = Vec::new();
    let each = |g| {
        all.push(g);
        Ok::<_, io::Error>(())
    };
    compare(expected, actual, memory, each).unwrap();
    all
}

/// Ids that begin alike, end in zeros, are parts of each other.
fn id() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "order-00000000[0-9]{1,2}".prop_map(String::into_bytes),
        "[ab]{1,10}".prop_map(String::into_bytes),
        proptest::collection::vec(0u8..3, 1..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every id comes once, in order, with as many records of each side as were pushed.
    #[test]
    fn groups_are_those_of_a_map(
        expected in proptest::collection::vec(id(), 0..200), actual in proptest::collection::vec(id(), 0..200),
    ) {
        let folder = Folder::new();
        let mut model: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
        expected.iter().for_each(|id| model.entry(id).or_default().0 += 1);
        actual.iter().for_each(|id| model.entry(id).or_default().1 += 1);
        let side = |ids: &Vec<Vec<u8>>| sorted(&folder, 0, ids.iter().map(|id| Record::new(id.clone(), None)));
        let found = groups(&side(&expected), &side(&actual), 0);
        let found: Vec<(&[u8], (u64, u64))> =
            found.iter().map(|g| (&*g.id, (g.expected.count, g.actual.count))).collect();
        prop_assert_eq!(found, model.into_iter().collect::<Vec<_>>());
    }
}

/// 200,000 ids a side in 64 KiB: hundreds of runs, merged more than once. Exactly what was left out is missing.
#[test]
fn what_is_missing_is_found_exactly_in_little_memory() {
    let folder = Folder::new();
    let id = |n: u64| format!("{:016x}-{n}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let record = |n: u64| Record { content: vec![7; (n % 40) as usize], ..Record::new(id(n), Some(n as i64)) };
    let expected = sorted(&folder, MEMORY_MIN_BYTES, (0..200_000).map(record));
    assert_eq!(folder.files(), if cfg!(unix) { 0 } else { 1 }, "nobody can find what is under way");
    let kept = (0..200_000).filter(|n| n % 471 != 3).chain(300_000..300_010).chain([5, 5]);
    let actual = sorted(&folder, MEMORY_MIN_BYTES, kept.map(|n| Record::new(id(n), None)));
    let (mut counts, mut missing) = (Counts::default(), Vec::new());
    for group in groups(&expected, &actual, MEMORY_MIN_BYTES) {
        let verdict = judge(&group);
        counts.add(verdict);
        if verdict == Verdict::Missing {
            let [record] = &group.expected.records[..] else { panic!("{group:?}") };
            let n = record.at_ms.unwrap() as u64;
            assert_eq!((record.content.len() as u64, &record.id), (n % 40, &id(n).into_bytes()));
            missing.push(n);
        }
    }
    missing.sort_unstable();
    assert_eq!(missing, (0..200_000).filter(|n| n % 471 == 3).collect::<Vec<_>>());
    let wanted =
        Counts { checked: 200_000, missing: missing.len() as u64, duplicate: 1, stray: 10, ..Counts::default() };
    assert_eq!(counts, wanted);
    drop((expected, actual));
    assert_eq!(folder.files(), 0);
}

#[test]
fn everything_of_a_record_comes_back() {
    let folder = Folder::new();
    let places = [Place::None, Place::Log(u16::MAX, u64::MAX), Place::Line(7, 1), Place::Queue(u32::MAX, 9)];
    let all = [Expectation::Must, Expectation::Pending, Expectation::Parked, Expectation::Known, Expectation::GivenUp];
    let records: Vec<Record> = places
        .into_iter()
        .flat_map(|place| all.map(|expectation| (place, expectation)))
        .enumerate()
        .map(|(n, (place, expectation))| Record {
            id: vec![b'a' + n as u8],
            at_ms: (n % 2 == 0).then_some(-(n as i64)),
            place,
            log: (n % 3 == 0).then_some((3, n as u64)),
            expectation,
            content: vec![n as u8; n * 1_000],
        })
        .collect();
    let side = sorted(&folder, 0, records.clone());
    let found: Vec<Record> =
        groups(&side, &sorted(&folder, 0, []), 0).into_iter().flat_map(|g| g.expected.records).collect();
    assert_eq!(found, records);
}

#[test]
fn what_cannot_be_compared_is_refused_and_nothing_is_taken() {
    let folder = Folder::new();
    let mut side = Side::new(&folder.0, 0);
    for bad in [Vec::new(), vec![b'x'; 1_025]] {
        assert_eq!(side.push(&Record::new(bad, None)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert!(side.is_empty() && side.finish().unwrap().is_empty());
    let mut nowhere = Side::new(&folder.0.join("nowhere"), 0);
    nowhere.push(&Record::new("a", None)).unwrap();
    assert!(nowhere.finish().unwrap_err().to_string().contains("nowhere"));
}

#[test]
fn verdicts() {
    let half = |all: &[Expectation]| {
        let mut half = outhaul_reconcile::Half::default();
        all.iter().for_each(|e| half.add(Record { expectation: *e, ..Record::default() }));
        half
    };
    let judged = |expected: &[Expectation], actual: &[Expectation]| {
        judge(&Group { id: vec![1], expected: half(expected), actual: half(actual) })
    };
    use Expectation::{Echo, GivenUp, Known, Must, Parked, Pending};
    assert_eq!(judged(&[Must], &[Must]), Verdict::Fine);
    assert_eq!(judged(&[Must], &[Known]), Verdict::Fine, "delivered outside of the window");
    assert_eq!(judged(&[Must], &[]), Verdict::Missing);
    assert_eq!(judged(&[Pending, Must], &[]), Verdict::Missing);
    assert_eq!(judged(&[Pending], &[]), Verdict::Pending);
    assert_eq!(judged(&[Parked], &[]), Verdict::Parked);
    assert_eq!(judged(&[GivenUp], &[]), Verdict::GivenUp);
    assert_eq!(judged(&[Must], &[Must, Must]), Verdict::Duplicate);
    assert_eq!(judged(&[Must, Must], &[Must, Must]), Verdict::Fine, "an id that was written twice");
    assert_eq!(judged(&[Must], &[Echo]), Verdict::Fine);
    assert_eq!(judged(&[Must], &[Must, Echo]), Verdict::Fine, "one copy, seen in two places");
    assert_eq!(judged(&[], &[Echo]), Verdict::Aside);
    assert_eq!(judged(&[], &[Must]), Verdict::Stray);
    assert_eq!(judged(&[[Known; 20].as_slice(), &[Must]].concat(), &[]), Verdict::Missing, "however many came before");
    assert_eq!(judged(&[Echo, Must], &[Must, Must]), Verdict::Duplicate, "seen in two places and expected once");
    assert_eq!(judged(&[Pending, Must], &[Must, Must]), Verdict::Duplicate, "moved while it was read");
    assert_eq!(judged(&[Echo], &[Must]), Verdict::Aside);
    assert_eq!(judged(&[], &[Known]), Verdict::Aside);
    assert_eq!(judged(&[Known], &[Must]), Verdict::Aside);
    assert_eq!(judged(&[Known], &[]), Verdict::Aside);
}
