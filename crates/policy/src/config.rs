//! The policy file as it is written: raw, every field optional, unknown fields refused. [`crate::Layers`] compiles
//! it into a [`crate::RunSpec`], which has neither property.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::companion::CompanionConfig;
use crate::expose::VariableConfig;
use crate::inbound::InboundConfig;
use crate::llm::LlmConfig;
use crate::provider_config::ProviderConfig;
use crate::proxy::ProxyConfig;
use crate::rule::Scrub;
use crate::setup::SetupConfig;

/// One policy file: what a run is, and what it may do.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The kind of sandbox: `linux` (the default), `container` (the default with an image), `docker` or `process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// How the sandbox's network reaches the sidecar: `redirect` (the default) or `veth`, which takes root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wiring: Option<String>,
    /// The image whose files are the root, by its name in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where the command starts, an absolute path inside; the workspace if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The folder the command works in, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceConfig>,
    /// How long the run may take, as in `30m`; 30 minutes at most unless a managed policy says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Whether the command gets a terminal of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalConfig>,
    /// Named groups of rules that ship with the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    pub presets: Vec<String>,
    /// Toolchains in the caller's home that enter read-only, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    pub tools: Vec<String>,
    /// Programs whose configuration and caches enter from the caller's home, by name, without the credentials in them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(default)]
    pub builtin_tools: Vec<String>,
    /// The organisation whose keys the run uses, in place of the person's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// Words of one's own by which the run is found again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What the run may use up.
    #[serde(default, skip_serializing_if = "LimitsConfig::is_empty")]
    pub limits: LimitsConfig,
    /// The environment of the command.
    #[serde(default, skip_serializing_if = "EnvConfig::is_empty")]
    pub env: EnvConfig,
    /// Folders and files of the host that are visible inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount: Vec<MountConfig>,
    /// Folders and files of the host that are copied in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<CopyConfig>,
    /// Outside services whose credentials the sidecar puts into requests, by the names that ship with the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
    /// Outside services of one's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provider: Vec<ProviderConfig>,
    /// Proxies on the way out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxy: Vec<ProxyConfig>,
    /// What a run may spend on models.
    #[serde(default, skip_serializing_if = "LlmConfig::is_empty")]
    pub llm: LlmConfig,
    /// Where requests may go.
    #[serde(default, skip_serializing_if = "EgressConfig::is_empty")]
    pub egress: EgressConfig,
    /// Commands that are run in the sandbox before the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<SetupConfig>,
    /// Services beside the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companion: Vec<CompanionConfig>,
    /// Ports of the command's that may be reached from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inbound: Vec<InboundConfig>,
}

/// `workspace = "DIR"`, or a table with `path` and `mode`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum WorkspaceConfig {
    /// Only the folder; it is writable.
    Path(String),
    /// The folder and how it may be used.
    Table(WorkspaceTable),
}

/// The long form of `workspace`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceTable {
    /// The folder; the current one if not said.
    pub path: Option<String>,
    /// `rw` (the default), `ro`, or `overlay`: writes are kept apart, for `lockgate diff`, `apply` and `discard`.
    pub mode: Option<String>,
    /// Protected paths that may be written in this run after all, by their names in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
}

/// When the command gets a terminal.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TerminalConfig {
    /// When standard input and output are one.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// `[limits]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Memory, swap included, as in `1536MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processors, as in `2` or `0.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Number>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// What may be written to the private directories, as in `4GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// `required` (the default) refuses a run whose limits this host cannot enforce; `best-effort` says so and goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<String>,
}

impl LimitsConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A number that may be written bare or as text.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum Number {
    /// `2`
    Whole(u32),
    /// `0.5`
    Part(f64),
    /// `"0.5"`
    Text(String),
}

impl Number {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Whole(n) => n.to_string(),
            Self::Part(n) => n.to_string(),
            Self::Text(t) => t.clone(),
        }
    }
}

/// `[env]`: nothing of the caller's environment enters unless it is named here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EnvConfig {
    /// Variables and their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Variables whose values the caller's environment gives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass: Vec<String>,
    /// Variables of providers, by their names: with `expose = true` one holds the credential itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variable: BTreeMap<String, VariableConfig>,
}

impl EnvConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `[[mount]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MountConfig {
    /// A path of the host; `~` is the caller's home. No symbolic link and no `..` may stand in it.
    pub source: String,
    /// An absolute path inside; the source's own if not said.
    pub target: Option<String>,
    /// `ro` (the default) or `rw`.
    pub mode: Option<String>,
}

/// `[[copy]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CopyConfig {
    /// A path of the host; `~` is the caller's home.
    pub source: String,
    /// An absolute path inside.
    pub target: String,
}

/// `[egress]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EgressConfig {
    /// What happens to a host that no rule names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<EgressDefault>,
    /// The status of a denial on the explicit plane; 403 if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_status: Option<u16>,
    /// What happens to an answer that cannot be searched for a credential: `strict` (the default) refuses it,
    /// `best-effort` lets it pass and says so in the audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Scrub>,
    /// The proxy that everything goes through, by its id; `direct` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_proxy: Vec<String>,
    /// What is allowed. An empty list allows nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowConfig>,
    /// What is denied whatever is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<DenyConfig>,
}

impl EgressConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens to a host that no rule names.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum EgressDefault {
    /// It is refused.
    Deny,
    /// It is allowed if every address it resolves to is public.
    OpenInternet,
}

/// `[[egress.allow]]`: one `url`, or one `host` with its ports.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct AllowConfig {
    /// Scheme, host, port and path in one: exact, or a prefix that ends in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A host pattern; any TCP protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The ports of `host`; 80 and 443 if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u16>>,
    /// With an exact `host`: everything below it as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subdomains: bool,
    /// The methods; all if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// With a `url`: lets `%2F` stand inside a segment.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encoded_slash: bool,
    /// With one exact host: its addresses. It is then not resolved, and they may be private ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<String>>,
}

/// `[[egress.deny]]`: deny beats allow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DenyConfig {
    /// Scheme, host, port and path in one: exact, or a prefix that ends in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A host pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The ports of `host`; all if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<u16>>,
    /// With an exact `host`: everything below it as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subdomains: bool,
    /// The methods; all if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
    /// Told to the agent and to the person who hits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}
