//! Formats rows of text in aligned columns.

/// Aligns the first `left` columns to the left, and the others to the right.
pub(super) fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| {
            if i < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn numbers_stand_to_the_right() {
        let row = |cells: [&str; 2]| cells.map(str::to_string).to_vec();
        let text = aligned(&[row(["name", "n"]), row(["a", "1000"])], 1);
        assert_eq!(text, "name     n\na     1000\n");
    }
}
