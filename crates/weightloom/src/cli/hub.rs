//! The hub of a command: options that say where cards and models are, and how
//! fetching and loading are shown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueHint};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use weightloom::errors::Hint;
use weightloom::hub::fetch::{FetchObserver, LockWait, NetworkAccess, TransferError};
use weightloom::hub::{Hub, HubError};
use weightloom::standard::{Folders, hub};

use super::failure::Failure;
use super::output::Output;

#[derive(Args, Clone, Default)]
pub(super) struct HubArgs {
    /// A folder with cards, which override others; may be given several times.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    asset_dir: Vec<PathBuf>,

    /// A folder with described models (my_org/my_model/model.yaml); may be given several times.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    model_path: Vec<PathBuf>,

    /// Use only files that are here already.
    #[arg(long)]
    offline: bool,
}

impl HubArgs {
    /// The options that say where described models are, as they are written.
    pub(super) fn model_options(&self) -> String {
        self.model_path.iter().map(|folder| format!(" --model-path {}", folder.display())).collect()
    }

    pub(super) fn hub(&self) -> Result<Hub, Failure> {
        let folders = Folders { assets: self.asset_dir.clone(), models: self.model_path.clone() };
        let variable = |name: &str| std::env::var(name).ok();
        let mut hub = hub(&variable, &folders).map_err(|error| Failure::user(&error))?;
        if let (true, Ok(settings)) = (self.offline, hub.fetch_settings_mut()) {
            settings.network = NetworkAccess::Offline;
        }
        Ok(hub)
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Checkpoint(error) => Self::from(error),
            HubError::Incompatible { .. } => Self::check_with_hint(&error),
            HubError::Fetch(inner) if inner.is_operational() => Self::operational_with_hint(&inner),
            other => Self::user(&other),
        }
    }
}

/// Shows downloads, one bar for each file, and says what is waited for.
pub(super) struct Downloads {
    bars: MultiProgress,
    by_file: Mutex<BTreeMap<String, ProgressBar>>,
    shown: bool,
}

impl Downloads {
    pub(super) fn new(output: Output) -> Self {
        let target = match output {
            Output::Text => ProgressDrawTarget::stderr_with_hz(10),
            Output::Json => ProgressDrawTarget::hidden(),
        };
        let bars = MultiProgress::with_draw_target(target);
        Self { bars, by_file: Mutex::default(), shown: output == Output::Text }
    }

    fn with_bar(&self, file: &str, show: impl FnOnce(&ProgressBar)) {
        if let Some(bar) = self.by_file.lock().unwrap_or_else(PoisonError::into_inner).get(file) {
            show(bar);
        }
    }

    fn say(&self, line: &str) {
        if self.shown {
            // On anything but a terminal nothing is shown.
            let _ = self.bars.println(line);
        }
    }
}

impl FetchObserver for Downloads {
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        let bar = self.bars.add(ProgressBar::new(bytes.unwrap_or(0)));
        let style = "{msg:32!} [{bar:24}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("█▌ "));
        bar.set_message(file.to_owned());
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
        self.say(&format!("waiting for {who}, which fetches {}", wait.file));
    }

    fn retrying(&self, file: &str, why: &TransferError, after: Duration) {
        self.say(&format!("{file}: {why}; trying again in {:.1} s", after.as_secs_f64()));
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        let _ = self.bars.clear();
    }
}

/// An error of arguments that exclude each other or lack something.
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
