//! Loading the teacher of a distillation.

use weightloom_checkpoint::Observer;
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{Hub, ModelLoadOptions};
use weightloom_layout::DType;
use weightloom_nn::{Model, ModelDefinition};

use crate::error::TrainError;
use crate::loss::LossError;

/// Where a teacher comes from, and who observes its way.
pub(super) struct TeacherSource<'a> {
    pub(super) hub: &'a Hub,
    pub(super) fetching: &'a dyn FetchObserver,
    pub(super) reading: &'a dyn Observer,
}

impl TeacherSource<'_> {
    /// Loads weights as the teacher of a model, on the same ranks. Called by every rank.
    pub(super) fn load(
        &self,
        path: &str,
        student: &dyn ModelDefinition,
        options: &ModelLoadOptions,
    ) -> Result<Box<dyn Model>, TrainError> {
        let model = self.hub.open(path, self.fetching)?;
        let (found, expected) = (model.definition()?.vocabulary(), student.vocabulary());
        if found != expected {
            return Err(LossError::TeacherVocabulary { teacher: path.to_owned(), found, expected }.into());
        }
        // Nothing is trained, so the weights need not be more precise than they are used.
        let dtype = options.usage.dtype.unwrap_or(DType::F32);
        let options = ModelLoadOptions { dtype: Some(dtype), ..options.clone() };
        Ok(model.load(&options, self.reading)?.model)
    }
}
