//! Transactional messages, small enough to look at every run: one transaction, the application that sends it, another
//! process of its producer group, a broker, a database and a relay. Requests get lost and overtake each other, the
//! application is killed, the database is away, the broker asks, gives up, and forgets what it had confirmed.
//!
//! [`search`] walks through all states breadth-first, so that what it finds is a shortest run. The judgement and the
//! fall-back are the ones that are shipped (`outhaul_core::transaction`); what is around them is made as the library, the
//! stores and the relay make it. A [`Mistake`] makes one thing wrong, and must be found.

use std::collections::{HashMap, HashSet, VecDeque};

use outhaul_core::transaction::{Answer, Finding, TransactionState, answer, falls_back};

/// Questions that the broker asks before it gives up.
const CHECKS: u8 = 2;
/// Requests and answers that get lost.
const LOSSES: u8 = 2;
/// A bound on the search: far above what there is.
const STATES_MAX: usize = 5_000_000;

/// What is made wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The article's listener: a row is COMMIT, no row is ROLLBACK, and nothing keeps the row from coming later.
    RowOrRollback,
    /// A tombstone that is found is taken for a row.
    TombstoneIsCommit,
    /// No answer of the database is ROLLBACK.
    NoAnswerIsRollback,
    /// A transaction that is still open is ROLLBACK.
    OpenIsRollback,
    /// A process of another database answers as well.
    AnotherDatabaseAnswers,
    /// The application goes on after a duplicate key, and commits.
    DuplicateKeyIgnored,
    /// After a COMMIT whose answer was lost the application says ROLLBACK.
    RollbackAfterUnknownCommit,
    /// The relay sends what it once read as committed.
    FallBackWithoutCompare,
    /// The relay counts the age from the start of the transaction.
    AgeFromStart,
    /// Rows go while the broker can still ask.
    PrunedEarly,
    /// There is no fall-back.
    NoFallBack,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::RowOrRollback,
        Self::TombstoneIsCommit,
        Self::NoAnswerIsRollback,
        Self::OpenIsRollback,
        Self::AnotherDatabaseAnswers,
        Self::DuplicateKeyIgnored,
        Self::RollbackAfterUnknownCommit,
        Self::FallBackWithoutCompare,
        Self::AgeFromStart,
        Self::PrunedEarly,
        Self::NoFallBack,
    ];
}

/// How far the sending application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sender {
    Starting,
    /// The half is stored.
    HasHalf,
    /// In its transaction, the row is inserted (or should have been).
    Working,
    /// COMMIT was answered.
    Committed,
    Done,
    Killed,
}

/// The business transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Business {
    None,
    /// Open; whether it holds the row.
    Open(bool),
    Committed,
    RolledBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Half {
    None,
    Open,
    Over,
    GivenUp,
}

