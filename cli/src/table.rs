//! Takes rows of cells, gives lines whose columns stand under each other; and numbers as people read them.

/// Left-aligned columns, two spaces between them, no space at a line's end.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Bytes in the largest unit that leaves at least 1.
pub fn bytes(bytes: f64) -> String {
    for (unit, size) in [("GB", 1e9), ("MB", 1e6), ("KB", 1e3)] {
        if bytes >= size {
            return format!("{:.2} {unit}", bytes / size);
        }
    }
    format!("{bytes:.0} B")
}

/// A number with a comma after each three digits.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text from the data, which must not command the terminal.
pub fn printable(text: &str) -> String {
    let plain = |character: char| !character.is_control();
    text.chars()
        .flat_map(|character| {
            let escaped = (!plain(character)).then(|| character.escape_default());
            let same = plain(character).then_some(character);
            same.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}

/// A time in seconds or milliseconds.
pub fn seconds(seconds: f64) -> String {
    if seconds >= 1.0 { format!("{seconds:.2} s") } else { format!("{:.0} ms", seconds * 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let rows =
            [vec!["a".to_owned(), "é".to_owned(), "x".to_owned()], vec!["long".to_owned(), "b".to_owned()]];
        assert_eq!(align(&rows), "a     é  x\nlong  b\n");
        assert_eq!(align(&[]), "");
    }

    #[test]
    fn numbers_have_commas_and_data_cannot_command_the_terminal() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(printable("a\u{1b}[2Jé\n"), "a\\u{1b}[2Jé\\n");
    }

    #[test]
    fn numbers_have_units() {
        for (number, text) in
            [(0.0, "0 B"), (999.0, "999 B"), (1.5e3, "1.50 KB"), (2.5e6, "2.50 MB"), (3e9, "3.00 GB")]
        {
            assert_eq!(bytes(number), text);
        }
        for (number, text) in [(0.0, "0 ms"), (0.0314, "31 ms"), (1.0, "1.00 s"), (12.345, "12.35 s")] {
            assert_eq!(seconds(number), text);
        }
    }
}
