//! Takes a file's schema, gives the columns that are read; takes a row's values of those columns, gives the row.
//!
//! Nesting is put together again by the repetition and definition levels (Parquet format, "Nested Encoding"); lists and maps are told
//! by the rules of "Logical Types", with those for older writers.

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};

use super::cell::{Cell, LeafType};

/// Columns nested deeper are refused; a list of structures of lists is six deep.
pub(super) const MAX_DEPTH: u32 = 32;

/// The columns of a file that are read.
#[derive(Debug)]
pub(super) struct Schema {
    /// Top-level columns in the file's order.
    fields: Vec<Node>,
    /// Their columns of values, in the file's order.
    pub(super) leaves: Vec<Leaf>,
}

/// A column of values.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Its number among all columns of the file.
    pub(super) column: usize,
    /// Its path, for people.
    pub(super) path: String,
    pub(super) descriptor: ColumnDescPtr,
    kind: LeafType,
}

#[derive(Debug)]
struct Node {
    name: String,
    /// Below this definition level it is null; 0 where it cannot be.
    present: i16,
    /// Index of the first leaf below it, and of the one after the last.
    leaves: std::ops::Range<usize>,
    kind: NodeKind,
}

#[derive(Debug)]
enum NodeKind {
    Leaf,
    Struct(Vec<Node>),
    /// Below the definition level `filled` it is empty; at the repetition level `repeated` the next element begins.
    List {
        filled: i16,
        repeated: i16,
        element: Box<Node>,
    },
    Map {
        filled: i16,
        repeated: i16,
        key: Box<Node>,
        value: Box<Node>,
    },
}

/// One value of a column, or that there is none here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) definition: i16,
    pub(super) repetition: i16,
    pub(super) value: Option<Bytes>,
}

impl Schema {
    /// The columns whose top-level name `wanted` accepts.
    ///
    /// # Errors
    /// What cannot be read, with the column's name.
    pub(super) fn new(
        schema: &SchemaDescriptor,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self, (String, String)> {
        let mut builder = Builder { schema, column: 0, leaves: Vec::new() };
        let mut fields = Vec::new();
        for field in schema.root_schema().get_fields() {
            let at_column = builder.column;
            if wanted(field.name()) {
                let node = builder.node(field, 0, 0, 0).map_err(|what| (field.name().to_owned(), what))?;
                fields.push(node);
            } else {
                builder.column = at_column + count_leaves(field);
            }
        }
        Ok(Self { fields, leaves: builder.leaves })
    }

    /// Names of the top-level columns.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// A row of these columns: each has a value of its type, lists have one element.
    pub(super) fn example(&self) -> Vec<(String, Cell)> {
        self.fields.iter().map(|field| (field.name.clone(), self.example_of(field))).collect()
    }

    fn example_of(&self, node: &Node) -> Cell {
        match &node.kind {
            NodeKind::Leaf => {
                self.leaves.get(node.leaves.start).map_or(Cell::Null, |leaf| leaf.kind.example())
            }
            NodeKind::Struct(fields) => Cell::Struct(
                fields.iter().map(|field| (field.name.clone(), self.example_of(field))).collect(),
            ),
            NodeKind::List { element, .. } => Cell::List(vec![self.example_of(element)]),
            NodeKind::Map { value, .. } => Cell::Struct(vec![("key".to_owned(), self.example_of(value))]),
        }
    }

    /// The row whose values these are, one list for each leaf.
    pub(super) fn assemble(&self, entries: &[Vec<Entry>]) -> Result<Vec<(String, Cell)>, String> {
        let mut cursors: Vec<std::slice::Iter<'_, Entry>> = entries.iter().map(|list| list.iter()).collect();
        let row = self.fields.iter().map(|field| {
            let cell =
                self.cell(field, &mut cursors).map_err(|what| format!("column {}: {what}", field.name))?;
            Ok((field.name.clone(), cell))
        });
        let row = row.collect::<Result<Vec<_>, String>>()?;
        if cursors.iter().any(|rest| rest.len() > 0) {
            return Err(UNEVEN.into());
        }
        Ok(row)
    }

    fn cell(&self, node: &Node, cursors: &mut [std::slice::Iter<'_, Entry>]) -> Result<Cell, &'static str> {
        let definition = peek(node, cursors)?.definition;
        if definition < node.present {
            pass(node, cursors)?;
            return Ok(Cell::Null);
        }
        match &node.kind {
            NodeKind::Leaf => {
                let entry = next(node.leaves.start, cursors)?;
                let leaf = self.leaves.get(node.leaves.start).ok_or(UNEVEN)?;
                match &entry.value {
                    Some(value) => leaf.kind.read(value),
                    None => Ok(Cell::Null),
                }
            }
            NodeKind::Struct(fields) => {
                let mut cells = Vec::with_capacity(fields.len());
                for field in fields {
                    cells.push((field.name.clone(), self.cell(field, cursors)?));
                }
                Ok(Cell::Struct(cells))
            }
            NodeKind::List { filled, repeated, element } => {
                let mut items = Vec::new();
                if definition < *filled {
                    pass(node, cursors)?;
                    return Ok(Cell::List(items));
                }
                loop {
                    items.push(self.cell(element, cursors)?);
                    if !continues(node, *repeated, cursors) {
                        return Ok(Cell::List(items));
                    }
                }
            }
            NodeKind::Map { filled, repeated, key, value } => {
                let mut pairs = Vec::new();
                if definition < *filled {
                    pass(node, cursors)?;
                    return Ok(Cell::Struct(pairs));
                }
                loop {
                    let name = match self.cell(key, cursors)? {
                        Cell::Text(text) => text,
                        Cell::Integer(number) => number.to_string(),
                        Cell::Unsigned(number) => number.to_string(),
                        _ => return Err("a map's key is neither text nor an integer"),
                    };
                    pairs.push((name, self.cell(value, cursors)?));
                    if !continues(node, *repeated, cursors) {
                        return Ok(Cell::Struct(pairs));
                    }
                }
            }
        }
    }
}

const UNEVEN: &str = "columns that belong together have different numbers of values";

fn peek<'a>(node: &Node, cursors: &[std::slice::Iter<'a, Entry>]) -> Result<&'a Entry, &'static str> {
    cursors.get(node.leaves.start).and_then(|cursor| cursor.as_slice().first()).ok_or(UNEVEN)
}

fn next<'a>(leaf: usize, cursors: &mut [std::slice::Iter<'a, Entry>]) -> Result<&'a Entry, &'static str> {
    cursors.get_mut(leaf).and_then(Iterator::next).ok_or(UNEVEN)
}

