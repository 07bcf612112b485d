//! A tiny model with a tokenizer of bytes, and a server for it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use weightloom_checkpoint::{Observer, Source};
use weightloom_hub::text::{ChatTemplates, GenerationDefaults, Tokenizer};
use weightloom_hub::{Families, ModelLoadOptions, TextGenerator, load_model};
use weightloom_serve::{ServeError, ServeOptions, run};

/// What the model is called, with a slash as many are.
pub const NAME: &str = "tests/tiny";

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if mood %}({{ mood }})\n{% endif %}{% if add_generation_prompt %}a:{% endif %}";

struct Silent;

impl Observer for Silent {}

/// Whether a model is made for conversations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Chats {
    Known,
    Unknown,
}

/// The tiny model, as if it were made for texts of this length.
pub fn generator(positions: usize, chats: Chats) -> TextGenerator {
    // Fuzz targets use this file too, from another folder, or where the sources are not.
    let roots = [PathBuf::from(env!("CARGO_MANIFEST_DIR")), std::env::current_dir().unwrap()];
    let folders = roots.iter().flat_map(|root| root.ancestors());
    let mut folders = folders.map(|folder| folder.join("crates/models/tests/fixtures/llama"));
    let folder: PathBuf = folders.find(|folder| folder.is_dir()).unwrap();
    let mut config: Map<String, Value> =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    config.insert("max_position_embeddings".to_owned(), json!(positions));
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let family = families.of_config(&config).unwrap().clone();
    let decoder = family.definition(&config).unwrap();
    let source = Source::open(folder.join("model.safetensors")).unwrap();
    let keys = family.keys(&config, &source.index).unwrap();
    let options = ModelLoadOptions::default();
    let loaded = load_model(&source, &*decoder, &keys, &family.parallel(), &options, &Silent).unwrap();
    let texts = tempfile::tempdir().unwrap();
    write_tokenizer(texts.path(), chats);
    TextGenerator {
        model: loaded.model,
        adapter: None,
        tokenizer: Tokenizer::from_folder(texts.path()).unwrap(),
        templates: ChatTemplates::from_folder(texts.path()).unwrap(),
        defaults: GenerationDefaults::default(),
    }
}

/// One token for each of 94 bytes: most of ASCII, and those of `é` and `€`.
fn write_tokenizer(folder: &Path, chats: Chats) {
    let ascii = (' '..='~').filter(|char| !"@\\^`|~".contains(*char));
    // A space is written as Ġ in this alphabet, and 0x82 as Ĥ.
    let ascii = ascii.map(|char| if char == ' ' { 'Ġ' } else { char });
    let pieces = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let pieces = pieces.chain(ascii.chain(['Ã', '©', 'â', 'Ĥ', '¬']).map(String::from));
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    assert_eq!(vocabulary.len(), 97);
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocabulary, "merges": []},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut companion = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"});
    if chats == Chats::Known {
        companion["chat_template"] = json!(TEMPLATE);
    }
    fs::write(folder.join("tokenizer_config.json"), companion.to_string()).unwrap();
}

/// A running server, which ends with this.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Options in which nobody waits for long.
pub fn options() -> ServeOptions {
    let mut options = ServeOptions::new(NAME);
    options.client_timeout = Duration::from_secs(20);
    options.request_timeout = Duration::from_secs(20);
    options.grace = Duration::from_secs(20);
    options
}

impl Server {
    pub fn start() -> Self {
        Self::with(generator(64, Chats::Known), options())
    }

    /// One whose requests can be made to last for minutes.
    pub fn patient(mut options: ServeOptions) -> Self {
        options.max_cache_bytes = u64::MAX;
        Self::with(generator(1 << 20, Chats::Known), options)
    }

    pub fn with(generator: TextGenerator, options: ServeOptions) -> Self {
        let (ready, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            let shutdown = async {
                let _ = stopped.await;
            };
            run("127.0.0.1:0", generator, options, shutdown, |address| ready.send(address).unwrap())
        };
        let thread = std::thread::spawn(work);
        let address = address.recv_timeout(Duration::from_secs(20)).unwrap();
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Asks it to end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for its end.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if !std::thread::panicking() {
            self.join();
        }
    }
}
