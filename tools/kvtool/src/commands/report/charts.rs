//! Pictures of a report: bars, rates beside each other, and a curve, as SVG.
//!
//! Bars begin at zero. Marks differ in shape, not only in colour, and each says what it is: there
//! is no legend. Colours come from the style sheet, by class.

use std::fmt::Display;

use crate::markup::{Attributes, Markup, element, empty, words};
use crate::text::size;

/// Of every picture, in units of about a pixel.
const WIDTH: f64 = 600.0;
/// Of a letter, on average, in a wide font.
const LETTER: f64 = 8.0;
/// Of a line of text.
const LINE: f64 = 20.0;
const MARGIN: f64 = 8.0;
/// Least width of the parts of a bar that are drawn apart.
const LEAST_PART: f64 = 4.0;

/// What an axis counts.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Bytes,
    Count(&'static str),
}

/// Bars that belong together, with a name.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) value: f64,
    /// Ends of its parts but the last, from zero on.
    pub(super) parts: Vec<f64>,
    /// Drawn as an outline.
    pub(super) is_hollow: bool,
    pub(super) note: String,
}

pub(super) fn bars(title: &str, unit: Unit, groups: &[Group]) -> Markup {
    let left = longest(groups.iter().map(|group| &*group.name)) + 2.0 * MARGIN;
    let all = || groups.iter().flat_map(|group| &group.bars);
    let (scale, axis) = unit.scale(all().map(|bar| bar.value).fold(0.0, f64::max));
    // As long as the note of each bar has room behind it.
    let room =
        |bar: &Bar| (WIDTH - left - longest([&*bar.note].into_iter()) - 2.0 * MARGIN) * axis.end / (bar.value * scale);
    let long = all().filter(|bar| bar.value > 0.0).map(room).fold(WIDTH - left - 3.0 * MARGIN, f64::min);
    let x = axis.onto(left, left + long.max(120.0));
    let mut marks = Markup::new();
    let mut y = MARGIN;
    for group in groups {
        let middle = y + group.bars.len() as f64 * LINE / 2.0;
        marks = marks.and(label(left - MARGIN, middle + 4.0, "end", "name", &group.name));
        for bar in &group.bars {
            let end = x.of(bar.value * scale);
            let class = if bar.is_hollow { "hollow" } else { "bar" };
            // What there is, is seen.
            marks = marks.and(rect(class, x.low, y + 3.0, (end - x.low).max(1.0), LINE - 6.0));
            let gaps: Vec<f64> = bar.parts.iter().map(|part| x.of(part * scale)).collect();
            let ends = [x.low].into_iter().chain(gaps.iter().copied());
            if ends.zip(gaps.iter().copied().chain([end])).all(|(begin, end)| end - begin >= LEAST_PART) {
                marks = marks.and(gaps.iter().map(|at| line("gap", *at, y + 3.0, *at, y + LINE - 3.0)).collect());
            }
            marks = marks.and(label(end + MARGIN, y + LINE / 2.0 + 4.0, "start", "note", &bar.note));
            y += LINE;
        }
        y += MARGIN;
    }
    let scales = x.drawn(y, &unit.title(all().map(|bar| bar.value).fold(0.0, f64::max)));
    svg(title, y + 2.4 * LINE, scales.and(marks))
}

/// A rate as expected, and as measured.
pub(super) struct Rate {
    pub(super) name: String,
    pub(super) expected: Option<f64>,
    /// With its 95 % interval.
    pub(super) measured: Option<(f64, f64, f64)>,
    pub(super) note: String,
}

