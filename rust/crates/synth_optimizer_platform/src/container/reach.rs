//! Which containers may be called: checked where a connection is made, on the address that is connected to.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};

use super::broken;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The word by which such an error is known.
const NOT_ALLOWED: &str = "container_not_allowed";

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// What may be called. Anything, unless it is narrowed.
#[derive(Debug, Clone)]
pub struct Reach {
    /// None: anything.
    rules: Option<Vec<Rule>>,
    /// How names become addresses.
    lookup: fn(String) -> Looking,
}

/// Something that is allowed, at one port or at all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    what: What,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Network(IpNet),
    /// Whatever the name stands for: whoever allows it trusts it.
    Host(String),
}

impl Rule {
    fn allows(&self, host: &str, port: u16, address: IpAddr) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
            && match &self.what {
                // An IPv4 address in the clothes of an IPv6 one is the IPv4 address.
                What::Network(network) => network.contains(&address.to_canonical()),
                What::Host(name) => *name == plain(host),
            }
    }

    /// `host`, `host:port`, an address, one with a port, or a network such as `10.0.0.0/8`.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim();
        if let Some((address, bits)) = entry.split_once('/') {
            let network = IpNet::new(address.parse::<IpAddr>().ok()?.to_canonical(), bits.parse().ok()?).ok()?;
            return Some(Self { what: What::Network(network), port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || (host.starts_with('[') && host.ends_with(']')) => {
                (host, Some(port.parse::<u16>().ok()?))
            }
            Some(_) | None => (entry, None),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Self { what: What::Network(address.to_canonical().into()), port });
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_host = !host.is_empty() && host.bytes().all(is_name);
        is_host.then(|| Self { what: What::Host(plain(host)), port })
    }
}

impl Default for Reach {
    /// Anything.
    fn default() -> Self {
        let lookup = |name: String| -> Looking {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|found| found.ip()).collect()) })
        };
        Self { rules: None, lookup }
    }
}

impl Reach {
    /// This machine only: its loopback addresses, and names that stand for nothing else.
    pub fn loopback() -> Self {
        let rules = ["127.0.0.0/8", "::1"].into_iter().filter_map(Rule::parse).collect();
        Self { rules: Some(rules), ..Self::default() }
    }

    /// The same and `host`, `host:port`, an address, or a network such as `10.0.0.0/8`.
    pub fn allow(mut self, entry: &str) -> Result<Self, OptimizerError> {
        let rule = Rule::parse(entry).ok_or_else(|| {
            OptimizerError::new(ErrorCode::Config, format!("{entry:?} names no host and no network"))
                .with_hint("Write it like tasks.example.org, tasks.example.org:9100, 10.1.2.3 or 10.0.0.0/8.")
        })?;
        if let Some(rules) = &mut self.rules {
            rules.push(rule);
        }
        Ok(self)
    }

    /// Whether the container at this address may be called. Nobody is. Every connection looks again, so that a name that
    /// changes its meaning afterwards helps nobody.
    pub(crate) async fn check(&self, url: &str) -> Result<(), OptimizerError> {
        // What is no address at all is told by whoever reads the configuration.
        let (Some(_), Ok(base)) = (&self.rules, Url::parse(url.trim())) else { return Ok(()) };
        let (Some(host), Some(port), "http" | "https") = (base.host_str(), base.port_or_known_default(), base.scheme())
        else {
            return Err(not_allowed(&format!("{}:", base.scheme())));
        };
        match self.addresses(host, port).await {
            Err(error) if says_not_allowed(&error.to_string()) => Err(not_allowed(host)),
            // One that cannot be looked up is told apart later, by whoever connects to it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Looks a host up once and gives its addresses, if every one of them is allowed.
    pub(super) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<IpAddr>> {
        let found = match host.trim_matches(['[', ']']).parse() {
            Ok(address) => vec![address],
            Err(_) => (self.lookup)(host.to_owned()).await?,
        };
        let Some(rules) = &self.rules else { return Ok(found) };
        let is_allowed = |address: &IpAddr| rules.iter().any(|rule| rule.allows(host, port, *address));
        if found.iter().all(is_allowed) {
            return Ok(found);
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED))
    }

    /// A client that connects to no other address than those that were checked.
    pub(super) fn guard(&self, builder: ClientBuilder, port: Option<u16>) -> ClientBuilder {
        match (&self.rules, port) {
            (Some(_), Some(port)) => builder.dns_resolver(Arc::new(Guide { reach: self.clone(), port })),
            (Some(_) | None, _) => builder,
        }
    }
}

/// Looks names up for the connections of one client.
struct Guide {
    reach: Reach,
    port: u16,
}

impl Resolve for Guide {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, port) = (self.reach.clone(), self.port);
        Box::pin(async move {
            let found = reach.addresses(name.as_str(), port).await;
            let found = found.map_err(|error| -> Box<dyn Error + Send + Sync> { Box::new(error) })?;
            let addresses: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

/// A name without what does not change its meaning.
fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether the reason of a failed connection is that it was not allowed.
pub(super) fn says_not_allowed(reason: &str) -> bool {
    reason.contains(NOT_ALLOWED)
}

/// The error of a container that may not be called. It does not tell what a name stands for in this network.
pub(super) fn not_allowed(host: &str) -> OptimizerError {
    let message = format!("{NOT_ALLOWED}: container.url leads to {host}, which may not be called from here");
    broken(message, "Whoever runs the service can allow it with --allow-container HOST, HOST:PORT or NETWORK.")
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
