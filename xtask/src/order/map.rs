//! Parses the map that LLVM's linker writes (`-Map`): address, load address, size, alignment and origin of each section.

use std::ops::Range;

use anyhow::{Context, Result};

/// A section of program text in the linker's input. The compiler makes one for each function.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) begin: u64,
    pub(super) size: u64,
    /// The file it comes from, with its member in parentheses if that is an archive.
    pub(super) file: String,
    pub(super) name: String,
}

/// All sections of program text, by address.
pub(super) struct Map(Vec<Section>);

impl Map {
    pub(super) fn of(text: &str) -> Result<Self> {
        let mut sections: Vec<Section> = text.lines().filter_map(section).collect();
        sections.sort_by_key(|section| section.begin);
        sections.first().context("the linker's map names no section of text; is the linker LLVM's?")?;
        Ok(Self(sections))
    }

    /// Returns the range from the first section to the end of the last.
    pub(super) fn text(&self) -> Range<u64> {
        let begin = self.0.first().map_or(0, |section| section.begin);
        let end = self.0.last().map_or(0, |section| section.begin + section.size);
        begin..end
    }

    /// Returns the section that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Section> {
        let after = self.0.partition_point(|section| section.begin <= address);
        let section = self.0.get(after.checked_sub(1)?)?;
        (address < section.begin + section.size).then_some(section)
    }
}

/// Parses `590e80 590e80 31 16   /lib/crt1.o:(.text)`. A line of a symbol has no file.
fn section(line: &str) -> Option<Section> {
    let (input, name) = line.strip_suffix(')')?.split_once(":(.text")?;
    let mut words = input.split_whitespace();
    let begin = u64::from_str_radix(words.next()?, 16).ok()?;
    let size = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let file = words.nth(1)?.to_owned();
    (size > 0).then(|| Section { begin, size, file, name: format!(".text{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
          590e80           590e80   f1b718    64 .text
          590fb0           590fb0       9e    16         /t/lockgate-e0.lockgate.5f-cgu.0.rcgu.o:(.text._RNvNtCs1_3std2fs4read)
          590fb0           590fb0       9e     1                 std::fs::read
          591050           591050        8    16         /usr/lib/libc.a(malloc.o):(.text)
          591060           591060        0    16         /usr/lib/libc.a(empty.o):(.text)
          600000           600000        8    16         /usr/lib/libc.a(malloc.o):(.data)
";

    #[test]
    fn an_address_is_in_the_section_that_holds_it() {
        let map = Map::of(MAP).unwrap();
        assert_eq!(map.text(), 0x590fb0..0x591058);
        assert_eq!(map.at(0x59104d).unwrap().name, ".text._RNvNtCs1_3std2fs4read");
        assert_eq!(map.at(0x591057).unwrap().file, "/usr/lib/libc.a(malloc.o)");
        for outside in [0x590faf, 0x59104e, 0x591058, 0x600000] {
            assert_eq!(map.at(outside), None, "{outside:x}");
        }
    }

    #[test]
    fn a_map_of_something_else_is_refused() {
        assert!(Map::of("LOAD /usr/lib/crt1.o\n").is_err());
    }
}
