//! The messages of profiles.proto (`v1development`) and of common.proto that they need, field by field.
//!
//! Large messages are read one field at a time (`formats/protobuf.rs`), so that a file's size is not
//! multiplied in memory.

/// Field numbers of messages that are not decoded as a whole.
pub(super) mod field {
    // ProfilesData
    pub(in super::super) const RESOURCE_PROFILES: u32 = 1;
    pub(in super::super) const DICTIONARY: u32 = 2;
    // ResourceProfiles
    pub(in super::super) const RESOURCE: u32 = 1;
    pub(in super::super) const SCOPE_PROFILES: u32 = 2;
    // Resource
    pub(in super::super) const RESOURCE_ATTRIBUTES: u32 = 1;
    // ScopeProfiles
    pub(in super::super) const SCOPE: u32 = 1;
    pub(in super::super) const PROFILES: u32 = 2;
    // ProfilesDictionary
    pub(in super::super) const MAPPING_TABLE: u32 = 1;
    pub(in super::super) const LOCATION_TABLE: u32 = 2;
    pub(in super::super) const FUNCTION_TABLE: u32 = 3;
    pub(in super::super) const LINK_TABLE: u32 = 4;
    pub(in super::super) const STRING_TABLE: u32 = 5;
    pub(in super::super) const ATTRIBUTE_TABLE: u32 = 6;
    pub(in super::super) const STACK_TABLE: u32 = 7;
    // Profile
    pub(in super::super) const SAMPLE_TYPE: u32 = 1;
    pub(in super::super) const SAMPLES: u32 = 2;
    pub(in super::super) const TIME_UNIX_NANO: u32 = 3;
    pub(in super::super) const DURATION_NANO: u32 = 4;
    pub(in super::super) const PERIOD_TYPE: u32 = 5;
    pub(in super::super) const PERIOD: u32 = 6;
    pub(in super::super) const PROFILE_ATTRIBUTES: u32 = 11;
    // Sample
    pub(in super::super) const STACK_INDEX: u32 = 1;
    pub(in super::super) const SAMPLE_ATTRIBUTES: u32 = 2;
    pub(in super::super) const VALUES: u32 = 4;
    pub(in super::super) const TIMESTAMPS: u32 = 5;
    // Stack
    pub(in super::super) const LOCATION_INDICES: u32 = 1;
    // KeyValue and KeyValueAndUnit
    pub(in super::super) const KEY: u32 = 1;
    pub(in super::super) const VALUE: u32 = 2;
    pub(in super::super) const KEY_INDEX: u32 = 3;
    pub(in super::super) const UNIT: u32 = 3;
    // AnyValue
    pub(in super::super) const TEXT: u32 = 1;
    pub(in super::super) const BOOL: u32 = 2;
    pub(in super::super) const INT: u32 = 3;
    pub(in super::super) const ARRAY: u32 = 5;
    pub(in super::super) const BYTES: u32 = 7;
    pub(in super::super) const TEXT_INDEX: u32 = 8;
    // ArrayValue
    pub(in super::super) const ARRAY_VALUES: u32 = 1;
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
