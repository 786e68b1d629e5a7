//! The real kernel: each method of `MachKernel` is the call, the conversion of its code, and the copy to
//! plain types.
//!
//! The calls are those of `mach2` and `libc`; the few that both lack are declared here. Mach calls never set
//! errno, and it is never read after one; BSD calls set it, except posix_spawn, which returns it. Tests on
//! other systems cannot run this file, so it makes no decisions.
#![cfg(target_vendor = "apple")]
#![allow(unsafe_code)]

use std::ffi::{CString, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use mach2::kern_return::kern_return_t;
use mach2::mach_port::mach_port_deallocate;
use mach2::mach_time::{mach_absolute_time, mach_timebase_info, mach_wait_until};
use mach2::task::{task_info, task_resume2, task_suspend2, task_threads};
use mach2::thread_act::thread_get_state;
use mach2::traps::{mach_task_self, task_for_pid};
use mach2::vm::{mach_vm_deallocate, mach_vm_read_overwrite, mach_vm_region_recurse};

use super::kernel::{
    BsdInfo, Errno, Kern, KernReturn, MachKernel, OutOfLine, Region, StateFlavor, SuspensionToken,
    TaskDyldInfo, TaskPort, ThreadBasicInfo, ThreadExtendedInfo, ThreadIdentifierInfo, ThreadPort,
};
use super::layout::{
    self, RawBsdInfo, RawRegionInfo, RawTaskDyldInfo, RawThreadBasicInfo, RawThreadExtendedInfo,
    RawThreadIdentifierInfo, words,
};
use super::memory::DEEPEST;
use crate::arch::Arch;
use crate::binary::ImageBytes;
use crate::sources::process_name::RunningProcess;
use crate::sources::startup;

// SAFETY: the declarations of osfmk/mach/mach_traps.h, bsd/sys/codesign.h,
// dyld's include/mach-o/dyld_priv.h and libpthread's include/pthread/qos.h.
unsafe extern "C" {
    fn pid_for_task(task: u32, pid: *mut c_int) -> kern_return_t;
    fn csops(pid: libc::pid_t, operation: c_uint, into: *mut c_void, size: usize) -> c_int;
    fn pthread_set_qos_class_self_np(class: c_uint, relative_priority: c_int) -> c_int;
    fn _dyld_get_shared_cache_uuid(uuid: *mut u8) -> bool;
    fn _dyld_get_shared_cache_range(size: *mut usize) -> *const c_void;
}

// osfmk/mach/thread_info.h, task_info.h, bsd/sys/codesign.h.
const THREAD_BASIC_INFO: c_uint = 3;
const THREAD_IDENTIFIER_INFO: c_uint = 4;
const THREAD_EXTENDED_INFO: c_uint = 5;
const TASK_DYLD_INFO: c_uint = 17;
const CS_OPS_STATUS: c_uint = 0;
/// libpthread's include/sys/qos.h.
const QOS_CLASS_USER_INTERACTIVE: c_uint = 0x21;
/// MACH_SEND_* of osfmk/mach/message.h.
const SEND_FAILURES: std::ops::Range<i32> = 0x1000_0001..0x1000_4000;

// The libraries' declarations equal those of layout.rs.
const _: () = {
    assert!(size_of::<libc::thread_basic_info>() == size_of::<RawThreadBasicInfo>());
    assert!(size_of::<libc::thread_identifier_info>() == size_of::<RawThreadIdentifierInfo>());
    assert!(size_of::<libc::thread_extended_info>() == size_of::<RawThreadExtendedInfo>());
    assert!(size_of::<libc::proc_bsdinfo>() == size_of::<RawBsdInfo>());
    assert!(size_of::<mach2::task_info::task_dyld_info>() == size_of::<RawTaskDyldInfo>());
    assert!(size_of::<mach2::vm_region::vm_region_submap_info_64>() == size_of::<RawRegionInfo>());
    assert!(TASK_DYLD_INFO == mach2::task_info::TASK_DYLD_INFO);
    assert!(libc::PROC_PIDTBSDINFO == 3 && libc::KERN_PROCARGS2 == 49);
    assert!(libc::POSIX_SPAWN_START_SUSPENDED == 0x0080);
    assert!(libc::POSIX_SPAWN_SETSIGDEF == 0x0004 && libc::POSIX_SPAWN_SETSIGMASK == 0x0008);
};

/// The kernel of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Xnu;

fn kern(code: kern_return_t) -> Kern<()> {
    KernReturn::from_code(code).map_or(Ok(()), Err)
}

fn errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn bsd(result: c_int) -> Result<(), Errno> {
    if result == -1 { Err(errno()) } else { Ok(()) }
}

/// The name of this task's own port.
fn own_task() -> u32 {
    // SAFETY: reads a variable that is set before `main` and never again.
    unsafe { mach_task_self() }
}

/// A structure of words that `call` fills, given its address and the number of words: `count`, but never more
/// than fit.
fn filled<T: Copy + Default>(count: u32, call: impl FnOnce(*mut i32, *mut u32) -> kern_return_t) -> Kern<T> {
    let mut info = T::default();
    let mut count = count.min(words::<T>());
    kern(call((&raw mut info).cast(), &raw mut count))?;
    Ok(info)
}

/// `thread_info` of one flavor.
fn thread_info<T: Copy + Default>(thread: ThreadPort, flavor: c_uint, count: u32) -> Kern<T> {
    filled(count, |info, count| {
        // SAFETY: `filled` passes a live structure that holds `count` words.
        unsafe { libc::thread_info(thread.0, flavor, info, count) }
    })
}

/// A path that `call` writes into a buffer and returns the length of; 0 or less: it failed, and errno has the
/// reason.
fn path(call: impl FnOnce(*mut c_void, u32) -> c_int) -> Result<String, Errno> {
    let mut buffer = [0u8; libc::PROC_PIDPATHINFO_MAXSIZE as usize];
    // SAFETY: __error returns the address of this thread's errno. It is cleared because an empty path also
    // returns 0, without setting it.
    unsafe { *libc::__error() = 0 };
    let length = call(buffer.as_mut_ptr().cast(), buffer.len() as u32);
    match errno() {
        _ if length > 0 => Ok(layout::text(&buffer)),
        Errno(0) => Err(Errno(libc::ENOENT)),
        failed => Err(failed),
    }
}

/// All other processes. Those of other users may lack a name.
#[must_use]
pub fn processes() -> Vec<RunningProcess> {
    let process = |id: i32| {
        let path = Xnu.proc_pidpath(id).unwrap_or_default();
        let name = Xnu.proc_bsdinfo(id).map(|info| info.name).unwrap_or_default();
        let command = if path.is_empty() { name.clone() } else { path.clone() };
        RunningProcess { pid: id.unsigned_abs(), names: vec![name, path], command }
    };
    other_processes().into_iter().map(process).collect()
}

/// Other processes with this text in their arguments or in their environment, as they were started. Only those of
/// this user, unless it is root.
#[must_use]
pub fn processes_with(text: &[u8]) -> Vec<u32> {
    let has = |id: &i32| Xnu.proc_args(*id).is_ok_and(|words| memchr::memmem::find(&words, text).is_some());
    other_processes().into_iter().filter(has).map(i32::unsigned_abs).collect()
}

fn other_processes() -> Vec<i32> {
    let mut ids = vec![0i32; PROCESSES_MAX];
    let size = c_int::try_from(size_of_val(ids.as_slice())).unwrap_or(c_int::MAX);
    // SAFETY: `ids` is live and `size` bytes long. The call returns the number of ids, 0 or less when it failed
    // (Libc, gen/libproc.c).
    let count = unsafe { libc::proc_listallpids(ids.as_mut_ptr().cast(), size) };
    ids.truncate(usize::try_from(count).unwrap_or(0));
    let own = std::process::id().cast_signed();
    ids.retain(|id| *id > 0 && *id != own);
    ids
}

/// Most processes to list: above `kern.maxproc` of any Mac.
const PROCESSES_MAX: usize = 1 << 16;

/// CPU time of this process in nanoseconds, and its peak resident memory in bytes.
#[must_use]
pub fn own_usage() -> (u64, u64) {
    // SAFETY: a structure of numbers, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is live; RUSAGE_SELF cannot fail, and zeros would stay.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ns = |time: libc::timeval| {
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() as u64 * 1_000
    };
    // getrusage(2) of macOS: ru_maxrss is in bytes.
    (ns(usage.ru_utime) + ns(usage.ru_stime), usage.ru_maxrss.unsigned_abs())
}

