//! The documents agree with the code: every row of the tables of docs/policy.md is run against the code that enforces,
//! every policy in a document or in examples/ compiles, and no field, preset or guard is missing from the page.
//!
//! A table that is missing or empty is a failure.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test file: what panics here is a failed test"
)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use policy::{
    AddressClass, Asked, Denial, Host, HostPattern, Hostname, Layers, Method, Origin, Plane, Policy, Port,
    RunConfig, RunSpec, Target, View,
};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/policy.md");
const DENIALS: &str = include_str!("../src/denial.rs");

/// Returns the rows of the table after `<!-- table: NAME -->`, as cells without backticks.
fn table(name: &str) -> Vec<Vec<String>> {
    table_of(PAGE, name)
}

fn table_of(page: &str, name: &str) -> Vec<Vec<String>> {
    let mark = format!("<!-- table: {name} -->\n");
    let (_, after) = page.split_once(&mark).unwrap_or_else(|| panic!("the page has no table `{name}`"));
    let mut lines = after.lines().take_while(|line| line.starts_with('|'));
    let width = cells(lines.next().unwrap_or_default()).len();
    let rows: Vec<_> = lines.skip(1).map(cells).collect();
    assert!(!rows.is_empty(), "table `{name}` is empty");
    assert!(rows.iter().all(|row| row.len() == width), "table `{name}` has a row of another width");
    rows
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
}

/// Returns the TOML blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest)).collect()
}

fn compile(text: &str) -> Result<RunSpec, String> {
    let config: RunConfig = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut layers = Layers::default();
    layers.push(Origin::Named("page".into()), config);
    layers.compile().map_err(|e| e.to_string())
}

/// Compiles the policy after `<!-- policy: decisions -->`.
fn policy_of_the_page() -> Policy {
    let (_, after) = PAGE.split_once("<!-- policy: decisions -->\n").expect("the page has its policy");
    compile(blocks(after)[0]).unwrap().policy
}

fn is(word: &str, yes: &str, no: &str) -> bool {
    assert!(word == yes || word == no, "`{word}` is neither `{yes}` nor `{no}`");
    word == yes
}

/// Judges all rows of a table, and fails with every wrong one.
fn each_row(name: &str, judge: impl Fn(&[String]) -> Result<(), String>) {
    each_row_of(PAGE, name, judge);
}

fn each_row_of(page: &str, name: &str, judge: impl Fn(&[String]) -> Result<(), String>) {
    let wrong: Vec<String> = table_of(page, name)
        .iter()
        .filter_map(|row| judge(row).err().map(|why| format!("{}: {why}", row.join(" | "))))
        .collect();
    assert!(wrong.is_empty(), "the table {name}:\n{}", wrong.join("\n"));
}

fn expect(found: impl std::fmt::Debug + PartialEq, wanted: impl Into<String>) -> Result<(), String> {
    let (found, wanted) = (format!("{found:?}").trim_matches('"').to_owned(), wanted.into());
    if found == wanted { Ok(()) } else { Err(format!("the code says {found}")) }
}

#[test]
fn host_patterns_are_accepted_and_rejected_as_said() {
    each_row("host-patterns", |row| {
        let accepted = is(&row[1], "accepted", "rejected");
        let by_host = HostPattern::parse(&row[0]);
        if by_host.is_ok() != accepted {
            return Err(format!("the code says {by_host:?}"));
        }
        // Through a rule, as in a file.
        let rule = compile(&format!("[[egress.allow]]\nhost = {}", toml::Value::from(row[0].as_str())));
        if rule.is_ok() == accepted { Ok(()) } else { Err(format!("as a rule: {rule:?}")) }
    });
}

#[test]
fn host_patterns_cover_what_is_said() {
    each_row("host-matches", |row| {
        let pattern = match row[0].strip_suffix(" + subdomains") {
            Some(apex) => HostPattern::parse(apex).and_then(HostPattern::with_subdomains),
            None => HostPattern::parse(&row[0]),
        };
        let covered = pattern.unwrap().matches(&Host::parse(&row[1]).unwrap());
        expect(covered, is(&row[2], "yes", "no").to_string())
    });
}

#[test]
fn rules_are_accepted_and_rejected_as_said() {
    each_row("rules", |row| {
        let found = compile(&format!("[egress]\nallow = [{}]", row[0]));
        match (is(&row[1], "accepted", "rejected"), found) {
            (true, Ok(spec)) => {
                let reach = spec.policy.rules().next().map(|(_, _, reach)| reach).unwrap_or_default();
                expect(reach, &row[2])
            }
            (false, Err(error)) if error.replace('`', "").contains(&row[2].replace('`', "")) => Ok(()),
            (_, found) => Err(format!("the code says {found:?}")),
        }
    });
}

