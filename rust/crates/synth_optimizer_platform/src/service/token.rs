//! The token that keeps strangers out.

use camino::Utf8Path;
use sha2::{Digest, Sha256};

use super::settings::is_private;
use crate::model::error::{ErrorCode, OptimizerError};

/// 128 bits in hexadecimal.
const SHORTEST: usize = 32;

/// What a client must send. Only its digest is kept.
#[derive(Clone)]
pub(super) struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token")
    }
}

impl Token {
    /// Reads the token from a file that nobody else may read.
    pub(super) fn read(path: &Utf8Path) -> Result<Self, OptimizerError> {
        let unreadable = |error: std::io::Error| {
            OptimizerError::new(ErrorCode::Config, format!("cannot read the token file {path}: {error}"))
                .with_hint("Write one with: umask 077; head -c 32 /dev/urandom | base64 > token")
        };
        let refused = |problem: &str, hint: &str| {
            OptimizerError::new(ErrorCode::Config, format!("the token file {path} {problem}")).with_hint(hint)
        };
        if !is_private(path).map_err(unreadable)? {
            return Err(refused("can be read by other users", &format!("chmod 600 {path}")));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let token = text.trim();
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(
                "holds no token: at least 32 visible ASCII characters on one line",
                "Write one with: umask 077; head -c 32 /dev/urandom | base64 > token",
            ));
        }
        Ok(Self(Sha256::digest(token).into()))
    }

    /// Whether this header carries the token. The digests are compared, which tells nothing about the token by its time.
    pub(super) fn is_in(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|value| value.split_once(' ')) else { return false };
        let given: [u8; 32] = Sha256::digest(given.trim()).into();
        let differing = given.iter().zip(&self.0).fold(0, |all, (left, right)| all | (left ^ right));
        scheme.eq_ignore_ascii_case("bearer") && differing == 0
    }
}