impl MachKernel for Xnu {
    fn task_for_pid(&self, pid: i32) -> Kern<TaskPort> {
        let mut port = 0;
        // SAFETY: `port` is live and a port name.
        kern(unsafe { task_for_pid(own_task(), pid, &raw mut port) })?;
        Ok(TaskPort(port))
    }

    fn pid_for_task(&self, task: TaskPort) -> Kern<i32> {
        let mut pid = 0;
        // SAFETY: `pid` is live and an int.
        kern(unsafe { pid_for_task(task.0, &raw mut pid) })?;
        Ok(pid)
    }

    fn port_deallocate(&self, name: u32) -> Kern<()> {
        // SAFETY: takes two numbers; no memory depends on a port name.
        kern(unsafe { mach_port_deallocate(own_task(), name) })
    }

    fn vm_deallocate(&self, memory: OutOfLine) -> Kern<()> {
        // SAFETY: an OutOfLine is created only in `task_threads`, for memory that the kernel gave to this
        // process and that was copied before; it is consumed here.
        kern(unsafe { mach_vm_deallocate(own_task(), memory.address, memory.size) })
    }

    fn task_suspend2(&self, task: TaskPort) -> Kern<SuspensionToken> {
        let mut token = 0;
        // SAFETY: `token` is live and a port name.
        kern(unsafe { task_suspend2(task.0, &raw mut token) })?;
        Ok(SuspensionToken(token))
    }

