//! The page around the data: markup, style, script, and the policy by which a browser runs only that script.
//!
//! The script is the concatenated modules of src/html, in the order of their imports, without `import` and
//! `export`: one scope, which is why names are unique across modules. The files are what a browser runs:
//! there is no bundler to install, and nothing generated to keep up to date.

use std::io::{self, Write};

use super::base64;
use super::sha256::sha256;

/// The modules, each after its imports.
const MODULES: [(&str, &str); 31] = [
    ("bytes.js", include_str!("../../../html/bytes.js")),
    ("data.js", include_str!("../../../html/data.js")),
    ("numbers.js", include_str!("../../../html/numbers.js")),
    ("names.js", include_str!("../../../html/names.js")),
    ("selection.js", include_str!("../../../html/selection.js")),
    ("tree.js", include_str!("../../../html/tree.js")),
    ("functions.js", include_str!("../../../html/functions.js")),
    ("layout.js", include_str!("../../../html/layout.js")),
    ("search.js", include_str!("../../../html/search.js")),
    ("state.js", include_str!("../../../html/state.js")),
    ("model.js", include_str!("../../../html/model.js")),
    ("colours.js", include_str!("../../../html/colours.js")),
    ("dom.js", include_str!("../../../html/dom.js")),
    ("list.js", include_str!("../../../html/list.js")),
    ("flame.js", include_str!("../../../html/flame.js")),
    ("table.js", include_str!("../../../html/table.js")),
    ("callers.js", include_str!("../../../html/callers.js")),
    ("source.js", include_str!("../../../html/source.js")),
    ("panel.js", include_str!("../../../html/panel.js")),
    ("tip.js", include_str!("../../../html/tip.js")),
    ("truth.js", include_str!("../../../html/truth.js")),
    ("events.js", include_str!("../../../html/events.js")),
    ("lanes.js", include_str!("../../../html/lanes.js")),
    ("heat.js", include_str!("../../../html/heat.js")),
    ("timeline.js", include_str!("../../../html/timeline.js")),
    ("areas.js", include_str!("../../../html/areas.js")),
    ("memory.js", include_str!("../../../html/memory.js")),
    ("toolbar.js", include_str!("../../../html/toolbar.js")),
    ("keys.js", include_str!("../../../html/keys.js")),
    ("frame.js", include_str!("../../../html/frame.js")),
    ("app.js", include_str!("../../../html/app.js")),
];

const STYLE: &str = include_str!("../../../html/style.css");
const MARKUP: &str = include_str!("../../../html/page.html");

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
            return Err(io::Error::other(format!("src/html/page.html has no {place}")));
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
    let digest = |text: &str| base64::encode(&sha256(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; require-trusted-types-for 'script'; \
         trusted-types 'none'; base-uri 'none'; form-action 'none'",
        digest(script),
        digest(style)
    )
}
