//! The accounts of the sandbox: the command's own, and those by which Debian's programs name the owners of their files (base-passwd).
//!
//! Nothing of this machine's tables is among them. A name is not an id of the command's: files can be given to none of them, but
//! fakeroot(1) finds whom it pretends to give them to.

use std::fmt::Write;

use crate::plan::inside::HOME;

/// What is nobody's.
const NOBODY: u32 = 65534;

/// The accounts that have a number everywhere: name, user id, group id.
const ACCOUNTS: &[(&str, u32, u32)] = &[
    ("root", 0, 0),
    ("daemon", 1, 1),
    ("bin", 2, 2),
    ("sys", 3, 3),
    ("sync", 4, NOBODY),
    ("games", 5, 60),
    ("man", 6, 12),
    ("lp", 7, 7),
    ("mail", 8, 8),
    ("news", 9, 9),
    ("uucp", 10, 10),
    ("proxy", 13, 13),
    ("www-data", 33, 33),
    ("backup", 34, 34),
    ("list", 38, 38),
    ("irc", 39, 39),
    ("_apt", 42, NOBODY),
    ("nobody", NOBODY, NOBODY),
];

/// The groups that do, but for `tty`: a server that finds it, as that of SSH, gives each terminal to it, or fails.
const GROUPS: &[(&str, u32)] = &[
    ("root", 0),
    ("daemon", 1),
    ("bin", 2),
    ("sys", 3),
    ("adm", 4),
    ("disk", 6),
    ("lp", 7),
    ("mail", 8),
    ("news", 9),
    ("uucp", 10),
    ("man", 12),
    ("proxy", 13),
    ("kmem", 15),
    ("dialout", 20),
    ("fax", 21),
    ("voice", 22),
    ("cdrom", 24),
    ("floppy", 25),
    ("tape", 26),
    ("sudo", 27),
    ("audio", 29),
    ("dip", 30),
    ("www-data", 33),
    ("backup", 34),
    ("operator", 37),
    ("list", 38),
    ("irc", 39),
    ("src", 40),
    ("shadow", 42),
    ("utmp", 43),
    ("video", 44),
    ("sasl", 45),
    ("plugdev", 46),
    ("staff", 50),
    ("games", 60),
    ("users", 100),
    ("nogroup", NOBODY),
];

/// Returns `passwd`. The command's account is the first: of those with one id it is the one that is found.
pub(super) fn passwd(uid: u32, gid: u32) -> String {
    let mut table = format!("agent:x:{uid}:{gid}:agent:{HOME}:/bin/sh\n");
    for (name, uid, gid) in ACCOUNTS {
        let home = if *name == "root" { "/root" } else { "/nonexistent" };
        let _ = writeln!(table, "{name}:x:{uid}:{gid}:{name}:{home}:/usr/sbin/nologin");
    }
    table
}

/// Returns `group`, in the same order.
pub(super) fn group(gid: u32) -> String {
    let mut table = format!("agent:x:{gid}:\n");
    for (name, gid) in GROUPS {
        let _ = writeln!(table, "{name}:x:{gid}:");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What getpwuid(3) and getpwnam(3) do, and their like for groups.
    fn find<'a>(table: &'a str, field: usize, value: &str) -> Option<&'a str> {
        table.lines().find(|line| line.split(':').nth(field) == Some(value))
    }

    #[test]
    fn each_name_and_each_number_is_there_once() {
        for (table, fields) in [(passwd(1000, 1000), 7), (group(1000), 4)] {
            for line in table.lines() {
                let parts: Vec<&str> = line.split(':').collect();
                assert_eq!(parts.len(), fields, "{line}");
                assert_eq!(find(&table, 0, parts[0]), Some(line));
                assert_eq!(find(&table, 2, parts[2]), Some(line));
            }
        }
        assert_eq!(find(&group(1000), 0, "tty"), None, "a server of SSH would give terminals to it");
        // Every primary group has a name.
        assert!(ACCOUNTS.iter().all(|(_, _, gid)| GROUPS.iter().any(|(_, known)| known == gid)));
    }

    #[test]
    fn the_commands_id_is_its_own_whatever_else_has_it() {
        for id in [0, 33, 100, NOBODY, 1000] {
            let agent =
                |table: &str| find(table, 2, &id.to_string()).map(|line| line.starts_with("agent:x:"));
            assert_eq!((agent(&passwd(id, id)), agent(&group(id))), (Some(true), Some(true)), "{id}");
        }
    }
}