    fn task_resume2(&self, token: SuspensionToken) -> Kern<()> {
        // SAFETY: takes a number; the token is consumed.
        let result = kern(unsafe { task_resume2(token.0) });
        if result.is_err_and(|failed| SEND_FAILURES.contains(&failed.code())) {
            // A message that was not sent does not consume its token; that of a task that has died is a dead
            // name. This releases it, which also ends the suspension; a failure is harmless.
            let _ = self.port_deallocate(token.0);
        }
        result
    }

    fn task_threads(&self, task: TaskPort, ports: &mut Vec<ThreadPort>) -> Kern<OutOfLine> {
        let mut array = null_mut();
        let mut count = 0;
        // SAFETY: both are live and of the types that task_threads fills.
        kern(unsafe { task_threads(task.0, &raw mut array, &raw mut count) })?;
        if !array.is_null() {
            // SAFETY: the kernel placed `count` port names at `array`; they stay until vm_deallocate is
            // called with the value returned here.
            let names = unsafe { std::slice::from_raw_parts(array, count as usize) };
            ports.extend(names.iter().map(|name| ThreadPort(*name)));
        }
        Ok(OutOfLine { address: array as u64, size: u64::from(count) * size_of::<u32>() as u64 })
    }

    fn task_dyld_info(&self, task: TaskPort, count: u32) -> Kern<TaskDyldInfo> {
        let info: RawTaskDyldInfo = filled(count, |info, count| {
            // SAFETY: `filled` passes a live structure that holds `count` words.
            unsafe { task_info(task.0, TASK_DYLD_INFO, info, count) }
        })?;
        Ok(info.into())
    }

    fn thread_basic_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadBasicInfo> {
        thread_info::<RawThreadBasicInfo>(thread, THREAD_BASIC_INFO, count).map(Into::into)
    }

    fn thread_identifier_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadIdentifierInfo> {
        thread_info::<RawThreadIdentifierInfo>(thread, THREAD_IDENTIFIER_INFO, count).map(Into::into)
    }

    fn thread_extended_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadExtendedInfo> {
        thread_info::<RawThreadExtendedInfo>(thread, THREAD_EXTENDED_INFO, count).map(Into::into)
    }

    fn thread_get_state(
        &self,
        thread: ThreadPort,
        flavor: i32,
        state: &mut [u32; StateFlavor::COUNT_MAX],
        count: &mut u32,
    ) -> Kern<()> {
        *count = (*count).min(StateFlavor::COUNT_MAX as u32);
        // SAFETY: `state` is live and holds at least the `count` words that may be filled.
        kern(unsafe { thread_get_state(thread.0, flavor, state.as_mut_ptr(), count) })
    }

    fn vm_read_overwrite(&self, task: TaskPort, address: u64, into: &mut [u8]) -> Kern<()> {
        let (to, size) = (into.as_mut_ptr() as u64, into.len() as u64);
        let mut read = 0;
        // SAFETY: `to` and `size` are the live, exclusively borrowed slice; the kernel
        // checks the range in the other task.
        kern(unsafe { mach_vm_read_overwrite(task.0, address, size, to, &raw mut read) })
    }

    fn vm_region_recurse(&self, task: TaskPort, address: u64, depth: u32, count: u32) -> Kern<Region> {
        let (mut address, mut size, mut depth) = (address, 0, depth);
        let info: RawRegionInfo = filled(count, |info, count| {
            // SAFETY: `filled` passes a live structure that holds `count` words; the others
            // are live numbers of the types that the call changes.
            unsafe {
                mach_vm_region_recurse(task.0, &raw mut address, &raw mut size, &raw mut depth, info, count)
            }
        })?;
        Ok(info.at(address, size))
    }

