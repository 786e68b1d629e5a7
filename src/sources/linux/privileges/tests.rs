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

fn first(held: Capabilities, takes_ids: bool) -> ThreadRights {
    ThreadRights { held, is_first: true, takes_ids, is_root: takes_ids, of_targets: NONE }
}

#[test]
fn rights_are_within_held_and_permitted_capabilities() {
    for role in ROLES {
        for held in [ALL, NONE, READ, WRITE.with(PROCESSES), Capabilities(0x5555_5555_5555)] {
            for (is_first, takes_ids) in [(false, false), (false, true), (true, false), (true, true)] {
                let rights = rights(
                    role,
                    ThreadRights { held, is_first, takes_ids, is_root: takes_ids, of_targets: NONE },
                );
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
    let before = super::permitted().unwrap();
    let watch = || {
        restrict(Role::Watching).unwrap();
        super::permitted().unwrap()
    };
    let inside = std::thread::spawn(watch).join().unwrap();
    assert_eq!(inside, NONE);
    assert_eq!(super::permitted().unwrap(), before);
}

#[test]
fn a_tracing_thread_keeps_what_the_next_one_needs() {
    let waiting = rights(Role::Tracing, first(ALL, true));
    let next = ThreadRights {
        held: waiting.permitted,
        is_first: false,
        takes_ids: true,
        is_root: true,
        of_targets: NONE,
    };
    let fresh = ThreadRights { held: ALL, is_first: false, takes_ids: true, is_root: true, of_targets: NONE };
    assert_eq!(rights(Role::SamplingByPtrace, next), rights(Role::SamplingByPtrace, fresh));
    assert!(!waiting.effective.contains(PROCESSES), "it asks for nothing itself");
}

/// What a container gives to root by default: no CAP_SYS_PTRACE.
const DEFAULT: Capabilities = Capabilities(0xa804_25fb);

#[test]
fn without_the_right_to_trace_all_a_sampler_keeps_what_its_targets_hold() {
    let net_raw = Capabilities::of(&[13]);
    for (role, is_first) in
        [(Role::SamplingByKernel, false), (Role::SamplingByPtrace, false), (Role::Tracing, true)]
    {
        for (held, of_targets, kept) in [
            (DEFAULT, DEFAULT, DEFAULT),
            (DEFAULT, ALL, DEFAULT),
            (DEFAULT, net_raw, net_raw),
            (DEFAULT, NONE, NONE),
            (ALL, ALL, NONE),
            (DEFAULT.with(PROCESSES), DEFAULT, NONE),
        ] {
            let needs = |of_targets| {
                let thread = ThreadRights { held, is_first, takes_ids: false, is_root: false, of_targets };
                rights(role, thread)
            };
            let (with, without) = (needs(of_targets), needs(NONE));
            let permitted = without.permitted.with(kept);
            assert_eq!(with.permitted, permitted, "{role:?} {held:?} {of_targets:?}");
            // The first thread reads nothing: only the next sampler does.
            let effective = if is_first { without.effective } else { without.effective.with(kept) };
            assert_eq!(with.effective, effective, "{role:?} {held:?} {of_targets:?}");
        }
    }
    for role in [Role::Waiting, Role::SamplingByStub, Role::Symbolizing, Role::Writing, Role::Watching] {
        let thread = |of_targets| ThreadRights {
            held: DEFAULT,
            is_first: true,
            takes_ids: false,
            is_root: false,
            of_targets,
        };
        assert_eq!(rights(role, thread(DEFAULT)), rights(role, thread(NONE)), "{role:?}");
    }
}
