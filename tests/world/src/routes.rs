//! Selects the answer by host and path. The servers are told apart by the address they were reached at, the services on the web address by
//! the requested host. It must not write to the wire.

use serde_json::json;

use crate::echoes::{Origin, echo};
use crate::git::Repository;
use crate::models::Models;
use crate::paths;
use crate::registries::Registries;
use crate::response::{Reaction, Response};
use crate::wire::{Body, Head};

/// The services behind the web address.
pub(crate) struct Services {
    pub(crate) models: Models,
    pub(crate) registries: Registries,
    pub(crate) repository: Option<Repository>,
}

impl Services {
    /// Returns the reaction of `server` to a request that came over `scheme`.
    pub(crate) async fn answer(&self, server: &str, scheme: &str, head: &Head, body: &Body) -> Reaction {
        let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
        if server == "metadata" {
            return metadata(path, head).into();
        }
        if server == "web" {
            let host = head.host();
            let service = self.registries.answer(&host, path);
            if let Some(response) = service.or_else(|| self.models.answer(&host, path, head, body)) {
                return response.into();
            }
            let hosts_git = host == "git.example.org" || host == "github.com";
            if let Some(repository) =
                self.repository.as_ref().filter(|_| hosts_git && path.starts_with("/repo.git"))
            {
                return repository.answer(path, query, head, body).await.into();
            }
        }
        let origin = Origin { server, scheme };
        paths::answer(origin, path, query, head, body)
            .unwrap_or_else(|| Response::json(&echo(origin, head, body)).into())
    }
}

/// A cloud's metadata service, with a credential that a test can search for.
fn metadata(path: &str, head: &Head) -> Response {
    let role = "/latest/meta-data/iam/security-credentials/";
    match path {
        "/latest/api/token" if head.method == "PUT" => {
            Response::of(200, "text/plain", "world-metadata-token")
        }
        _ if path == role => Response::of(200, "text/plain", "world-role"),
        _ if path.starts_with(role) => Response::json(&json!({
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "WORLDMETADATAKEY",
            "SecretAccessKey": "world-metadata-secret",
            "Token": "world-metadata-session",
            "Expiration": "2099-01-01T00:00:00Z",
        })),
        _ if path.starts_with("/computeMetadata/v1/") => {
            Response::json(&json!({ "access_token": "world-metadata-secret", "token_type": "Bearer" }))
        }
        _ => Response::of(200, "text/plain", "ami-id\nhostname\niam/\ninstance-id\nlocal-ipv4\n"),
    }
}
