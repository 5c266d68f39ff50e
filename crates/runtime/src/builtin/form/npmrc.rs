//! npm's configuration: `name = value`. Credentials for a registry are under its address, `//host/path/:_authToken`.

use super::super::judge::{Fate, Judge};
use super::super::{telling, userinfo};
use super::NotUnderstood;

pub(super) fn anew(text: &str, judge: &mut Judge<'_>) -> Result<String, NotUnderstood> {
    let mut anew = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let no = || NotUnderstood::at(number);
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        // A section would change the meaning of all that follows.
        if content.starts_with(['[', '=']) || content.chars().any(char::is_control) {
            return Err(no());
        }
        let (name, value) = match content.split_once('=') {
            Some((name, value)) => (unquoted(name).ok_or_else(no)?, Some(unquoted(value).ok_or_else(no)?)),
            None => (unquoted(content).ok_or_else(no)?, None),
        };
        let value = match value {
            None if telling::is_telling(&name) => {
                judge.leave_out(&name);
                continue;
            }
            None => None,
            Some(value) => match judged(&name, &value, judge) {
                Some(value) => Some(value),
                None => continue,
            },
        };
        anew.push_str(&match value {
            Some(value) => format!("{}={}\n", quoted(&name), quoted(&value)),
            None => format!("{}\n", quoted(&name)),
        });
    }
    Ok(anew)
}

fn judged(name: &str, value: &str, judge: &mut Judge<'_>) -> Option<String> {
    let fate = match name.strip_prefix("//").and_then(|rest| rest.rsplit_once(':')) {
        Some((place, field)) => return of_registry(name, place, field, value, judge),
        // Not under an address: npm itself no longer says for which registry it would be.
        None if matches!(name, "_auth" | "_authToken" | "_password") => judge.leave_out(name),
        None => judge.value(&[name], value),
    };
    match fate {
        Fate::Keep => Some(value.to_owned()),
        Fate::Become(anew) => Some(anew),
        Fate::LeaveOut => None,
    }
}

/// Judges an entry under the address of a registry.
fn of_registry(name: &str, place: &str, field: &str, value: &str, judge: &mut Judge<'_>) -> Option<String> {
    let whole = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    // A token in braces is still a token.
    let reference = whole.is_some_and(|inner| {
        inner.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !telling::is_telling(inner)
    });
    let url = format!("https://{place}");
    if telling::is_telling(&url) {
        judge.leave_out(name);
        return None;
    }
    match field {
        "_auth" | "_authToken" | "_password" if reference => {
            judge.refers();
            Some(value.to_owned())
        }
        "_authToken" => judge.credential_at(name, &url).map(str::to_owned),
        "_auth" => judge.credential_at(name, &url).map(|placeholder| userinfo::basic(value, placeholder)),
        // The password is stored in base64.
        "_password" => {
            let placeholder = judge.credential_at(name, &url)?;
            Some(data_encoding::BASE64.encode(placeholder.as_bytes()))
        }
        "username" | "email" | "always-auth" if !telling::is_telling(value) && !telling::is_telling(name) => {
            Some(value.to_owned())
        }
        _ => {
            judge.leave_out(name);
            None
        }
    }
}

/// Reads a name or a value as npm's `ini` does; `None` if its meaning is not beyond doubt.
fn unquoted(text: &str) -> Option<String> {
    let text = text.trim();
    if text.starts_with('"') {
        return serde_json::from_str(text).ok();
    }
    if let Some(inner) = text.strip_prefix('\'') {
        return inner.strip_suffix('\'').filter(|inner| !inner.contains('\'')).map(str::to_owned);
    }
    // An unescaped `;` or `#` begins a comment; one after `\` does not.
    if text.contains('\\') {
        return None;
    }
    Some(text.split([';', '#']).next().unwrap_or_default().trim().to_owned())
}

