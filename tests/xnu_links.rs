//! The real Mach kernel behind its trait: every call is referenced, so that linking this
//! file proves that each name exists in libSystem, and on a Mac each is made once where
//! that is harmless: on this process, on a child, or on what does not exist.
#![cfg(target_vendor = "apple")]
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::time::{Duration, Instant};

use stackprof::sources::mach::kernel::{
    Errno, KernReturn, MachKernel, OutOfLine, StateFlavor, SuspensionToken, TaskPort, ThreadPort,
};
use stackprof::sources::mach::xnu::{Xnu, own_usage};

const NO_PROCESS: i32 = 99_999_999;

/// Through the table of methods, so that none can be left out of the program.
fn kernel() -> &'static dyn MachKernel {
    std::hint::black_box(&Xnu)
}

fn own_task() -> TaskPort {
    kernel().task_for_pid(kernel().own_pid()).unwrap()
}

#[test]
fn this_process_is_known() {
    let (kernel, task) = (kernel(), own_task());
    let pid = kernel.own_pid();
    assert_eq!(pid, i32::try_from(std::process::id()).unwrap());
    assert_eq!(kernel.pid_for_task(task), Ok(pid));
    let info = kernel.proc_bsdinfo(pid).unwrap();
    assert_eq!((info.uid, info.flags & 0x10), (kernel.effective_uid(), 0x10), "{info:?}");
    let path = std::env::current_exe().unwrap().canonicalize().unwrap();
    assert_eq!(kernel.proc_pidpath(pid), Ok(path.to_str().unwrap().to_owned()));
    let function = this_process_is_known as *const () as u64;
    assert_eq!(kernel.proc_regionfilename(pid, function), Ok(path.to_str().unwrap().to_owned()));
    assert!(kernel.proc_args(pid).unwrap().len() > 4);
    assert!(kernel.code_signing_flags(pid).is_ok());
    assert!(kernel.sysctl_i32("hw.ncpu").unwrap() > 0);
    assert_eq!(kernel.kill(pid, 0), Ok(()));
    let (cpu_ns, peak_bytes) = own_usage();
    assert!(cpu_ns > 0 && peak_bytes > 1 << 16, "{cpu_ns} ns, {peak_bytes} bytes");
    assert_eq!(kernel.port_deallocate(task.0), Ok(()));
}

#[test]
fn what_does_not_exist_is_refused() {
    let kernel = kernel();
    let (task, thread) = (TaskPort(0), ThreadPort(0));
    assert_eq!(kernel.task_for_pid(NO_PROCESS), Err(KernReturn::Failure));
    assert_eq!(kernel.proc_bsdinfo(NO_PROCESS), Err(Errno(libc::ESRCH)));
    assert_eq!(kernel.proc_pidpath(NO_PROCESS), Err(Errno(libc::ESRCH)));
    assert_eq!(kernel.kill(NO_PROCESS, 0), Err(Errno(libc::ESRCH)));
    assert!(kernel.sysctl_i32("stackprof.no_such_number").is_err());
    assert!(kernel.task_suspend2(task).is_err());
    assert!(kernel.task_resume2(SuspensionToken(0)).is_err());
    assert!(kernel.task_threads(task, &mut Vec::new()).is_err());
    assert!(kernel.task_dyld_info(task, 5).is_err());
    assert!(kernel.thread_basic_info(thread, 10).is_err());
    assert!(kernel.spawn_suspended(&[], &[]).is_err());
    assert!(kernel.spawn_suspended(&[OsString::from("/no/such/program")], &[]).is_err());
    assert!(kernel.own_shared_cache(0x1000, 1).is_none());
    assert_eq!(kernel.vm_deallocate(OutOfLine { address: 0, size: 0 }), Ok(()));
}

