//! The page around the data: markup, style, script, and the policy by which a browser runs only that script; with
//! base64 and SHA-256, which it needs.
//!
//! The script is the concatenated modules of crates/profile/src/html, in the order of their imports, without `import` and
//! `export`: one scope, which is why names are unique across modules. The files are what a browser runs: there is
//! no bundler to install, and nothing generated to keep up to date.

use std::io::{self, Write};

/// The modules, each after its imports.
const MODULES: [(&str, &str); 31] = [
    ("bytes.js", include_str!("../../html/bytes.js")),
    ("data.js", include_str!("../../html/data.js")),
    ("numbers.js", include_str!("../../html/numbers.js")),
    ("names.js", include_str!("../../html/names.js")),
    ("selection.js", include_str!("../../html/selection.js")),
    ("tree.js", include_str!("../../html/tree.js")),
    ("functions.js", include_str!("../../html/functions.js")),
    ("layout.js", include_str!("../../html/layout.js")),
    ("search.js", include_str!("../../html/search.js")),
    ("state.js", include_str!("../../html/state.js")),
    ("model.js", include_str!("../../html/model.js")),
    ("colours.js", include_str!("../../html/colours.js")),
    ("dom.js", include_str!("../../html/dom.js")),
    ("list.js", include_str!("../../html/list.js")),
    ("flame.js", include_str!("../../html/flame.js")),
    ("table.js", include_str!("../../html/table.js")),
    ("callers.js", include_str!("../../html/callers.js")),
    ("source.js", include_str!("../../html/source.js")),
    ("panel.js", include_str!("../../html/panel.js")),
    ("tip.js", include_str!("../../html/tip.js")),
    ("truth.js", include_str!("../../html/truth.js")),
    ("events.js", include_str!("../../html/events.js")),
    ("lanes.js", include_str!("../../html/lanes.js")),
    ("heat.js", include_str!("../../html/heat.js")),
    ("timeline.js", include_str!("../../html/timeline.js")),
    ("areas.js", include_str!("../../html/areas.js")),
    ("memory.js", include_str!("../../html/memory.js")),
    ("toolbar.js", include_str!("../../html/toolbar.js")),
    ("keys.js", include_str!("../../html/keys.js")),
    ("frame.js", include_str!("../../html/frame.js")),
    ("app.js", include_str!("../../html/app.js")),
];

const STYLE: &str = include_str!("../../html/style.css");
const MARKUP: &str = include_str!("../../html/page.html");

/// Writes the page with its base64 data.
pub(super) fn write(data: &str, out: &mut dyn Write) -> io::Result<()> {
    let script = script();
    let policy = policy(&script, STYLE);
    let mut rest = MARKUP;
    for (place, text) in [
        ("{POLICY}", policy.as_str()),
        ("{GENERATOR}", concat!("stackprof ", env!("CARGO_PKG_VERSION"))),
        ("{STYLE}", STYLE),
        ("{DATA}", data),
        ("{SCRIPT}", script.as_str()),
    ] {
        let Some((before, after)) = rest.split_once(place) else {
            return Err(io::Error::other(format!("crates/profile/src/html/page.html has no {place}")));
        };
        out.write_all(before.as_bytes())?;
        out.write_all(text.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// The script: all modules, then the call that starts them.
pub(super) fn script() -> String {
    let mut script = String::from("\"use strict\";\n");
    for (name, module) in MODULES {
        script += &format!("// ---- {name}\n");
        for line in module.lines().filter(|line| !line.starts_with("import ")) {
            script += line.strip_prefix("export ").unwrap_or(line);
            script.push('\n');
        }
    }
    script + "main();\n"
}

/// The policy: no requests at all; only this script and this style; no text is parsed as markup.
fn policy(script: &str, style: &str) -> String {
    let digest = |text: &str| encode(&sha256(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; require-trusted-types-for 'script'; \
         trusted-types 'none'; base-uri 'none'; form-action 'none'",
        digest(script),
        digest(style)
    )
}

// ---- Bytes as base64 (RFC 4648, with padding).
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            // A group of n bytes has n + 1 digits.
            let is_there = digit <= group.len();
            text.push(if is_there { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}

// ---- SHA-256 (FIPS 180-4), by which a Content-Security-Policy identifies the only permitted script.

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The digest of bytes.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut state: [u32; 8] =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - bytes.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let length = padded.len();
    padded[length - 8..].copy_from_slice(&(bytes.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, block);
    }
    let mut digest = [0; 32];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut words = [0u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (w15, w2) = (words[at - 15], words[at - 2]);
        let s0 = w15.rotate_right(7) ^ w15.rotate_right(18) ^ (w15 >> 3);
        let s1 = w2.rotate_right(17) ^ w2.rotate_right(19) ^ (w2 >> 10);
        words[at] = words[at - 16].wrapping_add(s0).wrapping_add(words[at - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, k) in words.into_iter().zip(K) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(k).wrapping_add(word);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(s0).wrapping_add(majority));
    }
    for (sum, value) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = sum.wrapping_add(value);
    }
}

#[cfg(test)]
mod base64_tests {
    use super::encode;

    #[test]
    fn matches_the_examples_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}

#[cfg(test)]
mod sha256_tests {
    use super::sha256;

    fn hex(bytes: &[u8]) -> String {
        sha256(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn matches_the_examples_of_the_standard() {
        assert_eq!(hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(
            hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
        assert_eq!(
            hex(&[b'a'; 1_000_000]),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        );
    }
}
