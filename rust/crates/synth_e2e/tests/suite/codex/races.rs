//! Ends that meet each other or are broken off, and stops that come while a turn is being opened.

use std::time::Duration;

use synth_e2e::model_server::write_rules;
use synth_e2e::wait::wait_until_async;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_platform::proposer::Proposer;

use super::hostile::{use_fake_codex, redefine};
use super::fixture::{KEY, CodexFixture, request, turn_id};

/// A codex of a few lines, with some of its functions redefined.
fn fixture_with_fake(changes: &str) -> CodexFixture {
    let mut fixture = CodexFixture::new(write_rules);
    use_fake_codex(&mut fixture, changes);
    fixture
}

/// It stays when its input ends.
const IGNORES_CLOSED_INPUT: &str = "import atexit, time\natexit.register(time.sleep, 3600)\n";

#[test]
fn a_close_that_is_broken_off_leaves_nothing_when_it_is_taken_up_again_or_everything_is_dropped() {
    for is_closed_again in [true, false] {
        let fixture = fixture_with_fake(IGNORES_CLOSED_INPUT);
        fixture.runtime.block_on(async {
            let proposer = fixture.proposer();
            proposer.prepare().await.unwrap();
            let broken_off = tokio::time::timeout(Duration::from_millis(200), proposer.close()).await;
            assert!(broken_off.is_err() && !fixture.processes().is_empty());
            if is_closed_again {
                proposer.close().await;
                fixture.assert_clean();
            }
        });
        fixture.assert_gone();
        assert!(!fixture.run_dir().join(".codex_home").exists());
    }
}

#[test]
fn a_process_is_replaced_only_when_the_one_before_has_ended() {
    // The first never answers that a turn is to begin. It tells when its input ends, and stays for as long as it is let.
    let marker = tempfile::tempdir().unwrap();
    let (asked, ending) = (marker.path().join("asked"), marker.path().join("ending"));
    let first = format!(
        "import os, sys, time\n    if not os.path.exists({asked:?}):\n        open({asked:?}, 'w').close(); \
         sys.stdin.read(); open({ending:?}, 'w').close(); time.sleep(3600)"
    );
    let mut fixture = fixture_with_fake(&format!("{STAYS}{}", redefine("turn", &first)));
    // Long enough for a second process to start on a busy machine.
    fixture.config.proposer.rpc_timeout_seconds = 5;
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        let late = async {
            // The first turn has been given up then, and its process is being ended.
            wait_until_async("the first process is being ended", || ending.exists()).await;
            proposer.propose(turn_id(2), request()).await
        };
        let (gone, late) = tokio::join!(proposer.propose(turn_id(1), request()), late);
        assert_eq!(gone.unwrap_err().failure.class, FailureClass::UnknownOutcome);
        // It came as far as the word that another model answers.
        assert_eq!(late.unwrap_err().failure.class, FailureClass::Contract);
        assert!(fixture.run_dir().join(".codex_home/config.toml").exists(), "the home of the second was removed");
        assert!(fixture.run_dir().join("proposer.lease.json").exists(), "the lease of the second was removed");
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn a_stop_before_the_question_withdraws_it_and_one_after_abandons_it() {
    let marker = tempfile::tempdir().unwrap();
    let seen = marker.path().join("seen");
    let hang = format!("import time; open({seen:?}, 'w').close(); time.sleep(3600)");
    for (changes, class) in [
        (redefine("thread", &format!("if 'turn_' in params['cwd']: {hang}")), FailureClass::Withdrawn),
        (redefine("turn", &hang), FailureClass::Abandoned),
    ] {
        let fixture = fixture_with_fake(&changes);
        let proposer = fixture.proposer();
        fixture.runtime.block_on(async {
            proposer.prepare().await.unwrap();
            let stopped = async {
                wait_until_async("it is asked", || seen.exists()).await;
                proposer.interrupt();
            };
            let (result, ()) = tokio::join!(proposer.propose(turn_id(1), request()), stopped);
            let failure = result.unwrap_err().failure;
            assert_eq!((failure.class, failure.usage.total_tokens), (class, None));
            proposer.close().await;
        });
        std::fs::remove_file(&seen).unwrap();
        fixture.assert_clean();
    }
}

#[test]
fn a_refusal_that_repeats_the_key_is_told_without_it() {
    let fixture = fixture_with_fake(&redefine("turn", &format!("result['error'] = 'not with {KEY}'")));
    let failure = fixture.turn().unwrap_err().failure;
    assert_eq!(failure.class, FailureClass::NotSent);
    assert!(failure.message.contains("not with [hidden]"), "{}", failure.message);
}

#[test]
fn a_run_directory_may_have_any_name() {
    let fixture = CodexFixture::new(write_rules);
    let dir = fixture.temp_dir().join("it's a \"run\" $HOME");
    let proposer = fixture.proposer_in(&dir);
    let ready = fixture.runtime.block_on(proposer.prepare()).unwrap().unwrap();
    assert!(ready.sandbox.ends_with("no network"), "{}", ready.sandbox);
    fixture.runtime.block_on(proposer.close());
    assert!(!dir.join(".codex_home").exists());
}