/// Expected rates as upright strokes, measured ones as dots with their intervals.
pub(super) fn rates(title: &str, rows: &[Rate]) -> Markup {
    let left = longest(rows.iter().map(|row| &*row.name)) + 2.0 * MARGIN;
    let right = longest(rows.iter().map(|row| &*row.note)) + 3.0 * MARGIN;
    let greatest = rows.iter().flat_map(|row| [row.expected, row.measured.map(|(_, _, high)| high)]).flatten();
    let axis = Axis::up_to((100.0 * greatest.fold(0.0, f64::max)).clamp(0.01, 100.0));
    let x = axis.onto(left, (WIDTH - right).max(left + 120.0));
    let mut marks = Markup::new();
    let mut y = MARGIN;
    for row in rows {
        let middle = y + LINE / 2.0;
        marks = marks.and(label(left - MARGIN, middle + 4.0, "end", "name", &row.name));
        marks = marks.and(line("guide", x.low, middle, x.high, middle));
        if let Some((rate, low, high)) = row.measured {
            let [rate, low, high] = [rate, low, high].map(|rate| x.of(100.0 * rate));
            let ends = [low, high].map(|at| line("mark", at, middle - 4.0, at, middle + 4.0));
            marks = marks.and(line("mark", low, middle, high, middle)).and(ends.into_iter().collect());
            marks = marks.and(empty("circle", &[("class", &"dot"), ("cx", &px(rate)), ("cy", &px(middle)), ("r", &4)]));
        }
        if let Some(expected) = row.expected {
            let at = x.of(100.0 * expected);
            marks = marks.and(line("expected", at, middle - 9.0, at, middle + 9.0));
        }
        marks = marks.and(label(x.high + 2.0 * MARGIN, middle + 4.0, "start", "note", &row.note));
        y += 1.3 * LINE;
    }
    svg(title, y + 2.4 * LINE, x.drawn(y, "false positives (% of look-ups of absent keys)").and(marks))
}

/// A line of points, which is named at its end.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) is_dashed: bool,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves over whole numbers, each with a note, and one point, on a logarithmic scale.
pub(super) fn curves(
    title: &str,
    [across, up]: [&str; 2],
    ticks: &[(f64, String)],
    curves: &[Curve],
    now: Option<(f64, f64)>,
) -> Markup {
    let values = || curves.iter().flat_map(|curve| &curve.points).copied().chain(now).filter(|(_, value)| *value > 0.0);
    let (least, most) = values().fold((1.0, 0.0), |(least, most), (_, y)| (y.min(least), y.max(most)));
    let (low, high) = (least.log10().floor(), most.max(least).log10().ceil());
    let (top, height, left) = (1.6 * LINE, 220.0, 72.0);
    let bottom = top + height;
    // What is nothing stands at the bottom.
    let y_of = |value: f64| top + height * (high - value.max(10f64.powf(low)).log10()) / (high - low).max(1.0);
    let ends = ticks.first().zip(ticks.last()).map_or((0.0, 1.0), |(first, last)| (first.0, last.0));
    // Filters of now may be smaller or larger than any of the curves'.
    let (first, last) = now.map_or(ends, |(at, _)| (ends.0.min(at), ends.1.max(at)));
    let right = WIDTH - longest(curves.iter().map(|curve| curve.name)) - 3.0 * MARGIN;
    let x_of = |at: f64| left + (right - left) * (at - first) / (last - first).max(1.0);
    let mut marks = label(MARGIN, LINE * 0.8, "start", "axis", up);
    let mut power = low;
    while power <= high {
        let y = y_of(10f64.powf(power));
        marks = marks.and(line("grid", left, y, right, y));
        marks = marks.and(label(left - MARGIN, y + 4.0, "end", "axis", &power_of_ten(power)));
        power += 1.0;
    }
    let distance = match ticks {
        [(first, _), (second, _), ..] => x_of(*second) - x_of(*first),
        _ => 0.0,
    };
    let every = apart(distance, ticks.iter().map(|(_, note)| &**note));
    for (at, note) in ticks.iter().step_by(every) {
        marks = marks.and(line("axis", x_of(*at), bottom, x_of(*at), bottom + 4.0));
        marks = marks.and(label(x_of(*at), bottom + 18.0, "middle", "axis", &format!("{at:.0}")));
        marks = marks.and(label(x_of(*at), bottom + 34.0, "middle", "axis", note));
    }
    marks = marks.and(line("axis", left, bottom, right, bottom));
    marks = marks.and(label((left + right) / 2.0, bottom + 54.0, "middle", "axis", across));
    let end = |curve: &Curve| curve.points.last().map_or(bottom, |(_, value)| y_of(*value));
    let mut named: Vec<&Curve> = curves.iter().collect();
    named.sort_by(|a, b| end(a).total_cmp(&end(b)));
    let mut above = f64::NEG_INFINITY;
    for curve in named {
        let points: Vec<String> =
            curve.points.iter().map(|(at, value)| format!("{},{}", px(x_of(*at)), px(y_of(*value)))).collect();
        let class = if curve.is_dashed { "curve dashed" } else { "curve" };
        marks = marks.and(empty("polyline", &[("class", &class), ("points", &points.join(" "))]));
        let y = end(curve).max(above + 0.8 * LINE);
        marks = marks.and(label(right + MARGIN, y + 4.0, "start", "note", curve.name));
        above = y;
    }
    if let Some((at, value)) = now {
        let (x, y) = (x_of(at), y_of(value));
        marks = marks.and(empty("circle", &[("class", &"dot"), ("cx", &px(x)), ("cy", &px(y)), ("r", &5)]));
        let note = format!("now: {at:.1} bits, {}", short(value));
        marks = marks.and(label(x + 10.0, y - 8.0, "start", "note strong", &note));
    }
    svg(title, bottom + 3.1 * LINE, marks)
}

