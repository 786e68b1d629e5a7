//! Requests to the server of a profile: read, and answered where they have its token.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use stackprof::binary::NoFiles;
use stackprof::profile::SavedProfile;
use stackprof::server::ProfileServer;
use stackprof::server::http::Request;
use stackprof::server::symbols::Symbols;

static SERVER: LazyLock<ProfileServer> = LazyLock::new(|| {
    let symbols = Symbols::new(SavedProfile::default(), Arc::new(NoFiles));
    ProfileServer::new("token".to_owned(), 80, "https://viewer.example".to_owned(), symbols)
});

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = Request::read(&mut &*data) {
        let answer = SERVER.answer(&request);
        assert!(SERVER.is_authorized(&request) || answer.status.0 >= 400);
        let mut written = Vec::new();
        assert!(answer.write(&mut written).is_ok());
    }
});
