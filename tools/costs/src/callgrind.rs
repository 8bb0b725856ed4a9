//! Runs the workload under callgrind.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;

/// What callgrind counted in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) instructions: u64,
    pub(crate) syscalls: u64,
}

/// Functions whose calls are the phases; see `phase`. Twice, because of two options with one pattern callgrind heeds one.
const COUNTED: &str = "--toggle-collect=tamis_costs::phase::measured_phase::*";
const DUMPED: &str = "--dump-after=*:measured_phase*";

/// What `program run` printed, and what callgrind counted of its phases, in the order of their ends.
pub(crate) fn run(program: &Path) -> Result<(String, Vec<Part>)> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("callgrind.out");
    let output = Command::new("valgrind")
        // The thread that makes memory ready calls the system when it likes; only the first thread, which does the work, is read below.
        .args(["--tool=callgrind", "--collect-systime=yes", "--separate-threads=yes", COUNTED, DUMPED])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .arg("run")
        .output()
        .map_err(|error| format!("valgrind is needed to count instructions: {error}"))?;
    if !output.status.success() {
        return Err(format!("the workload failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut parts = Vec::new();
    for number in 1.. {
        let Ok(text) = fs::read_to_string(format!("{}.{number}-01", out.display())) else { break };
        // The last dump is the program's end.
        if text.lines().any(|line| line.starts_with("desc: Trigger: --dump-after")) {
            parts.push(parse(&text)?);
        }
    }
    Ok((String::from_utf8(output.stdout)?, parts))
}

/// The sums of a file that callgrind wrote. Its lines `events:` and `summary:` name and give them in the same order.
fn parse(text: &str) -> Result<Part> {
    let fields = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(|line| line.split_whitespace().collect::<Vec<_>>()).ok_or_else(|| format!("callgrind gave no {key}"))
    };
    let (events, totals) = (fields("events:")?, fields("summary:")?);
    let total = |event| -> Result<u64> {
        let at =
            events.iter().position(|name| *name == event).ok_or_else(|| format!("callgrind did not count {event}"))?;
        // Sums of zero at the end are left out.
        Ok(totals.get(at).map_or(Ok(0), |total| total.parse())?)
    };
    Ok(Part { instructions: total("Ir")?, syscalls: total("sysCount")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_by_the_names_of_their_events() {
        let text = "version: 1\npart: 1\nevents: Ir sysCount sysTime\nfn=(1)\n1 5\nsummary: 120 7 3\n";
        assert_eq!(parse(text).unwrap(), Part { instructions: 120, syscalls: 7 });
        assert_eq!(parse(&text.replace("120 7 3", "120")).unwrap(), Part { instructions: 120, syscalls: 0 });
        assert!(parse("events: Ir\n").is_err());
        assert!(parse("events: Ir\nsummary: 5\n").is_err());
    }
}
