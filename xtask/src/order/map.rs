//! Parses the map that LLVM's linker writes (`-Map`): address, load address, size, alignment and origin of each section, and under
//! it the same of its symbols.

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

/// All sections of program text, by address, and where their functions begin.
pub(super) struct Map {
    sections: Vec<Section>,
    entries: Vec<u64>,
}

impl Map {
    pub(super) fn of(text: &str) -> Result<Self> {
        let mut sections: Vec<Section> = text.lines().filter_map(section).collect();
        sections.sort_by_key(|section| section.begin);
        sections.first().context("the linker's map names no section of text; is the linker LLVM's?")?;
        let mut map = Self { sections, entries: Vec::new() };
        map.entries = text.lines().filter_map(symbol).filter(|entry| map.at(*entry).is_some()).collect();
        map.entries.sort_unstable();
        map.entries.dedup();
        Ok(map)
    }

    /// Returns the addresses of all functions. A section of the compiler's has one, one of an archive of C may have many.
    pub(super) fn entries(&self) -> &[u64] {
        &self.entries
    }

    /// Returns the section that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Section> {
        let after = self.sections.partition_point(|section| section.begin <= address);
        let section = self.sections.get(after.checked_sub(1)?)?;
        (address < section.begin + section.size).then_some(section)
    }
}

/// Parses `590e80 590e80 31 16   /lib/crt1.o:(.text)`.
fn section(line: &str) -> Option<Section> {
    let (input, name) = line.strip_suffix(')')?.split_once(":(.text")?;
    let mut words = input.split_whitespace();
    let begin = u64::from_str_radix(words.next()?, 16).ok()?;
    let size = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let file = words.nth(1)?.to_owned();
    (size > 0).then(|| Section { begin, size, file, name: format!(".text{name}") })
}

/// Parses `590fb0 590fb0 9e 1   std::fs::read`. A section's line has `:(.text` behind its file, and an output section's only a name
/// with a dot. A symbol without a size is a label within something else.
fn symbol(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let begin = u64::from_str_radix(words.next()?, 16).ok()?;
    let size = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let (_alignment, name) = (words.next()?, words.next()?);
    (size > 0 && !line.contains(":(.") && !name.starts_with('.')).then_some(begin)
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
          591050           591050        3     1                 malloc
          591052           591052        0     1                 a_label
          591053           591053        5     1                 free (.llvm.1)
          591060           591060        0    16         /usr/lib/libc.a(empty.o):(.text)
          600000           600000        8    16         /usr/lib/libc.a(malloc.o):(.data)
";

    #[test]
    fn an_address_is_in_the_section_that_holds_it() {
        let map = Map::of(MAP).unwrap();
        assert_eq!(map.entries(), [0x59_0fb0, 0x59_1050, 0x59_1053]);
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
