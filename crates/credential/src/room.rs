//! How much the values of a credential may add to what holds their placeholders. An agent writes those, and a short one can stand for
//! a long value many times over: this bounds the memory, and is asked before any of it is taken.

/// The most octets that values add to one text, which may be a body.
const OF_TEXT: usize = 16 << 20;
/// The most octets that values add to the head of one request in which the agent names them, encoded as they stand there: the longest
/// value once, where none of it is encoded. Few servers take a head as long, and thousands of them can be held at once.
const OF_HEAD: usize = 64 << 10;

/// Room for values.
#[derive(Debug)]
pub struct Room {
    most: usize,
    left: usize,
}

/// The reason why no more values are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the values would add more than {most} octets")]
pub struct NoRoom {
    most: usize,
}

impl Room {
    /// Returns the room in one text.
    #[must_use]
    pub const fn of_text() -> Self {
        Self { most: OF_TEXT, left: OF_TEXT }
    }

    /// Returns the room in the head of one request: in its target and all its fields together.
    #[must_use]
    pub const fn of_head() -> Self {
        Self { most: OF_HEAD, left: OF_HEAD }
    }

    /// Takes room for so many values of this length.
    ///
    /// # Errors
    /// If less is left.
    pub fn take(&mut self, values: usize, length: usize) -> Result<(), NoRoom> {
        let left = values.checked_mul(length).and_then(|octets| self.left.checked_sub(octets));
        self.left = left.ok_or(NoRoom { most: self.most })?;
        Ok(())
    }
}