#[test]
fn threads_and_their_registers_are_told() {
    let (kernel, task) = (kernel(), own_task());
    let flavor = if cfg!(target_arch = "aarch64") { StateFlavor::ARM64 } else { StateFlavor::X86_64 };
    let mut threads = Vec::new();
    let array = kernel.task_threads(task, &mut threads).unwrap();
    assert!(!threads.is_empty());
    assert_eq!(array.size, threads.len() as u64 * 4);
    let mut ids = Vec::new();
    for thread in &threads {
        // Other tests' threads may end meanwhile.
        let Ok(info) = kernel.thread_identifier_info(*thread, 6) else { continue };
        ids.push(info.thread_id);
        assert_eq!(kernel.thread_identifier_info(*thread, 5).unwrap_err(), KernReturn::InvalidArgument);
        let _ = kernel.thread_extended_info(*thread, 28);
        let (mut state, mut count) = ([0; StateFlavor::COUNT_MAX], flavor.count);
        if kernel.thread_get_state(*thread, flavor.flavor, &mut state, &mut count).is_ok() {
            assert_eq!(count, flavor.count);
        }
    }
    assert!(!ids.is_empty());
    for thread in threads {
        assert_eq!(kernel.port_deallocate(thread.0), Ok(()));
    }
    assert_eq!(kernel.vm_deallocate(array), Ok(()));
    assert_eq!(kernel.port_deallocate(task.0), Ok(()));
}

#[test]
fn memory_regions_and_the_shared_cache_are_readable() {
    let (kernel, task) = (kernel(), own_task());
    let (known, mut read) = (*b"stackprof", [0; 9]);
    let address = known.as_ptr() as u64;
    assert_eq!(kernel.vm_read_overwrite(task, address, &mut read), Ok(()));
    assert_eq!(read, known);
    assert_eq!(kernel.vm_read_overwrite(task, 0, &mut read), Err(KernReturn::InvalidAddress));
    let region = kernel.vm_region_recurse(task, address, 1024, 19).unwrap();
    assert!(region.address <= address && address < region.address + region.size, "{region:?}");
    assert_eq!(kernel.task_dyld_info(task, 5).unwrap().all_image_info_format, 1);
    assert_eq!(kernel.task_dyld_info(task, 4).unwrap_err(), KernReturn::InvalidArgument);
    if let Some((_, first, size)) = kernel.own_shared_cache_identity() {
        assert!(kernel.own_shared_cache(first, 16).unwrap().bytes().starts_with(b"dyld_v1"));
        assert!(kernel.own_shared_cache(first + size - 1, 2).is_none());
    }
    assert_eq!(kernel.port_deallocate(task.0), Ok(()));
}

#[test]
fn time_passes_in_ticks() {
    let kernel = kernel();
    let (numer, denom) = kernel.timebase();
    let start = kernel.absolute_time();
    let deadline = start + 1_000_000 * u64::from(denom) / u64::from(numer);
    while kernel.wait_until(deadline) == Err(KernReturn::Aborted) {}
    assert!(kernel.absolute_time() >= deadline);
    assert!(kernel.page_size().is_power_of_two());
    assert_eq!(kernel.request_interactive_qos(), Ok(()));
}

#[test]
fn a_command_waits_until_it_is_let_go() {
    let kernel = kernel();
    let pid = kernel.spawn_suspended(&["true".into()], &[]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(kernel.wait_ended(pid), Ok(None));
    kernel.kill(pid, libc::SIGCONT).unwrap();
    let start = Instant::now();
    loop {
        match kernel.wait_ended(pid).unwrap() {
            Some(status) => return assert_eq!(status, 0),
            None => assert!(start.elapsed() < Duration::from_secs(120), "`true` does not end"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Only `scripts/check-macos.sh --prove` builds this, to see that linking fails.
#[cfg(misspelt)]
#[test]
#[allow(unsafe_code)]
fn a_misspelt_call_does_not_link() {
    unsafe extern "C" {
        fn mach_vm_reed(task: u32) -> i32;
    }
    // SAFETY: never linked, so never run.
    assert_eq!(unsafe { mach_vm_reed(0) }, 0);
}
