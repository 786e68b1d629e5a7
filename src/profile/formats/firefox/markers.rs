//! Events and losses as markers of the Firefox Profiler: in its marker chart and table, at their times.

use serde_json::{Value, json};

use super::categories::{EVENT, LOST};
use super::columns::{MarkerColumns, MarkerData, milliseconds};

use crate::profile::saved::SavedProfile;
use crate::profile::timeline::{Event, EventKind, ThreadIndex, Timeline};

/// Name of the common marker type.
const TYPE: &str = "stackprof";

/// A marker: an event or a loss.
#[derive(Clone, Debug)]
pub(super) struct Marker {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) category: u8,
    pub(super) at_ns: u64,
    /// `None` for an instant.
    pub(super) end_ns: Option<u64>,
}

/// The marker schema for viewers.
pub(super) fn schema() -> Value {
    json!({
        "name": TYPE,
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "chartLabel": "{marker.data.text}",
        "tableLabel": "{marker.name}: {marker.data.text}",
        "fields": [{ "key": "text", "label": "Details", "format": "string", "searchable": true }],
    })
}

/// The markers of each thread of a timeline. Those without a thread that has samples are shown with the first
/// one.
pub(super) fn by_thread(saved: &SavedProfile, timeline: &Timeline) -> Vec<Vec<Marker>> {
    let mut markers = vec![Vec::new(); timeline.threads.len()];
    if markers.is_empty() {
        return markers;
    }
    let threads = ThreadIndex::new(timeline);
    for event in &timeline.events {
        let index = threads.of_process(event).filter(|index| *index < markers.len()).unwrap_or(0);
        markers[index].push(Marker {
            name: event.kind.words(),
            text: details(saved, event),
            category: EVENT,
            at_ns: event.at_ns,
            end_ns: None,
        });
    }
    let period_ns = saved.about.period_ns().unwrap_or(f64::INFINITY);
    markers[0].extend(timeline.losses.iter().map(|loss| Marker {
        name: "lost samples",
        text: format!("about {}: {}", loss.words(period_ns), saved.text(loss.reason)),
        category: LOST,
        at_ns: loss.since_ns,
        end_ns: Some(loss.at_ns),
    }));
    markers
}

/// The subject of an event.
fn details(saved: &SavedProfile, event: &Event) -> String {
    let text = saved.text(event.text);
    // A process without samples is named after its first thread.
    let process = Some(saved.text(event.process)).filter(|name| !name.is_empty()).unwrap_or(text);
    match event.kind {
        EventKind::ThreadStart | EventKind::ThreadEnd => format!("{text} ({})", event.thread),
        EventKind::Exec => format!("{text} ({})", event.pid),
        EventKind::ImageLoad => text.to_owned(),
        EventKind::ProcessStart | EventKind::ProcessEnd => format!("{process} ({})", event.pid),
    }
}

/// The marker columns of a thread; `string` returns the index of a text.
pub(super) fn columns(markers: Vec<Marker>, mut string: impl FnMut(&'static str) -> u32) -> MarkerColumns {
    let mut columns = MarkerColumns::default();
    for marker in markers {
        columns.length += 1;
        columns.category.push(marker.category);
        columns.data.push(MarkerData { kind: TYPE, text: marker.text });
        columns.name.push(string(marker.name));
        columns.start_time.push(milliseconds(marker.at_ns));
        columns.end_time.push(marker.end_ns.map(milliseconds));
        // 0 is an instant, 1 an interval.
        columns.phase.push(u8::from(marker.end_ns.is_some()));
    }
    columns
}
