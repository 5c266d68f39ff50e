//! Upstream proxies between the sidecar and the network. The machine's user declares them. An agent may choose one of the declared
//! proxies and no other.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::ConfigError;
use crate::address::AddressClass;
use crate::denial::{Denial, Guard};
use crate::hostname::Host;
use crate::location::Location;
use crate::pattern::{HostPattern, is_metadata_service};
use crate::provider_id::ProviderId;
use crate::target::{Authority, Port};
use crate::written::ProxyConfig;

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyScheme {
    /// `CONNECT` over plain TCP.
    Http,
    /// `CONNECT` over TLS.
    Https,
    /// SOCKS 5, RFC 1928.
    Socks5,
}

/// A compiled proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its id.
    pub id: String,
    /// Its protocol.
    pub scheme: ProxyScheme,
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: Port,
    /// The credential for authentication to it.
    pub credential: Option<ProviderId>,
}

/// Why a text is no proxy's URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    /// It has no scheme.
    #[error("write it as http://host:port")]
    NoScheme,
    /// Its scheme is another. It holds what was written.
    #[error("`{0}` is not http, https or socks5")]
    OtherScheme(String),
    /// What follows the scheme is no host and port. The reason quotes what was written.
    #[error("{0}")]
    Authority(String),
    /// No proxy may be at its host, which the reason names.
    #[error("{0}")]
    Host(String),
}

impl Proxy {
    /// Parses `scheme://host:port`.
    ///
    /// # Errors
    /// Returns the reason if the URL is anything else, or if no proxy may be at its host.
    pub fn parse(id: &str, url: &str, credential: Option<ProviderId>) -> Result<Self, ProxyUrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(ProxyUrlError::NoScheme)?;
        // Schemes are the same in capitals. RFC 3986 §3.1
        let (scheme, default) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (ProxyScheme::Http, 80),
            "https" => (ProxyScheme::Https, 443),
            "socks5" | "socks5h" => (ProxyScheme::Socks5, 1080),
            other => return Err(ProxyUrlError::OtherScheme(other.escape_default().to_string())),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let Authority { host, port } =
            Authority::parse(rest).map_err(|denial| ProxyUrlError::Authority(denial.reason))?;
        let port =
            port.or(Port::new(default)).ok_or_else(|| ProxyUrlError::Authority("it has no port".into()))?;
        check_host(&host).map_err(ProxyUrlError::Host)?;
        Ok(Self { id: id.to_owned(), scheme, host, port, credential })
    }

    /// Checks every address that its host resolved to: an address that no rule can open is no proxy's.
    ///
    /// # Errors
    /// A denial with the first such address.
    pub fn vet(&self, found: &[IpAddr]) -> Result<(), Denial> {
        found.iter().try_for_each(|address| {
            let bad = |why| Denial::new(Guard::Address, format!("{} leads nowhere: {why}", self.host));
            check_address(*address).map_err(bad)
        })
    }

    pub(crate) fn compile(at: &Location<'_>, config: &ProxyConfig) -> Result<Self, ConfigError> {
        if config.id.is_empty() {
            return Err(at.error("id", "it is empty; name the proxy, as in \"corp\""));
        }
        // Without a scheme it is told how an address is written.
        if config.url.contains("://") && config.url.contains('@') {
            let why = "the url names no user: name a `credential`, whose fields are username and password";
            return Err(at.error("url", why));
        }
        if config.id == "direct" {
            let why =
                "`direct` is the word for no proxy, so one of that name could not be chosen; give it another";
            return Err(at.error("id", why));
        }
        let credential = config
            .credential
            .as_deref()
            .map(str::parse)
            .transpose()
            .map_err(|e: &str| at.error("credential", e))?;
        Self::parse(&config.id, &config.url, credential).map_err(|why| at.error("url", why.to_string()))
    }
}

/// Refuses a host that is a metadata service, or an address that no rule can open.
fn check_host(host: &Host) -> Result<(), String> {
    match host {
        Host::Address(address) => check_address(*address),
        Host::Name(name) if is_metadata_service(name) => {
            Err(format!("{name} is a metadata service, and no proxy"))
        }
        Host::Name(_) => Ok(()),
    }
}

