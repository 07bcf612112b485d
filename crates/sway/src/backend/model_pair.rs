//! Two backends as one: a view of the first is the base, a view of the second
//! the tuned model.

use super::subset::answer_subset;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::view::View;

/// Two backends as one.
pub struct ModelPair {
    base: Side,
    tuned: Side,
    description: Description,
}

/// One view of a backend.
pub struct Side {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// The view that stands for it.
    pub view: View,
}

impl Side {
    /// A model and what changed it, or the model alone if nothing did.
    pub fn changed(backend: Box<dyn Backend>) -> Self {
        let differs = backend.description().capabilities.contains(&Capability::Differential);
        Self { backend, view: if differs { View::Tuned } else { View::Base } }
    }

    /// What it is called.
    fn name(&self) -> String {
        let description = self.backend.description();
        match (&self.view, &description.adapter) {
            (View::Tuned, Some(adapter)) => format!("{} with {adapter}", description.base),
            _ => description.base.clone(),
        }
    }
}

impl ModelPair {
    /// The base of one backend and the tuned model of another.
    pub fn new(base: Box<dyn Backend>, tuned: Box<dyn Backend>) -> Self {
        Self::of(Side { backend: base, view: View::Base }, Side::changed(tuned))
    }

    /// Any view of one backend as the base, and any of another as the tuned
    /// model.
    pub fn of(base: Side, tuned: Side) -> Self {
        let (first, second) = (base.backend.description(), tuned.backend.description());
        let of_base = [Capability::Embedding, Capability::Tokenizer];
        let mut capabilities: Capabilities =
            of_base.into_iter().filter(|capability| first.capabilities.contains(capability)).collect();
        capabilities.insert(Capability::Differential);
        for shared in [Capability::Preflight, Capability::CacheIdentity] {
            if first.capabilities.contains(&shared) && second.capabilities.contains(&shared) {
                capabilities.insert(shared);
            }
        }
        let identity = match (&first.identity, &second.identity) {
            (Some(first), Some(second)) => {
                Some(format!("two_model:{}:{first}:{}:{second}", base.view, tuned.view))
            }
            _ => None,
        };
        let mut notes = first.notes.clone();
        notes.extend(second.notes.iter().filter(|note| !first.notes.contains(note)).cloned());
        if (first.kind == "api") != (second.kind == "api") {
            notes.push(
                "one side tells tokens by text and the other by number: which come next cannot be compared"
                    .to_owned(),
            );
        }
        let description = Description {
            kind: "two_model".to_owned(),
            base: base.name(),
            adapter: Some(tuned.name()),
            capabilities,
            notes,
            identity,
        };
        Self { base, tuned, description }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Which {
    Base,
    Tuned,
}

/// The side that answers a question, if one does.
fn able(question: &Question) -> Option<Which> {
    match (&question.view, &question.query) {
        (_, Query::Divergence { .. }) => None,
        (View::Base, _) => Some(Which::Base),
        (View::Tuned, _) => Some(Which::Tuned),
        _ => None,
    }
}

/// A question in the words of one side.
fn passed(question: &Question, side: &Side) -> Question {
    let view = match question.query {
        // These are asked of bases alone.
        Query::Embedding { .. } | Query::Filler { .. } => &View::Base,
        _ => &side.view,
    };
    Question::new(view, question.query.clone())
}

impl Backend for ModelPair {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        for (place, question) in questions.iter().enumerate() {
            if able(question).is_none() {
                let query = format!("queries of the view `{}`", question.view);
                let backend = self.description.kind.clone();
                sink.answered(place, Err(QueryError::Unsupported { backend, query }));
            }
        }
        for (which, side) in [(Which::Base, &mut self.base), (Which::Tuned, &mut self.tuned)] {
            let places: Vec<usize> =
                (0..questions.len()).filter(|place| able(&questions[*place]) == Some(which)).collect();
            let part: Vec<Question> = places.iter().map(|place| passed(&questions[*place], side)).collect();
            answer_subset(&mut *side.backend, &part, &places, sink)?;
        }
        Ok(())
    }

    fn base_identity(&self) -> Option<String> {
        // A base that has a change of its own is no base alone.
        (self.base.view == View::Base).then(|| self.base.backend.base_identity()).flatten()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        self.base.backend.preflight()?;
        self.tuned.backend.preflight()
    }
}
