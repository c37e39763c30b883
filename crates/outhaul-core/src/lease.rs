//! Who owns which shard: fair, sticky, and decided by the database's clock alone.

use crate::message::{Epoch, ShardId};

/// A lease row as the database showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Shard.
    pub shard: ShardId,
    /// Owner, if any.
    pub owner: Option<String>,
    /// Epoch.
    pub epoch: Epoch,
    /// Whether it had expired when it was read, by the database's clock.
    pub expired: bool,
}

/// A live instance as the database showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRow {
    /// Owner name of the process.
    pub owner: String,
    /// Whether it is draining and takes no shards.
    pub draining: bool,
    /// Its [`Config::digest`](crate::config::Config::digest). Empty: not told.
    pub config: String,
}

/// What the database showed in one lease round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// All lease rows, after this round's renewals, releases and acquisitions.
    pub leases: Vec<LeaseRow>,
    /// Instances whose heartbeat is not older than the ttl, this one included.
    pub instances: Vec<InstanceRow>,
}

/// What to do in the next lease round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePlan {
    /// Shards to try to acquire: free or expired.
    pub acquire: Vec<ShardId>,
    /// Shards to hand over: drain, checkpoint, release.
    pub hand_over: Vec<ShardId>,
}

/// Works out the plan: shards are spread evenly over the instances that are not draining, and as few as possible move.
///
/// With `n` shards and `i` instances each owns `n / i` or one more. An instance above its share hands over what is too
/// much; one below takes what is free. Those that may have one more are the ones first by owner name that have it
/// already, then the others by name: every instance that sees the same rows comes to the same split.
pub fn plan(report: &LeaseReport, me: &str) -> LeasePlan {
    let mut names: Vec<&str> = report.instances.iter().filter(|i| !i.draining).map(|i| i.owner.as_str()).collect();
    if !names.contains(&me) {
        return LeasePlan::default();
    }
    names.sort_unstable();
    names.dedup();
    let owned_by = |owner: &str| -> Vec<ShardId> {
        report.leases.iter().filter(|l| !l.expired && l.owner.as_deref() == Some(owner)).map(|l| l.shard).collect()
    };
    let (each, extra) = (report.leases.len() / names.len(), report.leases.len() % names.len());
    names.sort_by_key(|name| owned_by(name).len() <= each); // stable: those above `each` first, by name
    let share = each + usize::from(names.iter().position(|n| *n == me).is_some_and(|i| i < extra));
    let mine = owned_by(me);
    if mine.len() > share {
        return LeasePlan { acquire: vec![], hand_over: mine.into_iter().skip(share).collect() };
    }
    let free = report.leases.iter().filter(|l| l.owner.is_none() || l.expired).map(|l| l.shard);
    LeasePlan { acquire: free.take(share - mine.len()).collect(), hand_over: vec![] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(owners: &[Option<usize>], instances: usize) -> LeaseReport {
        LeaseReport {
            leases: owners
                .iter()
                .enumerate()
                .map(|(i, o)| LeaseRow {
                    shard: ShardId(i as u16),
                    owner: o.map(|o| format!("i{o}")),
                    epoch: Epoch(1),
                    expired: false,
                })
                .collect(),
            instances: (0..instances)
                .map(|i| InstanceRow { owner: format!("i{i}"), draining: false, config: String::new() })
                .collect(),
        }
    }

    proptest! {
        /// From any split, rounds of all instances in any order end in an even one, and then nothing moves any more.
        #[test]
        fn converges_to_an_even_split(start in proptest::collection::vec(proptest::option::of(0..5usize), 1..40),
                                      instances in 1..5usize, order in proptest::collection::vec(0..5usize, 200)) {
            let mut owners: Vec<Option<usize>> = start.into_iter().map(|o| o.filter(|o| *o < instances)).collect();
            let apply = |me: usize, owners: &mut Vec<Option<usize>>| {
                let p = plan(&report(owners, instances), &format!("i{me}"));
                p.hand_over.iter().for_each(|s| owners[s.0 as usize] = None);
                p.acquire.iter().for_each(|s| owners[s.0 as usize] = Some(me));
                p != LeasePlan::default()
            };
            for me in order.into_iter().map(|o| o % instances).chain((0..instances).cycle().take(instances * 3)) {
                apply(me, &mut owners);
            }
            for me in 0..instances {
                prop_assert!(!apply(me, &mut owners), "still moving: {owners:?}");
                let n = owners.iter().filter(|o| **o == Some(me)).count();
                prop_assert!(n == owners.len() / instances || n == owners.len() / instances + 1);
            }
        }
    }

    #[test]
    fn a_draining_instance_takes_nothing() {
        let mut r = report(&[None, None], 1);
        r.instances[0].draining = true;
        assert_eq!(plan(&r, "i0"), LeasePlan::default());
    }
}
