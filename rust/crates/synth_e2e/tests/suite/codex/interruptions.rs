//! Interrupted turns and killed processes: no process or file stays behind.

use synth_e2e::model_server::{ModelReply, run, say, write_rules};
use synth_e2e::wait::wait_until_async;
use synth_optimizer_core::config::proposer::ModelPrice;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_platform::container::reap_orphans;
use synth_optimizer_platform::proposer::{Proposer, TurnFailure};

use super::fixture::{CodexFixture, items, request, texts, turn_id};

/// Returns a fixture whose model first runs a command that takes an hour.
fn fixture_with_long_command() -> CodexFixture {
    CodexFixture::new(|request| {
        items(vec![if request.outputs.is_empty() { run("touch started; sleep 3601") } else { say("done") }])
    })
}

fn sleepers(fixture: &CodexFixture) -> usize {
    fixture.processes().iter().filter(|(_, line)| line.starts_with("sleep 3601")).count()
}

/// Waits until the command of the turn is running.
async fn command_runs(fixture: &CodexFixture) {
    wait_until_async("the command runs", || fixture.workspace().join("started").exists() && sleepers(fixture) > 0)
        .await;
}

async fn command_ends(fixture: &CodexFixture) {
    wait_until_async("the command has ended", || sleepers(fixture) == 0).await;
}

#[test]
fn an_interrupt_ends_a_long_command_and_keeps_its_usage() {
    let fixture = fixture_with_long_command();
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        let turn = proposer.propose(turn_id(1), request());
        let told = async {
            command_runs(&fixture).await;
            proposer.interrupt();
        };
        // The interrupt ended the turn, so it is abandoned and not timed out.
        let (result, ()) = tokio::join!(turn, told);
        let TurnFailure { failure, fatal, .. } = result.unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::Abandoned, false));
        assert!(fatal.is_none() && failure.models.is_some());
        assert_eq!(failure.usage.total_tokens, Some(120));
        command_ends(&fixture).await;
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn dropping_a_turn_ends_its_command_and_keeps_the_process() {
    let fixture = CodexFixture::new(|request| match request.number {
        0 => items(vec![run("touch started; sleep 3601")]),
        _ => write_rules(request),
    });
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        tokio::select! {
            result = proposer.propose(turn_id(1), request()) => panic!("it ended: {result:?}"),
            () = command_runs(&fixture) => {}
        }
        command_ends(&fixture).await;
        assert_eq!(texts(&proposer.propose(turn_id(2), request()).await.unwrap()), ["Rules: r0 r3"]);
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn dropping_a_turn_before_the_model_answers_ends_it() {
    let fixture = CodexFixture::new(|request| match request.number {
        0 => ModelReply::NoHeaders,
        _ => write_rules(request),
    });
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        tokio::select! {
            result = proposer.propose(turn_id(1), request()) => panic!("it ended: {result:?}"),
            () = wait_until_async("the model is asked", || fixture.server.requests().len() == 1) => {}
        }
        // Codex closes its connection to the model.
        wait_until_async("the question is withdrawn", || fixture.server.hung_up() == 1).await;
        assert_eq!(texts(&proposer.propose(turn_id(2), request()).await.unwrap()), ["Rules: r0 r3"]);
        assert_eq!((sleepers(&fixture), fixture.server.requests().len()), (0, 4));
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn a_deadline_ends_a_long_command() {
    let mut fixture = fixture_with_long_command();
    let price = ModelPrice {
        prompt_usd: Some(1.0),
        cached_prompt_usd: None,
        completion_usd: Some(1.0),
        ..ModelPrice::default()
    };
    fixture.config.proposer.prices.insert("stub-model".into(), price);
    fixture.config.proposer.timeout_seconds = 3;
    let TurnFailure { failure, fatal, .. } = *fixture.turn().unwrap_err();
    assert_eq!((failure.class, failure.retryable), (FailureClass::Timeout, true));
    assert!(fatal.is_none());
    // The reported usage is known; the cost of the interrupted response is not.
    assert_eq!((failure.usage.total_tokens, failure.usage.cost), (Some(120), Cost::Unknown));
}

#[test]
fn a_killed_process_fails_its_turn_and_is_replaced() {
    let fixture = CodexFixture::new(|request| match request.number {
        0 => items(vec![run("touch started; sleep 3601")]),
        _ => write_rules(request),
    });
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        let turn = proposer.propose(turn_id(1), request());
        let killed = async {
            command_runs(&fixture).await;
            let processes = fixture.processes();
            let codex = processes.iter().find(|(_, line)| line.contains("app-server --strict-config")).unwrap();
            let pid = rustix::process::Pid::from_raw(codex.0.parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        };
        let (result, ()) = tokio::join!(turn, killed);
        let TurnFailure { failure, fatal, .. } = result.unwrap_err();
        assert_eq!((failure.class, failure.retryable), (FailureClass::UnknownOutcome, true));
        assert!(fatal.is_none());
        assert_eq!(texts(&proposer.propose(turn_id(2), request()).await.unwrap()), ["Rules: r0 r3"]);
        assert_eq!(sleepers(&fixture), 0);
        proposer.close().await;
    });
    fixture.assert_clean();
}

#[test]
fn dropping_a_proposer_leaves_no_process_or_home() {
    let fixture = fixture_with_long_command();
    fixture.runtime.block_on(async {
        let proposer = fixture.proposer();
        tokio::select! {
            result = proposer.propose(turn_id(1), request()) => panic!("it ended: {result:?}"),
            () = command_runs(&fixture) => {}
        }
    });
    fixture.assert_gone();
    assert!(!fixture.run_dir().join(".codex_home").exists());
    // The lease file stays; the next start finds no process.
    assert_eq!(reap_orphans(&fixture.run_dir()).unwrap(), 0);
    fixture.assert_clean();
}

#[test]
fn processes_of_a_crashed_run_are_ended_by_the_next_run() {
    let fixture = fixture_with_long_command();
    fixture.runtime.block_on(async {
        let proposer = fixture.proposer();
        tokio::select! {
            result = proposer.propose(turn_id(1), request()) => panic!("it ended: {result:?}"),
            () = command_runs(&fixture) => {}
        }
        // Simulates a kill of this process: no destructor runs.
        std::mem::forget(proposer);
    });
    assert!(!fixture.processes().is_empty());
    assert!(reap_orphans(&fixture.run_dir()).unwrap() >= 1);
    assert!(fixture.processes().is_empty(), "{:?}", fixture.processes());
    let proposer = fixture.proposer();
    fixture.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        proposer.close().await;
    });
    fixture.assert_clean();
}
