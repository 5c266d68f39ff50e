//! The promises Lockgate makes about what runs inside it, and the bench on which each is proven from outside.
//!
//! The product is only ever used as a person would: by its command line. What happens inside is told by the `probe`
//! program, copied into the workspace. Every promise has one file under `tests/`, and a positive control that shows
//! the probe succeeds where nothing holds it.

mod attempt;
mod bench;
mod canary;
mod engine;
mod flip;
mod host;
mod image;
mod inventory;
mod network;
mod program;
mod promises;
mod run;
mod seen;
mod table;
mod world;

pub use attempt::Attempt;
pub use bench::{Backend, Bench};
pub use canary::Canary;
pub use engine::{
    ask_engine, containers_of, is_engine_without_root, kill_containers, makes_user_root, objects,
    say_to_container,
};
pub use flip::{Came, while_flipping};
pub use host::{Needs, is_root, program_path, ready};
pub use inventory::{
    command_lines, control_groups, files_under, mount_points, processes_named, vanishes, within,
};
pub use network::Network;
pub use program::{Ended, Live, run};
pub use promises::{PROMISES, Promise, promised};
pub use run::Run;
pub use seen::Seen;
pub use table::table;
pub use world::World;
