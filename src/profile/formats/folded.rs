//! Folded stacks: `process;frame;frame COUNT`, root first, one line per distinct stack.
//!
//! Input: stacks by name, already in the order of their lines. Output: the lines. `folded_read.rs` reads
//! them.

use std::io::{self, Write};

use crate::profile::views::by_name::ByName;

/// Writes the stacks, sorted bytewise.
///
/// # Errors
/// Errors of the writer.
pub fn write(stacks: &ByName, out: &mut dyn Write) -> io::Result<()> {
    let mut written = Ok(());
    stacks.for_each_stack(|names, count| {
        let mut line = || {
            for (index, name) in names.iter().enumerate() {
                if index > 0 {
                    out.write_all(b";")?;
                }
                out.write_all(stacks.text(*name).as_bytes())?;
            }
            writeln!(out, " {count}")
        };
        if written.is_ok() {
            written = line();
        }
    });
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::SavedProfile;
    use crate::profile::formats::folded_read;

    fn saved(text: &str) -> SavedProfile {
        folded_read::read(text.as_bytes(), "a").expect("reads")
    }

    fn text(saved: &SavedProfile) -> String {
        let mut out = Vec::new();
        write(&ByName::of(saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn folded_stacks_round_trip() {
        let lines = "\
work 5
work;(18);[incomplete];read 3
work;[incomplete] 8
work;[incomplete];read 4
work;io (017);main 1
work;io (17) 18446744073709550000
work;io (17);[incomplete];x 12 2
work;io (17);main;operator new(unsigned long);x (3) 1
";
        assert_eq!(text(&saved(lines)), lines);
    }

    #[test]
    fn lines_are_sorted_and_blank_names_are_shown() {
        let saved = saved("b 4\na;b 1\na;b 2\na;;c 1");
        assert_eq!(text(&saved), "a;[unknown];c 1\na;b 3\nb 4\n");
        assert_eq!(saved.total(), 8);
    }
}