fn check_address(address: IpAddr) -> Result<(), String> {
    let class = AddressClass::of(address);
    match class.may_be_named() {
        true => Ok(()),
        false => Err(format!("no proxy may be at {address}: it is {class}")),
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            ProxyScheme::Http => "http",
            ProxyScheme::Https => "https",
            ProxyScheme::Socks5 => "socks5",
        };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// The proxies of a run.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    pub(crate) declared: Vec<Arc<Proxy>>,
    pub(crate) chosen: ProxyChoice,
    pub(crate) direct: Vec<HostPattern>,
}

/// A policy's choice of the proxy for all traffic.
#[derive(Clone, Debug, Default)]
pub(crate) enum ProxyChoice {
    /// No choice, so that the environment may make it.
    #[default]
    Unset,
    /// No proxy.
    Direct,
    /// This proxy.
    Through(Arc<Proxy>),
}

impl Proxies {
    /// Returns the proxy for a host, if there is one. S0.54
    #[must_use]
    pub fn on_the_way_to(&self, host: &Host) -> Option<&Arc<Proxy>> {
        self.chosen().filter(|_| !self.direct.iter().any(|pattern| pattern.matches(host)))
    }

    /// Returns whether a policy chose one, or none, so that the environment has no say.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        !matches!(self.chosen, ProxyChoice::Unset)
    }

    /// Returns a declared proxy, by its id or its URL.
    #[must_use]
    pub fn named(&self, text: &str) -> Option<&Arc<Proxy>> {
        let by_id = self.declared.iter().find(|proxy| proxy.id == text.trim_end_matches('/'));
        by_id.or_else(|| {
            // No URL with a user in it is one.
            let Proxy { scheme, host, port, .. } = Proxy::parse("", text, None).ok()?;
            self.declared.iter().find(|it| it.scheme == scheme && it.host == host && it.port == port)
        })
    }

    /// Returns the proxy that is chosen for all traffic, if there is one.
    #[must_use]
    pub(crate) fn chosen(&self) -> Option<&Arc<Proxy>> {
        match &self.chosen {
            ProxyChoice::Through(proxy) => Some(proxy),
            ProxyChoice::Direct | ProxyChoice::Unset => None,
        }
    }

    /// Returns them for a sidecar that holds no credential: the same choice, and nothing else that it could not use.
    pub(crate) fn without_credentials(&self) -> Self {
        let usable = self.declared.iter().filter(|proxy| proxy.credential.is_none());
        Self { declared: usable.cloned().collect(), ..self.clone() }
    }

    /// Returns all declared proxies.
    pub fn declared(&self) -> impl Iterator<Item = &Arc<Proxy>> {
        self.declared.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, Origin};

    #[test]
    fn the_credentials_of_a_variables_proxies_are_nobody_elses() {
        let declared = |origin: Origin, text: &str| {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str(text).unwrap());
            layers.compile().map(drop).map_err(|error| error.problem)
        };
        let proxy = "proxy = [{ id = \"a\", url = \"http://a:1\", credential = \"@lockgate/proxy-url\" }]";
        let provider =
            "provider = [{ id = \"@lockgate/proxy-url\", authorized_uris = [\"https://a.example/*\"] }]";
        let file = || Origin::User("file".into());
        assert_eq!(declared(Origin::Variable("V".into()), proxy), Ok(()));
        for text in [proxy, provider] {
            let why = declared(file(), text).unwrap_err();
            assert!(why.contains("this program's own"), "{why}");
        }
        assert_eq!(declared(file(), &provider.replace("lockgate", "lockgates")), Ok(()));
    }

    #[test]
    fn each_fault_of_a_proxy_is_told_at_its_own_field() {
        let told = |proxies: &str| {
            let mut layers = Layers::default();
            let text = format!("proxy = [{proxies}]");
            layers.push(Origin::Named("file".into()), toml::from_str(&text).unwrap());
            layers.compile().unwrap_err().to_string()
        };
        for (proxies, why) in [
            ("{ id = \"\", url = \"http://a:1\" }", "file: proxy[0].id: it is empty"),
            ("{ id = \"a\", url = \"http://u:pw@a:1\" }", "file: proxy[0].url: the url names no user"),
            ("{ id = \"a\", url = \"u:pw@a:1\" }", "file: proxy[0].url: write it as http://host:port"),
            (
                "{ id = \"a\", url = \"http://a:1\" }, { id = \"a\", url = \"http://b:1\" }",
                "file: proxy[1].id: there are two proxies `a`",
            ),
        ] {
            let told = told(proxies);
            assert!(told.starts_with(why), "{told}");
        }
    }

    #[test]
    fn no_proxy_has_the_name_of_none() {
        let declared = |id: &str| {
            let text =
                format!("proxy = [{{ id = \"{id}\", url = \"http://a:1\" }}]\negress.proxy = \"{id}\"");
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(&text).unwrap());
            layers.compile().map(drop).map_err(|error| error.to_string())
        };
        let why = declared("direct").unwrap_err();
        assert!(why.starts_with("file: proxy[0].id: `direct` is the word for no proxy"), "{why}");
        assert_eq!(declared("directly"), Ok(()));
    }

    #[test]
    fn a_declared_proxy_is_found_by_its_id_or_any_spelling_of_its_url() {
        let proxy = |id, url| Arc::new(Proxy::parse(id, url, None).unwrap());
        let proxies = Proxies {
            declared: vec![
                proxy("corp", "https://proxy.example.com"),
                proxy("socks", "SOCKS5h://10.0.0.1"),
                proxy("http://proxy.example:80", "http://other.example"),
                proxy("plain", "http://proxy.example"),
            ],
            ..Proxies::default()
        };
        for (text, id) in [
            ("corp", Some("corp")),
            ("corp/", Some("corp")),
            ("https://proxy.example.com", Some("corp")),
            ("https://proxy.example.com:443/", Some("corp")),
            ("HTTPS://Proxy.Example.COM.", Some("corp")),
            ("socks5h://10.0.0.1:1080", Some("socks")),
            ("socks5://10.0.0.1", Some("socks")),
            ("http://proxy.example:80", Some("http://proxy.example:80")),
            ("http://proxy.example", Some("plain")),
            ("http://proxy.example.com:443", None),
            ("https://proxy.example.com:444", None),
            ("https://user:password@proxy.example.com", None),
            ("https://proxy.example.com/path", None),
            ("proxy.example.com", None),
            ("CORP", None),
            ("", None),
        ] {
            assert_eq!(proxies.named(text).map(|proxy| proxy.id.as_str()), id, "{text}");
        }
    }

    #[test]
    fn the_name_of_a_proxy_leads_to_no_metadata_service() {
        let proxy = Proxy::parse("p", "http://proxy.example:3128", None).unwrap();
        let vet = |found: &[&str]| {
            let found: Vec<IpAddr> = found.iter().map(|text| text.parse().unwrap()).collect();
            proxy.vet(&found).map_err(|denial| denial.guard)
        };
        assert_eq!(vet(&["93.184.216.34", "10.0.0.1", "127.0.0.1", "::1"]), Ok(()));
        for bad in ["169.254.169.254", "fe80::1", "168.63.129.16", "::ffff:169.254.169.254"] {
            assert_eq!(vet(&["93.184.216.34", bad]), Err(Guard::Address), "{bad}");
        }
    }

    #[test]
    fn addresses_of_proxies_are_read() {
        let read = |url| Proxy::parse("p", url, None).map(|p| p.to_string()).map_err(|why| why.to_string());
        assert_eq!(read("http://proxy.example:3128/"), Ok("http://proxy.example:3128".into()));
        assert_eq!(read("socks5h://10.0.0.1"), Ok("socks5://10.0.0.1:1080".into()));
        for near in ["http://127.0.0.1:1", "http://localhost:1", "http://host.docker.internal:1"] {
            assert_eq!(read(near), Ok(near.into()));
        }
        for (bad, why) in [
            ("http://169.254.169.254:80", "link-local"),
            ("socks5://[fe80::1]", "link-local"),
            ("http://100.100.100.200", "cloud metadata"),
            ("http://[::ffff:169.254.169.254]", "an IPv4 address inside IPv6"),
            ("http://0.0.0.0:3128", "unspecified"),
            ("http://Metadata.Google.Internal", "a metadata service"),
        ] {
            let told = read(bad).unwrap_err();
            assert!(told.contains(why), "{bad}: {told}");
        }
        for bad in ["proxy.example", "ftp://a", "http://u@a", "http://a:0", "http://a/b", "http://"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
