//! The model hub as commands use it: options, and progress of downloads.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueHint};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::errors::Hint;
use weightloom::hub::cards::StoreSettings;
use weightloom::hub::fetch::{FetchObserver, LockWait, NetworkAccess, TransferError};
use weightloom::hub::{Hub, HubError};
use weightloom::nn::NnError;
use weightloom::{Folders, Registry};

use super::escape::escaped;
use super::failure::Failure;
use super::output::Output;

#[derive(Args, Clone, Default)]
pub(super) struct HubArgs {
    /// Folder of cards, which override others; repeatable.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    asset_dir: Vec<PathBuf>,

    /// Folder of described models (my_org/my_model/model.yaml); repeatable.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    model_path: Vec<PathBuf>,

    /// Environment whose cards, NAME@ENV, come first; repeatable [default: WEIGHTLOOM_ENV].
    #[arg(long, value_name = "ENV", value_hint = ValueHint::Other)]
    env: Vec<String>,

    /// Use only local files.
    #[arg(long)]
    offline: bool,
}

impl HubArgs {
    /// The `--model-path` and `--env` options, to repeat in a suggested command.
    pub(super) fn model_options(&self) -> String {
        let folders = self.model_path.iter().map(|folder| format!(" --model-path {}", folder.display()));
        folders.chain(self.env.iter().map(|name| format!(" --env {name}"))).collect()
    }

    pub(super) fn hub(&self, registry: &Registry) -> Result<Hub, Failure> {
        let folders = Folders { assets: self.asset_dir.clone(), models: self.model_path.clone() };
        let environments = self.env.join(",");
        let variable = |name: &str| match name {
            StoreSettings::ENVIRONMENTS if !self.env.is_empty() => Some(environments.clone()),
            _ => std::env::var(name).ok(),
        };
        let mut hub = registry.hub(&variable, &folders);
        if let (true, Ok(settings)) = (self.offline, hub.fetch_settings_mut()) {
            settings.network = NetworkAccess::Offline;
        }
        hub.cards.check_environments().map_err(|error| Failure::user(&error))?;
        Ok(hub)
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Checkpoint(error) => Self::from(error),
            HubError::Incompatible { .. } | HubError::Nn(NnError::NotFinite { .. }) => {
                Self::check_with_hint(&error)
            }
            HubError::Fetch(inner) if inner.is_operational() => Self::operational_with_hint(&inner),
            HubError::BareRepository { ref source, .. } if source.is_operational() => {
                Self::operational_with_hint(&error)
            }
            other => Self::user(&other),
        }
    }
}

/// Shows downloads, one bar per file, unless the output is quiet.
pub(super) struct Downloads {
    bars: MultiProgress,
    by_file: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Downloads {
    pub(super) fn new(output: Output) -> Self {
        let target = match output.is_quiet() {
            false => ProgressDrawTarget::stderr_with_hz(10),
            true => ProgressDrawTarget::hidden(),
        };
        let bars = MultiProgress::with_draw_target(target);
        Self { bars, by_file: Mutex::default() }
    }

    fn with_bar(&self, file: &str, show: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = self.by_file.lock().unwrap_or_else(PoisonError::into_inner).get(file) {
            show(bar);
        }
    }

    /// Prints a line above the bars, if they are shown.
    fn status(&self, line: &str) {
        let _ = self.bars.println(escaped(line));
    }
}

impl FetchObserver for Downloads {
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        let bar = self.bars.add(ProgressBar::new(bytes.unwrap_or(0)));
        let style = "{msg:32!} [{bar:24}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("█▌ "));
        bar.set_message(escaped(file).into_owned());
        bar.set_position(already);
        self.by_file.lock().unwrap_or_else(PoisonError::into_inner).insert(file.to_owned(), bar);
    }

    fn progress(&self, file: &str, bytes: u64) {
        self.with_bar(file, |bar| bar.inc(bytes));
    }

    fn lost(&self, file: &str, bytes: u64) {
        self.with_bar(file, |bar| bar.set_position(bar.position().saturating_sub(bytes)));
    }

    fn finished(&self, file: &str) {
        self.with_bar(file, ProgressBar::finish);
    }

    fn waiting(&self, wait: &LockWait<'_>) {
        let who = wait.holder.as_deref().unwrap_or("another process");
        self.status(&format!("waiting for {who} to download {}", wait.file));
    }

    fn retrying(&self, file: &str, why: &TransferError, after: Duration) {
        self.status(&format!("{file}: {why}; retrying in {:.1} s", after.as_secs_f64()));
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let _ = self.bars.clear();
    }
}

/// An invalid combination of arguments.
#[derive(Debug, thiserror::Error)]
#[error("{fact}")]
pub(super) struct ArgumentError {
    pub(super) fact: String,
    pub(super) fix: Option<String>,
}

impl Hint for ArgumentError {
    fn hint(&self) -> Option<String> {
        self.fix.clone()
    }
}
