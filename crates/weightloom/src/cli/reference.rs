//! Shell completions and man pages, generated from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::Shell;
use serde::Serialize;
use weightloom::errors::FileError;
use weightloom::{App, Registry, app};

use super::failure::Failure;
use super::output::{Output, counted};

/// The definition of our own command line, for documentation.
pub fn command() -> clap::Command {
    app(Registry::standard()).command()
}

#[derive(Serialize)]
struct Completions {
    shell: String,
    script: String,
}

pub(super) fn completions(app: &App, shell: Shell, output: Output) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut app.command(), app.program(), &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let name = shell.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    output.show(&Completions { shell: name, script }, |completions| completions.script.trim_end().to_owned())
}

#[derive(Args)]
pub(super) struct ManArgs {
    /// The folder to write to.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: PathBuf,
}

#[derive(Serialize)]
struct ManPages {
    folder: PathBuf,
    pages: Vec<String>,
}

pub(super) fn man_pages(app: &App, args: &ManArgs, output: Output) -> Result<ExitCode, Failure> {
    let failed = |error: FileError| Failure::operational_with_hint(&error);
    std::fs::create_dir_all(&args.out)
        .map_err(FileError::while_trying_to("create", &args.out))
        .map_err(failed)?;
    let mut pages = Vec::new();
    let mut root = app.command();
    root.build();
    let mut commands = vec![(app.program().to_owned(), root)];
    while let Some((name, command)) = commands.pop() {
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
        commands.extend(visible.map(|one| (format!("{name}-{}", one.get_name()), one.clone())));
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::operational(&error))?;
        let file = args.out.join(format!("{name}.1"));
        std::fs::write(&file, page).map_err(FileError::while_trying_to("write", &file)).map_err(failed)?;
        pages.push(format!("{name}.1"));
    }
    pages.sort();
    let written = ManPages { folder: args.out.clone(), pages };
    output.show(&written, |written| {
        format!("wrote {} to {}", counted(written.pages.len(), "page"), written.folder.display())
    })
}
