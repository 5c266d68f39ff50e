//! The public names of the package services that the world serves, so that their clients work without another index configured. They come
//! from the product's own preset, the only file that names those services.

use std::sync::LazyLock;

const PRESETS: &str = include_str!("../../../profiles/presets.toml");

/// The names, one per service and one per file host where that differs.
pub(crate) struct Public {
    pub(crate) node: String,
    pub(crate) python: String,
    pub(crate) python_files: String,
    pub(crate) rust_index: String,
    pub(crate) rust_files: String,
}

/// The names, read once.
pub(crate) static PUBLIC: LazyLock<Public> = LazyLock::new(|| {
    // A preset in another order gives names that nobody requests, and the tests of real clients fail.
    let apex = |index: usize| apexes().get(index).copied().unwrap_or_default();
    let (node, python, python_files, rust) = (apex(0), apex(2), apex(3), apex(4));
    Public {
        node: format!("registry.{node}"),
        python: python.to_owned(),
        python_files: format!("files.{python_files}"),
        rust_index: format!("index.{rust}"),
        rust_files: format!("static.{rust}"),
    }
});

impl Public {
    /// Returns all names.
    pub(crate) fn all(&self) -> [&str; 5] {
        [&self.node, &self.python, &self.python_files, &self.rust_index, &self.rust_files]
    }
}

/// Returns the hosts of the preset, in its order.
fn apexes() -> &'static [&'static str] {
    static APEXES: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let section = PRESETS.split("[preset.package-registries]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        section.split("host = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
    });
    &APEXES
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_names_are_found() {
        let names = super::PUBLIC.all();
        assert!(names.iter().all(|name| name.contains('.') && !name.contains('"')), "{names:?}");
    }
}
