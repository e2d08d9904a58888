//! Guests that start from UEFI firmware.

use super::disk::Contents;
use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// What UEFI's shell does at each start: variables outlast a reset.
const SCRIPT: &str = "if \"%stile%\" eq \"kept\" then\n  echo the variable is %stile%\n  reset -s\nendif\nset stile kept\nreset\n";

/// All of them.
pub fn all() -> Vec<Scenario> {
    let arguments = "--kernel debian-edk2 --memory 256M --vcpus 2 --disk {disk},format=raw --exits";
    let output = ["UEFI Interactive Shell", "set stile kept", "UEFI Interactive Shell", "the variable is kept"];
    let notes = ["PSCI SYSTEM_RESET           1 ", "PSCI SYSTEM_OFF             1 ", "flash ", NO_DIFFERENCE];
    let expect = Expect { output: output.map(String::from).to_vec(), notes: notes.map(String::from).to_vec(), ..Expect::default() };
    vec![Scenario { disk: Some(Contents::Script(SCRIPT)), timeout: 400, expect, ..Scenario::new("firmware/variables", arguments) }]
}
