//! Whether a group is the private one of a user: with it, umask 002 lets nobody else write. Only this machine's lists are asked.

use std::path::Path;

use crate::without_waiting::read;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// How much of a list is read.
const MOST: u64 = 1 << 20;

/// Root's, in which other accounts of the system are as well, such as `operator`.
const ROOT: u32 = 0;

/// Returns whether nobody but this user is in a group, or it is root's.
pub(crate) fn is_private(group: u32, user: u32) -> bool {
    let list = |path| {
        let octets = read(Path::new(path), MOST).unwrap_or_default();
        String::from_utf8_lossy(&octets).into_owned()
    };
    is_private_by(&list(USERS), &list(GROUPS), group, user)
}

/// The private group of a user has the user's name, or, of one whom only a directory service knows, the number.
fn is_private_by(users: &str, groups: &str, group: u32, user: u32) -> bool {
    if group == ROOT {
        return true;
    }
    let id = |field: Option<&&str>| field.and_then(|field| field.parse::<u32>().ok());
    let rows = |list| str::lines(list).map(|line| line.split(':').collect::<Vec<_>>());
    let name = rows(users).find(|row| id(row.get(2)) == Some(user)).and_then(|row| row.first().copied());
    if rows(users).any(|row| id(row.get(3)) == Some(group) && id(row.get(2)) != Some(user)) {
        return false;
    }
    match rows(groups).find(|row| id(row.get(2)) == Some(group)) {
        None => group == user,
        Some(row) => {
            let members = row.get(3).into_iter().flat_map(|members| members.split(',')).map(str::trim);
            (group == user || row.first().copied() == name)
                && members.filter(|it| !it.is_empty()).all(|it| Some(it) == name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_by_its_name_or_number_where_nobody_else_is_in_it() {
        let users = "root:x:0:0::/root:/bin/sh\nsync:x:5:0::/:/bin/sync\nme:x:1000:1001::/home/me:/bin/sh\nyou:x:1002:1002::/:/bin/sh\n\
                     staff1:x:1003:50::/:/bin/sh\nstaff2:x:1004:50::/:/bin/sh\n";
        let groups = "root:x:0:\nme:x:1001:\nyou:x:1002:you,me\ndev:x:1005:me\nstaff1:x:50:\nusers:x:100:\n";
        let private = |group, user| is_private_by(users, groups, group, user);
        assert!(private(0, 0) && private(0, 1000) && private(1001, 1000) && private(5000, 5000));
        for (group, user) in
            [(1002, 1002), (1005, 1000), (50, 1003), (100, 1000), (100, 5000), (5000, 1000), (1001, 0)]
        {
            assert!(!private(group, user), "{group} {user}");
        }
        let alone = |members: &str| is_private_by(users, &format!("me:x:1001:{members}"), 1001, 1000);
        assert!(alone("me") && alone("") && !alone("me,you") && !alone("you"));
    }
}
