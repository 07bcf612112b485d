//! A model in the program's memory gives the answers of the local backend.

use std::sync::Arc;

use weightloom_checkpoint::Source;
use weightloom_hub::ModelLoadOptions;
use weightloom_layout::DType;
use weightloom_nn::{Adapter, Model, Sequence};
use weightloom_sway::backend::adapter_noise::AdapterNoise;
use weightloom_sway::backend::live::{
    ForwardOutput, ForwardRequest, LiveBackend, LiveDescription, LiveModel, LiveOptions, LiveText, LiveTuned,
};
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::backend::{Backend, Capabilities, Capability};
use weightloom_sway::{Answer, BackendError, Query, QueryError, Question, Real, View};

use crate::tiny_model::{ask, fixtures, open};

/// The tiny model with its adapter, as a program may hold them.
struct Live {
    model: Box<dyn Model>,
    adapter: Arc<Adapter>,
    /// The generation in progress.
    rows: (View, Vec<Vec<u32>>),
    /// Views of the forward passes.
    passes: Vec<View>,
}

impl Live {
    fn load() -> Self {
        let model = open(&fixtures().join("model"));
        let options = ModelLoadOptions { dtype: Some(DType::F32), ..ModelLoadOptions::default() };
        let loaded = model.load(&options, &()).unwrap().model;
        let source = Source::open(fixtures().join("adapter")).unwrap();
        let adapter = Arc::new(model.adapter(&*loaded, &source, &()).unwrap());
        Self { model: loaded, adapter, rows: (View::Base, Vec::new()), passes: Vec::new() }
    }

    fn variant(&self, view: &View) -> Option<(Arc<Adapter>, f64)> {
        let noise = |mut noise: AdapterNoise| {
            Arc::new(self.adapter.transform(&*self.model, |tensor| noise.replace(&tensor)).unwrap())
        };
        Some(match view {
            View::Base => return None,
            View::Tuned => (Arc::clone(&self.adapter), 1.0),
            View::Scaled(strength) => (Arc::clone(&self.adapter), strength.0),
            View::Noise { seed, init_scale, rank_scale } => {
                (noise(AdapterNoise::normal(*seed, init_scale.0, rank_scale.0)), 1.0)
            }
            View::Matched { seed } => (noise(AdapterNoise::matched(*seed)), 1.0),
            View::Without { modules } => {
                let removed = |name: &str| modules.iter().any(|prefix| name.starts_with(prefix.as_str()));
                (Arc::new(self.adapter.without(removed)), 1.0)
            }
        })
    }

    fn last_logits(&self) -> Vec<f32> {
        let (view, rows) = &self.rows;
        let variant = self.variant(view);
        let adapters = [variant.as_ref().map(|(adapter, strength)| (&**adapter, *strength))];
        let sequences: Vec<Sequence<'_>> =
            rows.iter().map(|tokens| Sequence { tokens, adapter: 0 }).collect();
        let output = self.model.forward_sequences(&sequences, &adapters).unwrap();
        let last: Vec<(usize, usize)> =
            rows.iter().enumerate().map(|(row, tokens)| (row, tokens.len() - 1)).collect();
        output.logits(&last).unwrap().cast(DType::F32).unwrap().full_tensor().unwrap().to_vec().unwrap()
    }
}