/// Something on its way. Each gets there or gets lost, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Packet {
    /// To the broker.
    End(Answer),
    /// To the sender, or to the other process of its group.
    Check(Member),
    /// The broker has confirmed a commit.
    Confirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Member {
    Sender,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    sender: Sender,
    business: Business,
    row: Option<TransactionState>,
    seen: bool,
    old: bool,
    /// What the mistaken relay has read and not written.
    read: bool,
    in_outbox: bool,
    half: Half,
    deliveries: u8,
    told_rollback: bool,
    packets: Vec<Packet>,
    checks: u8,
    losses: u8,
    killed: bool,
    away: bool,
    forgot: bool,
    unknown_commit: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// States that were looked at.
    pub states: usize,
    /// States in which nothing can happen any more.
    pub ends: usize,
    /// The first thing that must not be, with the run that leads to it.
    pub wrong: Option<(&'static str, Vec<String>)>,
}

type Next = (String, World, Option<&'static str>);

impl World {
    fn new() -> Self {
        Self {
            sender: Sender::Starting,
            business: Business::None,
            row: None,
            seen: false,
            old: false,
            read: false,
            in_outbox: false,
            half: Half::None,
            deliveries: 0,
            told_rollback: false,
            packets: Vec::new(),
            checks: CHECKS,
            losses: LOSSES,
            killed: false,
            away: false,
            forgot: false,
            unknown_commit: false,
        }
    }

    fn send(&mut self, packet: Packet) {
        self.packets.push(packet);
        self.packets.sort_unstable();
    }

    /// What holds in every state.
    fn wrong(&self) -> Option<&'static str> {
        let committed = self.business == Business::Committed;
        let sent = self.row == Some(TransactionState::Sent);
        if !committed && (self.deliveries > 0 || self.in_outbox) {
            return Some("something was delivered that had not committed");
        }
        if committed && self.told_rollback && !sent {
            return Some("ROLLBACK was said of a transaction that committed");
        }
        let faultless = self.losses == LOSSES && self.checks == CHECKS && !self.killed && !self.forgot;
        let twice = self.deliveries + u8::from(self.in_outbox) > 1;
        (faultless && !self.unknown_commit && twice).then_some("delivered twice although nothing went wrong")
    }

    /// What holds when nothing can happen any more. A broker that forgets a commit which it had confirmed, and then does
    /// not ask, has lost a message: nobody else can know. (What it forgets and asks about is delivered.)
    fn wrong_at_end(&self) -> Option<&'static str> {
        let undelivered =
            self.business == Business::Committed && self.deliveries == 0 && !self.in_outbox && !self.forgot;
        undelivered.then_some("a message that committed was never delivered")
    }

    fn step(&self, what: impl Into<String>, change: impl FnOnce(&mut Self)) -> Next {
        let mut next = self.clone();
        change(&mut next);
        let wrong = next.wrong();
        (what.into(), next, wrong)
    }

    /// Everything that can happen next.
    fn nexts(&self, mistake: Option<Mistake>) -> Vec<Next> {
        let mut nexts = Vec::new();
        self.sender_steps(mistake, &mut nexts);
        self.broker_steps(&mut nexts);
        self.packet_steps(mistake, &mut nexts);
        self.relay_steps(mistake, &mut nexts);
        nexts
    }

    fn sender_steps(&self, mistake: Option<Mistake>, nexts: &mut Vec<Next>) {
        match self.sender {
            Sender::Starting => {
                nexts.push(self.step("half stored", |w| (w.sender, w.half) = (Sender::HasHalf, Half::Open)));
                if self.losses > 0 {
                    nexts.push(self.step("half stored, its answer lost: not sent, says the application", |w| {
                        (w.sender, w.half) = (Sender::Done, Half::Open);
                        w.losses -= 1;
                    }));
                }
            }
            Sender::HasHalf if self.row.is_some() => {
                let ignored = mistake == Some(Mistake::DuplicateKeyIgnored);
                nexts.push(self.step("row not inserted: duplicate key", |w| {
                    (w.sender, w.business) = match ignored {
                        true => (Sender::Working, Business::Open(false)),
                        false => (Sender::Done, Business::RolledBack),
                    };
                }));
            }
            Sender::HasHalf => nexts.push(self.step("row inserted", |w| {
                (w.sender, w.business) = (Sender::Working, Business::Open(true));
            })),
            Sender::Working => {
                let commit = |w: &mut Self| {
                    if w.business == Business::Open(true) {
                        w.row = Some(TransactionState::Committed);
                    }
                    w.business = Business::Committed;
                };
                nexts.push(self.step("COMMIT", |w| {
                    commit(w);
                    w.sender = Sender::Committed;
                }));
                nexts.push(self.step("COMMIT, its answer lost", |w| {
                    commit(w);
                    (w.sender, w.unknown_commit) = (Sender::Done, true);
                    if mistake == Some(Mistake::RollbackAfterUnknownCommit) {
                        w.say(Answer::Rollback);
                    }
                }));
                nexts.push(self.step("business rolled back", |w| {
                    (w.sender, w.business) = (Sender::Done, Business::RolledBack);
                    w.say(Answer::Rollback);
                }));
            }
            Sender::Committed => nexts.push(self.step("END_TRANSACTION(commit) sent", |w| {
                w.sender = Sender::Done;
                w.say(Answer::Commit);
            })),
            Sender::Done | Sender::Killed => {}
        }
        if !self.killed && !matches!(self.sender, Sender::Done) {
            nexts.push(self.step("application killed", |w| {
                w.killed = true;
                w.sender = Sender::Killed;
                if matches!(w.business, Business::Open(_)) {
                    w.business = Business::RolledBack;
                }
                w.packets.retain(|p| !matches!(p, Packet::Check(Member::Sender)));
            }));
        }
    }

    fn say(&mut self, said: Answer) {
        self.told_rollback |= said == Answer::Rollback;
        if said != Answer::Unknown {
            self.send(Packet::End(said));
        }
    }

    fn broker_steps(&self, nexts: &mut Vec<Next>) {
        if self.half == Half::Open {
            let asked = [Member::Sender, Member::Other];
            for member in
                asked.into_iter().filter(|m| self.checks > 0 && (*m == Member::Other || self.sender != Sender::Killed))
            {
                nexts.push(self.step(format!("check-back to {member:?}"), |w| {
                    w.checks -= 1;
                    w.send(Packet::Check(member));
                }));
            }
            if self.checks == 0 {
                nexts.push(self.step("broker gives up", |w| w.half = Half::GivenUp));
            }
        }
        if self.half == Half::Over && self.deliveries > 0 && !self.forgot {
            nexts.push(self.step("broker forgets the commit it had confirmed", |w| {
                (w.half, w.forgot) = (Half::Open, true);
                w.deliveries -= 1;
            }));
        }
    }

    fn packet_steps(&self, mistake: Option<Mistake>, nexts: &mut Vec<Next>) {
        let mut packets = self.packets.clone();
        packets.dedup();
        for packet in packets {
            let arrives = |w: &mut Self| {
                if let Some(at) = w.packets.iter().position(|p| *p == packet) {
                    w.packets.remove(at);
                }
            };
            if self.losses > 0 {
                nexts.push(self.step(format!("{packet:?} lost"), |w| {
                    arrives(w);
                    w.losses -= 1;
                }));
            }
            match packet {
                // A broker stores a commit each time, whatever it was told before.
                Packet::End(Answer::Commit) => nexts.push(self.step("commit reaches the broker", |w| {
                    arrives(w);
                    w.deliveries = (w.deliveries + 1).min(3);
                    w.half = if w.half == Half::GivenUp { Half::GivenUp } else { Half::Over };
                    w.send(Packet::Confirmed);
                })),
                Packet::End(_) => nexts.push(self.step("rollback reaches the broker", |w| {
                    arrives(w);
                    w.half = if w.half == Half::Open { Half::Over } else { w.half };
                })),
                Packet::Confirmed => nexts.push(self.step("row ended", |w| {
                    arrives(w);
                    if w.row.is_some_and(|state| state.may_become(TransactionState::Ended)) {
                        w.row = Some(TransactionState::Ended);
                    }
                })),
                Packet::Check(member) => self.judgements(member, mistake, nexts, arrives),
            }
        }
    }

    fn judgements(&self, member: Member, mistake: Option<Mistake>, nexts: &mut Vec<Next>, arrives: impl Fn(&mut Self)) {
        if member == Member::Other && mistake == Some(Mistake::AnotherDatabaseAnswers) {
            // Its tombstone stands in its own database, where it keeps nobody out.
            nexts.push(self.step("another database judges: no row", |w| {
                arrives(w);
                w.say(answer(Some(Finding::Buried)));
            }));
            return;
        }
        if !self.away {
            nexts.push(self.step(format!("{member:?} judges without its database"), |w| {
                arrives(w);
                w.away = true;
                w.say(if mistake == Some(Mistake::NoAnswerIsRollback) { Answer::Rollback } else { answer(None) });
            }));
        }
        nexts.push(self.step(format!("{member:?} judges"), |w| {
            arrives(w);
            let said = w.judge(mistake);
            w.say(said);
        }));
    }

    fn judge(&mut self, mistake: Option<Mistake>) -> Answer {
        let open = self.business == Business::Open(true);
        match (mistake, self.row) {
            (Some(Mistake::RowOrRollback), None) => return Answer::Rollback,
            (Some(Mistake::TombstoneIsCommit), Some(_)) => return Answer::Commit,
            (Some(Mistake::OpenIsRollback), None) if open => return Answer::Rollback,
            _ => {}
        }
        let finding = match self.row {
            Some(state) => Finding::Row(state),
            None if open => Finding::Open,
            None => {
                self.row = Some(TransactionState::RolledBack);
                Finding::Buried
            }
        };
        answer(Some(finding))
    }

    fn relay_steps(&self, mistake: Option<Mistake>, nexts: &mut Vec<Next>) {
        let from_start = mistake == Some(Mistake::AgeFromStart);
        let committed = self.row == Some(TransactionState::Committed);
        if committed && !self.seen {
            nexts.push(self.step("relay sees the row", |w| w.seen = true));
        }
        let began =
            if from_start { matches!(self.business, Business::Open(_)) || self.row.is_some() } else { self.seen };
        // The delay is longer than ending a transaction takes when nothing goes wrong.
        let ending = self.sender == Sender::Committed || !self.packets.is_empty();
        if began && !self.old && !ending {
            nexts.push(self.step("the delay passes", |w| w.old = true));
        }
        let age = (if from_start { self.old } else { self.seen }).then_some(u64::from(self.old));
        let due = self.row.is_some_and(|state| falls_back(state, age, 1)) && mistake != Some(Mistake::NoFallBack);
        if mistake == Some(Mistake::FallBackWithoutCompare) {
            if due && !self.read {
                nexts.push(self.step("relay reads the row", |w| w.read = true));
            }
            if self.read && !self.in_outbox {
                let (what, next, wrong) = self.step("relay sends what it read", |w| {
                    w.in_outbox = true;
                    w.row = Some(TransactionState::Sent);
                });
                let ended = self.row == Some(TransactionState::Ended);
                nexts.push((what, next, wrong.or(ended.then_some("the relay sent what the broker had confirmed"))));
            }
        } else if due {
            nexts.push(self.step("row goes into the outbox", |w| {
                w.in_outbox = true;
                w.row = Some(TransactionState::Sent);
            }));
        }
        let can_ask = self.half == Half::Open || (self.half == Half::Over && !self.forgot && self.deliveries > 0);
        let early = mistake == Some(Mistake::PrunedEarly);
        if self.row == Some(TransactionState::Ended)
            && self.sender != Sender::HasHalf
            && (early || (!can_ask && self.packets.is_empty()))
        {
            nexts.push(self.step("row pruned", |w| w.row = None));
        }
    }
}

