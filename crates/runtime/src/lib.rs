//! The life of a run: the only crate that knows both the sandbox and the sidecar, and ties their ends together.
//!
//! ```text
//! settings ─► plan ─┬─► init ─ listeners ─┐
//!                   └─► sidecar ◄─────────┴─ ready ─► command ─► outcome ─► record
//! ```
//! One process owns a run and everything it acquired. It has no threads until it has forked; then only those that copy the standard
//! streams.

mod alternate_screen;
mod approval;
mod audit_end;
mod authorities;
mod builtin;
mod changes;
mod companion;
mod companion_audits;
mod doctor;
mod end_signals;
mod ending;
mod engine;
mod error;
mod error_kind;
mod execute;
mod expose;
mod gate;
mod generation_file;
mod given_file;
mod homes;
mod ids;
mod images;
mod inbound;
mod key;
mod key_file;
mod launch;
mod line_start;
mod locality;
mod lock_file;
mod looks;
mod missing;
mod missing_credential;
mod name_files;
mod named_policy;
mod not_taken_back;
mod obeyed;
mod own_places;
mod own_secrets;
mod patient;
mod permission;
mod plan_run;
mod platform;
mod policy_file;
mod private_group;
mod project;
mod prompt;
mod protection;
mod proxy_url;
mod random_ids;
mod record;
mod remedy;
mod removal;
mod report;
mod run;
mod run_journal;
mod run_list;
mod run_lock;
mod set_up_log;
mod settings;
mod sidecar;
mod sidecar_messages;
mod standalone;
mod stash;
mod state;
mod still_there;
mod stop;
mod stranger;
mod streams;
mod subscription;
mod system_keys;
mod system_proxies;
mod taken_image;
mod terminal_relay;
mod unknown_variables;
mod unreadable;
mod value_source;
mod vault;
mod watch;
mod way;
mod without_waiting;

pub use approval::{approve, is_approved, turn_to_approve};
pub use audit_end::AuditEnd;
pub use builtin::BuiltinTool;
pub use changes::{
    FinishedChanges, KeptRun, all_with_changes, apply_changes, changes_of, discard_applied, discard_changes,
    finished_changes_of, keeps_changes, remove_dropped_changes,
};
pub use companion_audits::companion_audits_beside;
pub use credential::{Entry, FailedRecord, FieldName, Listing, Rotation, Stored};
pub use doctor::{FOLDER_CHECK, doctor};
pub use ending::{Ending, Shortage, exit_code_of};
pub use engine::run_engine_sidecar;
pub use error::Error;
pub use error_kind::ErrorKind;
pub use given_file::{Readers, open_given};
pub use images::{Images, PullAsked, look_after_images};
pub use key::{audit_key, audit_public_key};
pub use line_start::ends_a_line_begun;
pub use missing_credential::MissingCredential;
pub use own_secrets::is_own_secret;
pub use patient::Patient;
pub use permission::{Permission, REST, permissions};
pub use plan_run::RunRequest;
pub use policy_file::{LARGEST_POLICY, read_policy_if_there};
pub use project::project_file;
pub use proxy_url::passed_over;
pub use random_ids::new_run_id;
pub use record::{Leftover, Outcome, Requests, RunRecord, RunState, SetUpRecord};
pub use remedy::reached_limit;
pub use report::{Finished, Report};
pub use run::run;
pub use run_list::{RunList, UnreadableRecord};
pub use run_lock::{Reaped, reap_dead};
pub use settings::{Settings, SettingsRequest, Verdict, project_above, workspace};
pub use standalone::{AuditFile, BoundAddresses, SidecarEvent, Standalone, serve_standalone};
pub use state::StateDirectory;
pub use still_there::{Act, StillThere};
pub use stop::stop;
pub use system_keys::{SystemKey, SystemKeys};
pub use unknown_variables::{unknown_variables, unreadable_variable};
pub use unreadable::why_unreadable;
pub use value_source::ValueSource;
pub use vault::{Credentials, Set, refuse_missing};
pub use without_waiting::open_regular;
