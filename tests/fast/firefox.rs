//! Code information in files for the Firefox Profiler: libraries, inlined functions, lines, categories.

use stackprof::profile::formats::firefox;
use stackprof::profile::{About, Function, Line, Mapping, SavedBuilder, SavedProfile, StackRoot};

/// `work` calls `helper` of a library, with two functions inlined into it; the kernel, code without a name,
/// JIT code.
fn saved() -> SavedProfile {
    let mut builder = SavedBuilder::new(About {
        hz: Some(1000),
        pid: Some(7),
        arch: Some("x86_64".into()),
        ..About::default()
    });
    let mut mapping = |path: &str, start: u64, build_id: &str| {
        let (path, build_id) = (builder.text(path).unwrap(), builder.text(build_id).unwrap());
        builder
            .mapping(Mapping { start, limit: start + 0x10000, file_offset: 0x1000, path, build_id })
            .unwrap()
    };
    let program = mapping("/bin/work", 0x10000, "0123456789abcdef00112233445566778899aabb");
    let library = mapping("/lib/libx.so", 0x70000, "");
    let kernel = mapping("[kernel]", 0xffff_0000, "");
    let mut line = |name: &str, file: &str, line: u32| {
        let (name, file) = (builder.text(name).unwrap(), builder.text(file).unwrap());
        let function =
            builder.function(Function { name, file, start_line: 3, ..Function::default() }).unwrap();
        Line { function, line }
    };
    let main = line("main", "/src/main.c", 10);
    let helper = [line("helper", "/src/x.c", 20), line("inner", "/src/x.h", 5), line("innermost", "", 0)];
    let read = line("read_[k]", "", 0);
    let jit = line("compiled", "", 0);
    let frames = [
        builder.frame(0x10100, Some(program), &[main]).unwrap(),
        builder.frame(0x70200, Some(library), &helper).unwrap(),
        builder.frame(0x70400, Some(library), &[]).unwrap(),
        builder.frame(0x5000, None, &[jit]).unwrap(),
        builder.frame(0xffff_0010, Some(kernel), &[read]).unwrap(),
    ];
    let process = builder.text("work").unwrap();
    let root = builder.root(StackRoot::of(process)).unwrap();
    builder.add(root, &frames, 3).unwrap();
    builder.finish()
}

#[test]
fn code_has_its_library_address_lines_and_category() {
    let mut out = Vec::new();
    firefox::write(&saved(), &mut out).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let libs: Vec<_> =
        file["libs"].as_array().unwrap().iter().map(|lib| (&lib["name"], &lib["codeId"])).collect();
    assert_eq!(libs[0].0, "work");
    assert_eq!(libs[0].1, "0123456789abcdef00112233445566778899aabb");
    assert_eq!(file["libs"][0]["breakpadId"], "67452301AB89EFCD00112233445566770");
    assert_eq!((libs[1].0.as_str().unwrap(), libs[1].1.is_null()), ("libx.so", true));
    let thread = &file["threads"][0];
    let strings = thread["stringArray"].as_array().unwrap();
    let text = |index: &serde_json::Value| {
        index.as_u64().map_or("", |index| strings[index as usize].as_str().unwrap())
    };
    let (frames, funcs) = (&thread["frameTable"], &thread["funcTable"]);
    let mut found = Vec::new();
    for index in 0..frames["length"].as_u64().unwrap() as usize {
        let func = frames["func"][index].as_u64().unwrap() as usize;
        let resource = funcs["resource"][func].as_i64().unwrap();
        let library =
            usize::try_from(resource).map_or("", |resource| text(&thread["resourceTable"]["name"][resource]));
        let symbol = frames["nativeSymbol"][index].as_u64();
        let symbol = symbol.map_or("", |symbol| text(&thread["nativeSymbols"]["name"][symbol as usize]));
        let category = frames["category"][index].as_u64().unwrap() as usize;
        found.push(format!(
            "{} {} {} {} {library} {symbol} {} {}",
            text(&funcs["name"][func]),
            frames["address"][index],
            frames["inlineDepth"][index],
            file["meta"]["categories"][category]["name"].as_str().unwrap(),
            text(&funcs["fileName"][func]),
            frames["line"][index],
        ));
    }
    assert_eq!(
        found,
        [
            "main 4352 0 User work main /src/main.c 10",
            "helper 4608 0 Library libx.so helper /src/x.c 20",
            "inner 4608 1 Library libx.so helper /src/x.h 5",
            "innermost 4608 2 Library libx.so helper  null",
            "[libx.so+0x1400] 5120 0 Library libx.so   null",
            "compiled -1 0 JIT    null",
            "read_[k] 4112 0 Kernel [kernel] read_[k]  null",
        ]
    );
    // Columns have their stated length.
    for table in ["frameTable", "funcTable", "resourceTable", "nativeSymbols", "stackTable"] {
        let length = thread[table]["length"].as_u64().unwrap();
        for (name, column) in thread[table].as_object().unwrap() {
            if let Some(column) = column.as_array() {
                assert_eq!(column.len() as u64, length, "{table}.{name}");
            }
        }
    }
}
