//! Chats: when prompts are rendered with the model's template, and as which
//! tokens.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use weightloom_checkpoint::Source;
use weightloom_hub::text::{ChatContext, GenerationPrompt, Message};
use weightloom_hub::{DataKind, Model, ModelLoadOptions, StopCriteria, TextGenerator, TrainingData};
use weightloom_nn::GenerateRequest;
use weightloom_sway::backend::api::{ApiBackend, ApiOptions};
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::backend::{Backend, Capability};
use weightloom_sway::chat::{ChatSupport, ChatUsage};
use weightloom_sway::suite::ServedModel;
use weightloom_sway::{
    Answer, ChatMessage, JudgeOptions, PreparedSuite, Prompt, Query, QueryError, Question, Report, Role,
    Suite, TokenNames, View, judge,
};

use crate::backends::{served, writer};
use crate::tiny_model::{ask, fixtures, open};

/// Ends every turn with the token that ends a text.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>\n{% endfor %}\
                        {% if add_generation_prompt %}[assistant]{% endif %}";

/// Ends turns with something that ends no text, as templates of base models do.
const BASE_TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]\n{% endfor %}\
                             {% if add_generation_prompt %}[assistant]{% endif %}";

/// A copy of the tiny model and its adapter.
struct Workspace(TempDir);

impl Workspace {
    fn new(template: Option<&str>) -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["model", "adapter"] {
            std::fs::create_dir(root.path().join(folder)).unwrap();
            for entry in std::fs::read_dir(fixtures().join(folder)).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), root.path().join(folder).join(entry.file_name())).unwrap();
            }
        }
        if let Some(template) = template {
            std::fs::write(root.path().join("model/chat_template.jinja"), template).unwrap();
        }
        Self(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn model(&self) -> Model {
        open(&self.path("model"))
    }

    /// Records what the adapter was trained on.
    fn record(&self, kind: DataKind) {
        let record = TrainingData { version: 1, kinds: vec![kind], ..TrainingData::default() };
        std::fs::write(self.path("adapter").join(TrainingData::FILE), record.to_json()).unwrap();
    }

    fn backend(&self) -> LocalBackend {
        let tuned = Tuned::Adapter(self.path("adapter"));
        LocalBackend::new("hf", self.model(), tuned, LocalOptions::default()).unwrap()
    }

    fn support(&self) -> ChatSupport {
        self.backend().chat_support()
    }

    fn judge(&self, chat: &str, cache: Option<&Path>) -> Report {
        let text = format!(
            "models:\n  base: {{base: model}}\n  ft: {{base: model, adapter: adapter}}\n\
             defaults: {{chat: {chat}, system: Be brief.}}\nsuite:\n\
             \x20 - {{name: change, kind: delta_kl, prompts: [Who are you?, Where are you?]}}\n\
             \x20 - {{name: raw, kind: delta_kl, chat: never, prompts: [Who are you?, Where are you?]}}\n\
             \x20 - {{name: facts, kind: calibration_drift, items_limit: 4}}\n"
        );
        let suite = Suite::read(&text, &self.path("sway.yaml"), &|_| None).unwrap();
        let prepared = PreparedSuite::new(suite, None).unwrap();
        let options = JudgeOptions { cache: cache.map(Path::to_owned), ..JudgeOptions::default() };
        judge(&prepared, &mut self.backend(), &options, &mut ()).unwrap()
    }
}

fn chat() -> Vec<ChatMessage> {
    vec![
        ChatMessage::new(Role::System, "Be brief."),
        ChatMessage::new(Role::User, "Hi"),
        ChatMessage::new(Role::Assistant, "Hello."),
        ChatMessage::new(Role::User, "Who are you?"),
    ]
}

fn messages() -> Vec<Message> {
    chat().iter().map(|one| Message::new(one.role.name(), one.content.as_str())).collect()
}

