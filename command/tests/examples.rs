//! The page of `examples/` names every machine there. (`samples.rs` passes each to `stile check`.)

use std::path::Path;

#[test]
fn readme_lists_each_example() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let readme = std::fs::read_to_string(folder.join("README.md")).expect("a README");
    let paths = std::fs::read_dir(folder).expect("the examples").map(|entry| entry.expect("an entry").path());
    let machines: Vec<_> = paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    assert!(!machines.is_empty());
    for path in machines {
        let name = path.file_name().expect("a name").to_string_lossy();
        assert!(readme.contains(&format!("[{name}]({name})")), "{name} is missing in examples/README.md");
    }
}
