//! Decides which addresses may be called. The check applies to the resolved address at the moment of the connection.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};

use super::providers::PROVIDERS;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// What a policy restricts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EgressTarget {
    Containers,
    Proposers,
}

impl EgressTarget {
    /// Returns the marker that identifies a denial, in errors of connections and for users.
    fn marker(self) -> &'static str {
        match self {
            Self::Containers => "container_not_allowed",
            Self::Proposers => "proposer_not_allowed",
        }
    }
}

/// The port of providers.
const HTTPS_PORT: u16 = 443;

type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// The addresses at which containers or proposers may be called. By default, all addresses are allowed.
#[derive(Debug, Clone)]
pub struct EgressPolicy {
    target: EgressTarget,
    /// `None` allows every address.
    rules: Option<Vec<EgressRule>>,
    /// Resolves a host name.
    lookup: fn(String) -> LookupFuture,
}

/// An allowed destination, at one port or at all ports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EgressRule {
    destination: Destination,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Destination {
    Network(IpNet),
    /// A host name with any address: the operator who allows the name trusts its DNS records.
    Host(String),
}

impl EgressRule {
    /// Returns the rules for this machine.
    fn loopback() -> impl Iterator<Item = Self> {
        ["127.0.0.0/8", "::1"].into_iter().filter_map(Self::parse)
    }

    fn allows(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
            && match &self.destination {
                // Treats an IPv4-mapped IPv6 address as the IPv4 address.
                Destination::Network(network) => network.contains(&address.to_canonical()),
                Destination::Host(name) => *name == normalized(host),
            }
    }

    /// Parses `host`, `host:port`, an IP address with or without a port, or a network such as `10.0.0.0/8`.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim();
        if let Some((address, bits)) = entry.split_once('/') {
            let network = IpNet::new(address.parse::<IpAddr>().ok()?.to_canonical(), bits.parse().ok()?).ok()?;
            return Some(Self { destination: Destination::Network(network), port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || (host.starts_with('[') && host.ends_with(']')) => {
                (host, Some(port.parse::<u16>().ok()?))
            }
            Some(_) | None => (entry, None),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Self { destination: Destination::Network(address.to_canonical().into()), port });
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_host = !host.is_empty() && host.bytes().all(is_name);
        is_host.then(|| Self { destination: Destination::Host(normalized(host)), port })
    }
}

impl Default for EgressPolicy {
    /// Allows every address.
    fn default() -> Self {
        let lookup = |name: String| -> LookupFuture {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|found| found.ip()).collect()) })
        };
        Self { target: EgressTarget::Containers, rules: None, lookup }
    }
}

impl EgressPolicy {
    /// Allows only containers on this machine: loopback addresses, and names that resolve only to them.
    pub fn containers() -> Self {
        Self { rules: Some(EgressRule::loopback().collect()), ..Self::default() }
    }

    /// Allows only proposers on this machine, and the well-known providers over TLS.
    pub fn proposers() -> Self {
        let providers = PROVIDERS.iter().map(|provider| EgressRule {
            destination: Destination::Host(provider.host.to_owned()),
            port: Some(HTTPS_PORT),
        });
        let rules = EgressRule::loopback().chain(providers).collect();
        Self { target: EgressTarget::Proposers, rules: Some(rules), ..Self::default() }
    }

    /// Also allows `host`, `host:port`, an IP address, or a network such as `10.0.0.0/8`.
    pub fn allow(mut self, entry: &str) -> Result<Self, OptimizerError> {
        let rule = EgressRule::parse(entry).ok_or_else(|| {
            OptimizerError::new(ErrorCode::Config, format!("{entry:?} is neither a host nor a network"))
                .with_hint("Write it like tasks.example.org, tasks.example.org:9100, 10.1.2.3 or 10.0.0.0/8.")
        })?;
        if let Some(rules) = &mut self.rules {
            rules.push(rule);
        }
        Ok(self)
    }

    /// Checks whether this URL may be called, without calling it. Every connection repeats the check,
    /// so a name that resolves to another address later (DNS rebinding) does not bypass it.
    pub(crate) async fn check(&self, url: &str) -> Result<(), OptimizerError> {
        // An invalid URL is reported by the validation of the config.
        let (Some(_), Ok(base)) = (&self.rules, Url::parse(url.trim())) else { return Ok(()) };
        let (Some(host), Some(port), "http" | "https") = (base.host_str(), base.port_or_known_default(), base.scheme())
        else {
            return Err(self.denied(&format!("{}:", base.scheme())));
        };
        match self.resolve(host, port).await {
            Err(error) if self.is_denial(&error.to_string()) => Err(self.denied(host)),
            // A failed lookup is reported when the client connects.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Resolves a host once and returns its addresses if all of them are allowed.
    pub(crate) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<IpAddr>> {
        let found = match host.trim_matches(['[', ']']).parse() {
            Ok(address) => vec![address],
            // The host is a name, not an address.
            Err(_) => (self.lookup)(host.to_owned()).await?,
        };
        if found.iter().all(|address| self.allows(host, port, *address)) {
            return Ok(found);
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, self.target.marker()))
    }

    fn allows(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.iter().any(|rule| rule.allows(host, port, address)))
    }

    /// Makes a client of this base URL connect only to addresses that pass the check. Fails if the URL itself contains an
    /// address that does not.
    pub(crate) fn restrict(&self, builder: ClientBuilder, base: &Url) -> Result<ClientBuilder, OptimizerError> {
        let (Some(_), Some(host), Some(port)) = (&self.rules, base.host_str(), base.port_or_known_default()) else {
            return Ok(builder);
        };
        // A client resolves only names.
        if let Ok(address) = host.trim_matches(['[', ']']).parse()
            && !self.allows(host, port, address)
        {
            return Err(self.denied(host));
        }
        Ok(builder.dns_resolver(Arc::new(CheckedResolver { egress_policy: self.clone(), port })))
    }

    /// Returns whether a connection failed because this policy denied it.
    pub(crate) fn is_denial(&self, reason: &str) -> bool {
        reason.contains(self.target.marker())
    }

    /// Creates the error for an address that may not be called. It does not reveal the address of a host name.
    pub(crate) fn denied(&self, host: &str) -> OptimizerError {
        let marker = self.target.marker();
        let (code, field, option) = match self.target {
            EgressTarget::Containers => (ErrorCode::Container, "container.url", "--allow-container"),
            EgressTarget::Proposers => (ErrorCode::Proposer, "proposer.base_url", "--allow-proposer"),
        };
        let message = format!("{marker}: {field} resolves to {host}, which the service may not call");
        let hint = format!("Start the service with {option} HOST, HOST:PORT or NETWORK to allow it.");
        OptimizerError::new(code, message).with_hint(hint)
    }
}

/// Resolver of one client that applies the policy to every lookup.
struct CheckedResolver {
    egress_policy: EgressPolicy,
    port: u16,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (egress_policy, port) = (self.egress_policy.clone(), self.port);
        Box::pin(async move {
            let found = egress_policy.resolve(name.as_str(), port).await;
            let found = found.map_err(|error| -> Box<dyn Error + Send + Sync> { Box::new(error) })?;
            let resolve: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(resolve)
        })
    }
}

/// Returns a host name in lower case and without a trailing dot.
fn normalized(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
#[path = "egress_policy_tests.rs"]
mod tests;
