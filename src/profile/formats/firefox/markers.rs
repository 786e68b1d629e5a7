//! Events and losses as markers of the Firefox Profiler: in its marker chart and table, at their times.

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, MarkerFieldFlags, MarkerFieldFormat, MarkerTiming, Profile,
    StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};

use crate::profile::saved::Saved;
use crate::profile::timeline::{Event, EventKind, ThreadIndex, Timeline};

/// A marker: what happened, and to what.
struct Note {
    name: StringHandle,
    text: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for Note {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "stackprof";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}: {marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "Details",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

/// Writes the events and losses of a timeline, whose threads are `handles`. What belongs to no thread that has samples is
/// shown with the first one.
pub(super) fn write(profile: &mut Profile, saved: &Saved, timeline: &Timeline, handles: &[ThreadHandle]) {
    let Some(first) = handles.first().copied() else { return };
    if timeline.events.is_empty() && timeline.losses.is_empty() {
        return;
    }
    let at = Timestamp::from_nanos_since_reference;
    let (events, lost) = (
        profile.add_category("Event", CategoryColor::Green),
        profile.add_category("Lost", CategoryColor::Red),
    );
    let threads = ThreadIndex::new(timeline);
    for event in &timeline.events {
        let (name, text) = (profile.intern_string(event.kind.words()), words(saved, event));
        let note = Note { name, text: profile.intern_string(&text), category: events };
        let handle = threads.of_process(event).and_then(|index| handles.get(index)).copied();
        profile.add_marker(handle.unwrap_or(first), MarkerTiming::Instant(at(event.at_ns)), note);
    }
    let period_ns = saved.about.period_ns().unwrap_or(f64::INFINITY);
    for loss in &timeline.losses {
        let name = profile.intern_string("lost samples");
        let text = format!("about {}: {}", loss.words(period_ns), saved.text(loss.reason));
        let text = profile.intern_string(&text);
        let timing = MarkerTiming::Interval(at(loss.since_ns), at(loss.at_ns));
        profile.add_marker(first, timing, Note { name, text, category: lost });
    }
}

/// What an event is of.
fn words(saved: &Saved, event: &Event) -> String {
    let text = saved.text(event.text);
    // A process without samples has the name of its first thread.
    let process = Some(saved.text(event.process)).filter(|name| !name.is_empty()).unwrap_or(text);
    match event.kind {
        EventKind::ThreadStart | EventKind::ThreadEnd => format!("{text} ({})", event.thread),
        EventKind::Exec => format!("{text} ({})", event.pid),
        EventKind::ImageLoad => text.to_owned(),
        EventKind::ProcessStart | EventKind::ProcessEnd => format!("{process} ({})", event.pid),
    }
}
