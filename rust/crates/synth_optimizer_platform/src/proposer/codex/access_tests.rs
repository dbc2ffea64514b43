//! Selection of credentials by config and environment.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn env(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
    move |wanted| pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
}

fn key(variable: &str, value: &str) -> Option<ApiKey> {
    Some(ApiKey { variable: variable.to_owned(), value: Secret::new(value) })
}

#[test]
fn an_endpoint_receives_a_key_only_if_the_config_names_one() {
    let mut section = ProposerSection { base_url: Some("http://here/v1".into()), ..ProposerSection::default() };
    let known = env(&[("OPENAI_API_KEY", "secret"), ("MINE", "own")]);
    let endpoint = |key| ModelAccess::Endpoint { base_url: "http://here/v1".into(), key };
    assert_eq!(ModelAccess::decide(&section, &known).unwrap(), endpoint(None));
    section.api_key_env = Some("MINE".into());
    let access = ModelAccess::decide(&section, &known).unwrap();
    assert_eq!(access, endpoint(key("MINE", "own")));
    assert_eq!((access.describe().as_str(), access.secrets()), ("api_key (MINE)", vec![Secret::new("own")]));
    assert!(!format!("{access:?}").contains("own\""), "{access:?}");
    section.api_key_env = Some("UNSET".into());
    assert!(ModelAccess::decide(&section, &known).unwrap_err().message.contains("UNSET"));
}

#[test]
fn openai_is_accessed_by_key_or_by_sign_in() {
    let dir = tempfile::tempdir().unwrap();
    let home = Utf8PathBuf::from_path_buf(dir.path().canonicalize().unwrap()).unwrap();
    fs::write(home.join(AUTH_FILE), "{\"tokens\":{\"access_token\":\"a-long-access-token\",\"id\":\"short\"}}")
        .unwrap();
    let mut section = ProposerSection::default();
    let keyed = env(&[("OPENAI_API_KEY", "secret")]);
    let openai = ModelAccess::Endpoint { base_url: OPENAI.into(), key: key("OPENAI_API_KEY", "secret") };
    assert_eq!(ModelAccess::decide(&section, &keyed).unwrap(), openai);
    section.codex_home = Some(home.clone());
    let host = ModelAccess::Host { auth: home.join(AUTH_FILE) };
    assert_eq!(ModelAccess::decide(&section, &env(&[])).unwrap(), host);
    assert_eq!(host.secrets(), [Secret::new("a-long-access-token")]);
    section.auth_mode = AuthMode::Host;
    assert_eq!(ModelAccess::decide(&section, &keyed).unwrap(), host);
    section.auth_mode = AuthMode::ApiKey;
    assert!(ModelAccess::decide(&section, &env(&[("OPENAI_API_KEY", " ")])).is_err());
    section.auth_mode = AuthMode::Auto;
    section.api_key_env = Some("MINE".into());
    assert!(ModelAccess::decide(&section, &keyed).unwrap_err().message.contains("MINE"));
    section.api_key_env = None;
    section.codex_home = Some("/no/such/place".into());
    assert!(ModelAccess::decide(&section, &env(&[])).unwrap_err().message.contains("/no/such/place"));
}

#[test]
fn a_configured_codex_home_takes_precedence_over_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let home = Utf8PathBuf::from_path_buf(dir.path().canonicalize().unwrap()).unwrap();
    fs::write(home.join(AUTH_FILE), "{}").unwrap();
    let section = ProposerSection { codex_home: Some(home.clone()), ..ProposerSection::default() };
    let access = ModelAccess::decide(&section, &env(&[("OPENAI_API_KEY", "secret")])).unwrap();
    assert_eq!(access, ModelAccess::Host { auth: home.join(AUTH_FILE) });
    assert!(access.is_openai() && !access.is_list_priced());
}

#[test]
fn a_key_is_trimmed() {
    let section = ProposerSection { api_key_env: Some("MINE".into()), ..ProposerSection::default() };
    let access = ModelAccess::decide(&section, &env(&[("MINE", " the-key\n")])).unwrap();
    assert_eq!(access.secrets(), [Secret::new("the-key")]);
}

#[test]
fn the_default_key_is_used_only_for_openai() {
    let at = |url: &str, auth_mode| ProposerSection { base_url: Some(url.into()), auth_mode, ..Default::default() };
    let keyed = env(&[("OPENAI_API_KEY", "secret")]);
    for mode in [AuthMode::Auto, AuthMode::ApiKey] {
        let access = ModelAccess::decide(&at("https://api.openai.com/v1/", mode), &keyed).unwrap();
        assert!(access.is_list_priced(), "{access:?}");
        assert_eq!(access.secrets(), [Secret::new("secret")]);
    }
    let unset = ModelAccess::decide(&at("https://api.openai.com/v1", AuthMode::ApiKey), &env(&[])).unwrap_err();
    assert!(unset.message.contains("OPENAI_API_KEY"), "{unset}");
    let foreign = ModelAccess::decide(&at("http://127.0.0.1:1/v1", AuthMode::ApiKey), &keyed).unwrap_err();
    assert!(foreign.message.contains("proposer.api_key_env"), "{foreign}");
    let own = ModelAccess::decide(&at("http://127.0.0.1:1/v1", AuthMode::Auto), &keyed).unwrap();
    assert!(!own.is_openai() && !own.is_list_priced() && own.secrets().is_empty());
    let bad = ModelAccess::decide(&at("https://user:canary@host/v1", AuthMode::Auto), &keyed).unwrap_err();
    assert!(!format!("{bad:?}").contains("canary"));
}
