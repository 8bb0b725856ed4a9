//! Runs the workload under callgrind.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;

/// callgrind's counts for one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhaseTotals {
    pub(crate) instructions: u64,
    pub(crate) syscalls: u64,
}

/// The functions whose calls are the phases; see `phase`. The patterns differ because callgrind
/// ignores one of two options with the same pattern.
const COUNTED: &str = "--toggle-collect=tamis_costs::phase::measured_phase::*";
const DUMPED: &str = "--dump-after=*:measured_phase*";

/// Runs `program run` under callgrind. Returns its output and callgrind's counts of the phases, in
/// the order in which they ended.
pub(crate) fn run(program: &Path) -> Result<(String, Vec<PhaseTotals>)> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("callgrind.out");
    let output = Command::new("valgrind")
        // The thread that prepares memory makes system calls at any time; only the main thread's
        // dumps are read below.
        .args(["--tool=callgrind", "--collect-systime=yes", "--separate-threads=yes", COUNTED, DUMPED])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .arg("run")
        .output()
        .map_err(|error| format!("cannot run valgrind, which counts instructions: {error}"))?;
    if !output.status.success() {
        return Err(format!("the workload failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut phases = Vec::new();
    for number in 1.. {
        let Ok(text) = fs::read_to_string(format!("{}.{number}-01", out.display())) else { break };
        // The last dump is from the end of the program, not of a phase.
        if text.lines().any(|line| line.starts_with("desc: Trigger: --dump-after")) {
            phases.push(parse(&text)?);
        }
    }
    Ok((String::from_utf8(output.stdout)?, phases))
}

/// Parses the totals of a callgrind dump. Its lines `events:` and `summary:` list names and totals
/// in one order.
fn parse(text: &str) -> Result<PhaseTotals> {
    let fields = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(|line| line.split_whitespace().collect::<Vec<_>>()).ok_or_else(|| format!("callgrind wrote no {key}"))
    };
    let (events, totals) = (fields("events:")?, fields("summary:")?);
    let total = |event| -> Result<u64> {
        let at =
            events.iter().position(|name| *name == event).ok_or_else(|| format!("callgrind did not count {event}"))?;
        // callgrind omits trailing zeros.
        Ok(totals.get(at).map_or(Ok(0), |total| total.parse())?)
    };
    Ok(PhaseTotals { instructions: total("Ir")?, syscalls: total("sysCount")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_by_the_names_of_their_events() {
        let text = "version: 1\npart: 1\nevents: Ir sysCount sysTime\nfn=(1)\n1 5\nsummary: 120 7 3\n";
        assert_eq!(parse(text).unwrap(), PhaseTotals { instructions: 120, syscalls: 7 });
        assert_eq!(parse(&text.replace("120 7 3", "120")).unwrap(), PhaseTotals { instructions: 120, syscalls: 0 });
        assert!(parse("events: Ir\n").is_err());
        assert!(parse("events: Ir\nsummary: 5\n").is_err());
    }
}
