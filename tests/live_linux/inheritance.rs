//! Environment of a launched command: it inherits everything as without the profiler, and runs as the
//! requested user. `inherited` records it, run directly and through the profiler.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{
    Fixture, copy_program, fixture, is_root, launch, live, not_here, record_by, sources, stackprof,
};

/// Commands that run another one in a different environment, with `inherited` as `%`.
const PRELUDES: [&[&str]; 5] =
    [&[], &["%", "odd"], &["%", "closed", "1"], &["%", "closed", "012"], &["%", "odd", "%", "closed", "02"]];

/// Runs these words after a prelude, and returns the lines written by `inherited`.
fn lines_of(prelude: &[&str], words: &[&str], file: &Path) -> Vec<String> {
    let inherited = fixture("inherited");
    let program = inherited.to_str().unwrap();
    let words: Vec<&str> =
        prelude.iter().chain(words).map(|word| if *word == "%" { program } else { word }).collect();
    let _ = fs::remove_file(file);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Without samples the status differs.
    let status = command.status().unwrap();
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{command:?}: {status}, {error}"));
    text.lines().map(str::to_owned).collect()
}

/// Lines that only one of two lists has, each marked with its side.
fn differences(direct: &[String], profiled: &[String]) -> Vec<String> {
    let only = |side: &str, these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|line| !others.contains(line)).map(|line| format!("{side}: {line}")).collect()
    };
    [only("directly", direct, profiled), only("profiled", profiled, direct)].concat()
}

#[test]
fn a_command_inherits_the_same_as_without_the_profiler() {
    if !live() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let (file, output) = (dir.path().join("inherited"), dir.path().join("out.folded"));
    let (shown, output) = (file.to_str().unwrap(), output.to_str().unwrap());
    let profiler = env!("CARGO_BIN_EXE_stackprof");
    for prelude in PRELUDES {
        let direct = lines_of(prelude, &["%", "show", shown], &file);
        assert!(direct.len() > 100, "{direct:?}");
        for source in sources() {
            let words = [profiler, "-q", "--source", source, "-o", output, "--", "%", "show", shown];
            let profiled = lines_of(prelude, &words, &file);
            assert_eq!(differences(&direct, &profiled), [""; 0], "{prelude:?} {source}");
            assert_eq!(direct.len(), profiled.len(), "{prelude:?} {source}");
        }
    }
    check_stub(&file, output);
    for source in sources() {
        // The signal is sent when the forking thread exits. Some of the profiler's threads exit early.
        let recorded =
            launch(&["--source", source], &fixture("inherited"), &["death".as_ref(), file.as_os_str()]);
        let text = fs::read_to_string(&file).unwrap_or_default();
        recorded.check(text.contains("signal at the parent's death 9"), format!("{source}: it was killed"));
        check_streams(source, output);
    }
}

/// A stub's command has a socket as its standard input and output, and a separate process group.
fn check_stub(file: &Path, output: &str) {
    let script = format!("{} show {}", fixture("inherited").display(), file.display());
    let stub = format!("|{script}");
    let profiler = env!("CARGO_BIN_EXE_stackprof");
    for prelude in [PRELUDES[1], &["%", "closed", "2"]] {
        let direct = lines_of(prelude, &["/bin/sh", "-c", &script], file);
        let words = [profiler, "-q", "--gdb", &stub, "-o", output];
        let profiled = lines_of(prelude, &words, file);
        let is_its_own = |line: &&String| {
            ["descriptor 0 ", "descriptor 1 ", "session "].iter().any(|own| line.contains(own))
        };
        let differences = differences(&direct, &profiled);
        let others = differences.iter().filter(|line| !is_its_own(line)).count();
        assert_eq!(others, 0, "{prelude:?}: {differences:?}");
        assert_eq!(direct.len(), profiled.len(), "{prelude:?}");
    }
}

/// Standard input and output are connected to the command, in both directions and to the end.
fn check_streams(source: &str, output: &str) {
    let mut command = stackprof();
    // It mostly waits; recording waits as well shows that no read is disturbed.
    let idle = if source == "ptrace" { &["--idle"][..] } else { &[] };
    command.args(["-q", "--source", source, "-o", output]).args(idle).args(["--", "cat"]);
    let mut cat = Fixture::run(&mut command);
    for number in 0..100 {
        let line = format!("line {number} \u{1f980} \u{7}");
        cat.tell(&line);
        assert_eq!(cat.next_line(), line);
    }
    let (status, said) = cat.finish();
    assert!(matches!(status.code(), Some(0 | 4)), "{status}");
    assert_eq!(said.len(), 100, "more than was told: {said:?}");
}

/// Copies of the profiler and of `inherited` that everybody may run, and a directory that all may write to.
struct Everybodys(TempDir);

