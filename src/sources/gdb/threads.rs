//! The threads of a target: their list, names and registers, by requests to the stub.

use hashbrown::HashMap;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::connection_error::ConnectionError;
use super::description::attribute;
use super::hex;
use super::layout::{Layout, ThreadRegisters};
use super::run_state::{THREADS_MAX, sorted, too_many, unexpected};
use super::session::Stub;
use super::stop_reply::Tid;

/// Most bytes of a list of threads with their names.
const LIST_BYTES_MAX: usize = 4 << 20;
/// Longest name.
const NAME_BYTES_MAX: usize = 256;
/// Most threads with names requested one by one.
const NAMES_ONE_BY_ONE_MAX: usize = 256;

impl Stub {
    /// Requests the list of threads.
    ///
    /// # Errors
    /// The stub cannot be reached, or the list does not end.
    pub(super) fn list_threads(&mut self) -> Result<(), ConnectionError> {
        let answers = self.flight(&[b"qfThreadInfo".to_vec(), b"qsThreadInfo".to_vec()])?;
        self.finish_list(&answers)
    }

    /// Takes the first two parts of a list, and requests the others. For a stub without lists the known
    /// threads are kept.
    pub(super) fn finish_list(&mut self, parts: &[Vec<u8>]) -> Result<(), ConnectionError> {
        let mut threads = Vec::new();
        for part in parts {
            match take_part(part, &mut threads)? {
                Part::More => {}
                Part::End => return self.listed(threads),
                Part::None => return Ok(()),
            }
        }
        loop {
            let part = self.call(b"qsThreadInfo")?;
            match take_part(&part, &mut threads)? {
                Part::More => {}
                Part::End => return self.listed(threads),
                Part::None => return Err(unexpected("qsThreadInfo", &part)),
            }
        }
    }

    fn listed(&mut self, threads: Vec<Tid>) -> Result<(), ConnectionError> {
        let ours =
            |thread: &Tid| thread.pid.is_none() || self.run.pid.is_none() || thread.pid == self.run.pid;
        let threads: Vec<Tid> = threads.into_iter().filter(ours).collect();
        if !threads.is_empty() {
            self.run.threads = sorted(threads);
        }
        Ok(())
    }

    /// The names of threads, if the stub has them.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn thread_names(&mut self) -> Result<HashMap<u64, String>, ConnectionError> {
        if self.offers.threads_xml
            && let Some(list) = self.transfer("threads", "", LIST_BYTES_MAX)?
        {
            return Ok(names_in_xml(&list));
        }
        if self.offers.lldb {
            let list = self.call(b"jThreadsInfo")?;
            return Ok(names_in_json(&list));
        }
        let threads: Vec<Tid> = self.run.threads.iter().copied().take(NAMES_ONE_BY_ONE_MAX).collect();
        let question = |thread: &Tid| format!("qThreadExtraInfo,{thread}").into_bytes();
        let questions: Vec<Vec<u8>> = threads.iter().map(question).collect();
        let answers = self.flight(&questions)?;
        let names = threads
            .iter()
            .zip(answers)
            .filter_map(|(thread, answer)| Some((thread.tid, plain(&hex::text(&answer)?)?)));
        Ok(names.collect())
    }

    /// The registers of stopped threads, each `None` if unknown.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn registers(
        &mut self,
        threads: &[Tid],
        layout: &Layout,
    ) -> Result<Vec<Option<ThreadRegisters>>, ConnectionError> {
        let (mut questions, mut answers_at) = (Vec::with_capacity(2 * threads.len()), Vec::new());
        for thread in threads {
            let (select, suffix) = self.thread_words(*thread);
            questions.extend(select);
            answers_at.push(questions.len());
            questions.push(format!("g{suffix}").into_bytes());
        }
        let answers = self.flight(&questions)?;
        let mut told = Vec::with_capacity(threads.len());
        for (thread, at) in threads.iter().zip(answers_at) {
            let selected = at == 0 || questions[at - 1].first() != Some(&b'H') || answers[at - 1] == b"OK";
            let sent = register_bytes(&answers[at]).filter(|_| selected);
            told.push(match sent {
                Some(sent) => self.registers_of(*thread, layout, &sent)?,
                // Without `g` each register is read separately. An error means that this thread has none.
                None if answers[at].is_empty() && selected => self.registers_of(*thread, layout, &[])?,
                None => None,
            });
        }
        Ok(told)
    }

    /// The registers of one thread, some of them from a reply to `g`.
    fn registers_of(
        &mut self,
        thread: Tid,
        layout: &Layout,
        sent: &[Option<u8>],
    ) -> Result<Option<ThreadRegisters>, ConnectionError> {
        let beyond = layout.beyond(sent.len());
        if beyond.is_empty() {
            return Ok(layout.registers(sent, &|_| None));
        }
        let (select, suffix) = self.thread_words(thread);
        let selects = usize::from(select.is_some());
        let question = |number: &u32| format!("p{number:x}{suffix}").into_bytes();
        let questions: Vec<Vec<u8>> = select.into_iter().chain(beyond.iter().map(question)).collect();
        let answers = self.flight(&questions)?;
        let bytes = layout.arch.pointer_bytes() as usize;
        let values: HashMap<u32, u64> = beyond
            .iter()
            .zip(&answers[selects..])
            .filter_map(|(number, answer)| Some((*number, value(answer, bytes)?)))
            .collect();
        Ok(layout.registers(sent, &|number| values.get(&number).copied()))
    }

    /// 32-bit registers by thread and number, each `None` if unknown.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn words(&mut self, wanted: &[(Tid, u32)]) -> Result<Vec<Option<u64>>, ConnectionError> {
        let (mut questions, mut answers_at) = (Vec::with_capacity(2 * wanted.len()), Vec::new());
        for (thread, number) in wanted {
            let (select, suffix) = self.thread_words(*thread);
            questions.extend(select);
            answers_at.push(questions.len());
            questions.push(format!("p{number:x}{suffix}").into_bytes());
        }
        let answers = self.flight(&questions)?;
        Ok(answers_at.into_iter().map(|at| value(&answers[at], 4)).collect())
    }
}

