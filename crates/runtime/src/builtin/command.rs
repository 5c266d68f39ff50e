//! Recognises passwords among the words of a command, where a flag of one letter means one. Which flag does depends on the program.

/// Programs whose flags give a password, and the flags. The password is the next word, or attached to the flag.
const PROGRAMS: &[(&[&str], &[&str])] = &[
    (&["mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlsh", "mariadb", "mariadb-dump"], &["-p"]),
    (&["sshpass", "mongo", "mongosh", "mongodump", "mongorestore", "7z"], &["-p"]),
    (&["redis-cli"], &["-a"]),
    (&["ldapsearch", "ldapadd", "ldapmodify", "ipmitool"], &["-w", "-P"]),
    (&["sqlcmd", "bcp", "zip", "unzip", "mosquitto_pub", "mosquitto_sub"], &["-P"]),
];
/// Programs for which `-p` means something else: a path, a port, a package, a prompt.
const OTHERS: &[&str] = &[
    "mkdir", "cargo", "ssh", "git", "claude", "tmux", "make", "python", "python3", "cp", "tar", "kubectl",
    "install", // An alias of cargo's begins with a subcommand.
    "run", "build", "test", "check", "clippy", "doc",
];
/// Programs that start another, and for which `-p` means something else before that one is named.
const RUNNERS: &[&str] = &["npx", "bunx", "pnpm", "npm", "yarn", "bun", "uvx", "uv", "pipx"];
/// The subcommands by which those start it.
const STARTS: &[&str] = &["run", "dlx", "exec", "x", "tool"];
/// Programs for which `-u A:B` means a user and a group.
const ENGINES: &[&str] = &["docker", "podman", "nerdctl", "helm"];

/// Whether a line of words gives a password by a flag.
pub(super) fn gives_password(line: &str) -> bool {
    let mut flags: &[&str] = &[];
    let mut engine = false;
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '(' | ')' | '!' | '`');
    let words: Vec<&str> = line.split(ends).filter(|word| !word.is_empty()).collect();
    words.iter().enumerate().any(|(at, word)| {
        let next = words.get(at + 1).copied().unwrap_or_default();
        if word.ends_with([';', '|', '&']) {
            (flags, engine) = (&[], false);
            return false;
        }
        let program = base(word);
        if let Some((_, own)) = PROGRAMS.iter().find(|(names, _)| names.contains(&program)) {
            flags = own;
        }
        engine |= ENGINES.contains(&program);
        if engine && program == "login" {
            flags = &["-p"];
        }
        let given = |flag: &&str| {
            let held = word.strip_prefix(flag).map(|held| held.trim_start_matches('='));
            held.is_some_and(|held| is_held(if held.is_empty() { next } else { held }))
        };
        flags.iter().any(given) || (!engine && is_pair(word, next))
    })
}

/// Whether a program's arguments, each passed as it is, give a password by a flag.
pub(super) fn gives_password_to(program: &str, words: &[&str]) -> bool {
    let own = words.first().copied().filter(|word| !word.starts_with('-')).unwrap_or_default();
    let program = base(if program.is_empty() { own } else { program });
    let options = |before: &[&str]| {
        before.iter().all(|word| word.starts_with('-') || STARTS.contains(word) || base(word) == program)
    };
    let line = format!("{program} {}", words.join(" "));
    gives_password(&line)
        || words.iter().enumerate().any(|(at, word)| {
            let other = OTHERS.contains(&program) || (RUNNERS.contains(&program) && options(&words[..at]));
            let next = words.get(at + 1).copied().unwrap_or_default();
            let held = if *word == "-p" { Some(next) } else { word.strip_prefix("-p=") };
            held.is_some_and(|held| !other && is_held(held) && !is_plain(held))
        })
}

/// Whether a word is curl's `-u NAME:PASSWORD`.
fn is_pair(word: &str, next: &str) -> bool {
    let attached = word.strip_prefix("-u").filter(|held| held.contains(':'));
    let given = match word {
        "-u" | "-U" | "--user" | "--proxy-user" | "--auth" => Some(next),
        _ => attached.or_else(|| word.strip_prefix("--user=")).or_else(|| word.strip_prefix("--proxy-user=")),
    };
    let Some((_, password)) = given.and_then(|pair| pair.split_once(':')) else { return false };
    is_held(password) && !password.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a text is a value, and no reference, flag or wildcard.
fn is_held(value: &str) -> bool {
    !value.is_empty()
        && !value.starts_with(['$', '-', '{', '<'])
        && !matches!(value, "*" | ":*")
        && !value.contains("lgph_")
}

/// Whether a text is a port, a path or the name of a package.
fn is_plain(value: &str) -> bool {
    value.starts_with(['/', '.', '~', '@'])
        || value
            .trim_end_matches("/tcp")
            .trim_end_matches("/udp")
            .bytes()
            .all(|b| b.is_ascii_digit() || b".:-".contains(&b))
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_line_is_seen() {
        for line in [
            "!curl -u admin:hush https://h/",
            "curl --user=admin:hush h",
            "curl -uadmin:hush h",
            "sshpass -p hush ssh h",
            "!sshpass -phush ssh h",
            "mysql -phush db",
            "/usr/bin/mysql -u me -p'hush' db",
            "Bash(mysql -u root -phush:*)",
            "ls | redis-cli -a hush",
            "docker login -u me -p hush h",
            "mysql -p:hush",
        ] {
            assert!(gives_password(line), "{line}");
        }
        for line in [
            "mkdir -p dir",
            "Bash(mkdir -p:*)",
            "Bash(mysql -p:*)",
            "git add -p",
            "docker run -u node:node -p 8080:80 image",
            "docker run -u 1000:1000 x",
            "mysql -p",
            "mysql -p$PASSWORD db",
            "sshpass -p \"$PW\" ssh h",
            "curl -u $ME:$PW h",
            "mysql -e x; mkdir -p dir",
            "git push -u origin main",
            "python -u x.py",
            "gh auth login -p https",
        ] {
            assert!(!gives_password(line), "{line}");
        }
    }

    #[test]
    fn a_password_in_a_list_is_seen() {
        for (program, words) in [
            ("db-mcp", &["-p", "hush"][..]),
            ("db-mcp", &["-p=hush"]),
            ("", &["mysql", "-p", "hush"]),
            ("npx", &["-y", "mysql-mcp", "-p", "hush"]),
            ("curl", &["-u", "me:hush"]),
            ("", &["-h", "h", "-p", "hush"]),
        ] {
            assert!(gives_password_to(program, words), "{words:?}");
        }
        for (program, words) in [
            ("server", &["-p", "8080"][..]),
            ("docker", &["run", "-p", "127.0.0.1:8080:80/tcp", "image"]),
            ("mkdir", &["-p", "dir"]),
            ("", &["mkdir", "-p", "dir"]),
            ("", &["run", "-p", "xtask", "--"]),
            ("npx", &["-y", "-p", "pkg", "cmd"]),
            ("npx", &["-y", "-p", "@scope/pkg", "cmd"]),
            ("uvx", &["-p", "python3", "x"]),
            ("server", &["-p", "./data"]),
            ("server", &["-p", "$PW"]),
            ("server", &["-p", "-v"]),
            ("server", &["-p"]),
            ("server", &["-p=8080"]),
        ] {
            assert!(!gives_password_to(program, words), "{words:?}");
        }
    }
}
