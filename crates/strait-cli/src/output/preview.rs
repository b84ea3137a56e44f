//! Shows the first rows as a table that fits the screen.

use std::borrow::Cow;
use std::fmt::Write;

use anyhow::anyhow;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions, ValueFormatter};
use console::{Alignment, Term, measure_text_width, pad_str, truncate_str};
use strait::MemoryReservation;

use super::zones::printable;
use crate::failure;
use crate::memory::Memory;
use crate::panics::caught;

/// The width of a table if there is no terminal.
const WIDTH: usize = 120;

/// The cell widths to try, from wide to narrow.
const CAPS: [usize; 4] = [48, 32, 24, 16];

/// The separator between two columns.
const BETWEEN: &str = " │ ";

/// The first rows of a table, as text.
pub(crate) struct Preview {
    columns: Vec<Column>,
    rows: usize,
    limit: usize,
    /// The bytes of all cells.
    bytes: u64,
    memory: Memory,
    reservation: MemoryReservation,
}

/// The longest text that is kept of a value: more than any terminal shows in a cell.
const CELL_BYTES: usize = 1 << 10;

struct Column {
    name: String,
    alignment: Alignment,
    cells: Vec<String>,
}

impl Preview {
    /// An empty preview for up to `limit` rows.
    pub(crate) fn new(
        schema: &SchemaRef,
        limit: usize,
        memory: &Memory,
    ) -> anyhow::Result<Preview> {
        let columns = schema.fields().iter().map(|field| Column {
            name: one_line(field.name()).into_owned(),
            alignment: match field.data_type().is_numeric() {
                true => Alignment::Right,
                false => Alignment::Left,
            },
            cells: Vec::new(),
        });
        let reservation = memory.reserve(0, "the rows to be shown")?;
        let columns = columns.collect();
        Ok(Preview { columns, rows: 0, limit, bytes: 0, memory: memory.clone(), reservation })
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Takes rows of the batch, up to the limit.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let rows = batch.num_rows().min(self.limit - self.rows);
        let options = FormatOptions::default().with_null("null");
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            let cells = caught(|| cells(array, rows, &options)).map_err(|why| {
                anyhow!("column \"{}\" has values that cannot be shown: {why}", column.name)
            })?;
            for cell in cells? {
                self.bytes += (size_of::<String>() + cell.capacity()) as u64;
                column.cells.push(cell);
            }
        }
        // The layout takes about as much memory again.
        self.memory
            .resize(&mut self.reservation, 2 * self.bytes, "the rows to be shown")
            .map_err(failure::of_join)?;
        self.rows += rows;
        Ok(())
    }

    /// Formats the table for the terminal. Returns the text, and the number of columns that are not shown.
    pub(crate) fn render(&self) -> (String, usize) {
        let terminal = Term::stdout();
        let width = match terminal.is_term().then(|| terminal.size_checked()).flatten() {
            Some((_, columns)) => usize::from(columns).max(20),
            None => WIDTH,
        };
        self.render_to(width)
    }

    fn render_to(&self, width: usize) -> (String, usize) {
        let (widths, shown) = self.fit(width);
        let hidden = self.columns.len() - shown.len();
        // A column of dots, before the last column, marks the missing columns.
        let gap = (hidden > 0).then(|| shown.len().saturating_sub(1));
        let mut text = String::new();
        let mut line = |cell: &dyn Fn(usize) -> String, dots: &str, between: &str| {
            let mut cells: Vec<String> = shown.iter().map(|&i| cell(i)).collect();
            if let Some(gap) = gap {
                cells.insert(gap, dots.to_string());
            }
            let _ = writeln!(text, "{}", cells.join(between).trim_end());
        };
        line(&|i| self.columns[i].fitted(&self.columns[i].name, widths[i]), "…", BETWEEN);
        line(&|i| "─".repeat(widths[i]), "─", "─┼─");
        for row in 0..self.rows {
            line(&|i| self.columns[i].fitted(&self.columns[i].cells[row], widths[i]), "…", BETWEEN);
        }
        (text, hidden)
    }

    /// Returns the width of each column, and which columns to show: all columns if cells can be made narrow
    /// enough, else the first ones and the last.
    fn fit(&self, width: usize) -> (Vec<usize>, Vec<usize>) {
        let between = BETWEEN.chars().count();
        let natural: Vec<usize> = self.columns.iter().map(Column::width).collect();
        let capped = |cap: usize| natural.iter().map(|&w| w.min(cap)).collect::<Vec<_>>();
        let total = |widths: &[usize]| widths.iter().map(|w| w + between).sum::<usize>();
        for cap in CAPS {
            let widths = capped(cap.min(width));
            if total(&widths) <= width + between {
                return (widths, (0..natural.len()).collect());
            }
        }
        let widths = capped(24.min(width));
        let last = widths.len().saturating_sub(1);
        let mut used = widths.get(last).map_or(0, |w| w + 1 + between);
        let mut shown = Vec::new();
        for (i, w) in widths.iter().enumerate().take(last) {
            used += w + between;
            if used > width {
                break;
            }
            shown.push(i);
        }
        shown.push(last);
        (widths, shown)
    }
}