    fn proc_bsdinfo(&self, pid: i32) -> Result<BsdInfo, Errno> {
        // With 0, a zombie would be ESRCH (bsd/kern/proc_info.c, proc_pidinfo_internal).
        const ZOMBIES_TOO: u64 = 1;
        let mut info = RawBsdInfo::default();
        let (into, size) = ((&raw mut info).cast(), size_of::<RawBsdInfo>() as c_int);
        // SAFETY: `into` and `size` are the live `info`.
        let filled = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, ZOMBIES_TOO, into, size) };
        if filled <= 0 { Err(errno()) } else { Ok(info.into()) }
    }

    fn proc_pidpath(&self, pid: i32) -> Result<String, Errno> {
        // SAFETY: `path` passes a live buffer and its size.
        path(|into, size| unsafe { libc::proc_pidpath(pid, into, size) })
    }

    fn proc_regionfilename(&self, pid: i32, address: u64) -> Result<String, Errno> {
        // SAFETY: `path` passes a live buffer and its size.
        path(|into, size| unsafe { libc::proc_regionfilename(pid, address, into, size) })
    }

    fn proc_args(&self, pid: i32) -> Result<Vec<u8>, Errno> {
        let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid];
        let mut sysctl = |into: *mut c_void, size: &mut usize| {
            // SAFETY: `name` is live and its length 3; the callers pass null, which requests only the size,
            // or a live buffer of `size` bytes.
            bsd(unsafe { libc::sysctl(name.as_mut_ptr(), 3, into, size, null_mut(), 0) })
        };
        let mut size = 0;
        sysctl(null_mut(), &mut size)?;
        let mut bytes = vec![0; size];
        sysctl(bytes.as_mut_ptr().cast(), &mut size)?;
        bytes.truncate(size);
        Ok(bytes)
    }

    fn code_signing_flags(&self, pid: i32) -> Result<u32, Errno> {
        let mut flags = 0u32;
        // SAFETY: the address and size are those of the live `flags`.
        bsd(unsafe { csops(pid, CS_OPS_STATUS, (&raw mut flags).cast(), size_of::<u32>()) })?;
        Ok(flags)
    }

    fn sysctl_i32(&self, name: &str) -> Result<i32, Errno> {
        let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
        let mut value = 0i32;
        let mut size = size_of::<i32>();
        let into = (&raw mut value).cast();
        // SAFETY: `name` ends with NUL; `into` and `size` are the live `value`.
        bsd(unsafe { libc::sysctlbyname(name.as_ptr(), into, &raw mut size, null_mut(), 0) })?;
        Ok(value)
    }

    fn kill(&self, pid: i32, signal: i32) -> Result<(), Errno> {
        // SAFETY: takes two numbers.
        bsd(unsafe { libc::kill(pid, signal) })
    }

    fn effective_uid(&self) -> u32 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn own_pid(&self) -> i32 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { libc::getpid() }
    }

    fn spawn_suspended(
        &self,
        command: &[OsString],
        variables: &[(OsString, OsString)],
    ) -> Result<i32, Errno> {
        let texts = |words: Vec<Vec<u8>>| {
            let texts: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
            texts.map_err(|_| Errno(libc::EINVAL))
        };
        let pointers = |texts: &[CString]| {
            let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
            pointers.chain([null_mut()]).collect::<Vec<*mut c_char>>()
        };
        let words = texts(command.iter().map(|word| word.as_bytes().to_vec()).collect())?;
        let program = words.first().ok_or(Errno(libc::EINVAL))?;
        let arguments = pointers(&words);
        // The later of two values of a variable has no effect.
        let own = std::env::vars_os().filter(|(name, _)| variables.iter().all(|(new, _)| new != name));
        let environment = own.chain(variables.iter().cloned());
        let environment: Vec<Vec<u8>> =
            environment.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
        let variables = texts(environment)?;
        let environment = pointers(&variables);
        let attributes = SpawnAttributes::new()?;
        let actions = FileActions::new()?;
        let mut pid = 0;
        // SAFETY: `program`, `arguments` and `environment` are NUL-terminated texts that are live, the arrays end with
        // null, `attributes` and `actions` are initialised, and posix_spawnp changes none of them.
        let failed = unsafe {
            libc::posix_spawnp(
                &raw mut pid,
                program.as_ptr(),
                &raw const actions.0,
                &raw const attributes.0,
                arguments.as_ptr(),
                environment.as_ptr(),
            )
        };
        if failed == 0 { Ok(pid) } else { Err(Errno(failed)) }
    }

    fn wait_ended(&self, pid: i32) -> Result<Option<i32>, Errno> {
        let mut status = 0;
        // SAFETY: `status` is live and an int.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        bsd(waited)?;
        Ok((waited != 0).then_some(status))
    }

    fn absolute_time(&self) -> u64 {
        // SAFETY: takes nothing and cannot fail.
        unsafe { mach_absolute_time() }
    }

    fn timebase(&self) -> (u32, u32) {
        let mut base = mach_timebase_info { numer: 1, denom: 1 };
        // SAFETY: `base` is live. The call cannot fail; 1/1 would stay.
        unsafe { mach_timebase_info(&raw mut base) };
        (base.numer, base.denom)
    }

    fn wait_until(&self, deadline_ticks: u64) -> Kern<()> {
        // SAFETY: takes a number.
        kern(unsafe { mach_wait_until(deadline_ticks) })
    }

    fn request_interactive_qos(&self) -> Result<(), Errno> {
        // SAFETY: takes two numbers.
        match unsafe { pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0) } {
            0 => Ok(()),
            failed => Err(Errno(failed)),
        }
    }

    fn page_size(&self) -> u64 {
        // SAFETY: a variable that is set before `main` and never again.
        unsafe { mach2::vm_page_size::vm_page_size as u64 }
    }

    fn arch(&self) -> Arch {
        if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 }
    }

    fn own_shared_cache(&self, address: u64, len: usize) -> Option<ImageBytes> {
        let (_, first, size) = self.own_shared_cache_identity()?;
        let offset = address.checked_sub(first)?;
        let after = offset.checked_add(len as u64)?;
        let region =
            |at| self.vm_region_recurse(TaskPort(own_task()), at, DEEPEST, words::<RawRegionInfo>()).ok();
        if after > size || !layout::constant(address, len as u64, region) {
            return None;
        }
        // SAFETY: all of it lies in the shared cache, which stays mapped as long as this process lives, is
        // readable (there are holes), and cannot be written.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
        Some(ImageBytes::new(bytes))
    }

    fn own_shared_cache_identity(&self) -> Option<([u8; 16], u64, u64)> {
        let mut uuid = [0; 16];
        let mut size = 0;
        // SAFETY: the first writes 16 bytes, the second a size; both are live.
        let (known, first) = unsafe {
            (_dyld_get_shared_cache_uuid(uuid.as_mut_ptr()), _dyld_get_shared_cache_range(&raw mut size))
        };
        (known && !first.is_null()).then_some((uuid, first as u64, size as u64))
    }
}

