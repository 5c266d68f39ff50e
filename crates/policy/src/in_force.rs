//! The rows of the layers as a compiled run has them. What a run takes from elsewhere than the last layer that says it, or not at all, is
//! put right here, so that the rows, read as one file beside the same managed policy, are the policy of the run. What that policy's rules
//! leave of the others', and its limits of those of companions, is not worked in.

use std::collections::BTreeSet;

use crate::apply::apply;
use crate::layer::{DEFAULT, Layer, Layers, Merged, flatten};
use crate::origin::Origin;
use crate::spec::RunSpec;
use crate::written::{EgressConfig, LlmConfig, RunConfig, WorkspaceConfig, WorkspaceTable};

/// The lists whose entries have names, and the field of an entry that is its name. A later layer's entry replaces an earlier one.
const NAMED: [(&str, &str); 3] = [("provider", "id"), ("companion", "name"), ("proxy", "id")];

impl Layers {
    /// Returns the rows of [`origins`](Self::origins) with the values that the run has which these layers compile to, each with the
    /// layer that decided it, and without what the run does not have.
    #[must_use]
    pub fn in_force(&self, spec: &RunSpec) -> Vec<Merged> {
        let mut rows = self.origins();
        self.put_right(spec, &mut rows);
        leave_out_replaced(&mut rows);
        // The first price that covers a model counts, and those of a later layer come before.
        let prices: Vec<_> = rows.extract_if(.., |row| row.field == "llm.price").collect();
        rows.extend(prices.into_iter().rev());
        if self.forbidden_searches().is_empty() {
            // A later layer names a search, which one layer cannot do beside it.
            rows.retain(|row| row.field != "web_search" || row.value.as_bool() != Some(false));
        }
        rows
    }

    /// Replaces each value that the run does not have.
    fn put_right(&self, spec: &RunSpec, rows: &mut Vec<Merged>) {
        let had = leaves(&spec.written());
        let lines = rows.iter().filter(|row| had.iter().any(|(field, _)| *field == row.field));
        let lines: String = lines.map(|row| format!("{} = {}\n", row.field, row.value)).collect();
        let Ok(Some(said)) = toml::from_str(&lines).map(|config| alone(&config)) else { return };
        for (field, value) in had.iter().filter(|leaf| !said.contains(leaf)) {
            let (value, origin) = self.decided(field, value);
            let row = Merged { field: field.clone(), value, origin };
            match rows.iter_mut().find(|old| old.field == row.field) {
                Some(old) => *old = row,
                None => rows.push(row),
            }
        }
    }

    /// Returns a value that the run has as the layer wrote it that decided it, and that layer. It is another than the last that says one
    /// by a preset of a later layer, or because it holds the run to its own.
    fn decided(&self, field: &str, value: &toml::Value) -> (toml::Value, String) {
        let may_decide = |layer: &&Layer| {
            field == "egress.default" || matches!(layer.origin, Origin::Managed(_) | Origin::Bound(_))
        };
        for Layer { origin, config } in self.0.iter().rev().filter(may_decide) {
            let config = scalars(config);
            let written = leaves(&config).into_iter().find(|leaf| leaf.0 == field);
            let says = written.is_some() || (field == "egress.default" && !config.presets.is_empty());
            let is_it = |leaf: &(String, toml::Value)| leaf.0 == field && leaf.1 == *value;
            if says && alone(&config).is_some_and(|leaves| leaves.iter().any(is_it)) {
                return (written.map_or_else(|| value.clone(), |leaf| leaf.1), origin.to_string());
            }
        }
        (value.clone(), DEFAULT.to_owned())
    }
}

/// Returns the values that a run would have of which this is the only layer, held to nothing.
fn alone(config: &RunConfig) -> Option<Vec<(String, toml::Value)>> {
    let mut spec = RunSpec::of_no_layer();
    let layer = Layer { origin: Origin::Flags, config: scalars(config) };
    apply(&layer, &mut spec).ok().map(|()| leaves(&spec.written()))
}

