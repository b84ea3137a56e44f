//! Completion scripts and man pages.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::arguments::Cli;
use crate::output::print;

/// Prints the completion script.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "strait", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the page of `strait`, or writes the pages of all commands into a folder.
pub(crate) fn man(out: Option<&Path>) -> anyhow::Result<()> {
    match out {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            print(&String::from_utf8_lossy(&page))
        }
        Some(folder) => {
            let context = || format!("cannot write man pages to {}", folder.display());
            std::fs::create_dir_all(folder).with_context(context)?;
            clap_mangen::generate_to(Cli::command(), folder).with_context(context)
        }
    }
}
