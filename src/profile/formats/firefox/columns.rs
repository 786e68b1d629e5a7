//! Tables of a thread in the file's layout: columns of equal length (version 55 of the format).

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

/// A column of one value.
pub(super) struct ConstantColumn<T>(pub(super) T, pub(super) usize);

impl<T: Serialize> Serialize for ConstantColumn<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut column = serializer.serialize_seq(Some(self.1))?;
        for _ in 0..self.1 {
            column.serialize_element(&self.0)?;
        }
        column.end()
    }
}

/// A thread.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileThread<'t> {
    pub(super) name: &'t str,
    pub(super) is_main_thread: bool,
    pub(super) process_type: &'static str,
    pub(super) process_name: &'t str,
    pub(super) process_startup_time: f64,
    pub(super) process_shutdown_time: Option<f64>,
    pub(super) register_time: f64,
    pub(super) unregister_time: Option<f64>,
    pub(super) paused_ranges: [(); 0],
    pub(super) show_markers_in_timeline: bool,
    pub(super) pid: &'t str,
    pub(super) tid: u64,
    pub(super) samples: SampleColumns<'t>,
    pub(super) markers: MarkerColumns,
    pub(super) stack_table: StackColumns<'t>,
    pub(super) frame_table: FrameColumns,
    pub(super) func_table: FuncColumns,
    pub(super) resource_table: ResourceColumns,
    pub(super) native_symbols: NativeSymbolColumns,
    pub(super) string_array: &'t [Cow<'t, str>],
}

/// Samples.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SampleColumns<'t> {
    pub(super) length: usize,
    pub(super) weight_type: &'static str,
    pub(super) stack: &'t [Option<u32>],
    /// Milliseconds since the previous sample.
    pub(super) time_deltas: Vec<f64>,
    pub(super) weight: &'t [u64],
    #[serde(rename = "threadCPUDelta")]
    pub(super) thread_cpu_delta: &'t [u64],
}

/// Stacks.
#[derive(Serialize)]
pub(super) struct StackColumns<'t> {
    pub(super) length: usize,
    pub(super) prefix: &'t [Option<u32>],
    pub(super) frame: &'t [u32],
}

/// Frames.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FrameColumns {
    pub(super) length: usize,
    /// -1 for none.
    pub(super) address: Vec<i64>,
    pub(super) inline_depth: Vec<u32>,
    pub(super) category: Vec<u8>,
    pub(super) subcategory: ConstantColumn<u8>,
    pub(super) func: Vec<u32>,
    pub(super) native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    pub(super) inner_window_id: ConstantColumn<u8>,
    pub(super) line: Vec<Option<u32>>,
    pub(super) column: ConstantColumn<()>,
}

/// Functions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FuncColumns {
    pub(super) length: usize,
    pub(super) name: Vec<u32>,
    #[serde(rename = "isJS")]
    pub(super) is_js: ConstantColumn<bool>,
    #[serde(rename = "relevantForJS")]
    pub(super) relevant_for_js: ConstantColumn<bool>,
    /// -1 for none.
    pub(super) resource: Vec<i64>,
    pub(super) file_name: Vec<Option<u32>>,
    pub(super) line_number: Vec<Option<u32>>,
    pub(super) column_number: ConstantColumn<()>,
}

/// Origins of functions: libraries.
#[derive(Serialize)]
pub(super) struct ResourceColumns {
    pub(super) length: usize,
    pub(super) lib: Vec<u32>,
    pub(super) name: Vec<u32>,
    pub(super) host: ConstantColumn<()>,
    #[serde(rename = "type")]
    pub(super) kind: ConstantColumn<u8>,
}

/// Functions as the linker knows them, which others may be inlined into.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NativeSymbolColumns {
    pub(super) length: usize,
    pub(super) address: Vec<u32>,
    pub(super) function_size: ConstantColumn<()>,
    pub(super) lib_index: Vec<u32>,
    pub(super) name: Vec<u32>,
}

/// Markers: events and losses.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MarkerColumns {
    pub(super) length: usize,
    pub(super) category: Vec<u8>,
    pub(super) data: Vec<MarkerData>,
    pub(super) start_time: Vec<f64>,
    pub(super) end_time: Vec<Option<f64>>,
    pub(super) name: Vec<u32>,
    pub(super) phase: Vec<u8>,
}

/// Data of a marker besides its name.
#[derive(Serialize)]
pub(super) struct MarkerData {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// Converts a time to the format's unit.
pub(super) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
