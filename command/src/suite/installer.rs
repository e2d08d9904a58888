//! The test of Debian's installer with a file of answers: it asks nothing, and asks a mirror for its components.

use std::fs;

use rustix::process::Signal;
use stile::exit;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};

/// Its name in the suite.
pub const NAME: &str = "boot/debian-installer-answered";

/// Answers up to the mirror. Its address is the emulator's own, where nothing listens, so that the test depends on no other machine.
const ANSWERS: &str = "d-i debian-installer/locale string en_US.UTF-8\n\
    d-i keyboard-configuration/xkb-keymap select us\n\
    d-i netcfg/get_hostname string answered\n\
    d-i netcfg/get_domain string\n\
    d-i mirror/country string manual\n\
    d-i mirror/protocol string http\n\
    d-i mirror/http/hostname string 10.0.2.2:9\n\
    d-i mirror/http/directory string /debian\n\
    d-i mirror/http/proxy string\n";

/// Runs the installer until it has asked that mirror.
pub fn test() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let answers = dir.path().join("answers.cfg");
    fs::write(&answers, ANSWERS).map_err(|error| format!("writing {}: {error}", answers.display()))?;
    let arguments = format!("--kernel debian-installer --preseed {} --net user --exits", answers.display());
    let scenario = Scenario {
        timeout: 1500,
        expect: Expect {
            status: exit::LEFT,
            output: vec!["Configuring the network with DHCP".into(), "Checking the Debian archive mirror".into()],
            absent: vec!["Select a language"],
            notes: vec![NO_DIFFERENCE.into()],
            signal: Some(Signal::INT),
            ..Expect::default()
        },
        // The frontend without windows prints lines of text.
        ..Scenario::new(NAME, &arguments).with("--append", "DEBIAN_FRONTEND=text")
    };
    scenario.run()
}
