//! The names of a program in its help: its own name, and what it has registered.

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use weightloom::{App, Registry};

use super::{Cli, PROGRAM};

/// The command line of a program. Help lists the names that it knows.
pub(crate) fn app_command(app: &App) -> Command {
    let registry = app.registry();
    let command = Cli::command()
        .mut_subcommand("train", |train| with_names(train, &of_training(registry)))
        .mut_subcommand("sway", |sway| with_names(sway, &of_judging(registry)))
        .mut_subcommand("models", |models| with_names(models, &of_models(registry)));
    called(command, app.program()).name(app.program()).version(app.program_version())
}

/// A heading with its names.
type Names = (&'static str, Vec<String>);

fn of_training(registry: &Registry) -> Vec<Names> {
    let known = registry.training();
    let owned = |names: Vec<&'static str>| names.into_iter().map(str::to_owned).collect();
    let specs = known.specs.registered().map(|(name, _)| name.to_owned());
    vec![
        ("Models", families(registry).into_iter().chain(specs).collect()),
        ("Losses", owned(known.losses.names())),
        ("Optimizers", owned(known.optimizers.names())),
        ("Schedules", owned(known.schedules.names())),
        ("Data formats", owned(known.formats.names())),
        ("Metric sinks", owned(known.sinks.names())),
        ("Callbacks", owned(known.callbacks.names())),
        ("Save planners", owned(known.save_planners.names())),
        ("Load planners", owned(known.load_planners.names())),
    ]
}

fn of_judging(registry: &Registry) -> Vec<Names> {
    let known = registry.judging();
    vec![
        ("Probes", known.probes.kinds().iter().map(|kind| kind.name().to_owned()).collect()),
        ("Backends", known.backends.kinds().iter().map(|kind| kind.name().to_owned()).collect()),
    ]
}

fn of_models(registry: &Registry) -> Vec<Names> {
    vec![("Families", families(registry))]
}

fn families(registry: &Registry) -> Vec<String> {
    registry.families().iter().map(|family| family.name().to_owned()).collect()
}

/// Lists names at the end of the long help.
fn with_names(command: Command, names: &[Names]) -> Command {
    let known = names.iter().filter(|(_, names)| !names.is_empty());
    let lines = known.map(|(heading, names)| format!("{heading}: {}", names.join(", ")));
    let list = lines.collect::<Vec<_>>().join("\n");
    let text = match command.get_after_help() {
        Some(examples) => format!("{examples}\n\n{list}"),
        None => list,
    };
    command.after_long_help(text)
}

/// Replaces the name of our program in the examples.
fn called(mut command: Command, program: &'static str) -> Command {
    if program == PROGRAM {
        return command;
    }
    let renamed = |text: Option<&StyledStr>| {
        text.map(|text| text.to_string().replace(&format!("{PROGRAM} "), &format!("{program} ")))
    };
    let (short, long) = (renamed(command.get_after_help()), renamed(command.get_after_long_help()));
    let (about, long_about) = (renamed(command.get_about()), renamed(command.get_long_about()));
    if let Some(text) = short {
        command = command.after_help(text);
    }
    if let Some(text) = long {
        command = command.after_long_help(text);
    }
    if let Some(text) = about {
        command = command.about(text);
    }
    if let Some(text) = long_about {
        command = command.long_about(text);
    }
    command.mut_subcommands(|inner| called(inner, program))
}