// S3.16
#[test]
fn labels_are_accepted_and_rejected_as_said() {
    each_row("labels", |row| {
        let found = compile(&format!("labels = {}", row[0]));
        match (is(&row[1], "accepted", "rejected"), found) {
            (true, Ok(spec)) => {
                let labels = spec.labels.iter().map(|label| format!("{}={}", label.name(), label.value()));
                expect(labels.collect::<Vec<_>>().join(", "), &row[2])
            }
            (false, Err(error)) if error.contains(&row[2]) => Ok(()),
            (_, found) => Err(format!("the code says {found:?}")),
        }
    });
}

// S4.54
#[test]
fn set_up_commands_are_accepted_and_rejected_as_said() {
    each_row("setup", |row| {
        let found = compile(&format!("setup = {}", row[0]));
        match (is(&row[1], "accepted", "rejected"), found) {
            (true, Ok(spec)) => {
                expect(spec.setup.iter().map(policy::Setup::name).collect::<Vec<_>>().join(", "), &row[2])
            }
            (false, Err(error)) if error.replace('`', "").contains(&row[2].replace('`', "")) => Ok(()),
            (_, found) => Err(format!("the code says {found:?}")),
        }
    });
}

#[test]
fn decisions_are_as_said() {
    let policy = policy_of_the_page();
    each_row("decisions", |row| {
        let found = match row[0].as_str() {
            "request" => by_request(&policy, &row[1], &row[2]),
            "tls" => by_connection(&policy, View::Tls, &row[2]),
            "any" => by_connection(&policy, View::Opaque, &row[2]),
            "name" => policy.decide_name(&Hostname::parse(&row[2]).unwrap()).map(|rule| rule.to_string()),
            other => return Err(format!("`{other}` is no view")),
        };
        match (is(&row[3], "allow", "deny"), found) {
            (true, Ok(rule)) if rule == format!("{} in page", row[4]) => Ok(()),
            (false, Err(denial)) if denial.guard.code() == row[4] => Ok(()),
            (_, found) => Err(format!("the code says {found:?}")),
        }
    });
}

fn by_request(policy: &Policy, method: &str, target: &str) -> Result<String, Denial> {
    let target = Target::parse(target)?;
    let asked = Asked::request(Plane::Forward, Method::parse(method).unwrap(), &target);
    policy.decide(&asked).map(|grant| grant.rule().to_string())
}

fn by_connection(policy: &Policy, view: View, target: &str) -> Result<String, Denial> {
    let (host, port) = target.rsplit_once(':').unwrap();
    let (host, port) = (Host::parse(host).unwrap(), Port::parse(port).unwrap());
    policy
        .decide(&Asked::connection(Plane::Transparent, host, port, view))
        .map(|grant| grant.rule().to_string())
}

#[test]
fn addresses_are_classed_as_said() {
    each_row("addresses", |row| {
        let class = AddressClass::of(row[0].parse().unwrap());
        expect(class.to_string(), &row[1])?;
        expect(class.is_public(), is(&row[2], "yes", "no").to_string())?;
        expect(class.may_be_named(), is(&row[3], "yes", "no").to_string())
    });
}

#[test]
fn answers_are_judged_as_said() {
    let policy = policy_of_the_page();
    each_row("answers", |row| {
        let found: Vec<IpAddr> = row[1].split(", ").filter_map(|address| address.parse().ok()).collect();
        let target = Target::parse(&format!("https://{}/", row[0])).unwrap();
        let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        let guard = policy.decide(&asked).unwrap().vet(&found).err().map(|denial| denial.guard.code());
        expect(guard.is_none(), is(&row[2], "allow", "deny").to_string())?;
        expect(guard.unwrap_or("–").to_owned(), &row[3])
    });
}

#[test]
fn presets_are_those_of_the_page_and_each_compiles() {
    let listed: Vec<(String, String)> =
        table("presets").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    assert_eq!(policy::preset_names().unwrap(), listed);
    let wrong: Vec<String> =
        listed.iter().filter_map(|(name, _)| compile(&format!("presets = [\"{name}\"]")).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn guards_are_those_of_the_code() {
    let listed: Vec<String> = table("guards").into_iter().map(|row| row[0].clone()).collect();
    let codes: Vec<String> = DENIALS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""))
        .filter_map(|(_, code)| Some(code.strip_suffix("\",")?.to_owned()))
        .collect();
    assert!(codes.len() > 20, "the codes were not found in the source");
    assert_eq!(listed, codes);
}

