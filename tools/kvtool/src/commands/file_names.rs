//! Names of files for keyspaces: letters and digits of any script stay, and no two keyspaces of a
//! store have one file, also where a file system does not tell capitals from small letters.

use std::collections::HashMap;

/// Longest name without its extension, in bytes. File systems take 255 of a name.
const MAX_LEN: usize = 200;

/// A name for each keyspace, without extension.
pub(super) fn file_names(keyspaces: &[&str]) -> Vec<String> {
    let names: Vec<String> = keyspaces.iter().map(|keyspace| written(keyspace)).collect();
    let mut uses: HashMap<String, usize> = HashMap::new();
    names.iter().for_each(|name| *uses.entry(name.to_lowercase()).or_default() += 1);
    let unique = |(name, keyspace): (&String, &&str)| match name.len() > MAX_LEN || uses[&name.to_lowercase()] > 1 {
        true => with_hash(name, keyspace),
        false => name.clone(),
    };
    names.iter().zip(keyspaces).map(unique).collect()
}

/// A keyspace's name with `%` and two digits for every byte of what is no letter, digit, `_`, `-`
/// or `.`; a leading dot would hide the file.
fn written(keyspace: &str) -> String {
    let mut name = String::new();
    for (at, c) in keyspace.char_indices() {
        if c.is_alphanumeric() || c == '_' || c == '-' || c == '.' && at > 0 {
            name.push(c);
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| name.push_str(&format!("%{byte:02X}")));
        }
    }
    name
}

/// As much of `name` as fits, and a hash of the keyspace.
fn with_hash(name: &str, keyspace: &str) -> String {
    // FNV-1a: the name stays the same in all versions.
    let hash = keyspace
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut end = name.len().min(MAX_LEN - 17);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{hash:016x}", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stay_and_what_has_a_meaning_in_paths_is_written_as_bytes() {
        let names = file_names(&["default", "a.b", "../up", ".hidden", "größe", "a b", "журнал", "", "a~b"]);
        assert_eq!(names, ["default", "a.b", "%2E.%2Fup", "%2Ehidden", "größe", "a%20b", "журнал", "", "a%7Eb"]);
    }

    #[test]
    fn every_set_of_legal_names_has_distinct_short_file_names() {
        let long = ["ж".repeat(127), format!("{}x", "ж".repeat(126)), "/".repeat(255), "a".repeat(255)];
        let mut keyspaces: Vec<&str> = long.iter().map(String::as_str).collect();
        keyspaces.extend(["users", "Users", "USERS", "größe", "GRÖSSE", "a/b", "a%2Fb"]);
        let names = file_names(&keyspaces);
        let distinct: std::collections::HashSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(distinct.len(), keyspaces.len(), "{names:?}");
        assert!(names.iter().all(|name| name.len() <= MAX_LEN && !name.contains('/')), "{names:?}");
        assert_eq!(names, file_names(&keyspaces));
    }
}
