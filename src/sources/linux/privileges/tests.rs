#![allow(clippy::unwrap_used)]
use super::*;

const ALL: Capabilities = Capabilities((1 << 41) - 1);
const ROLES: [Role; 8] = [
    Role::Waiting,
    Role::Tracing,
    Role::SamplingByKernel,
    Role::SamplingByPtrace,
    Role::SamplingByStub,
    Role::Symbolizing,
    Role::Writing,
    Role::Watching,
];

fn first(held: Capabilities, takes_ids: bool) -> Thread {
    Thread { held, is_first: true, takes_ids, is_root: takes_ids }
}

#[test]
fn rights_are_within_held_and_permitted_capabilities() {
    for role in ROLES {
        for held in [ALL, NONE, READ, WRITE.with(PROCESSES), Capabilities(0x5555_5555_5555)] {
            for (is_first, takes_ids) in [(false, false), (false, true), (true, false), (true, true)] {
                let rights = rights(role, Thread { held, is_first, takes_ids, is_root: takes_ids });
                assert!(held.contains(rights.permitted), "{role:?}");
                assert!(rights.permitted.contains(rights.effective), "{role:?}");
                assert!(takes_ids || rights.permitted.within(IDS) == NONE, "{role:?}");
                assert!(is_first || rights.permitted == rights.effective, "{role:?}");
            }
        }
    }
}

#[test]
fn consecutive_roles_keep_all_capabilities_they_use() {
    let begin =
        [Role::Waiting, Role::Tracing, Role::SamplingByStub, Role::SamplingByPtrace, Role::SamplingByKernel];
    for takes_ids in [false, true] {
        for role in begin {
            let mut held = ALL;
            for role in [role, Role::Symbolizing, Role::Writing] {
                let now = rights(role, first(held, takes_ids));
                assert_eq!(now.effective, rights(role, first(ALL, takes_ids)).effective, "{role:?}");
                held = now.permitted;
            }
        }
    }
}

#[test]
fn sys_admin_is_dropped_if_its_parts_are_held() {
    let admin = |role, held| rights(role, first(held, false)).permitted.contains(SYS_ADMIN);
    let old = Capabilities(ALL.0 & !PARTS_OF_SYS_ADMIN.0);
    for role in [Role::SamplingByKernel, Role::SamplingByPtrace] {
        assert!(!admin(role, ALL) && admin(role, old), "{role:?}");
    }
    for role in [Role::Waiting, Role::SamplingByStub, Role::Symbolizing, Role::Writing, Role::Watching] {
        assert!(!admin(role, ALL) && !admin(role, old), "{role:?}");
    }
}

#[test]
fn only_the_calling_thread_is_restricted() {
    let before = calls::permitted().unwrap();
    let watch = || {
        restrict(Role::Watching).unwrap();
        calls::permitted().unwrap()
    };
    let inside = std::thread::spawn(watch).join().unwrap();
    assert_eq!(inside, NONE);
    assert_eq!(calls::permitted().unwrap(), before);
}

#[test]
fn a_tracing_thread_keeps_what_the_next_one_needs() {
    let waiting = rights(Role::Tracing, first(ALL, true));
    let next = Thread { held: waiting.permitted, is_first: false, takes_ids: true, is_root: true };
    let fresh = Thread { held: ALL, is_first: false, takes_ids: true, is_root: true };
    assert_eq!(rights(Role::SamplingByPtrace, next), rights(Role::SamplingByPtrace, fresh));
    assert!(!waiting.effective.contains(PROCESSES), "it asks for nothing itself");
}