/// What an editor takes by the schema a run should take as well.
#[test]
fn a_list_that_may_not_be_empty_is_none_for_the_schema() {
    let schema = serde_json::to_value(schemars::schema_for!(RunConfig)).unwrap();
    let rule = |field: &str| format!("egress.allow = [{{ host = \"a.example\", {field} = [] }}]");
    let deny = |field: &str| format!("egress.deny = [{{ host = \"a.example\", {field} = [] }}]");
    let provider = |more: &str| format!("provider = [{{ id = \"a\", {more} }}]");
    for (kind, field, text) in [
        ("AllowConfig", "ports", rule("ports")),
        ("AllowConfig", "methods", rule("methods")),
        ("AllowConfig", "addresses", rule("addresses")),
        ("DenyConfig", "ports", deny("ports")),
        ("DenyConfig", "methods", deny("methods")),
        ("ProviderConfig", "authorized_uris", provider("authorized_uris = []")),
        ("ProviderConfig", "methods", provider("authorized_uris = [\"https://a.example/*\"], methods = []")),
        (
            "ProviderConfig",
            "addresses",
            provider("authorized_uris = [\"https://a.example/*\"], addresses = []"),
        ),
    ] {
        let fewest = &schema["$defs"][kind]["properties"][field]["minItems"];
        assert_eq!(fewest, 1, "{kind} {field}");
        let mut layers = Layers::default();
        layers.push(Origin::Flags, toml::from_str(&text).unwrap());
        let error = layers.compile().map(drop).unwrap_err();
        assert!(error.field.ends_with(field), "{text}: {error}");
    }
    let pids = &schema["$defs"]["LimitsConfig"]["properties"]["pids"];
    assert_eq!(pids["minimum"], policy::Limits::FEWEST_PIDS);
}

/// Collects the fields of the schema, in the page's notation.
fn fields(root: &Value, node: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = node["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
        return fields(root, &root["$defs"][name], path, found);
    }
    for key in ["anyOf", "oneOf"] {
        for part in node[key].as_array().into_iter().flatten() {
            fields(root, part, path, found);
        }
    }
    if let Some(items) = node.get("items").filter(|items| items.get("$ref").is_some()) {
        return fields(root, items, &format!("{path}[]"), found);
    }
    match node["properties"].as_object() {
        Some(properties) => properties.iter().for_each(|(name, inner)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            fields(root, inner, &path, found);
        }),
        // The `null` branch of an optional field.
        None if node["type"] == "null" => {}
        None => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn every_field_is_on_the_page() {
    let schema = serde_json::to_value(schemars::schema_for!(RunConfig)).unwrap();
    let mut known = BTreeSet::new();
    fields(&schema, &schema, "", &mut known);
    // A field with one or many values is on the page as one value.
    known.retain(|name| !name.contains("inject[]"));
    // A list or table of tables is on the page as its fields.
    let inner: Vec<String> = known.iter().filter(|name| name.contains(['.', '['])).cloned().collect();
    known.retain(|name| {
        name == "workspace"
            || !inner.iter().any(|i| i.starts_with(&format!("{name}.")) || i.starts_with(&format!("{name}[")))
    });
    let listed: BTreeSet<String> = table("fields").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(listed, known);
}

#[test]
fn providers_are_those_of_their_page() {
    let page = include_str!("../../../docs/providers.md");
    let (_, after) = page.split_once("<!-- table: providers -->\n").unwrap();
    let rows: Vec<String> = after
        .lines()
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name.to_owned()))
        .collect();
    let known: Vec<String> = policy::provider_names().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(rows, known);
}

#[test]
fn injections_are_accepted_and_rejected_as_said() {
    let page = include_str!("../../../docs/providers.md");
    each_row_of(page, "injections", |row| {
        let found = compile(&format!("[[provider]]\nid = \"example\"\n{}", row[0].replace("; ", "\n")));
        match (is(&row[1], "accepted", "rejected"), found) {
            (true, Ok(_)) => Ok(()),
            (false, Err(error)) if error.replace('`', "").contains(&row[2].replace('`', "")) => Ok(()),
            (_, found) => Err(format!("the code says {found:?}")),
        }
    });
}

