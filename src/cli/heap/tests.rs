//! Texts of a heap recording.

use super::*;
use crate::heap::{HeapModel, SamplingRate};
use crate::sources::pushed::UnseenAllocator;
use crate::trie::NodeId;

/// A megabyte in blocks of 1 KiB, half of it freed.
fn values(every_bytes: u64, moment: Moment) -> HeapValues {
    let mut model = HeapModel::new(SamplingRate::new(every_bytes));
    for pointer in 0..1024 {
        model.allocate(1, pointer, 1024, pointer, Some(NodeId(1)));
    }
    for pointer in 0..512 {
        model.free(1, pointer, 10 * crate::heap::CHURN_NS, false);
    }
    model.values(moment)
}

fn heap(shown: ValueKind) -> Heap {
    let parsed = crate::cli::args::parse(["heap", "--", "p"].map(Into::into), &|_| unreachable!("no name"));
    let Ok(crate::cli::args::Command::Record(recording)) = parsed else { panic!("it is one") };
    Heap { value_type: Some(shown), ..recording.heap.expect("of allocations") }
}

#[test]
fn headings_name_the_quantity() {
    let counted =
        |kind, moment| counted(&Heap { peak: moment == Moment::Peak, ..heap(kind) }, &values(1, moment), 1);
    let old = Heap { older_than: Some(std::time::Duration::from_secs(30)), ..heap(ValueKind::InuseSpace) };
    let text = super::counted(&old, &values(1, Moment::End), 1);
    assert_eq!(text, "512.0 KiB in use at the end, older than 30.0 s");
    assert_eq!(counted(ValueKind::InuseSpace, Moment::End), "512.0 KiB in use at the end");
    assert_eq!(counted(ValueKind::InuseSpace, Moment::Peak), "1.0 MiB in use at the peak");
    assert_eq!(counted(ValueKind::AllocSpace, Moment::End), "1.0 MiB allocated in all");
    assert_eq!(counted(ValueKind::InuseObjects, Moment::End), "512 allocations in use at the end");
    assert_eq!(counted(ValueKind::ChurnObjects, Moment::End), "0 allocations freed within 1 ms");
}

#[test]
fn the_error_is_shown_only_for_sampled_values() {
    assert_eq!(error(&values(1, Moment::End).inuse.0, bytes), "");
    // 512 samples of about 64 KiB each: 1.96 / sqrt(512) is 8.6 %; the upper end is farther.
    assert_eq!(error(&values(64 << 10, Moment::End).inuse.0, bytes), " ±10.0%");
}

#[test]
fn what_is_not_seen_is_named_with_its_share_of_the_memory() {
    let unseen = |functions: &str| UnseenAllocator { functions: functions.into(), next: "why".into() };
    let losses = AllocationLosses {
        unseen: vec![unseen("malloc of prog")],
        resident_bytes: Some(5 << 20),
        ..AllocationLosses::default()
    };
    let expected = "malloc of prog (why); 5.0 MiB resident beside 2.0 MiB in use that are seen";
    assert_eq!(not_seen(&losses, 2 << 20).as_deref(), Some(expected));
    let many = AllocationLosses { unseen: vec![unseen("a"); 7], ..AllocationLosses::default() };
    assert_eq!(not_seen(&many, 0).as_deref(), Some("a (why); a (why); a (why); a (why); 3 others"));
    assert_eq!(not_seen(&AllocationLosses::default(), 0), None);
}

#[test]
fn python_gets_its_hint() {
    let of = |paths: &[&str], is_shown| python_hint(paths.iter().copied(), is_shown).is_some();
    assert!(of(&["/lib/libc.so.6", "/usr/bin/python3.11"], false));
    assert!(of(&["/opt/lib/libpython3.12.so.1.0"], false));
    assert!(!of(&["/usr/bin/python3.11"], true) && !of(&["/usr/bin/prog", "/lib/pythonless.so"], false));
}
