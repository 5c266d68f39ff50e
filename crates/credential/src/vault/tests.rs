//! The vault as a whole, on real directories.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::envelope::EnvelopeError;
use crate::secret::Secret;

const OLD: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn vault(path: &Path, keys: &str) -> Vault {
    Vault::open(path.into(), Keyring::parse(keys).unwrap()).unwrap()
}

fn set(vault: &Vault, id: &str, name: &str, value: &str) {
    let value = Value::new(Secret::from_text(value.into())).unwrap();
    vault.set_field(id, name.parse().unwrap(), value).unwrap();
}

fn value(vault: &Vault, id: &str, name: &str) -> Option<String> {
    let credential = vault.get(id).unwrap()?;
    credential.field(name).map(|secret| String::from_utf8(secret.expose().to_vec()).unwrap())
}

fn generation(file: &File) -> u64 {
    let mut octets = [0; 8];
    file.read_exact_at(&mut octets, 0).unwrap();
    u64::from_be_bytes(octets)
}

/// Returns every file but the lock, with its content.
fn content(path: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut content: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap()))
        .filter(|(name, _)| name != "vault.lock")
        .collect();
    content.sort();
    content
}

#[test]
fn nothing_is_made_before_the_first_write() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("vault");
    let vault = vault(&path, OLD);
    assert!(vault.get("a").unwrap().is_none());
    assert!(!vault.contains("a").unwrap() && !Vault::remove(&vault.directory, "a").unwrap());
    assert!(vault.list().unwrap().entries.is_empty() && Vault::ids(&path).unwrap().is_empty());
    assert_eq!(vault.rotate().unwrap(), Rotation::default());
    assert!(!path.exists());
    set(&vault, "a", "access_token", "x");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(path.join("a.json")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn fields_are_set_listed_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    set(&vault, "@org/name", "user", "me");
    set(&vault, "@org/name", "access_token", "one");
    set(&vault, "@org/name", "access_token", "two");
    set(&vault, "anthropic", "access_token", "three");
    assert_eq!(value(&vault, "@org/name", "access_token").unwrap(), "two");
    assert_eq!(value(&vault, "@org/name", "user").unwrap(), "me");
    assert_eq!(value(&vault, "@org/name", "other"), None);
    assert_eq!(Vault::ids(root.path()).unwrap(), ["@org/name", "anthropic"]);
    let list = vault.list().unwrap().entries;
    assert_eq!(list[0].id, "@org/name");
    assert_eq!(list[0].fields.iter().map(FieldName::as_str).collect::<Vec<_>>(), ["access_token", "user"]);
    assert!(list[0].updated.parse::<Timestamp>().is_ok() && list[0].updated.len() == 20);
    assert!(vault.contains("anthropic").unwrap());
    assert!(
        Vault::remove(&vault.directory, "anthropic").unwrap()
            && !Vault::remove(&vault.directory, "anthropic").unwrap()
    );
    assert!(vault.get("anthropic").unwrap().is_none() && !vault.contains("anthropic").unwrap());
}

#[test]
fn no_value_is_on_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    set(&vault, "a", "access_token", "correct-horse-battery");
    let needles = crate::Needles::of(&[Secret::new(b"correct-horse-battery".to_vec())]);
    for (name, content) in content(root.path()) {
        assert_eq!(needles.scrubbed(&content).1, 0, "{name}");
    }
}

#[test]
fn ids_that_are_none_touch_nothing() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    for id in ["../a", "", "a/b", "A", "%40a%2Fb", "vault.lock", &"a".repeat(200)] {
        let value = Value::new(Secret::new(b"x".to_vec())).unwrap();
        assert!(matches!(vault.get(id), Err(VaultError::Id { .. })), "{id}");
        assert!(matches!(vault.contains(id), Err(VaultError::Id { .. })));
        assert!(matches!(Vault::remove(&vault.directory, id), Err(VaultError::Id { .. })));
        assert!(matches!(vault.set_field(id, FieldName::default(), value), Err(VaultError::Id { .. })));
    }
    assert_eq!(content(root.path()), []);
}

