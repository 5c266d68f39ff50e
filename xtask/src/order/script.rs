//! Writes the linker script: one pattern for each function that was followed, in order.
//!
//! Compilers put a hash of themselves and of each crate's version into symbol names and into the member names of archives. A
//! pattern leaves hashes open, so the script also fits the next compiler and the next version.

use super::map::Section;

const BYTES: &str = "/* octets: ";
const HEAD: &str = "\
/* The functions that a start runs and then those of a request, in the order they are first run, so that they lie side by side.
   Written by `cargo xtask order`; a name that no longer exists is passed over. */
SECTIONS
{
  .text.start :
  {
";
/// The output section that holds these functions.
pub(super) const SECTION: &str = ".text.start";
const TAIL: &str = "  }
}
INSERT BEFORE .text;
";

/// Returns the whole script.
pub(super) fn of(sections: &[&Section]) -> String {
    let mut patterns: Vec<String> = Vec::new();
    for pattern in sections.iter().filter_map(|section| pattern(section)) {
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    let bytes: u64 = sections.iter().map(|section| section.size).sum();
    let lines: String = patterns.iter().map(|pattern| format!("    {pattern}\n")).collect();
    format!("{BYTES}{bytes} */\n{HEAD}{lines}{TAIL}")
}

/// Returns how many octets of functions the script named when it was written.
pub(super) fn bytes(script: &str) -> Option<u64> {
    script.strip_prefix(BYTES)?.split_once(' ')?.0.parse().ok()
}

/// Returns a pattern that matches this section and, hashes aside, no other. The C library's start-up files stay where they are.
fn pattern(section: &Section) -> Option<String> {
    let name = open(&section.name);
    let Some((archive, member)) = section.file.strip_suffix(')').and_then(|file| file.split_once('(')) else {
        return (section.name != ".text").then(|| format!("*({name})"));
    };
    let archive = archive.rsplit('/').next()?;
    Some(match archive.strip_suffix(".rlib") {
        // `libNAME-HASH.rlib(HASH-MEMBER.o)`
        Some(stem) => {
            let (stem, member) = (stem.rsplit_once('-')?.0, member.split_once('-')?.1);
            format!("*{stem}-*.rlib:*-{member}({name})")
        }
        // Some archives of the C library have its version in their name: `libm-2.36.a`.
        None => format!("*{}*:{member}({name})", archive.split(['-', '.']).next()?),
    })
}

/// Returns a section's name with what differs between builds left open: a crate's hash (`Cs…_` before the length of its name), and
/// the version that AWS-LC puts before its own names (`aws_lc_0_47_0_`).
fn open(name: &str) -> String {
    let mut opened = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("Cs") {
        let (before, after) = rest.split_at(at + 2);
        opened.push_str(before);
        rest = match after.find('_') {
            Some(end)
                if is_hash(&after[..end]) && after[end + 1..].starts_with(|c: char| c.is_ascii_digit()) =>
            {
                opened.push('*');
                &after[end..]
            }
            _ => after,
        };
    }
    opened.push_str(rest);
    match opened.split_once("aws_lc_") {
        Some((before, after)) => {
            let own = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
            format!("{before}aws_lc_*_{own}")
        }
        None => opened,
    }
}

/// Whether a text is a number in base 62, as the compiler writes a hash of 64 bits: ten or eleven digits, rarely fewer.
fn is_hash(text: &str) -> bool {
    (6..=11).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(file: &str, name: &str) -> Section {
        Section { begin: 1, size: 1, file: file.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn hashes_are_left_open() {
        let cases = [
            (
                "/t/a.rcgu.o",
                ".text._RNvNtCsjrHSEGnQ3l9_3std2fs4read",
                Some("*(.text._RNvNtCs*_3std2fs4read)"),
            ),
            ("/t/a.rcgu.o", ".text._RNvCs1_4Csab", Some("*(.text._RNvCs1_4Csab)")),
            ("/usr/lib/libc.a(malloc.o)", ".text", Some("*libc*:malloc.o(.text)")),
            ("/usr/lib/libc.a(memmove-evex.o)", ".text.evex", Some("*libc*:memmove-evex.o(.text.evex)")),
            ("/usr/lib/libm-2.36.a(e_exp.o)", ".text", Some("*libm*:e_exp.o(.text)")),
            (
                "/t/libaws_lc_sys-00b1b8a9.rlib(1e176ea4-bcm.o)",
                ".text.aws_lc_0_47_0_EC_POINT_new",
                Some("*libaws_lc_sys-*.rlib:*-bcm.o(.text.aws_lc_*_EC_POINT_new)"),
            ),
            ("/usr/lib/crt1.o", ".text", None),
        ];
        for (file, name, expected) in cases {
            assert_eq!(pattern(&section(file, name)).as_deref(), expected, "{file} {name}");
        }
    }

    #[test]
    fn a_pattern_is_written_once_and_in_its_place() {
        let two = [section("/t/a.o", ".text.b"), section("/t/a.o", ".text.a"), section("/t/b.o", ".text.b")];
        let script = of(&two.iter().collect::<Vec<_>>());
        assert!(script.contains("  {\n    *(.text.b)\n    *(.text.a)\n  }\n"), "{script}");
        assert_eq!(bytes(&script), Some(3));
    }
}