enum Part {
    More,
    End,
    /// Not a list.
    None,
}

/// `mp1.1,p1.2` or `l`.
fn take_part(part: &[u8], threads: &mut Vec<Tid>) -> Result<Part, ConnectionError> {
    match part.split_first() {
        Some((b'l', _)) => Ok(Part::End),
        Some((b'm', list)) => {
            for thread in list.split(|byte| *byte == b',') {
                let Some(thread) = Tid::parse(thread) else { return Err(unexpected("qfThreadInfo", part)) };
                threads.push(thread);
            }
            if threads.len() > THREADS_MAX { Err(too_many()) } else { Ok(Part::More) }
        }
        _ => Ok(Part::None),
    }
}

/// The value in a reply to `p`, of this many bytes; `None` for an error.
fn value(answer: &[u8], bytes: usize) -> Option<u64> {
    let decoded = hex::decode(answer)?;
    Some(decoded.get(..bytes)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// The bytes of a reply to `g`; `xx` means unknown.
fn register_bytes(answer: &[u8]) -> Option<Vec<Option<u8>>> {
    if answer.is_empty() || !answer.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u8]| match pair {
        b"xx" => Some(None),
        pair => Some(Some(*hex::decode(pair)?.first()?)),
    };
    answer.chunks_exact(2).map(byte).collect()
}

/// `<threads><thread id="p1.1" core="0" name="work">...`
fn names_in_xml(list: &[u8]) -> HashMap<u64, String> {
    let mut reader = Reader::from_reader(list);
    let mut names = HashMap::new();
    // Damaged XML has no names.
    while let Ok(event) = reader.read_event() {
        let element = match event {
            Event::Eof => break,
            Event::Start(element) | Event::Empty(element) => element,
            _ => continue,
        };
        let id = attribute(&element, b"id").and_then(|id| Tid::parse(id.as_bytes()));
        let name = attribute(&element, b"name").and_then(|name| plain(&name));
        names.extend(id.zip(name).map(|(id, name)| (id.tid, name)));
    }
    names
}

/// `[{"tid":1,"name":"work",...}]`
fn names_in_json(list: &[u8]) -> HashMap<u64, String> {
    let list: serde_json::Value = serde_json::from_slice(list).unwrap_or_default();
    let threads = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |thread: &serde_json::Value| Some((thread["tid"].as_u64()?, plain(thread["name"].as_str()?)?));
    threads.iter().filter_map(name).collect()
}

/// A printable name.
fn plain(name: &str) -> Option<String> {
    let end = name.char_indices().map(|(at, _)| at).take_while(|at| *at <= NAME_BYTES_MAX).last()?;
    let name = if name.len() > NAME_BYTES_MAX { &name[..end] } else { name };
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_lists_arrive_in_parts() {
        let mut threads = Vec::new();
        assert!(matches!(take_part(b"mp1.1,p1.2", &mut threads), Ok(Part::More)));
        assert!(matches!(take_part(b"m3", &mut threads), Ok(Part::More)));
        assert!(matches!(take_part(b"l", &mut threads), Ok(Part::End)));
        assert_eq!(threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(matches!(take_part(b"", &mut threads), Ok(Part::None)));
        assert!(take_part(b"m", &mut threads).is_err());
        assert!(take_part(b"m1,,2", &mut threads).is_err());
    }

    #[test]
    fn names_are_read_from_both_formats() {
        let xml =
            b"<?xml version=\"1.0\"?><threads><thread id=\"p1.a\" core=\"1\" name=\"work &amp; rest\"/>\
                    <thread id=\"p1.b\">CPU#1 [running]</thread></threads>";
        assert_eq!(names_in_xml(xml).get(&10).map(String::as_str), Some("work & rest"));
        assert_eq!(names_in_xml(xml).len(), 1);
        let json = br#"[{"tid":7,"name":"pool"},{"tid":8},{"name":"x"}]"#;
        assert_eq!(names_in_json(json).get(&7).map(String::as_str), Some("pool"));
        assert_eq!(names_in_json(json).len(), 1);
        assert!(names_in_json(b"{").is_empty());
    }

    #[test]
    fn unknown_registers_are_marked() {
        assert_eq!(register_bytes(b"01xxff"), Some(vec![Some(1), None, Some(255)]));
        assert_eq!(register_bytes(b"E01"), None);
        assert_eq!(register_bytes(b"zz"), None);
        assert_eq!(plain(&"ä".repeat(300)).map(|name| name.len()), Some(256));
    }
}
