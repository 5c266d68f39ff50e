//! The raw form of a policy file: every field is optional, and unknown fields are refused. [`crate::Layers`] compiles
//! it into a [`crate::RunSpec`].

mod companion;
mod egress;
mod inbound;
mod limits;
mod llm;
mod provider;
mod proxy;
mod setup;
mod tables;
mod value;
mod variable;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::companion::{CompanionConfig, CompanionEgress, HealthConfig, ResourcesConfig};
pub use self::egress::{AllowConfig, DenyConfig, EgressConfig, EgressDefault, Scrub};
pub use self::inbound::InboundConfig;
pub use self::limits::LimitsConfig;
pub use self::llm::{BudgetConfig, LlmConfig, PriceConfig};
pub use self::provider::{InjectConfig, LlmFormat, Placeholders, ProviderConfig, RateConfig};
pub use self::proxy::ProxyConfig;
pub use self::setup::SetupConfig;
use self::tables::Tables;
pub use self::tables::from_json;
use self::value::word;
pub use self::value::{Number, OneOrMany};
pub use self::variable::VariableConfig;
use crate::backend::{Backend, Wiring};
use crate::choice::words_or_null;
use crate::mounts::{MountMode, WorkspaceMode};

/// One policy file: what a run is, and what it may do.
// With `remote`, what is derived are functions of the type itself, which the traits below call.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, remote = "Self", expecting = "a table of a policy's fields")]
#[schemars(!remote)]
pub struct RunConfig {
    /// The kind of sandbox: `linux` (the default), `container` (the default with an image), `docker` or `process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = words_or_null::<Backend>()))]
    pub backend: Option<String>,
    /// How the sandbox's network reaches the sidecar: `redirect` (the default) or `veth`, which takes root.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = words_or_null::<Wiring>()))]
    pub wiring: Option<String>,
    /// The IPv4 network out of which allowed names get their addresses inside, 198.18.0.0/15 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_addresses: Option<String>,
    /// The image whose files are the root, by its name in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where the command starts, an absolute path inside; the workspace by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The folder the command works in, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceConfig>,
    /// How long the run may take, as in `30m`; 30 minutes at most unless a managed policy sets another bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Whether the command gets a terminal of its own.
    #[serde(default, deserialize_with = "word", skip_serializing_if = "Option::is_none")]
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
    /// Labels of your own, by which the run is found again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The resource limits of the run.
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
    /// Whether the command may search the web: by the first of the built-in providers for it whose credential is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub web_search: Option<bool>,
    /// Outside services of your own.
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
    /// Ports of the command that may be reached from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inbound: Vec<InboundConfig>,
}

impl<'de> Deserialize<'de> for RunConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(Tables(deserializer))
    }
}

impl Serialize for RunConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// `workspace = "DIR"`, or a table with `path` and `mode`.
#[derive(Clone, Debug, Serialize, JsonSchema, PartialEq)]
#[serde(untagged)]
pub enum WorkspaceConfig {
    /// Only the folder; it is writable.
    Path(String),
    /// The folder and how it may be used.
    Table(WorkspaceTable),
}

impl WorkspaceConfig {
    /// Returns the folder, if it names one.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            Self::Path(path) => Some(path),
            Self::Table(table) => table.path.as_deref(),
        }
    }
}

