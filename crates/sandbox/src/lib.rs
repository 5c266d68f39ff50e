//! Sandboxes: a plan, which changes nothing, the init that carries it out, the backends, and the undo log.
//!
//! This crate is the agent's side. It cannot name a secret, because it does not depend on the crates that hold one. It meets the
//! egress side in a few bound sockets, handed over before the command starts; at an engine, in multiplexed streams of frames; for
//! companions, in a broker that hands out sockets during the run.

mod alias;
mod apart;
mod caller;
mod changes;
mod confine;
mod cover_watch;
mod descent;
mod docker;
mod doctor;
mod environment;
mod error;
mod event;
mod failure;
mod file_copy;
mod file_id;
mod file_system;
mod further_authorities;
mod grace;
mod handshake;
mod host;
mod host_path;
mod image;
mod init_loop;
mod launch;
mod linux;
mod mounted;
mod need;
mod null_streams;
mod oom_score;
mod open_file;
mod orphans;
mod over;
mod path_identity;
mod plan;
mod priority;
mod process;
mod process_files;
mod process_stamp;
mod protect;
mod reap;
mod regular;
mod rlimit;
mod run_network;
mod seccomp;
mod setup;
mod socket_broker;
mod source;
mod spawn;
mod start;
mod started;
mod step;
mod subordinate;
mod supervise;
mod terminal_name;
mod tool;
mod undo;
mod unwind;

pub use apart::apart;
pub use caller::{Caller, maps_every_id};
pub use changes::{Applied, Change, Changes, LeftOut, What};
pub use confine::{KeepsOpen, Sidecar, confine_sidecar, start_sidecar};
pub use docker::{
    Accounts, Channel, ENGINE_LATE, FirstSteps, Frames, INSIDE_ACCEPTS, INSIDE_AGENT, INSIDE_SIDECAR,
    LONGEST_FRAME, LONGEST_SLOT_WAIT, Outward, POOL_MAX_IDLE, examine_engine, find_engine, follow_volumes,
    frame, is_beside_sidecars, is_of_sidecars, outward, probe_ports, read_accounts, refuse_hidden_sources,
    refuse_unreachable, run_engine_agent, wire_run_network,
};
pub use doctor::{Check, Verdict, examine, examine_subordinate_ids};
pub use environment::programs_of;
pub use error::Error;
pub use event::{Event, SetUpEnd};
pub use failure::Failure;
pub use further_authorities::FurtherAuthorities;
pub use handshake::{ListenerSet, await_ready, receive_listeners, report_ready};
pub use host::{Host, LimitsHere};
pub use image::RootImage;
pub use launch::{Stdio, TerminalSize};
pub use linux::{Ahead, refuse_unmappable, within_subordinate_ids};
pub use mounted::{Mount, Mounts, MountsOnceRead, Place, first_by_another_name};
pub use need::{DOCTOR_TELLS, MORE_PROCESSES, NO_RUN_WITHIN, Need, SEE_DOCTOR, is_in_a_run};
pub use path_identity::PathIdentity;
pub use plan::additions::Additions;
pub use plan::companion::plan_companion;
pub use plan::engine::{EngineAt, EngineImage, EngineRun};
pub use plan::identity::takes_account;
pub use plan::ids::{IdMapping, IdRange, Identity, MappedId};
pub use plan::limits::LimitsPlan;
pub use plan::{Plan, plan, refuse_foreign_process_files};
pub use process_stamp::ProcessStamp;
pub use protect::{is_protected, leads_to_listed};
pub use reap::{Reaper, Unwound};
pub use regular::{FilesBelow, is_folder, is_there, open_without_links, regular_below};
pub use run_network::{RunNetwork, Visit, receive_line};
pub use socket_broker::{HealthLine, Probed, SocketBroker, ask_for_socket, take_socket};
pub use start::start;
pub use started::{EndingInit, InitChannels, SidecarStart, Started, Taken};
pub use step::{Cache, PrivateFile, Step};
pub use subordinate::{NoSubordinateIds, SubordinateIds};
pub use sys::cgroup::Usage;
pub use sys::descriptor::{message_pair, receive as receive_descriptors, send_at_once};
pub use sys::environment::wipe as wipe_variable;
pub use sys::listener::refuse_descriptors;
pub use sys::memory::give_back as trim_heap;
pub use sys::notify::Writes;
pub use sys::peer::Peers;
pub use sys::poll::wait as wait_for;
pub use sys::priority::leave_real_time;
pub use sys::privilege::{dumpable, undumpable};
pub use sys::process::{Exit, own_group};
pub use sys::signal::{Signals, TerminalStop, ignore_sigxfsz, is_ignored, let_through, reset_sigchld};
pub use tool::{check_tools, tool_names, tool_with};
pub use undo::{Undo, UndoLog};
