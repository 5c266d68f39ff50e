//! What responses are searched for. It grows while some of them are under way: what one request carries to an upstream, an older
//! response may tell.

use std::cell::RefCell;
use std::rc::Rc;

use credential::Needles;

/// The needles of the values that were ever held here. A clone has what is added later as well.
#[derive(Clone, Debug)]
pub(crate) struct LiveNeedles(Rc<RefCell<Needles>>);

impl LiveNeedles {
    /// Returns the needles of now.
    pub(crate) fn now(&self) -> Needles {
        self.0.borrow().clone()
    }

    /// Returns the needles of now, if they are not the `known` ones.
    pub(crate) fn newer_than(&self, known: &Needles) -> Option<Needles> {
        let now = self.0.borrow();
        (!now.is_same_as(known)).then(|| now.clone())
    }

    /// Replaces them, in all clones.
    pub(crate) fn replace(&self, needles: Needles) {
        *self.0.borrow_mut() = needles;
    }
}

impl From<Needles> for LiveNeedles {
    fn from(needles: Needles) -> Self {
        Self(Rc::new(RefCell::new(needles)))
    }
}
