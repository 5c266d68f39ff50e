//! The file of git's `store` helper: an address with name and password on each line. Only lines whose host has a placeholder enter.

use super::super::judge::Judge;
use super::super::telling;
use super::super::userinfo::{self, Told};
use super::NotUnderstood;

pub(super) fn anew(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let mut anew = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // One address and nothing else, in characters that an address may have.
        let plain = line.bytes().all(|b| b.is_ascii_graphic()) && line.matches("://").count() == 1;
        let bound = judge.bound();
        match plain.then(|| userinfo::replaced(line, &|url| bound.at(url))) {
            // A path may contain a credential as well.
            Some(Told::Anew(address, _)) if telling::is_telling(&address) => {
                judge.leave_out(userinfo::host(&address));
            }
            Some(Told::Anew(address, missing)) if missing.is_empty() => {
                anew.push_str(&address);
                anew.push('\n');
            }
            Some(Told::Anew(_, missing)) => {
                for url in missing {
                    judge.credential_at(&url, &url);
                }
            }
            _ => return Err(NotUnderstood::at(number)),
        }
    }
    Ok(anew)
}

#[cfg(test)]
mod tests {
    use super::super::Form;
    use super::super::tried::tried;

    #[test]
    fn only_what_has_a_placeholder_enters() {
        let text = "https://me:hush@bound.example\r\nhttps://me:hush@other.example/x\n\nhttps://hush:@bound.example\n";
        let (anew, left_out) = tried(Form::GitCredentials, "", text).unwrap();
        assert_eq!(anew, "https://me:{}@bound.example\nhttps://x-access-token:{}@bound.example\n");
        assert_eq!(left_out, ["`https://other.example/`"]);
        let key = "https://me:hush@bound.example/q7Fh2Kd93LmXz81PwRtYbN4c/r.git\n";
        let (anew, left_out) = tried(Form::GitCredentials, "", key).unwrap();
        assert_eq!((anew.as_str(), left_out), ("", vec!["`bound.example`".to_owned()]));
        for bad in [
            "hush",
            "https://other.example/hush",
            "https://a:b@x https://c:d@y",
            "https://a:pa/hush@bound.example",
        ] {
            assert!(tried(Form::GitCredentials, "", bad).is_err(), "{bad}");
        }
    }
}