/// Passes over what stands for a null or an empty list: one entry in each of its columns.
fn pass(node: &Node, cursors: &mut [std::slice::Iter<'_, Entry>]) -> Result<(), &'static str> {
    node.leaves.clone().try_for_each(|leaf| next(leaf, cursors).map(|_| ()))
}

fn continues(node: &Node, repeated: i16, cursors: &[std::slice::Iter<'_, Entry>]) -> bool {
    peek(node, cursors).is_ok_and(|entry| entry.repetition >= repeated)
}

fn count_leaves(column: &Type) -> usize {
    if column.is_primitive() { 1 } else { column.get_fields().iter().map(|field| count_leaves(field)).sum() }
}

struct Builder<'a> {
    schema: &'a SchemaDescriptor,
    column: usize,
    leaves: Vec<Leaf>,
}

impl Builder<'_> {
    fn node(&mut self, column: &Type, definition: i16, repetition: i16, depth: u32) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err("is nested too deep".into());
        }
        let info = column.get_basic_info();
        let kind = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        match kind {
            // Repeated without a list around it: a list of what is there, as old writers have it.
            Repetition::REPEATED => {
                let first = self.leaves.len();
                let (filled, repeated) = (definition + 1, repetition + 1);
                let element = Box::new(self.plain(column, filled, repeated, 0, depth + 1)?);
                let kind = NodeKind::List { filled, repeated, element };
                Ok(Node {
                    name: column.name().to_owned(),
                    present: 0,
                    leaves: first..self.leaves.len(),
                    kind,
                })
            }
            Repetition::OPTIONAL => self.plain(column, definition + 1, repetition, definition + 1, depth),
            Repetition::REQUIRED => self.plain(column, definition, repetition, 0, depth),
        }
    }

    /// What stands there when it is there.
    fn plain(
        &mut self,
        column: &Type,
        definition: i16,
        repetition: i16,
        present: i16,
        depth: u32,
    ) -> Result<Node, String> {
        let first = self.leaves.len();
        let kind = if column.is_primitive() {
            let kind = LeafType::of(column)?;
            if self.column >= self.schema.num_columns() {
                return Err("has more columns than the schema".into());
            }
            let descriptor = self.schema.column(self.column);
            let path = descriptor.path().string();
            self.leaves.push(Leaf { column: self.column, path, descriptor, kind });
            self.column += 1;
            NodeKind::Leaf
        } else {
            self.group(column, definition, repetition, depth + 1)?
        };
        if self.leaves.len() == first {
            return Err("has a structure without fields".into());
        }
        Ok(Node { name: column.name().to_owned(), present, leaves: first..self.leaves.len(), kind })
    }

    fn group(
        &mut self,
        column: &Type,
        definition: i16,
        repetition: i16,
        depth: u32,
    ) -> Result<NodeKind, String> {
        let info = column.get_basic_info();
        let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List))
            || info.converted_type() == ConvertedType::LIST;
        let is_map = matches!(info.logical_type_ref(), Some(LogicalType::Map))
            || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE);
        if let Some(LogicalType::Variant(_)) = info.logical_type_ref() {
            return Err("has the type Variant".into());
        }
        let (filled, repeated) = (definition + 1, repetition + 1);
        if let ([inner], true) = (column.get_fields(), is_list || is_map) {
            let inner_info = inner.get_basic_info();
            if !inner_info.has_repetition() || inner_info.repetition() != Repetition::REPEATED {
                return Err("is a list or map without repeated elements".into());
            }
            if is_map {
                let [key, value] = inner.get_fields() else {
                    return Err("is a map without a key and a value".into());
                };
                let key = Box::new(self.node(key, filled, repeated, depth + 1)?);
                let value = Box::new(self.node(value, filled, repeated, depth + 1)?);
                return Ok(NodeKind::Map { filled, repeated, key, value });
            }
            let one_field = match &**inner {
                Type::GroupType { fields, .. } => match fields.as_slice() {
                    [only] => Some(only),
                    _ => None,
                },
                Type::PrimitiveType { .. } => None,
            };
            // Older writers leave out one of the three levels: the repeated field is then the element itself.
            let old = inner.name() == "array" || inner.name() == format!("{}_tuple", column.name());
            let element = match one_field {
                Some(element) if !old => self.node(element, filled, repeated, depth + 1)?,
                _ => self.plain(inner, filled, repeated, 0, depth + 1)?,
            };
            return Ok(NodeKind::List { filled, repeated, element: Box::new(element) });
        }
        let mut fields = Vec::with_capacity(column.get_fields().len());
        for field in column.get_fields() {
            fields.push(self.node(field, definition, repetition, depth + 1)?);
        }
        Ok(NodeKind::Struct(fields))
    }
}
