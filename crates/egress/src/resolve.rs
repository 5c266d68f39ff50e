//! Resolves names to addresses with the sidecar's own resolver. Its answers are not trusted: the address guard judges them.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Hosts, Resolver, TokioResolver};
use policy::{Denial, Guard, Host};

/// How long one question may wait for its answer, and how often it is asked.
const TIMEOUT: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 2;

/// The source of addresses.
#[derive(Debug)]
pub enum Answers {
    /// The host's resolver configuration, read at the start. The resolver is built at the first question.
    System(Box<SystemAnswers>),
    /// A fixed answer for every name, as the rows of `policy check` give it.
    Given(Vec<IpAddr>),
}

/// The host's resolver configuration, and the resolver that is built from it.
#[derive(Debug)]
pub struct SystemAnswers {
    resolv_conf: Vec<u8>,
    hosts: Vec<u8>,
    resolver: OnceLock<Result<Built, String>>,
}

#[derive(Debug)]
struct Built {
    resolver: TokioResolver,
    /// Why there is no server to ask, if so. Names then have only the addresses in `hosts`.
    asks_nobody: Option<String>,
}

impl Answers {
    /// Takes the contents of `resolv.conf` and `hosts`.
    #[must_use]
    pub fn system(resolv_conf: Vec<u8>, hosts: Vec<u8>) -> Self {
        Self::System(Box::new(SystemAnswers { resolv_conf, hosts, resolver: OnceLock::new() }))
    }

    /// Returns the addresses of a host. An address resolves to itself.
    pub(crate) async fn of(&self, host: &Host) -> Result<Vec<IpAddr>, Denial> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        match self {
            Self::Given(list) => Ok(list.clone()),
            Self::System(system) => Box::pin(system.look_up(name.as_str())).await,
        }
    }
}

impl SystemAnswers {
    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Denial> {
        let not_found =
            |why: String| Denial::new(Guard::NoAddress, format!("{name} does not resolve: {why}"));
        let Built { resolver, asks_nobody } =
            self.resolver.get_or_init(|| self.build()).as_ref().map_err(|e| not_found(e.clone()))?;
        // The dot keeps search domains out: the resolver asks for the name that was judged.
        match resolver.lookup_ip(format!("{name}.")).await {
            Ok(found) => {
                let mut addresses: Vec<IpAddr> = found.iter().collect();
                addresses.sort_by_key(IpAddr::is_ipv6); // a host without IPv6 answers at once
                addresses.dedup();
                Ok(addresses)
            }
            Err(_) if asks_nobody.is_some() => Err(not_found(asks_nobody.clone().unwrap_or_default())),
            Err(error) if error.is_no_records_found() => Err(not_found("no such name".into())),
            Err(error) => Err(not_found(error.to_string())),
        }
    }

    fn build(&self) -> Result<Built, String> {
        let read = hickory_resolver::system_conf::parse_resolv_conf(&self.resolv_conf);
        let (config, mut options, asks_nobody) = match read {
            Ok((config, options)) => (config, options, None),
            Err(error) => {
                let nobody = ResolverConfig::from_parts(None, Vec::new(), Vec::new());
                (nobody, ResolverOpts::default(), Some(format!("resolv.conf: {error}")))
            }
        };
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never; // the file cannot be opened by now; its content is set below
        options.timeout = TIMEOUT;
        options.attempts = ATTEMPTS - 1; // those after the first
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let mut resolver = builder.build().map_err(|e| e.to_string())?;
        let mut hosts = Hosts::default();
        if hosts.read_hosts_conf(self.hosts.as_slice()).is_ok() {
            resolver.set_hosts(std::sync::Arc::new(hosts));
        }
        Ok(Built { resolver, asks_nobody })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn names_of_the_hosts_file_need_no_server() {
        let hosts = b"10.9.8.7 platform.internal\nfd00::7 six.internal\n".to_vec();
        for conf in ["", "search a.example\n"] {
            let answers = Answers::system(conf.into(), hosts.clone());
            for (name, address) in [("platform.internal", "10.9.8.7"), ("six.internal", "fd00::7")] {
                let found = answers.of(&Host::parse(name).unwrap()).await.unwrap();
                assert_eq!(found, [address.parse::<IpAddr>().unwrap()]);
            }
            let denial = answers.of(&Host::parse("other.internal").unwrap()).await.unwrap_err();
            assert!(denial.reason.contains("resolv.conf: ") && denial.reason.contains("no nameservers"));
        }
    }
}
