//! The time that a CPU worked, as the kernel accounts for it, and the priority of processes.

use rustix::process::{Pid, setpriority_process};
use std::fs;
use std::io;
use std::time::Duration;

/// The columns of proc_stat(5) that are work: user, system, irq, softirq. The others are idle, iowait,
/// processes that give way to others (nice(1)), and what includes one of these or is another machine's.
const WORK: [usize; 4] = [0, 2, 5, 6];

/// How long a CPU has worked since the machine started: processes but those that give way to others,
/// interrupts and softirqs.
///
/// # Panics
/// If this machine has no such CPU.
pub fn busy(cpu: usize) -> Duration {
    let text = fs::read_to_string("/proc/stat").expect("procfs");
    let ticks = ticks_of(&text, cpu).unwrap_or_else(|| panic!("no CPU {cpu} in /proc/stat"));
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Gives a process, and the threads that it starts from now on, the highest ordinary priority, also
/// if the kernel schedules its session as a group (`sched(7)`, autogroup).
///
/// # Errors
/// Without privilege, or if there is no such process.
pub fn prefer(process: Pid) -> io::Result<()> {
    const HIGHEST: i32 = -20;
    setpriority_process(Some(process), HIGHEST)?;
    let group = format!("/proc/{process}/autogroup");
    match fs::write(group, HIGHEST.to_string()) {
        // A kernel without such groups.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        set => set,
    }
}

fn ticks_of(stat: &str, cpu: usize) -> Option<u64> {
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let columns: Vec<&str> = line.split_whitespace().collect();
    let column = |at: usize| columns.get(at)?.parse::<u64>().ok();
    WORK.into_iter().map(column).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_what_is_neither_idle_nor_nice() {
        let stat = "cpu  9 9 9 9 9 9 9 0 0 0\n\
                    cpu0 1 2 4 800 1600 8 16 32 64 128\n\
                    cpu10 7 0 0 0 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(ticks_of(stat, 0), Some(1 + 4 + 8 + 16));
        assert_eq!(ticks_of(stat, 10), Some(7));
        assert_eq!(ticks_of(stat, 1), None);
    }
}
