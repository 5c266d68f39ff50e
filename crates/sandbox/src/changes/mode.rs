//! What modes say, and those that are applied. Of a file's mode only the executable bit is, as in git: a run does not decide which
//! other users may read or write the file.

use rustix::fs::{FileType, Mode};

/// The owner's rights to everything that is made.
const OWN: u32 = 0o600;
const OWN_EXECUTABLE: u32 = 0o700;

/// Whether a mode is that of a directory.
pub(super) fn is_directory(mode: u32) -> bool {
    FileType::from_raw_mode(mode).is_dir()
}

/// Whether two modes agree in the executable bit.
pub(super) fn is_same(from: u32, to: u32) -> bool {
    is_executable(from) == is_executable(to)
}

/// Returns the mode of a new file. The caller's umask applies to it.
pub(super) fn of_new_file(written: u32) -> Mode {
    let (own, most) = if is_executable(written) { (OWN_EXECUTABLE, 0o755) } else { (OWN, 0o644) };
    // A file that the run closed to others stays closed to them.
    Mode::from_raw_mode(own | written & most)
}

/// Returns the mode of a new directory.
pub(super) fn of_new_directory(written: u32) -> Mode {
    Mode::from_raw_mode(OWN_EXECUTABLE | written & 0o755)
}

/// Returns the mode of a file that replaces another: that one's mode, executable by everybody who may read it if the new file is
/// executable.
pub(super) fn of_changed(from: u32, written: u32) -> Mode {
    let from = from & 0o777;
    Mode::from_raw_mode(match (is_executable(from), is_executable(written)) {
        (false, true) => from | (from & 0o444) >> 2 | 0o100,
        (true, false) => from & !0o111,
        _ => from,
    })
}

fn is_executable(mode: u32) -> bool {
    mode & 0o100 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_wider_than_it_was() {
        for (from, written, expected) in [
            (0o600, 0o666, 0o600),
            (0o600, 0o777, 0o700),
            (0o640, 0o777, 0o750),
            (0o644, 0o755, 0o755),
            (0o755, 0o666, 0o644),
            (0o700, 0o777, 0o700),
            (0o666, 0o600, 0o666),
        ] {
            assert_eq!(of_changed(from, written).as_raw_mode(), expected, "{from:o}, {written:o}");
        }
        for (written, file, directory) in
            [(0o666, 0o644, 0o744), (0o777, 0o755, 0o755), (0o4602, 0o600, 0o700), (0, 0o600, 0o700)]
        {
            let made = (of_new_file(written).as_raw_mode(), of_new_directory(written).as_raw_mode());
            assert_eq!(made, (file, directory), "{written:o}");
        }
    }
}
