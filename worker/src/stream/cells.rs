//! Takes a row of a Parquet file, gives it as a record has it: JSON, with binary values beside it.

use std::collections::HashSet;

use bytes::Bytes;
use feedmill_source::Cell;
use feedmill_text::record::Row;
use serde_json::{Map, Number, Value};

/// Two columns, or two fields of a structure, with one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name '{0}' stands twice")]
pub struct DoubleName(String);

/// The row as a record. Nesting ends where the table's ends, at 32 levels.
///
/// # Errors
/// A name that stands twice: which of the two was meant cannot be known.
pub fn row_of(columns: Vec<(String, Cell)>) -> Result<Row, DoubleName> {
    let mut row = Row::default();
    row.fields = object(columns, &mut row.blobs)?;
    Ok(row)
}

/// Bytes of text in a row, and bytes of binary values.
#[must_use]
pub fn text_and_blobs(columns: &[(String, Cell)]) -> (u64, u64) {
    fn add(cell: &Cell, sums: &mut (u64, u64)) {
        match cell {
            Cell::Text(text) => sums.0 += text.len() as u64,
            Cell::Bytes(bytes) => sums.1 += bytes.len() as u64,
            Cell::List(items) => items.iter().for_each(|item| add(item, sums)),
            Cell::Struct(fields) => fields.iter().for_each(|(name, cell)| {
                sums.0 += name.len() as u64;
                add(cell, sums);
            }),
            // As JSON writes them, about.
            Cell::Null | Cell::Bool(_) | Cell::Integer(_) | Cell::Unsigned(_) | Cell::Float(_) => sums.0 += 4,
        }
    }
    let mut sums = (0, 0);
    columns.iter().for_each(|(_, cell)| add(cell, &mut sums));
    sums
}

fn object(fields: Vec<(String, Cell)>, blobs: &mut Vec<Bytes>) -> Result<Map<String, Value>, DoubleName> {
    let mut names = HashSet::new();
    if let Some((name, _)) = fields.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(DoubleName(name.chars().take(200).collect()));
    }
    fields.into_iter().map(|(name, cell)| Ok((name, value(cell, blobs)?))).collect()
}

fn value(cell: Cell, blobs: &mut Vec<Bytes>) -> Result<Value, DoubleName> {
    Ok(match cell {
        Cell::Null => Value::Null,
        Cell::Bool(value) => Value::Bool(value),
        Cell::Integer(value) => value.into(),
        Cell::Unsigned(value) => value.into(),
        // The table gives no other numbers than JSON has.
        Cell::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
        Cell::Text(text) => Value::String(text),
        Cell::Bytes(bytes) => {
            blobs.push(bytes);
            Row::blob_reference(blobs.len() - 1)
        }
        Cell::List(items) => {
            Value::Array(items.into_iter().map(|item| value(item, blobs)).collect::<Result<_, _>>()?)
        }
        Cell::Struct(fields) => Value::Object(object(fields, blobs)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bytes_stand_beside_the_row_and_names_are_never_merged() {
        let text = |text: &str| Cell::Text(text.into());
        let image = |bytes: &'static [u8]| {
            Cell::Struct(vec![
                ("bytes".into(), Cell::Bytes(Bytes::from_static(bytes))),
                ("path".into(), text("p")),
            ])
        };
        let columns = vec![
            ("images".into(), Cell::List(vec![image(b"one"), Cell::Null, image(b"two")])),
            ("n".into(), Cell::Unsigned(u64::MAX)),
        ];
        assert_eq!(text_and_blobs(&columns), (2 + 2 * 9 + 4 + 4, 6));
        let row = row_of(columns).unwrap();
        assert_eq!(row.blobs, ["one", "two"]);
        let image = |index| json!({"bytes": Row::blob_reference(index), "path": "p"});
        assert_eq!(Value::Object(row.fields), json!({"images": [image(0), null, image(1)], "n": u64::MAX}));
        let twice = vec![("a".to_owned(), Cell::Null), ("a".to_owned(), text("b"))];
        assert_eq!(row_of(twice.clone()), Err(DoubleName("a".into())));
        assert!(row_of(vec![("c".into(), Cell::Struct(twice))]).is_err());
    }
}
