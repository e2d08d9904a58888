//! The screen of `stile top`: a table of VMs or vCPUs, and the reasons of the selected one.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use super::figures::{Figures, Order, figures};
use crate::args::TopArgs;
use crate::budget::Usage;
use crate::control::sample::Sample;
use crate::control::source::Source;
use crate::{cleanup, exit};

const HEAD: [&str; 7] = ["VM", "GUEST%", "STILE%", "WAIT%", "EXITS/S", "EXITS", "UNACCOUNTED"];
const ROWS_HEAD: [&str; 5] = ["VM-EXIT", "EXITS/S", "TIME%", "AVG", "EXITS"];

/// Keys, for the last line.
const KEYS: &str = "q leave  up/down select  v VMs/vCPUs  s sort  r reasons/sub-reasons  / filter";

/// The user's choices.
#[derive(Default)]
struct Screen {
    by_vcpu: bool,
    /// Reasons without their sub-reasons.
    by_reason: bool,
    order: Order,
    filter: String,
    /// The filter is being typed.
    typing: bool,
    /// The selected VM or vCPU: it stays selected where the order changes.
    selected: Option<String>,
}

/// The name of a VM or vCPU.
fn label(figures: &Figures) -> String {
    figures.vcpu.map_or_else(|| figures.vm.clone(), |vcpu| format!("{}/{vcpu}", figures.vm))
}

fn cells(figures: &Figures) -> [String; 7] {
    let Figures { guest_percent, stile_percent, waiting_percent, exits_per_second, exits_taken, unaccounted, .. } = figures;
    [
        label(figures),
        format!("{guest_percent:.1}"),
        format!("{stile_percent:.2}"),
        format!("{waiting_percent:.1}"),
        format!("{exits_per_second:.0}"),
        exits_taken.to_string(),
        unaccounted.to_string(),
    ]
}

/// The rows of a VM or vCPU, or its reasons.
fn reasons(figures: &Figures, by_reason: bool) -> Vec<[String; 5]> {
    let mut lines: Vec<(String, f64, f64, u64)> = Vec::new();
    for row in &figures.rows {
        let name = if by_reason { row.reason.clone() } else { format!("{} {}", row.reason, row.sub) };
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => (line.1, line.2, line.3) = (line.1 + row.per_second, line.2 + row.time_percent, line.3 + row.count),
            None => lines.push((name, row.per_second, row.time_percent, row.count)),
        }
    }
    lines.sort_by(|a, b| b.2.total_cmp(&a.2));
    let average = |per_second: f64, percent: f64| if per_second > 0.0 { percent / 100.0 / per_second * 1e6 } else { 0.0 };
    let line = |(name, per_second, percent, count): &(String, f64, f64, u64)| {
        [
            name.clone(),
            format!("{per_second:.0}"),
            format!("{percent:.2}"),
            format!("{:.2}us", average(*per_second, *percent)),
            count.to_string(),
        ]
    };
    lines.iter().map(line).collect()
}

/// A table as text: the first column to the left, the others to the right.
fn aligned<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let widths = widths(&head, rows);
    let mut text = String::new();
    let head = head.map(str::to_owned);
    for row in std::iter::once(&head).chain(rows) {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a string can't fail.
            let _ = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

/// The widths of a table's columns.
fn widths<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> [usize; N] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).chain([head[column].len()]).max().unwrap_or(0))
}

/// Characters of the first column that a narrow screen keeps, as far as names have them.
const NAME_WIDTH: usize = 12;

/// A table for a screen of `width` characters, as [`aligned`]. If the screen is too narrow, the first column is cut; then the last
/// columns are left out.
fn table<const N: usize>(head: [&str; N], rows: &[[String; N]], width: u16) -> Table<'static> {
    const SPACING: u16 = 2;
    let widths = widths(&head, rows);
    let mut end = widths[0].min(NAME_WIDTH);
    let needed = widths[1..].iter().map(|column| {
        end += usize::from(SPACING) + column;
        end
    });
    let columns = 1 + needed.take_while(|&end| end <= usize::from(width)).count();
    let row = |cells: &[String; N]| {
        // Cells are aligned to the left.
        let padded = cells.iter().zip(widths).enumerate().take(columns);
        Row::new(
            padded.map(|(column, (cell, width))| if column == 0 { cell.clone() } else { format!("{cell:>width$}") }).collect::<Vec<_>>(),
        )
    };
    let constraint = |column: usize| if column == 0 { Constraint::Fill(1) } else { Constraint::Length(widths[column] as u16) };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let constraints = (0..columns).map(constraint);
    Table::new(rows.iter().map(row), constraints).column_spacing(SPACING).header(row(&head.map(str::to_owned)).style(bold))
}

