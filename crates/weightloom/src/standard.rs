//! The hub with all built-in families and cards and the environment's settings.

use std::path::PathBuf;

use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, FamilyError, Hub};

/// The variable with folders of described models, separated as in `PATH`.
pub const MODEL_PATH: &str = "WEIGHTLOOM_MODEL_PATH";

/// Folders besides those of environment variables.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Folders of cards.
    pub assets: Vec<PathBuf>,
    /// Folders of described models.
    pub models: Vec<PathBuf>,
}

/// Builds the hub. `variable` looks up settings, usually in the environment.
pub fn hub(variable: &dyn Fn(&str) -> Option<String>, folders: &Folders) -> Result<Hub, FamilyError> {
    let mut families = Families::new();
    weightloom_models::register(&mut families)?;
    let mut model_path = folders.models.clone();
    if let Some(more) = variable(MODEL_PATH) {
        model_path.extend(std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty()));
    }
    let cards = StoreSettings::from_variables(variable, &folders.assets).store(weightloom_models::CARDS);
    Ok(Hub::new(cards, families, FetchSettings::from_lookup(variable)).with_model_path(model_path))
}