impl LiveModel for Live {
    fn forward(
        &mut self,
        view: &View,
        batch: &[ForwardRequest<'_>],
    ) -> Result<Vec<ForwardOutput>, BackendError> {
        self.passes.push(view.clone());
        let variant = self.variant(view);
        let adapters = [variant.as_ref().map(|(adapter, strength)| (&**adapter, *strength))];
        let sequences: Vec<Sequence<'_>> =
            batch.iter().map(|asked| Sequence { tokens: asked.tokens, adapter: 0 }).collect();
        let output = self.model.forward_sequences(&sequences, &adapters).unwrap();
        let of = |(row, asked): (usize, &ForwardRequest<'_>)| {
            let all: Vec<(usize, usize)> = (0..asked.tokens.len()).map(|position| (row, position)).collect();
            let logits = output.logits(&all).unwrap().cast(DType::F32).unwrap();
            let width = logits.shape()[1];
            let logprobs: Vec<f32> = logits.log_softmax(1).unwrap().full_tensor().unwrap().to_vec().unwrap();
            let logits: Vec<f32> = logits.full_tensor().unwrap().to_vec().unwrap();
            let scored = asked.scored_from..asked.tokens.len();
            ForwardOutput {
                logprobs: scored.map(|at| logprobs[(at - 1) * width + asked.tokens[at] as usize]).collect(),
                next_logits: match asked.next {
                    true => logits[logits.len() - width..].to_vec(),
                    false => Vec::new(),
                },
                mean_hidden: match asked.hidden {
                    true => output.mean_hidden(&[row]).unwrap().full_tensor().unwrap().to_vec().unwrap(),
                    false => Vec::new(),
                },
            }
        };
        Ok(batch.iter().enumerate().map(of).collect())
    }

    fn start_generation(&mut self, view: &View, prompts: &[&[u32]]) -> Result<Vec<f32>, BackendError> {
        self.rows = (view.clone(), prompts.iter().map(|prompt| prompt.to_vec()).collect());
        Ok(self.last_logits())
    }

    fn continue_generation(&mut self, tokens: &[u32]) -> Result<Vec<f32>, BackendError> {
        self.rows.1.iter_mut().zip(tokens).for_each(|(row, token)| row.push(*token));
        Ok(self.last_logits())
    }
}

fn description(tuned: LiveTuned) -> LiveDescription {
    LiveDescription {
        base: "tiny".to_owned(),
        tuned_name: "adapter".to_owned(),
        tuned,
        vocabulary: 257,
        max_positions: None,
        training_data: None,
        notes: Vec::new(),
    }
}

fn live(options: LiveOptions) -> LiveBackend<Live> {
    use Capability::{Attributable, MatchedNoise, NullCalibrated, Scalable};
    let views = Capabilities::from([Scalable, NullCalibrated, MatchedNoise, Attributable]);
    let layers = vec!["model.layers.0".to_owned(), "model.layers.1".to_owned()];
    let text = LiveText::from_folder(&fixtures().join("model")).unwrap();
    LiveBackend::new(Live::load(), description(LiveTuned::Adapter { views, layers }), text, options)
}

fn questions() -> Vec<Question> {
    let (prompt, other) = ("The capital of", "Once upon a time");
    let views = [
        View::Base,
        View::Tuned,
        View::Scaled(Real(0.0)),
        View::Scaled(Real(0.5)),
        View::Noise { seed: 1000, init_scale: Real(0.02), rank_scale: Real(0.5) },
        View::Matched { seed: 3 },
        View::Without { modules: vec!["model.layers.0".to_owned()] },
    ];
    let mut questions = Vec::new();
    for view in &views {
        let mut add = |query| questions.push(Question::new(view, query));
        for prompt in [prompt, other, "x"] {
            add(Query::Next { prompt: prompt.into(), top_k: 16 });
            add(Query::Divergence { prompt: prompt.into(), from: View::Base });
            add(Query::Text { text: prompt.to_owned() });
            add(Query::Generate { prompt: prompt.into(), max_new_tokens: 6 });
        }
        add(Query::Completion { prompt: prompt.into(), completion: " France".to_owned() });
        add(Query::Completion { prompt: prompt.into(), completion: String::new() });
        let (temperature, top_p) = (Real(0.9), Real(0.95));
        add(Query::Sample { prompt: other.into(), max_new_tokens: 6, temperature, top_p, seed: 7 });
    }
    questions.push(Question::new(&View::Base, Query::Embedding { text: prompt.to_owned() }));
    questions.push(Question::new(&View::Base, Query::Filler { tokens: 5 }));
    questions.push(Question::new(&View::Base, Query::Text { text: String::new() }));
    questions
}

#[test]
fn a_live_model_answers_like_its_saved_files() {
    let adapter = Tuned::Adapter(fixtures().join("adapter"));
    let saved = open(&fixtures().join("model"));
    let mut local = LocalBackend::new("hf", saved, adapter, LocalOptions::default()).unwrap();
    let questions = questions();
    let expected = ask(&mut local, &questions);
    assert!(expected.iter().filter(|answer| answer.is_ok()).count() > 90);
    let small =
        LiveOptions { max_batch_tokens: 1, max_batch_size: 1, max_row_bytes: 1, ..LiveOptions::default() };
    for options in [LiveOptions::default(), small] {
        let found = ask(&mut live(options), &questions);
        for ((question, found), expected) in questions.iter().zip(&found).zip(&expected) {
            // The same numbers to the last bit, and the same errors.
            assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{question:?}");
        }
    }
    let mut backend = live(LiveOptions::default());
    backend.preflight().unwrap();
    assert_eq!(backend.chat_support(), local.chat_support());
    assert_eq!(backend.layers(), local.layers());
}

#[test]
fn views_that_a_live_model_lacks_fail_their_questions() {
    let text = LiveText::from_folder(&fixtures().join("model")).unwrap();
    let about = description(LiveTuned::Model);
    let mut backend = LiveBackend::new(Live::load(), about, text, LiveOptions::default());
    assert!(!backend.description().capabilities.contains(&Capability::Scalable));
    let next = |view: &View| Question::new(view, Query::Next { prompt: "x".into(), top_k: 1 });
    let answers = ask(&mut backend, &[next(&View::Tuned), next(&View::Matched { seed: 0 })]);
    assert!(matches!(answers[0], Ok(Answer::Distribution(_))));
    assert!(matches!(answers[1], Err(QueryError::Unsupported { .. })), "{:?}", answers[1]);
}

#[test]
fn a_view_is_made_once_for_all_its_questions() {
    let mut backend = live(LiveOptions::default());
    ask(&mut backend, &questions());
    let mut passes = backend.into_model().passes;
    let all = passes.len();
    passes.dedup();
    // Scaled by zero, the adapter is the base.
    assert_eq!((passes.len(), all), (6, 6));
}
