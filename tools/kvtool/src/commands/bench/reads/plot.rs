//! Disk reads per missing key, or per empty range, against bits per key: measured points, and
//! theory as lines.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor;
use tamis_bench::plot::{Drawing, FONT};

use crate::text::Decimal;

/// Size of the drawing in units: pixels of an SVG at its natural size.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;
/// Of the theory and of the points of each series.
const COLOURS: [(RGBColor, RGBColor); 2] =
    [(RGBColor(31, 119, 180), RGBColor(214, 39, 40)), (RGBColor(120, 120, 190), RGBColor(230, 140, 0))];
const LIMIT: RGBColor = RGBColor(90, 90, 90);

/// The data of the plot.
pub(super) struct Figure {
    pub(super) heading: &'static str,
    pub(super) below: String,
    /// What the bits are, and what the blocks.
    pub(super) bits: &'static str,
    pub(super) unit: &'static str,
    /// Blocks with filters ignored.
    pub(super) ignored: Option<f64>,
    pub(super) series: Vec<Series>,
}

/// What theory says, and what is measured.
pub(super) struct Series {
    pub(super) theory: Line,
    pub(super) label: String,
    pub(super) points: Vec<Point>,
}

/// Bits and blocks.
pub(super) struct Line {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// A measurement, with its 95 % confidence interval.
pub(super) struct Point {
    pub(super) bits: f64,
    pub(super) blocks: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Drawing for Figure {
    fn size(&self) -> (u32, u32) {
        (WIDTH, HEIGHT)
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let units = |n: u32| n * scale;
        let (px, line) = (|n: i32| n * i32::try_from(scale).unwrap_or(1), units(2));
        let words = |size: u32| (FONT, units(size)).into_font().color(&BLACK);
        area.fill(&WHITE)?;
        let area = area.margin(units(12), units(12), units(12), units(24));
        let (heading, chart) = area.split_vertically(units(64));
        heading.draw(&Text::new(self.heading, (px(76), px(2)), words(27)))?;
        heading.draw(&Text::new(&*self.below, (px(76), px(36)), words(18)))?;

        let (bits, blocks) = (self.most_bits(), self.range());
        let least = blocks.start;
        let mut chart = ChartBuilder::on(&chart)
            .x_label_area_size(units(52))
            .y_label_area_size(units(76))
            .build_cartesian_2d(0.0..bits, blocks.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.bits)
            .y_desc(self.unit)
            .axis_desc_style(words(19))
            .label_style(words(17))
            .x_labels(13)
            .x_max_light_lines(2)
            .y_max_light_lines(10)
            .x_label_formatter(&|bits| format!("{bits:.0}"))
            .y_label_formatter(&|blocks| power_of_ten(*blocks))
            .bold_line_style(BLACK.mix(0.18))
            .light_line_style(BLACK.mix(0.06))
            .draw()?;

        let (dash, gap) = (px(8), px(5));
        if let Some(ignored) = self.ignored {
            let ends = [(0.0, ignored), (bits, ignored)];
            chart
                .draw_series(DashedLineSeries::new(ends, units(8), units(5), LIMIT.stroke_width(line)))?
                .label(format!("filters ignored: {}", Decimal(ignored)))
                .legend(move |(x, y)| {
                    let ends = [(x, y), (x + 4 * dash, y)];
                    DashedPathElement::new(ends, dash, gap, LIMIT.stroke_width(line))
                });
        }
        let right_of = |vertical| words(17).pos(text_anchor::Pos::new(text_anchor::HPos::Left, vertical));
        let radius = px(5);
        let place = |point: &Point| (point.bits, point.blocks.max(least));
        for (i, (series, (theory, points))) in self.series.iter().zip(COLOURS.into_iter().cycle()).enumerate() {
            // Later lines are thinner, and later labels above, so that those beneath are seen.
            let behind = self.series.len() - 1 - i;
            let stroke = theory.stroke_width(units(2) * (1 + u32::from(behind > 0)));
            let (label, above) = match behind {
                0 => (right_of(text_anchor::VPos::Bottom), px(-5)),
                _ => (right_of(text_anchor::VPos::Top), px(3)),
            };
            let curve = series.theory.points.iter().copied().filter(|(_, blocks)| *blocks >= least);
            chart
                .draw_series(LineSeries::new(curve, stroke))?
                .label(&*series.theory.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 4 * dash, y)], stroke));
            // Points too small for the scale are drawn on its edge.
            chart.draw_series(series.points.iter().map(|point| {
                let [low, middle, high] = [point.low, point.blocks, point.high].map(|blocks| blocks.max(least));
                ErrorBar::new_vertical(point.bits, low, middle, high, points.stroke_width(line), units(12))
            }))?;
            chart
                .draw_series(series.points.iter().map(|point| Circle::new(place(point), radius, points.filled())))?
                .label(&*series.label)
                .legend(move |(x, y)| Circle::new((x + 2 * dash, y), radius, points.filled()));
            chart.draw_series(series.points.iter().map(|point| {
                EmptyElement::at(place(point)) + Text::new(short(point.blocks), (px(9), above), label.clone())
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .margin(units(16))
            .legend_area_size(units(44))
            .label_font(words(18))
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}

impl Figure {
    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// The right end of the bits axis.
    fn most_bits(&self) -> f64 {
        let most = self.points().map(|point| point.bits).fold(10.0, f64::max);
        (most + 2.0).ceil()
    }

    /// The range of the blocks axis: a power of ten at the bottom, space for text at the top.
    fn range(&self) -> std::ops::Range<f64> {
        let lines = self.series.iter().flat_map(|series| &series.theory.points).map(|(_, blocks)| *blocks);
        let most = lines.fold(self.ignored.unwrap_or(0.0).max(0.1), f64::max);
        let least = self.points().filter(|point| point.blocks > 0.0);
        let least = least.map(|point| point.low.max(point.blocks / 10.0)).fold(most / 10.0, f64::min);
        10f64.powf(least.log10().floor())..most * 2.5
    }
}

/// A power of ten as a decimal.
fn power_of_ten(n: f64) -> String {
    let mut decimals = 0;
    while decimals < 12 && n * 10f64.powi(decimals) < 0.99 {
        decimals += 1;
    }
    format!("{n:.*}", usize::try_from(decimals).unwrap_or_default())
}

/// A number with two or three significant digits.
fn short(n: f64) -> String {
    let decimals = if n > 0.0 { (1.0 - n.log10().floor()).clamp(0.0, 8.0) } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 8")]
    let decimals = decimals as usize;
    format!("{n:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let point = |bits: f64, blocks: f64| Point { bits, blocks, low: blocks * 0.9, high: blocks * 1.1 };
        Figure {
            heading: "Disk reads per missing key",
            below: "some words".to_owned(),
            bits: "filter size (bits per key)",
            unit: "block reads per missing key",
            ignored: Some(4.0),
            series: vec![Series {
                theory: Line { label: "textbook".to_owned(), points: vec![(0.0, 4.0), (20.0, 0.01)] },
                label: "measured".to_owned(),
                points: vec![point(4.0, 0.59), point(10.0, 0.033), point(20.0, 0.0)],
            }],
        }
    }

    #[test]
    fn every_point_is_in_the_svg() {
        let svg = tamis_bench::plot::svg(&figure()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        // A dot and the centre of an error bar for each point, and one dot in the legend.
        assert_eq!(svg.matches("<circle").count(), 2 * 3 + 1, "{svg}");
        for words in ["bits per key", "Disk reads per missing key", "0.033", "textbook"] {
            assert!(svg.contains(words), "{words} is missing");
        }
    }

    #[test]
    fn bitmap_has_letters_without_a_font_on_the_machine() {
        let pixels = tamis_bench::plot::png(&figure()).unwrap();
        let row = tamis_bench::plot::pixels((WIDTH, HEIGHT)).0 as usize * 3;
        // Only the heading stands above the chart.
        let dark = pixels[..row * 100].chunks(3).filter(|pixel| pixel.iter().all(|&part| part < 100)).count();
        assert!((500..20_000).contains(&dark), "{dark} dark pixels");
    }

    #[test]
    fn numbers_at_the_axis_and_at_the_points_are_short() {
        assert_eq!([1.0, 10.0, 0.1, 0.000_999_999].map(power_of_ten), ["1", "10", "0.1", "0.001"]);
        assert_eq!([3.98, 0.589, 0.0326, 0.000_67, 0.0].map(short), ["4.0", "0.59", "0.033", "0.00067", "0"]);
    }
}
