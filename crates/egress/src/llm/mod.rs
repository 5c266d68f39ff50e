//! Models: how many tokens an answer says were used, what that costs, and whether the run may go on asking.

mod account;
mod books;
mod ledger;
mod meter;

pub(crate) use account::Account;
pub use account::{AnswerEnd, use_of_answer};
pub(crate) use books::Asking;
pub use books::ModelUse;
pub(crate) use ledger::{Admitted, Ledger};