/// Closes in a new process the standard streams that were closed when this process was started.
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> Result<FileActions, Errno> {
        let returned = |code: c_int| if code == 0 { Ok(()) } else { Err(Errno(code)) };
        let mut raw = null_mut();
        // SAFETY: `raw` is live; on success it is destroyed in `drop`.
        returned(unsafe { libc::posix_spawn_file_actions_init(&raw mut raw) })?;
        let mut actions = FileActions(raw);
        for stream in (0..=2).filter(|stream| startup::was_closed(*stream)) {
            // SAFETY: initialised above.
            returned(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut actions.0, stream) })?;
        }
        Ok(actions)
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, and not used after this.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// Attributes of a process that starts suspended, with no signal blocked and SIGPIPE as it was before Rust's
/// runtime ignored it. Exec resets handlers by itself, and signals ignored by the user's shell (nohup) stay
/// ignored.
struct SpawnAttributes(libc::posix_spawnattr_t);

impl SpawnAttributes {
    fn new() -> Result<SpawnAttributes, Errno> {
        let returned = |code: c_int| if code == 0 { Ok(()) } else { Err(Errno(code)) };
        let flags =
            libc::POSIX_SPAWN_START_SUSPENDED | libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        let mut raw = null_mut();
        // SAFETY: `raw` is live; on success it is destroyed in `drop`.
        returned(unsafe { libc::posix_spawnattr_init(&raw mut raw) })?;
        let mut attributes = SpawnAttributes(raw);
        let attr = &raw mut attributes.0;
        let (mut none, mut default): (libc::sigset_t, libc::sigset_t) = (0, 0);
        // SAFETY: `attr` is initialised, both sets are live and initialised before use.
        unsafe {
            libc::sigemptyset(&raw mut none);
            libc::sigemptyset(&raw mut default);
            if !startup::was_pipe_ignored() {
                libc::sigaddset(&raw mut default, libc::SIGPIPE);
            }
            returned(libc::posix_spawnattr_setsigmask(attr, &raw const none))?;
            returned(libc::posix_spawnattr_setsigdefault(attr, &raw const default))?;
            returned(libc::posix_spawnattr_setflags(attr, flags as libc::c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for SpawnAttributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, and not used after this.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}
