//! A file and the debug file beside it: whichever path is asked for, the second half is there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::{Options, name_addresses};
use stackprof::binary::{Files, ImageBytes, OpenError};

struct One(Vec<u8>);

impl Files for One {
    fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Ok(ImageBytes::new(self.0.clone()))
    }
}

fuzz_target!(|data: &[u8]| {
    let (image, debug) = data.split_at(data.len() / 2);
    let files = One(debug.to_vec());
    let options = Options { lines: true, threads: 1, files: &files, ..Options::default() };
    let _ = name_addresses("/bin/a", ImageBytes::new(image.to_vec()), &[0x1000, 0x1010, 0x2000], &options);
});