fn quoted(text: &str) -> String {
    let odd = text.is_empty() || text.trim() != text || text.contains([';', '#', '"', '\'', '=', '\\', '[']);
    // A name with brackets at its end is a list; with quotes it would not be.
    let list =
        text.ends_with("[]") && !text[..text.len() - 2].contains(['[', '"', '\'', ';', '#', '=', '\\']);
    if odd && !list { serde_json::Value::from(text).to_string() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::super::Form;
    use super::super::tried::tried;

    #[test]
    fn a_token_in_braces_names_no_variable() {
        let token = "ghp_q7Fh2Kd93LmXz81PwRtYbN4cVgTaE5Js6Q";
        for (inner, enters) in [("NPM_TOKEN", true), ("npm_config_token", true), (token, false)] {
            let text = format!("//third.example/:_authToken=${{{inner}}}\nsave-exact\n");
            let (anew, _) = tried(Form::Npmrc, "", &text).unwrap();
            assert_eq!(anew.contains(inner), enters, "{anew}");
        }
    }

    #[test]
    fn settings_stay_and_credentials_go() {
        let pair = BASE64.encode(b"me:hush");
        let text = format!(
            "; hush\r\nregistry=https://bound.example/\r\n@own:registry = \"https://other.example/npm/\"\n\
             //bound.example/:_authToken=hush ; hush\n//bound.example/x/:_auth = {pair}\n//bound.example/y/:_password=aHVzaA==\n\
             //bound.example/y/:username=me\n//other.example/npm/:_authToken=hush\n//third.example/:_authToken=${{OWN_TOKEN}}\n\
             //bound.example/:certfile=/hush\n//bound.example/:tokenHelper=/hush\n_authToken=hush\n_auth=hush\nkey=\"hush\"\n\
             proxy=http://me:hush@p:1\nsave-exact\ninit-author-name=Me Myself\nca[]=x\nomit[]=dev\n//bound.example/:_authToken=hush\n"
        );
        let rest = "outside = [\"proxy\", \"ca*\"]";
        let (anew, left_out) = tried(Form::Npmrc, rest, &text).unwrap();
        let placeholder = credential::Placeholder::mint([7; 27]);
        let pair = BASE64.encode(format!("me:{}", placeholder.as_str()).as_bytes());
        let password = BASE64.encode(placeholder.as_str().as_bytes());
        // A value that ends in `=` is quoted, which npm reads as the same.
        let value = |text: &str| if text.contains('=') { format!("\"{text}\"") } else { text.into() };
        let expected = format!(
            "registry=https://bound.example/\n@own:registry=https://other.example/npm/\n//bound.example/:_authToken={{}}\n\
             //bound.example/x/:_auth={}\n//bound.example/y/:_password={}\n//bound.example/y/:username=me\n\
             //third.example/:_authToken=${{OWN_TOKEN}}\nsave-exact\ninit-author-name=Me Myself\nomit[]=dev\n\
             //bound.example/:_authToken={{}}\n",
            value(&pair),
            value(&password)
        );
        assert_eq!(anew, expected);
        for name in [
            "`//other.example/npm/:_authToken`",
            "`//bound.example/:certfile`",
            "`_authToken`",
            "`_auth`",
            "`key`",
            "`proxy`",
            "`ca[]`",
        ] {
            assert!(left_out.iter().any(|left| left == name), "{name} of {left_out:?}");
        }
    }

    #[test]
    fn what_is_not_beyond_doubt_does_not_enter() {
        for text in ["[hush]", "=hush", "a=\\;hush", "a=\"hush", "a='hush", "a='x'hush'", "a=\u{0}hush"] {
            assert!(tried(Form::Npmrc, "", text).is_err(), "{text}");
        }
        let pasted = "npm_0123456789abcdefABCDEF0123456789abcd";
        let text = format!("{pasted}\nx={pasted}\n{pasted}=${{X}}\n{pasted}=\n");
        let (anew, left_out) = tried(Form::Npmrc, "", &text).unwrap();
        assert!(
            anew.is_empty() && left_out.len() == 4 && !left_out.concat().contains(pasted),
            "{anew} {left_out:?}"
        );
    }

    #[test]
    fn a_token_in_the_path_of_a_registry_goes() {
        let text = "registry=https://npm.packages.example/q7Fh2Kd93LmXz81P/\n//npm.packages.example/q7Fh2Kd93LmXz81P/:always-auth=true\n\
            //bound.example/q7Fh2Kd93LmXz81P/:_authToken=hush\n@own:registry=https://npm.pkg.github.com/\n";
        let (anew, left_out) = tried(Form::Npmrc, "", text).unwrap();
        assert_eq!(anew, "@own:registry=https://npm.pkg.github.com/\n");
        assert!(left_out.len() == 3 && !left_out.concat().contains("q7Fh2"), "{left_out:?}");
    }
}
