//! Error numbers by which the kernel restarts calls, and the calls that may be restarted.

pub(super) const EINTR: i64 = -4;

pub(super) const ERESTARTNOHAND: i64 = -514;

/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
pub(super) const RESTART_CODES: [i64; 4] = [-512, -513, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];

pub(super) const ERESTART_RESTARTBLOCK: i64 = -516;

/// Whether a call of 64-bit code returns EINTR only before it had any effect, so that repeating it is safe.
/// Includes socket calls for sockets with SO_RCVTIMEO or SO_SNDTIMEO.
pub(super) fn is_restartable(number: i64, here: &[i64]) -> bool {
    RESTARTABLE.contains(&number) || here.contains(&number)
}

/// Those with the same name on all processors.
const RESTARTABLE: [i64; 16] = [
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
];