/// Walks through all runs, shortest first, up to the first in which something is wrong.
///
/// # Panics
/// There are far more states than there can be.
pub fn search(mistake: Option<Mistake>) -> Found {
    let start = World::new();
    let mut came: HashMap<World, Option<(World, String)>> = HashMap::from([(start.clone(), None)]);
    let mut queue = VecDeque::from([start]);
    let mut looked = HashSet::new();
    let mut ends = 0;
    while let Some(world) = queue.pop_front() {
        if !looked.insert(world.clone()) {
            continue;
        }
        assert!(looked.len() < STATES_MAX, "too many states");
        let nexts = world.nexts(mistake);
        if nexts.is_empty() {
            ends += 1;
            if let Some(wrong) = world.wrong_at_end() {
                return Found { states: looked.len(), ends, wrong: Some((wrong, run_to(&came, &world))) };
            }
        }
        for (what, next, wrong) in nexts {
            if let Some(wrong) = wrong {
                let mut run = run_to(&came, &world);
                run.push(what);
                return Found { states: looked.len(), ends, wrong: Some((wrong, run)) };
            }
            if !came.contains_key(&next) {
                came.insert(next.clone(), Some((world.clone(), what)));
                queue.push_back(next);
            }
        }
    }
    Found { states: looked.len(), ends, wrong: None }
}

fn run_to(came: &HashMap<World, Option<(World, String)>>, end: &World) -> Vec<String> {
    let mut run = Vec::new();
    let mut at = end;
    while let Some(Some((before, what))) = came.get(at) {
        run.push(what.clone());
        at = before;
    }
    run.reverse();
    run
}
