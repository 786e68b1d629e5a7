//! What SIGINT, SIGTERM and SIGHUP to the profiler itself mean, by what it does when they come.
//!
//! A leaf without system calls and without time: signals and phases in, answers out.
//! `sources::signals` takes the signals, and keeps the time that [`Interruption::limit`] asks for.

/// A signal that asks the profiler to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP.
    Hangup,
}

/// What the profiler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is recorded yet, or nothing will be: it attaches, starts a command, or reads its inputs.
    Start,
    /// It records.
    Recording,
    /// It names what was recorded, and writes it.
    Output,
    /// It waits for the reader of a pipe, which may never come.
    Reader,
    /// It serves what was recorded, until it is told to end.
    Server,
}

/// What a signal causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The process ends by this signal, now.
    End(Signal),
    /// The recording ends; it is named and written.
    EndRecording,
    /// The launched command gets the signal.
    PassOn(Signal),
    /// The output has a short time to become whole.
    Finish,
}

/// The phase, and the signals received so far.
#[derive(Debug)]
pub struct Interruption {
    phase: Phase,
    /// A launched command gets the first SIGTERM or SIGHUP.
    passes_on: bool,
    passed_on: bool,
    /// A signal was answered: the next one ends the process.
    ending: bool,
    /// The process ends by this signal unless it is done in a short time.
    limit: Option<Signal>,
    /// The signal that ended the recording, or the command, which ended it.
    ended_by: Option<Signal>,
    /// The limit is that of the wait for a reader alone.
    is_for_reader: bool,
}

impl Interruption {
    /// At the start of a command.
    #[must_use]
    pub const fn new() -> Interruption {
        Interruption {
            phase: Phase::Start,
            passes_on: false,
            passed_on: false,
            ending: false,
            limit: None,
            ended_by: None,
            is_for_reader: false,
        }
    }

    /// A launched command decides what it does on SIGTERM and SIGHUP; the recording ends when it ends.
    pub fn pass_on(&mut self) {
        self.passes_on = true;
    }

    /// The profiler does something else from now on.
    pub fn enter(&mut self, phase: Phase) {
        match (self.phase, phase) {
            // What was passed on reaches the command now.
            (_, Phase::Recording) => self.limit = None,
            // Naming and writing end by themselves, this wait may not.
            (_, Phase::Reader) if self.limit.is_none() => {
                self.limit = self.ended_by;
                self.is_for_reader = true;
            }
            (Phase::Reader, _) if self.is_for_reader => self.limit = None,
            _ => {}
        }
        self.phase = phase;
    }

    /// What the profiler does.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The signal that the process ends by if it is not done in a short time.
    #[must_use]
    pub fn limit(&self) -> Option<Signal> {
        self.limit
    }

    /// Answers a signal.
    pub fn receive(&mut self, signal: Signal) -> Answer {
        if self.ending {
            return Answer::End(signal);
        }
        let passes_on = self.passes_on && !self.passed_on && signal != Signal::Interrupt;
        match self.phase {
            Phase::Start | Phase::Recording if passes_on => {
                self.passed_on = true;
                self.ended_by = Some(signal);
                // The command may never begin.
                self.limit = Some(signal).filter(|_| self.phase == Phase::Start);
                Answer::PassOn(signal)
            }
            Phase::Start | Phase::Server => {
                self.ending = true;
                Answer::End(signal)
            }
            Phase::Recording => {
                self.ending = true;
                // Somebody asked before, and the command did not end.
                self.limit = Some(signal).filter(|_| self.passed_on);
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
    fn before_anything_is_recorded_each_signal_ends_the_process() {
        for signal in SIGNALS {
            assert_eq!(Interruption::new().receive(signal), Answer::End(signal));
        }
    }

    #[test]
    fn the_first_signal_ends_the_recording_which_has_all_the_time_it_needs_to_be_written() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Recording);
            assert_eq!(interruption.receive(signal), Answer::EndRecording);
            interruption.enter(Phase::Output);
            assert_eq!(interruption.limit(), None);
        }
    }

    #[test]
    fn the_second_signal_ends_the_process_whichever_the_first_was() {
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
    fn an_output_that_waits_has_a_short_time_from_the_first_signal_on() {
        for signal in SIGNALS {
            let mut interruption = at(Phase::Output);
            assert_eq!(interruption.limit(), None);
            assert_eq!(interruption.receive(signal), Answer::Finish);
            assert_eq!(interruption.limit(), Some(signal));
        }
    }

    #[test]
    fn a_reader_is_waited_for_a_short_time_once_a_signal_has_ended_the_recording() {
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
        interruption.pass_on();
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
            interruption.pass_on();
            assert_eq!(interruption.receive(signal), Answer::PassOn(signal));
            assert_eq!(interruption.limit(), None, "the command may take its time");
            // It did not end: what was recorded is kept if that is quickly done.
            assert_eq!(interruption.receive(signal), Answer::EndRecording);
            assert_eq!(interruption.limit(), Some(signal));
            assert_eq!(interruption.receive(signal), Answer::End(signal));
        }
    }

    #[test]
    fn a_launched_command_has_ctrl_c_from_the_terminal() {
        let mut interruption = at(Phase::Recording);
        interruption.pass_on();
        assert_eq!(interruption.receive(Interrupt), Answer::EndRecording);
        assert_eq!(interruption.receive(Terminate), Answer::End(Terminate));
    }

    #[test]
    fn a_signal_for_a_command_that_never_begins_ends_the_process() {
        let mut interruption = Interruption::new();
        interruption.pass_on();
        assert_eq!(interruption.receive(Terminate), Answer::PassOn(Terminate));
        assert_eq!(interruption.limit(), Some(Terminate));
        interruption.enter(Phase::Recording);
        assert_eq!(interruption.limit(), None, "it has begun");
        interruption.enter(Phase::Output);
        assert_eq!(interruption.receive(Terminate), Answer::Finish);
    }
}
