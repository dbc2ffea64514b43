//! Says what is wrong with the address of an HTTP service, without repeating what may be a credential.

/// The first thing that is wrong with a base URL, if anything is.
pub(super) fn problem_of_base_url(url: &str) -> Option<&'static str> {
    problem_of_url(url)
        .or_else(|| url.contains(['?', '#']).then_some("has a query or fragment, which a base URL cannot have"))
}

/// The first thing that is wrong with a URL, if anything is.
pub(super) fn problem_of_url(url: &str) -> Option<&'static str> {
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| {
        url.get(..scheme.len()).filter(|start| start.eq_ignore_ascii_case(scheme)).and(url.get(scheme.len()..))
    });
    let Some(rest) = rest else { return Some("does not start with http:// or https://") };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // A password may itself hold `/`, so an `@` further on is taken for the end of one as well.
    let before_query = rest.split(['?', '#']).next().unwrap_or_default();
    if authority.contains('@') || before_query.contains('@') {
        return Some("holds a user or password");
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("holds white space");
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(if port.is_empty() { None } else { Some(port) })),
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() || host.contains(['[', ']']) {
        return Some("has no host");
    }
    match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => None,
        Some(_) => Some("has a port that is not a number from 1 to 65535"),
    }
}