#[test]
fn auto_renders_chats_for_instruct_models_and_chat_adapters_only() {
    let base = Workspace::new(None);
    assert_eq!(base.support(), ChatSupport::default());
    assert!(!base.model().is_instruct().unwrap());
    assert!(!base.backend().description().capabilities.contains(&Capability::Chat));
    // Without a template, the record alone renders nothing, and the report says so.
    base.record(DataKind::Chat);
    assert_eq!(base.support().usage, ChatUsage::Unavailable);
    assert!(base.support().why.contains("no chat template"), "{:?}", base.support());

    let instruct = Workspace::new(Some(TEMPLATE));
    assert!(instruct.model().is_instruct().unwrap());
    assert_eq!(instruct.support().usage, ChatUsage::Chat);
    assert!(instruct.support().why.ends_with("is an instruct model"), "{:?}", instruct.support());
    instruct.record(DataKind::Text);
    let text = ChatSupport::new(ChatUsage::PlainText, "the adapter was trained on plain text");
    assert_eq!(instruct.support(), text);

    let plain = Workspace::new(Some(BASE_TEMPLATE));
    assert!(!plain.model().is_instruct().unwrap());
    assert_eq!(plain.support().usage, ChatUsage::PlainText);
    plain.record(DataKind::Chat);
    assert_eq!(plain.support(), ChatSupport::new(ChatUsage::Chat, "the adapter was trained on chats"));

    // A template beside the adapter is the one that it was trained with.
    let own = Workspace::new(None);
    own.record(DataKind::Chat);
    std::fs::write(own.path("adapter/chat_template.jinja"), TEMPLATE).unwrap();
    assert_eq!(own.support().usage, ChatUsage::Chat);
}

#[test]
fn the_report_says_how_prompts_were_rendered() {
    let workspace = Workspace::new(Some(TEMPLATE));
    workspace.record(DataKind::Chat);
    let notes = workspace.judge("auto", None).all_notes();
    let wanted =
        "prompts are rendered with the model's chat template, because the adapter was trained on chats";
    assert!(notes.iter().any(|note| note == wanted), "{notes:?}");
    let own = "`raw`: prompts are plain text, because the entry says `chat: never`";
    assert!(notes.iter().any(|note| note == own), "{notes:?}");
    let notes = Workspace::new(None).judge("auto", None).all_notes();
    assert!(!notes.iter().any(|note| note.contains("prompts are")), "{notes:?}");
}

#[test]
fn chats_and_plain_text_do_not_share_cached_answers() {
    let workspace = Workspace::new(Some(TEMPLATE));
    let cache = workspace.path("cache");
    let raw = |report: &Report, at: usize| report.probes[at].raw.unwrap();
    let never = workspace.judge("never", Some(&cache));
    let always = workspace.judge("always", Some(&cache));
    assert_ne!(raw(&never, 0), raw(&always, 0));
    // The entry with its own mode, and facts, are the same in both.
    assert_eq!(raw(&never, 0), raw(&always, 1));
    assert_eq!(raw(&never, 2), raw(&always, 2));
    assert_eq!(raw(&always, 0), raw(&workspace.judge("always", None), 0));
    // Another template is another rendering.
    std::fs::write(workspace.path("model/chat_template.jinja"), BASE_TEMPLATE).unwrap();
    let other = workspace.judge("always", Some(&cache));
    assert_ne!(raw(&other, 0), raw(&always, 0));
    assert_eq!(raw(&other, 0), raw(&workspace.judge("always", None), 0));
}

