//! The verdict in a sentence.

use super::{Conclusion, Decision, Grade, Verdict};

/// A question of the verdict with its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct AnsweredQuestion<'a> {
    pub question: &'static str,
    /// The answer that a reader hopes for.
    pub hoped: Decision,
    pub conclusion: &'a Conclusion,
}

impl Verdict {
    /// The verdict in a few words, as in `learned, and damaged`.
    pub fn label(&self) -> &'static str {
        let learned = self.learned.decision;
        match self.grade() {
            Grade::Damaged => match (self.memorized.decision, learned) {
                (Decision::Yes, _) => "memorized, and damaged",
                (_, Decision::Yes) => "learned, and damaged",
                (_, Decision::No) => "damaged, and nothing learned",
                _ => "damaged",
            },
            Grade::Memorized => "memorized by heart",
            Grade::Ineffective if self.changed.decision == Decision::Yes => "changed, but nothing learned",
            Grade::Ineffective if self.changed.decision == Decision::No => "no effect beyond noise",
            Grade::Ineffective => "nothing learned",
            Grade::Healthy => "healthy",
            Grade::Unclear => self.unclear(),
        }
    }

    fn unclear(&self) -> &'static str {
        match (self.changed.decision, self.learned.decision, self.damaged.decision) {
            (Decision::Yes, Decision::Yes, Decision::No) if !self.failed.is_empty() => {
                "learned without damage, but a probe failed"
            }
            (_, Decision::Yes, Decision::NotTested) => "learned; damage not tested",
            (_, Decision::Yes, Decision::Undecided) => "learned; damage undecided",
            (Decision::Yes, Decision::NotTested, Decision::No) => {
                "changed without damage; learning not tested"
            }
            (Decision::Yes, Decision::NotTested, _) => "changed; learning not tested",
            (Decision::Yes, Decision::Undecided, _) => "changed; learning undecided",
            (Decision::NotTested, Decision::NotTested, Decision::No) => "no damage; learning not tested",
            (Decision::NotTested, Decision::NotTested, Decision::NotTested) => "nothing judged",
            _ => "undecided",
        }
    }

    /// The verdict in one sentence, which answers all three questions.
    pub fn headline(&self) -> String {
        let mut label = self.label().to_owned();
        if let Some(first) = label.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let [change, learning, damage] = self.answers();
        let failed = match self.grade() {
            Grade::Unclear if !self.failed.is_empty() => format!(" Failed: {}.", self.failed.join(", ")),
            _ => String::new(),
        };
        format!("{label}: the model {change}, {learning}, and {damage}.{failed}")
    }

    /// The questions in the order of the headline. Memorization is a question
    /// only where it was tested.
    pub fn questions(&self) -> Vec<AnsweredQuestion<'_>> {
        let mut all = vec![
            ("Did the model change more than noise?", Decision::Yes, &self.changed),
            ("Did it learn what it was trained on?", Decision::Yes, &self.learned),
        ];
        if self.memorized.decision != Decision::NotTested {
            all.push(("Does it recite what it was trained on?", Decision::No, &self.memorized));
        }
        all.push(("Did it lose what it knew?", Decision::No, &self.damaged));
        let answered = |(question, hoped, conclusion)| AnsweredQuestion { question, hoped, conclusion };
        all.into_iter().map(answered).collect()
    }

    /// The answer to each question, as a clause about the model.
    pub fn answers(&self) -> [&'static str; 3] {
        let change = match self.changed.decision {
            Decision::Yes => "changed more than noise would change it",
            Decision::No => "changed no more than noise would change it",
            Decision::Undecided => "may have changed no more than noise would change it",
            Decision::NotTested => "was not compared with noise",
        };
        let learning = match (self.memorized.decision, self.learned.decision) {
            (Decision::Yes, _) => "recites what it was trained on",
            (_, Decision::Yes) => "learned what it was trained on",
            (_, Decision::No) => "did not learn what it was trained on",
            (_, Decision::Undecided) => "may have learned what it was trained on",
            (_, Decision::NotTested) => "was not asked about what it was trained on",
        };
        let damage = match self.damaged.decision {
            Decision::Yes => "lost what it knew",
            Decision::No => "kept what it knew",
            Decision::Undecided => "may have lost what it knew",
            Decision::NotTested => "was not asked about what it knew before",
        };
        [change, learning, damage]
    }
}
