//! Which containers may be called: checked where a connection is made, on the address that is connected to.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// The word by which such an error is known.
const NOT_ALLOWED: &str = "container_not_allowed";

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
/// How names become addresses.
type Lookup = Arc<dyn Fn(String) -> Looking + Send + Sync>;

/// What may be called. Anything, unless it is narrowed.
#[derive(Clone)]
pub struct Reach {
    /// None: anything.
    rules: Option<Arc<Vec<Rule>>>,
    lookup: Lookup,
}

/// Something that is allowed, at one port or at all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    what: What,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// The addresses whose first bits are these.
    Network { address: IpAddr, bits: u8 },
    /// Whatever the name stands for: whoever allows it trusts it.
    Host(String),
}

impl Rule {
    fn network(address: IpAddr, bits: u8) -> Self {
        Self { what: What::Network { address, bits }, port: None }
    }

    fn is_for(&self, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
    }

    fn has(&self, address: IpAddr) -> bool {
        let What::Network { address: network, bits } = &self.what else { return false };
        let first = |value: u128, width: u32| value.checked_shr(width - u32::from(*bits)).unwrap_or(0);
        match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                first(network.to_bits().into(), 32) == first(address.to_bits().into(), 32)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                first(network.to_bits(), 128) == first(address.to_bits(), 128)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// `host`, `host:port`, an address, one with a port, or a network such as `10.0.0.0/8`.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim();
        if let Some((address, bits)) = entry.split_once('/') {
            let (address, bits) = (address.parse::<IpAddr>().ok()?.to_canonical(), bits.parse::<u8>().ok()?);
            let widest = if address.is_ipv4() { 32 } else { 128 };
            return (bits <= widest).then(|| Self::network(address, bits));
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || (host.starts_with('[') && host.ends_with(']')) => {
                (host, Some(port.parse::<u16>().ok()?))
            }
            Some(_) | None => (entry, None),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            return Some(Self { port, ..Self::network(address, if address.is_ipv4() { 32 } else { 128 }) });
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_host = !host.is_empty() && host.bytes().all(is_name);
        is_host.then(|| Self { what: What::Host(plain(host)), port })
    }
}

impl Default for Reach {
    /// Anything.
    fn default() -> Self {
        Self { rules: None, lookup: Arc::new(|name| Box::pin(system_lookup(name))) }
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rules {
            Some(rules) => write!(out, "Reach({rules:?})"),
            None => write!(out, "Reach(anything)"),
        }
    }
}

impl Reach {
    /// This machine only: its loopback addresses, and names that stand for nothing else.
    pub fn loopback() -> Self {
        let rules = vec![Rule::network(Ipv4Addr::LOCALHOST.into(), 8), Rule::network(Ipv6Addr::LOCALHOST.into(), 128)];
        Self { rules: Some(Arc::new(rules)), ..Self::default() }
    }

    /// The same and `host`, `host:port`, an address, or a network such as `10.0.0.0/8`.
    pub fn allow(self, entry: &str) -> Result<Self, OptimizerError> {
        let rule = Rule::parse(entry).ok_or_else(|| {
            OptimizerError::new(ErrorCode::Config, format!("{entry:?} names no host and no network"))
                .with_hint("Write it like tasks.example.org, tasks.example.org:9100, 10.1.2.3 or 10.0.0.0/8.")
        })?;
        let rules = self.rules.map(|rules| Arc::new(rules.iter().cloned().chain([rule]).collect()));
        Ok(Self { rules, lookup: self.lookup })
    }

    /// The same with another way to look names up.
    #[cfg(test)]
    fn looking_up(self, lookup: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        let lookup = move |name: String| -> Looking {
            let found = lookup(&name);
            Box::pin(async move { Ok(found) })
        };
        Self { lookup: Arc::new(lookup), ..self }
    }

    /// Whether the container at this address may be called. Nobody is.
    pub(crate) async fn check(&self, url: &str) -> Result<(), OptimizerError> {
        // What is no address at all is told by whoever reads the configuration.
        let Ok(base) = Url::parse(url.trim()) else { return Ok(()) };
        self.check_url(&base)?;
        match (base.host_str(), base.port_or_known_default()) {
            (Some(host), Some(port)) => self.check_name(host, port).await,
            _ => Ok(()),
        }
    }

    /// The scheme, and the address where the URL names one. Names are looked up when they are connected to.
    pub(super) fn check_url(&self, base: &Url) -> Result<(), OptimizerError> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let (Some(host), true) = (base.host_str(), matches!(base.scheme(), "http" | "https")) else {
            return Err(not_allowed(&format!("{}:", base.scheme())));
        };
        match (literal(host), base.port_or_known_default()) {
            (Some(address), Some(port)) if !allows(rules, host, port, address) => Err(not_allowed(host)),
            _ => Ok(()),
        }
    }

    /// Whether a host may be called. One that cannot be looked up is told apart later, by whoever connects to it.
    pub(super) async fn check_name(&self, host: &str, port: u16) -> Result<(), OptimizerError> {
        match self.addresses(host, port).await {
            Err(error) if says_not_allowed(&error.to_string()) => Err(not_allowed(host)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Looks a host up once and gives its addresses, if every one of them is allowed.
    pub(super) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<IpAddr>> {
        let found = match literal(host) {
            Some(address) => vec![address],
            None => (self.lookup)(host.to_owned()).await?,
        };
        let Some(rules) = &self.rules else { return Ok(found) };
        if found.iter().all(|address| allows(rules, host, port, *address)) {
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

async fn system_lookup(name: String) -> io::Result<Vec<IpAddr>> {
    Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.map(|found| found.ip()).collect())
}

fn allows(rules: &[Rule], host: &str, port: u16, address: IpAddr) -> bool {
    // An IPv4 address in the clothes of an IPv6 one is the IPv4 address.
    let address = address.to_canonical();
    let is_named = |rule: &Rule| matches!(&rule.what, What::Host(name) if *name == plain(host));
    rules.iter().any(|rule| rule.is_for(port) && (rule.has(address) || is_named(rule)))
}

/// The address that a host is written as.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
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
    OptimizerError::new(ErrorCode::Container, message)
        .with_hint("Whoever runs the service can allow it with --allow-container HOST, HOST:PORT or NETWORK.")
}

#[cfg(test)]
#[path = "reach_tests.rs"]
mod tests;
