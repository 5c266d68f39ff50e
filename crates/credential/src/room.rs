//! How much the values of a credential may add to what holds their placeholders. An agent writes those, and a short one can stand for
//! a long value many times over: this bounds the memory, and is asked before any of it is taken.

/// The most octets that values add to one text, which may be a body.
const OF_TEXT: usize = 16 << 20;
/// The most octets that values add to the head of one request in which the agent names them, encoded as they stand there: the longest
/// value once, where none of it is encoded. Few servers take a head as long, and thousands of them can be held at once.
const OF_HEAD: usize = 64 << 10;
/// Each value counts as a multiple of so many octets, lest how often one fits tells its length.
const STEP: usize = 64;

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

    /// Takes room for values of these lengths, each rounded up to a multiple of 64 octets: for all of them, or for none.
    ///
    /// # Errors
    /// If less is left.
    pub fn take(&mut self, lengths: impl IntoIterator<Item = usize>) -> Result<(), NoRoom> {
        let rest = |left: usize, length: usize| left.checked_sub(length.checked_next_multiple_of(STEP)?);
        let left = lengths.into_iter().try_fold(self.left, rest);
        self.left = left.ok_or(NoRoom { most: self.most })?;
        Ok(())
    }
}