impl Everybodys {
    fn new() -> Everybodys {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        copy_program(&fixture("inherited"), &dir.path().join("inherited"));
        copy_program(env!("CARGO_BIN_EXE_stackprof").as_ref(), &dir.path().join("stackprof"));
        Everybodys(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_command_runs_as_another_user() {
    if !live() {
        return;
    }
    if !is_root() {
        return not_here("only root can run a command as another user");
    }
    let place = Everybodys::new();
    check_refused(&place);
    check_sudo();
    let file = place.path("shown");
    let program = place.path("inherited");
    let [uid, gid] = ["-u", "-g"].map(|which| output_of("id", &[which, "nobody"]));
    let direct = lines_of(&[], &["%", "show", file.to_str().unwrap()], &file);
    for (source, user) in [("ptrace", "nobody"), ("auto", uid.as_str())] {
        let _ = fs::remove_file(&file);
        let words = ["--source", source, "--as", user];
        let recorded = launch(&words, &program, &["show".as_ref(), file.as_os_str()]);
        let text = fs::read_to_string(&file).unwrap_or_default();
        recorded.check(!text.is_empty(), "it did not run");
        assert_eq!(fs::metadata(&file).unwrap().uid().to_string(), uid);
        let status = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("/proc/self/status {key}:")));
            line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        // Real, effective, saved and file system user.
        assert_eq!(status("Uid"), Some([uid.as_str(); 4].join(" ")));
        assert_eq!(status("Gid"), Some([gid.as_str(); 4].join(" ")));
        let mut groups: Vec<String> = status("Groups").unwrap().split(' ').map(str::to_owned).collect();
        let expected = output_of("id", &["-G", "nobody"]);
        let mut expected: Vec<String> = expected.split(' ').map(str::to_owned).collect();
        groups.sort();
        expected.sort();
        assert_eq!(groups, expected);
        for set in ["CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status(set).as_deref(), Some("0000000000000000"), "{set}");
        }
        let variable = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(&format!("variable {name}="))).map(str::to_owned)
        };
        let entry = output_of("getent", &["passwd", "nobody"]);
        let fields: Vec<&str> = entry.split(':').collect();
        assert_eq!(variable("USER").as_deref(), Some("nobody"));
        assert_eq!(variable("LOGNAME").as_deref(), Some("nobody"));
        assert_eq!(variable("HOME").as_deref(), Some(fields[5]));
        assert_eq!(variable("SHELL").as_deref(), Some(fields[6]));
        assert!(variable("PATH").is_some_and(|path| path.contains("/usr/bin")));
        // Root's environment is gone; cargo sets this variable for this test.
        assert_eq!(variable("CARGO_MANIFEST_DIR"), None);
        // Everything else is as for root, except the streams that tests set.
        const OTHERS: [&str; 5] =
            ["/proc/self/status", "variable ", "session keyring", "descriptor 1 ", "descriptor 2 "];
        let is_of_users = |line: &&String| OTHERS.iter().any(|other| line.contains(other));
        let profiled: Vec<String> = text.lines().map(str::to_owned).collect();
        let differences = differences(&direct, &profiled);
        assert_eq!(differences.iter().filter(|line| !is_of_users(line)).count(), 0, "{differences:?}");
    }
}

/// A user that no command can run as.
fn check_refused(place: &Everybodys) {
    let refused = |mut command: Command, arguments: &[&str], expected: &str| {
        command.arg("-q");
        let recorded = record_by(command, arguments).wait();
        recorded.check(recorded.status.code() == Some(1), "the exit code is not 1");
        recorded.check(recorded.stderr == format!("stackprof: {expected}\n"), "other words");
        recorded.check(recorded.files.is_empty(), "it left files");
    };
    let file = place.path("shown");
    let words = |user: &'static str| ["--as", user, "--", "/bin/sh", "-c", ":"];
    for user in ["no_such_user", "4000000000", ""] {
        let expected = format!("--as `{user}`: there is no such user; `getent passwd` lists them");
        refused(stackprof(), &words(user), &expected);
    }
    let expected = "cannot run `/proc/1/environ` as nobody: permission denied; \
                    that user must be able to run it and to enter its folder";
    refused(stackprof(), &["--as", "nobody", "--", "/proc/1/environ"], expected);
    let mut nobodys = Command::new("setpriv");
    nobodys.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(place.path("stackprof"));
    let expected = "--as `root`: only root may run a command as another user; run stackprof by sudo";
    refused(nobodys, &words("root"), expected);
    assert!(!file.exists());
}

/// A command that sudo runs as root is reported.
fn check_sudo() {
    let recorded_by = |variables: &[(&str, &str)], options: &[&str]| {
        let mut command = stackprof();
        command.env_remove("SUDO_UID").env_remove("SUDO_USER").envs(variables.iter().copied());
        let program = fixture("exec");
        let words = [options, &["--", program.to_str().unwrap()]].concat();
        record_by(command, words).wait()
    };
    let told = "  user      the command ran as root; --as daemon runs it as daemon\n";
    let recorded = recorded_by(&[("SUDO_UID", "1"), ("SUDO_USER", "daemon")], &[]);
    recorded.check(recorded.stderr.contains(told), "it is not told");
    for variables in [&[][..], &[("SUDO_UID", "0"), ("SUDO_USER", "root")]] {
        let recorded = recorded_by(variables, &[]);
        recorded.check(!recorded.stderr.contains("  user "), "it is told");
    }
}
