//! The multiplexed line to a container. Frames are the same however they are cut, and nothing else is taken for a frame.

use sandbox::{Frames, LONGEST_FRAME, frame};

/// Reads the input as frames, cut in several ways.
pub fn line(octets: &[u8]) {
    let whole = read(octets, octets.len().max(1));
    for at_once in [1, 3, 7, 64] {
        assert_eq!(whole, read(octets, at_once));
    }
}

/// Returns the frames in the octets, fed `at_once` at a time; each encodes to what was read.
fn read(octets: &[u8], at_once: usize) -> (Vec<(u8, Vec<u8>)>, bool) {
    let mut frames = Frames::default();
    let (mut seen, mut written) = (Vec::new(), Vec::new());
    for piece in octets.chunks(at_once) {
        frames.feed(piece);
        loop {
            match frames.next_frame() {
                Ok(Some((channel, payload))) => {
                    assert!(payload.len() <= LONGEST_FRAME);
                    written.extend(frame(channel, payload));
                    seen.push((channel as u8, payload.to_vec()));
                }
                Ok(None) => break,
                Err(_) => return (seen, true),
            }
        }
    }
    assert_eq!(written, octets[..written.len()]);
    (seen, false)
}
