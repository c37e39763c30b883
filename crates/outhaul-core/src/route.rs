//! From a topic to its destinations.

use crate::destination::{DestinationIndex, DestinationSet};

/// One route: a topic pattern and where its messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// A topic, in which `*` stands for any run of characters.
    pub pattern: String,
    /// Destinations.
    pub to: Vec<DestinationIndex>,
}

/// All routes. A topic goes to every destination that any matching route names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Routes from a list.
    pub const fn new(routes: Vec<Route>) -> Self {
        Self(routes)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }

    /// The destinations of a topic. Empty: no route, the message is parked under `-`.
    pub fn destinations(&self, topic: &str) -> DestinationSet {
        self.0.iter().filter(|r| matches(&r.pattern, topic)).flat_map(|r| r.to.iter().copied()).collect()
    }
}

/// Whether a topic matches a pattern in which `*` stands for any run of characters, also none.
pub fn matches(pattern: &str, topic: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|head| topic.strip_prefix(head)) else { return false };
    let Some(tail) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, topic, yes) in [
            ("*", "", true),
            ("*", "order-created", true),
            ("order-*", "order-", true),
            ("order-*", "orders", false),
            ("order", "order", true),
            ("order", "order-x", false),
            ("*-created", "order-created", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, topic), yes, "{pattern} {topic}");
        }
    }
}
