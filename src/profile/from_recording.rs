//! A recording becomes a saved profile: its frames with their names, without its images.
//!
//! Input: the profile and the names that were found. Output: [`Saved`]. Every name, address
//! and count of the recording is in it. Not for: looking up names.

use std::borrow::Cow;

use super::FIBER;
use super::about::About;
use super::builder::SavedBuilder;
use super::saved::{Full, Function, Line, Mapping, Saved, StackRoot};
use crate::recording::{Frame, Profile};
use crate::symbol::Names;
use crate::trie::FrameId;

/// What is known of a recording beside its profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// When it began, nanoseconds since 1970 (UTC).
    pub time_unix_ns: Option<u64>,
    /// The process was started for it.
    pub launched: bool,
    /// Waiting threads were recorded too.
    pub idle: bool,
    /// Processes of one name are kept apart, by their ids.
    pub per_process: bool,
}

impl Circumstances {
    /// What the stacks of a program are shown under.
    fn name<'p>(&self, profile: &'p Profile, program: u32) -> Cow<'p, str> {
        let Some(program) = profile.programs.get(program as usize) else { return Cow::Borrowed("") };
        if self.per_process {
            Cow::Owned(format!("{} ({})", program.name, program.pid))
        } else {
            Cow::Borrowed(&program.name)
        }
    }
}

impl Saved {
    /// The saved form of a recording.
    ///
    /// # Errors
    /// [`Full`] if a table does not hold it.
    pub fn from_recording(
        profile: &Profile,
        names: &Names,
        circumstances: Circumstances,
    ) -> Result<Saved, Full> {
        let mut builder = SavedBuilder::new(about(profile, circumstances));
        let mut frames: Vec<Option<u32>> = vec![None; profile.trie.frame_count()];
        let mut stack = Vec::new();
        let mut full = Ok(());
        profile.trie.for_each_stack(|path, count| {
            let mut add = || -> Result<(), Full> {
                let Some((root, code)) = path.split_first() else { return Ok(()) };
                let Some(Frame::Root(begin)) = profile.trie.frame(*root) else { return Ok(()) };
                let Some(branch) = profile.branches.get(begin.branch as usize) else { return Ok(()) };
                let thread = match &branch.thread {
                    Some(thread) => Some((builder.text(&thread.name)?, thread.id)),
                    None => None,
                };
                let process = builder.text(&circumstances.name(profile, branch.program))?;
                let (complete, waiting) = (begin.complete, begin.waiting);
                let root = builder.root(StackRoot { process, thread, complete, waiting })?;
                stack.clear();
                if begin.fiber {
                    stack.push(builder.named_frame(FIBER)?);
                }
                for id in code {
                    let known = frames.get(id.0 as usize).copied().flatten();
                    let frame = match known {
                        Some(frame) => frame,
                        None => frame_of(&mut builder, profile, names, *id)?,
                    };
                    if let Some(slot) = frames.get_mut(id.0 as usize) {
                        *slot = Some(frame);
                    }
                    stack.push(frame);
                }
                builder.add(root, &stack, count)?;
                Ok(())
            };
            if full.is_ok() {
                full = add();
            }
        });
        full?;
        Ok(builder.finish())
    }
}

fn about(profile: &Profile, circumstances: Circumstances) -> About {
    let stats = &profile.stats;
    let owned = |counts: &std::collections::BTreeMap<&'static str, u64>| {
        counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    };
    About {
        hz: Some(profile.hz),
        time_unix_ns: circumstances.time_unix_ns,
        duration_ns: Some(stats.duration_ns),
        pid: Some(profile.process.pid).filter(|pid| *pid > 0),
        arch: Some(profile.process.arch.name().to_owned()),
        command: Some(profile.process.command.clone()).filter(|command| !command.is_empty()),
        // `launched` says that the recording holds all of the program: not if it still ran at the end.
        launched: Some(circumstances.launched && stats.exit_status.is_some()),
        idle: Some(circumstances.idle),
        lost: owned(&stats.samples_lost),
        incomplete: owned(&stats.stacks_incomplete),
        ticks: Some(stats.ticks),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        ..About::default()
    }
}

fn frame_of(builder: &mut SavedBuilder, profile: &Profile, names: &Names, id: FrameId) -> Result<u32, Full> {
    let Some(Frame::Code { space, address }) = profile.trie.frame(id) else {
        return builder.frame(0, None, &[]);
    };
    let mapping = match profile.images.mapping_of(space, address.at()) {
        Some((image, range, file_offset)) => {
            let path = builder.text(image.shown_path())?;
            let digits = image.build_id.iter().flatten().map(|byte| format!("{byte:02x}"));
            let build_id = builder.text(&digits.collect::<String>())?;
            let (start, limit) = (range.start.0, range.end.0);
            Some(builder.mapping(Mapping { start, limit, file_offset, path, build_id })?)
        }
        None => None,
    };
    let mut lines = Vec::new();
    for function in names.functions(id) {
        let name = builder.text(function.name.as_deref().unwrap_or_default())?;
        let file = builder.text(function.file.as_deref().unwrap_or_default())?;
        let index = builder.function(Function { name, file, ..Function::default() })?;
        lines.push(Line { function: index, line: function.line });
    }
    builder.frame(address.0, mapping, &lines)
}
