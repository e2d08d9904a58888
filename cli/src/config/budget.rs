//! `[vm.budget]`: how much a virtual machine may exit.

use super::Mistake;
use super::draft::{Given, VmDraft};
use crate::budget::{Budget, CPU};

/// Most exits per second: more than any CPU takes.
const MOST_EXITS: u64 = 1_000_000_000;

/// Resolves the budget of a virtual machine.
pub fn budget(draft: &VmDraft, mistakes: &mut Vec<Mistake>) -> Budget {
    let (exits, time) = (&draft.exits_per_second, &draft.exit_time);
    let given = exits.as_ref().map(|given| &given.place).or(time.as_ref().map(|given| &given.place));
    if let (true, Some(place)) = (draft.inside, given) {
        let what = "the virtual machines of a Stile in a virtual machine have no budgets";
        mistakes.push(Mistake::new(place.clone(), what).expected("a budget of the outer virtual machine"));
    }
    Budget {
        exits_per_second: exits.as_ref().and_then(|given| exits_per_second(given, mistakes)),
        exit_time: time.as_ref().and_then(|given| exit_time(given, mistakes)),
    }
}

fn exits_per_second(given: &Given<i64>, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let exits = u64::try_from(given.value).ok().filter(|exits| (1..=MOST_EXITS).contains(exits));
    if exits.is_none() {
        let what = format!("{} is out of range for the exits per second", given.value);
        mistakes.push(Mistake::new(given.place.clone(), what).expected(format!("1 to {MOST_EXITS}")));
    }
    exits
}

/// A percentage with up to four decimals.
fn exit_time(given: &Given<String>, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let expected = "a percentage of one CPU from \"0.0001%\" to \"100%\"";
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = digits(whole) && digits(decimals) && whole.len() <= 3 && decimals.len() <= 4;
        is_number.then(|| format!("{whole}{decimals:0<4}").parse::<u64>().ok()).flatten()
    };
    let share = given.value.strip_suffix('%').and_then(number).filter(|share| (1..=CPU).contains(share));
    if share.is_none() {
        let what = format!("\"{}\" is not a percentage of one CPU", given.value);
        let mistake = Mistake::new(given.place.clone(), what).expected(expected);
        mistakes.push(match number(&given.value) {
            Some(1..=CPU) => mistake.similar(format!("{}%", given.value)),
            _ => mistake,
        });
    }
    share
}

#[cfg(test)]
mod tests {
    use super::super::Place;
    use super::*;

    #[test]
    fn shares_are_read_exactly() {
        let read = |text: &str| {
            let mut mistakes = Vec::new();
            let share = exit_time(&Given::new(text.into(), Place::Nowhere), &mut mistakes);
            assert_eq!(share.is_none(), !mistakes.is_empty());
            share.ok_or_else(|| mistakes[0].message())
        };
        assert_eq!((read("1%"), read("0.5%"), read("100%"), read("0.0001%")), (Ok(10_000), Ok(5_000), Ok(CPU), Ok(1)));
        for wrong in ["", "%", "1", "0%", "101%", "1.%", ".5%", "0.00001%", "-1%", "+1%", "1e1%", "1 %", "99999%"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read("1").unwrap_err().contains("did you mean \"1%\""));
    }
}