/// A line for each limit of a budget that is exceeded.
fn warnings(shown: &[Figures]) -> Vec<String> {
    let mut lines: Vec<String> = shown.iter().flat_map(|figures| &figures.over_budget).map(Usage::to_string).collect();
    // With vCPUs, each of a VM's has them.
    let mut seen = HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

/// Everything as text, for `--once`.
pub fn text(shown: &[Figures]) -> String {
    let rows: Vec<_> = shown.iter().map(cells).collect();
    let mut text = aligned(HEAD, &rows);
    warnings(shown).into_iter().for_each(|line| text += &format!("{line}\n"));
    for figures in shown.iter().filter(|figures| !figures.rows.is_empty()) {
        let _ = write!(text, "\n{}\n{}", label(figures), aligned(ROWS_HEAD, &reasons(figures, false)));
    }
    text.trim_end().to_owned()
}

impl Screen {
    fn draw(&self, frame: &mut Frame<'_>, shown: &[Figures], machine: &str) {
        let warnings = warnings(shown);
        let [title, over_budget, machines, rows, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(warnings.len().min(4) as u16),
            Constraint::Length(2 + shown.len().min(12) as u16),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let what = if self.by_vcpu { "vCPUs" } else { "VMs" };
        let filter = if self.filter.is_empty() && !self.typing { String::new() } else { format!(", filter /{}", self.filter) };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Line::styled(format!("{machine}: {what} by {}{filter}", self.order.name()), bold), title);
        let warnings: Vec<Line<'_>> = warnings.into_iter().map(|line| Line::styled(line, bold)).collect();
        frame.render_widget(Paragraph::new(warnings), over_budget);
        let cells: Vec<_> = shown.iter().map(cells).collect();
        let table = table(HEAD, &cells, machines.width).row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = self.place(shown);
        frame.render_stateful_widget(table, machines, &mut TableState::new().with_selected(Some(selected)));
        if let Some(figures) = shown.get(selected) {
            frame.render_widget(self::table(ROWS_HEAD, &reasons(figures, self.by_reason), rows.width), rows);
        }
        frame.render_widget(Line::raw(if self.typing { "type the filter; Enter ends it" } else { KEYS }), keys);
    }

    /// The line of the selected VM or vCPU: the first one if it is not shown.
    fn place(&self, shown: &[Figures]) -> usize {
        let selected = self.selected.as_ref();
        selected.and_then(|selected| shown.iter().position(|figures| label(figures) == *selected)).unwrap_or(0)
    }

    /// Handles a key. Returns whether the user leaves.
    fn key(&mut self, key: KeyCode, shown: &[Figures]) -> bool {
        if self.typing {
            match key {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => _ = self.filter.pop(),
                KeyCode::Char(char) => self.filter.push(char),
                _ => {}
            }
            return false;
        }
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('v') => (self.by_vcpu, self.selected) = (!self.by_vcpu, None),
            KeyCode::Char('r') => self.by_reason = !self.by_reason,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.select(shown.get(self.place(shown) + 1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.place(shown).checked_sub(1).and_then(|above| shown.get(above))),
            _ => {}
        }
        false
    }

    /// Selects another one, if there is one.
    fn select(&mut self, other: Option<&Figures>) {
        self.selected = other.map(label).or_else(|| self.selected.take());
    }
}

/// Shows the screen until the user leaves.
pub fn run(mut source: Source, first: Sample, args: &TopArgs, interval: Duration) -> Result<u8> {
    let mut screen = Screen { by_vcpu: args.vcpus, order: args.sort, filter: args.filter.clone(), ..Screen::default() };
    let (mut terminal, _cleanup) = cleanup::restoring(restore, ratatui::try_init).context("setting up the terminal")?;
    let result = follow(&mut terminal, &mut screen, &mut source, first, interval);
    restore();
    result.map(|()| exit::OK)
}

fn restore() {
    // The terminal may be closed: a message to it would be a panic.
    let _ = ratatui::try_restore();
    // The table has no cursor.
    let _ = crossterm::execute!(io::stdout(), crossterm::cursor::Show);
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    source: &mut Source,
    first: Sample,
    interval: Duration,
) -> Result<()> {
    // Until there are two samples, rates are those since the start.
    let (mut earlier, mut later) = (Sample { vms: Vec::new(), ..first.clone() }, first);
    let machine = source.connection.name.clone();
    loop {
        let shown = figures(&earlier, &later, screen.by_vcpu, screen.order, &screen.filter);
        terminal.draw(|frame| screen.draw(frame, &shown, &machine)).context("drawing")?;
        let next = Instant::now() + interval;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if !event::poll(left).context("waiting for keys")? {
                earlier = std::mem::replace(&mut later, source.sample()?);
                break;
            }
            let Event::Key(key) = event::read().context("reading keys")? else { break };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) || screen.key(key.code, &shown) {
                return Ok(());
            }
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::RowFigures;
    use super::*;
    use crate::budget::Kind;

    fn shown() -> Vec<Figures> {
        let row = |sub: &str, time_percent| RowFigures {
            reason: "IRQ".into(),
            sub: sub.into(),
            per_second: 100.0,
            time_percent,
            average_us: 1.0,
            count: 7,
            ticks: 70,
        };
        let figures = |vm: &str, vcpu| Figures {
            vm: vm.into(),
            vcpu,
            guest_percent: 80.0,
            stile_percent: 1.25,
            waiting_percent: 0.0,
            exits_per_second: 200.0,
            exits_taken: 14,
            unaccounted: 0,
            over_budget: vec![Usage {
                vm: vm.into(),
                budget: Kind::ExitsPerSecond,
                limit: 9,
                used: 10,
                exceeded: true,
                violations: 1,
                cause: None,
            }],
            rows: vec![row("kick", 0.25), row("virtual timer", 1.0)],
        };
        vec![figures("web", Some(1)), figures("db", None)]
    }

    #[test]
    fn text_has_a_table_and_the_rows_of_each() {
        let text = text(&shown());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["web/1", "80.0", "1.25", "0.0", "200", "14", "0"]);
        assert!(text.contains("\nweb exceeds its budget of 9 exits/s: 10 exits/s\n"));
        assert_eq!(lines[6], ["web/1"]);
        assert_eq!(lines[8], ["IRQ", "virtual", "timer", "100", "1.00", "100.00us", "7"]);
    }

    #[test]
    fn numbers_are_whole_on_a_narrow_screen() {
        let screen = Screen::default();
        let mut shown = shown();
        shown[0].exits_taken = 123_456_789;
        let mut terminal = Terminal::new(TestBackend::new(64, 20)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &shown, "m")).unwrap();
        let cells: String = terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
        for text in ["GUEST%", "STILE%", "UNACCOUNTED", "123456789", "100.00us"] {
            assert!(cells.contains(text), "{text}: {cells}");
        }
    }

    #[test]
    fn a_screen_shows_whole_columns_only() {
        let mut shown = shown();
        shown[0].exits_taken = 123_456_789;
        for (width, columns, left_out) in [(50, "GUEST%  STILE%  WAIT%  EXITS/S      EXITS", "UNACC"), (27, "GUEST%  STILE%", "WAI")] {
            let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
            terminal.draw(|frame| Screen::default().draw(frame, &shown, "m")).unwrap();
            let cells: String = terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
            assert!(cells.contains(columns) && !cells.contains(left_out) && cells.contains("web"), "{cells}");
        }
    }

    #[test]
    fn the_screen_shows_the_reasons_of_the_selected_one() {
        let mut screen = Screen { by_vcpu: true, ..Screen::default() };
        let mut terminal = Terminal::new(TestBackend::new(100, 20)).unwrap();
        let mut draw = |screen: &Screen| {
            terminal.draw(|frame| screen.draw(frame, &shown(), "m")).unwrap();
            let cells: String = terminal.backend().buffer().content.iter().map(|cell| cell.symbol()).collect();
            cells
        };
        let all = draw(&screen);
        for text in
            ["m: vCPUs by time", "db exceeds its budget of 9 exits/s: 10 exits/s", "web/1", "IRQ virtual timer", "100.00us", "q leave"]
        {
            assert!(all.contains(text), "{text}: {all}");
        }
        assert!(!screen.key(KeyCode::Char('r'), &shown()));
        let reasons = draw(&screen);
        assert!(reasons.contains("IRQ ") && !reasons.contains("virtual timer"), "{reasons}");
        for key in "/db".chars() {
            assert!(!screen.key(KeyCode::Char(key), &shown()));
        }
        assert!(!screen.key(KeyCode::Enter, &shown()) && screen.filter == "db");
        assert!(draw(&screen).contains("filter /db"));
        assert!(screen.key(KeyCode::Char('q'), &shown()));
    }

    #[test]
    fn the_selected_one_stays_selected_where_the_order_changes() {
        let mut screen = Screen::default();
        let mut shown = shown();
        assert_eq!(screen.place(&shown), 0);
        assert!(!screen.key(KeyCode::Up, &shown) && screen.place(&shown) == 0);
        for _ in 0..2 {
            assert!(!screen.key(KeyCode::Down, &shown) && screen.place(&shown) == 1);
        }
        shown.swap(0, 1);
        assert_eq!(screen.place(&shown), 0);
        // It is gone.
        shown.remove(0);
        assert!(screen.place(&shown) == 0 && !screen.key(KeyCode::Up, &shown));
    }
}
