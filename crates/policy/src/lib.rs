//! The policy of a run: the run spec, host patterns, address classes, rules and the one decision, [`Policy::decide`].
//!
//! Every function is pure. This crate opens no file and no socket, and reads no clock and no environment, so a decision can be
//! tested, fuzzed and explained exactly as it is enforced.

mod address;
mod advice;
pub mod agreed;
mod apply;
mod asked;
mod backend;
mod carriage;
mod choice;
mod claim;
mod companion;
mod companion_ports;
mod compile;
mod decide;
mod decide_name;
mod denial;
mod denied_addresses;
mod enforcement;
mod error;
mod expose;
mod good_for;
mod hint;
mod hostname;
mod in_force;
mod inbound;
mod ip_family;
mod label;
mod layer;
mod limits;
mod llm;
mod location;
mod mounts;
mod name_network;
mod nearest;
mod organisation;
mod origin;
mod path;
mod path_best_fit;
mod path_levels;
mod path_reach;
mod path_readings;
mod pattern;
mod preset;
mod provider;
mod provider_id;
mod proxy;
mod quantity;
mod reach;
mod rule;
mod rules;
mod run_id;
mod search;
mod settle;
mod setup;
mod shell_quoting;
mod spec;
mod target;
mod timeout;
mod trust;
mod unrequested_search;
mod variable;
mod way_out;
mod written;

pub use address::AddressClass;
pub use asked::{Asked, Plane, View};
pub use backend::{Backend, Wiring};
pub use carriage::Carriage;
pub use companion::Companion;
pub use decide::Grant;
pub use denial::{Denial, Guard};
pub use enforcement::Enforcement;
pub use error::ConfigError;
pub use hint::{Hint, SuggestedPort, SuggestedRule, on_this_machine};
pub use hostname::{Host, Hostname};
pub use inbound::Inbound;
pub use ip_family::IpFamily;
pub use label::Label;
pub use layer::{Layer, Layers, Merged};
pub use limits::{Limits, LimitsAsked};
pub use llm::{Budget, MicroUsd, Spending, Tokens};
pub use mounts::{CopyIn, MountMode, MountPoint, WorkspaceMode};
pub use name_network::NameNetwork;
pub use nearest::{did_it_mean, did_you_mean};
pub use organisation::OrganisationName;
pub use origin::Origin;
pub use path::Path;
pub use pattern::HostPattern;
pub use preset::{
    Preset, preset_for, preset_names, provider_covering, provider_fields, provider_for, provider_names,
    provider_variables, web_searches,
};
pub use provider::{Injection, InjectionSite, Provider, Rate};
pub use provider_id::ProviderId;
pub use proxy::{Proxies, Proxy, ProxyScheme, ProxyUrlError};
pub use quantity::{ByteSize, CpuCount, Span};
pub use rule::RuleName;
pub use rules::Policy;
pub use run_id::{RunId, RunIdError};
pub use setup::{OnFailure, Setup};
pub use shell_quoting::{shell_word, visible_shell_word};
pub use spec::{EnvSpec, RunSpec, Terminal};
pub use target::{Authority, Method, Port, Scheme, Target};
pub use timeout::TimeoutCeiling;
pub use written::{
    AllowConfig, BudgetConfig, CompanionConfig, CompanionEgress, CopyConfig, DenyConfig, EgressConfig,
    EgressDefault, EnvConfig, HealthConfig, InboundConfig, InjectConfig, LimitsConfig, LlmConfig, LlmFormat,
    MountConfig, Number, OneOrMany, Placeholders, PriceConfig, ProviderConfig, ProxyConfig, RateConfig,
    ResourcesConfig, RunConfig, Scrub, SetupConfig, TerminalConfig, VariableConfig, WorkspaceConfig,
    WorkspaceTable, from_json,
};
