//! What the tests of real clients share: a site (a small internet, a workspace, a state directory), a run in it, and what
//! came of it. The product is only ever used by its command line; nothing here knows how it works.

mod agents;
mod beside;
mod canary;
mod ended;
mod files;
mod gate;
mod held;
mod needs;
mod policies;
mod run;
mod site;

pub use agents::Agents;
pub use beside::{Beside, Left};
pub use canary::Canary;
pub use ended::{Ended, run_to_end};
pub use files::files_below;
pub use gate::{Answer, Plane, ask, ask_at};
pub use held::Held;
pub use needs::{Need, home_has, product, ready};
pub use policies::{allowing, corpus_policy};
pub use run::Run;
pub use site::Site;
