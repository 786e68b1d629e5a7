//! Builds PE files for tests, byte by byte.
//!
//! Input: the content. Output: the bytes of a file: headers, then `.text`, `.rdata` with exports and unwind
//! information, `.pdata`, and COFF symbols. Also included by tests/files/hostile.rs, so it refers to nothing in
//! the crate.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test needs another part")]

/// Preferred load address of a program, and relative addresses of its sections.
pub const BASE: u64 = 0x1_4000_0000;
pub const TEXT: u32 = 0x1000;
pub const RDATA: u32 = 0x10_0000;
pub const PDATA: u32 = 0x20_0000;
const HEADER_BYTES: u32 = 0x400;
/// `IMAGE_SCN_MEM_EXECUTE` and `IMAGE_SCN_CNT_CODE`; initialised data.
const CODE: u32 = 0x6000_0020;
const DATA: u32 = 0x4000_0040;

/// A function in `.pdata`: relative addresses, and its unwind information.
#[derive(Clone, Debug)]
pub struct Function {
    pub begin: u32,
    pub end: u32,
    pub info: Vec<u8>,
}

/// A COFF symbol in `.text`.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub name: &'static str,
    /// Offset in `.text`.
    pub value: u32,
    pub is_function: bool,
    pub is_external: bool,
}

#[derive(Clone, Debug, Default)]
pub struct File {
    pub code: Vec<u8>,
    pub functions: Vec<Function>,
    /// Names, sorted, and relative addresses.
    pub exports: Vec<(&'static str, u32)>,
    pub symbols: Vec<Symbol>,
    /// Sections start at whole pages of the file, so that they can be mapped.
    pub is_mappable: bool,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The relative address of a function's unwind information.
pub fn info_at(functions: &[Function], index: usize) -> u32 {
    let before: usize =
        functions[..index].iter().map(|function| function.info.len().next_multiple_of(4)).sum();
    RDATA + before as u32
}

impl File {
    /// The bytes of the file.
    pub fn build(&self) -> Vec<u8> {
        let mut rdata: Vec<u8> = Vec::new();
        let mut pdata = Vec::new();
        for (index, function) in self.functions.iter().enumerate() {
            pdata.extend(words(&[function.begin, function.end, info_at(&self.functions, index)]));
            rdata.extend(&function.info);
            rdata.resize(rdata.len().next_multiple_of(4), 0);
        }
        let exports = RDATA + rdata.len() as u32;
        rdata.extend(self.export_table(exports));
        let export_bytes = RDATA + rdata.len() as u32 - exports;
        let alignment = if self.is_mappable { 0x1000 } else { 0x200 };
        let align = |length: usize| (length as u32).next_multiple_of(alignment);
        let (text_at, text_bytes) = (HEADER_BYTES.next_multiple_of(alignment), align(self.code.len()));
        let (rdata_at, rdata_bytes) = (text_at + text_bytes, align(rdata.len()));
        let (pdata_at, pdata_bytes) = (rdata_at + rdata_bytes, align(pdata.len()));
        let symbols_at = pdata_at + pdata_bytes;

        let mut file = b"MZ".to_vec();
        file.resize(0x3c, 0);
        file.extend(words(&[0x40]));
        file.extend(b"PE\0\0");
        file.extend([0x64, 0x86, 3, 0]);
        file.extend(words(&[0, symbols_at, self.symbols.len() as u32]));
        file.extend([240, 0, 0x22, 0]);
        // The optional header: PE32+, linker; sizes, entry, base of code.
        file.extend([0x0b, 0x02, 2, 40]);
        file.extend(words(&[text_bytes, 0, 0, TEXT, TEXT]));
        file.extend(BASE.to_le_bytes());
        file.extend(words(&[0x1000, alignment, 4, 0, 5, 0, 0x30_0000, HEADER_BYTES, 0, 3]));
        file.extend([0x20_0000u64, 0x1000, 0x10_0000, 0x1000].map(u64::to_le_bytes).concat());
        file.extend(words(&[0, 16]));
        let mut directories = [[0, 0]; 16];
        directories[0] = [exports, export_bytes];
        directories[3] = [PDATA, pdata.len() as u32];
        file.extend(words(directories.as_flattened()));
        let sections = [
            (b".text\0\0\0", self.code.len(), TEXT, text_bytes, text_at, CODE),
            (b".rdata\0\0", rdata.len(), RDATA, rdata_bytes, rdata_at, DATA),
            (b".pdata\0\0", pdata.len(), PDATA, pdata_bytes, pdata_at, DATA),
        ];
        for (name, length, rva, bytes, at, flags) in sections {
            file.extend(name);
            file.extend(words(&[length as u32, rva, bytes, at, 0, 0, 0, flags]));
        }
        for (at, content) in [(text_at, &self.code), (rdata_at, &rdata), (pdata_at, &pdata)] {
            file.resize(at as usize, 0);
            file.extend(content);
        }
        file.resize(symbols_at as usize, 0);
        file.extend(self.symbol_table());
        file
    }

    fn symbol_table(&self) -> Vec<u8> {
        let (mut symbols, mut strings) = (Vec::new(), Vec::new());
        for symbol in &self.symbols {
            if symbol.name.len() <= 8 {
                let mut name = symbol.name.as_bytes().to_vec();
                name.resize(8, 0);
                symbols.extend(name);
            } else {
                symbols.extend(words(&[0, 4 + strings.len() as u32]));
                strings.extend(symbol.name.as_bytes());
                strings.push(0);
            }
            symbols.extend(words(&[symbol.value]));
            let (kind, class) = (u8::from(symbol.is_function) << 5, if symbol.is_external { 2 } else { 3 });
            symbols.extend([1, 0, kind, 0, class, 0]);
        }
        symbols.extend(words(&[4 + strings.len() as u32]));
        symbols.extend(strings);
        symbols
    }

    fn export_table(&self, at: u32) -> Vec<u8> {
        let count = self.exports.len() as u32;
        let (addresses, pointers) = (at + 40, at + 40 + 4 * count);
        let ordinals = pointers + 4 * count;
        let names = ordinals + 2 * count;
        let mut table = words(&[0, 0, 0, names, 1, count, count, addresses, pointers, ordinals]);
        table.extend(words(&self.exports.iter().map(|(_, rva)| *rva).collect::<Vec<_>>()));
        let mut name = names;
        for (text, _) in &self.exports {
            table.extend(words(&[name]));
            name += text.len() as u32 + 1;
        }
        table.extend((0..count as u16).flat_map(u16::to_le_bytes));
        for (text, _) in &self.exports {
            table.extend(text.as_bytes());
            table.push(0);
        }
        table
    }
}
