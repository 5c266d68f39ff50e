//! Images, imported from a file of any octets. Nothing beside the store changes.

use std::path::Path;

use image::{Bounds, Command, ImageConfig, Overrides, Owners, Reference, Store};

/// Imports the input as an image, and reads it as a configuration and as a name of one.
pub fn image(octets: &[u8]) {
    let _ = ImageConfig::parse(octets);
    let _ = Command::parse(octets);
    if let Ok(text) = std::str::from_utf8(octets)
        && let Ok(reference) = text.parse::<Reference>()
    {
        // A reference prints in one way, which parses as the same.
        let again: Reference = reference.to_string().parse().expect("a reference that was read");
        assert_eq!(again, reference);
    }
    let folder = tempfile::tempdir().expect("a directory");
    let source = folder.path().join("source");
    std::fs::write(&source, octets).expect("the source");
    let store = Store::open(&folder.path().join("store")).expect("a store");
    let overrides = Overrides {
        name: "fuzzed".parse().ok(),
        config: None,
        bounds: Bounds { octets: 1 << 20, entries: 1000 },
        owners: Owners::Caller,
    };
    let _ = image::import(&store, &source, &overrides);
    let mut beside: Vec<_> = names(folder.path());
    beside.sort();
    assert_eq!(beside, ["source", "store"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
