//! Searches for a secret everywhere this process can look: environments, command lines, files, memory of others.
//! The secret is passed masked (by `lockgate_needs`), so that the search does not find its own argument; for the same reason the
//! probe's own memory is left out. Every walk is bounded. Other processes are searched only on request, and never in the machine's own PID
//! namespace: the processes there are not under test.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lockgate_needs::unmasked;
use serde_json::{Value, json};

use crate::Probe;
use crate::report::Report;

const FILES: usize = 60_000;
const FILE_BYTES: u64 = 8 << 20;
const MEMORY_BYTES: u64 = 256 << 20;

pub(crate) const PROBES: &[Probe] = &[Probe {
    name: "walk-for",
    usage: "MASKED-HEX [everyone] [ROOT…] (everyone: other processes too)",
    run: walk_for,
}];

struct Search {
    forms: Vec<(&'static str, Vec<u8>)>,
    found: Vec<Value>,
    files: usize,
    memories: usize,
}

fn walk_for(arguments: &[String]) -> Option<Report> {
    let (masked, roots) = arguments.split_first()?;
    let mut search = Search { forms: forms(&unmasked(masked)?), found: Vec::new(), files: 0, memories: 0 };
    let (everyone, roots) = match roots.split_first() {
        Some((word, rest)) if word == "everyone" => (true, rest),
        _ => (false, roots),
    };
    if everyone && in_first_namespace() {
        return Some(Report::error(
            "this is the machine's own PID namespace: other processes are left alone",
        ));
    }
    search.processes(everyone);
    for root in roots {
        search.directory(Path::new(root));
    }
    let detail = json!({ "found": search.found, "files": search.files, "memories": search.memories });
    Some(if search.found.is_empty() { Report::absent(detail) } else { Report::done(detail) })
}

/// The first PID namespace of a boot has a fixed number: `PROC_PID_INIT_INO` in linux/proc_ns.h.
pub(crate) fn in_first_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

/// Returns the forms of the secret: plain, hex, percent, and base64 at each of the three alignments.
pub(crate) fn forms(secret: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let join = |form: fn(&u8) -> String| secret.iter().map(form).collect::<String>().into_bytes();
    let mut forms = vec![
        ("plain", secret.to_vec()),
        ("hex", join(|octet| format!("{octet:02x}"))),
        ("hex", join(|octet| format!("{octet:02X}"))),
        ("percent", join(|octet| format!("%{octet:02x}"))),
        ("percent", join(|octet| format!("%{octet:02X}"))),
    ];
    for (alphabet, word) in [(b"+/", "base64"), (b"-_", "base64url")] {
        for lead in 0..3 {
            forms.push((word, base64_core(secret, lead, alphabet)));
        }
    }
    forms
}

/// Returns the base64 of the secret behind `lead` unknown octets, without the characters that depend on its neighbours.
fn base64_core(secret: &[u8], lead: usize, last: &[u8; 2]) -> Vec<u8> {
    const FIRST: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let character = |value: u8| match value {
        62 => last[0],
        63 => last[1],
        value => FIRST[usize::from(value)],
    };
    let whole = &secret[(3 - lead) % 3..];
    let mut core = Vec::new();
    for triple in whole.chunks_exact(3) {
        let bits = u32::from(triple[0]) << 16 | u32::from(triple[1]) << 8 | u32::from(triple[2]);
        core.extend([18, 12, 6, 0].map(|shift| character((bits >> shift & 63) as u8)));
    }
    core
}

impl Search {
    fn look(&mut self, place: &str, bytes: &[u8]) {
        for (form, needle) in &self.forms {
            if contains(bytes, needle) {
                self.found.push(json!({ "place": place, "form": form }));
            }
        }
    }

    /// Searches environment and command line of this process or of every visible one, and the memory of the others.
    fn processes(&mut self, everyone: bool) {
        let own = std::process::id().to_string();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|octet| octet.is_ascii_digit()) || !(everyone || name == own) {
                continue;
            }
            for part in ["environ", "cmdline"] {
                self.file(&entry.path().join(part));
            }
            if name != own {
                self.memory(&entry.path());
            }
        }
    }

    fn memory(&mut self, process: &Path) {
        let Ok(maps) = fs::read_to_string(process.join("maps")) else { return };
        let Ok(mut memory) = File::open(process.join("mem")) else { return };
        let (mut left, mut octets) = (MEMORY_BYTES, 0);
        for (start, end) in maps.lines().filter_map(writable_range) {
            let length = (end - start).min(left);
            let mut bytes = Vec::new();
            if memory.seek(SeekFrom::Start(start)).is_ok() {
                // A hole in the map ends the read early; what was read before it is searched.
                let _ = memory.by_ref().take(length).read_to_end(&mut bytes);
            }
            self.look(&process.join("mem").to_string_lossy(), &bytes);
            octets += bytes.len();
            left -= length;
        }
        // One that opens and gives nothing was not read.
        self.memories += usize::from(octets > 0);
    }

    fn directory(&mut self, root: &Path) {
        let mut waiting: Vec<PathBuf> = vec![root.to_owned()];
        while let Some(path) = waiting.pop() {
            if self.files >= FILES || path.starts_with("/proc") || path.starts_with("/sys") {
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(data) if data.is_dir() => {
                    waiting.extend(
                        fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()),
                    );
                }
                Ok(data) if data.is_file() => self.file(&path),
                _ => {}
            }
        }
    }

    fn file(&mut self, path: &Path) {
        let Ok(file) = File::open(path) else { return };
        let mut bytes = Vec::new();
        if file.take(FILE_BYTES).read_to_end(&mut bytes).is_ok() {
            self.files += 1;
            self.look(&path.to_string_lossy(), &bytes);
        }
    }
}

/// The range of a private writable mapping, from a line of `/proc/PID/maps`.
fn writable_range(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    words.next().filter(|rights| rights.starts_with("rw"))?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn contains(hay: &[u8], needle: &[u8]) -> bool {
    let Some((first, rest)) = needle.split_first() else { return false };
    let mut from = 0;
    while let Some(at) = hay[from..].iter().position(|octet| octet == first) {
        let after = from + at + 1;
        if hay[after..].starts_with(rest) {
            return true;
        }
        from = after;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_every_form() {
        let secret = b"canary-0123456789-abcdefghij-KLMNOPQRST+";
        let forms = forms(secret);
        // `xx` and `yyyy` stand around it, so that the second alignment is the one in use.
        let wrapped = b"eHhjYW5hcnktMDEyMzQ1Njc4OS1hYmNkZWZnaGlqLUtMTU5PUFFSU1QreXl5eQ==";
        assert!(forms.iter().any(|(word, form)| *word == "base64" && contains(wrapped, form)));
        assert!(contains(b"..63616e6172792d", &b"63616e617279"[..]));
        assert!(!forms.iter().any(|(_, form)| contains(b"canary-0123456789", form)));
    }
}
