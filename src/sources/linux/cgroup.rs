//! Control groups by path or container id.
//!
//! Input: a name. Output: the path as in `/proc/PID/cgroup` (cgroups(7)).

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// Mount point of the hierarchies: a single one (version 2), or one for each controller.
pub(super) const MOUNTED: &str = "/sys/fs/cgroup";

/// Controllers and path of each control group in the text of `/proc/PID/cgroup`, whose lines are
/// `HIERARCHY:CONTROLLERS:PATH` (cgroups(7)). Version 2 has no controllers.
pub(super) fn memberships(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    })
}

/// The path of a group, given as `/system.slice/nginx.service` or as its directory.
///
/// # Errors
/// One line: the group does not exist.
pub fn path(asked: &OsStr) -> Result<String> {
    let text = asked.to_string_lossy();
    let below = text.strip_prefix(MOUNTED).unwrap_or(&text);
    let path = format!("/{}", below.trim_matches('/'));
    let exists = |hierarchy: &Path| hierarchy.join(&path[1..]).is_dir();
    let hierarchies = fs::read_dir(MOUNTED).into_iter().flatten().flatten().map(|entry| entry.path());
    if exists(Path::new(MOUNTED)) || hierarchies.into_iter().any(|hierarchy| exists(&hierarchy)) {
        return Ok(path);
    }
    let why = format!("--cgroup `{text}`: no such control group; `systemd-cgls` lists them");
    Err(Error::new(ErrorKind::Attach, why))
}

/// The group of the container with this id prefix, found among the running processes.
///
/// # Errors
/// One line: no process is in a matching container, or several containers match.
pub fn of_container(id: &OsStr) -> Result<String> {
    let id = id.to_string_lossy();
    let refused = |why: &str| Err(Error::new(ErrorKind::Attach, format!("--container `{id}`: {why}")));
    if id.is_empty() {
        return refused("give the beginning of a container's id; `docker ps` lists them");
    }
    let mut groups: Vec<String> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(text) = fs::read_to_string(entry.path().join("cgroup")) else { continue };
        groups.extend(memberships(&text).filter_map(|(_, path)| container(path, &id)));
    }
    groups.sort_unstable();
    groups.dedup();
    match &groups[..] {
        [one] => Ok(one.clone()),
        [] => refused("no process runs in such a container; `docker ps` lists them"),
        [first, second, ..] => {
            refused(&format!("it may be {first} or {second}; give more of the container's id"))
        }
    }
}

/// The part of a path up to a group named after a container with this id prefix: `/docker/ID`,
/// `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`, `lxc.payload.ID`.
fn container(path: &str, id: &str) -> Option<String> {
    let mut end = 0;
    for name in path.split('/').skip(1) {
        end += 1 + name.len();
        let bare = name.strip_suffix(".scope").unwrap_or(name);
        let ids = [Some(bare), bare.rsplit_once('-').map(|(_, id)| id), bare.strip_prefix("lxc.payload.")];
        if ids.into_iter().flatten().any(|of| of.starts_with(id)) {
            return path.get(..end).map(str::to_owned);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_by_id_prefix() {
        let id = "4f8e2a6c9d";
        for (path, group) in [
            ("/docker/4f8e2a6c9d00/init.scope", "/docker/4f8e2a6c9d00"),
            ("/system.slice/docker-4f8e2a6c9d00.scope", "/system.slice/docker-4f8e2a6c9d00.scope"),
            (
                "/kubepods.slice/pod1/cri-containerd-4f8e2a6c9d00.scope",
                "/kubepods.slice/pod1/cri-containerd-4f8e2a6c9d00.scope",
            ),
            ("/lxc.payload.4f8e2a6c9d00/x", "/lxc.payload.4f8e2a6c9d00"),
        ] {
            assert_eq!(container(path, id).as_deref(), Some(group));
        }
        assert_eq!(container("/user.slice/user-0.slice", id), None);
        assert_eq!(container("/", id), None);
    }

    #[test]
    fn missing_groups_and_containers_are_reported() {
        let refused = |result: Result<String>| result.unwrap_or_else(|error| error.to_string());
        assert!(refused(path(OsStr::new("/no/such/group"))).contains("no such control group"));
        assert!(refused(of_container(OsStr::new("zzz"))).contains("no process runs"));
        assert!(refused(of_container(OsStr::new(""))).contains("give the beginning"));
    }
}