#[test]
fn every_example_of_a_field_compiles_and_gives_the_field() {
    each_row("fields", |row| {
        compile(&row[4])?;
        let parsed: toml::Table = toml::from_str(&row[4]).unwrap();
        let mut value = &toml::Value::Table(parsed);
        for part in row[0].split('.') {
            let (name, list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
            let inner = value.get(name).ok_or("the example does not give the field")?;
            value = if list { inner.get(0).ok_or("the example's list is empty")? } else { inner };
        }
        Ok(())
    });
}

/// Compiles a set-up command with defaults.
fn default_setup() -> policy::Setup {
    compile("setup = [{ command = [\"true\"] }]").unwrap().setup.remove(0)
}

#[test]
fn defaults_are_as_said() {
    let spec = Layers::default().compile().unwrap();
    let limits = &spec.limits;
    let actual = [
        ("backend", spec.backend.to_string()),
        ("wiring", spec.wiring.to_string()),
        ("timeout", spec.timeout.to_string()),
        ("limits.memory", limits.memory.to_string()),
        ("limits.cpus", limits.cpus.to_string()),
        ("limits.pids", limits.pids.to_string()),
        ("limits.disk", limits.disk.to_string()),
        ("setup[].timeout", default_setup().timeout.to_string()),
        ("egress.denied_status", spec.policy.denied_status().to_string()),
        ("egress.default", if spec.policy.is_open() { "open-internet" } else { "deny" }.into()),
    ];
    let rows = table("fields");
    for (field, value) in actual {
        let row = rows.iter().find(|row| row[0] == field).unwrap_or_else(|| panic!("no row for {field}"));
        assert_eq!(row[2], value, "{field}");
    }
}

#[test]
fn policies_in_documents_compile() {
    let pages = [
        ("docs/policy.md", PAGE),
        ("docs/sandbox.md", include_str!("../../../docs/sandbox.md")),
        ("docs/providers.md", include_str!("../../../docs/providers.md")),
        ("README.md", include_str!("../../../README.md")),
    ];
    for (page, text) in pages {
        for block in blocks(text) {
            let found = compile(block);
            assert!(found.is_ok(), "{page}: {:?}\n{block}", found.err());
        }
    }
    assert!(blocks(PAGE).len() >= 3);
}

#[test]
fn examples_compile_and_do_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "toml"));
    files.sort();
    let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["agent.toml", "companions.toml", "one-api.toml", "open-internet.toml"]);
    let policies: Vec<Policy> = files
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            compile(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).policy
        })
        .collect();
    let [agent, companions, one_api, open] = policies.as_slice() else { unreachable!("four were named") };
    let request = |policy, target| by_request(policy, "GET", target).map_err(|denial| denial.guard.code());
    let tunnel = |policy, at| by_connection(policy, View::Opaque, at).map_err(|denial| denial.guard.code());

    assert!(tunnel(agent, "github.com:22").is_ok() && tunnel(agent, "api.github.com:443").is_ok());
    assert_eq!(tunnel(agent, "gist.github.com:443"), Err("deny_rule"));
    assert_eq!(tunnel(agent, "example.net:443"), Err("host_not_allowed"));

    assert_eq!(tunnel(companions, "db:5432"), Ok("companion db".into()));
    assert_eq!(tunnel(companions, "cache:5432"), Err("port_not_allowed"));
    assert_eq!(tunnel(companions, "example.com:443"), Err("host_not_allowed"));

    assert!(request(one_api, "https://api.example.com/v1/items").is_ok());
    assert_eq!(request(one_api, "https://api.example.com/v2/items"), Err("path_not_allowed"));
    assert_eq!(
        by_request(one_api, "DELETE", "https://api.example.com/v1/items").unwrap_err().guard.code(),
        "method_not_allowed"
    );
    assert_eq!(request(one_api, "http://api.example.com/v1/items"), Err("port_not_allowed"));
    assert!(one_api.may_open() && !open.may_open());
    // The denial is about the nearest rule, in either order of the rules.
    let rules = ["https", "http"]
        .map(|scheme| format!("[[egress.allow]]\nurl = \"{scheme}://a.example.com/v1/*\"\n"));
    for text in [rules.concat(), format!("{}{}", rules[1], rules[0])] {
        let denial =
            by_request(&compile(&text).unwrap().policy, "GET", "http://a.example.com/v2").unwrap_err();
        assert_eq!(denial.guard.code(), "path_not_allowed");
        assert_eq!(denial.hint.unwrap().to_string(), "lockgate policy allow http://a.example.com/v2");
    }

    assert!(tunnel(open, "example.net:443").is_ok());
    assert_eq!(tunnel(open, "paste.example.org:443"), Err("deny_rule"));
    assert_eq!(tunnel(open, "example.net:25"), Ok("egress.default = \"open-internet\"".into()));
}
