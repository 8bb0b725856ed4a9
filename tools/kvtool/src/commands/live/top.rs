//! `top`: a store in use, on the whole terminal.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table};

use super::page::Page;
use super::rates::Rates;
use super::source::{Sample, Source};
use super::{bytes, known, rate};
use crate::args::Top;
use crate::failure::{Attempt, Failure, Result};
use crate::text::percent;

/// Looks whose rates are drawn.
const HISTORY: usize = 300;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

pub(crate) fn run(args: &Top) -> Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage("`top` draws on a terminal; `kvtool watch` prints lines"));
    }
    let mut source = Source::new(&args.db);
    let mut view = View::new(args.db.display().to_string(), source.look()?);
    let mut terminal = ratatui::try_init().attempt("cannot draw on the terminal")?;
    let ran = view.run(&mut terminal, &mut source, Duration::from_secs_f64(args.interval));
    ratatui::restore();
    ran
}

/// What is drawn.
struct View {
    store: String,
    last: Sample,
    rates: Option<Rates>,
    writes: VecDeque<u64>,
    blocks: VecDeque<u64>,
    is_paused: bool,
    /// Why the last look failed.
    trouble: Option<String>,
}

impl View {
    fn new(store: String, last: Sample) -> View {
        let (writes, blocks) = (VecDeque::new(), VecDeque::new());
        View { store, last, rates: None, writes, blocks, is_paused: false, trouble: None }
    }

    fn run(&mut self, terminal: &mut ratatui::DefaultTerminal, source: &mut Source, interval: Duration) -> Result<()> {
        let mut next = Instant::now() + interval;
        loop {
            terminal.draw(|frame| self.draw(frame)).attempt("cannot draw on the terminal")?;
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left).attempt("cannot read keys")? {
                match event::read().attempt("cannot read keys")? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                        KeyCode::Char('p' | ' ') => self.is_paused ^= true,
                        _ => {}
                    },
                    _ => {}
                }
                continue;
            }
            next = Instant::now() + interval;
            match source.look() {
                _ if self.is_paused => {}
                Ok(sample) => self.take(sample),
                Err(failure) => self.trouble = Some(failure.message().unwrap_or_default()),
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates are not negative")]
    fn take(&mut self, sample: Sample) {
        self.trouble = None;
        if let Some(rates) = Rates::between(&self.last, &sample) {
            for (history, rate) in
                [(&mut self.writes, rates.writes), (&mut self.blocks, rates.blocks_cached + rates.blocks_read)]
            {
                history.push_front(rate as u64);
                history.truncate(HISTORY);
            }
            self.rates = Some(rates);
        }
        self.last = sample;
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, curves, work, gauges, stalls, levels] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(7),
            Constraint::Length(3),
            Constraint::Length(3),
            Constraint::Length(4),
            Constraint::Min(3),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(vec![self.title(), self.status()]), head);
        match &self.rates {
            None => frame.render_widget("rates are there after the second look", curves),
            Some(rates) => {
                self.draw_curves(frame, curves, rates);
                frame.render_widget(Paragraph::new(work_lines(rates)), work);
                draw_gauges(frame, gauges, rates);
                frame.render_widget(Paragraph::new(stall_lines(rates)), stalls);
            }
        }
        frame.render_widget(level_table(&self.last.page, levels.height), levels);
    }

    fn title(&self) -> Line<'_> {
        let page = &self.last.page;
        let figure = |name| page.figure(name).unwrap_or_default();
        Line::from(format!(
            "{}: {}, number {}, {} in tables",
            self.store,
            bytes(figure("tamis_size_bytes")),
            figure("tamis_last_seqno"),
            bytes(figure("tamis_level_bytes")),
        ))
        .style(BOLD)
    }

    fn status(&self) -> Line<'_> {
        let text = match (&self.trouble, self.last.interval) {
            (Some(trouble), _) => format!("not seen: {trouble}"),
            (None, Some(interval)) => format!("published every {interval} s"),
            (None, None) => "publishes no statistics: read beside its process".to_owned(),
        };
        let paused = if self.is_paused { "paused; " } else { "" };
        Line::from(format!("{text}; {paused}q ends, p pauses")).style(DIM)
    }

    fn draw_curves(&self, frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
        let [left, right] = Layout::horizontal([Constraint::Ratio(1, 2); 2]).areas(area);
        let writes = format!(" writes: {}/s ", rate(rates.writes));
        frame.render_widget(curve(writes, &self.writes), left);
        let blocks = known(rates.is_published, || {
            let (all, share) = (rates.blocks_cached + rates.blocks_read, percent(rates.cached_share()));
            format!("{}/s, {share} cached", rate(all))
        });
        frame.render_widget(curve(format!(" blocks: {blocks} "), &self.blocks), right);
    }
}

