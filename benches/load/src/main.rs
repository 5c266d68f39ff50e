//! `lockgate-load`: loads a server for a fixed time and prints the result as one JSON object on stdout.
//!
//! It plays the agent in the benchmarks: HTTPS directly, through a proxy that reads the server name, or through an explicit proxy;
//! plain HTTP through an explicit proxy; and DNS. It measures nothing of the server: the program that starts it reads the server's
//! processes.

#![expect(clippy::print_stdout, reason = "its output is the measurement")]
#![expect(clippy::print_stderr, reason = "it tells the person who starts it what went wrong")]

mod certificate;
mod dns;
mod https;
mod request;
mod tally;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

#[derive(Parser)]
#[command(name = "lockgate-load", about = "Load a server and tell what came back.")]
enum Command {
    /// Requests over TLS, or through a proxy without, for a fixed time
    Https(https::Load),
    /// Questions over UDP, for a fixed time
    Dns {
        /// The server
        #[arg(long)]
        server: SocketAddr,
        /// What is asked for, always
        #[arg(long)]
        name: String,
        /// Questions that may be unanswered at one time
        #[arg(long, default_value_t = 32)]
        outstanding: usize,
        /// How long
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// Write a certificate that vouches for itself: cert.pem and key.pem
    Certificate {
        /// The server it is for
        #[arg(long)]
        name: String,
        /// The folder it is written to
        #[arg(long)]
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let mut linger = 0.0;
    let done = match Command::parse() {
        Command::Https(load) => {
            linger = load.linger;
            https::run(&load)
        }
        Command::Dns { server, name, outstanding, seconds } => dns::run(server, &name, outstanding, seconds),
        Command::Certificate { name, folder } => certificate::write(&name, &folder),
    };
    match done {
        Ok(tally) => {
            if let Some(tally) = tally {
                println!("{tally}");
            }
            std::thread::sleep(Duration::from_secs_f64(linger));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
