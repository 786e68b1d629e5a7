//! The verdicts of eight cases as text, on profiles made by scripts/measure/gate-cases.sh.
//!
//! After an intended change: `STACKPROF_BLESS=1 cargo test --test cli eight_cases`, and review the
//! difference; refused under `CI`.

use std::path::Path;

use crate::support::Place;

#[test]
fn eight_cases_have_the_expected_verdicts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("scripts/measure/gate-cases.sh");
    let run = Place::new().shell(&format!("sh '{}'", script.display())).succeeds();
    assert_eq!(run.stderr, "", "{run}");
    let golden = root.join("tests/cli/compare/gate-cases.txt");
    if std::env::var_os("STACKPROF_BLESS").is_some() {
        assert!(
            std::env::var_os("CI").is_none(),
            "STACKPROF_BLESS is not for CI: goldens are read by a person"
        );
        std::fs::write(&golden, &run.stdout).unwrap();
        return;
    }
    let expected =
        std::fs::read_to_string(&golden).unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
    for (line, (now, golden)) in run.stdout.lines().zip(expected.lines()).enumerate() {
        assert_eq!(
            now,
            golden,
            "line {} of gate-cases.txt; STACKPROF_BLESS=1 cargo test --test cli eight_cases",
            line + 1
        );
    }
    assert_eq!(run.stdout.lines().count(), expected.lines().count());
    assert_eq!(run.stdout.matches("\n  unseen   ").count(), 8, "each verdict tells what it could have seen");
}