/// Rates over time, the last one at the right.
fn curve(title: String, rates: &VecDeque<u64>) -> Sparkline<'_> {
    let direction = ratatui::widgets::RenderDirection::RightToLeft;
    Sparkline::default().block(Block::bordered().title(title)).data(rates.iter().copied()).direction(direction)
}

fn work_lines(rates: &Rates) -> Vec<Line<'static>> {
    let bytes = |value| known(rates.is_published, || bytes(value));
    let counted = |value| known(rates.is_published, || rate(value));
    vec![
        Line::from(format!(
            "a second: log {}, flushed {}, compacted {} to {}",
            bytes(rates.log_bytes),
            bytes(rates.flushed_bytes),
            bytes(rates.compacted_read_bytes),
            bytes(rates.compacted_written_bytes),
        )),
        Line::from(format!(
            "reads: {} blocks from files, {}; filters asked {}, \"no\" {}, wrong {}",
            counted(rates.blocks_read),
            bytes(rates.read_bytes),
            counted(rates.probes),
            counted(rates.negatives),
            known(rates.is_published, || percent(rates.false_share())),
        )),
        match rates.is_failing {
            true => Line::from("background work fails: Stats::background_error says why").style(BOLD),
            false => Line::from(format!("compactions are behind by {}", bytes(rates.debt))),
        },
    ]
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, rates: &Rates) {
    let [left, right] = Layout::horizontal([Constraint::Ratio(1, 2); 2]).areas(area);
    let share = if rates.memory_limit > 0.0 { rates.memory / rates.memory_limit } else { 0.0 };
    let used = known(rates.is_published, || format!("{} of {}", bytes(rates.memory), bytes(rates.memory_limit)));
    for (area, title, label, share) in [
        (left, " memory ", used, share),
        (right, " write pressure ", known(rates.is_published, || percent(Some(rates.pressure))), rates.pressure),
    ] {
        let gauge = Gauge::default().block(Block::bordered().title(title)).label(label);
        frame.render_widget(gauge.ratio(share.clamp(0.0, 1.0)), area);
    }
}

/// The causes for which writes waited.
fn stall_lines(rates: &Rates) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from("writes wait, by cause: waits a second, and how long each is").style(BOLD)];
    let waits = rates.stalls.iter().filter(|(_, count, _)| *count > 0.0);
    let waits: Vec<String> = waits
        .map(|(cause, count, seconds)| format!("{cause} {}, {:.3} ms", rate(*count), 1000.0 * seconds / count))
        .collect();
    let text = if waits.is_empty() { known(rates.is_published, || "none".to_owned()) } else { waits.join("; ") };
    lines.push(Line::from(text));
    lines
}

