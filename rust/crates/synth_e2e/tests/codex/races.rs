//! Ends that meet each other or are broken off, and stops that come while a turn is being opened.

use std::time::{Duration, Instant};

use synth_e2e::model_server::write_rules;
use synth_optimizer_platform::model::answer::FailureClass;
use synth_optimizer_platform::proposer::Proposer;

use super::hostile::fake;
use super::world::{KEY, World, request, turn_id};

/// A codex of a few lines, with some of them changed.
fn changed(changes: &[(&str, &str)]) -> World {
    let mut world = World::new(write_rules);
    fake(&mut world, "pass");
    let path = world.place().join("fake.py");
    let mut script = std::fs::read_to_string(&path).unwrap();
    for (line, other) in changes {
        assert!(script.contains(line), "{line}");
        script = script.replace(line, other);
    }
    std::fs::write(&path, script).unwrap();
    world
}

/// It stays when its input ends.
const STAYS: (&str, &str) =
    ("import json, sys\n", "import atexit, json, sys, time\natexit.register(time.sleep, 600)\n");

fn assert_gone(world: &World) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !world.processes().is_empty() {
        assert!(Instant::now() < deadline, "still running: {:?}", world.processes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_close_that_is_broken_off_leaves_nothing_when_it_is_taken_up_again_or_everything_is_dropped() {
    for is_closed_again in [true, false] {
        let world = changed(&[STAYS]);
        world.runtime.block_on(async {
            let proposer = world.proposer();
            proposer.prepare().await.unwrap();
            let broken_off = tokio::time::timeout(Duration::from_millis(200), proposer.close()).await;
            assert!(broken_off.is_err() && !world.processes().is_empty());
            if is_closed_again {
                proposer.close().await;
                world.assert_clean();
            }
        });
        assert_gone(&world);
        assert!(!world.run_dir().join(".codex_home").exists());
    }
}

#[test]
fn a_process_is_replaced_only_when_the_one_before_has_ended() {
    // The first never answers that a turn is to begin, and stays for as long as it is let.
    let first = "import os\n        if not os.path.exists(FIRST): open(FIRST, 'w').close(); time.sleep(600)\n        ";
    let marker = tempfile::tempdir().unwrap();
    let asked = marker.path().join("first");
    let first = first.replace("FIRST", &format!("{asked:?}"));
    let start = "r = {\"turn\": {\"id\": \"u1\"}}";
    let mut world = changed(&[STAYS, (start, &format!("{first}{start}"))]);
    // Long enough for a second process to start on a busy machine.
    world.config.proposer.rpc_timeout_seconds = 5;
    let proposer = world.proposer();
    world.runtime.block_on(async {
        proposer.prepare().await.unwrap();
        let late = async {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !asked.exists() {
                assert!(Instant::now() < deadline, "it was not asked");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The first turn has been given up by then, and its process is being ended.
            tokio::time::sleep(Duration::from_millis(5400)).await;
            proposer.propose(turn_id(2), request()).await
        };
        let (gone, late) = tokio::join!(proposer.propose(turn_id(1), request()), late);
        assert_eq!(gone.unwrap_err().failure.class, FailureClass::UnknownOutcome);
        // It came as far as the word that another model answers.
        assert_eq!(late.unwrap_err().failure.class, FailureClass::Contract);
        assert!(world.run_dir().join(".codex_home/config.toml").exists(), "the home of the second was removed");
        assert!(world.run_dir().join("proposer.lease.json").exists(), "the lease of the second was removed");
        proposer.close().await;
    });
    world.assert_clean();
}

#[test]
fn a_stop_before_the_question_withdraws_it_and_one_after_abandons_it() {
    let marker = tempfile::tempdir().unwrap();
    let seen = marker.path().join("seen");
    for (line, class) in [
        ("if \"turn_\" in p[\"cwd\"]: SEEN", FailureClass::Withdrawn),
        ("r = {\"turn\": {\"id\": \"u1\"}}", FailureClass::Abandoned),
    ] {
        let hang = format!("import time; open({seen:?}, 'w').close(); time.sleep(600)");
        let world = match class {
            FailureClass::Withdrawn => {
                changed(&[("        pass\n", &format!("        {}\n", line.replace("SEEN", &hang)))])
            }
            _ => changed(&[(line, &format!("{hang}; {line}"))]),
        };
        let proposer = world.proposer();
        world.runtime.block_on(async {
            proposer.prepare().await.unwrap();
            let stopped = async {
                let deadline = Instant::now() + Duration::from_secs(20);
                while !seen.exists() {
                    assert!(Instant::now() < deadline, "it was not asked");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                proposer.interrupt();
            };
            let (result, ()) = tokio::join!(proposer.propose(turn_id(1), request()), stopped);
            let failure = result.unwrap_err().failure;
            assert_eq!((failure.class, failure.usage.total_tokens), (class, None));
            proposer.close().await;
        });
        std::fs::remove_file(&seen).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_refusal_that_repeats_the_key_is_told_without_it() {
    let line = "    print(json.dumps({\"id\": m[\"id\"], \"result\": r}), flush=True)\n";
    let refusal = format!(
        "    if m[\"method\"] == \"turn/start\":\n        print(json.dumps({{\"id\": m[\"id\"], \"error\": \
         {{\"message\": \"not with {KEY}\"}}}}), flush=True); continue\n{line}"
    );
    let world = changed(&[(line, &refusal)]);
    let failure = world.turn().unwrap_err().failure;
    assert_eq!(failure.class, FailureClass::NotSent);
    assert!(failure.message.contains("not with [hidden]"), "{}", failure.message);
}

#[test]
fn a_run_directory_may_have_any_name() {
    let world = World::new(write_rules);
    let dir = world.place().join("it's a \"run\" $HOME");
    let proposer = world.proposer_in(&dir);
    let ready = world.runtime.block_on(proposer.prepare()).unwrap().unwrap();
    assert!(ready.sandbox.ends_with("no network"), "{}", ready.sandbox);
    world.runtime.block_on(proposer.close());
    assert!(!dir.join(".codex_home").exists());
}