/// Returns of a layer what [`RunSpec::written`] tells, and the presets, which bring such values.
fn scalars(config: &RunConfig) -> RunConfig {
    let RunConfig {
        backend,
        wiring,
        name_addresses,
        workspace,
        timeout,
        terminal,
        presets,
        limits,
        llm,
        egress,
        ..
    } = config.clone();
    let workspace = match workspace {
        Some(WorkspaceConfig::Table(WorkspaceTable { mode, .. })) => {
            Some(WorkspaceConfig::Table(WorkspaceTable { path: None, mode, open: Vec::new() }))
        }
        Some(WorkspaceConfig::Path(_)) | None => None,
    };
    let EgressConfig { default, denied_status, scrub, .. } = egress;
    let egress = EgressConfig { default, denied_status, scrub, ..EgressConfig::default() };
    let llm = LlmConfig { budget: llm.budget, price: Vec::new() };
    let config = RunConfig {
        backend,
        wiring,
        name_addresses,
        workspace,
        timeout,
        terminal,
        presets,
        ..RunConfig::default()
    };
    RunConfig { limits, llm, egress, ..config }
}

fn leaves(config: &RunConfig) -> Vec<(String, toml::Value)> {
    let mut leaves = Vec::new();
    let Ok(written) = toml::Value::try_from(config) else { return leaves };
    flatten("", &written, &mut |field, value| leaves.push((field.to_owned(), value.clone())));
    leaves
}

/// Leaves out the entries that a later layer's of the same name replace, and the names of providers that a layer declares itself: it is
/// the declared one that the run has.
fn leave_out_replaced(rows: &mut Vec<Merged>) {
    let mut declared = BTreeSet::new();
    for (list, key) in NAMED {
        let mut later = BTreeSet::new();
        for entries in rows.iter_mut().rev().filter_map(|row| entries_of(row, list)) {
            let name = |entry: &toml::Value| entry.get(key).and_then(toml::Value::as_str).map(str::to_owned);
            let own: Vec<_> = entries.iter().filter_map(name).collect();
            entries.retain(|entry| name(entry).is_none_or(|name| !later.contains(&name)));
            later.extend(own);
        }
        if list == "provider" {
            declared = later;
        }
    }
    for names in rows.iter_mut().filter_map(|row| entries_of(row, "providers")) {
        names.retain(|name| name.as_str().is_none_or(|name| !declared.contains(name)));
    }
    let may_be_emptied = |row: &Merged| row.field == "providers" || NAMED.iter().any(|it| it.0 == row.field);
    rows.retain(|row| !(may_be_emptied(row) && row.value.as_array().is_some_and(Vec::is_empty)));
}

