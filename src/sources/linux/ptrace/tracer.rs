//! The tracer thread, which executes calls for others: a caller waits until its call is done.
//!
//! Only the thread that seized may make ptrace calls, and when it exits the kernel releases all that it
//! traces without a stop. So the state of a recording stays with the caller, and the thread can exit and be
//! replaced in the middle of it.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::linux::{privileges, sys};
use crate::sources::{CallThread, Fault, Role, signals};

/// A call with a waiting caller.
struct Job(*mut (dyn FnMut() + 'static));

// SAFETY: `Tracer::run`, the only function that creates jobs, waits until the thread is done with it. So one
// thread at a time uses the data of the call, whatever its type, and each sees the other's writes (the
// channels). Only the ptrace calls are bound to a thread, and they are made in this one.
unsafe impl Send for Job {}

type Done = std::result::Result<(), Box<dyn Any + Send>>;

/// The running thread.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
    /// A suspension of this process would leave traced threads waiting.
    _hold: signals::Hold,
}

/// The thread that traces.
pub(in crate::sources::linux) struct Tracer(Mutex<Option<Worker>>);

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tracer")
    }
}

impl Worker {
    fn start() -> std::io::Result<Worker> {
        let (jobs, next) = channel::<Job>();
        let (tell, done) = channel();
        let hold = signals::Hold::new();
        let work = move || {
            signals::note_sampler();
            for Job(job) in next {
                // SAFETY: the caller waits in `Tracer::run` and keeps the pointee alive until then.
                let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)() }));
                if tell.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(work)?;
        Ok(Worker { jobs, done, thread, _hold: hold })
    }
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system cannot start it.
    pub(in crate::sources::linux) fn start() -> Result<Tracer> {
        let worker = Worker::start().map_err(|error| {
            Error::new(ErrorKind::System, format!("cannot start a thread: {}", io_text(&error)))
        })?;
        Ok(Tracer(Mutex::new(Some(worker))))
    }

    /// Executes `call` in the thread and `meanwhile` in this one; returns the result of `call`.
    pub(in crate::sources::linux) fn call_while<R>(
        &self,
        call: impl FnOnce() -> R,
        meanwhile: impl FnOnce(),
    ) -> R {
        let (mut call, mut result) = (Some(call), None);
        self.run(&mut || result = call.take().map(|call| call()), meanwhile);
        result.unwrap_or_else(|| unreachable!("`run` makes the call, or unwinds"))
    }

    /// Runs `body` in the thread and `meanwhile` in this one, and waits for both.
    fn run(&self, body: &mut dyn FnMut(), meanwhile: impl FnOnce()) {
        let worker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(worker) = &*worker else { unreachable!("calls are made while there is a thread") };
        // SAFETY: only the lifetime changes; the pointer is not used after `recv` below, which returns when
        // the thread is done with the call, or has exited; `meanwhile` cannot unwind past it.
        let job = unsafe { std::mem::transmute::<*mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(body) };
        if worker.jobs.send(Job(job)).is_err() {
            unreachable!("the thread ends when its jobs do");
        }
        let here = catch_unwind(AssertUnwindSafe(meanwhile));
        match worker.done.recv() {
            Ok(there) => here.and(there).unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => unreachable!("the thread ends when its jobs do"),
        }
    }
}

impl CallThread for Tracer {
    fn call(&self, body: &mut dyn FnMut()) {
        self.run(body, || {});
    }

    fn shut_down(&self) {
        let worker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Worker { jobs, thread, _hold, .. }) = worker {
            drop(jobs);
            let _ = thread.join();
        }
    }

    fn restart(&self) -> std::result::Result<(), Fault> {
        let worker = Worker::start().map_err(|error| {
            Fault::Lost(format!("no thread could be started to trace again: {}", io_text(&error)))
        })?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
        self.call(&mut || {
            sys::prefer_this_thread();
            let _ = privileges::restrict(Role::SamplingByPtrace);
        });
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.shut_down();
    }
}