impl Unit {
    /// What values are multiplied by, and the axis of those.
    fn scale(self, most: f64) -> (f64, Axis) {
        let scale = match self {
            Unit::Bytes => 1.0 / unit_of(most).1,
            Unit::Count(_) => 1.0,
        };
        (scale, Axis::up_to(most * scale))
    }

    fn title(self, most: f64) -> String {
        match self {
            Unit::Bytes => format!("size ({})", unit_of(most).0),
            Unit::Count(what) => what.to_owned(),
        }
    }
}

/// The unit in which [`size`] writes a number of bytes.
fn unit_of(bytes: f64) -> (String, f64) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of bytes")]
    let shown = size(bytes as u64);
    let unit = shown.rsplit(' ').next().unwrap_or_default().to_owned();
    let powers = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = powers.iter().position(|power| *power == unit).unwrap_or_default();
    (unit, 1024f64.powi(i32::try_from(power).unwrap_or_default()))
}

/// A linear scale that begins at zero.
struct Axis {
    step: f64,
    end: f64,
}

impl Axis {
    fn up_to(most: f64) -> Axis {
        let most = if most > 0.0 { most } else { 1.0 };
        let power = 10f64.powf((most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| most / step <= 5.0);
        let step = step.unwrap_or(10.0 * power);
        Axis { step, end: (most / step).ceil() * step }
    }

    fn onto(self, low: f64, high: f64) -> Scale {
        Scale { axis: self, low, high }
    }
}

/// An axis from `low` to `high`.
struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(&self, value: f64) -> f64 {
        self.low + (self.high - self.low) * value / self.axis.end
    }

    /// Below all that is above `y`.
    fn drawn(&self, y: f64, title: &str) -> Markup {
        let mut marks = line("axis", self.low, y, self.high, y);
        let mut ticks = vec![0.0];
        while ticks[ticks.len() - 1] + self.axis.step <= self.axis.end * 1.001 {
            ticks.push(ticks[ticks.len() - 1] + self.axis.step);
        }
        let labels: Vec<String> = ticks.iter().map(|at| decimal(*at)).collect();
        let every = apart(self.of(self.axis.step) - self.low, labels.iter().map(|label| &**label));
        for (at, text) in ticks.into_iter().zip(&labels).step_by(every) {
            let x = self.of(at);
            marks = marks.and(line("grid", x, MARGIN, x, y)).and(line("axis", x, y, x, y + 4.0));
            marks = marks.and(label(x, y + 18.0, "middle", "axis", text));
        }
        marks.and(label((self.low + self.high) / 2.0, y + 38.0, "middle", "axis", title))
    }
}

/// A number of an axis, without zeros behind.
fn decimal(n: f64) -> String {
    let shown = format!("{n:.9}");
    let shown = shown.trim_end_matches('0').trim_end_matches('.');
    match shown.split_once('.') {
        None => crate::text::count(shown.parse().unwrap_or_default()),
        Some(_) => shown.to_owned(),
    }
}

/// A power of ten, short.
fn power_of_ten(power: f64) -> String {
    if power < -5.0 { format!("1e{power:.0}") } else { decimal(10f64.powf(power)) }
}

