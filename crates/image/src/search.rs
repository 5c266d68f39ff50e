//! The search for the manifest of this machine, through indexes that lead to one another.

use crate::error::Error;
use crate::manifest::{Descriptor, Document, Index, Manifest, malformed};

/// How deep indexes may be nested, and how many documents are looked at below the first.
const DEEPEST: u32 = 4;
const MOST_DOCUMENTS: u32 = 16;

/// A search under way. Its caller fetches each document.
pub(crate) struct Search {
    /// What is left to look at, the next last, and how deep each lies.
    left: Vec<(Descriptor, u32)>,
    /// How many documents may still be looked at.
    documents: u32,
    /// Why an index led nowhere.
    nothing: Option<Error>,
}

impl Search {
    /// Begins with an index.
    pub(crate) fn of(index: &Index) -> Result<Self, Error> {
        let mut search = Self { left: Vec::new(), documents: MOST_DOCUMENTS, nothing: None };
        search.enter(index, 1)?;
        Ok(search)
    }

    /// Returns what is to be looked at next. It fails if nothing is left.
    pub(crate) fn next(&mut self) -> Result<(Descriptor, u32), Error> {
        let next = self.left.pop().filter(|_| self.documents > 0);
        self.documents = self.documents.saturating_sub(1);
        let too_many = || malformed("index", "too many indexes lead to one another");
        next.ok_or_else(|| self.nothing.take().unwrap_or_else(too_many))
    }

    /// Goes on with what [`next`](Self::next) gave, if it is no image.
    pub(crate) fn go_on(&mut self, document: Document, depth: u32) -> Result<Option<Manifest>, Error> {
        match document {
            Document::Manifest(manifest) if manifest.is_artifact() => {
                let none =
                    || malformed("index", "it leads to what is no image, as a signature, and to no image");
                self.nothing.get_or_insert_with(none);
            }
            Document::Manifest(manifest) => return Ok(Some(manifest)),
            Document::Index(_) if depth >= DEEPEST => {
                return Err(malformed("index", "too many indexes lead to one another"));
            }
            Document::Index(index) => {
                if let Err(error) = self.enter(&index, depth + 1) {
                    // Another may have what this one has not.
                    self.nothing.get_or_insert(error);
                }
            }
        }
        Ok(None)
    }

    /// Goes on if an image is for another machine: only its configuration tells where an index names no platform. Any other failure ends
    /// the search.
    pub(crate) fn unless_elsewhere<T>(&mut self, image: Result<T, Error>) -> Result<Option<T>, Error> {
        match image {
            Err(error @ Error::OtherMachine { .. }) => {
                self.nothing.get_or_insert(error);
                Ok(None)
            }
            image => image.map(Some),
        }
    }

    fn enter(&mut self, index: &Index, depth: u32) -> Result<(), Error> {
        let found = index.here()?;
        self.left.extend(found.into_iter().rev().map(|descriptor| (descriptor.clone(), depth)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::descriptor;
    use crate::manifest::{EMPTY, IMAGES};

    #[test]
    fn an_artifact_without_a_platform_does_not_end_the_search() {
        let one = descriptor("");
        let manifest = |kind: &str, of: &str| {
            let config = one.replace("\"m\"", &format!("\"{of}\""));
            Document::parse(format!(r#"{{{kind}"config":{config},"layers":[{one}]}}"#).as_bytes()).unwrap()
        };
        let index = format!(r#"{{"manifests":[{one},{one},{one}]}}"#);
        let Document::Index(index) = Document::parse(index.as_bytes()).unwrap() else { panic!("no index") };
        let mut search = Search::of(&index).unwrap();
        let mut look = |document| {
            let (_, depth) = search.next().unwrap();
            search.go_on(document, depth).unwrap()
        };
        assert!(look(manifest("", EMPTY)).is_none());
        assert!(look(manifest(r#""artifactType":"application/x","#, IMAGES[0])).is_none());
        assert!(look(manifest(&format!(r#""artifactType":"{}","#, IMAGES[0]), IMAGES[0])).is_some());
        assert!(search.next().unwrap_err().to_string().contains("no image"));
    }

    #[test]
    fn an_index_of_another_machine_does_not_end_the_search() {
        let arm = descriptor(r#","platform":{"os":"linux","architecture":"arm64"}"#);
        let index = |inner: &[&str]| match Document::parse(
            format!(r#"{{"manifests":[{}]}}"#, inner.join(",")).as_bytes(),
        ) {
            Ok(Document::Index(index)) => index,
            _ => panic!("no index"),
        };
        let mut search = Search::of(&index(&[&descriptor(""), &descriptor("")])).unwrap();
        let (_, depth) = search.next().unwrap();
        assert!(search.go_on(Document::Index(index(&[&arm])), depth).unwrap().is_none());
        assert!(search.next().is_ok());
        assert!(search.next().unwrap_err().to_string().contains("linux/arm64"));
    }

    #[test]
    fn an_image_of_another_machine_does_not_end_the_search() {
        let one = descriptor("");
        let Ok(Document::Index(index)) = Document::parse(format!(r#"{{"manifests":[{one}]}}"#).as_bytes())
        else {
            panic!("no index")
        };
        let mut search = Search::of(&index).unwrap();
        search.next().unwrap();
        let other = || Err::<(), _>(Error::OtherMachine { platform: "linux/arm64".into() });
        assert_eq!(search.unless_elsewhere(other()).unwrap(), None);
        assert_eq!(search.unless_elsewhere(Ok(1)).unwrap(), Some(1));
        assert!(search.unless_elsewhere(Err::<(), _>(malformed("configuration", "broken"))).is_err());
        assert!(search.next().unwrap_err().to_string().contains("it is for linux/arm64, and this machine"));
    }
}
