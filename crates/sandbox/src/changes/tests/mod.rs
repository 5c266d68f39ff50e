//! What only all parts of reading, showing and applying changes prove together.

mod conflicts;
mod reading;