fn entries_of<'a>(row: &'a mut Merged, list: &str) -> Option<&'a mut Vec<toml::Value>> {
    (row.field == list).then(|| row.value.as_array_mut()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managed() -> Origin {
        Origin::Managed("managed".into())
    }

    fn user() -> Origin {
        Origin::User("user".into())
    }

    fn layers(texts: &[(Origin, &str)]) -> Layers {
        let mut layers = Layers::default();
        for (origin, text) in texts {
            layers.push(origin.clone(), toml::from_str(text).unwrap());
        }
        layers
    }

    /// Returns the rows as a file that has them all.
    fn file(rows: &[Merged]) -> RunConfig {
        let mut table = toml::Table::new();
        let mut text = String::new();
        for row in rows {
            match row.value.as_array() {
                Some(more) => {
                    let list =
                        table.entry(row.field.clone()).or_insert_with(|| toml::Value::Array(Vec::new()));
                    list.as_array_mut().unwrap().extend(more.iter().cloned());
                }
                None => text += &format!("{} = {}\n", row.field, row.value),
            }
        }
        for (field, list) in table {
            text += &format!("{field} = {list}\n");
        }
        toml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// What a run may do and use, without the places of its rules.
    fn came_to(spec: &RunSpec) -> Vec<String> {
        let of = |policy: &crate::Policy| {
            let rules = policy.rules().map(|(effect, _, reach)| format!("{effect} {reach}"));
            let providers = policy.providers().map(|it| format!("{} {:?}", it.id(), it.exposed()));
            let mut all: Vec<_> = rules.chain(providers).collect();
            all.sort_unstable();
            let host = crate::Host::parse("far.example").unwrap();
            all.push(format!("{:?} {:?}", policy.rest(), policy.proxies().on_the_way_to(&host)));
            all
        };
        let mut all = of(&spec.policy);
        for companion in &spec.companions {
            all.push(format!("{} {} {:?}", companion.name, companion.image, companion.limits));
            all.extend(of(&companion.policy));
        }
        let cost = spec.spending.cost("m", crate::Tokens { input: 1000, ..crate::Tokens::default() });
        all.push(format!("{:?} {} {:?} {cost:?}", spec.limits, spec.timeout, spec.spending.budget));
        all.extend(leaves(&spec.written()).iter().map(|(field, value)| format!("{field} = {value}")));
        all
    }

    #[test]
    fn what_is_in_force_reads_as_the_same_policy() {
        let mine = "[[provider]]\nid = \"mine\"\nauthorized_uris = [\"https://a.example.com/*\"]\n";
        let other = mine.replace("a.example.com", "b.example.com");
        let github = mine.replace("\"mine\"", "\"github\"");
        let db = "[[companion]]\nname = \"db\"\nimage = \"one\"\nports = [5432]\n";
        let bigger = format!("{}resources = {{ memory = \"1GiB\" }}\n", db.replace("one", "two"));
        let proxy =
            |host: &str| format!("proxy = [{{ id = \"p\", url = \"http://{host}.example.com:3128\" }}]");
        let chosen = format!("egress.proxy = \"p\"\n{}", proxy("a"));
        let price = |usd: &str| format!("llm.price = [{{ model = \"m\", input = {usd}, output = {usd} }}]");
        let (deny, open) = ("egress.default = \"deny\"", "presets = [\"open-internet\"]");
        let held = "limits.memory = \"200MiB\"\nlimits.enforce = \"required\"\ntimeout = \"5m\"\negress.scrub = \"strict\"\n\
            llm.budget = { requests = 5, usd = 1.5 }";
        let wish = "limits = { memory = \"1GiB\", enforce = \"best-effort\" }\ntimeout = \"10m\"\n\
            egress.scrub = \"best-effort\"\nllm.budget = { requests = 9, usd = 2.5 }";
        for texts in [
            &[(user(), deny), (Origin::Flags, open)][..],
            &[(user(), open), (Origin::Flags, deny)],
            &[(managed(), open), (user(), deny), (Origin::Flags, open)],
            &[(managed(), held), (user(), wish)],
            &[(user(), "timeout = \"2h\"")],
            &[(user(), mine), (Origin::Flags, &other)],
            &[(user(), "providers = [\"github\"]"), (Origin::Flags, &github)],
            &[(user(), &github), (Origin::Flags, "providers = [\"github\", \"openai\"]")],
            &[(user(), db), (Origin::Flags, &bigger)],
            &[(user(), &chosen), (Origin::Flags, &proxy("b"))],
            &[(user(), &price("1.0")), (Origin::Flags, &price("2.0"))],
            &[(user(), "web_search = false"), (Origin::Flags, "providers = [\"exa\"]")],
            &[(user(), "image = \"i\""), (Origin::Flags, "workspace = { mode = \"ro\" }\nlimits.cpus = 1")],
        ] {
            let layers = layers(texts);
            let spec = layers.compile().unwrap();
            let rows = layers.in_force(&spec);
            let mut shown = Layers::default();
            shown.push(Origin::Named("shown".into()), file(&rows));
            let shown = shown.compile().unwrap_or_else(|error| panic!("{error}: {rows:?}"));
            assert_eq!(came_to(&shown), came_to(&spec), "{texts:?}");
        }
    }

    #[test]
    fn a_value_is_told_with_the_layer_that_decided_it() {
        let told = |texts: &[(Origin, &str)], bound: Option<u32>, field: &str| {
            let mut layers = layers(texts);
            bound.inspect(|seconds| layers.bound("BOUND", *seconds));
            let rows = layers.in_force(&layers.compile().unwrap());
            let row = rows.into_iter().find(|row| row.field == field).unwrap();
            (row.value.to_string().replace('"', ""), row.origin)
        };
        let is = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
        let deny = (user(), "egress.default = \"deny\"");
        let open = (Origin::Flags, "presets = [\"open-internet\"]");
        assert_eq!(told(&[deny, open], None, "egress.default"), is("open-internet", "command line"));
        let limits = [(managed(), "limits.memory = \"200MB\""), (Origin::Flags, "limits.memory = \"1GiB\"")];
        assert_eq!(told(&limits, None, "limits.memory"), is("200MB", "managed"));
        assert_eq!(told(&limits, None, "limits.pids"), is("512", "default"));
        let timeout = [(user(), "timeout = \"3600s\"")];
        assert_eq!(told(&timeout, None, "timeout"), is("30m", "default"));
        assert_eq!(told(&timeout, Some(60), "timeout"), is("60s", "BOUND"));
        assert_eq!(told(&timeout, Some(7200), "timeout"), is("3600s", "user"), "as it was written");
    }
}
