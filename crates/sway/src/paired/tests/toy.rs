//! A model small enough to train in a test: the next letter depends on the last
//! one through a matrix, to which a change of rank 2 is added.

use std::collections::HashMap;

use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::backend::{AnswerSink, Backend, Capability, Description};
use crate::error::{BackendError, QueryError};
use crate::numbers::divergence::{js, kl};
use crate::numbers::pcg64::Pcg64;
use crate::question::{Query, Question};
use crate::view::View;

pub(super) const LETTERS: usize = 16;
const FEATURES: usize = 12;
const RANK: usize = 2;

pub(super) type Matrix = Vec<Vec<f64>>;

fn random(rows: usize, columns: usize, deviation: f64, generator: &mut Pcg64) -> Matrix {
    (0..rows).map(|_| (0..columns).map(|_| deviation * generator.normal()).collect()).collect()
}

/// Two factors whose product is the change.
#[derive(Clone)]
pub(super) struct Factors {
    pub(super) down: Matrix,
    pub(super) up: Matrix,
}

impl Factors {
    fn random(generator: &mut Pcg64) -> Self {
        Self { down: random(FEATURES, RANK, 1.0, generator), up: random(RANK, LETTERS, 1.0, generator) }
    }

    fn product(&self) -> Matrix {
        (0..FEATURES)
            .map(|row| {
                (0..LETTERS)
                    .map(|column| (0..RANK).map(|k| self.down[row][k] * self.up[k][column]).sum())
                    .collect()
            })
            .collect()
    }
}

fn norm(matrix: &Matrix) -> f64 {
    matrix.iter().flatten().map(|value| value * value).sum::<f64>().sqrt()
}

fn scaled(matrix: &Matrix, factor: f64) -> Matrix {
    matrix.iter().map(|row| row.iter().map(|value| value * factor).collect()).collect()
}

/// A change in a random direction, of a given size.
pub(super) fn noise(size: f64, generator: &mut Pcg64) -> Matrix {
    let product = Factors::random(generator).product();
    let length = norm(&product);
    scaled(&product, size / length)
}

/// How to train.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    pub(super) steps: usize,
    pub(super) rate: f64,
    /// Deviation of the first factor's weights. From small ones, training finds
    /// the same directions whatever the seed, as it does in large models.
    pub(super) init: f64,
}

pub(super) struct Toy {
    features: Matrix,
    weights: Matrix,
    pub(super) change: Matrix,
    pub(super) description: Description,
}

impl Toy {
    pub(super) fn new(generator: &mut Pcg64) -> Self {
        let capabilities = [
            Capability::Differential,
            Capability::Scalable,
            Capability::NullCalibrated,
            Capability::MatchedNoise,
            Capability::FullVocabulary,
        ];
        Self {
            features: random(LETTERS, FEATURES, 1.0, generator),
            weights: random(FEATURES, LETTERS, 0.3, generator),
            change: vec![vec![0.0; LETTERS]; FEATURES],
            description: Description {
                kind: "toy".to_owned(),
                base: "toy".to_owned(),
                adapter: None,
                capabilities: capabilities.into_iter().collect(),
                notes: Vec::new(),
                identity: None,
            },
        }
    }

    fn changes(&self, view: &View) -> Matrix {
        match view {
            View::Base => vec![vec![0.0; LETTERS]; FEATURES],
            View::Scaled(strength) => scaled(&self.change, strength.0),
            View::Matched { seed } => noise(norm(&self.change), &mut Pcg64::new(*seed)),
            _ => self.change.clone(),
        }
    }

    /// Logarithms of the probabilities of the letter after another.
    fn next(&self, change: &Matrix, last: usize) -> Vec<f64> {
        let logits: Vec<f64> = (0..LETTERS)
            .map(|letter| {
                (0..FEATURES)
                    .map(|f| self.features[last][f] * (self.weights[f][letter] + change[f][letter]))
                    .sum()
            })
            .collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total = most + logits.iter().map(|logit| (logit - most).exp()).sum::<f64>().ln();
        logits.iter().map(|logit| logit - total).collect()
    }

    /// [`Self::next`] for every last letter.
    fn table(&self, change: &Matrix) -> Matrix {
        (0..LETTERS).map(|last| self.next(change, last)).collect()
    }

