//! The script `stile` in the repository's root.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn help_is_there_before_anything_is_built() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stile");
    let root = tempfile::tempdir().expect("a directory");
    let copy = root.path().join("stile");
    fs::copy(script, &copy).expect("a copy");
    for words in [&["--help"][..], &[]] {
        let output = Command::new(&copy).args(words).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}");
        assert!(text.contains("./stile run") && text.contains("STILE_CACHE") && !text.contains("set -eu"), "{text}");
        assert!(fs::read_dir(root.path()).expect("a directory").count() == 1, "nothing is built");
    }
}
