//! The requests of a symbol server as JSON: `symbolicate/v5`, `source/v1`, `asm/v1`.
//!
//! The formats are those that the Firefox Profiler sends and that samply answers:
//! <https://mozilla.github.io/symbolic/> (Mozilla symbolication API v5), and samply's API.md for source and
//! instructions. A valid request without an answer gets `{"error": …}`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::symbols::{SymbolInfo, Symbols};
use crate::profile::formats::firefox::libraries::Library;

/// Most frames in one request for names.
const FRAMES_MAX: usize = 1 << 22;

/// Answers a request by its path below the token; `None` for an unknown path.
#[must_use]
pub(super) fn answer(symbols: &Symbols, path: &str, body: &[u8]) -> Option<Vec<u8>> {
    let answer = match path {
        "symbolicate/v5" => symbolicate(symbols, body),
        "source/v1" => source(symbols, body),
        "asm/v1" => instructions(symbols, body),
        _ => return None,
    };
    let answer = answer.unwrap_or_else(|why| json!({ "error": why }));
    Some(answer.to_string().into_bytes())
}

fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the request is not understood: {error}"))
}

/// Parses a number written as `0x` and hexadecimal digits.
fn hex<'d, D: Deserializer<'d>>(from: D) -> Result<u32, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| serde::de::Error::custom("expected 0x and up to 8 hexadecimal digits"))
}

/// One job, or several under `jobs`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Jobs {
    Several { jobs: Vec<Job> },
    One(Job),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    /// Names and ids of libraries.
    memory_map: Vec<(String, String)>,
    /// Index of the library and offset of each frame; -1 means none.
    stacks: Vec<Vec<(i64, u64)>>,
}

#[derive(Serialize)]
struct Frame<'j> {
    frame: usize,
    module: &'j str,
    module_offset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_size: Option<String>,
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlines: Vec<Inlined>,
}

#[derive(Default, Serialize)]
struct Line {
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "is_unknown")]
    line: u32,
}

#[derive(Serialize)]
struct Inlined {
    function: String,
    #[serde(flatten)]
    line: Line,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_unknown(line: &u32) -> bool {
    *line == 0
}

fn symbolicate(symbols: &Symbols, body: &[u8]) -> Result<Value, String> {
    let jobs = match parse(body)? {
        Jobs::Several { jobs } => jobs,
        Jobs::One(job) => vec![job],
    };
    let frames: usize = jobs.iter().flat_map(|job| &job.stacks).map(Vec::len).sum();
    if frames > FRAMES_MAX {
        return Err(format!("more than {FRAMES_MAX} frames in one request"));
    }
    let results: Vec<Value> = jobs.iter().map(|job| answer_job(symbols, job)).collect();
    Ok(json!({ "results": results }))
}

fn answer_job(symbols: &Symbols, job: &Job) -> Value {
    let libraries: Vec<Option<u32>> =
        job.memory_map.iter().map(|(name, id)| symbols.library(name, id)).collect();
    let found: serde_json::Map<String, Value> = job
        .memory_map
        .iter()
        .zip(&libraries)
        .map(|((name, id), library)| (format!("{name}/{id}"), library.is_some().into()))
        .collect();
    let stacks: Vec<Vec<Frame<'_>>> = job
        .stacks
        .iter()
        .map(|stack| {
            stack
                .iter()
                .enumerate()
                .map(|(frame, (index, offset))| {
                    let index = usize::try_from(*index).unwrap_or(usize::MAX);
                    let library = libraries.get(index).copied().flatten();
                    let offset_of = u32::try_from(*offset).ok();
                    let place = library.zip(offset_of).and_then(|(library, at)| symbols.place(library, at));
                    let module = job.memory_map.get(index).map_or("", |(name, _)| name);
                    frame_of(frame, module, *offset, place)
                })
                .collect()
        })
        .collect();
    json!({ "stacks": stacks, "found_modules": found })
}

fn frame_of(frame: usize, module: &str, offset: u64, place: Option<SymbolInfo>) -> Frame<'_> {
    let module_offset = format!("{offset:#x}");
    let Some(SymbolInfo { functions, function_offset, function_size }) = place else {
        let line = Line::default();
        return Frame {
            frame,
            module,
            module_offset,
            function: None,
            function_offset: None,
            function_size: None,
            line,
            inlines: Vec::new(),
        };
    };
    let mut functions = functions
        .into_iter()
        .map(|function| (function.name, Line { file: function.file, line: function.line }));
    let (name, line) = functions.next().unwrap_or_default();
    let mut inlines: Vec<Inlined> = functions.map(|(function, line)| Inlined { function, line }).collect();
    // The innermost first.
    inlines.reverse();
    Frame {
        frame,
        module,
        module_offset,
        function: Some(name),
        function_offset: Some(format!("{function_offset:#x}")),
        function_size: function_size.map(|size| format!("{size:#x}")),
        line,
        inlines,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceRequest {
    debug_name: String,
    debug_id: String,
    #[serde(deserialize_with = "hex")]
    module_offset: u32,
    file: String,
}

fn source(symbols: &Symbols, body: &[u8]) -> Result<Value, String> {
    let request: SourceRequest = parse(body)?;
    let library = library(symbols, &request.debug_name, &request.debug_id)?;
    let source = symbols.source(library, request.module_offset, &request.file)?;
    Ok(json!({
        "symbolsLastModified": null,
        "sourceLastModified": null,
        "file": request.file,
        "source": source,
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AsmRequest {
    debug_name: Option<String>,
    debug_id: Option<String>,
    name: Option<String>,
    code_id: Option<String>,
    #[serde(deserialize_with = "hex")]
    start_address: u32,
    #[serde(deserialize_with = "hex")]
    size: u32,
    #[serde(default)]
    continue_until_function_end: bool,
}

fn instructions(symbols: &Symbols, body: &[u8]) -> Result<Value, String> {
    let request: AsmRequest = parse(body)?;
    let library = match (&request.debug_name, &request.debug_id, &request.name, &request.code_id) {
        (Some(name), Some(id), ..) => library(symbols, name, id)?,
        (_, _, Some(name), Some(code_id)) => {
            let is_it = |library: &&Library| {
                library.name == *name && !code_id.is_empty() && library.build_id.eq_ignore_ascii_case(code_id)
            };
            let known = symbols.libraries().list.iter().find(is_it);
            let known = known.ok_or_else(|| format!("the profile has no library {name} {code_id}"))?;
            library(symbols, &known.name, &known.debug_id())?
        }
        _ => return Err("say which library: debugName and debugId, or name and codeId".to_owned()),
    };
    let whole = request.continue_until_function_end;
    let listing = symbols.instructions(library, request.start_address, request.size, whole)?;
    let first = listing.instructions.first().map_or(0, |instruction| instruction.svma.0);
    let size: usize = listing.instructions.iter().map(|one| one.bytes.len()).sum();
    let instructions: Vec<Value> =
        listing.instructions.iter().map(|one| json!([one.svma.0.wrapping_sub(first), one.text])).collect();
    // Arm instructions are aligned to two or four bytes.
    let aligned = request.start_address & !listing.set.alignment_mask();
    Ok(json!({
        "startAddress": format!("{aligned:#x}"),
        "size": format!("{size:#x}"),
        "arch": listing.set.name(),
        "syntax": [listing.set.syntax()],
        "instructions": instructions,
    }))
}

fn library(symbols: &Symbols, name: &str, debug_id: &str) -> Result<u32, String> {
    symbols.library(name, debug_id).ok_or_else(|| format!("the profile has no library {name} {debug_id}"))
}
