//! Two backends combined: a view of the first is the base, a view of the second
//! the tuned model.

use super::subset::answer_subset;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::chat::{ChatSupport, ChatUsage};
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};
use crate::view::View;

/// Combines views of two backends into a base and a tuned model.
pub struct ModelPair {
    base: BackendView,
    tuned: BackendView,
    description: Description,
}

/// One view of a backend.
#[allow(missing_docs)]
pub struct BackendView {
    pub backend: Box<dyn Backend>,
    pub view: View,
}

impl BackendView {
    /// The tuned model of a backend, or its base if it has no tuned model.
    pub fn tuned(backend: Box<dyn Backend>) -> Self {
        let has_tuned = backend.description().capabilities.contains(&Capability::Differential);
        Self { backend, view: if has_tuned { View::Tuned } else { View::Base } }
    }

    fn name(&self) -> String {
        let description = self.backend.description();
        match (&self.view, &description.adapter) {
            (View::Tuned, Some(adapter)) => format!("{} with {adapter}", description.base),
            _ => description.base.clone(),
        }
    }
}

impl ModelPair {
    /// Combines the base of one backend and the tuned model of another.
    pub fn new(base: Box<dyn Backend>, tuned: Box<dyn Backend>) -> Self {
        Self::of(BackendView { backend: base, view: View::Base }, BackendView::tuned(tuned))
    }

    /// Combines any two views.
    pub fn of(base: BackendView, tuned: BackendView) -> Self {
        let (first, second) = (base.backend.description(), tuned.backend.description());
        let from_base = [Capability::Embedding, Capability::Tokenizer];
        let mut capabilities: Capabilities =
            from_base.into_iter().filter(|capability| first.capabilities.contains(capability)).collect();
        capabilities.insert(Capability::Differential);
        for shared in [Capability::Preflight, Capability::CacheIdentity, Capability::Chat] {
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
                "one side identifies tokens by string and the other by id: next tokens cannot be compared"
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
enum Side {
    Base,
    Tuned,
}

/// The side that answers a question, if any.
fn side_of(question: &Question) -> Option<Side> {
    match (&question.view, &question.query) {
        (_, Query::Divergence { .. }) => None,
        (View::Base, _) => Some(Side::Base),
        (View::Tuned, _) => Some(Side::Tuned),
        _ => None,
    }
}

/// The question to ask the backend of one side.
fn translate(question: &Question, side: &BackendView) -> Question {
    let view = match question.query {
        // Only bases answer these.
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
        for (index, question) in questions.iter().enumerate() {
            if side_of(question).is_none() {
                let query = format!("queries of the view `{}`", question.view);
                let backend = self.description.kind.clone();
                sink.answered(index, Err(QueryError::Unsupported { backend, query }));
            }
        }
        for (side, view) in [(Side::Base, &mut self.base), (Side::Tuned, &mut self.tuned)] {
            let indices: Vec<usize> =
                (0..questions.len()).filter(|index| side_of(&questions[*index]) == Some(side)).collect();
            let subset: Vec<Question> =
                indices.iter().map(|index| translate(&questions[*index], view)).collect();
            answer_subset(&mut *view.backend, &subset, &indices, sink)?;
        }
        Ok(())
    }

    fn base_identity(&self) -> Option<String> {
        // A base with its own adapter is not a base alone.
        (self.base.view == View::Base).then(|| self.base.backend.base_identity()).flatten()
    }

    fn chat_support(&self) -> ChatSupport {
        let (base, tuned) = (self.base.backend.chat_support(), self.tuned.backend.chat_support());
        // Both sides must render the messages.
        if base.usage == ChatUsage::Unavailable { base } else { tuned }
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        self.base.backend.preflight()?;
        self.tuned.backend.preflight()
    }
}
