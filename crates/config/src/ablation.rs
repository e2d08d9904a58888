//! The words for ablations ([`Ablation`]).

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use stile_blob::Ablation;

/// A switch of [`Ablation`].
type Switch = fn(&mut Ablation) -> &mut bool;

/// Every switch, and its name in the configuration.
const SWITCHES: [(&str, Switch); 5] = [
    ("state", |ablation| &mut ablation.state),
    ("fp", |ablation| &mut ablation.fp),
    ("timer", |ablation| &mut ablation.timer),
    ("lists", |ablation| &mut ablation.lists),
    ("traps", |ablation| &mut ablation.traps),
];

/// The names of the switches.
pub fn names() -> impl Iterator<Item = &'static str> {
    SWITCHES.into_iter().map(|(name, _)| name)
}

/// The words, as a sentence lists them.
pub fn list() -> String {
    names().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Enables an ablation. Returns whether the word is known.
pub fn switch_on(ablation: &mut Ablation, name: &str) -> bool {
    let switch = SWITCHES.into_iter().find(|(known, _)| *known == name);
    if let Some((_, switch)) = switch {
        *switch(ablation) = true;
    }
    switch.is_some()
}

/// The words of the enabled ablations; `nothing` if there are none.
pub fn describe(ablation: &Ablation) -> String {
    let mut ablation = *ablation;
    let on: Vec<_> = SWITCHES.into_iter().filter_map(|(name, switch)| switch(&mut ablation).then_some(name)).collect();
    if on.is_empty() { "nothing".to_owned() } else { on.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_a_switch_of_its_own() {
        for name in names() {
            let mut ablation = Ablation::default();
            assert!(switch_on(&mut ablation, name));
            assert_eq!(describe(&ablation), name);
        }
        assert!(!switch_on(&mut Ablation::default(), "vectors"));
        assert_eq!(describe(&Ablation::default()), "nothing");
    }
}
