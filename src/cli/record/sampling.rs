//! Attaches or launches, samples until the end, and gives back the profile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::binary::Files;
use crate::cli::args::{Source, Verbosity};
use crate::cli::progress::Progress;
use crate::cli::{demo, system, text};
use crate::clock::{Clock, FakeClock, RealClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::live::Live;
use crate::recording::Profile;
use crate::sampler::{self, Options};
use crate::sources::gdb;
use crate::sources::sim::{SimConfig, SimTarget};
use crate::sources::{Recordable, Role, Sampling, Way};

/// Exit code of a second Ctrl-C: 128 + SIGINT, as shells report it.
const GIVEN_UP: i32 = 130;

/// A profile, and the files of its process.
type Sampled = (Profile, Arc<dyn Files>);

/// How a process is sampled, as far as systems differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// Who takes the samples.
    pub(super) way: Way,
    /// With frames in the kernel.
    pub(super) kernel: bool,
    /// With the processes that it starts; and whether they must be there.
    pub(super) children: bool,
    pub(super) children_needed: bool,
}

/// Samples whatever `source` is. `check_name` is asked as soon as the name of the process and its
/// id are known, before the first sample.
///
/// # Errors
/// One line: attaching refused, or what `check_name` says.
pub(super) fn run(
    source: &Source,
    how: How,
    options: &Options,
    verbosity: Verbosity,
    check_name: &(dyn Fn(&str, u32) -> Result<()> + Sync),
) -> Result<Sampled> {
    let live = Arc::new(Live::default());
    let record = |mut sampled: Recordable<'_>, clock: &dyn Clock| -> Result<Sampled> {
        let observed = sampled.observed();
        // Now: when the profile is there, the target may be gone.
        let files = observed.files();
        let process = observed.process();
        let title = text::process(&process.name, process.pid);
        check_name(&process.name, process.pid)?;
        // All that a command gets, it has by now.
        system::restrict(match (&sampled, source) {
            (_, Source::Sim { .. } | Source::Gdb(_)) => Role::SamplingByStub,
            (Recordable::Stopped(_), _) => Role::SamplingByPtrace,
            (Recordable::Pushed(_), _) => Role::SamplingByKernel,
        });
        let limit = options.duration_ns.map(Duration::from_nanos);
        let progress = Progress::start(Arc::clone(&live), title, limit, verbosity == Verbosity::Quiet);
        let profile = match sampled {
            Recordable::Stopped(target) => sampler::record(target, clock, options, &live),
            Recordable::Pushed(source) => sampler::pushed::record(source, clock, options, &live),
        };
        progress.finish();
        Ok((profile?, files))
    };
    let process = match source {
        Source::Sim { seed } => {
            let clock = FakeClock::default();
            let mut target = SimTarget::new(SimConfig::from_seed(*seed), clock.clone());
            return record(Recordable::Stopped(&mut target), &clock);
        }
        Source::Gdb(stub) => {
            system::prepare();
            end_on_interrupt(&live)?;
            let clock = RealClock::new();
            let mut target =
                gdb::attach(&stub.place, stub.exec.as_deref(), gdb::Begin::Running, clock.clone())?;
            return record(Recordable::Stopped(&mut target), &clock);
        }
        Source::Pid(pid) => system::Process::Running(*pid),
        Source::Launch(command) => system::Process::New(command.clone()),
        Source::Several(several) => system::Process::Several(several.clone()),
        Source::Demo => {
            let program = std::env::current_exe().map_err(|error| {
                Error::new(ErrorKind::System, format!("cannot find my own program: {}", io_text(&error)))
                    .caused_by(error)
            })?;
            system::Process::New(vec![program.into_os_string(), demo::WORKLOAD.into()])
        }
    };
    system::prepare();
    end_on_interrupt(&live)?;
    let How { way, kernel, children, children_needed } = how;
    let &Options { hz, idle, off_cpu, .. } = options;
    let sampling = Sampling { way, hz, idle, off_cpu, kernel, children, children_needed };
    system::with_source(&process, sampling, record)?
}

/// The first Ctrl-C ends the recording and lets the outputs be written, a second one
/// gives up at once. Either way the target runs on.
fn end_on_interrupt(live: &Arc<Live>) -> Result<()> {
    let live = Arc::clone(live);
    let pressed = AtomicU32::new(0);
    let handler = move || {
        if pressed.fetch_add(1, Ordering::Relaxed) > 0 {
            // A stub would leave its target standing.
            gdb::wait_until_it_runs();
            std::process::exit(GIVEN_UP);
        }
        live.ask_to_stop();
    };
    let failed = |why: String| Error::new(ErrorKind::System, format!("cannot watch for Ctrl-C: {why}"));
    // The handler has a thread of its own, which inherits the privileges of the thread that starts it.
    match system::run_unprivileged(|| ctrlc::set_handler(handler)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed(error.to_string()).caused_by(error)),
        Err(error) => Err(failed(io_text(&error)).caused_by(error)),
    }
}
