//! The format of Python's configparser, as pip reads it: sections, `name = value` or `name: value`, and indented lines that continue a
//! value.

use super::super::judge::{Fate, Judge};
use super::super::telling;
use super::NotUnderstood;

pub(super) fn anew(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let mut anew = String::new();
    for (section, entries) in read(text)? {
        if telling::is_telling(&section) {
            judge.leave_out(&section);
            continue;
        }
        anew.push_str(&format!("[{section}]\n"));
        for (name, value) in entries {
            let value = match judge.value(&[&section, &name], &value) {
                Fate::Keep => value,
                Fate::Become(value) => value,
                Fate::LeaveOut => continue,
            };
            anew.push_str(&format!("{name} = {}\n", value.replace('\n', "\n    ")));
        }
    }
    Ok(anew)
}

type Section = (String, Vec<(String, String)>);

fn read(text: &str) -> Result<Vec<Section>, NotUnderstood> {
    let mut sections: Vec<Section> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let no = || NotUnderstood::at(number);
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if content.chars().any(|c| c.is_control() && c != '\t') {
            return Err(no());
        }
        if line.starts_with(char::is_whitespace) {
            let open = sections.last_mut().and_then(|(_, entries)| entries.last_mut());
            let (_, value) = open.ok_or_else(no)?;
            value.push('\n');
            value.push_str(content);
            continue;
        }
        if let Some(name) = content.strip_prefix('[') {
            let name = name.strip_suffix(']').filter(|name| !name.is_empty() && !name.contains(['[', ']']));
            sections.push((name.ok_or_else(no)?.to_owned(), Vec::new()));
            continue;
        }
        let (name, value) = content.split_once(['=', ':']).ok_or_else(no)?;
        let (_, entries) = sections.last_mut().ok_or_else(no)?;
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return Err(no());
        }
        entries.push((name, value.trim().to_owned()));
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tried::tried;

    #[test]
    fn settings_stay_and_credentials_go() {
        let text = "; hush\r\n[global]\r\nIndex-URL = https://me:hush@bound.example/simple/\r\nextra-index-url:\n  \
            https://me:hush@other.example/simple\n  # hush\n  https://plain.example/simple\ntimeout = 60\nproxy = me:hush@p:1\n\
            [install]\nno-binary = \":all:\"\npassword = hush\n";
        let (anew, left_out) = tried(Form::Ini, "outside = [\"global.proxy\"]", text).unwrap();
        let expected = "[global]\nindex-url = https://me:{}@bound.example/simple/\nextra-index-url = \n    \
            https://other.example/simple\n    https://plain.example/simple\ntimeout = 60\n[install]\nno-binary = \":all:\"\n";
        assert_eq!(anew, expected);
        assert_eq!(left_out, ["`global.extra-index-url`", "`global.proxy`", "`install.password`"]);
    }

    #[test]
    fn what_configparser_would_not_read_does_not_enter() {
        for text in [
            "a = hush",
            "[a\nb = c",
            "[a]\nhush",
            "[a]\n= hush",
            "  hush",
            "[a]\n  hush",
            "[a]\nb = \u{1}hush",
        ] {
            assert!(tried(Form::Ini, "", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_in_the_path_of_an_index_goes() {
        let text = "[global]\nindex-url = https://dl.packages.example/basic/q7Fh2Kd93LmXz81P/o/r/python/simple/\n\
            extra-index-url = https://index.example/simple\n";
        let (anew, left_out) = tried(Form::Ini, "", text).unwrap();
        assert_eq!(anew, "[global]\nextra-index-url = https://index.example/simple\n");
        assert_eq!(left_out, ["`global.index-url`"]);
    }
}
