//! Selection of a Debian mirror: the one in this machine's apt sources.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::exit;

/// The variable that names a mirror, for machines whose apt sources name none.
pub const VARIABLE: &str = "STILE_DEBIAN_MIRROR";

/// The mirror's address, without a trailing slash.
///
/// # Errors
/// apt's sources name no Debian mirror and [`VARIABLE`] is not set.
pub fn mirror() -> Result<String> {
    if let Some(mirror) = env::var(VARIABLE).ok().filter(|value| !value.is_empty()) {
        return Ok(mirror.trim_end_matches('/').to_owned());
    }
    pick(&targets()?, host_is_debian()).ok_or_else(|| {
        exit::lacking(format!("the apt sources of this machine name no Debian mirror: set {VARIABLE} to the address of one"))
    })
}

/// The address of Debian's security archive, if this machine's apt sources name one.
pub fn security_mirror() -> Option<String> {
    pick_security(&targets().ok()?, host_is_debian())
}

/// Site, release, origin and label of each index of apt's sources, separated by bars.
fn targets() -> Result<String> {
    Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE)|$(RELEASE)|$(ORIGIN)|$(LABEL)", "Created-By: Packages"])
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .map_err(|error| exit::lacking(format!("apt-get can't be run ({error}): Stile fetches Debian's packages with it")))
}

fn host_is_debian() -> bool {
    std::fs::read_to_string("/etc/os-release").is_ok_and(|text| text.lines().any(|line| matches!(line, "ID=debian" | "ID=\"debian\"")))
}

/// The first site that is Debian's main archive. Before the first `apt-get update` origin and label are
/// empty: then the sources of a Debian machine are assumed to be Debian's own.
fn pick(targets: &str, host_is_debian: bool) -> Option<String> {
    let targets: Vec<[&str; 4]> = targets.lines().filter_map(|line| line.split('|').collect::<Vec<_>>().try_into().ok()).collect();
    let main_archive = |release: &str| !release.contains("security");
    let known = targets
        .iter()
        .find(|[_, release, origin, label]| *origin == "Debian" && (*label == "Debian" || label.is_empty()) && main_archive(release));
    let likely = || {
        targets
            .iter()
            .find(|[site, release, origin, _]| host_is_debian && origin.is_empty() && main_archive(release) && site.contains("debian"))
    };
    known.or_else(likely).map(|[site, ..]| site.trim_end_matches('/').to_owned())
}

/// The first site with a suite of security updates. Origin and label as for [`pick`].
fn pick_security(targets: &str, host_is_debian: bool) -> Option<String> {
    let targets = targets.lines().filter_map(|line| <[&str; 4]>::try_from(line.split('|').collect::<Vec<_>>()).ok());
    targets
        .filter(|[_, release, origin, label]| match *origin {
            "Debian" => *label == "Debian-Security",
            "" => host_is_debian && release.ends_with("-security"),
            _ => false,
        })
        .map(|[site, ..]| site.trim_end_matches('/').to_owned())
        .next()
}

#[cfg(test)]
mod tests {
    use super::{pick, pick_security};

    #[test]
    fn the_main_archive_is_distinguished() {
        let targets = "https://tools.example|stable|Tools|Tools\n\
            http://mirror.example/debian-security|bookworm-security|Debian|Debian-Security\n\
            http://mirror.example/debian|bookworm|Debian|Debian\n";
        assert_eq!(pick(targets, true).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(pick(targets, false).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(pick_security(targets, false).as_deref(), Some("http://mirror.example/debian-security"));
    }

    #[test]
    fn a_machine_that_never_updated_still_names_its_mirror() {
        let targets = "http://mirror.example/debian-security|bookworm-security||\nhttp://mirror.example/debian/|bookworm||\n";
        assert_eq!(pick(targets, true).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(pick(targets, false), None);
    }

    #[test]
    fn other_distributions_name_no_debian_mirror() {
        assert_eq!(pick("http://mirror.example/ubuntu|noble|Ubuntu|Ubuntu\n", false), None);
        assert_eq!(pick("", true), None);
        assert_eq!(pick_security("http://mirror.example/ubuntu|noble-security|Ubuntu|Ubuntu\n", false), None);
        assert_eq!(pick_security("http://mirror.example/s|trixie-security||\n", true).as_deref(), Some("http://mirror.example/s"));
    }
}