/// Returns the first values of a column as text.
fn cells(
    array: &ArrayRef,
    rows: usize,
    options: &FormatOptions<'_>,
) -> Result<Vec<String>, ArrowError> {
    let array = printable(&array.slice(0, rows))?;
    let formatter = ArrayFormatter::try_new(&array, options)?;
    (0..rows).map(|row| Ok(one_line(&shortened(&formatter.value(row))?).into_owned())).collect()
}

/// Formats a value as text of at most [`CELL_BYTES`].
fn shortened(value: &ValueFormatter<'_>) -> Result<String, ArrowError> {
    struct Short(String);
    impl Write for Short {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let room = CELL_BYTES - self.0.len();
            let kept = text.floor_char_boundary(room);
            self.0.push_str(&text[..kept]);
            if kept < text.len() { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut short = Short(String::new());
    match value.write(&mut short) {
        Err(_) if short.0.len() + 4 > CELL_BYTES => Ok(short.0),
        written => written.map(|()| short.0),
    }
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| measure_text_width(cell)).max().unwrap_or(0);
        cells.max(measure_text_width(&self.name)).max(1)
    }

    fn fitted(&self, text: &str, width: usize) -> String {
        let cut = truncate_str(text, width, "…");
        pad_str(&cut, width, self.alignment, None).into_owned()
    }
}

/// Escapes control characters, including line ends, because they would break the table.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use std::sync::Arc;

    fn preview(columns: Vec<(&str, ArrayRef)>) -> Preview {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut preview = Preview::new(&batch.schema(), 10, &Memory::new(None)).unwrap();
        preview.add(&batch).unwrap();
        preview
    }

    #[test]
    fn numbers_to_the_right_and_nulls_by_name() {
        let table = preview(vec![
            ("id", Arc::new(Int64Array::from(vec![Some(7), None]))),
            ("name", Arc::new(StringArray::from(vec!["a\nb", "c"]))),
        ]);
        let (text, hidden) = table.render_to(80);
        assert_eq!(text, "  id │ name\n─────┼─────\n   7 │ a\\nb\nnull │ c\n");
        assert_eq!(hidden, 0);
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        let long = "x".repeat(100);
        let names: Vec<String> = (0..30).map(|i| format!("column_{i}")).collect();
        let cell: ArrayRef = Arc::new(StringArray::from(vec![long.as_str()]));
        let table = preview(names.iter().map(|n| (n.as_str(), cell.clone())).collect());
        for width in [20, 60, 120] {
            let (text, hidden) = table.render_to(width);
            assert!(hidden > 0);
            for line in text.lines() {
                assert!(measure_text_width(line) <= width.max(28), "{width}: {line}");
            }
        }
        let (text, hidden) = preview(vec![("only", cell)]).render_to(60);
        assert!(text.lines().all(|line| measure_text_width(line) <= 60));
        assert_eq!(hidden, 0);
    }
}
