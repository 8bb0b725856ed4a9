//! How much memory the machine has for this process.

use std::path::{Path, PathBuf};

/// Bytes of memory that this process may use: those of the machine, or fewer if its control group
/// has a limit (Linux; versions 1 and 2). `None` where neither is known.
pub fn machine_memory() -> Option<u64> {
    #[cfg(all(target_os = "linux", not(miri)))]
    return memory_by(|path| std::fs::read_to_string(path).ok());
    #[cfg(windows)]
    return super::platform::machine_memory();
    #[cfg(not(any(all(target_os = "linux", not(miri)), windows)))]
    None
}

/// What the files of Linux say, which `read` returns.
#[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code, reason = "of Linux; tested everywhere"))]
fn memory_by(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let all = read(Path::new("/proc/meminfo")).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (root, files) = match controllers {
            // Above `high` the group is slowed down.
            "" => ("/sys/fs/cgroup", &["memory.max", "memory.high"][..]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"][..])
            }
            _ => return None,
        };
        // The limit of each group holds for those below it. In a container, the group may have
        // another name than here: its own limit is then that of the root.
        let dirs = Path::new(group.trim_start_matches('/')).ancestors().map(PathBuf::from);
        let limits = dirs.flat_map(|dir| files.iter().map(move |file| Path::new(root).join(&dir).join(file)));
        limits.filter_map(|path| read(&path)?.trim().parse().ok()).min()
    });
    limits.chain(all).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_limits_counts() {
        let memory = |files: &[(&str, &str)]| {
            memory_by(|path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            })
        };
        let machine = ("/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:  5 kB\n");
        let group = |text| ("/proc/self/cgroup", text);
        let all = 24_000_000 * 1024;
        assert_eq!(memory(&[]), None);
        assert_eq!(memory(&[machine]), Some(all));
        let v2 = group("0::/user/app\n");
        assert_eq!(memory(&[machine, v2, ("/sys/fs/cgroup/user/app/memory.max", "max\n")]), Some(all));
        assert_eq!(memory(&[machine, v2, ("/sys/fs/cgroup/user/app/memory.max", "1000\n")]), Some(1000));
        let high = ("/sys/fs/cgroup/user/app/memory.high", "800\n");
        assert_eq!(memory(&[machine, v2, ("/sys/fs/cgroup/user/app/memory.max", "1000\n"), high]), Some(800));
        let above = ("/sys/fs/cgroup/user/memory.max", "900\n");
        assert_eq!(memory(&[machine, v2, ("/sys/fs/cgroup/user/app/memory.max", "1000\n"), above]), Some(900));
        assert_eq!(memory(&[machine, group("0::/\n"), ("/sys/fs/cgroup/memory.max", "70000\n")]), Some(70000));
        let v1 = group("12:cpu,cpuacct:/x\n4:memory:/docker/7f\n0::/x\n");
        let limit = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
        assert_eq!(memory(&[machine, v1, limit]), Some(5000));
        // None: a number that exceeds the machine.
        let limit = ("/sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory(&[machine, v1, limit]), Some(all));
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn linux_says_how_much_there_is() {
        assert!(machine_memory() > Some(16 << 20));
    }
}
