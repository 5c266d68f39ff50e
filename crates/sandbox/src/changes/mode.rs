//! The modes that are taken over. Of a file it is the one thing that git knows of it, whether it may be executed; nothing that a run
//! wrote decides who else here may read or write it.

use rustix::fs::Mode;

/// What the owner has of everything that is made.
const OWN: u32 = 0o600;
const OWN_EXECUTABLE: u32 = 0o700;

/// Whether two files are the same to whoever may execute them.
pub(super) fn is_same(from: u32, to: u32) -> bool {
    is_executable(from) == is_executable(to)
}

/// What a new file is made with. The caller's own mask takes from it what else it takes.
pub(super) fn of_new_file(written: u32) -> Mode {
    let (own, most) = if is_executable(written) { (OWN_EXECUTABLE, 0o755) } else { (OWN, 0o644) };
    // A run that kept others out keeps them out.
    Mode::from_raw_mode(own | written & most)
}

/// What a new directory is made with.
pub(super) fn of_new_directory(written: u32) -> Mode {
    Mode::from_raw_mode(OWN_EXECUTABLE | written & 0o755)
}

/// What a file has that takes another's place: that one's mode, and executed by whoever may read it if it is executed now.
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
