//! libFuzzer on the target that STILE_FUZZ_TARGET names. `stile fuzz` builds this program, with coverage
//! instrumentation and `cfg(fuzzing)`, and runs it.
#![cfg_attr(fuzzing, no_main)]
#![allow(unexpected_cfgs, reason = "`stile fuzz` sets it")]

#[cfg(fuzzing)]
mod fuzzer {
    use std::path::PathBuf;
    use std::sync::LazyLock;
    use std::{env, fs};

    use stile_fuzz::{Target, corpus, target};

    static TARGET: LazyLock<&Target> = LazyLock::new(|| {
        let name = env::var("STILE_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("STILE_FUZZ_TARGET={name} is no target"))
    });

    libfuzzer_sys::fuzz_target!(
        init: {
            if let Some(directory) = env::var_os("STILE_FUZZ_SEEDS") {
                seed(&PathBuf::from(directory));
            }
        },
        |data: &[u8]| (TARGET.run)(data)
    );

    /// Writes the target's corpus and seeds, a file for each, into a directory that the fuzzer reads.
    fn seed(directory: &std::path::Path) {
        let text = fs::read_to_string(corpus::path(TARGET.name)).unwrap_or_default();
        let kept = corpus::parse(&text).unwrap_or_else(|line| panic!("{}.hex:{line}: not hexadecimal", TARGET.name));
        for (number, input) in kept.into_iter().chain((TARGET.seeds)()).enumerate() {
            fs::write(directory.join(format!("seed-{number}")), input).expect("the directory can be written");
        }
    }
}

/// Prints the names of all targets, without the fuzzer.
#[cfg(not(fuzzing))]
fn main() {
    for target in stile_fuzz::TARGETS {
        eprintln!("{}", target.name);
    }
}
