//! What hostile input may do to Feedmill.

/// Files made to harm.
pub mod hostile;
