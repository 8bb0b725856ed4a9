//! Plots as SVG or PNG.
//!
//! The font is part of the program, because a measuring machine may have none.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

/// The font family that drawings name.
pub const FONT: &str = "sans-serif";
/// Pixels of a bitmap per unit; fewer make letters hard to read.
const BITMAP_SCALE: u32 = 2;

/// A plot.
pub trait Drawing {
    /// Width and height in units: pixels of an SVG at its natural size.
    fn size(&self) -> (u32, u32);

    /// Draws on an area with `scale` pixels per unit.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>;
}

/// Checks that a plot's file name has a known extension.
pub fn plot_file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match form(&path) {
        Some(_) => Ok(path),
        None => Err("the name of a plot must end in .svg or .png".to_owned()),
    }
}

enum Form {
    Svg,
    Png,
}

fn form(path: &Path) -> Option<Form> {
    let extension = path.extension()?;
    let is = |name: &str| extension.eq_ignore_ascii_case(name);
    if is("svg") { Some(Form::Svg) } else { is("png").then_some(Form::Png) }
}

/// Draws to a file whose name ends in `.svg` or `.png`.
pub fn write(path: &Path, drawing: &impl Drawing) -> io::Result<()> {
    match form(path) {
        Some(Form::Png) => encode(path, drawing.size(), &png(drawing)?),
        _ => std::fs::write(path, svg(drawing)?),
    }
}

/// The drawing as the text of an SVG file.
pub fn svg(drawing: &impl Drawing) -> io::Result<String> {
    let mut text = String::new();
    draw(drawing, &SVGBackend::with_string(&mut text, drawing.size()).into_drawing_area(), 1)?;
    Ok(text)
}

/// Red, green and blue of each pixel, row by row.
pub fn png(drawing: &impl Drawing) -> io::Result<Vec<u8>> {
    let (width, height) = pixels(drawing.size());
    let mut pixels = vec![0; (width * height * 3) as usize];
    draw(drawing, &BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area(), BITMAP_SCALE)?;
    Ok(pixels)
}

/// Width and height, in pixels, of a drawing as a bitmap.
pub fn pixels((width, height): (u32, u32)) -> (u32, u32) {
    (width * BITMAP_SCALE, height * BITMAP_SCALE)
}

fn encode(path: &Path, size: (u32, u32), colours: &[u8]) -> io::Result<()> {
    let file = io::BufWriter::new(File::create(path)?);
    let (width, height) = pixels(size);
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(colours)?;
    Ok(writer.finish()?)
}

fn draw<B: DrawingBackend>(drawing: &impl Drawing, area: &DrawingArea<B, Shift>, scale: u32) -> io::Result<()> {
    register_font(FONT, FontStyle::Normal, notosans::REGULAR_TTF)
        .map_err(|_| io::Error::other("the built-in font cannot be loaded"))?;
    drawing.draw(area, scale).and_then(|()| area.present()).map_err(|error| io::Error::other(error.to_string()))
}

/// Throughput of engines in the workloads of a group: a row for each workload, a dot for each
/// engine, a logarithmic scale.
pub(crate) struct Rates<'a> {
    pub(crate) title: &'a str,
    pub(crate) about: &'a str,
    pub(crate) workloads: Vec<&'a str>,
    /// Name of each engine, and operations per second in the order of `workloads`.
    pub(crate) engines: Vec<(&'a str, Vec<Option<f64>>)>,
}

const WIDTH: u32 = 960;
const ROW: u32 = 26;
/// Height of headings, axis and legend.
const FRAME: u32 = 190;
/// Colours that colour-blind readers can tell apart (Okabe and Ito, 2008); the first one is
/// tamis's.
const COLOURS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];