#[test]
fn every_change_is_a_generation() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(&root.path().join("new"), OLD);
    let file = Vault::generation_file(&vault.directory).unwrap();
    let mut seen = vec![generation(&file)];
    set(&vault, "a", "access_token", "x");
    seen.push(generation(&file));
    set(&vault, "a", "access_token", "y");
    seen.push(generation(&file));
    Vault::remove(&vault.directory, "a").unwrap();
    seen.push(generation(&file));
    // C16: a removal may have been killed before it advanced the generation, and is repeated.
    assert!(!Vault::remove(&vault.directory, "a").unwrap());
    seen.push(generation(&file));
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
    vault.rotate().unwrap();
    assert_eq!(generation(&file), seen[4]);
    assert_eq!(generation(&Vault::generation_file(&vault.directory).unwrap()), seen[4]);
}

// C16
#[test]
fn who_sees_the_generation_of_a_change_sees_the_change() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    let file = Vault::generation_file(root.path()).unwrap();
    let is_there = |at: usize| vault.contains(&at.to_string()).unwrap();
    let remove = |at: usize| assert!(Vault::remove(root.path(), &at.to_string()).unwrap());
    let changes: [(&(dyn Fn(usize) + Sync), bool); 2] =
        [(&|at| set(&vault, &at.to_string(), "access_token", "x"), true), (&remove, false)];
    for (change, is_set) in changes {
        for at in 0..10 {
            // What another process keeps, which reads the generation before the record.
            let (kept, after) = thread::scope(|scope| {
                let changed = scope.spawn(|| change(at));
                let look = || (generation(&file), is_there(at));
                let mut kept = vec![look()];
                while !changed.is_finished() {
                    kept.push(look());
                }
                (kept, generation(&file))
            });
            assert!(
                kept.iter().all(|(seen, is_there)| *seen < after || *is_there == is_set),
                "{is_set}: {kept:?}"
            );
        }
    }
}

#[test]
fn a_change_that_may_have_been_made_is_a_generation() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    let file = Vault::generation_file(root.path()).unwrap();
    // Folders stand where a write begins, and where the record is removed.
    for folder in ["a.json.new", "b.json"] {
        fs::create_dir(root.path().join(folder)).unwrap();
    }
    let before = generation(&file);
    let value = Value::new(Secret::from_text("x".into())).unwrap();
    assert!(matches!(vault.set_field("a", FieldName::default(), value), Err(VaultError::Write { .. })));
    let between = generation(&file);
    assert!(matches!(Vault::remove(root.path(), "b"), Err(VaultError::Remove { .. })));
    assert!(before < between && between < generation(&file));
}

#[test]
fn a_removal_takes_what_a_killed_write_left() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    set(&vault, "a", "access_token", "x");
    let left = root.path().join("a.json.new");
    fs::copy(root.path().join("a.json"), &left).unwrap();
    assert!(Vault::remove(&vault.directory, "a").unwrap());
    assert!(!left.exists());
    fs::write(&left, "x").unwrap();
    set(&vault, "b", "access_token", "x");
    assert!(!left.exists());
}

#[test]
fn a_link_that_leads_nowhere_is_no_empty_vault() {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("vault");
    std::os::unix::fs::symlink(root.path().join("unmounted"), &link).unwrap();
    assert!(Vault::open(link.clone(), Keyring::parse(OLD).unwrap()).is_err());
    assert!(Vault::ids(&link).is_err() && Vault::remove(&link, "a").is_err());
}

#[test]
fn a_record_in_anothers_place_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    set(&vault, "a", "access_token", "x");
    fs::copy(root.path().join("a.json"), root.path().join("b.json")).unwrap();
    let error = vault.get("b").unwrap_err();
    assert!(matches!(&error, VaultError::Decrypt { source: EnvelopeError::Tampered, .. }));
    assert!(error.to_string().contains("b.json"));
}

