//! The shared parts of the tests with real clients: a site (a small internet, a workspace, a state directory), a run in it, and the run's
//! result. They use the product by its command line alone.

mod agents;
mod at_terminal;
mod beside;
mod canary;
mod ended;
mod files;
mod gate;
mod held;
mod needs;
mod policies;
mod run;
mod shell;
mod site;

pub use agents::Agents;
pub use at_terminal::{at_terminal, at_terminal_of};
pub use beside::{Beside, Left};
pub use canary::Canary;
pub use ended::{Ended, run_to_end};
pub use files::files_below;
pub use gate::{Answer, Plane, ask, ask_at};
pub use held::Held;
pub use needs::{Need, home_has, product, ready};
pub use policies::{allowing, bearer_provider, corpus_policy, provider};
pub use run::Run;
pub use shell::{AWAIT, Shell};
pub use site::Site;
