//! How the profiler responds to SIGINT, SIGTERM and SIGHUP, by its phase.
//!
//! A leaf without system calls and without time: signals and phases in, answers out. `sources::signals` receives
//! the signals and enforces the time limit of [`Interruption::limit`].

/// A signal that requests the profiler to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    Hangup,
}

/// The current activity of the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No recording yet, or none at all: it attaches, starts a command, or reads its inputs.
    Start,
    /// A command was released: it may run already and is sampled, or wait for the file system in its exec.
    Launch,
    /// Recording.
    Recording,
    /// Symbolicating and writing what was recorded.
    Output,
    /// Waiting for the reader of a pipe, which may never come.
    Reader,
    /// Serving what was recorded, until a signal.
    Server,
}

/// The response to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The process ends by this signal immediately.
    End(Signal),
    /// The recording ends; it is symbolicated and written.
    EndRecording,
    /// The launched command gets the signal.
    Forward(Signal),
    /// The output must be complete within a short time.
    Finish,
}

/// The phase, and the signals received so far.
#[derive(Debug)]
pub struct Interruption {
    phase: Phase,
    /// A launched command gets the first SIGTERM or SIGHUP.
    forwards: bool,
    forwarded: bool,
    /// A signal was handled: the next one ends the process.
    ending: bool,
    /// The process ends by this signal unless it finishes within a short time.
    limit: Option<Signal>,
    /// The signal that ended the recording, directly or through the command.
    ended_by: Option<Signal>,
    /// The limit applies only to the wait for a reader.
    is_for_reader: bool,
}

impl Interruption {
    /// The state at the start of a command.
    #[must_use]
    pub const fn new() -> Interruption {
        Interruption {
            phase: Phase::Start,
            forwards: false,
            forwarded: false,
            ending: false,
            limit: None,
            ended_by: None,
            is_for_reader: false,
        }
    }

    /// Lets a launched command handle SIGTERM and SIGHUP; the recording ends when the command ends.
    pub fn forward(&mut self) {
        self.forwards = true;
    }

    /// Enters another phase.
    pub fn enter(&mut self, phase: Phase) {
        match (self.phase, phase) {
            // The command receives the forwarded signal now.
            (_, Phase::Recording) if !self.ending => self.limit = None,
            // Symbolication and writing end by themselves; the wait for a reader may not.
            (_, Phase::Reader) if self.limit.is_none() => {
                self.limit = self.ended_by;
                self.is_for_reader = true;
            }
            (Phase::Reader, _) if self.is_for_reader => self.limit = None,
            _ => {}
        }
        self.phase = phase;
    }

    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The signal that ends the process unless it finishes within a short time.
    #[must_use]
    pub fn limit(&self) -> Option<Signal> {
        self.limit
    }

    /// Handles a signal.
    pub fn receive(&mut self, signal: Signal) -> Answer {
        if self.ending {
            return Answer::End(signal);
        }
        let forwards = self.forwards && !self.forwarded && signal != Signal::Interrupt;
        match self.phase {
            // Before that a command has not run.
            Phase::Launch | Phase::Recording if forwards => {
                self.forwarded = true;
                self.ended_by = Some(signal);
                // The command may never start.
                self.limit = Some(signal).filter(|_| self.phase != Phase::Recording);
                Answer::Forward(signal)
            }
            Phase::Start | Phase::Server => {
                self.ending = true;
                Answer::End(signal)
            }
            Phase::Launch | Phase::Recording => {
                self.ending = true;
                // The command got a signal before and did not end.
                self.limit = Some(signal).filter(|_| self.forwarded);
                self.ended_by = Some(signal);
                Answer::EndRecording
            }
            Phase::Output | Phase::Reader => {
                self.ending = true;
                self.is_for_reader = false;
                self.limit = Some(signal);
                Answer::Finish
            }
        }
    }
}