/// A number with two or three significant digits.
fn short(n: f64) -> String {
    match n {
        n if n >= 0.1 || n <= 0.0 => format!("{n:.2}"),
        n if n >= 0.001 => format!("{n:.4}"),
        n => format!("{n:.6}"),
    }
}

/// Of labels at this distance, one in how many has room beside the next.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of labels")]
fn apart<'a>(distance: f64, labels: impl Iterator<Item = &'a str>) -> usize {
    ((longest(labels) + MARGIN) / distance.max(1.0)).ceil().max(1.0) as usize
}

fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts.map(|text| text.chars().count()).max().unwrap_or_default() as f64 * LETTER
}

fn px(n: f64) -> String {
    format!("{n:.1}")
}

fn svg(title: &str, height: f64, content: Markup) -> Markup {
    let size = format!("0 0 {WIDTH:.0} {height:.0}");
    let title_element = element("title", &[], words(title));
    element("svg", &[("viewBox", &size), ("role", &"img")], title_element.and(content))
}

fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> Markup {
    shape("line", class, &[("x1", &px(x1)), ("y1", &px(y1)), ("x2", &px(x2)), ("y2", &px(y2))])
}

fn rect(class: &str, x: f64, y: f64, width: f64, height: f64) -> Markup {
    shape("rect", class, &[("x", &px(x)), ("y", &px(y)), ("width", &px(width)), ("height", &px(height))])
}

fn shape(name: &'static str, class: &str, places: Attributes<'_>) -> Markup {
    let class: (&'static str, &dyn Display) = ("class", &class);
    empty(name, &[&[class], places].concat())
}

fn label(x: f64, y: f64, anchor: &str, class: &str, text: &str) -> Markup {
    let attributes: Attributes<'_> = &[("class", &class), ("x", &px(x)), ("y", &px(y)), ("text-anchor", &anchor)];
    element("text", attributes, words(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_begin_at_zero_and_have_few_round_steps() {
        for (most, step, end) in [(0.0, 0.2, 1.0), (0.9, 0.2, 1.0), (7.0, 2.0, 8.0), (1234.0, 500.0, 1500.0)] {
            let axis = Axis::up_to(most);
            assert!(
                (axis.step - step).abs() < 1e-9 && (axis.end - end).abs() < 1e-9,
                "{most}: {} {}",
                axis.step,
                axis.end
            );
        }
        assert_eq!([0.2, 0.0, 1500.0, 0.001].map(decimal), ["0.2", "0", "1,500", "0.001"]);
    }

    #[test]
    fn labels_of_axes_do_not_overlap() {
        let note = "1,000,000 without filters, and more".to_owned();
        let bar = Bar { value: 1e6, parts: Vec::new(), is_hollow: false, note };
        let counts = bars("t", Unit::Count("n"), &[Group { name: "absent keys".to_owned(), bars: vec![bar] }]);
        let ticks: Vec<(f64, String)> = (1..=5).map(|i| (f64::from(4 * i), format!("{i}00.5 MiB"))).collect();
        let sizes = curves("t", ["", ""], &ticks, &[], Some((60.0, 0.1)));
        for svg in [counts.to_string(), sizes.to_string()] {
            let middles = svg.lines().filter(|line| line.contains("\"axis\"") && line.contains("middle"));
            let mut ends = std::collections::BTreeMap::new();
            let mut labels = 0;
            for label in middles {
                let of = |name: &str| label.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap();
                let text = label.split('>').nth(1).unwrap().split('<').next().unwrap();
                let (x, half) = (of("x").parse::<f64>().unwrap(), longest(std::iter::once(text)) / 2.0);
                let end = ends.insert(of("y").to_owned(), x + half).unwrap_or(0.0);
                assert!(end < x - half, "{text}: {svg}");
                labels += 1;
            }
            assert!(labels >= 3, "{svg}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |value| Bar { value, parts: Vec::new(), is_hollow: false, note: String::new() };
        let group = Group { name: "a".to_owned(), bars: vec![bar(50.0), bar(100.0)] };
        let svg = bars("t", Unit::Count("n"), &[group]).to_string();
        let widths: Vec<f64> = svg
            .lines()
            .filter_map(|line| line.strip_prefix("<rect")?.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!((2.0 * widths[0] - widths[1]).abs() < 0.2, "{widths:?}");
    }
}
