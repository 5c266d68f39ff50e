//! The promises Lockgate makes about what runs inside it, and the bench that proves each of them from outside.
//!
//! Tests use the product only as a person would: by its command line. The `probe` program, copied into the workspace, reports what happens
//! inside. Every promise has one file under `tests/`, with a positive control that shows the probe succeeds outside a sandbox.

mod attempt;
mod bench;
mod canary;
mod engine;
mod flip;
mod host;
mod image;
mod inventory;
mod made_image;
mod network;
mod processes;
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
pub use host::{Needs, is_root, ready};
pub use inventory::{
    command_lines, control_groups, files_under, mount_points, processes_named, vanishes, within,
};
pub use made_image::make_image;
pub use network::Network;
pub use processes::{descendants, innermost, sidecar};
pub use program::{Ended, Live, run};
pub use promises::{PROMISES, Promise, promised};
pub use run::Run;
pub use seen::Seen;
pub use table::table;
pub use world::World;
