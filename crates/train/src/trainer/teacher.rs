//! Loading the teacher of a distillation.

use weightloom_checkpoint::Observer;
use weightloom_hub::cards::ModelAddress;
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{Hub, HubError, ModelLoadOptions};
use weightloom_layout::DType;
use weightloom_nn::{Model, ModelDefinition};

use crate::dry_run::Teacher;
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
        check_vocabulary(path, &*model.definition()?, student)?;
        // Nothing is trained, so the weights need not be more precise than they are used.
        let dtype = options.usage.dtype.unwrap_or(DType::F32);
        let options = ModelLoadOptions { dtype: Some(dtype), ..options.clone() };
        Ok(model.load(&options, self.reading)?.model)
    }
}

/// Fails unless the teacher has the vocabulary of the model.
fn check_vocabulary(
    path: &str,
    teacher: &dyn ModelDefinition,
    student: &dyn ModelDefinition,
) -> Result<(), LossError> {
    let (found, expected) = (teacher.vocabulary(), student.vocabulary());
    match found == expected {
        true => Ok(()),
        false => Err(LossError::TeacherVocabulary { teacher: path.to_owned(), found, expected }),
    }
}

/// The teacher as far as it is known without a download: from its card, or from local
/// files.
pub(super) fn describe(hub: &Hub, path: &str, student: &dyn ModelDefinition) -> Result<Teacher, TrainError> {
    let found = hub.resolve(path)?;
    let teacher = match (found.known, found.address) {
        (Some((family, config)), _) => {
            let about = |problem| HubError::Config { about: format!("teacher `{path}`"), problem };
            Teacher { definition: family.definition(&config).map_err(about)?, parallel: family.parallel() }
        }
        (None, Some(ModelAddress::Path(_))) => {
            let model = hub.open(path, &())?;
            Teacher { definition: model.definition()?, parallel: model.family().parallel() }
        }
        (None, _) => return Err(TrainError::UnknownWeights { path: path.to_owned() }),
    };
    check_vocabulary(path, &*teacher.definition, student)?;
    Ok(teacher)
}
