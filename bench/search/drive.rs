//! A run whose scores and proposals come from another process: questions go to stdout and answers come from stdin, one JSON
//! line each, as `search serve` has them. The last line on stdout is the line of the run.

use std::io::{self, Write as _};

use serde_json::{Value, json};

use crate::{Failure, Task, run};

/// Runs the search that `task` describes and writes its line.
pub(crate) fn drive(task: &str) -> Result<(), Failure> {
    let task: Value = serde_json::from_str(task)?;
    let mut asked = Asked {
        rows: task["rows"].as_u64().ok_or("no rows")? as u32,
        initial: task["initial"].as_str().ok_or("no initial text")?.to_owned(),
    };
    let line = run(&task, &mut asked)?;
    writeln!(io::stdout(), "{line}")?;
    Ok(())
}

/// A task that another process knows.
struct Asked {
    rows: u32,
    initial: String,
}

impl Asked {
    fn ask(&self, question: &Value) -> Result<Value, Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{question}")?;
        out.flush()?;
        let mut answer = String::new();
        if io::stdin().read_line(&mut answer)? == 0 {
            return Err("the process that answers has ended".into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Task for Asked {
    fn rows(&self) -> u32 {
        self.rows
    }

    fn initial(&self) -> &str {
        &self.initial
    }

    fn score(&mut self, text: &str, row: u32, repeat: &str) -> Result<f64, Failure> {
        let answer = self.ask(&json!({"ask": "score", "text": text, "of": [row], "repeat": repeat}))?;
        Ok(answer[0].as_f64().ok_or("the answer has no score")?)
    }

    fn propose(&mut self, text: &str, evidence: &[(u32, f64)], turn: u64) -> Result<String, Failure> {
        let answer = self.ask(&json!({"ask": "propose", "text": text, "evidence": evidence, "turn": turn}))?;
        Ok(answer.as_str().ok_or("the answer has no text")?.to_owned())
    }

    fn record(&self, text: &str) -> Result<Value, Failure> {
        self.ask(&json!({"ask": "quality", "text": text}))
    }

    fn record_end(&self, text: &str) -> Value {
        json!({"text": text})
    }
}
