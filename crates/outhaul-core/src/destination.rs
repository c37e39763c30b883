//! Names of destinations, and sets of them.

use std::fmt;

/// The most destinations that one relay serves. [`DestinationSet`] is one machine word because of it.
pub const MAX_DESTINATIONS: usize = 64;

/// The destination under which messages without a route are parked.
pub const NO_ROUTE: &str = "-";

/// A destination's place in the relay's list of destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationIndex(pub u8);

/// A set of destinations of one relay, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DestinationSet(u64);

impl DestinationSet {
    /// The set with nothing in it.
    pub const EMPTY: Self = Self(0);

    /// Adds a destination. An index of [`MAX_DESTINATIONS`] or more is ignored; configuration refuses it before.
    pub fn insert(&mut self, index: DestinationIndex) {
        self.0 |= 1u64.checked_shl(u32::from(index.0)).unwrap_or(0);
    }

    /// Whether the destination is in the set.
    pub fn contains(self, index: DestinationIndex) -> bool {
        self.0 & 1u64.checked_shl(u32::from(index.0)).unwrap_or(0) != 0
    }

    /// Whether nothing is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The destinations in the set, by rising index.
    pub fn iter(self) -> impl Iterator<Item = DestinationIndex> {
        (0..64u8).filter(move |i| self.0 >> i & 1 == 1).map(DestinationIndex)
    }
}

impl FromIterator<DestinationIndex> for DestinationSet {
    fn from_iter<T: IntoIterator<Item = DestinationIndex>>(iter: T) -> Self {
        let mut set = Self::EMPTY;
        iter.into_iter().for_each(|i| set.insert(i));
        set
    }
}

impl fmt::Display for DestinationIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
