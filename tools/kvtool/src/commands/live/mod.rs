//! `watch` and `top`: a store in use.

mod page;
mod rates;
mod source;
mod top;
mod watch;

pub(crate) use top::run as top;
pub(crate) use watch::run as watch;

/// A rate, or `-` if it is not known.
fn known(is_known: bool, figure: impl FnOnce() -> String) -> String {
    if is_known { figure() } else { "-".into() }
}

/// A rate in at most six characters: 987, 12.3k, 4.56M.
fn rate(value: f64) -> String {
    match value {
        value if value >= 1e8 => format!("{:.0}M", value / 1e6),
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e5 => format!("{:.0}k", value / 1e3),
        value if value >= 1e3 => format!("{:.1}k", value / 1e3),
        value if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Bytes, with a unit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes")]
fn bytes(value: f64) -> String {
    crate::text::size(value.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        let of = [0.0, 0.25, 9.96, 10.4, 987.0, 12_345.0, 123_456.0, 4_560_000.0, 123_000_000.0];
        let shown = ["0", "0.2", "10.0", "10", "987", "12.3k", "123k", "4.56M", "123M"];
        assert_eq!(of.map(rate), shown);
        assert_eq!((bytes(1536.0), bytes(-1.0)), ("1.5 KiB".into(), "0 B".into()));
    }
}
