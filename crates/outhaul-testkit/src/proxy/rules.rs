//! What a proxy does with the bytes that it is about to forward.

use super::{Direction, Fate, TrapEnd};

/// The decision on one read of one connection.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All of it goes on.
    Forward,
    /// The first `after` bytes go on, then the connection ends.
    Cut { after: usize, end: TrapEnd },
    /// The bytes from `at` on are the trapped request, or the rest of it.
    Trap { at: usize, fate: Fate, end: TrapEnd },
}

/// The last bytes of earlier reads of a connection, so that a request is found across reads.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    tail: Vec<u8>,
}

#[derive(Debug)]
struct RequestTrap {
    request_end: Vec<u8>,
    fate: Fate,
    end: TrapEnd,
}

/// Every rule that nothing has met yet.
#[derive(Debug, Default)]
pub(super) struct Rules {
    budgets: [Option<(u64, TrapEnd)>; 2],
    traps: Vec<RequestTrap>,
}

impl Rules {
    pub(super) fn set_budget(&mut self, direction: Direction, bytes: u64, end: TrapEnd) {
        self.budgets[direction.index()] = Some((bytes, end));
    }

    pub(super) fn set_trap(&mut self, request_end: &[u8], fate: Fate, end: TrapEnd) {
        assert!(self.traps.len() < 64, "at most 64 traps at once");
        self.traps.push(RequestTrap { request_end: request_end.to_vec(), fate, end });
    }

    /// Decides on the next bytes of a connection. A trap comes before a limit in bytes.
    pub(super) fn judge(&mut self, direction: Direction, matcher: &mut Matcher, bytes: &[u8]) -> Verdict {
        if direction == Direction::ToServer
            && let Some((index, at)) = self.first_trapped(matcher, bytes)
        {
            let RequestTrap { fate, end, .. } = self.traps.swap_remove(index);
            return Verdict::Trap { at, fate, end };
        }
        let budget = &mut self.budgets[direction.index()];
        match budget.take() {
            Some((left, end)) if left < bytes.len() as u64 => Verdict::Cut { after: left as usize, end },
            Some((left, end)) => {
                *budget = Some((left - bytes.len() as u64, end));
                Verdict::Forward
            }
            None => Verdict::Forward,
        }
    }

    /// Which trap is met first, and where in `bytes` its request begins (0 if that was in an earlier read).
    fn first_trapped(&self, matcher: &mut Matcher, bytes: &[u8]) -> Option<(usize, usize)> {
        let Some(longest) = self.traps.iter().map(|trap| trap.request_end.len()).max() else {
            matcher.tail.clear();
            return None;
        };
        let old = matcher.tail.len();
        matcher.tail.extend_from_slice(bytes);
        let seen = &matcher.tail;
        let found = self
            .traps
            .iter()
            .enumerate()
            .filter_map(|(index, trap)| {
                let wanted = &trap.request_end;
                // A match has to end in the new bytes: what lies wholly before them was forwarded long ago.
                let from = (old + 1).saturating_sub(wanted.len());
                let begin = from + seen[from..].windows(wanted.len()).position(|window| window == wanted)?;
                Some((begin + wanted.len(), index, begin.saturating_sub(old)))
            })
            .min()
            .map(|(_, index, at)| (index, at));
        let keep = seen.len().min(longest - 1);
        matcher.tail.drain(..matcher.tail.len() - keep);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::trap;

    fn rules(requests: &[&[u8]]) -> Rules {
        let mut rules = Rules::default();
        for request in requests {
            rules.set_trap(request, Fate::AnswerLost, trap().1);
        }
        rules
    }

    /// Feeds reads until a trap is met; the number of the read and the place in it.
    fn met(rules: &mut Rules, reads: &[&[u8]]) -> Option<(usize, usize)> {
        let mut matcher = Matcher::default();
        reads.iter().enumerate().find_map(|(number, read)| match rules.judge(Direction::ToServer, &mut matcher, read) {
            Verdict::Trap { at, .. } => Some((number, at)),
            _ => None,
        })
    }

    #[test]
    fn a_request_is_found_whole_and_in_pieces() {
        assert_eq!(met(&mut rules(&[b"COMMIT\0"]), &[b"BEGIN\0", b"xCOMMIT\0y"]), Some((1, 1)));
        assert_eq!(met(&mut rules(&[b"COMMIT\0"]), &[b"xCOM", b"MI", b"T\0"]), Some((2, 0)));
        assert_eq!(met(&mut rules(&[b"COMMIT\0"]), &[b"C", b"COMMI", b"COMMIT", b"\0"]), Some((3, 0)));
        assert_eq!(met(&mut rules(&[b"COMMIT\0"]), &[b"COMMIT", b"\x01"]), None);
    }

    #[test]
    fn the_request_that_ends_first_is_taken_and_its_trap_is_spent() {
        let mut rules = rules(&[b"second", b"first"]);
        assert_eq!(met(&mut rules, &[b"..first.second"]), Some((0, 2)));
        assert_eq!(met(&mut rules, &[b"..first.second"]), Some((0, 8)));
        assert_eq!(met(&mut rules, &[b"..first.second"]), None);
    }

    #[test]
    fn what_passed_before_a_trap_was_set_does_not_spring_it() {
        let mut rules = Rules::default();
        let mut matcher = Matcher::default();
        assert!(matches!(rules.judge(Direction::ToServer, &mut matcher, b"COMM"), Verdict::Forward));
        rules.set_trap(b"COMMIT", Fate::RequestLost, trap().1);
        assert!(matches!(rules.judge(Direction::ToServer, &mut matcher, b"IT"), Verdict::Forward));
        assert!(matches!(rules.judge(Direction::ToServer, &mut matcher, b"COMMIT"), Verdict::Trap { at: 0, .. }));
    }

    #[test]
    fn a_limit_in_bytes_cuts_at_the_exact_byte_and_only_once() {
        let mut rules = Rules::default();
        let mut matcher = Matcher::default();
        rules.set_budget(Direction::ToClient, 5, trap().1);
        assert!(matches!(rules.judge(Direction::ToServer, &mut matcher, b"0123456789"), Verdict::Forward));
        assert!(matches!(rules.judge(Direction::ToClient, &mut matcher, b"01234"), Verdict::Forward));
        assert!(matches!(rules.judge(Direction::ToClient, &mut matcher, b"5"), Verdict::Cut { after: 0, .. }));
        assert!(matches!(rules.judge(Direction::ToClient, &mut matcher, b"6789"), Verdict::Forward));
    }
}
