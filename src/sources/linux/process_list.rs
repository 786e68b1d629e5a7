//! The running processes with their names: `/proc/PID/comm`, `exe` and `cmdline` (proc(5)).

use std::fs;
use std::path::Path;

use crate::sources::proc_file;
use crate::sources::process_name::RunningProcess;

/// Most bytes read of a command line; a process can make its own as long as it likes.
const COMMAND_LINE_BYTES_MAX: usize = 4096;

/// All other processes. The path of the executable may be missing for those of other users.
pub fn processes() -> Vec<RunningProcess> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).filter_map(process).collect()
}

/// `None` for a process that has exited.
fn process(pid: u32) -> Option<RunningProcess> {
    let directory = Path::new("/proc").join(pid.to_string());
    let comm = fs::read(directory.join("comm")).ok()?;
    let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
    let exe = fs::read_link(directory.join("exe")).map(|path| path.to_string_lossy().into_owned());
    let command = proc_file::head(directory.join("cmdline"), COMMAND_LINE_BYTES_MAX).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let mut words = command.split('\0');
    let started_as = words.next().unwrap_or_default().to_owned();
    let command = match started_as.is_empty() {
        true => comm.clone(),
        false => command.trim_end_matches('\0').replace('\0', " "),
    };
    let exe = exe.unwrap_or_default();
    // The file was replaced while the program runs.
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
    Some(RunningProcess { pid, names: vec![comm, exe, started_as], command })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_is_not_listed() {
        let own = process(std::process::id()).expect("runs");
        assert!(own.names.iter().all(|name| !name.is_empty()) && !own.command.is_empty(), "{own:?}");
        assert!(processes().iter().all(|process| process.pid != own.pid));
    }
}
