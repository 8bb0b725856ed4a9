//! Short forms of numbers.

/// A rate: `7.81`, `284k`, `12.1M`.
pub fn rate(per_second: f64) -> String {
    scaled(per_second, &[(1e6, "M"), (1e3, "k"), (1.0, "")])
}

/// A time: `450ns`, `3.85µs`, `2.70s`.
pub fn time(nanos: f64) -> String {
    scaled(nanos, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// Bytes in powers of 1024: `4.00K`, `256M`.
pub fn bytes(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    scaled(bytes, &[(KIB * KIB * KIB, "G"), (KIB * KIB, "M"), (KIB, "K"), (1.0, "")])
}

/// Three significant digits, in the largest unit that leaves at least 1.
fn scaled(number: f64, units: &[(f64, &str)]) -> String {
    let fits = |&&(unit, _): &&(f64, &str)| number >= unit * 0.9995;
    let (unit, name) = units.iter().find(fits).or(units.last()).copied().unwrap_or((1.0, ""));
    format!("{}{name}", three_digits(number / unit))
}

/// A number with three significant digits, or more if its integer part has more.
pub fn three_digits(number: f64) -> String {
    let decimals = match number {
        _ if number >= 99.95 || number == 0.0 => 0,
        _ if number >= 9.995 => 1,
        _ => 2,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([7.812, 284_400.0, 999_900.0, 12_140_000.0, 0.0].map(rate), ["7.81", "284k", "1.00M", "12.1M", "0"]);
        assert_eq!([0.5, 450.0, 3_852.0, 2.7e9].map(time), ["0.50ns", "450ns", "3.85µs", "2.70s"]);
        assert_eq!([100.0, 4096.0, 268_435_456.0].map(bytes), ["100", "4.00K", "256M"]);
    }
}
