//! The messages of profiles.proto (`v1development`) and of common.proto that they need, field by field.
//!
//! Large messages are read one field at a time (`protobuf.rs`), so that a file's size is not
//! multiplied in memory.

/// Field numbers of messages that are not decoded as a whole.
pub(super) mod field {
    // ProfilesData
    pub(crate) const RESOURCE_PROFILES: u32 = 1;
    pub(crate) const DICTIONARY: u32 = 2;
    // ResourceProfiles
    pub(crate) const RESOURCE: u32 = 1;
    pub(crate) const SCOPE_PROFILES: u32 = 2;
    // Resource
    pub(crate) const RESOURCE_ATTRIBUTES: u32 = 1;
    // ScopeProfiles
    pub(crate) const SCOPE: u32 = 1;
    pub(crate) const PROFILES: u32 = 2;
    // ProfilesDictionary
    pub(crate) const MAPPING_TABLE: u32 = 1;
    pub(crate) const LOCATION_TABLE: u32 = 2;
    pub(crate) const FUNCTION_TABLE: u32 = 3;
    pub(crate) const LINK_TABLE: u32 = 4;
    pub(crate) const STRING_TABLE: u32 = 5;
    pub(crate) const ATTRIBUTE_TABLE: u32 = 6;
    pub(crate) const STACK_TABLE: u32 = 7;
    // Profile
    pub(crate) const SAMPLE_TYPE: u32 = 1;
    pub(crate) const SAMPLES: u32 = 2;
    pub(crate) const TIME_UNIX_NANO: u32 = 3;
    pub(crate) const DURATION_NANO: u32 = 4;
    pub(crate) const PERIOD_TYPE: u32 = 5;
    pub(crate) const PERIOD: u32 = 6;
    pub(crate) const PROFILE_ATTRIBUTES: u32 = 11;
    // Sample
    pub(crate) const STACK_INDEX: u32 = 1;
    pub(crate) const SAMPLE_ATTRIBUTES: u32 = 2;
    pub(crate) const VALUES: u32 = 4;
    pub(crate) const TIMESTAMPS: u32 = 5;
    // Stack
    pub(crate) const LOCATION_INDICES: u32 = 1;
    // KeyValue and KeyValueAndUnit
    pub(crate) const KEY: u32 = 1;
    pub(crate) const VALUE: u32 = 2;
    pub(crate) const KEY_INDEX: u32 = 3;
    pub(crate) const UNIT: u32 = 3;
    // AnyValue
    pub(crate) const TEXT: u32 = 1;
    pub(crate) const BOOL: u32 = 2;
    pub(crate) const INT: u32 = 3;
    pub(crate) const ARRAY: u32 = 5;
    pub(crate) const BYTES: u32 = 7;
    pub(crate) const TEXT_INDEX: u32 = 8;
    // ArrayValue
    pub(crate) const ARRAY_VALUES: u32 = 1;
}

/// Kind (`cpu`) and unit (`nanoseconds`) of a value; both are strings of the table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ValueType {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// A stack with its observations.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Sample {
    #[prost(int32, tag = "1")]
    pub stack: i32,
    #[prost(int32, repeated, tag = "2")]
    pub attributes: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub values: Vec<i64>,
    #[prost(fixed64, repeated, tag = "5")]
    pub timestamps_unix_ns: Vec<u64>,
}

/// A part of a file mapped as code.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub memory_start: u64,
    #[prost(uint64, tag = "2")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "3")]
    pub file_offset: u64,
    #[prost(int32, tag = "4")]
    pub filename: i32,
    #[prost(int32, repeated, tag = "5")]
    pub attributes: Vec<i32>,
}

/// Locations, leaf first.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Stack {
    #[prost(int32, repeated, tag = "1")]
    pub locations: Vec<i32>,
}

/// An address with the functions there, innermost first.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Location {
    #[prost(int32, tag = "1")]
    pub mapping: i32,
    #[prost(uint64, tag = "2")]
    pub address: u64,
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    pub attributes: Vec<i32>,
}

/// A function, and the line in it.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Line {
    #[prost(int32, tag = "1")]
    pub function: i32,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function; the names are strings of the table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Function {
    #[prost(int32, tag = "1")]
    pub name: i32,
    #[prost(int32, tag = "2")]
    pub system_name: i32,
    #[prost(int32, tag = "3")]
    pub filename: i32,
    #[prost(int64, tag = "4")]
    pub start_line: i64,
}

/// Trace link; only the empty item 0 is written.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Link {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

/// An attribute; key and unit are strings of the table.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    pub key: i32,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
    #[prost(int32, tag = "3")]
    pub unit: i32,
}

/// An attribute of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// The profiled resource.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// The profiler.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A value of an attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 2, 3, 5, 7")]
    pub value: Option<Any>,
}

/// The supported kinds of values.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
    #[prost(bytes, tag = "7")]
    Bytes(Vec<u8>),
}

impl Any {
    /// A list of texts.
    pub(super) fn texts(texts: Vec<String>) -> Any {
        let value = |text| AnyValue { value: Some(Any::Text(text)) };
        Any::Array(ArrayValue { values: texts.into_iter().map(value).collect() })
    }
}

/// A list of values.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<AnyValue>,
}
