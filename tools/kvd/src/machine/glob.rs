//! Patterns of keys, as Redis has them: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a byte that is
//! meant literally.

/// Whether a pattern matches the whole of `text`. Takes at most the product of both lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut position) = (pattern, 0);
    // Where to go on if what follows the last `*` does not match: it takes one byte more.
    let mut last_star: Option<(&[u8], usize)> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            rest = after;
            last_star = Some((after, position));
            continue;
        }
        let matched = match text.get(position) {
            None if rest.is_empty() => return true,
            // Whatever the last `*` took, less text would be left for the rest.
            None => return false,
            Some(&byte) => match_byte(rest, byte),
        };
        match (matched, &mut last_star) {
            (Some(after), _) => (rest, position) = (after, position + 1),
            (None, Some((after, start))) => {
                *start += 1;
                (rest, position) = (after, *start);
            }
            (None, None) => return false,
        }
    }
}

/// The pattern behind its first element, if that matches a byte. The pattern does not begin with
/// `*`.
fn match_byte(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => match_set(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

/// The pattern behind a set of bytes, if that matches. A set that is not closed goes to the end.
fn match_set(set: &[u8], byte: u8) -> Option<&[u8]> {
    let (negated, mut set) = match set {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    loop {
        set = match set {
            [] | [b']', ..] => break,
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
            [low, b'-', high, rest @ ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
        };
    }
    (found != negated).then_some(set.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        let check = |pattern: &str, text: &str, expected: bool| {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        };
        for (pattern, yes, no) in [
            ("h?llo", "hello", "hllo"),
            ("h*llo", "heeeello", "hell"),
            ("h[ae]llo", "hallo", "hillo"),
            ("h[^e]llo", "hbllo", "hello"),
            ("h[a-b]llo", "hbllo", "hcllo"),
            ("h[b-a]llo", "hbllo", "hcllo"),
            ("h\\?llo", "h?llo", "hello"),
            ("[\\]]x", "]x", "ax"),
            ("a*b*c", "a1b2b3c", "a1c2b"),
        ] {
            check(pattern, yes, true);
            check(pattern, no, false);
        }
        check("*", "", true);
        check("", "", true);
        check("", "a", false);
        check("a", "", false);
        check("[abc", "b", true);
        check("[", "a", false);
        check("user:*:name", "user:77:name", true);
        check("**a", "bba", true);
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(64) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(4096).as_bytes()));
    }
}
