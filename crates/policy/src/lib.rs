//! What may happen: the run spec, host patterns, address classes, rules and the one decision, [`Policy::decide`].
//!
//! Everything here is a plain function of its arguments. This crate opens no file and no socket, reads no clock and
//! no environment, so that a decision can be tested, fuzzed and explained exactly as it will be enforced.

mod address;
mod apply;
mod asked;
mod companion;
mod config;
mod decide;
mod denial;
mod error;
mod expose;
mod hostname;
mod inbound;
mod label;
mod layer;
mod llm;
mod organisation;
mod path;
mod pattern;
mod place;
mod preset;
mod provider;
mod provider_config;
mod proxy;
mod quantity;
mod reach;
mod rule;
mod run_id;
mod setup;
mod spec;
mod target;
mod trust;

pub use address::AddressClass;
pub use asked::{Asked, Plane, View};
pub use companion::{Companion, CompanionConfig, CompanionEgress, HealthConfig, ResourcesConfig};
pub use config::{
    AllowConfig, CopyConfig, DenyConfig, EgressConfig, EgressDefault, EnvConfig, LimitsConfig, MountConfig,
    Number, RunConfig, TerminalConfig, WorkspaceConfig, WorkspaceTable,
};
pub use decide::{Carriage, Grant};
pub use denial::{Denial, Guard};
pub use error::ConfigError;
pub use expose::VariableConfig;
pub use hostname::{Host, Hostname};
pub use inbound::{Inbound, InboundConfig};
pub use label::Label;
pub use layer::{Layer, Layers, Merged, Origin};
pub use llm::{Budget, BudgetConfig, LlmConfig, MicroUsd, PriceConfig, Spending, Tokens};
pub use organisation::OrganisationName;
pub use path::Path;
pub use pattern::HostPattern;
pub use place::{CopyIn, MountMode, MountPoint, WorkspaceMode};
pub use preset::{Preset, preset_names, provider_for, provider_names, provider_variables};
pub use provider::{Injection, Place, Provider, ProviderId, Rate};
pub use provider_config::{InjectConfig, LlmFormat, OneOrMany, Placeholders, ProviderConfig, RateConfig};
pub use proxy::{Proxies, Proxy, ProxyConfig, ProxyScheme};
pub use quantity::{ByteSize, CpuCount, Span};
pub use rule::{Policy, RuleName, Scrub};
pub use run_id::{RunId, RunIdError};
pub use setup::{OnFailure, Setup, SetupConfig};
pub use spec::{Backend, Enforcement, EnvSpec, Limits, RunSpec, TIMEOUT_CEILING, Terminal, Wiring};
pub use target::{Authority, Method, Port, Scheme, Target};