// S1.27
#[test]
fn a_record_of_another_owner_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = |owner: &str| root.path().join(owner);
    let of = |owner: &str| Vault::open_of(owner, path(owner), Keyring::parse(OLD).unwrap()).unwrap();
    let own = vault(&path("own"), OLD);
    set(&own, "a", "access_token", "mine");
    set(&of("acme"), "a", "access_token", "theirs");
    assert_eq!(value(&of("acme"), "a", "access_token").unwrap(), "theirs");
    assert!(of("globex").get("a").unwrap().is_none());
    fs::create_dir(path("globex")).unwrap();
    for (from, to) in [("acme", "globex"), ("own", "globex"), ("acme", "own")] {
        fs::copy(path(from).join("a.json"), path(to).join("a.json")).unwrap();
        let reader = if to == "own" { vault(&path(to), OLD) } else { of(to) };
        let error = reader.get("a").unwrap_err();
        let refused = matches!(&error, VaultError::Decrypt { source: EnvelopeError::Tampered, .. });
        assert!(refused, "{from} in the place of {to}: {error:?}");
    }
    // A record that is bound to an owner stays bound after a rotation.
    let both = Keyring::parse(&format!("{NEW},{OLD}")).unwrap();
    let rotation = Vault::open_of("acme", path("acme"), both).unwrap().rotate().unwrap();
    assert_eq!(rotation, Rotation { rewrapped: 1, ..Rotation::default() });
    let new = Vault::open_of("acme", path("acme"), Keyring::parse(NEW).unwrap()).unwrap();
    assert_eq!(value(&new, "a", "access_token").unwrap(), "theirs");
}

