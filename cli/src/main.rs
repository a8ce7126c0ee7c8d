//! The `feedmill` command.
fn main() {}
