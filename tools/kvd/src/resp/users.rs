//! [`Users`]: who may connect, by which password, and whether to write.

use std::collections::HashMap;
use std::sync::Arc;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString, rand_core::OsRng};
use argon2::{Argon2, Params};
use tokio::sync::Semaphore;

/// Passwords checked at a time. Each check takes some 20 ms of a core and 19 MiB, on purpose: an
/// attacker must not be able to have many.
const CHECKS_AT_A_TIME: usize = 2;

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read.
    ReadOnly,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// What the user may do.
    pub access: Access,
    /// Hash of the password, in PHC's form.
    hash: String,
}

/// Why a list of users is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the list of users: {rule}; a line is NAME HASH rw|ro, with a hash made by kvd hash-password")]
pub struct UsersError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The rule that does not hold.
    pub rule: &'static str,
}

/// All users, who authenticate by AUTH or HELLO.
pub struct Users {
    users: HashMap<String, Arc<User>>,
    /// A hash that no password has, checked for unknown names: their refusal takes as long.
    nobody: String,
    checks: Arc<Semaphore>,
}

impl Users {
    /// Reads a list of users: lines `NAME HASH rw|ro`. Empty lines and those that begin with `#`
    /// are skipped.
    pub fn parse(text: &str) -> Result<Users, UsersError> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |rule| Err(UsersError { line: index + 1, rule });
            let words: Vec<_> = line.split_whitespace().collect();
            let (name, hash, access) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [name, hash, "rw"] => (name, hash, Access::ReadWrite),
                [name, hash, "ro"] => (name, hash, Access::ReadOnly),
                _ => return fail("there are not three words, of which the last is rw or ro"),
            };
            let sound = PasswordHash::new(hash).is_ok_and(|hash| {
                hash.hash.is_some() && hash.algorithm.as_str().starts_with("argon2") && Params::try_from(&hash).is_ok()
            });
            if !sound {
                return fail("the hash is not one of Argon2");
            }
            let user = User { name: name.to_owned(), access, hash: hash.to_owned() };
            if users.insert(name.to_owned(), Arc::new(user)).is_some() {
                return fail("the user was named before");
            }
        }
        Ok(Users { users, nobody: hash_password(b""), checks: Arc::new(Semaphore::new(CHECKS_AT_A_TIME)) })
    }

    /// Whether there is a user of this name.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| self.users.contains_key(name))
    }

    /// The user with this name and password.
    pub async fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = std::str::from_utf8(name).ok().and_then(|name| self.users.get(name)).cloned();
        let hash = user.as_ref().map_or(&self.nobody, |user| &user.hash).clone();
        let password = password.to_vec();
        let _turn = self.checks.acquire().await.ok()?;
        let right = tokio::task::spawn_blocking(move || {
            PasswordHash::new(&hash).is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok())
        });
        if right.await.unwrap_or(false) { user } else { None }
    }
}

/// Hashes a password for a list of users.
pub fn hash_password(password: &[u8]) -> String {
    let salt = SaltString::generate(&mut OsRng);
    // Passwords of any length can be hashed with the default parameters.
    Argon2::default().hash_password(password, &salt).map(|hash| hash.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn users_have_passwords_and_the_unknown_one_has_none() {
        let (ann, bob) = (hash_password(b"apple"), hash_password(b""));
        assert_ne!(ann, hash_password(b"apple"), "hashes are salted");
        let users = Users::parse(&format!("# people\n\nann {ann} rw\nbob {bob} ro\n")).unwrap();
        let access = async |name: &str, password: &str| {
            users.authenticate(name.as_bytes(), password.as_bytes()).await.map(|user| user.access)
        };
        assert_eq!(access("ann", "apple").await, Some(Access::ReadWrite));
        assert_eq!(access("bob", "").await, Some(Access::ReadOnly));
        assert_eq!(access("ann", "pear").await, None);
        assert_eq!(access("ann", "").await, None);
        assert_eq!(access("cid", "").await, None, "the hash for unknown names lets nobody in");
        assert!(users.authenticate(b"\xff", b"").await.is_none());
    }

    #[test]
    fn lists_that_are_wrong_are_refused_with_the_line() {
        let hash = hash_password(b"x");
        let line = |text: String| Users::parse(&text).err().map(|error| error.line);
        assert_eq!(line(format!("ann {hash} rw\nbob {hash}")), Some(2));
        assert_eq!(line(format!("ann {hash} rw\nann {hash} ro")), Some(2));
        assert_eq!(line(format!("\nann {hash} admin")), Some(2));
        assert_eq!(line("ann apple rw".to_owned()), Some(1));
        assert_eq!(line("ann $argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ rw".to_owned()), Some(1), "no hash");
        assert_eq!(line(String::new()), None);
    }
}
