//! Octets of models' answers that are kept until they can be read. All answers of a run share one room for them, which counts what is
//! allocated and not only what is filled.

use std::cell::Cell;

/// What all answers may keep together, in octets.
const ROOM: usize = 64 * 1024 * 1024;
/// The least that is allocated at a time, in octets.
const STEP: usize = 1024;

/// The room that is left.
#[derive(Debug)]
pub(super) struct Room(Cell<usize>);

impl Default for Room {
    fn default() -> Self {
        Self(Cell::new(ROOM))
    }
}

/// What is kept of one answer's line, event or whole. Dropping it gives its room back.
pub(super) struct Kept<'a> {
    room: &'a Room,
    octets: Vec<u8>,
    reserved: usize,
}

/// There is no room for more.
pub(super) struct NoRoom;

impl<'a> Kept<'a> {
    pub(super) fn within(room: &'a Room) -> Self {
        Self { room, octets: Vec::new(), reserved: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.octets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Keeps more.
    ///
    /// # Errors
    /// It would be more than `most`, or than the others leave. What was kept before is freed then.
    pub(super) fn push(&mut self, piece: &[u8], most: usize) -> Result<(), NoRoom> {
        let length = self.octets.len() + piece.len();
        if length > most || (length > self.reserved && self.reserve(length, most).is_none()) {
            self.take();
            return Err(NoRoom);
        }
        self.octets.extend_from_slice(piece);
        Ok(())
    }

    /// Takes what is kept, to be read and dropped at once: it has no room any more.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.room.0.set(self.room.0.get() + std::mem::take(&mut self.reserved));
        std::mem::take(&mut self.octets)
    }

    /// Makes place for `length` octets. It doubles, so that octets are moved a few times only.
    fn reserve(&mut self, length: usize, most: usize) -> Option<()> {
        let reserved = length.max(2 * self.reserved).min(most).next_multiple_of(STEP);
        let left = self.room.0.get().checked_sub(reserved - self.reserved)?;
        self.room.0.set(left);
        self.octets.reserve_exact(reserved - self.octets.len());
        self.reserved = reserved;
        Some(())
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_takes_room_until_it_is_taken_freed_or_dropped() {
        let room = Room::default();
        let left = || room.0.get();
        let (mut one, mut other) = (Kept::within(&room), Kept::within(&room));
        for _ in 0..5000 {
            assert!(one.push(&[7; 999], ROOM).is_ok());
            assert!(one.octets.capacity() <= ROOM - left());
        }
        assert!(other.push(&vec![7; left()], ROOM).is_ok());
        assert!(left() < STEP && one.push(&[7; ROOM / 2], ROOM).is_err());
        assert_eq!((one.len(), one.octets.capacity()), (0, 0));
        assert!(one.push(b"again", ROOM).is_ok());
        assert_eq!(one.take(), b"again");
        assert!(one.push(b"too long", 7).is_err() && one.is_empty());
        drop(other);
        assert_eq!(left(), ROOM);
    }
}