fn level_table(page: &Page, height: u16) -> Table<'static> {
    let columns = [
        ("tables", "tamis_level_tables"),
        ("size", "tamis_level_bytes"),
        ("entries", "tamis_level_entries"),
        ("tombstones", "tamis_level_tombstones"),
        ("filter no", "tamis_filter_negatives_total"),
        ("reads", "tamis_block_reads_total"),
    ];
    let mut levels: Vec<(&str, &str)> = page.levels().collect();
    let shown = usize::from(height.saturating_sub(1));
    // The largest, if there is no room for all.
    if levels.len() > shown {
        let size = |(keyspace, level): &(&str, &str)| page.of_level("tamis_level_bytes", keyspace, level);
        levels.sort_by(|a, b| size(b).total_cmp(&size(a)));
        levels.truncate(shown);
    }
    let rows = levels.into_iter().map(|(keyspace, level)| {
        let figures = columns.map(|(_, name)| {
            let value = page.of_level(name, keyspace, level);
            Cell::from(Line::from(if name.ends_with("bytes") { bytes(value) } else { rate(value) }).right_aligned())
        });
        Row::new([Cell::from(format!("{keyspace} {level}"))].into_iter().chain(figures))
    });
    let heads = columns.map(|(head, _)| Cell::from(Line::from(head).right_aligned()));
    let head = Row::new([Cell::from("level")].into_iter().chain(heads)).style(BOLD);
    let widths = [Constraint::Min(10)].into_iter().chain([Constraint::Length(10); 6]);
    Table::new(rows, widths).header(head)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn sample(at: f64, is_published: bool, text: &str) -> Sample {
        let interval = is_published.then_some(1.0);
        Sample { at, is_published, interval, page: Page::parse(text).unwrap() }
    }

    /// What is shown after two looks, on so large a terminal.
    fn shown(width: u16, height: u16, is_published: bool, texts: [&str; 2]) -> String {
        let mut view = View::new("words.db".into(), sample(1.0, is_published, texts[0]));
        view.take(sample(2.0, is_published, texts[1]));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |row| (0..width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..height).map(|row| line(row).trim_end().to_owned() + "\n").collect()
    }

    const BEFORE: &str = "tamis_last_seqno 100\ntamis_log_written_bytes_total 0\n\
                          tamis_stalls_total{cause=\"sync\"} 0\ntamis_stall_seconds_total{cause=\"sync\"} 0\n";
    const AFTER: &str = "tamis_last_seqno 12445\ntamis_log_written_bytes_total 1048576\ntamis_size_bytes 3145728\n\
                         tamis_level_bytes{keyspace=\"default\",level=\"0\"} 2097152\n\
                         tamis_level_entries{keyspace=\"default\",level=\"0\"} 5000\n\
                         tamis_cache_hits_total{keyspace=\"default\",level=\"0\"} 99\n\
                         tamis_block_reads_total{keyspace=\"default\",level=\"0\"} 1\n\
                         tamis_memory_limit_bytes 4194304\ntamis_memory_used_bytes{use=\"cache\"} 1048576\n\
                         tamis_stalls_total{cause=\"sync\"} 4\ntamis_stall_seconds_total{cause=\"sync\"} 0.01\n";

    #[test]
    fn the_screen_has_rates_levels_and_waits() {
        for width in [80, 200] {
            let screen = shown(width, 30, true, [BEFORE, AFTER]);
            for text in [
                "words.db: 3.0 MiB, number 12445, 2.0 MiB in tables",
                "published every 1 s",
                "writes: 12.3k/s",
                "blocks: 100/s, 99.00 % cached",
                "log 1.0 MiB",
                "1.0 MiB of 4.0 MiB",
                "sync 4.0, 2.500 ms",
                "default 0",
                "5.0k",
            ] {
                assert!(screen.contains(text), "{text}\n{screen}");
            }
        }
    }

    #[test]
    fn what_is_not_published_is_not_shown_as_zero() {
        let screen = shown(80, 24, false, [BEFORE, AFTER]);
        assert!(screen.contains("publishes no statistics") && screen.contains("writes: 12.3k/s"), "{screen}");
        assert!(screen.contains("blocks: -") && screen.contains("log -"), "{screen}");
        // A terminal with next to no room is no reason to end.
        shown(5, 3, true, [BEFORE, AFTER]);
    }
}
