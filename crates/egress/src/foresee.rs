//! Foresees what the planes decide on a request or a connection, by its method and target alone: as the planes that serve it ask, without
//! an exchange. Nothing is resolved, so of addresses only those are judged that a rule lists, or that the host is itself.

use std::net::IpAddr;

use policy::{Asked, Carriage, Denial, Grant, Host, Method, Plane, Policy, Port, Scheme, Target, View};

use crate::inject;
use crate::tunnel::{must_look_first, not_tls};

/// How a request comes to the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approach {
    /// As a request to the explicit proxy.
    Proxy,
    /// In a `CONNECT` tunnel of the explicit proxy.
    Tunnel,
    /// In a connection that is redirected.
    Redirected,
}

impl Approach {
    fn plane(self) -> Plane {
        match self {
            Self::Proxy | Self::Tunnel => Plane::Forward,
            Self::Redirected => Plane::Transparent,
        }
    }
}

/// What is granted where a request goes its way.
#[derive(Debug)]
pub enum Course {
    /// The request, and nothing before it.
    Request(Grant),
    /// The connection, in which the request is not seen.
    Connection(Grant),
    /// The connection, and the request that is seen in it.
    RequestWithin {
        /// The grant of the connection.
        connection: Grant,
        /// The grant of the request, which decides.
        request: Grant,
    },
}

impl Course {
    /// Returns the grant that decides last.
    #[must_use]
    pub fn last(&self) -> &Grant {
        match self {
            Self::Request(grant) | Self::Connection(grant) | Self::RequestWithin { request: grant, .. } => {
                grant
            }
        }
    }
}

/// Foresees what becomes of a request.
///
/// # Errors
/// The denial that it would get.
pub fn foresee(
    policy: &Policy,
    approach: Approach,
    method: &Method,
    target: &Target,
) -> Result<Course, Denial> {
    let plane = approach.plane();
    let connection = |view| Asked::connection(plane, target.host().clone(), target.port(), view);
    let judge_request = || judge_request(policy, plane, method, target);
    let opaque = connection(View::Opaque);
    let granted = match (approach, target.scheme()) {
        (Approach::Proxy, _) => return judge_request().map(Course::Request),
        (Approach::Redirected, scheme) if must_look_first(policy, &opaque) => match scheme {
            Scheme::Http => return judge_request().map(Course::Request),
            Scheme::Https => policy.decide(&connection(View::Tls))?,
        },
        (Approach::Tunnel | Approach::Redirected, _) => policy.decide(&opaque)?,
    };
    // The addresses of one that is terminated are those of its requests.
    if granted.carriage() != Carriage::Terminated {
        vet_listed(&granted)?;
    }
    match (granted.carriage(), target.scheme()) {
        _ if granted.is_companion() => Ok(Course::Connection(granted)),
        // TLS to a host that a credential is bound to is terminated too.
        (Carriage::Any, Scheme::Https) if !granted.is_bound() => Ok(Course::Connection(granted)),
        (Carriage::Terminated | Carriage::Any, _) => {
            Ok(Course::RequestWithin { request: judge_request()?, connection: granted })
        }
        (Carriage::Tls, Scheme::Http) => Err(not_tls().with_rule(granted.rule().as_str())),
        (Carriage::Request | Carriage::Tls, _) => Ok(Course::Connection(granted)),
    }
}

/// Foresees what becomes of a connection in which there may be any requests, or none.
///
/// # Errors
/// The denial that it would get.
pub fn foresee_tunnel(policy: &Policy, approach: Approach, host: &Host, port: Port) -> Result<Grant, Denial> {
    let granted = policy.decide(&Asked::connection(approach.plane(), host.clone(), port, View::Opaque))?;
    if granted.carriage() != Carriage::Terminated {
        vet_listed(&granted)?;
    }
    Ok(granted)
}

fn judge_request(policy: &Policy, plane: Plane, method: &Method, target: &Target) -> Result<Grant, Denial> {
    let grant = policy.decide(&Asked::request(plane, method.clone(), target))?;
    vet_listed(&grant)?;
    let refused = |denial: Denial| denial.or_with_rule(grant.rule().as_str());
    inject::refuse_line(policy, &grant, listed(&grant).unwrap_or_default(), method, target)
        .map_err(refused)?;
    Ok(grant)
}

/// Returns the address that the host is, or those that the rule lists, if it does.
fn listed(grant: &Grant) -> Option<&[IpAddr]> {
    match grant.host() {
        Host::Address(address) => Some(std::slice::from_ref(address)),
        Host::Name(_) => grant.addresses(),
    }
}

fn vet_listed(grant: &Grant) -> Result<(), Denial> {
    listed(grant).map_or(Ok(()), |listed| grant.vet(listed))
}