impl<'de> Deserialize<'de> for WorkspaceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = WorkspaceConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a folder's path in quotes, or a table with `path`, `mode` and `open`")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<WorkspaceConfig, E> {
                Ok(WorkspaceConfig::Path(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WorkspaceConfig, A::Error> {
                WorkspaceTable::deserialize(MapAccessDeserializer::new(map)).map(WorkspaceConfig::Table)
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// The long form of `workspace`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceTable {
    /// The folder; the current one by default.
    pub path: Option<String>,
    /// `rw` (the default), `ro`, or `overlay`: writes are kept apart, for `lockgate diff`, `apply` and `discard`.
    #[schemars(extend("enum" = words_or_null::<WorkspaceMode>()))]
    pub mode: Option<String>,
    /// Protected paths that may be written in this run, by their names in the list.
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

/// `[env]`: nothing of the caller's environment enters unless it is named here.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, expecting = "a table, as in { set = { NAME = \"value\" } }")]
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
#[serde(deny_unknown_fields, expecting = "a mount, as in { source = \"~/data\", target = \"/data\" }")]
pub struct MountConfig {
    /// A path of the host; `~` is the caller's home. No symbolic link and no `..` may stand in it.
    pub source: String,
    /// An absolute path inside; the source's own by default.
    pub target: Option<String>,
    /// `ro` (the default) or `rw`.
    #[schemars(extend("enum" = words_or_null::<MountMode>()))]
    pub mode: Option<String>,
}

/// `[[copy]]`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(
    deny_unknown_fields,
    expecting = "a copy, as in { source = \"~/data\", target = \"/home/agent/data\" }"
)]
pub struct CopyConfig {
    /// A path of the host; `~` is the caller's home.
    pub source: String,
    /// An absolute path inside.
    pub target: String,
}

impl CompanionEgress {
    /// Returns these rules as the configuration of a run.
    pub(crate) fn as_of_a_run(&self) -> RunConfig {
        let Self { presets, default, allow, deny } = self.clone();
        let egress = EgressConfig { default, allow, deny, ..EgressConfig::default() };
        RunConfig { presets, egress, ..RunConfig::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_of_a_wrong_type_is_told_what_goes_there() {
        let fields = ["limits", "env", "egress", "llm", "companion", "setup", "mount", "copy", "proxy"];
        for field in fields.into_iter().chain(["provider", "inbound"]) {
            for value in ["\"x\"", "3", "[\"x\"]"] {
                let error = toml::from_str::<RunConfig>(&format!("{field} = {value}")).unwrap_err();
                assert!(!error.message().contains("struct"), "{field} = {value}: {error}");
            }
        }
    }

    #[test]
    fn what_is_wrong_in_a_value_of_many_forms_is_told_as_elsewhere() {
        let refused = |text: &str| toml::from_str::<RunConfig>(text).unwrap_err().to_string();
        for (text, why) in [
            ("workspace = { path = \".\", mod = \"rw\" }", "unknown field `mod`, expected one of `path`"),
            ("[workspace]\npath = \".\"\nmod = \"rw\"", "unknown field `mod`, expected one of `path`"),
            ("workspace = 3", "a folder's path in quotes"),
            ("limits.cpus = [2]", "a number, bare"),
            ("limits.cpus = true", "a number, bare"),
            ("terminal = true", "expected one of `auto`, `always`, `never`, in quotes"),
            ("terminal = \"on\"", "unknown variant `on`, expected one of `auto`, `always`, `never`"),
            ("egress.default = true", "expected `deny` or `open-internet`, in quotes"),
            ("egress.scrub = [\"strict\"]", "expected `strict` or `best-effort`, in quotes"),
            ("[[provider]]\nid = \"x\"\nenv = 3", "one value, or a list of them"),
            ("[[provider]]\nid = \"x\"\nenv = [3]", "expected a string"),
            ("[[provider]]\nid = \"x\"\ninject = { nonesuch = 1 }", "unknown field `nonesuch`"),
            ("[[provider]]\nid = \"x\"\ninject = [{ nonesuch = 1 }]", "unknown field `nonesuch`"),
        ] {
            let error = refused(text);
            assert!(error.contains(why) && !error.contains("untagged"), "{text}: {error}");
        }
    }

    #[test]
    fn the_schema_knows_the_words_the_bounds_and_what_must_be_given() {
        let schema = serde_json::to_value(schemars::schema_for!(RunConfig)).unwrap();
        let most = json!(u32::MAX);
        for (at, known) in [
            ("/title", json!("RunConfig")),
            ("/properties/backend/enum", json!(["linux", "container", "docker", "process", null])),
            ("/properties/wiring/enum", json!(["redirect", "veth", null])),
            ("/$defs/WorkspaceTable/properties/mode/enum", json!(["rw", "ro", "overlay", null])),
            ("/$defs/MountConfig/properties/mode/enum", json!(["ro", "rw", null])),
            ("/$defs/LimitsConfig/properties/enforce/enum", json!(["required", "best-effort", null])),
            ("/$defs/LimitsConfig/properties/pids/maximum", most.clone()),
            ("/$defs/ResourcesConfig/properties/pids/maximum", most.clone()),
            ("/$defs/RateConfig/properties/requests_per_minute/maximum", most.clone()),
            ("/$defs/RateConfig/properties/burst/maximum", most),
            ("/$defs/ProviderConfig/required", json!(["id", "authorized_uris"])),
        ] {
            assert_eq!(schema.pointer(at), Some(&known), "{at}");
        }
        let text = serde_json::to_string_pretty(&schema).unwrap();
        assert_eq!(text.matches("\"uint32\"").count(), text.matches(&u32::MAX.to_string()).count());
    }

    #[test]
    fn every_form_of_a_value_is_understood() {
        let read = |text: &str| toml::from_str::<RunConfig>(text).unwrap();
        let cpus = |number: &str| read(&format!("limits.cpus = {number}")).limits.cpus;
        assert_eq!(cpus("2"), Some(Number::Whole(2)));
        assert_eq!(cpus("0.5"), Some(Number::Part(0.5)));
        assert_eq!(cpus("\"0.5\""), Some(Number::Text("0.5".into())));
        assert_eq!(cpus("-1"), Some(Number::Text("-1".into())));
        assert_eq!(read("workspace = \"x\"").workspace, Some(WorkspaceConfig::Path("x".into())));
        let table = WorkspaceTable { path: None, mode: Some("ro".into()), open: Vec::new() };
        assert_eq!(read("workspace.mode = \"ro\"").workspace, Some(WorkspaceConfig::Table(table)));
        let variables = |text: &str| {
            read(&format!("[[provider]]\nid = \"x\"\nauthorized_uris = []\nenv = {text}")).provider[0]
                .env
                .clone()
        };
        assert_eq!(variables("\"A\""), Some(OneOrMany::One("A".into())));
        assert_eq!(variables("[\"A\", \"B\"]"), Some(OneOrMany::Many(vec!["A".into(), "B".into()])));
        // Serialising and parsing again gives the same value.
        let whole = read(
            "workspace.mode = \"ro\"\nlimits.cpus = 0.5\n[[provider]]\nid = \"x\"\nauthorized_uris = []\nenv = [\"A\"]",
        );
        let json = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<RunConfig>(&json).unwrap(), whole);
    }
}
