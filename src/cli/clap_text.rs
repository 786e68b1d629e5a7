//! Turns clap's errors into one line: lower case, the option named, with the next step. Input: a `clap::Error`.
//! Output: a usage [`Error`]. Help and version are not errors; `args.rs` handles them.

use clap::error::{ContextKind, ContextValue, ErrorKind as Clap};

use crate::error::{Error, ErrorKind};

/// One line for a clap error; `command` is the command that the suggested `--help` belongs to.
pub(super) fn usage_error(error: &clap::Error, command: &str) -> Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    // clap names an option with its value: `--hz <N>`.
    let option = context(ContextKind::InvalidArg)
        .map(|text| text.split([' ', '=']).next().unwrap_or_default().to_string())
        .unwrap_or_default();
    let text = match error.kind() {
        Clap::UnknownArgument => match context(ContextKind::SuggestedArg) {
            // clap suggests `--idle` for `--pid`; typos in the first letter are rare.
            Some(near) if near.chars().nth(2) == option.chars().nth(2) => {
                format!("there is no option `{option}`; did you mean `{near}`?")
            }
            _ => format!("there is no option `{option}`"),
        },
        Clap::InvalidValue | Clap::TooFewValues | Clap::WrongNumberOfValues | Clap::NoEquals => {
            format!("option `{option}` needs a value")
        }
        Clap::TooManyValues => match context(ContextKind::InvalidValue) {
            Some(value) => format!("option `{option}` takes no value, but `{value}` was given"),
            None => format!("option `{option}` takes no value"),
        },
        Clap::InvalidUtf8 => "an argument is not UTF-8".to_string(),
        // Not reached with our flags; falls back to the first line of clap's text.
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_string()
        }
    };
    Error::new(ErrorKind::Usage, format!("{text} (try '{command} --help')"))
}
