//! Concurrent and aborted shutdowns, and interrupts while a turn is starting.

use synth_e2e::model_server::write_rules;
use synth_e2e::wait::wait_until_async;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_platform::proposer::Proposer;

use super::fixture::{CodexFixture, KEY, request, turn_id};
use super::hostile::{redefine, use_fake_codex};

/// Returns a fixture with the fake codex and some of its functions redefined.
fn fixture_with_fake(changes: &str) -> CodexFixture {
    let mut fixture = CodexFixture::new(write_rules);
    use_fake_codex(&mut fixture, changes);
    fixture
}

/// Keeps the process running after its input is closed.
const IGNORES_CLOSED_INPUT: &str = "import atexit, time\natexit.register(time.sleep, 3600)\n";

#[test]
fn an_aborted_close_leaves_nothing_after_a_retry_or_drop() {
    for is_closed_again in [true, false] {
        let marker = tempfile::tempdir().unwrap();
        let ending = marker.path().join("ending");
        // Functions that are registered later are called first.
        let marks = format!("{IGNORES_CLOSED_INPUT}atexit.register(lambda: open({ending:?}, 'w').close())\n");
        let fixture = fixture_with_fake(&marks);
        fixture.runtime.block_on(async {
            let proposer = fixture.proposer();
            proposer.prepare().await.unwrap();
            tokio::select! {
                () = proposer.close() => panic!("it is closed while its process runs"),
                () = wait_until_async("its input is closed", || ending.exists()) => {}
            }
            assert!(!fixture.processes().is_empty());
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
fn a_process_is_replaced_only_after_its_predecessor_has_exited() {
    // The first process never answers `turn/start`. It writes a file when its input is closed, and then keeps running.
    let marker = tempfile::tempdir().unwrap();
    let (asked, ending) = (marker.path().join("asked"), marker.path().join("ending"));
    let first = format!(
        "import os, sys, time\n    if not os.path.exists({asked:?}):\n        open({asked:?}, 'w').close(); \
         sys.stdin.read(); open({ending:?}, 'w').close(); time.sleep(3600)"
    );
    let mut fixture = fixture_with_fake(&format!("{IGNORES_CLOSED_INPUT}{}", redefine("turn", &first)));
    // Long enough for a second process to start on a busy machine.
    fixture.config.proposer.rpc_timeout_seconds = 5;
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        let late = async {
            // At this point the first turn has failed and its process is being ended.
            wait_until_async("the first process is being ended", || ending.exists()).await;
            proposer.propose(turn_id(2), request()).await
        };
        let (gone, late) = tokio::join!(proposer.propose(turn_id(1), request()), late);
        assert_eq!(gone.unwrap_err().failure.class, FailureClass::UnknownOutcome);
        // The second turn got as far as the notification that another model answers.
        assert_eq!(late.unwrap_err().failure.class, FailureClass::Contract);
        assert!(fixture.run_dir().join(".codex_home/config.toml").exists(), "the home of the second was removed");
        assert!(fixture.run_dir().join("proposer.lease.json").exists(), "the lease of the second was removed");
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn an_interrupt_withdraws_an_unsent_question_and_abandons_a_sent_one() {
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
fn an_error_of_codex_is_shown_without_the_key() {
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
