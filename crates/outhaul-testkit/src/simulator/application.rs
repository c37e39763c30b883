//! The model applications: transactions that insert rows, commit out of order, stay open, or roll back.
//!
//! As with a row lock, the transactions of one key follow each other: the next one begins to insert rows of the key only
//! after the one before has ended. So the order of commits of a key is that of its `seq`.

use std::collections::BTreeMap;

use bytes::Bytes;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::{Defect, Row, ShardId};

use super::database::Database;
use super::dice::Dice;
use super::ledger::{Ledger, MessageNumber, Written};
use super::scenario::{ApplicationChances, MS, SinkChances, TOPICS};

/// What an application does next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Begin,
    Insert(u64),
    End(u64),
    Cancel(MessageNumber),
    CancelEnds(MessageNumber),
}

#[derive(Debug)]
struct Transaction {
    keys: Vec<usize>,
    rows: u64,
    rolls_back: bool,
    stays_ms: u64,
}

/// All applications.
#[derive(Debug)]
pub(super) struct Applications {
    chances: ApplicationChances,
    sinks: SinkChances,
    destinations: u8,
    /// The transaction that holds each key.
    holders: Vec<Option<u64>>,
    open: BTreeMap<u64, Transaction>,
    last: u64,
    left: u64,
    gap_us: u64,
}

impl Applications {
    pub(super) fn new(
        dice: &mut Dice,
        chances: ApplicationChances,
        sinks: SinkChances,
        (keys, destinations): (usize, u8),
        active_us: u64,
    ) -> Self {
        let left = dice.between(chances.transactions);
        Self {
            chances,
            sinks,
            destinations,
            holders: vec![None; keys],
            open: BTreeMap::new(),
            last: 0,
            left,
            gap_us: 2 * active_us / left.max(1),
        }
    }

