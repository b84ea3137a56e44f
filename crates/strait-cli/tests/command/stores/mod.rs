//! Tables in object stores and on web servers. All servers are on the loopback.

mod emulators;
mod fake;
mod faults;
mod reading;
#[cfg(feature = "sql")]
mod sql;
mod writing;

use std::process::Command;

use crate::sandbox::{Outcome, Sandbox, outcome};
use fake::Fake;

/// A secret that must not appear in any message.
const SECRET: &str = "d1Scr33tValu3";

/// Sets the variables that all stores need, and removes those of the machine.
fn configure(command: &mut Command) {
    for (name, _) in std::env::vars() {
        let is_foreign = ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|start| name.starts_with(start));
        if is_foreign || name.to_ascii_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    command.env("AWS_ALLOW_HTTP", "true").env("AWS_ACCESS_KEY_ID", "AKIDENTIFIER00");
    command.env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_REGION", "us-east-1");
    command.env("GOOGLE_ALLOW_HTTP", "true");
}

/// Runs the command against a server.
fn strait(sandbox: &Sandbox, fake: &Fake, arguments: &str) -> Outcome {
    let mut command = sandbox.command();
    fake.configure(&mut command);
    let outcome = outcome(command.args(arguments.split_whitespace()));
    for secret in [SECRET, "AKIDENTIFIER00"] {
        assert!(!outcome.stderr.contains(secret), "{}", outcome.stderr);
    }
    outcome
}
