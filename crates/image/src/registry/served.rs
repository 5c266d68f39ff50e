//! Registries that a host of another name serves, as `profiles/registries.txt` lists them. An image keeps the name that was given.

use std::borrow::Cow;

const TABLE: &str = include_str!("../../../../profiles/registries.txt");

/// Where an image is asked for.
pub(super) struct Served<'a> {
    /// The registry, `HOST` or `HOST:PORT`.
    pub(super) registry: &'a str,
    pub(super) repository: Cow<'a, str>,
}

impl<'a> Served<'a> {
    /// Looks up a registry by its name.
    pub(super) fn of(registry: &'a str, repository: &'a str) -> Self {
        match rows().find(|[name, ..]| name.eq_ignore_ascii_case(registry)) {
            Some([_, registry, folder]) if !repository.contains('/') => {
                Self { registry, repository: format!("{folder}/{repository}").into() }
            }
            Some([_, registry, _]) => Self { registry, repository: repository.into() },
            None => Self { registry, repository: repository.into() },
        }
    }
}

fn rows() -> impl Iterator<Item = [&'static str; 3]> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(' ').collect::<Vec<_>>().try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_of_the_table_is_asked_where_it_is_served() {
        let of = |registry, repository| {
            let Served { registry, repository } = Served::of(registry, repository);
            (registry, repository.into_owned())
        };
        assert_eq!(rows().count(), TABLE.lines().filter(|line| !line.starts_with('#')).count());
        for [name, host, folder] in rows() {
            assert_eq!(of(name, "a"), (host, format!("{folder}/a")));
            assert_eq!(of(name, "a/b"), (host, "a/b".into()));
        }
        assert_eq!(of("registry.example.com", "a"), ("registry.example.com", "a".into()));
    }
}