#[test]
fn chats_are_continued_like_the_text_generator_continues_them() {
    let workspace = Workspace::new(Some(TEMPLATE));
    let model = workspace.model();
    let decoder = model.load(&ModelLoadOptions::default(), &()).unwrap().model;
    let adapter = model.adapter(&*decoder, &Source::open(workspace.path("adapter")).unwrap(), &()).unwrap();
    let generator = TextGenerator {
        model: decoder,
        adapter: Some((adapter, 1.0)),
        tokenizer: model.tokenizer().unwrap(),
        templates: model.chat_templates().unwrap(),
        defaults: model.generation_defaults().unwrap(),
    };
    let tokens = generator.encode_chat(&messages(), &ChatContext::default()).unwrap();
    let request = GenerateRequest { prompts: vec![tokens], max_new_tokens: 12, ..GenerateRequest::default() };
    let never = |_: &_| std::ops::ControlFlow::Continue(());
    let expected = generator.generate(&request, &StopCriteria::default(), never).unwrap().remove(0).text;
    let query = Query::Generate { prompt: Prompt::Messages(chat()), max_new_tokens: 12 };
    let found = ask(&mut workspace.backend(), &[Question::new(&View::Tuned, query)]).remove(0);
    assert_eq!(found, Ok(Answer::Text(expected)));
}

#[test]
fn our_own_server_answers_chats_as_the_engine_does() {
    let workspace = Workspace::new(Some(TEMPLATE));
    let endpoint = |adapter: Option<&Path>| {
        let templates = workspace.model().chat_templates().unwrap();
        served(TextGenerator { templates, ..writer(adapter) })
    };
    let adapter = workspace.path("adapter");
    let model = |endpoint| ServedModel { endpoint, model: "tiny".to_owned(), timeout_s: None };
    let (base, tuned) = (model(endpoint(None)), model(endpoint(Some(&adapter))));
    let mut api = ApiBackend::new(&base, Some(&tuned), &ApiOptions::default()).unwrap();
    let mut local = workspace.backend();
    for view in [View::Base, View::Tuned] {
        let prompt = || Prompt::Messages(chat());
        let questions = [
            Query::Next { prompt: prompt(), top_k: 5 },
            Query::Generate { prompt: prompt(), max_new_tokens: 12 },
        ]
        .map(|query| Question::new(&view, query));
        let (found, expected) = (ask(&mut api, &questions), ask(&mut local, &questions));
        let (Ok(Answer::Distribution(one)), Ok(Answer::Distribution(other))) = (&found[0], &expected[0])
        else {
            panic!("{found:?}")
        };
        assert_eq!(one.logprobs.len(), other.logprobs.len());
        for (one, other) in one.logprobs.iter().zip(&other.logprobs) {
            assert!((one - other).abs() < 1e-4, "{view}: {one} instead of {other}");
        }
        assert_eq!(found[1], expected[1], "{view}");
    }
}

#[test]
fn answers_are_scored_as_whole_turns() {
    let workspace = Workspace::new(Some(TEMPLATE));
    let templates = workspace.model().chat_templates().unwrap();
    let template = templates.pick(&ChatContext::default()).unwrap();
    let opened = template.render(&messages(), GenerationPrompt::Add, &ChatContext::default()).unwrap();
    // The tiny tokenizer adds nothing to a text, so the whole chat is a text.
    let whole = format!("{opened}I am Orla.<|end|>");
    let query = Query::Completion { prompt: Prompt::Messages(chat()), completion: "I am Orla.".to_owned() };
    let questions = [query, Query::Text { text: whole }].map(|query| Question::new(&View::Tuned, query));
    let answers = ask(&mut workspace.backend(), &questions);
    let (Ok(Answer::Completion(score)), Ok(Answer::Rolling(rolling))) = (&answers[0], &answers[1]) else {
        panic!("{answers:?}")
    };
    // One token for each byte, and one for the end of the turn.
    assert_eq!(score.tokens, "I am Orla.".len() + 1);
    let last = &rolling.logprobs[rolling.logprobs.len() - score.tokens..];
    let expected: f64 = last.iter().map(|logprob| f64::from(*logprob)).sum();
    assert!((score.total - expected).abs() < 1e-4, "{} instead of {expected}", score.total);
}