    /// Whether no transaction will begin any more and none is open.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0 && self.open.is_empty()
    }

    /// Some transactions more. Returns the steps that begin them.
    pub(super) fn goes_on(&mut self, dice: &mut Dice, within_us: u64) -> Vec<(u64, Step)> {
        let more = dice.between((0, 4));
        self.left += more;
        (0..more).map(|_| (dice.between((0, within_us)), Step::Begin)).collect()
    }

    /// The database has rolled everything back.
    pub(super) fn thrown_out(&mut self) {
        self.open.clear();
        self.holders.fill(None);
    }

    /// One row in every shard, committed at once.
    pub(super) fn write_everywhere(&mut self, now: u64, dice: &mut Dice, db: &mut Database, ledger: &mut Ledger) {
        self.last += 1;
        db.begin(self.last);
        for shard in 0..db.leases.len() as u16 {
            let row = Row { shard: ShardId(shard), ..self.row(None, now, dice, db, ledger) };
            ledger.insert(row.clone(), None, None, None, None);
            db.insert(self.last, row, None);
        }
        ledger.committed(&db.commit(self.last), now);
    }

    /// Takes a step; what follows is returned with its delay, microseconds. The text is for the trace.
    pub(super) fn step(
        &mut self,
        step: Step,
        now: u64,
        dice: &mut Dice,
        db: &mut Database,
        ledger: &mut Ledger,
    ) -> (Vec<(u64, Step)>, String) {
        match step {
            Step::Begin => self.begin(dice, db),
            Step::Insert(_) | Step::Cancel(_) if db.is_altered_before(&step) => (vec![(2 * MS, step)], String::new()),
            Step::Insert(t) => self.insert(t, now, dice, db, ledger),
            Step::End(t) => (Vec::new(), self.end(t, now, db, ledger)),
            Step::Cancel(number) => {
                let row = &ledger.entries[number].row;
                if !db.hold(now, row.seq, &row.id) {
                    return (Vec::new(), String::new());
                }
                (
                    vec![(dice.between((0, 300 * MS)), Step::CancelEnds(number))],
                    format!("{} is being cancelled", row.id),
                )
            }
            Step::CancelEnds(number) => {
                let (seq, commits) = (ledger.entries[number].row.seq, dice.chance(800));
                if !db.end_hold(seq, commits) {
                    return (Vec::new(), format!("m{number} is not cancelled"));
                }
                ledger.ended_as(&[number], Written::Cancelled);
                (Vec::new(), format!("m{number} is cancelled"))
            }
        }
    }

    fn begin(&mut self, dice: &mut Dice, db: &mut Database) -> (Vec<(u64, Step)>, String) {
        if self.left == 0 {
            return (Vec::new(), String::new());
        }
        self.left -= 1;
        self.last += 1;
        let t = self.last;
        let mut keys = Vec::new();
        for _ in 0..dice.between((1, 2)) {
            let key = dice.place(self.holders.len());
            if self.holders[key].is_none() {
                self.holders[key] = Some(t);
                keys.push(key);
            }
        }
        let rows = dice.between((1, 4));
        let stays_ms = if dice.chance(self.chances.long) { dice.between((300, 3_000)) } else { dice.between((0, 40)) };
        let rolls_back = dice.chance(self.chances.rollback);
        db.begin(t);
        self.open.insert(t, Transaction { keys, rows, rolls_back, stays_ms });
        let mut next = vec![(dice.between((0, 5 * MS)), Step::Insert(t))];
        if self.left > 0 {
            let gap = if dice.chance(300) { 0 } else { dice.between((0, self.gap_us)) };
            next.push((gap, Step::Begin));
        }
        (next, format!("transaction {t} begins"))
    }

    fn insert(
        &mut self,
        t: u64,
        now: u64,
        dice: &mut Dice,
        db: &mut Database,
        ledger: &mut Ledger,
    ) -> (Vec<(u64, Step)>, String) {
        let Some(transaction) = self.open.get_mut(&t) else { return (Vec::new(), String::new()) };
        transaction.rows -= 1;
        let keyless = transaction.keys.is_empty() || dice.chance(150);
        let key = if keyless { None } else { Some(transaction.keys[dice.place(transaction.keys.len())]) };
        let stays_us = transaction.stays_ms * MS;
        let mut next = vec![match transaction.rows {
            0 => (dice.between((0, stays_us)), Step::End(t)),
            _ => (dice.between((0, 4 * MS)), Step::Insert(t)),
        }];
        let due = dice.chance(self.chances.scheduled).then(|| {
            let longest = if dice.chance(300) { 60 * MS } else { 4_000 * MS };
            // Several are due at the same moment.
            now + 1 + dice.between((0, longest)) / (20 * MS) * (20 * MS)
        });
        if let Some(due) = due.filter(|_| dice.chance(self.chances.cancelled)) {
            next.push((dice.between((0, due - now + 20 * MS)), Step::Cancel(ledger.next_number())));
        }
        let row = self.row(key, now, dice, db, ledger);
        let at = |dice: &mut Dice, chance: u32, destinations: u8| {
            dice.chance(chance).then(|| DestinationIndex(dice.place(usize::from(destinations)) as u8))
        };
        let rejected_by = at(dice, self.sinks.rejected, self.destinations);
        let stubborn_at = at(dice, self.sinks.stubborn, self.destinations);
        let said = format!(
            "transaction {t} inserts {} with seq {}, {:?}, {}, due {:?}",
            row.id,
            row.seq,
            row.key,
            row.topic,
            due.map(|due| due / MS)
        );
        ledger.insert(row.clone(), key, due, rejected_by, stubborn_at);
        db.insert(t, row, due);
        (next, said)
    }

    fn row(&self, key: Option<usize>, now: u64, dice: &mut Dice, db: &mut Database, ledger: &Ledger) -> Row {
        let number = ledger.next_number();
        let skip = if dice.chance(self.chances.jump) { dice.between((1, 50)) } else { 0 };
        let longest = if dice.chance(50) { 1_500 } else { 80 };
        let unrouted = dice.chance(self.chances.unrouted);
        let mut row = Row {
            seq: db.draw_seq(skip),
            shard: db.shard_of(key, number),
            id: format!("m{number}"),
            topic: TOPICS[if unrouted { 3 } else { dice.place(3) }].to_owned(),
            key: key.map(|k| format!("k{k}")),
            headers: dice.chance(200).then(|| r#"{"trace":"1"}"#.to_owned()),
            payload: Bytes::from(vec![number as u8; dice.between((0, longest)) as usize]),
            created_at_us: now as i64,
            defect: None,
        };
        if dice.chance(self.chances.defect) {
            match dice.between((0, 3)) {
                0 => row.topic.clear(),
                1 => row.headers = Some("[]".to_owned()),
                2 => row.defect = Some(Defect::NotUtf8("headers")),
                _ => {
                    row.payload = Bytes::new();
                    row.defect = Some(Defect::TooLarge { bytes: 5 << 20, limit: 4 << 20 });
                }
            }
        }
        row
    }

    fn end(&mut self, t: u64, now: u64, db: &mut Database, ledger: &mut Ledger) -> String {
        let Some(transaction) = self.open.remove(&t) else { return String::new() };
        self.holders.iter_mut().filter(|h| **h == Some(t)).for_each(|h| *h = None);
        if transaction.rolls_back {
            ledger.ended_as(&db.roll_back(t), Written::RolledBack);
            format!("transaction {t} rolls back")
        } else {
            let numbers = db.commit(t);
            ledger.committed(&numbers, now);
            format!("transaction {t} commits {numbers:?}")
        }
    }
}
