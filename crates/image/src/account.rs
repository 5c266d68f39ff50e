//! The account of an image's command: the `User` of its configuration, looked up in the image's own `passwd` and `group`.

use serde::{Deserialize, Serialize};

/// The largest `passwd` or `group` that is read.
pub(crate) const LARGEST: u64 = 1 << 20;
/// The highest id in a sandbox's range; it is nobody's.
const HIGHEST: u32 = 65534;

/// The longest name and home: `PATH_MAX`.
const LONGEST: usize = 4096;
/// The most further groups of a user that are taken: the kernel once allowed no more.
const MOST_GROUPS: usize = 32;

/// The account of an image's command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The user's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
    /// The user's name, if the image has one.
    pub name: Option<String>,
    /// The user's home, if the image has one.
    pub home: Option<String>,
    /// The ids of the further groups that list the user, if no group was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
}

impl Account {
    /// Looks up `USER`, `UID`, `USER:GROUP` or `UID:GID`; an empty text is root, and an empty group is the user's own.
    ///
    /// # Errors
    /// When there is no such user or group, or its row is unusable: a fragment that says why.
    pub fn find(user: &str, passwd: &str, group: &str) -> Result<Self, String> {
        let (user, wanted_group) =
            user.split_once(':').map_or((user, None), |(u, g)| (u, Some(g).filter(|g| !g.is_empty())));
        let user = if user.is_empty() { "0" } else { user };
        let known = rows::<7>(passwd).find(|row| row[0] == user).or_else(|| {
            // A number needs no row in the table.
            rows::<7>(passwd).find(|row| row[2] == user)
        });
        let mut account = match (&known, id(user)) {
            (Some(row), _) => Self {
                uid: id(row[2]).ok_or_else(|| format!("`{}` has no usable id", user.escape_default()))?,
                gid: id(row[3]).ok_or_else(|| format!("`{}` has no usable group", user.escape_default()))?,
                name: Some(row[0].to_owned()),
                home: Some(row[5].to_owned()).filter(|home| home.starts_with('/') && home.len() > 1),
                groups: Vec::new(),
            },
            (None, Some(uid)) => Self { uid, ..Self::default() },
            (None, None) => return Err(none("user", user)),
        };
        let fields = [&account.name, &account.home];
        if fields.into_iter().flatten().any(|text| text.len() > LONGEST || text.contains(char::is_control)) {
            return Err(format!("the name or home of `{}` is none", user.escape_default()));
        }
        if let Some(wanted) = wanted_group {
            let row = rows::<4>(group).find(|row| row[0] == wanted);
            let gid = row.map_or_else(|| id(wanted), |row| id(row[2]));
            account.gid = gid.ok_or_else(|| none("group", wanted))?;
        } else if let Some(name) = &account.name {
            let lists = |row: &[&str; 4]| row[3].split(',').any(|member| member == name);
            for gid in rows::<4>(group).filter(lists).filter_map(|row| id(row[2])) {
                let is_new = gid != account.gid && !account.groups.contains(&gid);
                if is_new && account.groups.len() < MOST_GROUPS {
                    account.groups.push(gid);
                }
            }
        }
        Ok(account)
    }

    /// Whether this is root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// Returns the rows of a table that have no more than this many fields. Those that are not there at the end of a row are empty, as
/// engines read them.
fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    table.lines().filter_map(|line| {
        let mut fields: Vec<&str> = line.split(':').take(N + 1).collect();
        fields.resize(fields.len().max(N), "");
        <[&str; N]>::try_from(fields).ok()
    })
}

fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| is_number(text) && *id <= HIGHEST)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Says why a user or group is none.
fn none(what: &str, named: &str) -> String {
    if is_number(named) {
        return format!(
            "the {what} `{}` cannot be: ids above {HIGHEST} do not exist in a sandbox",
            named.escape_default()
        );
    }
    format!("it has no {what} `{}`", named.escape_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\napp:x:101:102::/srv/app:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:app\n";

    #[test]
    fn users_are_found_by_name_and_number() {
        let find = |user| Account::find(user, PASSWD, GROUP).map(|a| (a.uid, a.gid, a.home));
        let home = Some("/srv/app".to_owned());
        assert_eq!(find("app"), Ok((101, 102, home.clone())));
        assert_eq!(find("101"), Ok((101, 102, home.clone())));
        assert_eq!(find("app:staff"), Ok((101, 50, home)));
        assert_eq!(find("7:8"), Ok((7, 8, None)));
        assert_eq!(find("7"), Ok((7, 0, None)));
        assert_eq!(find("app:"), find("app"));
        assert_eq!(find("7:"), find("7"));
        assert_eq!(find(""), Ok((0, 0, Some("/root".to_owned()))));
    }

    #[test]
    fn a_row_may_end_before_its_last_field() {
        let find = |user| Account::find(user, "app:x:7:8:App:/srv\nshort:x:9\n", "staff:x:50\n");
        let account = find("app").unwrap();
        assert_eq!((account.uid, account.gid, account.home.as_deref()), (7, 8, Some("/srv")));
        assert_eq!(find("7:staff").map(|account| account.gid), Ok(50));
        assert!(find("short").unwrap_err().contains("no usable group"));
    }

    #[test]
    fn who_is_not_there_is_refused() {
        for user in ["nobody-here", "app:nowhere", "65535", "+1", "-1", "4294967295", "app:65535"] {
            assert!(Account::find(user, PASSWD, GROUP).is_err(), "{user}");
        }
        assert!(Account::find("", "", "").is_ok());
        for user in ["100000", "app:100000"] {
            let why = Account::find(user, PASSWD, GROUP).unwrap_err();
            assert!(why.contains("ids above 65534 do not exist in a sandbox"), "{why}");
        }
    }

    #[test]
    fn further_groups_are_those_that_list_the_user() {
        let group = "root:x:0:other\nown:x:102:app\nextra:x:3456:other,app\nagain:x:3456:app\nhigh:x:70000:app\nstaff:x:50:app\n";
        let groups = |user| Account::find(user, PASSWD, group).unwrap().groups;
        assert_eq!(groups("app"), [3456, 50]);
        assert_eq!((groups("101"), groups("app:")), (groups("app"), groups("app")));
        for user in ["app:staff", "7", "", "7:8"] {
            assert!(groups(user).is_empty(), "{user}");
        }
        let many: String = (1000..2000).map(|gid| format!("g{gid}:x:{gid}:app\n")).collect();
        assert_eq!(Account::find("app", PASSWD, &many).unwrap().groups.len(), MOST_GROUPS);
    }
}
