//! Lists an engine's containers and networks by label. Podman is asked through its own API: through Docker's it inspects every
//! container for every answer, and fails if it has lost count of one container's networks, as of a sidecar whose run was killed while
//! it joined one. It also has container states that Docker does not know.

use std::collections::HashMap;
use std::path::Path;

use bollard::errors::Error;
use bollard::models::{ContainerSummary, EndpointSettings};
use bollard::query_parameters::{ListContainersOptionsBuilder, ListNetworksOptionsBuilder};
use serde_json::Value;

use super::engine::Engine;
use super::engine_error::{INTERNAL, NOT_FOUND};
use super::names::{EGRESS, of_label};
use super::podman::{self, encoded};
use crate::plan::engine::EngineKind;

/// Podman's error for a container of whose networks it has lost count.
const LOST_COUNT: &str = "network inspection mismatch";
/// The status of an answer that has the object.
const FOUND: u16 = 200;
const DAY: i64 = 86_400;

impl Engine {
    /// Lists our containers with a label, in any state. A container also has the labels of its image, so ours are told by their names,
    /// which no image can set.
    pub(super) async fn labelled(
        &self,
        label: &str,
        names_begin: &str,
    ) -> Result<Vec<ContainerSummary>, Error> {
        let mut found = self.all_labelled(label).await?;
        found.retain(|summary| is_named_so(summary, names_begin));
        Ok(found)
    }

    /// Lists all containers with a label.
    async fn all_labelled(&self, label: &str) -> Result<Vec<ContainerSummary>, Error> {
        let filter = of_label(label);
        match self.kind {
            EngineKind::Docker => {
                let options = ListContainersOptionsBuilder::default().all(true).filters(&filter).build();
                self.api.list_containers(Some(options)).await
            }
            EngineKind::Podman => {
                let list = list(&self.socket, "containers/json?all=true&", &filter).await?;
                Ok(list.as_array().into_iter().flatten().map(in_dockers_words).collect())
            }
        }
    }

    /// Returns the ids of the networks with a label.
    pub(super) async fn networks_labelled(&self, label: &str) -> Result<Vec<String>, Error> {
        let filter = of_label(label);
        match self.kind {
            EngineKind::Docker => {
                let options = ListNetworksOptionsBuilder::default().filters(&filter).build();
                let found = self.api.list_networks(Some(options)).await?;
                Ok(found.into_iter().filter_map(|network| network.id).collect())
            }
            EngineKind::Podman => {
                let list = list(&self.socket, "networks/json?", &filter).await?;
                let found = list.as_array().into_iter().flatten();
                Ok(found.filter_map(|network| network["id"].as_str().map(str::to_owned)).collect())
            }
        }
    }

    /// Whether there is a network of that name.
    pub(super) async fn has_network(&self, name: &str) -> Result<bool, Error> {
        match self.kind {
            EngineKind::Docker => match self.api.inspect_network(name, None).await {
                Err(Error::DockerResponseServerError { status_code: NOT_FOUND, .. }) => Ok(false),
                found => found.map(|_| true),
            },
            EngineKind::Podman => {
                let path = format!("/v4.0.0/libpod/networks/{name}/exists");
                let (status, _) = podman::get(&self.socket, &path).await.map_err(of_io)?;
                Ok(status == 204)
            }
        }
    }

    /// Whether a container out of the pool belongs to a run: its alias on the network of sidecars is the run's name. A container of
    /// which Podman has lost count belongs to any run that finds it: it serves nobody.
    pub(super) async fn is_named(&self, container: &str, run: &str) -> bool {
        match self.kind {
            EngineKind::Docker => {
                let about = self.api.inspect_container(container, None).await;
                let networks = about.ok().and_then(|it| it.network_settings?.networks).unwrap_or_default();
                let names = networks.get(EGRESS).and_then(|endpoint| endpoint.aliases.as_ref());
                names.is_some_and(|names| names.iter().any(|name| name == run))
            }
            EngineKind::Podman => match self.described(container).await {
                Some((FOUND, about)) => {
                    let names = about["NetworkSettings"]["Networks"][EGRESS]["Aliases"].as_array();
                    names.is_some_and(|names| names.iter().any(|name| name == run))
                }
                other => is_lost(other.as_ref()),
            },
        }
    }

    /// Whether Podman has lost count of a container's networks.
    pub(super) async fn is_lost(&self, container: &str) -> bool {
        self.kind == EngineKind::Podman && is_lost(self.described(container).await.as_ref())
    }

    /// Inspects a container in whatever version of the API, even one of whose networks Podman has lost count. Returns the status as well.
    pub(super) async fn described(&self, container: &str) -> Option<(u16, Value)> {
        podman::get(&self.socket, &format!("/containers/{}/json", encoded(container))).await.ok()
    }
}

/// Whether a container has a name with a prefix. Docker writes a slash before each name.
fn is_named_so(summary: &ContainerSummary, names_begin: &str) -> bool {
    let mut names = summary.names.iter().flatten().map(|name| name.strip_prefix('/').unwrap_or(name));
    names.any(|name| name.starts_with(names_begin))
}

/// Whether an answer is Podman's error for lost count.
fn is_lost(answer: Option<&(u16, Value)>) -> bool {
    let Some((INTERNAL, body)) = answer else { return false };
    body["message"].as_str().is_some_and(|text| text.contains(LOST_COUNT))
}