impl Drawing for Rates<'_> {
    fn size(&self) -> (u32, u32) {
        (WIDTH, FRAME + ROW * u32::try_from(self.workloads.len()).unwrap_or(1))
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let units = |n: u32| n * scale;
        let px = |n: i32| n * i32::try_from(scale).unwrap_or(1);
        let words = |size: u32| (FONT, units(size)).into_font().color(&BLACK);
        area.fill(&WHITE)?;
        let area = area.margin(units(12), units(12), units(12), units(28));
        let (heading, chart) = area.split_vertically(units(96));
        heading.draw(&Text::new(format!("Operations per second: {}", self.title), (px(8), px(2)), words(25)))?;
        heading.draw(&Text::new(self.about, (px(8), px(34)), words(17)))?;
        let mut at = px(8);
        for ((name, _), colour) in self.engines.iter().zip(COLOURS.into_iter().cycle()) {
            heading.draw(&Circle::new((at + px(6), px(76)), px(6), colour.filled()))?;
            heading.draw(&Text::new(*name, (at + px(17), px(68)), words(17)))?;
            at += px(40) + px(10) * i32::try_from(name.len()).unwrap_or(0);
        }

        let rows = self.workloads.len() as f64;
        let mut chart = ChartBuilder::on(&chart)
            .x_label_area_size(units(52))
            .y_label_area_size(units(150))
            .build_cartesian_2d(self.range().log_scale(), 0.0..rows)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc("operations per second")
            .axis_desc_style(words(17))
            .label_style(words(15))
            .x_label_formatter(&|rate| tamis_figures::text::rate(*rate))
            .bold_line_style(BLACK.mix(0.18))
            .light_line_style(BLACK.mix(0.06))
            .draw()?;
        let left = self.range().start;
        for (row, workload) in self.workloads.iter().enumerate() {
            let y = rows - row as f64 - 0.5;
            let line = [(left, y), (self.range().end, y)];
            chart.draw_series(LineSeries::new(line, BLACK.mix(0.12)))?;
            let label = EmptyElement::at((left, y)) + Text::new((*workload).to_owned(), (px(-146), px(-5)), words(16));
            chart.plotting_area().draw(&label)?;
            // The first engine, tamis, is drawn last, over the others.
            for (engine, (_, rates)) in self.engines.iter().enumerate().rev() {
                let colour = COLOURS[engine % COLOURS.len()];
                if let Some(rate) = rates.get(row).copied().flatten() {
                    chart.draw_series([Circle::new((rate, y), px(6), colour.mix(0.85).filled())])?;
                }
            }
        }
        Ok(())
    }
}

impl Rates<'_> {
    /// The powers of ten that enclose all rates.
    fn range(&self) -> std::ops::Range<f64> {
        let rates = || self.engines.iter().flat_map(|(_, rates)| rates.iter().copied().flatten());
        let least = rates().fold(f64::INFINITY, f64::min).max(1e-3);
        let most = rates().fold(1.0, f64::max);
        10_f64.powf(least.min(most).log10().floor())..10_f64.powf((most * 1.01).log10().ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_a_dot_beside_the_name_of_its_workload() {
        let rates = Rates {
            title: "raw",
            about: "some words",
            workloads: vec!["readseq", "readhot"],
            engines: vec![("tamis", vec![Some(2e7), Some(3e6)]), ("peer", vec![Some(5e6), None])],
        };
        let svg = svg(&rates).unwrap();
        // Three rates, and a dot for each engine in the legend.
        assert_eq!(svg.matches("<circle").count(), 3 + 2);
        for words in ["readseq", "readhot", "tamis", "peer", "some words", "10.0M"] {
            assert!(svg.contains(words), "{words} is missing");
        }
        assert_eq!(rates.range(), 1e6..1e8);
        let pixels = png(&rates).unwrap();
        let orange = pixels.chunks(3).filter(|pixel| **pixel == [213, 94, 0]).count();
        assert!(orange > 50, "{orange} pixels");
    }

    #[test]
    fn files_are_known_by_their_names() {
        assert!(plot_file("a.svg").is_ok() && plot_file("b.PNG").is_ok());
        assert!(plot_file("c.jpg").unwrap_err().contains(".svg or .png"));
    }
}
