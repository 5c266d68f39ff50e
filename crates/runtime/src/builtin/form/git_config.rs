//! git's configuration, as git-config(1) describes it: parsed character by character as git does, and written in its plainest form.

use super::super::judge::{Fate, Judge};
use super::super::telling;
use super::super::userinfo::{self, Told};
use super::NotUnderstood;

/// A variable. Without a value it means true.
struct Variable {
    section: String,
    subsection: Option<String>,
    name: String,
    value: Option<String>,
}

pub(super) fn anew(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let mut anew = String::new();
    let mut open = None;
    for variable in read(text)? {
        let Some(variable) = judged(variable, judge) else { continue };
        let header = (variable.section, variable.subsection);
        if open.as_ref() != Some(&header) {
            anew.push_str(&match &header.1 {
                Some(subsection) => format!("[{} \"{}\"]\n", header.0, escaped(subsection)),
                None => format!("[{}]\n", header.0),
            });
            open = Some(header);
        }
        anew.push_str(&match variable.value {
            Some(value) => {
                let value = escaped(&value).replace('\n', "\\n").replace('\t', "\\t");
                format!("\t{} = \"{value}\"\n", variable.name)
            }
            None => format!("\t{}\n", variable.name),
        });
    }
    Ok(anew)
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Returns the variable as it may enter.
fn judged(variable: Variable, judge: &mut Judge<'_>) -> Option<Variable> {
    let Variable { section, subsection, name, value } = variable;
    let place = subsection.as_deref().unwrap_or_default().to_owned();
    let told = match &subsection {
        // An address there may contain user information as well.
        Some(subsection) => format!("{section}.{}.{name}", userinfo::host(subsection)),
        None => format!("{section}.{name}"),
    };
    let plain = [section.as_str(), name.as_str()];
    if judge.is_outside(&plain) {
        return None;
    }
    if telling::is_telling(&section) {
        judge.leave_out(&section);
        return None;
    }
    if section == "credential" {
        let store =
            name == "helper" && value.as_deref().is_none_or(|helper| helper.is_empty() || helper == "store");
        let kept = store || matches!(name.as_str(), "usehttppath" | "username");
        if !kept {
            judge.leave_out(&told);
            return None;
        }
    }
    let subsection = match subsection.map(|text| address(text, judge, &told)) {
        Some(None) => return None,
        Some(Some(text)) => Some(text),
        None => None,
    };
    let value = match value {
        None => None,
        Some(value) if section == "http" && name == "extraheader" => {
            Some(header(&value, &place, judge, &told)?)
        }
        Some(value) => match judge.value(&plain, &value) {
            Fate::Keep => Some(value),
            Fate::Become(anew) => Some(anew),
            Fate::LeaveOut => return None,
        },
    };
    Some(Variable { section, subsection, name, value })
}

/// Returns the address of a subsection, as of `[url "https://me:…@host/"]`.
fn address(text: String, judge: &mut Judge<'_>, told: &str) -> Option<String> {
    let bound = judge.bound();
    match userinfo::replaced(&text, &|url| bound.at(url)) {
        Told::Nothing if telling::is_telling(&text) => {
            judge.leave_out(told);
            None
        }
        Told::Nothing => Some(text),
        Told::Anew(anew, missing) if !telling::is_telling(&anew) => {
            missing.iter().for_each(|url| judge.lacks(told, bound.remedy_at(url)));
            Some(anew)
        }
        Told::Anew(..) | Told::Unclear => {
            judge.leave_out(told);
            None
        }
    }
}

/// Judges a header such as `Authorization: Basic …`, for the address of its section.
fn header(value: &str, url: &str, judge: &mut Judge<'_>, told: &str) -> Option<String> {
    let (name, content) = value.split_once(':').unwrap_or((value, ""));
    if value.is_empty() || (!telling::is_sensitive(name) && !telling::is_telling(value)) {
        return Some(value.to_owned());
    }
    if url.is_empty() || !telling::is_sensitive(name) || telling::is_telling(name) {
        judge.leave_out(told);
        return None;
    }
    let placeholder = judge.credential_at(told, &format!("https://{}/", userinfo::host(url)))?;
    let anew = match content.trim_start().split_once(' ') {
        Some((scheme, held)) if scheme.eq_ignore_ascii_case("basic") => {
            format!("{scheme} {}", userinfo::basic(held, placeholder))
        }
        Some((scheme, _))
            if scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token") =>
        {
            format!("{scheme} {placeholder}")
        }
        _ => placeholder.to_owned(),
    };
    Some(format!("{name}: {anew}"))
}

fn read(text: &str) -> Result<Vec<Variable>, NotUnderstood> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let mut section = None;
    let mut variables = Vec::new();
    while let Some(&letter) = reader.rest.peek() {
        match letter {
            '#' | ';' => reader.skip_line(),
            '[' => section = Some(reader.section()?),
            _ if letter.is_whitespace() => {
                reader.next();
            }
            _ => {
                let (section, subsection) = section.clone().ok_or_else(|| reader.no())?;
                let (name, value) = reader.variable()?;
                variables.push(Variable { section, subsection, name, value });
            }
        }
    }
    Ok(variables)
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    /// Returns the next character; a line end is one character however it is written.
    fn next(&mut self) -> Option<char> {
        let mut letter = self.rest.next()?;
        if letter == '\r' && self.rest.peek() == Some(&'\n') {
            letter = self.rest.next()?;
        }
        if letter == '\n' {
            self.line += 1;
        }
        Some(letter)
    }

    fn no(&self) -> NotUnderstood {
        NotUnderstood::at(self.line)
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|letter| letter != '\n') {}
    }

    /// Parses `[name]`, `[name "sub"]` or the old `[name.sub]`.
    fn section(&mut self) -> Result<(String, Option<String>), NotUnderstood> {
        self.next();
        let mut name = String::new();
        loop {
            match self.next() {
                Some(']') if !name.is_empty() => {
                    let (section, subsection) = match name.split_once('.') {
                        Some((section, subsection)) => (section.to_owned(), Some(subsection.to_owned())),
                        None => (name, None),
                    };
                    return Ok((section, subsection));
                }
                Some(letter) if letter.is_ascii_alphanumeric() || "-.".contains(letter) => {
                    name.push(letter.to_ascii_lowercase());
                }
                Some(' ' | '\t') if !name.is_empty() => return Ok((name, Some(self.subsection()?))),
                _ => return Err(self.no()),
            }
        }
    }

    fn subsection(&mut self) -> Result<String, NotUnderstood> {
        let mut text = String::new();
        loop {
            match self.next() {
                Some(' ' | '\t') => {}
                Some('"') => break,
                _ => return Err(self.no()),
            }
        }
        loop {
            match self.next() {
                Some('"') if self.next() == Some(']') => return Ok(text),
                Some('\\') => {
                    text.push(self.next().filter(|letter| *letter != '\n').ok_or_else(|| self.no())?)
                }
                None | Some('"' | '\n' | '\0') => return Err(self.no()),
                Some(letter) => text.push(letter),
            }
        }
    }

    fn variable(&mut self) -> Result<(String, Option<String>), NotUnderstood> {
        let mut name = String::new();
        while let Some(letter) = self.rest.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '-')
        {
            name.push(letter.to_ascii_lowercase());
        }
        if !name.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            return Err(self.no());
        }
        loop {
            match self.next() {
                None | Some('\n') => return Ok((name, None)),
                Some(' ' | '\t') => {}
                Some('=') => return Ok((name, Some(self.value()?))),
                _ => return Err(self.no()),
            }
        }
    }

    /// Parses a value as git's `parse_value` does: blanks at the ends are dropped, quotes protect, `\` continues or escapes.
    fn value(&mut self) -> Result<String, NotUnderstood> {
        let (mut value, mut blanks, mut quoted) = (String::new(), String::new(), false);
        loop {
            let mut put = |blanks: &mut String, letter| {
                value.push_str(blanks);
                blanks.clear();
                value.push(letter);
            };
            match self.next() {
                None | Some('\n') if !quoted => return Ok(value),
                None | Some('\n' | '\0') => return Err(self.no()),
                Some(letter @ (' ' | '\t' | '\r')) if !quoted => {
                    if !value.is_empty() {
                        blanks.push(letter);
                    }
                }
                Some('#' | ';') if !quoted => {
                    self.skip_line();
                    return Ok(value);
                }
                Some('"') => {
                    quoted = !quoted;
                    value.push_str(&blanks);
                    blanks.clear();
                }
                Some('\\') => match self.next() {
                    // Blanks before it belong to the value, as in git.
                    Some('\n') => {
                        value.push_str(&blanks);
                        blanks.clear();
                    }
                    Some('n') => put(&mut blanks, '\n'),
                    Some('t') => put(&mut blanks, '\t'),
                    Some('b') => put(&mut blanks, '\u{8}'),
                    Some(letter @ ('\\' | '"')) => put(&mut blanks, letter),
                    _ => return Err(self.no()),
                },
                Some(letter) => put(&mut blanks, letter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::super::Form;
    use super::super::tried::tried;

    const REST: &str = "outside = [\"http.proxy\", \"include.*\", \"includeif.*\"]";

    #[test]
    fn settings_stay_and_credentials_go() {
        let basic = BASE64.encode(b"me:hush");
        let text = format!(
            "# hush\r\n[User]\r\n\tName = Me Myself ; hush\r\n\temail=me@example.org\n[alias]\n\tl = log \\\n  --oneline\n\
             [color \"b\\\"x\"] ui\n[core]\n\teditor = \"vim -f  \" # hush\n[credential]\n\thelper = store\n\thelper = !echo password=hush\n\
             [credential \"https://me:hush@bound.example\"]\n\thelper = \"!echo hush\"\n\
             [http]\n\tproxy = http://me:hush@proxy:1\n\textraHeader = X-Plain: 1\n\textraHeader = \"Authorization: Bearer hush\"\n\
             [http \"https://bound.example/\"]\n\textraHeader = AUTHORIZATION: basic {basic}\n\textraHeader = PRIVATE-TOKEN: hush\n\
             [http \"https://other.example/\"]\n\textraHeader = Authorization: Bearer hush\n\
             [url \"https://me:hush@bound.example/\"]\n\tinsteadOf = git@bound.example:\n\
             [url \"https://me:hush@other.example/\"]\n\tinsteadOf = git@other.example:\n\
             [include]\n\tpath = ~/hush\n[sendemail]\n\tsmtpPass = hush\n\tpassword = hush\n"
        );
        let (anew, left_out) = tried(Form::GitConfig, REST, &text).unwrap();
        let basic =
            BASE64.encode(format!("me:{}", credential::Placeholder::mint([7; 27]).as_str()).as_bytes());
        let expected = format!(
            "[user]\n\tname = \"Me Myself\"\n\temail = \"me@example.org\"\n[alias]\n\tl = \"log   --oneline\"\n\
             [color \"b\\\"x\"]\n\tui\n[core]\n\teditor = \"vim -f  \"\n[credential]\n\thelper = \"store\"\n\
             [http]\n\textraheader = \"X-Plain: 1\"\n[http \"https://bound.example/\"]\n\
             \textraheader = \"AUTHORIZATION: basic {basic}\"\n\textraheader = \"PRIVATE-TOKEN: {{}}\"\n\
             [url \"https://me:{{}}@bound.example/\"]\n\tinsteadof = \"git@bound.example:\"\n\
             [url \"https://other.example/\"]\n\tinsteadof = \"git@other.example:\"\n"
        );
        assert_eq!(anew, expected);
        for name in [
            "`credential.helper`",
            "`http.proxy`",
            "`http.extraheader`",
            "`http.other.example.extraheader`",
            "`include.path`",
            "`sendemail.smtppass`",
            "`sendemail.password`",
            "`url.other.example.insteadof`",
        ] {
            assert!(left_out.iter().any(|left| left == name), "{name} of {left_out:?}");
        }
    }

    #[test]
    fn a_credential_in_the_name_of_a_header_goes() {
        let text =
            "[http \"https://bound.example/\"]\n\textraHeader = X-Token-q7Fh2Kd93LmXz81PwRtYbN4c: hush\n";
        let (anew, left_out) = tried(Form::GitConfig, "", text).unwrap();
        assert_eq!((anew.as_str(), left_out), ("", vec!["`http.bound.example.extraheader`".to_owned()]));
    }

    #[test]
    fn blanks_are_those_of_git() {
        // The expected values are those of `git config --list`, version 2.47.
        for (value, read) in [
            ("v  w ", "v  w"),
            ("\u{e9} \\\n", "\u{e9} "),
            ("v \\\n  w", "v   w"),
            ("v \"\" ", "v "),
            ("\"a ;b\" c # d", "a ;b c"),
            ("v\r", "v"),
            ("a\\\\b", "a\\\\b"),
        ] {
            let text = format!("[a]\nb = {value}\n");
            let expected = format!("[a]\n\tb = \"{read}\"\n");
            assert_eq!(tried(Form::GitConfig, "", &text).unwrap().0, expected, "{text:?}");
        }
    }

    #[test]
    fn what_git_would_not_read_does_not_enter() {
        for text in [
            "name = hush",
            "[a\nb = hush",
            "[a]\nb = \"hush",
            "[a]\n1b = hush",
            "[a]\nb hush",
            "[a]\nb = \\x",
            "[]\na = b",
            "[a \"b]\nc = d",
            "[a \"b\" ]\nc = d",
            "hush",
            "[a]\n_b = hush",
            "[a]\nb = \"x\ny\"",
        ] {
            assert!(tried(Form::GitConfig, "", text).is_err(), "{text}");
        }
        assert_eq!(tried(Form::GitConfig, "", "").unwrap().0, "");
        assert_eq!(tried(Form::GitConfig, "", "[a]b=c").unwrap().0, "[a]\n\tb = \"c\"\n");
    }

    #[test]
    fn credentials_in_commands_and_headers_go() {
        let text = "[alias]\n\ta = !curl -u admin:hush https://h/\n\tb = !sshpass -p hush ssh h\n\tc = !mysql -phush db\n\
             \td = !mkdir -p dir\n\te = add -p\n[http]\n\textraHeader = \"PAT: hush\"\n[own]\n\tpwd = hush\n\tdir = x\n\
             [url \"https://h/0b5c7f0e-4f5a-4f0e-9d0a-2f1b3c4d5e6f/hush\"]\n\tinsteadOf = h:\n";
        let (anew, left_out) = tried(Form::GitConfig, "", text).unwrap();
        assert_eq!(anew, "[alias]\n\td = \"!mkdir -p dir\"\n\te = \"add -p\"\n[own]\n\tdir = \"x\"\n");
        let expected =
            ["`alias.a`", "`alias.b`", "`alias.c`", "`http.extraheader`", "`own.pwd`", "`url.h.insteadof`"];
        assert_eq!(left_out, expected);
    }
}
