//! A batch of a slot, in groups: one for each queue, in waves.
//!
//! Groups of one wave share no key and are sent at the same time. A key that goes to several topics has its messages in
//! several groups: each in a later wave than the one before it, so that its order holds.

use std::collections::HashMap;
use std::hash::Hash;

/// Messages of one queue, by their index in the batch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group<Q> {
    pub(super) queue: Q,
    pub(super) indexes: Vec<usize>,
}

/// Puts messages into groups and waves. `of(index)` tells queue and key of a message.
pub(super) fn waves<'k, Q: Clone + Eq + Hash>(
    count: usize,
    mut of: impl FnMut(usize) -> (Q, Option<&'k str>),
) -> Vec<Vec<Group<Q>>> {
    let mut waves: Vec<Vec<Group<Q>>> = Vec::new();
    // Where a key was last, and the last wave and place of each queue.
    let mut keys: HashMap<&str, (usize, Q)> = HashMap::new();
    let mut queues: HashMap<Q, (usize, usize)> = HashMap::new();
    for index in 0..count {
        let (queue, key) = of(index);
        let least = match key.and_then(|key| keys.get(key)) {
            Some((wave, last)) if *last == queue => *wave,
            Some((wave, _)) => wave + 1,
            None => 0,
        };
        let (wave, place) = match queues.get(&queue) {
            // One queue is never in two places of a wave, and never goes back.
            Some((wave, place)) if *wave >= least => (*wave, *place),
            _ => {
                if waves.len() <= least {
                    waves.resize_with(least + 1, Vec::new);
                }
                let place = waves.get(least).map_or(0, Vec::len);
                if let Some(wave) = waves.get_mut(least) {
                    wave.push(Group { queue: queue.clone(), indexes: Vec::new() });
                }
                queues.insert(queue.clone(), (least, place));
                (least, place)
            }
        };
        if let Some(group) = waves.get_mut(wave).and_then(|w| w.get_mut(place)) {
            group.indexes.push(index);
        }
        if let Some(key) = key {
            keys.insert(key, (wave, queue));
        }
    }
    waves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_queue_is_one_group() {
        let waves = waves(4, |i| ("q", Some(["a", "b", "a", "c"][i])));
        assert_eq!(waves, [[Group { queue: "q", indexes: vec![0, 1, 2, 3] }]]);
    }

    #[test]
    fn a_key_in_two_queues_is_in_two_waves() {
        let all = [("q", "a"), ("r", "a"), ("r", "b"), ("q", "a"), ("q", "c")];
        let waves = waves(all.len(), |i| (all[i].0, Some(all[i].1)));
        let words: Vec<Vec<(&str, Vec<usize>)>> =
            waves.into_iter().map(|w| w.into_iter().map(|g| (g.queue, g.indexes)).collect()).collect();
        assert_eq!(words, [vec![("q", vec![0])], vec![("r", vec![1, 2])], vec![("q", vec![3, 4])]]);
    }

    proptest! {
        #[test]
        fn every_message_once_and_keys_in_order(all in prop::collection::vec((0u8..3, prop::option::of(0u8..4)), 0..40)) {
            let names = ["a", "b", "c", "d"];
            let waves = waves(all.len(), |i| (all[i].0, all[i].1.map(|k| names[k as usize])));
            let mut at = vec![None; all.len()];
            for (wave, groups) in waves.iter().enumerate() {
                for group in groups {
                    for (place, index) in group.indexes.iter().enumerate() {
                        prop_assert_eq!(group.queue, all[*index].0);
                        prop_assert!(at[*index].replace((wave, group.queue, place)).is_none());
                    }
                }
                for key in 0..4u8 {
                    let with = groups.iter().filter(|g| g.indexes.iter().any(|i| all[*i].1 == Some(key)));
                    prop_assert!(with.count() <= 1, "a key in two groups of a wave");
                }
            }
            for (earlier, later) in (0..all.len()).flat_map(|i| (i + 1..all.len()).map(move |j| (i, j))) {
                if all[earlier].1.is_some() && all[earlier].1 == all[later].1 {
                    let ((w, q, p), (v, r, o)) = (at[earlier].unwrap(), at[later].unwrap());
                    prop_assert!(w < v || (w == v && q == r && p < o));
                }
            }
        }
    }
}
