//! Takes a template value, gives JSON exactly as Python's `json.dumps(value, ensure_ascii=False)` writes it.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The `tojson` filter of chat templates: `, ` and `: `, keys in the order given, no HTML escaping; `indent` as in Python.
pub(crate) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    if sort_keys == Some(true) || ensure_ascii == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson with sort_keys or ensure_ascii is not supported",
        ));
    }
    options.assert_all_used()?;
    let mut out = String::new();
    write_value(&mut out, value, indent, 0)?;
    Ok(out)
}

fn write_value(out: &mut String, value: &Value, indent: Option<usize>, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => {
            let _ = write!(out, "{value}");
        }
        ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_block(out, '[', ']', &items, indent, depth, |out, item| {
                write_value(out, item, indent, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            write_block(out, '{', '}', &keys, indent, depth, |out, key| {
                match key.as_str() {
                    Some(text) => write_string(out, text),
                    None => write_string(out, &key.to_string()),
                }
                out.push_str(": ");
                write_value(out, &value.get_item(key)?, indent, depth + 1)
            })?;
        }
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("{kind} is not json serializable")));
        }
    }
    Ok(())
}

fn write_block(
    out: &mut String,
    open: char,
    close: char,
    items: &[Value],
    indent: Option<usize>,
    depth: usize,
    mut write_item: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            // With an indent Python drops the space after the comma.
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        new_line(out, depth + 1);
        write_item(out, item)?;
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: shortest digits that read back the same, fixed notation for exponents -4 to 15.
pub(super) fn python_float(value: f64) -> String {
    if !value.is_finite() {
        // json.dumps writes these names; JSON input cannot hold them.
        return if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // Rust's `{:?}` keeps ".0" and shortest digits, but changes to an exponent at other places; `{}` never does.
        let fixed = format!("{value}");
        if fixed.contains('.') { fixed } else { fixed + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.25, "0.25"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.234_567_890_123_456_7, "1.2345678901234567"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }

    #[test]
    fn strings_escape_only_what_python_escapes() {
        let mut out = String::new();
        write_string(&mut out, "<a href='x'>&\"\\\n\u{1}\u{7f}\u{2028}é");
        assert_eq!(out, "\"<a href='x'>&\\\"\\\\\\n\\u0001\u{7f}\u{2028}é\"");
    }
}