#[test]
fn damage_names_the_file_and_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    set(&vault, "a", "access_token", "s3cret-value");
    let path = root.path().join("a.json");
    let whole_text = fs::read_to_string(&path).unwrap();
    for text in ["", &whole_text[..200], "{}", &whole_text.replace("access_token", "other"), "\u{0}\u{0}"] {
        fs::write(&path, text).unwrap();
        let error = vault.get("a").unwrap_err();
        assert!(matches!(error, VaultError::Damaged { .. }), "{error:?}");
        let shown = error.to_string();
        assert!(shown.contains("a.json") && shown.contains("restore it from a backup"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    fs::write(&path, whole_text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    let shown = vault.get("a").unwrap_err().to_string();
    assert!(shown.contains("format 2, of another version") && !shown.contains("damaged"), "{shown}");
    fs::write(&path, "{}").unwrap();
    // Other records are not affected.
    set(&vault, "b", "access_token", "whole");
    let Listing { entries, failed } = vault.list().unwrap();
    assert!(entries.len() == 1 && entries[0].id == "b", "{entries:?}");
    assert!(failed.len() == 1 && failed[0].id == "a" && failed[0].why.contains("a.json"), "{failed:?}");
    // Setting a field does not overwrite a record that cannot be read.
    let other = Value::new(Secret::new(b"x".to_vec())).unwrap();
    assert!(vault.set_field("a", "user".parse().unwrap(), other).is_err());
    assert!(Vault::remove(&vault.directory, "a").unwrap());
    set(&vault, "a", "access_token", "again");
    assert_eq!(value(&vault, "a", "access_token").unwrap(), "again");
}

#[test]
fn the_missing_key_is_named() {
    let root = tempfile::tempdir().unwrap();
    set(&vault(root.path(), OLD), "a", "access_token", "x");
    let error = vault(root.path(), NEW).get("a").unwrap_err().to_string();
    assert!(error.contains("a.json: no key ") && error.ends_with(" among those given"), "{error}");
}

#[test]
fn what_the_keys_do_not_open_is_replaced_where_they_open_another() {
    let root = tempfile::tempdir().unwrap();
    let text = |text: &str| Value::new(Secret::new(text.into())).unwrap();
    let token = || FieldName::access_token();
    let old = vault(root.path(), OLD);
    set(&old, "a", "access_token", "old");
    set(&old, "a", "user", "somebody");
    let new = vault(root.path(), NEW);
    // None opens: the key is most likely a wrong one.
    let error = new.set_field("a", token(), text("new")).unwrap_err();
    assert!(matches!(error, VaultError::Decrypt { source: EnvelopeError::UnknownKey { .. }, .. }));
    let both = vault(root.path(), &format!("{NEW},{OLD}"));
    assert_eq!(both.set_field("b", token(), text("b")).unwrap(), Stored::Kept);
    assert_eq!(value(&old, "a", "access_token").unwrap(), "old");
    let stored = new.set_field("a", token(), text("new")).unwrap();
    let Stored::Replaced { why, lost } = stored else { panic!("{stored:?}") };
    assert!(why.starts_with("no key ") && lost == ["user".parse().unwrap()], "{why} {lost:?}");
    assert_eq!(value(&new, "a", "access_token").unwrap(), "new");
    assert_eq!(value(&new, "a", "user"), None);
    assert_eq!(new.set_field("a", token(), text("newer")).unwrap(), Stored::Kept);
}

#[test]
fn what_is_new_is_not_sealed_with_keys_that_open_nothing_beside_it() {
    let root = tempfile::tempdir().unwrap();
    let given = || Value::new(Secret::from_text("x".into())).unwrap();
    let (old, new) = (vault(root.path(), OLD), vault(root.path(), NEW));
    let stored = |vault: &Vault, id| vault.set_field(id, FieldName::access_token(), given());
    assert_eq!(stored(&old, "a").unwrap(), Stored::Kept, "an empty vault has no keys yet");
    let before = content(root.path());
    let error = stored(&new, "b").unwrap_err();
    assert!(matches!(error, VaultError::WrongKeys { .. }), "{error:?}");
    let told = error.to_string();
    assert!(told.starts_with("store `b`: ") && told.contains("a.json: no key "), "{told}");
    assert_eq!(content(root.path()), before);
    stored(&vault(root.path(), &format!("{NEW},{OLD}")), "b").unwrap();
    assert_eq!(stored(&new, "c").unwrap(), Stored::Kept, "one of them opens");
    // What is damaged was sealed with nobody knows which key.
    for id in ["a", "b", "c"] {
        fs::write(root.path().join(format!("{id}.json")), "{}").unwrap();
    }
    assert_eq!(stored(&new, "d").unwrap(), Stored::Kept);
}

#[test]
fn links_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(&root.path().join("vault"), OLD);
    set(&vault, "a", "access_token", "x");
    fs::rename(root.path().join("vault/a.json"), root.path().join("elsewhere.json")).unwrap();
    symlink("../elsewhere.json", root.path().join("vault/a.json")).unwrap();
    assert!(matches!(vault.get("a"), Err(VaultError::NotAFile { .. })));
    assert_eq!(vault.list().unwrap().failed.len(), 1);
    assert_eq!(vault.rotate().unwrap().failed.len(), 1);
}

#[test]
fn rotation_wraps_what_the_first_key_does_not() {
    let root = tempfile::tempdir().unwrap();
    let ids = ["a", "b", "@c/d"];
    ids.iter().for_each(|id| set(&vault(root.path(), OLD), id, "access_token", id));
    let before = vault(root.path(), OLD).list().unwrap();
    let both = vault(root.path(), &format!("{NEW},{OLD}"));
    assert_eq!(both.rotate().unwrap(), Rotation { rewrapped: 3, ..Rotation::default() });
    assert_eq!(both.rotate().unwrap(), Rotation { already: 3, ..Rotation::default() });
    let new = vault(root.path(), NEW);
    assert_eq!(new.list().unwrap(), before);
    for id in ids {
        assert_eq!(value(&new, id, "access_token").unwrap(), id);
        assert!(vault(root.path(), OLD).get(id).is_err());
    }
}

#[test]
fn a_rotation_killed_half_way_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let old = vault(root.path(), OLD);
    let ids = ["a", "b", "c", "d"];
    ids.iter().for_each(|id| set(&old, id, "access_token", id));
    let both = vault(root.path(), &format!("{NEW},{OLD}"));
    // Two are done; the process died while it wrote the temporary file of the third.
    let directory = Directory::find(root.path()).unwrap().unwrap();
    for id in &ids[..2] {
        assert!(matches!(both.rewrap(&directory, &id.parse().unwrap()).unwrap(), Some(Rewrapped::Done(_))));
    }
    let half = fs::read(root.path().join("c.json")).unwrap();
    fs::write(root.path().join("c.json.new"), &half[..half.len() / 2]).unwrap();
    for id in ids {
        assert_eq!(value(&both, id, "access_token").unwrap(), id);
    }
    assert_eq!(both.rotate().unwrap(), Rotation { rewrapped: 2, already: 2, failed: Vec::new() });
    let new = vault(root.path(), NEW);
    ids.iter().for_each(|id| assert_eq!(value(&new, id, "access_token").unwrap(), *id));
    assert!(!root.path().join("c.json.new").exists());
}

#[test]
fn rotation_leaves_what_it_cannot_wrap_and_says_so() {
    let root = tempfile::tempdir().unwrap();
    set(&vault(root.path(), OLD), "a", "access_token", "x");
    let both = vault(root.path(), &format!("{NEW},{OLD}"));
    ["b", "c", "d"].iter().for_each(|id| set(&both, id, "access_token", id));
    for (file, field) in [("c.json", "wrapped_key"), ("d.json", "ciphertext")] {
        let text = fs::read_to_string(root.path().join(file)).unwrap();
        let field = format!("\"{field}\": \"");
        let at = text.find(&field).unwrap() + field.len();
        let other = if &text[at..=at] == "A" { "B" } else { "A" };
        fs::write(root.path().join(file), format!("{}{other}{}", &text[..at], &text[at + 1..])).unwrap();
    }
    let before = content(root.path());
    let rotation = vault(root.path(), NEW).rotate().unwrap();
    assert_eq!((rotation.rewrapped, rotation.already), (0, 1));
    let failed: Vec<&str> = rotation.failed.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(failed, ["a", "c", "d"]);
    assert!(rotation.failed[0].why.contains("no key"), "{rotation:?}");
    assert_eq!(content(root.path()), before);
}

#[test]
fn a_rotation_goes_on_beside_writers() {
    let root = tempfile::tempdir().unwrap();
    let opened = [OLD, NEW].map(|first| vault(root.path(), &format!("{first},{OLD},{NEW}")));
    thread::scope(|scope| {
        scope.spawn(|| (0..30).for_each(|at| set(&opened[0], "a", &format!("field_{at}"), "x")));
        scope.spawn(|| (0..30).for_each(|_| assert_eq!(opened[1].rotate().unwrap().failed, [])));
    });
    assert_eq!(opened[0].get("a").unwrap().unwrap().names().count(), 30);
}

#[test]
fn no_write_is_lost_between_two_writers() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("vault");
    let opened = [vault(&path, OLD), vault(&path, OLD)];
    let watched = Vault::generation_file(&path).unwrap();
    thread::scope(|scope| {
        for (which, vault) in opened.iter().enumerate() {
            scope.spawn(move || (0..20).for_each(|at| set(vault, "a", &format!("field_{which}_{at}"), "x")));
        }
        // A reader needs no lock and sees a whole record, or none yet.
        scope.spawn(|| (0..200).for_each(|_| assert!(opened[0].get("a").is_ok())));
    });
    assert_eq!(opened[0].get("a").unwrap().unwrap().names().count(), 40);
    assert!(generation(&watched) > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn what_is_set_is_what_is_there(
        steps in proptest::collection::vec(("(@[ab]/)?[ab]", "[xy]", proptest::option::of("[ -~]{1,40}")), 1..12),
    ) {
        let root = tempfile::tempdir().unwrap();
        let vault = vault(root.path(), OLD);
        let mut model = std::collections::BTreeMap::<String, std::collections::BTreeMap<String, String>>::new();
        for (id, name, text) in steps {
            match text {
                Some(text) => {
                    set(&vault, &id, &name, &text);
                    model.entry(id).or_default().insert(name, text);
                }
                None => prop_assert_eq!(Vault::remove(&vault.directory, &id).unwrap(), model.remove(&id).is_some()),
            }
        }
        let ids: Vec<String> = vault.list().unwrap().entries.into_iter().map(|entry| entry.id).collect();
        prop_assert_eq!(&ids, &model.keys().cloned().collect::<Vec<_>>());
        for (id, fields) in model {
            let found = vault.get(&id).unwrap().unwrap();
            let names: Vec<String> = found.names().map(ToString::to_string).collect();
            prop_assert_eq!(names, fields.keys().cloned().collect::<Vec<_>>());
            for (name, text) in fields {
                prop_assert_eq!(found.field(&name).unwrap().expose(), text.as_bytes());
            }
        }
    }
}

#[test]
fn a_credential_that_no_sidecar_could_get_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let vault = vault(root.path(), OLD);
    let (long, name) = ("\"".repeat(64 << 10), |name: &str| name.parse::<FieldName>().unwrap());
    let given = |text: &str| Value::new(Secret::from_text(text.into())).unwrap();
    set(&vault, "one", "a", &long);
    let error = vault.set_field("one", name("b"), given(&long)).unwrap_err();
    assert!(matches!(error, VaultError::TooLarge { .. }) && error.to_string().contains("one"), "{error}");
    assert_eq!((value(&vault, "one", "a"), value(&vault, "one", "b")), (Some(long), None));
    set(&vault, "one", "b", "short");
    let longest = MOST - pack(&vault.get("one").unwrap().unwrap()).expose().len() - "_____c".len();
    assert!(vault.set_field("one", name("c"), given(&"x".repeat(longest + 1))).is_err());
    set(&vault, "one", "c", &"x".repeat(longest));
}
