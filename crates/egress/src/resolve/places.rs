//! Places for what is asked of name servers at once: each question takes descriptors, and keeps them for seconds if no server answers.
//!
//! One domain takes no more than half of them, or those of one look-up, so that names of a silent one leave others room.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection_slots::LOOK_UP;

/// The places, counted in descriptors.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    all: Arc<Semaphore>,
    /// Those of each domain of which a name is asked for or waits.
    of_domains: RefCell<HashMap<String, Weak<Semaphore>>>,
}

/// The places of one look-up, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _of_domain: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Places {
    /// So many, or those of one look-up if that is more.
    pub(super) fn new(descriptors: usize) -> Self {
        let most = descriptors.max(LOOK_UP);
        Self { most, all: Arc::new(Semaphore::new(most)), of_domains: RefCell::default() }
    }

    /// Waits until there are so many places for a look-up of a name. The domain's come first: who waits for those holds no others.
    pub(super) async fn take(&self, name: &str, descriptors: u32) -> Place {
        let of_domain = self.of_domain(name).acquire_many_owned(descriptors).await.ok();
        let of_all = Arc::clone(&self.all).acquire_many_owned(descriptors).await.ok();
        Place { _of_domain: of_domain, _of_all: of_all }
    }

    fn of_domain(&self, name: &str) -> Arc<Semaphore> {
        let mut domains = self.of_domains.borrow_mut();
        let domain = domain(name);
        if let Some(known) = domains.get(domain).and_then(Weak::upgrade) {
            return known;
        }
        domains.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new((self.most / 2).max(LOOK_UP)));
        domains.insert(domain.to_owned(), Arc::downgrade(&places));
        places
    }
}

/// Returns the last two labels of a name. Where others share them, as below `co.uk`, they share the places.
fn domain(name: &str) -> &str {
    let ends = name.rmatch_indices('.').nth(1);
    ends.map_or(name, |(dot, _)| &name[dot + 1..])
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn one_domain_takes_half_and_no_more_are_taken_than_there_are() {
        let places = Places::new(4 * LOOK_UP);
        let take = |name| places.take(name, LOOK_UP as u32).now_or_never();
        let silent: Vec<Place> = ["a.silent.example", "b.silent.example"].map(|it| take(it).unwrap()).into();
        assert!(take("c.silent.example").is_none() && take("silent.example").is_none());
        let others = ["a.other.example", "localhost"].map(|it| take(it).unwrap());
        assert!(take("b.third.example").is_none(), "there are no more");
        drop(silent);
        assert!(take("b.third.example").is_some() && take("c.silent.example").is_some());
        drop(others);
        assert_eq!(places.all.available_permits(), 4 * LOOK_UP);
        // Who waits in vain holds none, and what is not used is forgotten.
        assert!(take("d.fourth.example").is_some());
        assert_eq!(places.of_domains.borrow().len(), 1);
    }

    #[test]
    fn a_domain_is_two_labels() {
        for (name, of) in [("example", "example"), ("a.example", "a.example"), ("c.b.a.example", "a.example")]
        {
            assert_eq!(domain(name), of);
        }
    }
}
