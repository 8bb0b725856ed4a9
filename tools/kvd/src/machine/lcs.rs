//! The longest common subsequence of two values.

use super::reply::Reply;

/// Most cells of the table that the search fills: two bytes each.
const MAX_CELLS: usize = 16 << 20;

/// What LCS answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct LcsAnswer {
    /// Only the length.
    pub len: bool,
    /// Where the parts are in both values.
    pub positions: bool,
    /// Only parts of at least this length.
    pub least: u64,
    /// With the length of each part.
    pub lengths: bool,
}

/// Finds it. The lengths' product is bounded, and so is the table.
pub(super) fn lcs(a: &[u8], b: &[u8], answer: LcsAnswer) -> Reply {
    let width = b.len() + 1;
    let cells = (a.len() + 1).saturating_mul(width);
    if cells > MAX_CELLS {
        return Reply::error(format!("ERR the lengths' product exceeds {MAX_CELLS}: LCS would take too long"));
    }
    // Lengths fit into 16 bits: the shorter value has at most 4,096 bytes.
    let mut table = vec![0_u16; cells];
    for (row, x) in a.iter().enumerate() {
        for (column, y) in b.iter().enumerate() {
            table[(row + 1) * width + column + 1] = if x == y {
                table[row * width + column] + 1
            } else {
                table[row * width + column + 1].max(table[(row + 1) * width + column])
            };
        }
    }
    let len = table.last().map_or(0, |len| i64::from(*len));
    if answer.len {
        return Reply::Integer(len);
    }
    let (mut row, mut column) = (a.len(), b.len());
    let mut common = Vec::new();
    // Parts from the last to the first: where each ends in both, and its length.
    let mut parts: Vec<(usize, usize, usize)> = Vec::new();
    while row > 0 && column > 0 {
        if a[row - 1] == b[column - 1] {
            match parts.last_mut() {
                Some((x, y, len)) if *x - *len == row && *y - *len == column => *len += 1,
                _ => parts.push((row, column, 1)),
            }
            common.push(a[row - 1]);
            (row, column) = (row - 1, column - 1);
        } else if table[(row - 1) * width + column] > table[row * width + column - 1] {
            row -= 1;
        } else {
            column -= 1;
        }
    }
    common.reverse();
    if !answer.positions {
        return Reply::Bulk(common.into());
    }
    let place = |end: usize, len: usize| Reply::Array(vec![Reply::count(end - len), Reply::count(end - 1)]);
    let parts = parts.into_iter().filter(|(.., len)| *len as u64 >= answer.least).map(|(x, y, len)| {
        let mut part = vec![place(x, len), place(y, len)];
        part.extend(answer.lengths.then(|| Reply::count(len)));
        Reply::Array(part)
    });
    Reply::Map(vec![(Reply::bulk("matches"), Reply::Array(parts.collect())), (Reply::bulk("len"), Reply::Integer(len))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_found_and_placed() {
        let run = |answer| lcs(b"ohmytext", b"mynewtext", answer);
        let default = LcsAnswer::default();
        assert_eq!(run(default), Reply::bulk("mytext"));
        assert_eq!(run(LcsAnswer { len: true, ..default }), Reply::Integer(6));
        let Reply::Map(found) = run(LcsAnswer { positions: true, least: 4, lengths: true, ..default }) else {
            panic!()
        };
        let pair = |first, last| Reply::Array(vec![Reply::Integer(first), Reply::Integer(last)]);
        assert_eq!(found[0].1, Reply::Array(vec![Reply::Array(vec![pair(4, 7), pair(5, 8), Reply::Integer(4)])]));
        assert_eq!(lcs(b"", b"x", default), Reply::bulk(""));
    }

    #[test]
    fn what_would_take_too_long_is_refused() {
        let long = vec![b'x'; 5000];
        assert!(lcs(&long, &long, LcsAnswer::default()).is_error());
        assert_eq!(lcs(&vec![b'x'; MAX_CELLS / 2 - 1], b"x", LcsAnswer::default()), Reply::bulk("x"));
    }
}
