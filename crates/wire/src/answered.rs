//! Answers that a repeated request gets again, so that it has no second effect.

use heapless::Deque;

use crate::Answer;

/// Number of answers to keep: more than are asked for while a request is repeated.
const KEPT: usize = 64;

/// The last answers to [`Command::Control`](crate::Command::Control), by tag.
#[derive(Debug, Default)]
pub struct Answered(Deque<(u32, Answer), KEPT>);

impl Answered {
    /// None so far.
    #[must_use]
    pub const fn new() -> Self {
        Self(Deque::new())
    }

    /// The answer to the request with this tag; `None` if it is new.
    #[must_use]
    pub fn answer_to(&self, tag: u32) -> Option<Answer> {
        self.0.iter().find(|(of, _)| *of == tag).map(|&(_, answer)| answer)
    }

    /// Adds the answer to a new request. The oldest one is forgotten if necessary.
    pub fn add(&mut self, tag: u32, answer: Answer) {
        if self.0.is_full() {
            self.0.pop_front();
        }
        let _ = self.0.push_back((tag, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_keep_their_answers() {
        let mut answered = Answered::new();
        assert_eq!(answered.answer_to(0), None);
        for tag in 0..3 * KEPT as u32 {
            let answer = if tag % 2 == 0 { Answer::Done } else { Answer::WrongState };
            answered.add(tag, answer);
            let oldest = tag.saturating_sub(KEPT as u32 - 1);
            assert_eq!((answered.answer_to(tag), answered.answer_to(oldest).is_some()), (Some(answer), true));
            assert_eq!(oldest.checked_sub(1).and_then(|before| answered.answer_to(before)), None);
        }
    }
}