/// Requests a list from Podman's own API.
async fn list(socket: &Path, what: &str, filter: &HashMap<&str, Vec<String>>) -> Result<Value, Error> {
    let filter = serde_json::to_string(filter).unwrap_or_default();
    let path = format!("/v4.0.0/libpod/{what}filters={}", encoded(&filter));
    match podman::get(socket, &path).await.map_err(of_io)? {
        (FOUND, list) => Ok(list),
        (status_code, body) => {
            let message = body["message"].as_str().unwrap_or_default().to_owned();
            Err(Error::DockerResponseServerError { status_code, message })
        }
    }
}

fn of_io(err: std::io::Error) -> Error {
    Error::IOError { err }
}

/// Converts a container of Podman's list to Docker's type. A state that Docker does not know becomes `None`.
fn in_dockers_words(listed: &Value) -> ContainerSummary {
    let text = |field: &str| listed[field].as_str().map(str::to_owned);
    let networks = listed["Networks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let networks: HashMap<_, _> =
        networks.map(|name| (name.to_owned(), EndpointSettings::default())).collect();
    let mut summary = ContainerSummary {
        id: text("Id"),
        names: serde_json::from_value(listed["Names"].clone()).ok(),
        image_id: text("ImageID").map(|id| format!("sha256:{id}")),
        created: listed["Created"].as_str().and_then(seconds),
        state: serde_json::from_value(listed["State"].clone()).ok(),
        ..ContainerSummary::default()
    };
    summary.network_settings.get_or_insert_default().networks = Some(networks);
    summary
}

/// Parses a time of RFC 3339 to seconds since 1970: `2026-11-22T23:24:04.457711945Z`, `2026-11-23T00:24:04+01:00`.
fn seconds(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u32>().ok().map(i64::from);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let zone = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let ahead = match zone.split_at_checked(1)? {
        ("Z", "") => 0,
        (sign @ ("+" | "-"), rest) => {
            let (hours, minutes) = rest.split_once(':')?;
            let ahead =
                i64::from(hours.parse::<u8>().ok()?) * 3600 + i64::from(minutes.parse::<u8>().ok()?) * 60;
            if sign == "+" { ahead } else { -ahead }
        }
        _ => return None,
    };
    // With years that begin in March the leap day is the last day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
    Some(days * DAY + hour * 3600 + minute * 60 + second - ahead)
}

#[cfg(test)]
mod tests {
    use bollard::models::ContainerSummaryStateEnum as State;
    use serde_json::json;

    use super::*;
    use crate::docker::names::{ALL, POOLED};

    #[test]
    fn a_container_in_a_state_that_docker_has_no_word_for_is_seen() {
        let listed = |state: &str| {
            in_dockers_words(&json!({
                "Id": "1", "ImageID": "79d4", "Created": "1970-01-01T00:00:07.4Z", "State": state, "Networks": ["a", "b"],
            }))
        };
        let it = listed("running");
        assert_eq!(
            (it.state, it.created, it.image_id.as_deref()),
            (Some(State::RUNNING), Some(7), Some("sha256:79d4"))
        );
        let mut networks: Vec<_> = it.network_settings.unwrap().networks.unwrap().into_keys().collect();
        networks.sort();
        assert_eq!(networks, ["a", "b"]);
        for state in ["stopped", "initialized", "unknown", "something"] {
            let it = listed(state);
            assert_eq!((it.id.as_deref(), it.state), (Some("1"), None), "{state}");
        }
    }

    #[test]
    fn what_an_image_says_makes_no_container_ours() {
        // A label may come from the image, and then every container of it has that label.
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            [
                ContainerSummary { names: Some(names.clone()), ..ContainerSummary::default() },
                in_dockers_words(&json!({"Id": "1", "Names": names})),
            ]
        };
        let pooled = [["/lockgate-sidecar-pool-1"], ["lockgate-sidecar-pool-2"]];
        assert!(pooled.iter().flat_map(|names| named(names)).all(|it| is_named_so(&it, POOLED)));
        let agent = named(&["/lockgate-agent-abcdefghjkmn"]);
        assert!(agent.iter().all(|it| is_named_so(it, ALL) && !is_named_so(it, POOLED)));
        let others = [&["/precious"][..], &["/my-lockgate-sidecar-pool-1"], &[""], &[]];
        assert!(others.iter().flat_map(|names| named(names)).all(|it| !is_named_so(&it, ALL)));
        assert!(!is_named_so(&ContainerSummary::default(), ALL));
    }

    #[test]
    fn a_time_is_in_seconds_wherever_it_was_written() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-11-22T23:24:04.457711945Z", Some(1_795_389_844)),
            ("2026-11-23T00:24:04.457711945+01:00", Some(1_795_389_844)),
            ("2026-11-22T18:24:04-05:00", Some(1_795_389_844)),
            ("2026-11-22 23:24", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn one_that_podman_has_lost_count_of_is_known_by_what_it_says() {
        let said = |status: u16, text: &str| Some((status, json!({ "message": text })));
        let lost = "network inspection mismatch: asked to join 2 network(s) map[], but have information on 1";
        assert!(is_lost(said(500, lost).as_ref()));
        for other in [said(200, lost), said(404, lost), said(500, "container is being removed"), None] {
            assert!(!is_lost(other.as_ref()), "{other:?}");
        }
    }
}
