//! Two backends as one: the base of the first, the tuned model of the second.

use super::placed::ask_some;
use super::{Backend, Capabilities, Capability, Description, Watch};
use crate::error::{AskError, SwayError};
use crate::question::{Ask, Question};
use crate::view::View;

/// Two backends as one.
pub struct TwoModel {
    base: Box<dyn Backend>,
    tuned: Box<dyn Backend>,
    description: Description,
}

impl TwoModel {
    /// The base of one backend and the tuned model of another.
    pub fn new(base: Box<dyn Backend>, tuned: Box<dyn Backend>) -> Self {
        let (first, second) = (base.description(), tuned.description());
        let of_base = [Capability::Meaning, Capability::Tokenizer];
        let mut capabilities: Capabilities =
            of_base.into_iter().filter(|capability| first.capabilities.contains(capability)).collect();
        capabilities.insert(Capability::Differential);
        for shared in [Capability::Preflight, Capability::CacheIdentity] {
            if first.capabilities.contains(&shared) && second.capabilities.contains(&shared) {
                capabilities.insert(shared);
            }
        }
        let identity = match (&first.identity, &second.identity) {
            (Some(first), Some(second)) => Some(format!("two_model:{first}:{second}")),
            _ => None,
        };
        let description = Description {
            kind: "two_model".to_owned(),
            base: first.base.clone(),
            adapter: Some(second.adapter.clone().unwrap_or_else(|| second.base.clone())),
            capabilities,
            notes: first.notes.iter().chain(&second.notes).cloned().collect(),
            identity,
        };
        Self { base, tuned, description }
    }

    fn able(&self, question: &Question) -> Option<Side> {
        match (&question.view, &question.ask) {
            (_, Ask::Divergence { .. }) => None,
            (View::Base, _) => Some(Side::Base),
            (View::Tuned, _) => Some(Side::Tuned),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Base,
    Tuned,
}

impl Backend for TwoModel {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], watch: &mut dyn Watch) -> Result<(), SwayError> {
        for (place, question) in questions.iter().enumerate() {
            if self.able(question).is_none() {
                let asked = format!("what {} says", question.view);
                watch.answered(
                    place,
                    Err(AskError::NotAble { backend: self.description.kind.clone(), asked }),
                );
            }
        }
        for side in [Side::Base, Side::Tuned] {
            let places: Vec<usize> =
                (0..questions.len()).filter(|place| self.able(&questions[*place]) == Some(side)).collect();
            let backend = match side {
                Side::Base => &mut self.base,
                Side::Tuned => &mut self.tuned,
            };
            ask_some(&mut **backend, questions, &places, watch)?;
        }
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), SwayError> {
        self.base.preflight()?;
        self.tuned.preflight()
    }
}
