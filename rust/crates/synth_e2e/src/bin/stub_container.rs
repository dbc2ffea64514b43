//! The stub container: prints its port, then serves until it is killed.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use synth_e2e::stub::{Flags, StubContainer, USAGE, serve};
use tokio::net::TcpListener;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help") {
        let _ = io::stdout().write_all(USAGE.as_bytes());
        return ExitCode::SUCCESS;
    }
    match Flags::parse(arguments).and_then(|flags| run(flags).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "{problem}");
            ExitCode::from(2)
        }
    }
}

fn run(flags: Flags) -> io::Result<()> {
    if flags.watch_stdin {
        std::thread::spawn(|| {
            let _ = io::copy(&mut io::stdin().take(u64::MAX), &mut io::sink());
            std::process::exit(0);
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", flags.port)).await?;
        let service = Arc::new(StubContainer::new(flags)?);
        let mut out = io::stdout();
        writeln!(out, "{}", listener.local_addr()?.port())?;
        out.flush()?;
        serve(listener, service).await
    })
}
