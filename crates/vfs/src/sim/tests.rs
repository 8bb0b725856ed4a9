use std::collections::BTreeSet;

use super::*;

mod calls;
mod crash;

const SEEDS: u64 = 300;

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn fault(at: u64, mode: FaultMode) -> Option<Fault> {
    let sticky = false;
    Some(Fault { at, mode, sticky })
}

/// Bytes without a zero, so that any zero in a file comes from a crash.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap() + 1).collect()
}

/// A file with synced content and an unsynced name.
fn create_synced(fs: &SimFileSystem, path: &str, content: &[u8]) -> Box<dyn WritableFile> {
    let file = fs.create(p(path)).unwrap();
    file.append(content).unwrap();
    file.sync().unwrap();
    file
}

/// All outcomes of a crash, each as a list of files with their contents.
fn outcomes(fs: &SimFileSystem) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    (0..SEEDS).map(|seed| files(&fs.crash(seed))).collect()
}

fn files(fs: &SimFileSystem) -> Vec<(String, Vec<u8>)> {
    // Windows joins names by backslashes.
    let name = |path: &Path| path.display().to_string().replace('\\', "/");
    let file = |path: PathBuf| (name(&path), fs.read(&path).unwrap());
    fs.paths().into_iter().map(file).collect()
}

fn outcome(files: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let file = |(path, content): &(&str, &str)| (path.to_string(), content.as_bytes().to_vec());
    files.iter().map(file).collect()
}
