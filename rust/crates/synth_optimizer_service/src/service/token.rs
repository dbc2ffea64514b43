//! The token that keeps strangers out.

use std::os::unix::fs::MetadataExt;

use camino::Utf8Path;
use sha2::{Digest, Sha256};

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;

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
            OptimizerError::from_cause(ErrorCode::Config, format!("cannot read the token file {path}"), error)
                .with_hint("Write one with: umask 077; head -c 32 /dev/urandom | base64 > token")
        };
        let refused = |problem: &str, hint: &str| {
            OptimizerError::new(ErrorCode::Config, format!("the token file {path} {problem}")).with_hint(hint)
        };
        if std::fs::metadata(path).map_err(unreadable)?.mode() & 0o077 != 0 {
            return Err(refused("can be read by other users", &format!("chmod 600 {path}")));
        }
        let token = Secret::new(std::fs::read_to_string(path).map_err(unreadable)?.trim());
        let text = token.expose();
        if text.len() < SHORTEST || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(
                "holds no token: at least 32 visible ASCII characters on one line",
                "Write one with: umask 077; head -c 32 /dev/urandom | base64 > token",
            ));
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Whether this header carries the token. The digests are compared, which tells nothing about the token by its time.
    pub(super) fn is_in(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|value| value.split_once(' ')) else { return false };
        let given: [u8; 32] = Sha256::digest(given.trim()).into();
        let differing = given.iter().zip(&self.0).fold(0, |all, (left, right)| all | (left ^ right));
        scheme.eq_ignore_ascii_case("bearer") && differing == 0
    }
}
