//! A file that only its user can read, in a private directory, for a browser to open.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use super::loopback;

/// Writes a file in a new temporary directory; it stays there for the browser.
///
/// # Errors
/// The system's error.
pub fn write(name: &str, content: &[u8]) -> io::Result<PathBuf> {
    // The name is unguessable, and an existing directory is refused.
    let directory = std::env::temp_dir().join(format!("stackprof-{}", loopback::token()?));
    let mut builder = DirBuilder::new();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    builder.create(&directory)?;
    let path = directory.join(name);
    options.open(&path)?.write_all(content)?;
    Ok(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_can_read_it() {
        let path = write("x.html", b"text").expect("written");
        let mode = |path: &std::path::Path| path.metadata().expect("there").permissions().mode() & 0o777;
        let directory = path.parent().expect("a directory");
        assert_eq!((mode(&path), mode(directory)), (0o600, 0o700));
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