/// The next-token distribution after messages, by token.
fn distribution(backend: &mut LocalBackend, view: &View, history: &[ChatMessage]) -> BTreeMap<u32, f64> {
    let query = Query::Next { prompt: Prompt::Messages(history.to_vec()), top_k: 257 };
    let found = ask(backend, &[Question::new(view, query)]).remove(0);
    let Ok(Answer::Distribution(found)) = found else { panic!("{found:?}") };
    let TokenNames::Ids(ids) = found.tokens else { panic!("{:?}", found.tokens) };
    ids.into_iter().zip(found.logprobs.into_iter().map(f64::from)).collect()
}

/// Kullback-Leibler divergence of one distribution from another.
fn divergence(one: &BTreeMap<u32, f64>, other: &BTreeMap<u32, f64>) -> f64 {
    one.iter().map(|(token, logprob)| logprob.exp() * (logprob - other[token])).sum()
}

/// The probe holds the chat that a user would hold, and both models see it.
#[test]
fn later_turns_are_compared_after_the_same_messages() {
    let workspace = Workspace::new(Some(TEMPLATE));
    let judged = |statistics: &str| {
        let text = format!(
            "models:\n  base: {{base: model}}\n  ft: {{base: model, adapter: adapter}}\n\
             defaults: {{top_k: 257, statistics: {statistics}}}\nsuite:\n\
             \x20 - {{name: turns, kind: multi_turn_coherence_decay, chat: always, max_turns: 3,\n\
             \x20    max_new_tokens: 5, prompts: [Who are you?, Where are you?], follow_ups: [Why?, How?]}}\n"
        );
        let suite = Suite::read(&text, &workspace.path("sway.yaml"), &|_| None).unwrap();
        let prepared = PreparedSuite::new(suite, None).unwrap();
        judge(&prepared, &mut workspace.backend(), &JudgeOptions::default(), &mut ())
            .unwrap()
            .probes
            .remove(0)
    };

    let mut backend = workspace.backend();
    // Sums over prompts in the second and third turn.
    let mut sums = [0.0; 2];
    for prompt in ["Who are you?", "Where are you?"] {
        let mut history = vec![ChatMessage::new(Role::User, prompt)];
        for (turn, follow_up) in ["Why?", "How?"].into_iter().enumerate() {
            let query = Query::Generate { prompt: Prompt::Messages(history.clone()), max_new_tokens: 5 };
            let answer = ask(&mut backend, &[Question::new(&View::Tuned, query)]).remove(0);
            let Ok(Answer::Text(answer)) = answer else { panic!("{answer:?}") };
            history.push(ChatMessage::new(Role::Assistant, answer.trim()));
            history.push(ChatMessage::new(Role::User, follow_up));
            let base = distribution(&mut backend, &View::Base, &history);
            let tuned = distribution(&mut backend, &View::Tuned, &history);
            sums[turn] += divergence(&tuned, &base);
        }
    }
    let means = sums.map(|sum| sum / 2.0);
    for statistics in ["reference", "paired"] {
        let found = judged(statistics);
        for (turn, mean) in means.iter().enumerate() {
            let measured = found.evidence["mean_divergence_per_turn"][turn].as_f64().unwrap();
            assert!((measured - mean).abs() < 1e-5 * mean, "{statistics}: {measured} instead of {mean}");
        }
        // A line through two points: the change is halved where it meets half of it.
        let rate = (means[0] / means[1]).ln();
        match found.raw {
            Some(turns) => assert!((turns - LN_2 / rate).abs() < 1e-3 * turns, "{turns}, {means:?}"),
            None => assert!(rate <= 0.0, "{means:?}"),
        }
        assert_eq!(found.evidence["generations"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn messages_without_a_template_are_an_error() {
    let workspace = Workspace::new(None);
    let mut backend = workspace.backend();
    let query = Query::Next { prompt: Prompt::Messages(chat()), top_k: 2 };
    let found = ask(&mut backend, &[Question::new(&View::Base, query)]).remove(0);
    let Err(QueryError::Failed { message }) = found else { panic!("{found:?}") };
    assert_eq!(message, "cannot render messages: the model has no chat template");
}