    /// Makes a text more likely (or less, with a negative rate) by a change of
    /// rank 2, as training an adapter does.
    pub(super) fn train(&mut self, text: &str, steps: usize, rate: f64, generator: &mut Pcg64) {
        self.train_by(text, &Recipe { steps, rate, init: 0.3 }, generator);
    }

    /// The same by any recipe.
    pub(super) fn train_by(&mut self, text: &str, recipe: &Recipe, generator: &mut Pcg64) {
        let Recipe { steps, rate, init } = *recipe;
        let letters = letters(text);
        // How often each letter follows each.
        let mut counts = vec![vec![0.0; LETTERS]; LETTERS];
        for pair in letters.windows(2) {
            counts[pair[0]][pair[1]] += 1.0;
        }
        let mut factors =
            Factors { down: random(FEATURES, RANK, init, generator), up: vec![vec![0.0; LETTERS]; RANK] };
        for _ in 0..steps {
            let change = factors.product();
            let mut gradient = vec![vec![0.0; LETTERS]; FEATURES];
            for (last, followers) in counts.iter().enumerate() {
                let total: f64 = followers.iter().sum();
                let chances = self.next(&change, last);
                for (letter, chance) in chances.iter().enumerate() {
                    let push = followers[letter] - total * chance.exp();
                    for (row, feature) in gradient.iter_mut().zip(&self.features[last]) {
                        row[letter] += push * feature / letters.len() as f64;
                    }
                }
            }
            let before = factors.clone();
            for (f, row) in gradient.iter().enumerate() {
                for k in 0..RANK {
                    let pull: f64 = row.iter().zip(&before.up[k]).map(|(push, up)| push * up).sum();
                    factors.down[f][k] += rate * pull;
                    for (up, push) in factors.up[k].iter_mut().zip(row) {
                        *up += rate * push * before.down[f][k];
                    }
                }
            }
        }
        self.change = factors.product();
    }

    fn reply(&self, question: &Question, tables: &HashMap<View, Matrix>) -> Result<Answer, QueryError> {
        let table = &tables[&question.view];
        let score = |letters: &[usize]| -> Vec<f64> {
            letters.windows(2).map(|pair| table[pair[0]][pair[1]]).collect()
        };
        let last = |text: &str| letters(text).last().copied().unwrap_or(0);
        Ok(match &question.query {
            Query::Next { prompt, top_k: _ } => Answer::Distribution(Distribution {
                tokens: TokenNames::Ids((0..LETTERS as u32).collect()),
                logprobs: table[last(&prompt.to_string())].iter().map(|logprob| *logprob as f32).collect(),
                vocabulary: Some(LETTERS),
                tail: None,
            }),
            Query::Divergence { prompt, from } => {
                let of = |table: &Matrix| -> Vec<f64> {
                    table[last(&prompt.to_string())].iter().map(|logprob| logprob.exp()).collect()
                };
                let (here, there) = (of(table), of(&tables[from]));
                let refused = |_| QueryError::EmptyText;
                Answer::Divergence(Divergence {
                    js: js(&there, &here).map_err(refused)?,
                    kl: kl(&here, &there).map_err(refused)?,
                })
            }
            Query::Completion { prompt, completion } => {
                let all = letters(&format!("{prompt}{completion}"));
                let scores = score(&all);
                let tokens = letters(completion).len();
                let total = scores[scores.len() - tokens..].iter().sum();
                Answer::Completion(CompletionScore { total, tokens })
            }
            Query::Text { text } => {
                let scores = score(&letters(text));
                Answer::Rolling(Rolling {
                    tokens: scores.len() + 1,
                    total: scores.iter().sum(),
                    logprobs: scores.iter().map(|score| *score as f32).collect(),
                })
            }
            _ => return Err(QueryError::Unsupported { backend: "toy".to_owned(), query: "that".to_owned() }),
        })
    }
}

fn letters(text: &str) -> Vec<usize> {
    text.bytes().map(|byte| byte as usize % LETTERS).collect()
}

impl Backend for Toy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let mut tables = HashMap::new();
        for question in questions {
            let from = match &question.query {
                Query::Divergence { from, .. } => from,
                _ => &View::Base,
            };
            for view in [&question.view, from] {
                if !tables.contains_key(view) {
                    tables.insert(view.clone(), self.table(&self.changes(view)));
                }
            }
        }
        for (place, question) in questions.iter().enumerate() {
            sink.answered(place, self.reply(question, &tables));
        }
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