impl Default for Interruption {
    fn default() -> Self {
        Interruption::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Signal::{Hangup, Interrupt, Terminate};

    const SIGNALS: [Signal; 3] = [Interrupt, Terminate, Hangup];

    fn at(phase: Phase) -> Interruption {
        let mut interruption = Interruption::new();
        interruption.enter(phase);
        interruption
    }

    #[test]
    fn before_recording_each_signal_ends_the_process() {
        for signal in SIGNALS {
            assert_eq!(Interruption::new().receive(signal), Answer::End(signal));
        }
    }

    #[test]
    fn the_first_signal_ends_the_recording_without_a_time_limit_for_its_output() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Recording);
            assert_eq!(interruption.receive(signal), Answer::EndRecording);
            interruption.enter(Phase::Output);
            assert_eq!(interruption.limit(), None);
        }
    }

    #[test]
    fn the_second_signal_ends_the_process() {
        for first in SIGNALS {
            for second in SIGNALS {
                for (phase, then) in [
                    (Phase::Recording, Phase::Recording),
                    (Phase::Recording, Phase::Output),
                    (Phase::Output, Phase::Output),
                ] {
                    let mut interruption = at(phase);
                    interruption.receive(first);
                    interruption.enter(then);
                    assert_eq!(interruption.receive(second), Answer::End(second), "{phase:?} {then:?}");
                }
            }
        }
    }

    #[test]
    fn a_signal_during_output_sets_a_time_limit() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Output);
            assert_eq!(interruption.limit(), None);
            assert_eq!(interruption.receive(signal), Answer::Finish);
            assert_eq!(interruption.limit(), Some(signal));
        }
    }

    #[test]
    fn the_wait_for_a_reader_is_limited_after_a_signal() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Recording);
            interruption.receive(signal);
            interruption.enter(Phase::Output);
            interruption.enter(Phase::Reader);
            assert_eq!(interruption.limit(), Some(signal));
            interruption.enter(Phase::Output);
            assert_eq!(interruption.limit(), None, "the reader has come, and may be slow");
        }
        let mut interruption = at(Phase::Recording);
        interruption.forward();
        interruption.receive(Hangup);
        interruption.enter(Phase::Output);
        interruption.enter(Phase::Reader);
        assert_eq!(interruption.limit(), Some(Hangup), "the command had the signal");
        let mut interruption = at(Phase::Output);
        interruption.enter(Phase::Reader);
        assert_eq!(interruption.limit(), None, "nobody asked for the end");
        interruption.receive(Interrupt);
        interruption.enter(Phase::Output);
        assert_eq!(interruption.limit(), Some(Interrupt), "that wait was asked to end");
    }

    #[test]
    fn a_launched_command_gets_the_first_sigterm_or_sighup() {
        for signal in [Terminate, Hangup] {
            let mut interruption = at(Phase::Recording);
            interruption.forward();
            assert_eq!(interruption.receive(signal), Answer::Forward(signal));
            assert_eq!(interruption.limit(), None, "the command may take its time");
            // It did not end: the recording is kept if that is done quickly.
            assert_eq!(interruption.receive(signal), Answer::EndRecording);
            assert_eq!(interruption.limit(), Some(signal));
            assert_eq!(interruption.receive(signal), Answer::End(signal));
        }
    }

    #[test]
    fn ctrl_c_is_not_forwarded_to_a_launched_command() {
        let mut interruption = at(Phase::Recording);
        interruption.forward();
        assert_eq!(interruption.receive(Interrupt), Answer::EndRecording);
        assert_eq!(interruption.receive(Terminate), Answer::End(Terminate));
    }

    #[test]
    fn what_a_command_did_before_the_sampler_began_is_recorded() {
        let mut interruption = at(Phase::Launch);
        interruption.forward();
        assert_eq!(interruption.receive(Interrupt), Answer::EndRecording);
        interruption.enter(Phase::Recording);
        interruption.enter(Phase::Output);
        assert_eq!(interruption.limit(), None);
        // The second of two signals limits the output, as later.
        let mut interruption = at(Phase::Launch);
        interruption.forward();
        assert_eq!(interruption.receive(Terminate), Answer::Forward(Terminate));
        assert_eq!(interruption.receive(Interrupt), Answer::EndRecording);
        interruption.enter(Phase::Recording);
        assert_eq!(interruption.limit(), Some(Interrupt));
    }

    #[test]
    fn a_signal_before_the_command_was_released_ends_the_process() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Start);
            interruption.forward();
            assert_eq!(interruption.receive(signal), Answer::End(signal));
        }
    }

    #[test]
    fn a_forwarded_signal_ends_the_process_if_the_command_never_starts() {
        let mut interruption = at(Phase::Launch);
        interruption.forward();
        assert_eq!(interruption.receive(Terminate), Answer::Forward(Terminate));
        assert_eq!(interruption.limit(), Some(Terminate));
        interruption.enter(Phase::Recording);
        assert_eq!(interruption.limit(), None, "it has begun");
        interruption.enter(Phase::Output);
        assert_eq!(interruption.receive(Terminate), Answer::Finish);
    }
}
