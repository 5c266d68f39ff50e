//! What this module promises, by example.
