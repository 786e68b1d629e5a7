//! The program: runs the command line, prints one error line, and turns it into an exit code.

use std::process::ExitCode;

use stackprof::cli;

fn main() -> ExitCode {
    ExitCode::from(cli::run(std::env::args_os().skip(1)))
}
