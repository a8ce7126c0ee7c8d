//! What hostile input may do to Feedmill.
